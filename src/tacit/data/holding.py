"""Which rows are held out where an ε is claimed: each row, or person, by itself.

A random order of all rows would move others to the other side when one row is added, so that the statistics
and the model change by more than ε covers. Here the side of a row follows from a hash of its own values, and
that of all rows of a person from a hash of their id. Simulations and real parties with the same seed hold
out the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from .cells import to_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from .recipe import Recipe


def draw_rows(frame: DataFrame, recipe: Recipe, y: torch.Tensor, seed: int, to: str = "held") -> np.ndarray:
    """Return a number from 0 to 2^64 − 1 for each row, by its values alone, not its place."""
    raw = recipe.raw(frame)
    codes = [recipe.place_of(name, frame)[:, None] for name in recipe.categories]
    # one bit pattern for each of NaN and 0
    content = np.concatenate([np.where(np.isnan(raw), np.nan, raw) + 0.0, *codes, y.numpy()[:, None]], axis=1)
    return np.array([_draw(row.tobytes(), seed, to) for row in content], dtype=np.uint64)


def draw_people(ids: Series, seed: int, to: str = "held") -> np.ndarray:
    """Return a number from 0 to 2^64 − 1 for each row, by the id of its person."""
    return np.array([_draw(_identify(text), seed, to) for text in to_text(ids)], dtype=np.uint64)


def is_drawn(draws: np.ndarray, fraction: float) -> np.ndarray:
    """Return which rows are among this fraction."""
    return np.array([int(draw) < fraction * 2**64 for draw in draws], dtype=bool)


def _identify(person: str) -> bytes:
    """Return the same for an id whether its column was read as numbers or, because of others, as texts."""
    try:
        return f"person {float(person)!r}".encode()
    except ValueError:
        return f"person {person}".encode()


def _draw(content: bytes, seed: int, to: str) -> int:
    digest = hashlib.blake2b(content, key=f"{to} {seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
