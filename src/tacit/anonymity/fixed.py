"""Levels that are fixed in advance: nothing is searched, and classes that violate a model are suppressed.

Use it for a second release of the same people (with the levels of the first), for levels that a regulation
prescribes, and for differential privacy by sampling, where levels that depend on the table would void the
guarantee (`DifferentialPrivacy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import BadData
from ..parameters import bad
from .coding import draw_coins
from .datafly import find_outliers
from .models import find_differential_privacy
from .release import (
    AnonymizationRequest,
    TableRelease,
    format_count,
    make_step,
    price_levels,
    release_levels,
)
from .result import Step
from .table import EncodedTable


@dataclass(frozen=True)
class Fixed:
    """One level per column, as specified; other columns stay unchanged.

    Rows of classes that violate a privacy model are suppressed.
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
                "a dictionary with the level of each quasi-identifier, like {'age': 2, 'zip': 1}",
            )

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        return apply_levels(table, request, resolve_levels(table, self.levels or {}, "Fixed"), [])


def resolve_levels(table: EncodedTable, levels: Mapping[str, Any], owner: str) -> list[int]:
    """The level of each column, 0 by default. Raise unless every level is in its hierarchy."""
    unknown = sorted(set(levels) - set(table.quasi))
    if unknown:
        raise bad(
            owner,
            "levels",
            dict(levels),
            "for the quasi-identifiers " + ", ".join(map(repr, table.quasi)),
            f"{unknown[0]!r} is not one of them.",
        )
    resolved = []
    for c in table.columns:
        level = levels.get(c.name, 0)
        if isinstance(level, bool) or not isinstance(level, int | np.integer) or not 0 <= level <= c.height:
            raise bad(
                owner,
                f"levels[{c.name!r}]",
                level,
                f"a whole number from 0 to {c.height}, the top of its hierarchy",
            )
        resolved.append(int(level))
    return resolved


def sample_rows(table: EncodedTable, rate: float) -> EncodedTable:
    """Keep each row with this probability, by the operating system's randomness; mark the others as −1."""
    inverse = np.where(draw_coins(len(table.inverse), rate), table.inverse, -1)
    return replace(
        table, inverse=inverse, counts=np.bincount(inverse[inverse >= 0], minlength=len(table.codes))
    )


def apply_levels(
    table: EncodedTable, request: AnonymizationRequest, levels: list[int], trace: list[Step]
) -> TableRelease:
    """Generalize to these levels and suppress the classes that violate a model.

    Under differential privacy, do so on a sample of the table.
    """
    private = find_differential_privacy(request.models)
    sample = table if private is None else sample_rows(table, private.rate)
    is_outlier, classes = find_outliers(sample, levels, request.models)
    outliers = int(sample.counts[is_outlier].sum())
    if request.max_suppressed is not None and outliers > request.limit(table):
        raise BadData(
            f"At these levels {format_count(outliers)} of {table.rows:,} violate the privacy models, and at "
            f"most {request.limit(table):,} may be suppressed. Use higher levels, or raise max_suppressed."
        )
    suppressed = np.flatnonzero(is_outlier)
    words = ", ".join(f"{c.name} {level}/{c.height}" for c, level in zip(table.columns, levels))
    if private is not None:
        sampling = make_step(
            f"Each of {format_count(table.rows)} was sampled with probability {private.rate:.4f}: "
            f"{sample.rows:,} were. Classes need k = {private.k} sampled rows for ε = {private.epsilon:g}, "
            f"δ = {private.delta:g}.",
            sampled=sample.rows,
            k=private.k,
            fraction=private.rate,
        )
        trace = [*trace, sampling]
    trace = [
        *trace,
        make_step(
            f"At {words} there are {format_count(classes, 'class')}; {format_count(outliers)} of violating "
            "classes are suppressed.",
            levels=list(levels),
            classes=classes,
            suppressed=outliers,
        ),
    ]
    missing = table.rows - sample.rows  # rows that were not sampled are lost, like suppressed ones
    loss = 1.0
    if sample.rows:
        price = price_levels(sample, levels, suppressed, request.build_metric(sample))
        loss = (price * sample.rows + missing) / table.rows
    return release_levels(sample, levels, suppressed, loss, trace)
