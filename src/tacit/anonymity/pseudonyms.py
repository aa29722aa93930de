"""Pseudonyms for identifiers: HMAC-SHA256 under a secret key that is not part of the table.

    K_column  = HMAC(K, "tacit pseudonym 1" ‖ 0 ‖ column)    one key per column
    pseudonym = HMAC(K_column, value)                        truncated to 128 bits, in hexadecimal

HMAC: Krawczyk, Bellare, Canetti, RFC 2104 (1997); HMAC under a derived key per purpose as in NIST SP
800-108. One key per column: equal values in two columns have different pseudonyms. Without K nobody can test
a guess ("is this the pseudonym of Ann?"), which a plain hash allows: there are few names and few social
security numbers, and hashing all of them takes seconds. With K a guess can be tested, so the table is
pseudonymous, not anonymous, as long as the key exists (GDPR, Article 4(5)). Equal values have equal
pseudonyms: rows of one person stay linked, and frequencies of values stay visible.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData, BadParameter, MissingFiles
from ..files import write_atomic
from ..parameters import bad, nearest

if TYPE_CHECKING:
    from pandas import DataFrame

KEY_BYTES = 32  # the length of the hash: a longer key adds no security (RFC 2104, section 3)
# different bytes a key must have: 32 random bytes have 30 or 31, and fewer than 16 once in more than 10^20
# draws; a typed or padded key has few
MIN_DISTINCT = 16
# hexadecimal digits of a pseudonym: 128 bits, so that 10^9 different values collide with probability below
# 2·10^-21
LENGTH = 32
PURPOSE = b"tacit pseudonym 1"


def new_key(path: str | os.PathLike[str]) -> Path:
    """Create a key file from the operating system's randomness, readable by its owner only.

    An existing file is never overwritten.
    """
    file = Path(path)
    try:
        write_atomic(file, os.urandom(KEY_BYTES).hex() + "\n", mode=0o600, replace=False)
    except FileExistsError:
        raise BadParameter(
            f"{file} already exists. A key is never overwritten, since its pseudonyms could not be "
            "reproduced. Use the existing key, or choose another path."
        ) from None
    except OSError as error:
        raise BadParameter(
            f"the key file {file} cannot be created: {error.strerror}. Choose a writable directory."
        ) from None
    return file


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read a key file. Raise if other users can read it, or if the key is short or not random."""
    file = Path(path)
    try:
        state = file.stat()
        text = file.read_text(encoding="ascii") if stat.S_ISREG(state.st_mode) else ""
    except FileNotFoundError:
        raise MissingFiles(
            f"there is no key file {file}. Create one with tacit.anonymity.pseudonyms.new_key({str(file)!r})."
        ) from None
    except (OSError, UnicodeDecodeError):
        raise BadParameter(
            f"the key file {file} cannot be read as {2 * KEY_BYTES} hexadecimal digits. Create one "
            "with new_key."
        ) from None
    if os.name == "posix" and state.st_mode & 0o077:
        raise BadParameter(
            f"the key file {file} can be read by others (mode {stat.S_IMODE(state.st_mode):o}), so it is "
            f"not secret. Restrict it to its owner: chmod 600 {file}; if others may have read it, create a "
            "new key."
        )
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        raise BadParameter(
            f"the key file {file} does not contain {2 * KEY_BYTES} hexadecimal digits. Create one with "
            "new_key."
        ) from None
    return check_key(key)


def check_key(key: bytes) -> bytes:
    """Raise BadParameter unless a key is long and random. The message does not contain the key."""
    if not isinstance(key, bytes | bytearray):
        raise BadParameter(
            f"pseudonyms: the key is {type(key).__name__}; it must be {KEY_BYTES} random bytes. Create "
            "them with new_key."
        )
    if len(key) < KEY_BYTES:
        raise BadParameter(
            f"pseudonyms: the key has {len(key)} bytes; it must have at least {KEY_BYTES}. Create one "
            "with new_key."
        )
    if len(set(key)) < MIN_DISTINCT:
        raise BadParameter(
            f"pseudonyms: the key has only {len(set(key))} different bytes, so it is not random and can be "
            "guessed. Create one with new_key."
        )
    return bytes(key)


def pseudonym(value: Any, column: str, key: bytes, length: int = LENGTH) -> str:
    """The pseudonym of one value of one column."""
    return _digest(_column_key(check_key(key), column), value)[: _check_length(length)]


def pseudonymize(
    frame: DataFrame, columns: Sequence[str], key: bytes | str | os.PathLike[str], length: int = LENGTH
) -> DataFrame:
    """Replace these columns by pseudonyms in a copy of the table. `key` is the path of a key file, or its
    bytes.

    A value is identified by its text (Unicode NFC; 7 and 7.0 are equal), so a table has the same pseudonyms
    from CSV and from Parquet. A null stays a null.
    """
    if isinstance(columns, str) or not columns:
        raise bad("pseudonymize", "columns", columns, "a list of column names, like ['patient']")
    for column in columns:
        if column not in frame.columns:
            raise BadData(
                f"pseudonymize: there is no column {column!r}. "
                f"{nearest(str(column), [str(c) for c in frame.columns])}"
            )
    secret = check_key(key) if isinstance(key, bytes | bytearray) else read_key(key)
    digits, out = _check_length(length), frame.copy()
    for column in columns:
        column_key, series = _column_key(secret, str(column)), frame[column]
        values = list(dict.fromkeys(_text(v) for v in series.dropna().unique()))
        pseudonyms = {v: _digest(column_key, v)[:digits] for v in values}
        if len(set(pseudonyms.values())) < len(pseudonyms):
            raise BadData(
                f"pseudonymize: two values of {column!r} have the same pseudonym of {digits} digits. Use a "
                "larger length."
            )
        out[column] = [
            None if missing else pseudonyms[_text(v)] for v, missing in zip(series.tolist(), series.isna())
        ]
    return out


def _column_key(key: bytes, column: str) -> bytes:
    return hmac.new(key, PURPOSE + b"\0" + column.encode(), hashlib.sha256).digest()


def _digest(key: bytes, value: Any) -> str:
    return hmac.new(key, _text(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _text(value: Any) -> str:
    """The text of a value. pandas converts integers to floats if one is missing: 7.0 is spelled 7."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unicodedata.normalize("NFC", str(value))


def _check_length(length: int) -> int:
    if isinstance(length, bool) or not isinstance(length, int) or not 16 <= length <= 64:
        raise bad(
            "pseudonymize",
            "length",
            length,
            "a whole number of at least 16 and at most 64",
            "It is the number of hexadecimal digits.",
        )
    return length
