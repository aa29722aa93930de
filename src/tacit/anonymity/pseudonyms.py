"""Pseudonyms for identifiers: HMAC-SHA256 under a secret key that never travels with the table.

    K_column  = HMAC(K, "tacit pseudonym 1" ‖ 0 ‖ column)      one key a column: equal values in two columns do not look equal
    pseudonym = HMAC(K_column, value)                          cut to 128 bits, in hexadecimal

HMAC: Krawczyk, Bellare, Canetti, RFC 2104 (1997); HMAC under a derived key per purpose as in NIST SP
800-108. Whoever lacks K cannot test a guess ("is this the pseudonym of Ann?"), which a plain hash allows:
there are few names and few social security numbers, and hashing all of them takes seconds. Whoever has K
can, so the table is pseudonymous, not anonymous, as long as the key exists (GDPR, Article 4(5)). Equal
values keep equal pseudonyms: rows of one person stay linked, and how often a value occurs is still seen.
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

KEY_BYTES = 32  # as long as the hash: HMAC gains nothing from more (RFC 2104, section 3)
# different bytes a key must have: random 32 have 30 or 31, and fewer than 16 once in more than 10^20 draws; a
# typed or padded one has few
KINDS = 16
# hexadecimal digits of a pseudonym: 128 bits, so that even 10^9 different values meet with probability below
# 2·10^-21
LENGTH = 32
PURPOSE = b"tacit pseudonym 1"


def new_key(path: str | os.PathLike[str]) -> Path:
    """Make a key file from the operating system's randomness, readable by its owner only; one that is there
    is never written over.
    """
    file = Path(path)
    try:
        write_atomic(file, os.urandom(KEY_BYTES).hex() + "\n", mode=0o600, replace=False)
    except FileExistsError:
        raise BadParameter(
            f"{file} already exists; a key is never overwritten, because pseudonyms made with it could not be "
            "made again. Use it as it is, or give another path."
        ) from None
    except OSError as error:
        raise BadParameter(
            f"the key file {file} cannot be created: {error.strerror}. Choose a place you may write to."
        ) from None
    return file


def read_key(path: str | os.PathLike[str]) -> bytes:
    """The key in a file that `new_key` made; refused when others can read it, or when it is short or not
    random.
    """
    file = Path(path)
    try:
        state = file.stat()
        text = file.read_text(encoding="ascii") if stat.S_ISREG(state.st_mode) else ""
    except FileNotFoundError:
        raise MissingFiles(
            f"there is no key file {file}. Make one with tacit.anonymity.pseudonyms.new_key({str(file)!r})."
        ) from None
    except (OSError, UnicodeDecodeError):
        raise BadParameter(
            f"the key file {file} cannot be read as {2 * KEY_BYTES} hexadecimal digits. Make one with "
            "new_key."
        ) from None
    if os.name == "posix" and state.st_mode & 0o077:
        raise BadParameter(
            f"the key file {file} may be read by others (mode {stat.S_IMODE(state.st_mode):o}), so it is no "
            "secret. "
            f"Allow its owner alone: chmod 600 {file}; if others may have seen it, make a new key."
        )
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        raise BadParameter(
            f"the key file {file} does not hold {2 * KEY_BYTES} hexadecimal digits. Make one with new_key."
        ) from None
    return checked(key)


def checked(key: bytes) -> bytes:
    """A key that is long enough and looks random, or BadParameter. The key itself is in no message."""
    if not isinstance(key, bytes | bytearray):
        raise BadParameter(
            f"pseudonyms: the key is {type(key).__name__}; it must be {KEY_BYTES} random bytes. Make them "
            "with new_key."
        )
    if len(key) < KEY_BYTES:
        raise BadParameter(
            f"pseudonyms: the key has {len(key)} bytes; it must have at least {KEY_BYTES}. Make one with "
            "new_key."
        )
    if len(set(key)) < KINDS:
        raise BadParameter(
            f"pseudonyms: the key holds only {len(set(key))} different bytes, so it was not drawn at random "
            "and can be guessed. "
            "Make one with new_key."
        )
    return bytes(key)


def pseudonym(value: Any, column: str, key: bytes, length: int = LENGTH) -> str:
    """The pseudonym of one value of one column."""
    return _digest(_column_key(checked(key), column), value)[: _length(length)]


def pseudonymize(
    frame: DataFrame, columns: Sequence[str], key: bytes | str | os.PathLike[str], length: int = LENGTH
) -> DataFrame:
    """A copy of the table with these columns replaced by pseudonyms. `key` is the path of a key file, or its
    bytes.

    A value counts by its text (Unicode NFC; 7 and 7.0 are the same), so a table gives the same pseudonyms
    from CSV and from Parquet. Null stays null.
    """
    if isinstance(columns, str) or not columns:
        raise bad("pseudonymize", "columns", columns, "a list of column names, like ['patient']")
    for column in columns:
        if column not in frame.columns:
            raise BadData(
                f"pseudonymize: there is no column {column!r}. "
                f"{nearest(str(column), [str(c) for c in frame.columns])}"
            )
    secret, digits, out = (
        checked(key) if isinstance(key, bytes | bytearray) else read_key(key),
        _length(length),
        frame.copy(),
    )
    for column in columns:
        own, series = _column_key(secret, str(column)), frame[column]
        values = list(dict.fromkeys(_text(v) for v in series.dropna().unique()))
        made = {v: _digest(own, v)[:digits] for v in values}
        if len(set(made.values())) < len(made):
            raise BadData(
                f"pseudonymize: with {digits} digits two values of {column!r} got the same pseudonym. Give "
                "a larger length."
            )
        out[column] = [
            None if missing else made[_text(v)] for v, missing in zip(series.tolist(), series.isna())
        ]
    return out


def _column_key(key: bytes, column: str) -> bytes:
    return hmac.new(key, PURPOSE + b"\0" + column.encode(), hashlib.sha256).digest()


def _digest(key: bytes, value: Any) -> str:
    return hmac.new(key, _text(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _text(value: Any) -> str:
    """One missing cell turns a column of whole numbers into floats; the person is still the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return unicodedata.normalize("NFC", str(value))


def _length(length: int) -> int:
    if isinstance(length, bool) or not isinstance(length, int) or not 16 <= length <= 64:
        raise bad(
            "pseudonymize",
            "length",
            length,
            "a whole number of at least 16 and at most 64",
            "A pseudonym is that many hexadecimal digits.",
        )
    return length
