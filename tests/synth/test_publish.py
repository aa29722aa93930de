"""The benchmark that judges generators and peers: sorted rows and missing cells must not change a verdict."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from tests.docs.pages import ROOT


@pytest.fixture
def publish(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import publish

    return publish


def patients(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 80, n)
    return pd.DataFrame({"age": age, "x": rng.normal(size=n), "ill": np.where(age > 50, "yes", "no")})


def test_sorted_rows_are_told_from_real_ones_as_well_as_shuffled_ones(publish):
    """x of the made rows is -5 or 5, never between. Sorted, what the first half has is not in the second."""
    train, holdout, made = patients(400, 0), patients(400, 1), patients(400, 2)
    made["x"] = np.where(made["age"] > 50, 5.0, -5.0)
    _, shuffled = publish.classify(train, made, holdout, "ill")
    _, as_sorted = publish.classify(train, made.sort_values("x", ignore_index=True), holdout, "ill")
    assert shuffled > 0.95
    assert as_sorted > 0.95


def test_missing_cells_of_a_peer_are_filled_and_counted(publish):
    train, made = patients(100, 0), patients(100, 1).astype({"age": float})
    made.loc[:9, "age"] = np.nan
    made.loc[5:9, "ill"] = None
    filled, share = publish.fill_missing(made, train, 0)
    assert share == 15 / 300
    assert filled["age"].dtype == train["age"].dtype
    assert not filled.isna().any().any()
    assert filled["age"].isin(made["age"]).all()
    assert made["age"].isna().sum() == 10  # the argument stays as it is


def test_missing_cells_stay_where_real_ones_are_missing(publish):
    train, made = patients(100, 0), patients(100, 1)
    train.loc[0, "x"] = made.loc[3, "x"] = np.nan
    filled, share = publish.fill_missing(made, train, 0)
    assert share == 0
    assert np.isnan(filled.loc[3, "x"])
