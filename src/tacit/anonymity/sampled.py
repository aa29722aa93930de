"""Sampling before anonymising: each row of the table takes part with the same probability, by the operating
system's randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .coding import coins
from .encoded import Encoded
from .models import DifferentialPrivacy, Model
from .release import count, told
from .result import Step


def private_of(models: Sequence[Model]) -> DifferentialPrivacy | None:
    return next((m for m in models if isinstance(m, DifferentialPrivacy)), None)


def thinned(table: Encoded, rate: float) -> Encoded:
    """The table with each row in it with this probability; the others are left out (−1) like rows suppressed
    from the start.
    """
    inverse = np.where(coins(len(table.inverse), rate), table.inverse, -1)
    return replace(
        table, inverse=inverse, counts=np.bincount(inverse[inverse >= 0], minlength=len(table.codes))
    )


def noted(private: DifferentialPrivacy, table: Encoded, drawn: Encoded) -> Step:
    return told(
        f"Each of {count(table.rows)} was taken with probability {private.rate:.4f}: {drawn.rows:,} were. "
        f"Classes need k = {private.k} of them for "
        f"ε = {private.epsilon:g}, δ = {private.delta:g}.",
        sampled=drawn.rows,
        k=private.k,
        fraction=private.rate,
    )
