"""Sequences of different lengths as one array, with a mask of what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from .federation import check_whole


def pad(sequences: Sequence[Any], value: float = 0, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Return sequences filled up to one length, [N, T, …], and a mask [N, T] that is 1 where a step is real.

    A sequence is an array [t, …] or a list of numbers; t may differ. `value` stands behind the end. `length`
    is T; by default that of the longest. Whole numbers stay whole (tokens), real ones become float32.
    """
    rows = [_sequence(i, s) for i, s in enumerate(sequences)]
    if not rows:
        raise BadData("pad: there are no sequences. Give at least one.")
    rest = {tuple(row.shape[1:]) for row in rows}
    if len(rest) > 1:
        first, other = sorted(rest)[:2]
        raise BadData(
            f"pad: steps of the sequences have different shapes, such as {first} and {other}. Only the "
            "length may differ."
        )
    longest = max(map(len, rows))
    if length is not None:
        check_whole("pad", "length", length, 1)
        if longest > length:
            i = next(i for i, row in enumerate(rows) if len(row) > length)
            raise BadData(
                f"pad: sequence {i} has {len(rows[i])} steps, more than length={length}. Truncate it first."
            )
    is_real = any(row.is_floating_point() for row in rows)
    dtype = torch.float32 if is_real else torch.int64
    out = torch.full((len(rows), length or longest, *rows[0].shape[1:]), value, dtype=dtype)
    mask = torch.zeros(len(rows), length or longest, dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)], mask[i, : len(row)] = row.to(dtype), 1
    return out, mask


def _sequence(i: int, values: Any) -> Tensor:
    try:
        row = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise BadData(f"pad: sequence {i} is not an array of numbers: {error}.") from None
    if row.dim() < 1:
        raise BadData(f"pad: sequence {i} is a single value. Give a list or an array of steps.")
    if len(row) == 0:
        raise BadData(f"pad: sequence {i} is empty. Leave it out.")
    return row
