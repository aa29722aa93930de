"""People with several rows: whose a row is, and columns that look like it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .errors import BadData
from .parameters import bad, nearest

if TYPE_CHECKING:
    from pandas import DataFrame


def check_unique_names(frame: DataFrame, owner: str) -> None:
    """Raise BadData if two columns have the same name."""
    names = [str(c) for c in frame.columns]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise BadData(
            f"{owner}: two columns are named {', '.join(map(repr, repeated))}. Give each column its own name."
        )


def encode_person(frame: DataFrame, person: str, used: Sequence[str], owner: str) -> np.ndarray:
    """Number the people of the rows from 0."""
    import pandas

    names = [str(c) for c in frame.columns]
    if person not in names:
        raise bad(
            owner, "person", person, "the column that tells whose a row is", nearest(str(person), names)
        )
    if person in used:
        raise bad(owner, "person", person, "a column that is neither a quasi-identifier nor sensitive")
    codes, _ = pandas.factorize(frame[person])
    if (codes < 0).any():
        raise BadData(
            f"{owner}: {int((codes < 0).sum()):,} rows have no value in {person!r}, so it is unknown whose "
            "they are. Fill them in, or drop these rows."
        )
    return np.asarray(codes)


def pick_one_row(person: np.ndarray) -> np.ndarray:
    """One row of each person, in the original order, chosen by the operating system's randomness.

    Then a person is one row, and what holds for one row, added or removed, holds for a person.
    """
    rng = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
    order = rng.permutation(len(person))
    return np.sort(order[np.unique(person[order], return_index=True)[1]])
