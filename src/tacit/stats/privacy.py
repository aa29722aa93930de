"""What a program of sums may declare about itself: the privacy it spends, and the rows it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from ..accounting.compose import Release
from ..parties.ledger import Spend


@runtime_checkable
class Private(Protocol):
    """A program whose parties add noise to what they contribute."""

    @property
    def delta(self) -> float: ...

    @property
    def release(self) -> Release:
        """The whole program, as a party's account charges it once."""

    @property
    def spend(self) -> Spend:
        """What the ledger says."""


@runtime_checkable
class AboutRows(Protocol):
    """A program that is about some of a table's rows; others are about all of them."""

    def row_sets(self, table: pd.DataFrame) -> Mapping[str, np.ndarray]:
        """Return the rows (as truth values) by a name that says which they are; groups are "column=level"."""


@runtime_checkable
class SumsValues(Protocol):
    """A program that opens sums of columns, to which a party's owner may apply the dominance rule."""

    def summed_values(self, table: pd.DataFrame) -> Iterable[np.ndarray]:
        """Return the values of this party in each sum."""


@runtime_checkable
class HasParameters(Protocol):
    """A program that fits a model."""

    def parameters(self, table: pd.DataFrame) -> tuple[int, int]:
        """Return the number of coefficients, with this party's levels, and of its complete rows."""
