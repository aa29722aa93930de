"""A user's own code by name, `package.module:name`, with a digest of its source; nothing is ever pickled.

Between real parties a job names code, and each party has its own copy, installed by its owner. The owner
approves a name with a digest (`Approved`). Code is found and digested without importing anything, and only
what is approved is imported. A server's text selects among what was approved, and nothing else.

The digest covers the module's file or, in a package, every module of the outermost package: all that its
import executes, except for other installed packages. Files are read once: the bytes that were digested are
those that are compiled, now or when a function imports more of them later. Compiled files (__pycache__),
other files of KIT/code and files that appear afterwards are not executed. Only extension modules, which the
system loads from their files, are read twice.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ModuleSpec,
    PathFinder,
)
from pathlib import Path
from typing import Any, NoReturn

from .errors import BadJob, BadParameter

CACHE = "__pycache__"


def is_code(name: Any) -> bool:
    """Whether the name of a component is that of a user's own code."""
    return isinstance(name, str) and ":" in name


def name_of(thing: Any) -> str | None:
    """Return `package.module:name` of a class or function that other processes can import, else None."""
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    home = sys.modules.get(module or "")
    if home is None or module in ("__main__", "__tacit_main__") or not getattr(home, "__file__", None):
        return None
    found: Any = home
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualname}" if found is thing else None


def digest_of(name: str) -> str:
    """Return the digest of the source of code that is imported already."""
    modules = name.partition(":")[0].split(".")
    packages = (sys.modules[".".join(modules[: i + 1])] for i in range(len(modules)))
    file = Path(next(p.__file__ for p in packages if getattr(p, "__file__", None)))  # type: ignore[arg-type]
    return _Source.read(file.parent if file.stem == "__init__" else file).digest


def find_digest(name: str, folders: Sequence[Path] = ()) -> str:
    """Return the digest of the source of this code, found in `folders` or installed; imports nothing."""
    return _Source.read(_root(_parts(name)[0], [*map(str, folders), *sys.path], name)[0]).digest


@dataclass(frozen=True)
class Approved:
    """The code that an owner approved, by name with its digest, and the folders in which it may lie."""

    digests: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    source: str = "policy.toml"  # where it is approved, for errors

    def load(self, name: Any, digest: Any) -> Any:
        """Import approved code, if it is what was approved; BadJob otherwise, and nothing is imported."""
        if not is_code(name) or not isinstance(digest, str):
            raise BadJob(
                f"the job names the code {name!r:.80} with the digest {digest!r:.80}. Code is named "
                "package.module:name, with the digest that `tacit code` prints."
            )
        if self.digests.get(name) != digest:
            what = (
                f"another source of {name!r:.80} than is approved here"
                if name in self.digests
                else f"the code {name!r:.80}, which is not approved here"
            )
            raise BadJob(
                f"the job uses {what}, and nothing of it was run. Approved: "
                f"{', '.join(sorted(self.digests)) or 'nothing'}. To approve code that you have read, write "
                f'under [code] in {self.source}: "{name:.80}" = "{digest:.64}"'
            )
        modules, qualname = _parts(name)
        paths = [*map(str, self.folders), *sys.path]
        root, depth = _root(modules, paths, name)
        source = _Source.read(root)
        if source.digest != digest:
            raise BadJob(
                f"the source of {name!r} in {root} is not what {self.source} approves, and nothing of it was "
                "run. Restore it, or read and approve it again: `tacit code` prints its digest."
            )
        _FINDER.add(modules, depth, source)
        try:
            module = importlib.import_module(".".join(modules))
        except ImportError as error:
            raise BadJob(
                f"{name!r} in {root} cannot be imported: {error}. Its digest covers the files of its own "
                "package only, so it can import these and installed packages, and no other file next to it."
            ) from error
        file = Path(getattr(module, "__file__", None) or "").resolve()
        if root.resolve() not in (file, *file.parents):
            raise BadJob(
                f"{name!r} was imported from {file} before, which is not {root}. Rename the module, so that "
                "its name is not one of another package."
            )
        found: Any = module
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if found is None:
            raise BadJob(f"{file} has no {qualname!r}.")
        return found


@dataclass(frozen=True)
class OwnLoss:
    """A loss that is code which every party has and approves: `package.module:function`, and its digest."""

    name: str
    digest: str
    function: Callable[[Any, Any], Any] = field(compare=False, repr=False)

    def __call__(self, out: Any, y: Any) -> Any:
        return self.function(out, y)

    def as_table(self) -> dict[str, str]:
        return {"name": self.name, "digest": self.digest}


@dataclass(frozen=True)
class _Source:
    """A module's file, or all modules of a package, as they were read once."""

    root: Path
    files: Mapping[str, bytes]  # by their place in the package; a module's one file by its name
    is_package: bool

    @classmethod
    def read(cls, root: Path) -> _Source:
        if root.is_file():
            return cls(root, {root.name: root.read_bytes()}, False)
        suffixes = tuple(importlib.machinery.all_suffixes())
        places = {
            f.relative_to(root): f for f in root.rglob("*") if f.name.endswith(suffixes) and f.is_file()
        }
        files = {p.as_posix(): f.read_bytes() for p, f in places.items() if CACHE not in p.parts}
        return cls(root, files, True)

    @property
    def digest(self) -> str:
        """The SHA-256 of all files with their places."""
        total = hashlib.sha256()
        for place in sorted(self.files, key=Path):
            total.update(f"{hashlib.sha256(self.files[place]).hexdigest()} {place}\n".encode())
        return total.hexdigest()

    def find_spec(self, name: str, below: Sequence[str]) -> ModuleSpec | None:
        """Return how module `name` is imported, `below` the root; ModuleNotFoundError if it was not read."""
        place = "/".join(below)
        stem = f"{place}/" if place else ""
        if not self.is_package:
            possible = [] if below else [self.root.name]
        else:
            suffixes = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)  # in the order in which Python looks for them
            possible = [f"{stem}__init__{s}" for s in suffixes] + [f"{place}{s}" for s in suffixes if place]
        for found in possible:
            if found in self.files and not found.endswith(tuple(BYTECODE_SUFFIXES)):
                file = self.root / found if self.is_package else self.root
                places = [str(file.parent)] if file.name.partition(".")[0] == "__init__" else None
                is_source = found.endswith(tuple(SOURCE_SUFFIXES))
                loader = _SourceLoader(str(file), self.files[found]) if is_source else None
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=places
                )
        if stem and any(f.startswith(stem) for f in self.files):  # a folder without __init__.py
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(self.root / place)]
            return spec
        raise ModuleNotFoundError(f"the approved code has no module {name!r}", name=name)


class _SourceLoader(importlib.abc.SourceLoader):
    """Compiles bytes that were read before; neither reads nor writes compiled files."""

    def __init__(self, path: str, source: bytes):
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str | bytes) -> bytes:
        return self.source if path == self.path else Path(str(path)).read_bytes()  # data of a package

    def path_stats(self, path: str | bytes) -> NoReturn:
        raise OSError("compiled files are not used")


class _ApprovedFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of approved code among the bytes that were digested, and nowhere else."""

    def __init__(self) -> None:
        self.sources: dict[str, _Source] = {}
        self.namespaces: set[str] = set()  # above them: folders without code

    def add(self, modules: Sequence[str], depth: int, source: _Source) -> None:
        """Find what is below the first `depth` names in this source, unless the user imported the module."""
        name = ".".join(modules[:depth])
        before = self.sources.get(name)
        if before is None and ".".join(modules) in sys.modules:
            return
        if before is not None and name in sys.modules and before.digest != source.digest:
            raise BadJob(
                f"another version of {name!r} was imported by this process before. Restart it to use the one "
                "that is approved now."
            )
        self.sources[name] = source
        self.namespaces |= {".".join(modules[:k]) for k in range(1, depth)}
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parts = fullname.split(".")
        for k in range(len(parts), 0, -1):
            source = self.sources.get(".".join(parts[:k]))
            if source is not None:
                return source.find_spec(fullname, parts[k:])
        if fullname not in self.namespaces:
            return None
        spec, installed = ModuleSpec(fullname, None, is_package=True), PathFinder.find_spec(fullname, path)
        spec.submodule_search_locations = list((installed and installed.submodule_search_locations) or [])
        return spec


_FINDER = _ApprovedFinder()


def _parts(name: str) -> tuple[list[str], str]:
    module, _, qualname = name.partition(":")
    parts = module.split(".")
    if not all(p.isidentifier() for p in (*parts, *qualname.split("."))):
        raise BadParameter(
            f"the code is {name!r:.80}; it must be package.module:name, as in fedexp.algorithm:FedExP."
        )
    return parts, qualname


def _root(modules: Sequence[str], paths: Sequence[str], name: str) -> tuple[Path, int]:
    """Return the file of a module, or the folder of its outermost package, and how many of the names lead to
    it; imports nothing.
    """
    search: Sequence[str] | None = paths
    for i in range(len(modules)):
        spec = PathFinder.find_spec(".".join(modules[: i + 1]), search)
        if spec is None:
            break
        if spec.origin is not None and spec.has_location:
            file = Path(spec.origin)
            return (file.parent if file.stem == "__init__" else file), i + 1
        search = list(spec.submodule_search_locations or [])  # a namespace: it executes nothing
    where = ", ".join(dict.fromkeys(str(Path(p) if p else Path.cwd()) for p in paths[:3]))
    raise BadJob(f"the code {name!r:.80} was not found: no module {'.'.join(modules)!r:.60} in {where}, …")
