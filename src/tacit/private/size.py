"""The number of rows under add/remove privacy: declared as public, or released with noise.

Neighboring data sets differ in their number of rows, so nothing released may be computed from the exact
number: not the sampling rate, not the number of steps, not a party's weight in a mean. Instead,
`DPSGD(public_size=…)` declares a public number, or one noisy count is released. The count is one more release
in the account: its multiplier is σ in rows, as one row changes it by one.
"""

from __future__ import annotations

import math

from ..accounting import Release, discrete, gaussian_multiplier
from ..accounting.discrete import Source
from .dpsgd import DPSGD

# grid steps of the noise per row: fine enough to account for the discrete Gaussian as a continuous one
UNITS = 1024
# multiple of the noise that ε alone would require: costs half a percent of the noise multiplier of training
SHARE = 10
ROWS = 20.0  # σ if no ε is given
PUBLIC = "The number of rows is taken as public, which ε does not cover."


def count_release(settings: DPSGD) -> Release:
    """Return how the number of rows is released under these settings."""
    sigma = (
        ROWS
        if settings.epsilon is None
        else max(1.0, SHARE * gaussian_multiplier(settings.epsilon, settings.delta))
    )
    return Release(math.ceil(sigma * UNITS) / UNITS)


def noisy_count(rows: int, release: Release, source: Source) -> int:
    """Return the number of rows with discrete Gaussian noise, at least 1."""
    noise = int(discrete.gaussian_whole(round(release.multiplier * UNITS), 1, source)[0])
    return max(1, (rows * UNITS + noise + UNITS // 2) // UNITS)


# a random order of all rows is another one with one row more
HELD_OUT = "ε is for the rows of the training set: it does not cover which rows were held out for evaluation."


def describe_count(release: Release, units: str = "rows") -> str:
    """Describe a noisy count, for the ledger."""
    return (
        f"The number of {units} was released with Gaussian noise of {release.multiplier:.3g} {units}, "
        "which is part of ε; sampling rate and steps are computed from it."
    )


def describe_declared(size: int, units: str = "rows") -> str:
    """Describe a declared number of rows, for the ledger."""
    return (
        f"The number of {units} was declared as {size:,} (public_size); sampling rate and steps are computed "
        "from it, not from the rows."
    )
