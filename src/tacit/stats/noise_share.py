"""Noise that parties add to their part of a sum, for (ε, δ)-differential privacy of one row.

Every party adds discrete Gaussian noise to its integers before they are masked. The guarantee holds if at
least half of the parties add theirs: each adds 1/⌈n/2⌉ of the variance that is needed, so that the sum of all
has up to twice as much. Neighboring tables differ by adding or removing one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..accounting import discrete, distributed_multiplier
from ..accounting.compose import Release
from ..parameters import bad
from ..parties.ledger import Spend

SCALE = 1 << 20  # numbers are summed in units of 1/SCALE
GROWTH = 1.02
BOUND = 1 << 50  # of one integer with its noise


class Block(NamedTuple):
    """Numbers that have one sensitivity: how many, what a row changes at most (L2), and its share of ρ."""

    length: int
    sensitivity: float
    share: float


def check_privacy(owner: str, epsilon: float, delta: float) -> None:
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise bad(owner, "epsilon", epsilon, "a number above 0")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise bad(owner, "delta", delta, "a probability between 0 and 1, well below 1 / rows")


def honest(parties: int) -> int:
    """Parties whose noise the guarantee counts on."""
    return math.ceil(parties / 2)


@lru_cache(maxsize=512)
def party_sigma(epsilon: float, delta: float, parties: int, block: Block) -> float:
    """The standard deviation of one party's noise in units, such that half of the parties suffice."""
    # rounding a party's sum moves each number by at most one unit more than the row does
    sensitivity = block.sensitivity * SCALE + math.sqrt(block.length)
    multiplier = math.sqrt(1 / (2 * discrete.rho_of(epsilon, delta) * block.share))
    count = honest(parties)
    each = multiplier * sensitivity / math.sqrt(count)
    if count > 1:
        while distributed_multiplier(
            math.sqrt(count) * each / sensitivity, each, count, block.length
        ) < multiplier * (1 - 1e-9):
            each *= GROWTH
    return each


def total_variance(epsilon: float, delta: float, parties: int, block: Block) -> float:
    """The variance of the noise of each number in the sum over all parties, in the number's own unit."""
    units = float(discrete.rational_above(party_sigma(epsilon, delta, parties, block) ** 2))
    return units * parties / SCALE**2


def add_noise(
    parts: Sequence[np.ndarray], blocks: Sequence[Block], epsilon: float, delta: float, parties: int
) -> np.ndarray:
    """Return a party's numbers as integers, with its share of the noise."""
    out = []
    for part, block in zip(parts, blocks):
        sigma = party_sigma(epsilon, delta, parties, block)
        noise = discrete.gaussian(discrete.rational_above(sigma**2), block.length)
        out.append(np.rint(np.asarray(part) * SCALE).astype(np.int64) + noise)
    return np.concatenate(out)


def release_of(epsilon: float, delta: float) -> Release:
    """The whole query, as a party's account charges it."""
    return Release(math.sqrt(1 / (2 * discrete.rho_of(epsilon, delta))), accountant="zcdp")


def spend_of(epsilon: float, delta: float, parties: int, what: str) -> Spend:
    return Spend(
        f"discrete Gaussian noise in {what}",
        float(epsilon),
        delta,
        "row",
        f"everyone, if at least {honest(parties)} of {parties} parties add their noise",
        "no",
    )
