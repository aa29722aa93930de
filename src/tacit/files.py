"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a reader never sees half a file, and a crash leaves the old one.

    The temporary file beside it has a name nobody can guess and is made anew (O_EXCL), so that a link laid in a shared directory leads
    nowhere. Its permissions are those any new file gets, which `tempfile` would narrow to its owner.
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
