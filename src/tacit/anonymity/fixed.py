"""Levels that were fixed beforehand: nothing is searched, classes that fail are suppressed.

For a second release of the same people (the same levels as the first), for levels a law prescribes, and for
differential privacy by sampling, where levels chosen by looking at the table would void the guarantee
(`DifferentialPrivacy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import BadData
from ..parameters import bad
from .datafly import outliers
from .encoded import Encoded
from .release import Release, Request, count, full_domain, priced, told
from .sampled import noted, private_of, thinned


@dataclass(frozen=True)
class Fixed:
    """One level a column, as given; columns that are not named stay as they are. Rows of classes that fail a
    privacy model are suppressed.
    """

    levels: Mapping[str, int] | None = field(default=None, metadata=None)

    def check(self) -> None:
        if self.levels is not None and not (
            isinstance(self.levels, Mapping) and all(isinstance(c, str) for c in self.levels)
        ):
            raise bad(
                "Fixed",
                "levels",
                self.levels,
                "a dictionary: the level of each quasi-identifier, like {'age': 2, 'zip': 1}",
            )

    def run(self, table: Encoded, request: Request) -> Release:
        return apply(table, request, chosen(table, self.levels or {}, "Fixed"), [])


def chosen(table: Encoded, levels: Mapping[str, Any], who: str, otherwise: int = 0) -> list[int]:
    """The level of each column, each one that its hierarchy has."""
    strangers = sorted(set(levels) - set(table.quasi))
    if strangers:
        raise bad(
            who,
            "levels",
            dict(levels),
            "for the quasi-identifiers " + ", ".join(map(repr, table.quasi)),
            f"{strangers[0]!r} is none.",
        )
    made = []
    for c in table.columns:
        level = levels.get(c.name, otherwise)
        if isinstance(level, bool) or not isinstance(level, int | np.integer) or not 0 <= level <= c.height:
            raise bad(
                who,
                f"levels[{c.name!r}]",
                level,
                f"a whole number from 0 to {c.height}, the top of its hierarchy",
            )
        made.append(int(level))
    return made


def apply(table: Encoded, request: Request, levels: list[int], trace: list[Any]) -> Release:
    """One level a column on the table, or on a sample of it where differential privacy is asked for; what
    fails is suppressed.
    """
    private = private_of(request.models)
    drawn = table if private is None else thinned(table, private.rate)
    small, classes = outliers(drawn, levels, request.models)
    rare = int(drawn.counts[small].sum())
    if request.max_suppressed is not None and rare > request.limit(table):
        raise BadData(
            f"At these levels {count(rare)} of {table.rows:,} fail the privacy models, and at most "
            f"{request.limit(table):,} may be suppressed. "
            "Take higher levels, or raise max_suppressed."
        )
    lost = np.flatnonzero(small)
    words = ", ".join(f"{c.name} {level}/{c.height}" for c, level in zip(table.columns, levels))
    if private is not None:
        trace = [*trace, noted(private, table, drawn)]
    trace = [
        *trace,
        told(
            f"At {words} {count(classes, 'class')} were made; {count(rare)} of classes that fail are "
            "suppressed.",
            levels=list(levels),
            classes=classes,
            suppressed=rare,
        ),
    ]
    away = table.rows - drawn.rows  # rows the sample left out are lost, like suppressed ones
    loss = (
        (priced(drawn, levels, lost, request.price(drawn)) * drawn.rows + away) / table.rows
        if drawn.rows
        else 1.0
    )
    return full_domain(drawn, levels, lost, loss, trace)
