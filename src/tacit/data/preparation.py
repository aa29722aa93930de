"""Fit a recipe across parties by sums: means, deviations, quantiles and category counts.

    step  a party contributes, summed over all parties
    0     the count and the sum of each number; the count of each category; of numbers whose quantiles are
          needed, a histogram of the first 8 bits of their keys
    1     Σ (x − mean)²; of each quantile, a histogram of the next 8 bits within its cell
    2     Σ ((x − mean)/std)⁴; the last 8 bits
    3     the sum of each number, clipped where its tails are heavy
    4     Σ (x − mean)² of the clipped numbers

A recipe that needs no quantiles ends after step 1, one without numbers after step 0. The number of steps and
the length of every vector follow from the declared recipe. Sums of numbers are exact (`crypto.exact`), so the
statistics have the same bits however the rows are partitioned.

Quantiles are found by a search in 3 steps of 8 bits, with one histogram of 256 cells in each. A value's key
is its float32, rounded to 16 significant bits: a quantile is the exact order statistic (inverted CDF) of the
rounded values, so it deviates from that of the values by at most 2^-16 of it. Integers below 65,536 are
exact.

*Heavy tails.* A number is heavy-tailed if its kurtosis, Σz⁴/n, is above 10 (3 for a normal, 9 for an
exponential distribution). It is then clipped to its 1% and 99% quantiles, unless these are equal, as for a
rare indicator.

*Regressions.* The outcome often follows the largest values (of costs, of the sizes of towns), and these few
rows have most of its variance. So with `winsorize="auto"` the limits are `REACH` times as far from the middle
of the two quantiles, where they clip gross errors only. docs/results/tables.md has the figures. The mean and
the deviation are those of all numbers, as in scikit-learn, unless that deviation is more than `GROSS` times
that of the clipped ones: then gross errors make it. The sums are the same as for classifications: one of
numbers clipped farther out would show, beside that of all, by how much a single value is beyond a limit.

*Few rows.* A quantile has at least 10 values below and above it or equal to it: the limits of 300 rows are
their 10th smallest and largest. Of fewer than 20 values none is used: no number is clipped, and quantiles
are those of the normal distribution with the same mean and deviation.

*What a party checks.* It does not see the sums, so it cannot check the mean or the cells. Each step repeats
what the earlier ones were sent (`preceding`), and a party refuses one that does not: cells that do not extend
those of the step before, limits outside the cells that were searched, or other limits in step 4 than in 3.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..crypto import exact
from ..errors import BadData
from .recipe import OTHER, RANKS, RARE_COUNT, RARE_SHARE, Recipe

if TYPE_CHECKING:
    from pandas import DataFrame

HEAVY = 10.0  # above the kurtosis of an exponential distribution
TAILS = (0.01, 0.99)
# of 8, 16, 24 and 32 the one with the fewest development tables whose R² is below that without limits
REACH = 24.0
GROSS = 4.0  # times; that of a lognormal distribution with σ = 2 is about 3
QUARTILES = (0.25, 0.5, 0.75)
CELLS = 256
LEAST = 10  # values at or beyond a quantile, as of a rare category
MOST_DEVIATIONS = 2.0**20  # no value of n is further than √n deviations from the mean, and n is below 2^40
_ZERO = 1 << 23  # the key of 0.0
_MOST_ROWS = 2**31  # of one party


@dataclass(frozen=True)
class Preparation:
    """A `SumProgram` over parties' training rows that returns the fitted recipe.

    `exempt` numbers are neither winsorized nor scaled otherwise than to mean 0 and variance 1 (a target).
    `is_regression` says that the rows are for a regression, whose limits are farther out.
    """

    recipe: Recipe
    exempt: tuple[str, ...] = ()
    is_regression: bool = False

    @property
    def max_steps(self) -> int:
        if not self.recipe.numeric:
            return 1
        return 2 if not self.probes else 5 if self._clips else 3

    @property
    def bound(self) -> int:
        return exact.BOUND  # limbs are below 2^32, counts below 2^31

    @property
    def _clips(self) -> bool:
        return self.recipe.winsorize != "none" and bool(self._clippable)

    @property
    def _clippable(self) -> list[str]:
        """Numbers whose tails may be clipped; ranks have no tails, and parts of dates are bounded."""
        return [
            name
            for name in self.recipe.numbers
            if name not in self.exempt and self.recipe.scaling_of(name) in ("standard", "robust")
        ]

    @property
    def probes(self) -> tuple[tuple[str, float], ...]:
        """The quantiles that are needed: (number, level)."""
        recipe, out = self.recipe, []
        clippable = self._clippable if recipe.winsorize != "none" else []
        for name in (n for n in recipe.numeric if n not in self.exempt):
            kind, levels = recipe.scaling_of(name), set()
            if name in clippable:
                levels |= set(TAILS)
            if kind == "robust":
                levels |= set(QUARTILES)
            if kind == "quantile":
                levels |= set(RANKS)
            if recipe.impute == "median" or kind == "quantile":
                levels.add(0.5)
            out += [(name, level) for level in sorted(levels)]
        return tuple(out)

    @property
    def _searched(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.probes))

    def length(self, step: int, down: Mapping[str, Tensor]) -> int:
        numbers = len(self.recipe.numeric)
        if step == 0:
            categories = sum(len(values) + 1 for values in self.recipe.categories.values())
            return 1 + numbers * (1 + exact.LIMBS) + categories + CELLS * len(self._searched)
        return numbers * exact.LIMBS + (CELLS * len(self.probes) if step in (1, 2) else 0)

    def local(self, step: int, table: DataFrame, down: Mapping[str, Tensor]) -> np.ndarray:
        """Return what one party's training rows contribute to a step."""
        recipe = self.recipe
        table = recipe.check_table(table)
        if len(table) >= _MOST_ROWS:
            raise BadData(f"the table has {len(table)} rows; a party may have fewer than {_MOST_ROWS}.")
        raw = recipe.raw(table)
        known = ~np.isnan(raw)
        sent = self._check_sent(step, down)
        if step == 0:
            sums = exact.encode_sum(np.where(known, raw, 0.0))
            counts = [
                np.bincount(recipe.place_of(name, table) + 1, minlength=len(values) + 1)
                for name, values in recipe.categories.items()
            ]
            cells = [_cells(raw[:, self._place(name)], 0, 0) for name in self._searched]
            return np.concatenate([[len(table)], known.sum(axis=0), sums, *counts, *cells]).astype(np.int64)
        mean = sent["mean"]
        if step == 2:
            z = (raw - mean) / sent["std"]
            if (np.abs(z[known]) > MOST_DEVIATIONS).any():
                raise BadData(
                    "preparation: a standard deviation that was sent is too small for this party's values: "
                    f"one is more than {MOST_DEVIATIONS:.0f} deviations from the mean."
                )
            off = z**4
        elif step > 2:
            values = np.clip(raw, sent["low"], sent["high"])
            off = values if step == 3 else (values - sent["clipped"]) ** 2
        else:
            off = (raw - mean) ** 2
        parts = [exact.encode_sum(np.where(known, off, 0.0))]
        if step in (1, 2) and self.probes:
            places = [self._place(name) for name, _ in self.probes]
            parts += [_cells(raw[:, k], step, int(cell)) for k, cell in zip(places, sent["cells"])]
        return np.concatenate(parts)

    def preceding(self, step: int, down: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the step before was sent, if this step was sent `down`."""
        out = {key: down[key] for key in self._keys(step - 1)}
        if step == 2:
            out["cells"] = out["cells"] >> 8
        return out

    def _keys(self, step: int) -> tuple[str, ...]:
        """The vectors that a step is sent."""
        if step < 2:
            return () if step == 0 else ("mean", "cells") if self.probes else ("mean",)
        return ("mean", "std", "cells", "low", "high", "clipped")[: (3, 5, 6)[step - 2]]

    def _check_sent(self, step: int, down: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return what a step was sent; raise BadData if no sums lead to it."""
        if set(down) != set(self._keys(step)):
            raise BadData(
                f"preparation: step {step + 1} is sent {', '.join(self._keys(step)) or 'nothing'}, and got "
                f"{', '.join(repr(key)[:30] for key in down) or 'nothing'}."
            )
        n = len(self.recipe.numeric)
        out = {
            key: self._sent(down, key, (len(self.probes),), torch.int64)
            if key == "cells"
            else self._sent(down, key, (n,), torch.float64, key in ("low", "high"))
            for key in self._keys(step)
        }
        if "std" in out and (out["std"] <= 0).any():
            raise BadData("preparation: a standard deviation that was sent is not above 0.")
        if "cells" in out:
            self._check_cells(out["cells"], CELLS ** min(step, 2))
        if "low" in out:
            self._check_limits(out)
        return out

    def _check_cells(self, cells: np.ndarray, many: int) -> None:
        """Raise BadData unless each cell exists, and a higher quantile is in no lower cell."""
        before = ("", 0)
        for (name, _), cell in zip(self.probes, cells.tolist()):
            if not 0 <= cell < many or (name == before[0] and cell < before[1]):
                raise BadData(f"preparation: the cells of the quantiles of {name!r} are not in order.")
            before = (name, cell)

    def _check_limits(self, sent: Mapping[str, np.ndarray]) -> None:
        """Raise BadData unless limits are the ends of the searched cells of numbers that may be clipped."""
        searched = dict(zip(self.probes, sent["cells"].tolist()))
        for k, name in enumerate(self.recipe.numeric):
            low, high = float(sent["low"][k]), float(sent["high"][k])
            if (low, high) == (-np.inf, np.inf):
                continue
            fits = name in self._clippable and np.isfinite([low, high]).all() and low < high
            for level, end in zip(TAILS, (low, high)) if fits else ():
                key = int(keys_of(np.array([end]))[0])
                fits = fits and _value(key) == end and key >> 8 == searched[name, level]
            if not fits:
                raise BadData(f"preparation: the limits of {name!r} do not follow from its quantiles.")

    def _place(self, name: str) -> int:
        return self.recipe.numeric.index(name)

    def _sent(
        self,
        down: Mapping[str, Tensor],
        key: str,
        shape: tuple[int, ...],
        kind: torch.dtype,
        infinite: bool = False,
    ) -> np.ndarray:
        """Return a vector that was sent down; raise BadData if it is not what this step sends."""
        tensor = down.get(key)
        if tensor is None or tensor.shape != shape or tensor.dtype != kind:
            raise BadData(f"preparation: {key!r} of this step is not a vector of {shape[0]} numbers.")
        values = tensor.numpy()
        if np.isnan(values).any() or (not infinite and not np.isfinite(values).all()):
            raise BadData(f"preparation: {key!r} of this step has NaN or infinite values.")
        return values

    def coordinate(self) -> Generator[Mapping[str, Tensor], np.ndarray, Recipe]:
        """Compute the fitted recipe from the sums."""
        recipe, n, probes = self.recipe, len(self.recipe.numeric), self.probes
        total = yield {}
        rows, known, total = int(total[0]), np.maximum(total[1 : n + 1], 1), total[n + 1 :]
        mean, total = exact.decode(total[: n * exact.LIMBS]) / known, total[n * exact.LIMBS :]
        rare: dict[str, tuple[str, ...]] = {}
        for name, values in recipe.categories.items():
            rare |= _rare(name, values, total[1 : len(values) + 1], rows)
            total = total[len(values) + 1 :]
        if not n:
            return self._fitted(mean, mean, {}, {}, rare)
        search = _Search(self, total.reshape(-1, CELLS), known)
        total = yield {"mean": torch.from_numpy(mean), **search.sent}
        squares = exact.decode(total[: n * exact.LIMBS])
        center, whole = mean, _deviation(squares, known, mean)
        spread = whole
        quantiles: dict[str, dict[float, float]] = {}
        limits: dict[str, tuple[float, float]] = {}
        if probes:
            search.narrow(total[n * exact.LIMBS :])
            # of a constant: not 1, so that no value is further than √n deviations from the mean
            least = np.maximum(np.sqrt(np.maximum(squares, 0.0) / known), _least_deviation(mean))
            searched = {"mean": torch.from_numpy(mean), "std": torch.from_numpy(least), **search.sent}
            total = yield searched
            search.narrow(total[n * exact.LIMBS :])
            quantiles = search.quantiles(mean, spread)
            kurtosis = exact.decode(total[: n * exact.LIMBS]) / known
            limits = self._limits(kurtosis, quantiles, known)
        if self._clips:
            low, high = (
                torch.tensor([limits.get(name, (-np.inf, np.inf))[end] for name in recipe.numeric])
                .to(torch.float64)
                .reshape(n)
                for end in (0, 1)
            )
            clipped = {**searched, "low": low, "high": high}
            total = yield clipped
            mean = exact.decode(total) / known
            total = yield {**clipped, "clipped": torch.from_numpy(mean)}
            spread = _deviation(exact.decode(total), known, mean)
        if self.is_regression and recipe.winsorize == "auto":
            limits = {name: _widen(*ends) for name, ends in limits.items()}
            is_gross = whole > GROSS * spread
            mean, spread = np.where(is_gross, mean, center), np.where(is_gross, spread, whole)
        return self._fitted(mean, spread, quantiles, limits, rare)

    def _limits(
        self, kurtosis: np.ndarray, quantiles: Mapping[str, Mapping[float, float]], known: np.ndarray
    ) -> dict[str, tuple[float, float]]:
        out = {}
        for name in self._clippable if self._clips else ():
            if known[self._place(name)] < 2 * LEAST:
                continue
            low, high = (quantiles[name][level] for level in TAILS)
            heavy = self.recipe.winsorize == "always" or kurtosis[self._place(name)] > HEAVY
            if heavy and low < high:
                out[name] = (low, high)
        return out

    def _fitted(
        self,
        mean: np.ndarray,
        spread: np.ndarray,
        quantiles: Mapping[str, Mapping[float, float]],
        limits: dict[str, tuple[float, float]],
        rare: dict[str, tuple[str, ...]],
    ) -> Recipe:
        center, scale, fill, knots = mean.copy(), spread.copy(), mean.copy(), {}
        for k, name in enumerate(self.recipe.numeric):
            kind, levels = self.recipe.scaling_of(name), quantiles.get(name, {})
            if name in self.exempt:
                continue
            if self.recipe.impute == "median" or kind == "quantile":
                fill[k] = levels[0.5]
            if kind == "none":
                center[k], scale[k] = 0.0, 1.0
            if kind == "robust":
                center[k], wide = levels[0.5], levels[0.75] - levels[0.25]
                scale[k] = wide if wide > 0 else spread[k]  # half of the values are equal
            if kind == "quantile":
                knots[name] = tuple(levels[level] for level in RANKS)
        return replace(
            self.recipe,
            mean=tuple(center.tolist()),
            std=tuple(scale.tolist()),
            fill=tuple(fill.tolist()),
            limits=limits,
            knots=knots,
            rare=rare,
        )


class _Search:
    """The search for all quantiles: from the sums of histograms to the next cells."""

    def __init__(self, program: Preparation, first: np.ndarray, known: np.ndarray) -> None:
        self.probes = program.probes
        by_name = dict(zip(program._searched, first))
        self.cells = np.zeros(len(self.probes), dtype=np.int64)
        self.known = [int(known[program._place(name)]) for name, _ in self.probes]
        self.places = [program._place(name) for name, _ in self.probes]
        # the rank within the cell, counted from 1: the inverse of the distribution function
        self.ranks = np.array([_rank(level, n) for (_, level), n in zip(self.probes, self.known)], np.int64)
        self.narrow(np.array([by_name[name] for name, _ in self.probes]).reshape(-1))

    def narrow(self, counts: np.ndarray) -> None:
        """Choose the cell of each quantile by the summed histograms."""
        for k, histogram in enumerate(counts.reshape(-1, CELLS)):
            upto = np.cumsum(histogram)
            digit = min(int(np.searchsorted(upto, self.ranks[k])), CELLS - 1)
            self.ranks[k] -= int(upto[digit]) - int(histogram[digit])
            self.cells[k] = self.cells[k] * CELLS + digit

    @property
    def sent(self) -> dict[str, Tensor]:
        return {"cells": torch.from_numpy(self.cells.copy())} if self.probes else {}

    def quantiles(self, mean: np.ndarray, std: np.ndarray) -> dict[str, dict[float, float]]:
        out: dict[str, dict[float, float]] = {}
        for (name, level), cell, n, k in zip(self.probes, self.cells, self.known, self.places):
            normal = float(mean[k] + std[k] * NormalDist().inv_cdf(level))
            out.setdefault(name, {})[level] = _value(int(cell)) if n >= 2 * LEAST else normal
        return out


def _widen(low: float, high: float) -> tuple[float, float]:
    """Return limits that are `REACH` times as far from their middle."""
    middle, half = (low + high) / 2, REACH * (high - low) / 2
    return middle - half, middle + half


def _rank(level: float, n: int) -> int:
    """Return the rank of a quantile of n values, counted from 1: at least `LEAST` from each end."""
    rank = max(1, math.ceil(level * n))
    return min(max(rank, LEAST), n + 1 - LEAST) if n >= 2 * LEAST else rank


def keys_of(values: np.ndarray) -> np.ndarray:
    """Return the 24-bit keys of numbers: ordered like them, equal if they agree in 16 significant bits."""
    with np.errstate(over="ignore"):
        bits = np.abs(values).astype(np.float32).view(np.uint32).astype(np.int64)
    magnitude = np.minimum((bits + 128) >> 8, (0x7F7FFFFF >> 8))  # rounded; at most the largest float32
    return np.asarray(np.where(values < 0, -magnitude, magnitude) + _ZERO)


def _value(key: int) -> float:
    magnitude = np.array([abs(key - _ZERO) << 8], dtype=np.uint32).view(np.float32)[0]
    return float(-magnitude if key < _ZERO else magnitude)


def _cells(values: np.ndarray, digits: int, cell: int) -> np.ndarray:
    """Return the histogram of the next 8 bits of the keys that begin with the digits of `cell`."""
    keys = keys_of(values[~np.isnan(values)])
    shift = 16 - 8 * digits
    inside = keys[keys >> (shift + 8) == cell]
    return np.bincount((inside >> shift) & (CELLS - 1), minlength=CELLS)


def _deviation(squares: np.ndarray, known: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the standard deviations; that of a constant is set to 1."""
    std = np.sqrt(np.maximum(squares, 0.0) / known)
    return np.where(std > _least_deviation(mean), std, 1.0)


def _least_deviation(mean: np.ndarray) -> np.ndarray:
    """Return the deviation up to which a number counts as a constant."""
    return np.asarray(1e-9 * (1 + np.abs(mean)))


def _rare(name: str, values: tuple[str, ...], counts: np.ndarray, rows: int) -> dict[str, tuple[str, ...]]:
    """Return the values that count as "other"; "other" itself if no training row has it."""
    if OTHER not in values:
        return {}
    few = (counts < RARE_COUNT) & (counts < RARE_SHARE * rows)
    rare = [value for value, is_few in zip(values, few) if is_few and value != OTHER]
    others = int(sum(count for value, count in zip(values, counts) if value in (*rare, OTHER)))
    return {name: (*rare, *([OTHER] if not others else []))}
