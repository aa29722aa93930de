"""The conformance suite must fail for what does not conform."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tacit import data
from tacit.data.conformance import check_dataset, check_skew


@dataclass(frozen=True, repr=False)
class Loses(data.IID):
    def partition(self, dataset, parties, rng, min_size=1):
        return [rows[:-1] for rows in super().partition(dataset, parties, rng, min_size)]


@dataclass(frozen=True, repr=False)
class Doubles(data.IID):
    def partition(self, dataset, parties, rng, min_size=1):
        first, *rest = super().partition(dataset, parties, rng, min_size)
        return [np.append(first[1:], rest[0][0]), *rest]


@dataclass(frozen=True, repr=False)
class Global(data.IID):
    def partition(self, dataset, parties, rng, min_size=1):
        return np.array_split(np.random.permutation(len(dataset)), parties)


@dataclass(frozen=True, repr=False)
class Unseeded(data.IID):
    def partition(self, dataset, parties, rng, min_size=1):
        return super().partition(dataset, parties, np.random.default_rng(), min_size)


@dataclass(frozen=True, repr=False)
class Wanders(data.IID):
    def at(self, fed, round):
        return data.Rows(fed.rows.x, (fed.rows.y + round) % fed.classes)


@pytest.mark.parametrize(
    ("skew", "words"),
    [
        (Loses(), "rows partitioned"),
        (Doubles(), "a row has no owner, or two"),
        (Global(), "used numpy's global randomness"),
        (Unseeded(), "the same seed gave two federations"),
        (Wanders(), "rows change over rounds"),
    ],
    ids=lambda v: str(v)[:12],
)
def test_a_broken_skew_is_caught(skew, words):
    with pytest.raises(AssertionError, match=words):
        check_skew(skew)


def test_a_broken_data_set_is_caught():
    good = data.iris()
    for broken, words in [
        (replace(good, rows=data.Rows(good.rows.x.double(), good.rows.y)), "x is torch.float64, not float32"),
        (replace(good, rows=data.Rows(good.rows.x, good.rows.y + 1)), "a label is not in 0 … 2"),
        (replace(good, rows=data.Rows(good.rows.x, good.rows.y[:-1])), "120 examples and 119 labels"),
        (replace(good, rows=data.Rows(good.rows.x * torch.inf, good.rows.y)), "x has NaN or infinite values"),
        (replace(good, labels=("one",)), "1 names for 3 labels"),
        (replace(good, groups={"g": np.zeros(3)}), "group 'g' has 3 values for 120 rows"),
    ]:
        with pytest.raises(AssertionError, match=words):
            check_dataset(broken)
    with pytest.raises(AssertionError, match="two builds with the same arguments differ"):
        check_dataset(lambda: data.iris(seed=int(np.random.default_rng().integers(1 << 30))))
