"""Writing files so that nobody ever sees half of one, and nobody loses one that was there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import BadParameter


def check_new(path: str | os.PathLike[str], force: bool) -> Path:
    """The name of a file that is not there yet, unless its owner says to write over it. Asked before any work
    is done.
    """
    file = Path(path)
    if file.is_dir():
        raise BadParameter(f"{file} is a directory. Give the name of a file.")
    if file.exists() and not force:
        raise BadParameter(f"{file} is already there. Give another name, or --force to write over it.")
    return file


def check_free(path: str | os.PathLike[str], force: bool, sources: Sequence[str | os.PathLike[str]]) -> Path:
    """A place to write to, before any work is done: not one of the sources, not a file that is there (unless
    forced), in a directory that is there.
    """
    file = Path(path)
    for source in sources:
        if file.exists() and Path(source).exists() and file.samefile(source):
            raise BadParameter(
                f"{file} is the table that is read, which is never written over. Give another name."
            )
    check_new(file, force)
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise BadParameter(
            f"{file} cannot be written: {file.parent} is no directory you may write to. Make it, or choose "
            "another place."
        )
    return file


def write_atomic(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a reader never sees half a file, and a crash leaves the old one.

    The temporary file beside it has a name nobody can guess and is made anew (O_EXCL), so that a link laid in
    a shared directory leads nowhere. Its permissions are those any new file gets, which `tempfile` would
    narrow to its owner.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # a full disk is not made fuller
        raise


def append_line(path: Path, line: str, admit: Callable[[list[str]], None] | None = None) -> None:
    """Add one line to a file, durably: it is on disk when this returns, and a crash leaves at most one
    incomplete line, which the next call ends.

    Processes take turns (a lock on the file). `admit`, if given, sees the lines that are there, within the
    same turn, and may raise to add nothing.
    """
    from fcntl import LOCK_EX, flock

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "r+b") as file:
        flock(file, LOCK_EX)
        held = file.read()
        if admit is not None:
            admit(held.decode("utf-8", "replace").splitlines())
        file.write((b"\n" if held and not held.endswith(b"\n") else b"") + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not held:  # a new file: its name must be on disk, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
