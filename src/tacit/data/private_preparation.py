"""Fit a recipe across parties with differential privacy: one noisy sum.

Numbers are clipped to declared bounds [low, high] and scaled to [0, 1]. A party contributes the number of its
rows; for each number how many are known, their sum and their sum of squares; and the count of each category.
Every party adds discrete Gaussian noise to its part before it leaves, and each party's noise suffices alone:
the guarantee for its rows does not depend on the other parties. Neighboring tables differ by adding or
removing one row or, where rows belong to people (`group`), one person with all their rows. A row of a person
with n rows counts 1/n, so that a person changes a statistic by no more than a single row does.

    ρ of zCDP is that of (ε, δ), shared equally by the statistics. A statistic that one row changes by at most
    Δ has noise of variance Δ²/(2ρ_each).

There are no quantiles: bounds take the place of winsorizing, and scaling is "standard". Which columns and
categories there are is declared, and not covered by ε if it was inferred from rows.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from ..accounting import discrete
from ..errors import BadData, BadParameter
from ..parameters import bad, nearest
from .cells import CYCLES
from .people import people_of
from .pipeline import Pipeline
from .recipe import OTHER, RARE_COUNT, Recipe

if TYPE_CHECKING:
    from pandas import DataFrame

SCALE = 1 << 16  # numbers in [0, 1] are summed in units of 1/SCALE
LEAST_DEVIATION = 0.01  # of the range between the bounds: noise may exceed what is left of the variance
SIGMAS = 6  # noise alone exceeds so many of its deviations with a probability of 1e-9
_BOUND = 1 << 52  # 2^31 rows of SCALE, and noise that no draw exceeds in practice


@dataclass(frozen=True)
class PrivatePreparation:
    """A `SumProgram` of one noisy sum over parties' training rows that returns the fitted pipeline.

    `bounds` declares (low, high) of every number, of parts of dates ("admitted year"), and of a regression's
    label.
    """

    pipeline: Pipeline
    epsilon: float
    delta: float
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    parties: int = 1  # whose noise is in the sum
    group: str = ""  # the column that says whose a row is; empty: each row is somebody else's
    counts_labels: ClassVar[bool] = False  # of `PipelinePreparation`: exact counts, which no ε covers

    @property
    def max_steps(self) -> int:
        return 1

    @property
    def bound(self) -> int:
        return _BOUND

    @property
    def recipe(self) -> Recipe:
        """The recipe; for a regression with the target as one more number."""
        p = self.pipeline
        return p.recipe if p.labels else replace(p.recipe, numbers=(*p.recipe.numbers, p.label))

    def check(self) -> None:
        """Raise BadParameter with every problem of the declaration."""
        problems = []
        for key, value, most in (("fit_epsilon", self.epsilon, math.inf), ("fit_delta", self.delta, 1.0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
                must_be = "a number above 0" + (" and below 1" if most == 1 else "")
                problems.append(str(bad("preparation", key, value, must_be)))
        if self.recipe.scaling != "standard" or self.recipe.impute != "mean":
            problems.append("preparation: with fit_epsilon, scaling is 'standard' and impute is 'mean'.")
        unbounded = [name for name in self.recipe.numeric if not self._is_bounded(name)]
        if unbounded:
            names = ", ".join(map(repr, unbounded))
            problems.append(
                f"preparation: with fit_epsilon, every number needs declared bounds, and {names} "
                f"{'has' if len(unbounded) == 1 else 'have'} none. Declare the lowest and the highest value "
                f'known without looking at the rows: bounds = {{ "{unbounded[0]}" = [low, high] }}.'
                + (" Days count from 1970-01-01." if any(n.endswith(" days") for n in unbounded) else "")
            )
        for name in (n for n in self.bounds if n not in self.recipe.numeric):
            problems.append(
                f"preparation: bounds has {name!r}, which is not a number of the table. "
                f"{nearest(name, list(self.recipe.numeric))}".rstrip()
            )
        if problems:
            raise BadParameter("\n".join(problems))

    def _is_bounded(self, name: str) -> bool:
        low, high = self.range_of(name)
        return math.isfinite(low) and math.isfinite(high) and low < high

    def range_of(self, name: str) -> tuple[float, float]:
        """Return the declared bounds of a number; NaN if it has none."""
        pair = self.bounds.get(name)
        if pair is None and any(name.endswith((f" {c} sin", f" {c} cos")) for c in CYCLES):
            return -1.0, 1.0
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return math.nan, math.nan
        try:
            return float(pair[0]), float(pair[1])
        except (TypeError, ValueError, OverflowError):  # not numbers
            return math.nan, math.nan

    @property
    def unit(self) -> int:
        """What stands for one in counts: shares of a person are summed in units of 1/SCALE."""
        return SCALE if self.group else 1

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """(how many integers, what one row or person changes at most) of each statistic, in order."""
        out = [(1, self.unit)]
        for _ in self.recipe.numeric:
            out += [(1, self.unit), (1, SCALE), (1, SCALE)]
        return out + [(len(values) + 1, self.unit) for values in self.recipe.categories.values()]

    @property
    def multiplier(self) -> float:
        """The standard deviation of the noise of one party, over what one row or person changes."""
        return math.sqrt(len(self.blocks) / (2 * discrete.rho_of(self.epsilon, self.delta)))

    def least_count(self, categories: int = 1) -> float:
        """The noisy count, of so many categories together, below which they are rare.

        Every party adds noise to every count, so the noise of a sum grows with the root of their numbers. A
        category that nobody has exceeds it once in 10⁹ draws.
        """
        return RARE_COUNT + SIGMAS * self.multiplier * math.sqrt(self.parties * categories)

    @property
    def spend(self) -> dict[str, Any]:
        """The line for a ledger: the values of a `Spend`."""
        return {
            "mechanism": f"preparation: discrete Gaussian noise in {len(self.blocks)} statistics, "
            f"σ/Δ = {self.multiplier:.4g} each",
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "unit": "one person, with all their rows at a party" if self.group else "one row",
            "adversary": f"everyone outside the {'person' if self.group else 'row'}'s party",
            "sampling": "none",
        }

    def length(self, step: int, down: Mapping[str, Tensor]) -> int:
        return sum(n for n, _ in self.blocks)

    def count(self, table: DataFrame) -> np.ndarray:
        """Return the statistics of one party without noise."""
        recipe, shares = self.recipe, self._shares(table)
        table = recipe.check_table(table)
        raw = recipe.raw(table)

        def add_up(values: np.ndarray, one: int) -> list[float]:
            # rounded down: all rows of a person together are at most one
            whole = np.floor(values * one) if self.group else np.rint(values * one)
            return [float(whole.sum())]

        parts: list[Any] = [add_up(shares, self.unit)]
        for k, name in enumerate(recipe.numeric):
            low, high = self.range_of(name)
            known = ~np.isnan(raw[:, k])
            values, share = (np.clip(raw[known, k], low, high) - low) / (high - low), shares[known]
            parts += [
                add_up(share, self.unit),
                add_up(share * values, SCALE),
                add_up(share * values**2, SCALE),
            ]
        for name, texts in recipe.categories.items():
            place = recipe.place_of(name, table) + 1
            parts.append(
                [add_up(shares[place == k], self.unit)[0] for k in range(len(texts) + 1)]
                if self.group
                else np.bincount(place, minlength=len(texts) + 1)
            )
        return np.concatenate(parts).astype(np.int64)

    def _shares(self, table: DataFrame) -> np.ndarray:
        """Return how much each row counts: one over the number of rows of its person."""
        if not self.group:
            return np.ones(len(table))
        if not len(table):
            return np.zeros(0)
        people = people_of("preparation", table[self.group])
        return np.asarray(1.0 / np.bincount(people)[people])

    def local(self, step: int, table: DataFrame, down: Mapping[str, Tensor]) -> np.ndarray:
        """Return the statistics of one party with noise; the randomness is the operating system's."""
        self.check()
        if down:
            raise BadData("preparation: a noisy sum depends on nothing that is sent.")
        noise = [
            discrete.gaussian(discrete.rational_above((self.multiplier * change) ** 2), n)
            for n, change in self.blocks
        ]
        return self.count(table) + np.concatenate(noise).astype(np.int64)

    def coordinate(self) -> Generator[Mapping[str, Tensor], np.ndarray, Pipeline]:
        """Compute the fitted pipeline from the noisy sum."""
        self.check()
        total = yield {}
        recipe, total = self.recipe, total[1:]
        mean, std = [], []
        for name in recipe.numeric:
            low, high = self.range_of(name)
            n = max(float(total[0]) / self.unit, 1.0)
            center = min(max(float(total[1]) / SCALE / n, 0.0), 1.0)
            # a variance below its noise is not known, and a deviation near 0 would make the column huge
            noise = self.multiplier * math.sqrt(self.parties * (1 + 4 * center**2)) / n
            least = max(LEAST_DEVIATION**2, min(noise, 0.25))  # no variance on [0, 1] exceeds 1/4
            wide = math.sqrt(max(float(total[2]) / SCALE / n - center**2, least))
            mean.append(low + center * (high - low))
            std.append(wide * (high - low))
            total = total[3:]
        rare = {}
        for name, values in recipe.categories.items():
            counts, total = total[1 : len(values) + 1] / self.unit, total[len(values) + 1 :]
            if OTHER in values:
                few = tuple(v for v, c in zip(values, counts) if c < self.least_count() and v != OTHER)
                others = [float(c) for v, c in zip(values, counts) if v in (*few, OTHER)]
                is_rare = sum(others) < self.least_count(len(others))
                rare[name] = (*few, *([OTHER] if is_rare else []))
        limits = {name: self.range_of(name) for name in recipe.numeric}
        fitted = replace(
            recipe, mean=tuple(mean), std=tuple(std), fill=tuple(mean), limits=limits, knots={}, rare=rare
        )
        p = self.pipeline
        if p.labels:
            return replace(p, recipe=fitted)
        place = recipe.numeric.index(p.label)
        return replace(p, recipe=fitted.without(p.label), target=(mean[place], std[place]))
