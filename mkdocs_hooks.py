"""What the documentation site needs beyond the pages in docs/.

1. Navigation: the sections and links of docs/README.md, so that the index is written once.
2. API reference: one page for the names of `tacit`, and one for each of its public modules, from docstrings.
3. Pages of files outside docs/ that a page links to (sources, examples, benchmarks, the changelog).
4. The gallery: reports that `examples/gallery.py` wrote to build/gallery.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import tacit

ROOT = Path(__file__).parent
DOCS = ROOT / "docs"
GALLERY = ROOT / "build" / "gallery"
LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(
    r"^```(python|toml|bash) (\S+)$", re.MULTILINE
)  # the word after the language is a file name
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md")
MODULES = (
    *("data", "algorithms", "aggregate", "guard", "models", "selection", "pace", "speeds", "callbacks"),
    *("stats", "boost", "private", "accounting", "synth", "anonymity", "audit", "mpc", "graphs", "testing"),
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    nav: list[Any] = [{"Home": "README.md"}]
    for title, text in re.findall(
        r"^\*\*(.+?)\*\*$(.*?)(?=^\*\*|\Z)", (DOCS / "README.md").read_text(), re.M | re.S
    ):
        pages = dict.fromkeys(p for p, _ in LINK.findall(text) if p.endswith(".md") and "/" not in p)
        nav.append({title: list(pages)})
    nav.append({"API": [{"tacit": "api/tacit.md"}, *({f"tacit.{m}": f"api/{m}.md"} for m in MODULES)]})
    if GALLERY.is_dir():
        nav.append({"Gallery": "gallery.md"})
    nav.append({"Project": [_page(path) for path in PROJECT]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    linked = set(PROJECT)
    for page in DOCS.rglob("*.md"):
        linked |= {path for target, _ in LINK.findall(page.read_text()) if (path := _outside(page, target))}
    for path in sorted(linked):
        files.append(File.generated(config, _page(path), content=_source(path)))
    for module in ("tacit", *MODULES):
        content = _api(tacit if module == "tacit" else getattr(tacit, module))
        files.append(File.generated(config, f"api/{module}.md", content=content))
    names = sorted(p.name for p in (DOCS / "results").glob("*.*"))
    content = "# Results\n\n" + "\n".join(f"- [{name}]({name})" for name in names)
    files.append(File.generated(config, "results/index.md", content=content))
    if GALLERY.is_dir():
        files.append(File.generated(config, "gallery.md", content=(GALLERY / "index.md").read_text()))
        for report in sorted(GALLERY.glob("*.html")):
            files.append(File.generated(config, f"gallery/{report.name}", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = FENCE.sub(lambda m: f'```{m[1]} title="{m[2]}"', markdown)
    source = Path(page.file.abs_src_path) if page.file.abs_src_path else None
    if source is None or not source.is_relative_to(DOCS):
        return markdown
    up = "../" * (len(source.relative_to(DOCS).parts) - 1)

    def link(m: re.Match[str]) -> str:
        if m[1] == "results/":
            return "](results/index.md)"
        path = _outside(source, m[1])
        return f"]({up}{_page(path)}{m[2] or ''})" if path else m[0]

    return LINK.sub(link, markdown)


def _outside(page: Path, target: str) -> str | None:
    """The path, from the repository's root, of a file outside docs/ that `page` links to."""
    path = (page.parent / target).resolve()
    inside = path.is_relative_to(DOCS) or not path.is_relative_to(ROOT)
    return None if inside or not path.is_file() else path.relative_to(ROOT).as_posix()


def _page(path: str) -> str:
    return f"project/{path}" if path.endswith(".md") else f"project/{path}.md"


def _source(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        # links of this page lead to pages in docs/, or to files that have no page of their own
        def link(m: re.Match[str]) -> str:
            if m[1].startswith("docs/"):
                return f"](../{m[1].removeprefix('docs/')}{m[2] or ''})"
            return m[0] if m[1] in PROJECT else "]"

        return LINK.sub(link, text)
    language = {"py": "python", "toml": "toml"}.get(path.rsplit(".", 1)[-1], "text")
    return f"# {path}\n\n```{language}\n{text}```\n"


def _api(module: ModuleType) -> str:
    """Every class and function of a module, by the place where it is defined: names are fetched when first
    used, which a reader of sources cannot follow.
    """
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    found = {n: getattr(module, n) for n in names}
    targets = [
        f"{value.__module__}.{value.__qualname__}"
        for value in found.values()
        if inspect.isclass(value) or inspect.isroutine(value)
        if value.__module__.startswith("tacit")
    ]
    about = inspect.cleandoc(module.__doc__ or "")
    return f"# {module.__name__}\n\n{about}\n\n" + "\n".join(f"::: {t}\n" for t in dict.fromkeys(targets))
