"""Write files atomically: all of a file or nothing."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import BadParameter

LONGEST = 200  # bytes of a file's name: most file systems allow 255, and a temporary name adds some


def check_new(path: str | os.PathLike[str], force: bool) -> Path:
    """Return the path of a new file, before any work is done; raise BadParameter if it exists."""
    file = Path(path)
    if file.is_dir():
        raise BadParameter(f"{file} is a directory. Give the name of a file.")
    if file.exists() and not force:
        raise BadParameter(f"{file} already exists. Choose another name, or pass --force to overwrite it.")
    return file


def check_free(path: str | os.PathLike[str], force: bool, sources: Sequence[str | os.PathLike[str]]) -> Path:
    """Return a path that can be written, or raise BadParameter, before any work is done.

    It must not be one of the sources nor an existing file (unless `force`), and its directory must exist.
    """
    file = Path(path)
    if len(os.fsencode(file.name)) > LONGEST:
        raise BadParameter(f"{file.name[:40]}… is too long for the name of a file. Choose a shorter one.")
    for source in sources:
        if file.exists() and Path(source).exists() and file.samefile(source):
            raise BadParameter(f"{file} is the input table, which is never overwritten. Choose another name.")
    check_new(file, force)
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise BadParameter(
            f"{file} cannot be written: {file.parent} is not a writable directory. Create it, or choose "
            "another place."
        )
    probe = _temporary(file)  # rights do not tell all: a name may be too long, or the file system be special
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise BadParameter(f"{file} cannot be written: {error.strerror}. Choose another place.") from None
    return file


def _temporary(file: Path) -> Path:
    """Return the name under which a file is written before it is complete."""
    return file.with_name(f".{file.name}.{secrets.token_hex(8)}")


@contextmanager
def open_atomic(path: str | os.PathLike[str], mode: int = 0o666, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete.

    Readers never see a part of it, and after an error or a crash the old file is still there. With
    `replace=False` an existing file raises FileExistsError. `mode` are the permissions, before the umask.

    The temporary file has an unpredictable name and is created with O_EXCL, so a link in a shared directory
    cannot redirect it.
    """
    file = Path(path)
    temporary = _temporary(file)
    if not replace and file.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if not replace:  # reserve the name: of two writers one fails
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(
    path: str | os.PathLike[str], content: str | bytes, mode: int = 0o666, replace: bool = True
) -> None:
    """Write a whole file, or nothing; see `open_atomic`."""
    with open_atomic(path, mode, replace) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def append_line(path: Path, line: str, admit: Callable[[list[str]], None] | None = None) -> None:
    """Append one line to a file durably: it is on disk when this returns.

    A crash leaves at most one incomplete line, which the next call ends. Processes take turns by a lock on
    the file. `admit` gets the existing lines under the same lock and may raise, so that nothing is added.
    """
    from fcntl import LOCK_EX, flock

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "r+b") as file:
        flock(file, LOCK_EX)
        content = file.read()
        if admit is not None:
            admit(content.decode("utf-8", "replace").splitlines())
        file.write((b"\n" if content and not content.endswith(b"\n") else b"") + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not content:
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder: without it, a new or replaced file may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
