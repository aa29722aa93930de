"""The number of rows, where ε is for a row's presence: declared as public, or released once with Gaussian
noise.

Two neighbors differ in their number of rows, so nothing released may be computed from the exact number: not
the sampling rate, not the number of steps, not a party's weight in a mean. What is used instead is
`DPSGD(public_size=…)`, a number that everybody may know, or one noisy count. The count is one more release in
the account: its multiplier is σ in rows, as one row moves it by one.
"""

from __future__ import annotations

import math

from ..accounting import Release, discrete, gaussian_multiplier
from ..accounting.discrete import Source
from .dpsgd import DPSGD

# of the noise's grid in one row: as fine as the grids on which a discrete Gaussian is accounted as a
# continuous one (jobs/guarding.py)
UNITS = 1024
# times the noise that ε would allow if nothing else were released: costs half a percent of the noise
# multiplier
SHARE = 10
ROWS = 20.0  # σ where no ε is given
PUBLIC = "The number of rows counts as public knowledge, which ε does not cover."


def count_release(settings: DPSGD) -> Release:
    """How the number of rows is released under these settings."""
    sigma = (
        ROWS
        if settings.epsilon is None
        else max(1.0, SHARE * gaussian_multiplier(settings.epsilon, settings.delta))
    )
    return Release(math.ceil(sigma * UNITS) / UNITS)


def noisy_count(rows: int, release: Release, source: Source) -> int:
    """The number of rows with discrete Gaussian noise, at least 1."""
    drawn = int(discrete.gaussian_whole(round(release.multiplier * UNITS), 1, source)[0])
    return max(1, (rows * UNITS + drawn + UNITS // 2) // UNITS)


def describe_count(release: Release) -> str:
    """For the ledger: what is known of the number of rows."""
    return (
        f"The number of rows was released with Gaussian noise of {release.multiplier:.3g} rows, which is "
        "part of ε; "
        "sampling rate and steps follow from it."
    )


def describe_declared(size: int) -> str:
    return (
        f"The number of rows was declared as {size:,} (public_size); sampling rate and steps follow from "
        "that, not from the rows."
    )
