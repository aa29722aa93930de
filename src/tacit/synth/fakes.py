"""Identifiers for synthetic rows: counted, or made up by Faker. Nothing of a real identifier is kept, not
even its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadParameter, MissingExtra
from .columns import Column

if TYPE_CHECKING:
    from pandas import Series


def identifiers(column: Column, n: int, seed: int, first: int) -> Series:
    """`n` identifiers that differ from each other and from the `first` ones made before with this seed."""
    import pandas as pd

    if column.faker:
        return pd.Series(_faked(column, n, seed, first), dtype=object)
    counted = np.arange(first + 1, first + n + 1)
    if column.dtype.startswith(("int", "uint", "Int", "UInt")):
        return pd.Series(counted).astype(column.dtype)
    return pd.Series([f"{column.name}-{i}" for i in counted], dtype=object)


def _faked(column: Column, n: int, seed: int, first: int) -> list[Any]:
    try:
        from faker import Faker
    except ImportError:
        raise MissingExtra(
            f"the column {column.name!r} with faker={column.faker!r}", "fake", "faker"
        ) from None

    fake = Faker()
    fake.seed_instance(f"{seed} {first} {column.name}")
    try:
        make = getattr(fake, column.faker)
    except AttributeError:
        raise BadParameter(
            f"identifier: faker={column.faker!r} is no provider of Faker. Known are, among others: 'name', "
            "'email', 'address', "
            "'phone_number', 'iban', 'ssn', 'uuid4'."
        ) from None
    return [str(make()) for _ in range(n)]  # people share names, so names may repeat
