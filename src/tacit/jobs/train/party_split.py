"""Which rows of a real party's table are held out: a share of them, all rows of some people, or later ones.

Where an ε is claimed, the side of a row, or of all rows of a person, follows from their own values
(data/holding.py): nobody else's presence moves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...data.holding import draw_people, draw_rows, is_drawn
from ...data.people import hold_out_people, is_late

if TYPE_CHECKING:
    from pandas import DataFrame

    from .party_rows import AgreedTable

# the stream of random numbers that decides which rows a party holds back; 0 to 4 are used to partition data
HOLDING = 5


class PartySplit(NamedTuple):
    """The numbers of the rows to train on, and of those that are held out."""

    train: torch.Tensor
    held: torch.Tensor


def split_rows(
    name: str,
    agreed: AgreedTable,
    frame: DataFrame,
    y: torch.Tensor,
    persons: np.ndarray | None,
    seed: int,
    one_by_one: bool,
) -> PartySplit:
    """Split a party's rows as agreed; with `one_by_one` each row or person by itself."""
    if agreed.test_after:
        held = is_late(name, agreed.time, frame[agreed.time], agreed.test_after, agreed.time_format)
        train = ~held
        if persons is not None:  # earlier rows of tested people would tell the model about them
            train &= ~np.isin(persons, persons[held])
    elif one_by_one:
        if persons is None:
            draws = draw_rows(frame, agreed.recipe, y, seed)
        else:
            draws = draw_people(frame[agreed.group], seed)
        held = is_drawn(draws, agreed.held_fraction)
        train = ~held
    elif persons is not None:
        rng = np.random.default_rng([seed, HOLDING])
        wanted = np.array([_count_held(len(y), agreed.held_fraction)])
        order, is_held = hold_out_people(persons, np.zeros(len(y), np.int64), wanted, rng)
        return PartySplit(torch.from_numpy(order[~is_held]), torch.from_numpy(order[is_held]))
    else:
        order = np.random.default_rng([seed, HOLDING]).permutation(len(y))
        n = _count_held(len(y), agreed.held_fraction)
        return PartySplit(torch.from_numpy(order[n:]), torch.from_numpy(order[:n]))
    return PartySplit(*(torch.from_numpy(np.flatnonzero(mask)) for mask in (train, held)))


def _count_held(rows: int, fraction: float) -> int:
    return min(max(round(fraction * rows), 1 if fraction and rows > 1 else 0), rows - 1)
