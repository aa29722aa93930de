"""Synthetic tables: learn a generator from a real table, draw rows from it, and see what they are good for and what they give away.

    table = synth.Table.infer(frame, constraints=[synth.Ordered("admitted", "discharged")], name=synth.identifier("name"))
    fitted = synth.Cart(seed=0).fit(frame, table)
    fitted.sample(1000, given={"sex": "F"}, seed=1)

No generator, metric or extra of this room needs a package that is not free software. SDMetrics itself is, but it installs `copulas`, which is under
the Business Source License; so the quality score is computed here, from its definition.
"""

from __future__ import annotations

from .columns import Column, boolean, categorical, continuous, identifier, integer, moment, ordinal
from .constraints import Combinations, Ordered, Range, Unique
from .generator import Fitted, Generator, Learned
from .independent import Independent
from .saved import load
from .table import Table

ALL: dict[str, type[Generator]] = {"Independent": Independent}

__all__ = ["ALL", "Column", "Combinations", "Fitted", "Generator", "Independent", "Learned", "Ordered", "Range", "Table", "Unique", "boolean",
           "categorical", "continuous", "identifier", "integer", "load", "moment", "ordinal"]
