"""Fields of a record, and their encodings: Bloom filters of tokens, compared by Dice's coefficient.

Schnell, Bachteler, Reiher: Privacy-preserving record linkage using Bloom filters, BMC Medical Informatics and
Decision Making 9:41 (2009).

    kind       tokens                                                bits   similar if Dice's coefficient is
    name       bigrams of the normalized text, with both ends         128   ≥ 0.75
    text       the same, for addresses and other long texts           256   ≥ 0.75
    date       8 digits by place, and {day, month} without order      128   ≥ 0.55: a swap, or one wrong digit
    code       bigrams of digits and letters, with both ends          128   ≥ 0.60: one wrong digit
    category   the whole value                                         32   equal only

    dice(x, y) = 2 |x ∧ y| / (|x| + |y|),  with |·| the number of bits that are 1

The filters are keyed by the field's name, which is public. A keyed filter alone does not protect a record
(`tests/security/test_link_attacks.py` rebuilds names from filters with a secret key): here no filter leaves
its party, except under one-time masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import BadData
from ..parameters import bad, nearest
from .normalize import normalize_date, normalize_text

if TYPE_CHECKING:
    import pandas as pd

UNIT = 64  # levels are multiples of 1/64, so that comparisons of shares are exact
MOST = 255  # bits of a filter that are 1: their number is computed modulo 256
MISSING = 1 << 16  # "bits" of a missing value: more than any level allows
PAIR = 4  # tokens of a date's {day, month}: as much as its four digits


def bigrams(text: str) -> list[str]:
    padded = f"_{text}_"
    return [padded[k : k + 2] for k in range(len(padded) - 1)]


def date_tokens(date: str) -> list[str]:
    """Bits, not words: 10 for each digit, so that no two dates are equal by chance, and 48 for all pairs."""
    pair = "|".join(sorted((date[4:6], date[6:])))
    digest = hashlib.sha256(pair.encode()).digest()
    return [str(10 * k + int(c)) for k, c in enumerate(date)] + [
        str(80 + digest[k] % 48) for k in range(PAIR)
    ]


@dataclass(frozen=True)
class Kind:
    """How the fields of one kind are normalized, encoded and compared; the first level is equality.

    `m`: the default probability that two records of one person have each level, and no higher one.
    """

    normalize: Callable[[str], str]
    tokens: Callable[[str], list[str]]
    bits: int
    hashes: int  # bits of a token; 0: the token is the number of its bit
    levels: tuple[int, ...]  # in units of 1/64
    m: tuple[float, ...]


KINDS: dict[str, Kind] = {
    "name": Kind(normalize_text, bigrams, 128, 2, (UNIT, 48), (0.85, 0.09)),
    "text": Kind(normalize_text, bigrams, 256, 2, (UNIT, 48), (0.75, 0.15)),
    "date": Kind(normalize_date, date_tokens, 128, 0, (UNIT, 35), (0.90, 0.07)),
    "code": Kind(normalize_text, bigrams, 128, 2, (UNIT, 38), (0.85, 0.10)),
    "category": Kind(normalize_text, lambda text: [text], 32, 8, (UNIT,), (0.92,)),
}
EXAMPLE = 'like {"surname": "name", "born": "date"}'


@dataclass(frozen=True)
class Field:
    """A field that both tables have; `m` and `u`: probabilities of its levels (None: weights.py)."""

    name: str
    kind: str
    m: tuple[float, ...] | None = None
    u: tuple[float, ...] | None = None

    @property
    def how(self) -> Kind:
        return KINDS[self.kind]


def read_fields(fields: Any, where: str = "link") -> tuple[Field, ...]:
    """Read {column: kind}, or {column: {"kind": …, "m": […], "u": […]}}; refuse what is not allowed."""
    if not isinstance(fields, Mapping) or not fields or not all(isinstance(n, str) and n for n in fields):
        raise bad(where, "fields", fields, f"the columns that both tables have, by kind, {EXAMPLE}")
    found = []
    for name, entry in fields.items():
        table = {"kind": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or set(table) - {"kind", "m", "u"} or "kind" not in table:
            raise bad(where, f"fields, {name!r}", entry, "a kind, or a table with kind, m and u")
        kind = table["kind"]
        if kind not in KINDS:
            hint = nearest(str(kind), list(KINDS))
            raise bad(where, f"the kind of {name!r}", kind, f"one of {', '.join(KINDS)}", hint)
        m, u = (_probabilities(table.get(key), KINDS[kind], f"{key} of {name!r}", where) for key in "mu")
        found.append(Field(name, kind, m, u))
    return tuple(found)


def _probabilities(given: Any, kind: Kind, what: str, where: str) -> tuple[float, ...] | None:
    if given is None:
        return None
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    wrong = any(isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p < 1 for p in values)
    if wrong or len(values) != len(kind.levels) or sum(values) >= 1:
        what_levels = "equal" if len(kind.levels) == 1 else "equal, similar"
        allowed = f"{len(kind.levels)} probabilities ({what_levels}), each above 0, that add to less than 1"
        raise bad(where, what, given, allowed)
    return tuple(float(p) for p in values)


class Encoded(NamedTuple):
    """A table's values of one field: `filters` (rows × bits, 0 or 1), `counts` of their bits, `values`."""

    filters: np.ndarray
    counts: np.ndarray
    values: list[str]

    @property
    def present(self) -> np.ndarray:
        return np.asarray(self.counts < MISSING)


def encode(values: Sequence[str], entry: Field) -> Encoded:
    """Encode the normalized values of a field; a missing one has no bit, and more than any level allows."""
    kind = entry.how
    filters = np.zeros((len(values), kind.bits), np.uint8)
    places: dict[str, list[int]] = {}
    for row, value in zip(filters, values):
        for token in kind.tokens(value) if value else ():
            if token not in places:
                places[token] = hash_token(entry.name, token, kind)
            row[places[token]] = 1
    for row in filters[filters.sum(1, dtype=np.int64) > MOST]:
        row[np.flatnonzero(row)[MOST:]] = 0
    counts = filters.sum(1, dtype=np.int64)
    return Encoded(filters, np.where(counts > 0, counts, MISSING), list(values))


def hash_token(key: str, token: str, kind: Kind) -> list[int]:
    """Return the bits of a token in the filter of a key."""
    if not kind.hashes:
        return [int(token)]
    digest = hashlib.blake2b(
        token.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=32
    ).digest()
    return [int.from_bytes(digest[4 * k : 4 * k + 4], "little") % kind.bits for k in range(kind.hashes)]


@dataclass(frozen=True)
class Records:
    """A party's normalized and encoded table; `notes` say what was missing or not understood."""

    rows: int
    fields: tuple[Field, ...]
    encoded: tuple[Encoded, ...]
    notes: tuple[str, ...] = ()

    def values(self, name: str) -> list[str]:
        """The normalized values of a field."""
        return self.encoded[[f.name for f in self.fields].index(name)].values


def to_texts(frame: pd.DataFrame, fields: Sequence[Field], where: str) -> dict[str, list[str]]:
    """Return the cells of the fields' columns as text."""
    from ..data.cells import to_text

    known = [str(c) for c in frame.columns]
    absent = [f.name for f in fields if f.name not in known]
    if absent:
        raise BadData(f"{where} has no column {absent[0]!r}. {nearest(absent[0], known)}")
    twice = [f.name for f in fields if known.count(f.name) > 1]
    if twice:
        raise BadData(f"{where} has {known.count(twice[0])} columns {twice[0]!r}. Keep one of them.")
    columns = {f.name: frame[f.name] for f in fields}
    return {
        name: list(map(str, to_text(c.dt.strftime("%Y-%m-%d") if c.dtype.kind == "M" else c)))
        for name, c in columns.items()
    }


def read_records(texts: Mapping[str, Sequence[str]], fields: Sequence[Field], where: str) -> Records:
    """Normalize and encode the columns of a table."""
    encoded, notes = [], []
    for entry in fields:
        values = [entry.how.normalize(text) for text in texts[entry.name]]
        missing = sum(not v for v in values)
        if missing == len(values):
            forms = " Dates are written like 1980-03-05, 19800305, 5.3.1980 or 5/3/1980 (day first)."
            raise BadData(
                f"{where}: column {entry.name!r} has no value that can be read as a {entry.kind}."
                f"{forms if entry.kind == 'date' else ''}"
            )
        if missing:
            notes.append(f"{where}: {missing} of {len(values)} values of {entry.name!r} are missing.")
        encoded.append(encode(values, entry))
    return Records(len(encoded[0].values), tuple(fields), tuple(encoded), tuple(notes))
