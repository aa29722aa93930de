"""How strongly a comparison speaks for one person: Fellegi and Sunter's weights, and the threshold.

Fellegi, Sunter: A Theory for Record Linkage, JASA 64 (1969).

    m_k = P(level k | the two records are of one person)          declared, or the default of the field's kind
    u_k = P(level k | they are not)                               declared, or estimated
    w_k = log2(m_k / u_k);  a missing value has weight 0
    P(one person | levels) ≥ t   ⇔   Σ w ≥ log2(t / (1 − t)) − log2(λ / (1 − λ)),   λ = overlap / max(n, n')

u is estimated by each party on its own table, where two random rows are two people: P(equal) from the
frequencies of the values, P(similar) from random pairs. Of the weights that the two estimates give the
smaller one counts, so that a party can make no level weigh more than the other's table says. m cannot be
estimated without opening how often true pairs agree, so both parties agree on it in the job.

Weights are rounded to 1/1024 bit, and given as what each reached level adds: w_L + Σ_k (w_k − w_{k+1}) [≥ k].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .fields import UNIT, Encoded, Field, Records

SCALE = 1024  # units in a bit of weight
PAIRS = 50_000  # random pairs for P(similar), or all: its standard error is below 0.0023
PART = 1 << 20  # units of a probability in a message
ROUGH = 12.0  # bits: the largest weight of one level, 4096 : 1, so that no field decides alone


@dataclass(frozen=True)
class FieldWeights:
    """What a pair's score gains if both values are present, and with each level that it reaches."""

    base: int
    steps: tuple[int, ...]


def count_common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many bits the rows of a and b have in common."""
    return np.asarray(np.einsum("ij,ij->i", a, b, dtype=np.int32), np.int64)


def is_similar(common: np.ndarray, bits: np.ndarray, level: int) -> np.ndarray:
    """Whether Dice's coefficient is at least `level` / 64; `bits`: those of both filters together."""
    return np.asarray(2 * UNIT * common >= level * bits)


def estimate_u(records: Records, rng: np.random.Generator) -> list[list[int]]:
    """For each field, P(at least each level | two random rows) in units of 2^-20."""
    return [
        [min(PART, max(1, math.ceil(p * PART))) for p in _reached(entry, column, rng)]
        for entry, column in zip(records.fields, records.encoded)
    ]


def _reached(entry: Field, column: Encoded, rng: np.random.Generator) -> list[float]:
    if entry.u is not None:
        return np.cumsum(entry.u).tolist()  # type: ignore[no-any-return]
    rows = np.flatnonzero(column.present)
    n = len(rows)
    counts = np.unique(np.array(column.values, object)[rows].astype(str), return_counts=True)[1]
    # half a pair is added, so that a probability is never 0
    equal = (float((counts * (counts - 1)).sum()) + 1.0) / (n * (n - 1) + 2.0)
    if n < 2 or len(entry.how.levels) == 1:
        return [equal] * len(entry.how.levels)
    i, j = np.triu_indices(n, 1) if n * (n - 1) // 2 <= PAIRS else _draw_pairs(n, rng)
    i, j = rows[i], rows[j]
    common, bits = count_common(column.filters[i], column.filters[j]), column.counts[i] + column.counts[j]
    hits = [float(is_similar(common, bits, level).sum()) for level in entry.how.levels]
    return [equal, *(equal + (h - hits[0] + 0.5) / (len(i) + 1.0) for h in hits[1:])]


def _draw_pairs(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    i = rng.integers(0, n, PAIRS)
    return i, (i + rng.integers(1, n, PAIRS)) % n


def compute_weights(
    fields: Sequence[Field], mine: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> tuple[FieldWeights, ...]:
    """The weights of each field's levels: the smaller ones of those that both estimates of u give."""
    weights = []
    for entry, one, other in zip(fields, mine, theirs):
        smaller = map(min, _to_bits(entry, one), _to_bits(entry, other))
        # values that are only similar never weigh more than equal ones
        units = [round(SCALE * w) for w in itertools.accumulate(smaller, min)]
        weights.append(FieldWeights(units[-1], tuple(a - b for a, b in itertools.pairwise(units))))
    return tuple(weights)


def _to_bits(entry: Field, reached: Sequence[int]) -> list[float]:
    """log2(m / u) of each level and of none, from the cumulative u."""
    m, least = entry.m or entry.how.m, 1 / PART
    edges = [0.0, *(min(p / PART, 1 - least) for p in itertools.accumulate(reached, max)), 1.0]
    apart = [max(b - a, least) for a, b in itertools.pairwise(edges)]
    return [max(-ROUGH, min(ROUGH, math.log2(p / q))) for p, q in zip([*m, 1.0 - sum(m)], apart)]


def compute_threshold(probability: float, overlap: float, rows: tuple[int, int]) -> int:
    """The score from which two records are one person with this probability."""
    prior = min(overlap / max(rows), 0.5)
    odds = math.log2(probability / (1 - probability)) - math.log2(prior / (1 - prior))
    return round(SCALE * odds)
