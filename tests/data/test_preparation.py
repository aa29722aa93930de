"""Federated preparation: sums over parties give the statistics of the pooled rows, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, RobustScaler, StandardScaler

import tacit
from tacit import data
from tacit.crypto import exact
from tacit.data.pipeline import Pipeline, PipelinePreparation
from tacit.data.preparation import Preparation, keys_of
from tacit.data.recipe import RANKS, Recipe
from tacit.errors import BadData
from tacit.protocols.sum_program import ideal

HEART = ("age", "trestbps", "chol", "thalach", "oldpeak")


@pytest.fixture(scope="module")
def hospitals() -> dict[str, pd.DataFrame]:
    frame = data.heart_disease(test_fraction=0).table.frame
    return dict(iter(frame.groupby("hospital")))


@pytest.fixture(scope="module")
def census() -> dict[str, pd.DataFrame]:
    """A skewed table with heavy tails, in the form of adult by occupation."""
    rng = np.random.default_rng(3)
    n = 4000
    frame = pd.DataFrame(
        {
            "job": rng.choice(["clerk", "farmer", "nurse", "pilot"], n, p=[0.6, 0.2, 0.15, 0.05]),
            "age": rng.integers(17, 91, n).astype(float),
            "gain": np.where(rng.random(n) < 0.9, 0.0, rng.lognormal(8, 1.5, n)).round(),
            "rate": rng.standard_cauchy(n),
            "country": rng.choice(["us", "mexico", "holand"], n, p=[0.9, 0.0995, 0.0005]),
        }
    )
    frame.loc[rng.random(n) < 0.1, "age"] = np.nan
    return dict(iter(frame.groupby("job")))


def known(tables: dict[str, pd.DataFrame], *columns: str) -> np.ndarray:
    return pd.concat(tables.values())[list(columns)].to_numpy(dtype=np.float64)


def test_standard_scaling_is_scikit_learns_on_pooled_rows(hospitals):
    fitted = ideal(Preparation(Recipe(HEART, winsorize="none")), hospitals)
    pooled = pd.concat(hospitals.values())
    peer = StandardScaler().fit(pooled[list(HEART)].to_numpy())
    assert np.allclose(fitted.mean, peer.mean_, rtol=1e-9, atol=0)
    assert np.allclose(fitted.std, peer.scale_, rtol=1e-9, atol=0)
    assert torch.allclose(
        fitted.transform(pooled), torch.from_numpy(peer.transform(pooled[list(HEART)].to_numpy())).float()
    )


def test_the_statistics_do_not_depend_on_who_holds_which_row(hospitals, census):
    for tables, recipe in (
        (hospitals, Recipe(HEART, {"cp": ("1", "2", "3", "4", "other")}, scaling={"chol": "robust"})),
        (census, Recipe(("age", "gain", "rate"), {"country": ("us", "other")}, missing=("age",))),
    ):
        pooled = pd.concat(tables.values(), ignore_index=True)
        shuffled = pooled.sample(frac=1, random_state=0)
        thirds = {str(k): shuffled.iloc[k::3] for k in range(3)}
        assert (
            ideal(Preparation(recipe), tables)
            == ideal(Preparation(recipe), thirds)
            == ideal(Preparation(recipe), {"all": pooled})
        )


def test_robust_scaling_is_scikit_learns_up_to_its_interpolation(hospitals):
    """scikit-learn interpolates between order statistics; ours is one of them, so half a step of the data."""
    fitted = ideal(Preparation(Recipe(HEART, scaling="robust", winsorize="none")), hospitals)
    values = known(hospitals, *HEART)
    expected = np.quantile(values, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
    assert np.allclose(fitted.mean, expected[1], rtol=2.0**-16, atol=0)
    assert np.allclose(fitted.std, expected[2] - expected[0], rtol=1e-4, atol=0)
    peer = RobustScaler().fit(values)
    assert np.allclose(fitted.mean, peer.center_, atol=0.5)
    assert np.allclose(fitted.std, peer.scale_, atol=0.5)


def test_the_rank_transform_is_within_a_rank_of_scikit_learns(census):
    fitted = ideal(Preparation(Recipe(("rate",), scaling="quantile")), census)
    values = known(census, "rate")
    peer = QuantileTransformer(n_quantiles=len(values), subsample=None).fit_transform(values)
    ours = fitted.transform(pd.concat(census.values())).numpy()[:, 0] / np.sqrt(12) + 0.5
    assert np.abs(ours - peer[:, 0]).max() < 0.0101  # beyond 1% and 99%: clipped; inside: linear in between
    exactly = np.quantile(values[:, 0], RANKS, method="inverted_cdf")
    assert np.allclose(fitted.knots["rate"], exactly, rtol=2.0**-15, atol=0)


def test_quantiles_of_integers_are_exact(census):
    recipe = Recipe(("age",), missing=("age",), impute="median", winsorize="none")
    ages = known(census, "age")[:, 0]
    fitted = ideal(Preparation(recipe), census)
    assert fitted.fill == (np.nanquantile(ages, 0.5, method="inverted_cdf"),)
    assert Preparation(recipe).max_steps == 3


@pytest.mark.parametrize("seed", range(3))
def test_keys_are_ordered_like_their_numbers(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(size=400) * 10.0 ** rng.integers(-30, 30, 400), [0.0, -0.0, 1e38]])
    keys = keys_of(np.sort(values))
    assert (np.diff(keys) >= 0).all()
    assert keys.min() >= 0
    assert keys.max() < 1 << 24


def test_heavy_tails_are_clipped_and_others_are_not(census):
    """Kurtosis above 10, computed here by pandas' moments of the pooled rows."""
    recipe = Recipe(("age", "gain", "rate"), missing=("age",))
    fitted = ideal(Preparation(recipe), census)
    pooled = pd.concat(census.values())[["age", "gain", "rate"]]
    z = (pooled - pooled.mean()) / pooled.std(ddof=0)
    heavy = (z**4).mean() > 10
    assert heavy.tolist() == [False, True, True]
    assert list(fitted.limits) == ["gain", "rate"]
    low, high = (pooled["rate"].quantile(q, interpolation="lower") for q in (0.01, 0.99))
    assert np.allclose(fitted.limits["rate"], (low, high), rtol=2.0**-16, atol=0)
    clipped = pooled["rate"].clip(*fitted.limits["rate"])
    assert fitted.mean[2] == pytest.approx(clipped.mean(), rel=1e-9)
    assert fitted.std[2] == pytest.approx(clipped.std(ddof=0), rel=1e-9)


def test_a_rare_indicator_is_not_clipped_to_a_constant():
    frame = pd.DataFrame({"flag": [1.0] * 5 + [0.0] * 995})
    fitted = ideal(Preparation(Recipe(("flag",))), {"a": frame[:500], "b": frame[500:]})
    assert fitted.limits == {}
    assert fitted.transform(frame).std() == pytest.approx(1, abs=1e-3)


def test_rare_and_unseen_categories_are_other():
    values = ["a"] * 500 + ["b"] * 500 + ["c"] * 3
    recipe = Recipe((), {"kind": ("a", "b", "c", "other")})
    fitted = ideal(Preparation(recipe), {"p": pd.DataFrame({"kind": values})})
    assert fitted.rare == {"kind": ("c",)}
    rows = fitted.transform(pd.DataFrame({"kind": ["a", "c", "z", None]}))
    assert rows.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_other_is_all_zeros_if_no_training_row_had_it():
    """Its weight was never trained: a random weight must not decide about a new patient."""
    recipe = Recipe((), {"kind": ("a", "b", "other")})
    fitted = ideal(Preparation(recipe), {"p": pd.DataFrame({"kind": ["a", "b"] * 50})})
    assert fitted.transform(pd.DataFrame({"kind": ["z"]})).tolist() == [[0, 0, 0]]
    plain = ideal(
        Preparation(Recipe((), {"kind": ("a", "b")})), {"p": pd.DataFrame({"kind": ["a", "b"] * 50})}
    )
    assert plain.transform(pd.DataFrame({"kind": ["z"]})).tolist() == [[0, 0]]


def test_one_hot_is_scikit_learns(hospitals):
    pooled = pd.concat(hospitals.values())
    fitted = ideal(Preparation(Recipe((), {"cp": ("1", "2", "3", "4")})), hospitals)
    peer = OneHotEncoder(sparse_output=False).fit_transform(pooled[["cp"]])
    assert np.array_equal(fitted.transform(pooled).numpy(), peer)


def test_the_width_and_the_messages_follow_from_the_declared_layout(census, hospitals):
    recipe = Recipe(("age", "gain"), {"country": ("us", "mexico", "other")}, missing=("age",))
    program = Preparation(recipe)
    for tables in (census, {"one": next(iter(census.values())).iloc[:3]}):
        assert ideal(program, tables).columns == recipe.columns
        steps = program.coordinate()
        down = next(steps)
        for step in range(program.max_steps):
            parts = [program.local(step, table, down) for table in tables.values()]
            assert {len(p) for p in parts} == {program.length(step, down)}
            assert all(np.abs(p).max() <= program.bound and p.dtype == np.int64 for p in parts)
            try:
                down = steps.send(np.sum(parts, axis=0))
            except StopIteration:
                break


def vectors(**values: list[float]) -> dict[str, torch.Tensor]:
    kinds = {"cells": torch.int64}
    return {key: torch.tensor(v, dtype=kinds.get(key, torch.float64)) for key, v in values.items()}


CELL = int(keys_of(np.array([1.0]))[0]) >> 8  # of 1.0, and of no other value of the tests below
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("step", "down", "words"),
    [
        (0, vectors(mean=[0.0]), "step 1 is sent nothing, and got 'mean'"),
        (1, {}, "step 2 is sent mean, cells, and got nothing"),
        (1, vectors(mean=[NAN], cells=[0, 0]), "'mean' of this step has NaN or infinite"),
        (1, vectors(mean=[0.0] * 3, cells=[0, 0]), "'mean' of this step is not a vector of 1 numbers"),
        (1, vectors(mean=[0.0], cells=[0]), "'cells' of this step is not a vector of 2 numbers"),
        (1, vectors(mean=[0.0], cells=[0, 256]), "cells of the quantiles of 'a' are not in order"),
        (1, vectors(mean=[0.0], cells=[-1, 0]), "cells of the quantiles of 'a' are not in order"),
        (1, vectors(mean=[0.0], cells=[3, 2]), "cells of the quantiles of 'a' are not in order"),
        (1, vectors(mean=[0.0], cells=[0, 0], low=[0.0]), "is sent mean, cells, and got .* 'low'"),
        (2, vectors(mean=[0.0], std=[0.0], cells=[0, 0]), "deviation that was sent is not above 0"),
        (2, vectors(mean=[1.0], std=[1e-7], cells=[0, 0]), "is too small for this party's values"),
        (3, vectors(mean=[0.0], std=[1.0], cells=[CELL, CELL + 1]), "is sent mean, std, cells, low, high"),
    ],
)
def test_a_party_refuses_what_no_step_sends(step, down, words):
    with pytest.raises(BadData, match=words):
        Preparation(Recipe(("a",))).local(step, pd.DataFrame({"a": [1.0, 2.0]}), down)


@pytest.mark.parametrize(
    ("low", "high", "fits"),
    [
        (1.0, 2.0, True),
        (-INF, INF, True),  # not clipped
        (1.0, INF, False),
        (2.0, 1.0, False),
        (1.0, 1.0, False),
        (0.5, 2.0, False),  # outside the cell of the 1% quantile
        (1.0, 4.0, False),
        (np.nextafter(1.0, 2.0), 2.0, False),  # inside the cell, and no key of 24 bits
    ],
)
def test_limits_are_ends_of_the_searched_cells(low, high, fits):
    cells = [int(keys_of(np.array([end]))[0]) >> 8 for end in (1.0, 2.0)]
    down = vectors(mean=[0.0], std=[1.0], cells=cells, low=[low], high=[high])
    program, table = Preparation(Recipe(("a",))), pd.DataFrame({"a": [1.0, 2.0]})
    if fits:
        assert exact.decode(program.local(3, table, down)).tolist() == [3.0]
        return
    with pytest.raises(BadData, match="the limits of 'a' do not follow from its quantiles"):
        program.local(3, table, down)


def test_only_numbers_that_may_be_clipped_have_limits():
    program = Preparation(Recipe(("a", "y")), exempt=("y",))
    cells = [int(keys_of(np.array([end]))[0]) >> 8 for end in (1.0, 2.0)]
    down = vectors(mean=[0.0, 0.0], std=[1.0, 1.0], cells=cells, low=[1.0, 1.0], high=[2.0, 2.0])
    with pytest.raises(BadData, match="the limits of 'y' do not follow"):
        program.local(3, pd.DataFrame({"a": [1.0], "y": [1.0]}), down)


@pytest.mark.parametrize("recipe", [Recipe(("a", "b")), Recipe(("a", "b"), winsorize="none")])
def test_each_step_repeats_what_the_step_before_was_sent(recipe):
    rng = np.random.default_rng(0)
    tables = {k: pd.DataFrame(rng.standard_cauchy((50, 2)), columns=["a", "b"]) for k in "xyz"}
    program = Preparation(recipe)
    steps = program.coordinate()
    down, before = next(steps), None
    for step in range(program.max_steps):
        if before is not None:
            same = program.preceding(step, down)
            assert same.keys() == before.keys()
            assert all(torch.equal(same[key], before[key]) for key in same)
        before = down
        try:
            down = steps.send(sum(program.local(step, table, down) for table in tables.values()))
        except StopIteration:
            break


@pytest.mark.parametrize("n", [20, 60, 300, 999, 1001])
def test_no_statistic_is_one_of_the_nine_smallest_or_largest_values(n):
    """Limits and knots are published; the extremes of few rows are single people's values."""
    values = np.random.default_rng(n).permutation(2.0 ** np.linspace(0, 15, n)).round(3)
    frame = pd.DataFrame({"a": values, "b": values})
    recipe = Recipe(("a", "b"), winsorize="always", scaling={"b": "quantile"})
    fitted = ideal(Preparation(recipe), {"x": frame[::2], "y": frame[1::2]})
    ends = np.sort(values)[[9, -10]]
    low, high = fitted.limits["a"]
    assert low >= ends[0] * (1 - 2.0**-16)
    assert high <= ends[1] * (1 + 2.0**-16)
    knots = np.array(fitted.knots["b"])
    assert knots.min() >= ends[0] * (1 - 2.0**-16)
    assert knots.max() <= ends[1] * (1 + 2.0**-16)
    if n < 1000:
        assert np.allclose([low, high], ends, rtol=2.0**-16)


def test_of_fewer_than_20_values_no_quantile_is_used():
    frame = pd.DataFrame({c: [1.0, 2.0, 4.0, 1000.0, np.nan] * 4 for c in "abc"})  # 16 values
    scaling = {"b": "quantile", "c": "robust"}
    recipe = Recipe(tuple("abc"), winsorize="always", impute="median", scaling=scaling, missing=tuple("abc"))
    fitted = ideal(Preparation(recipe), {"x": frame[:7], "y": frame[7:]})
    mean, std = frame["b"].mean(), frame["b"].std(ddof=0)
    assert fitted.limits == {}
    assert np.allclose(fitted.knots["b"], norm(mean, std).ppf(RANKS))
    assert fitted.mean == pytest.approx((mean, mean, mean))
    assert fitted.std[2] == pytest.approx(norm(0, std).ppf(0.75) - norm(0, std).ppf(0.25))
    assert fitted.fill == pytest.approx((mean, mean, mean))


def test_the_default_fit_of_a_table_is_federated_and_equals_pooled_scikit_learn(hospitals):
    frame = pd.concat(hospitals.values(), ignore_index=True)
    fed = data.from_frame(frame, label="num", drop=["sex", "fbs", "exang"], categories=["cp", "restecg"]).by(
        "hospital"
    )
    raw = data.from_frame(
        frame, label="num", drop=["sex", "fbs", "exang"], categories=["cp", "restecg"], fit="none"
    ).by("hospital")
    assert fed.pipeline is not None
    assert fed.pipeline.recipe.is_fitted
    plain = [k for k, name in enumerate(fed.columns[:5]) if name not in fed.pipeline.recipe.limits]
    train = raw.rows.x[raw.train.index][:, plain].double().numpy()
    peer = StandardScaler().fit(train)
    ours = fed.rows.x[fed.train.index][:, plain].numpy()
    assert np.abs(ours - peer.transform(train)).max() < 1e-5
    assert torch.isfinite(fed.test.x).all()
    fed_2 = data.from_frame(
        frame.sample(frac=1, random_state=1), label="num", categories=["cp", "restecg"], test_fraction=0
    )
    whole = fed_2.split(5, held_fraction=0).pipeline
    assert whole == fed_2.split(2, held_fraction=0, seed=4).pipeline


def test_a_regression_target_is_standardized_and_keeps_its_unit_in_the_pipeline(hospitals):
    frame = pd.concat(hospitals.values(), ignore_index=True)
    made = data.from_frame(frame, label="chol", drop=["num"])
    fed = made.by("hospital")
    assert fed.classes is None
    mean, std = fed.pipeline.target
    train = made.rows.y[fed.train.index].double()
    assert (mean, std) == pytest.approx((train.mean().item(), train.std(correction=0).item()), rel=1e-6)
    assert torch.allclose(fed.rows.y * std + mean, made.rows.y, atol=1e-3)
    assert fed.pipeline.labels == ()
    assert "chol" not in fed.pipeline.recipe.numbers
    assert data.from_frame(frame, label="chol", fit="none").by("hospital").pipeline.target == (0.0, 1.0)
    assert data.from_frame(frame, label="chol", fit="party").by("hospital").pipeline is None


def test_a_row_alone_is_encoded_as_in_a_table_of_a_thousand(census):
    pooled = pd.concat(census.values(), ignore_index=True)
    recipe = Recipe(
        ("age", "gain", "rate"),
        {"country": ("us", "mexico", "other")},
        missing=("age",),
        scaling={"gain": "quantile", "rate": "robust"},
    )
    pipeline = Pipeline(ideal(Preparation(recipe), census), "job", ("a", "b"))
    whole = pipeline.encode(pooled[:1000])
    again = Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict())))
    assert again == pipeline
    for row in (0, 7, 999):
        assert torch.equal(again.encode(pooled.iloc[[row]]), whole[[row]])
    assert torch.isfinite(whole).all()


def test_pipelines_whose_features_are_in_another_order_are_not_equal():
    """The same row has other features in another order, so the same model gives it another score."""
    one, other = (
        Pipeline(Recipe((), {c: ("x", "y") for c in order}, dates={c + "d": ("year",) for c in order}))
        for order in ("ab", "ba")
    )
    assert one.columns != other.columns
    assert one != other
    assert one != 3
    assert one == Pipeline.from_dict(json.loads(json.dumps(one.to_dict())))


def test_a_pipeline_names_all_columns_that_are_missing():
    fitted = replace(Recipe(("age", "pulse"), {"sex": ("f", "m")}), mean=(0.0, 0.0), std=(1.0, 1.0))
    with pytest.raises(BadData, match=r"needs a column 'pulse'.*Also missing: 'sex'"):
        Pipeline(fitted).encode(pd.DataFrame({"age": [3.0]}))
    with pytest.raises(BadData, match="the recipe is not fitted"):
        Pipeline(Recipe(("age",))).encode(pd.DataFrame({"age": [3.0]}))


@pytest.mark.parametrize(
    "change",
    [
        {"target": [0.0]},
        {"target": [0.0, 0.0]},
        {"threshold": 2},
        {"labels": "ab"},
        {"recipe": {"numbers": ["a"], "mean": [1.0, 2.0], "std": [1.0, 1.0]}},
        {"recipe": {"numbers": ["a"], "code": "x"}},
        {"recipe": {"numbers": 3}},
        {"recipe": {"numbers": "a", "mean": [1.0], "std": [1.0]}},
        {"recipe": {"numbers": ["a"], "mean": [10**400], "std": [1.0]}},
        {"recipe": {"numbers": ["a"], "mean": ["1"], "std": [1.0]}},
        {"recipe": {"numbers": ["a"], "limits": [1, 2]}},
        {"recipe": {"numbers": ["a"], "limits": {"a": [1.0]}}},
        {"recipe": {"numbers": ["a"], "limits": {"a": [2.0, 1.0]}}},
        {"recipe": {"numbers": ["a"], "knots": {"a": [1.0, 2.0]}}},
        {"recipe": {"categories": {"a": "xyz"}}},
        {"recipe": {"dates": {"a": [["year"]]}}},
        {"target": [10**400, 1.0]},
        {"more": 1},
    ],
)
def test_a_pipeline_file_with_other_values_is_refused(change):
    good = Pipeline(Recipe(("a",), mean=(0.0,), std=(1.0,)), "y", ("n", "p")).to_dict()
    assert Pipeline.from_dict(good).label == "y"
    with pytest.raises(BadData):
        Pipeline.from_dict({**good, **change})


def test_sums_of_rows_are_exact_and_carried():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3)) * 10.0 ** rng.integers(-6, 9, (500, 3))
    one = exact.encode_sum(rows)
    assert np.abs(one).max() <= exact.BOUND
    parts = np.sum([exact.encode_sum(rows[k::7]) for k in range(7)], axis=0)
    assert np.array_equal(exact.decode(one), exact.decode(parts))
    import math

    assert exact.decode(one).tolist() == [math.fsum(column) for column in rows.T]


def test_the_pipelines_program_is_the_recipes_with_the_target(hospitals):
    program = PipelinePreparation(Pipeline(Recipe(("age",)), "chol"))
    fitted = ideal(program, hospitals)
    values = known(hospitals, "age", "chol")
    assert fitted.target == pytest.approx((values[:, 1].mean(), values[:, 1].std()), rel=1e-9)
    assert fitted.recipe.numeric == ("age",)


def test_label_counts_are_summed_in_the_first_step_where_they_are_asked_for(hospitals):
    named = {
        name: t.assign(ill=np.where(np.arange(len(t)) % (k + 2) == 0, "yes", "no"))
        for k, (name, t) in enumerate(hospitals.items())
    }
    unfitted = Pipeline(Recipe(("age",)), "ill", ("no", "yes"))
    plain, program = PipelinePreparation(unfitted), PipelinePreparation(unfitted, counts_labels=True)
    fitted, pooled = ideal(program, named), pd.concat(named.values())
    assert fitted.label_counts == tuple((pooled["ill"] == label).sum() for label in ("no", "yes"))
    assert replace(fitted, label_counts=()) == ideal(plain, named)
    assert program.max_steps == plain.max_steps
    assert Pipeline.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted
    table = pd.DataFrame({"age": [1.0, 2.0], "ill": ["no", "perhaps"]})
    with pytest.raises(BadData, match="not among its agreed labels"):
        program.local(0, table, {})


def test_a_regression_clips_far_beyond_the_quantiles_and_scales_as_scikit_learn(census):
    """Limits: m ± 24·(q99 − q1)/2 for m = (q1 + q99)/2, with the quantiles by pandas. Mean and deviation are
    those of all values, or those of the clipped ones where the deviation is 4 times as large (the Cauchy
    rates). What the parties are sent, and so what their sums show, is the same as for a classification.
    """
    tables = {k: t.assign(cost=t["gain"] * 2.0 + 1) for k, t in census.items()}
    recipe = Recipe(("age", "gain", "rate"), missing=("age",))
    narrow = ideal(Preparation(recipe), tables)
    fitted = ideal(PipelinePreparation(Pipeline(recipe, "cost")), tables).recipe
    rate = pd.concat(tables.values())["rate"]
    low, high = (rate.quantile(q, interpolation="lower") for q in (0.01, 0.99))
    middle, half = (low + high) / 2, 24 * (high - low) / 2
    assert list(fitted.limits) == list(narrow.limits) == ["gain", "rate"]
    assert np.allclose(fitted.limits["rate"], (middle - half, middle + half), rtol=2.0**-13, atol=0)
    pooled = pd.concat(tables.values())[["age", "gain", "rate"]]
    peer = StandardScaler().fit(pooled.to_numpy())
    assert (peer.scale_ > 4 * np.array(narrow.std)).tolist() == [False, False, True]
    assert np.allclose(fitted.mean, [*peer.mean_[:2], narrow.mean[2]], rtol=1e-9, atol=0)
    assert np.allclose(fitted.std, [*peer.scale_[:2], narrow.std[2]], rtol=1e-9, atol=0)
    assert fitted.std[1] > 1.05 * narrow.std[1]
    one, other = sent(Preparation(recipe, is_regression=True), tables), sent(Preparation(recipe), tables)
    assert one == other
    new = fitted.transform(pd.DataFrame({"age": [40.0], "gain": [0.0], "rate": [1e30]}))
    assert new[0, 2] == pytest.approx((fitted.limits["rate"][1] - fitted.mean[2]) / fitted.std[2])
    always = PipelinePreparation(Pipeline(replace(recipe, winsorize="always"), "cost"))
    assert ideal(always, tables).recipe.limits["rate"] == narrow.limits["rate"]


def test_the_pipeline_of_an_earlier_run_clips_where_its_file_says(census):
    """Before version 0.7, a regression was clipped to the quantiles."""
    narrow = ideal(Preparation(Recipe(("rate",))), census)
    file = json.dumps(Pipeline(narrow, "cost", target=(5.0, 2.0)).to_dict())
    earlier = Pipeline.from_dict(json.loads(file))
    high = narrow.limits["rate"][1]
    assert earlier.encode(pd.DataFrame({"rate": [high, 100 * high]})).unique().tolist() == pytest.approx(
        [(high - narrow.mean[0]) / narrow.std[0]]
    )


def sent(program: Preparation, tables: dict[str, pd.DataFrame]) -> list[dict[str, list[float]]]:
    """What parties are sent in each step."""
    steps, out = program.coordinate(), []
    down = next(steps)
    while True:
        out.append({key: values.tolist() for key, values in down.items()})
        try:
            down = steps.send(sum(program.local(len(out) - 1, table, down) for table in tables.values()))
        except StopIteration:
            return out


def test_a_server_cannot_have_numbers_of_a_regression_clipped_at_the_far_limits(census):
    """Their sum, less that of all numbers, is the excess of the one value that may be beyond."""
    program = PipelinePreparation(Pipeline(Recipe(("rate",)), "gain"))
    limits = ideal(program, census).recipe.limits["rate"]
    down = sent(program.inner, census)[3]
    far = down | {"low": [limits[0], -INF], "high": [limits[1], INF]}
    for asked, is_answered in ((down, True), (far, False)):
        message = vectors(**asked)
        if is_answered:
            assert len(program.local(3, census["nurse"], message))
            continue
        with pytest.raises(BadData, match="the limits of 'rate' do not follow from its quantiles"):
            program.local(3, census["nurse"], message)


def test_the_outcome_of_a_regression_may_follow_the_largest_values():
    """R² of rows that no party trains on, within 0.005 of scikit-learn. With numbers clipped to their
    quantiles, as classifications do, it is below 0.8: the few rows beyond have most of the variance.
    """
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.lognormal(3, 1.5, 400).round(2), "age": rng.normal(50, 9, 400).round()})
    frame["cost"] = 2 * frame["size"] + rng.normal(0, 40, 400)
    train, test = frame[:300].reset_index(drop=True), frame[300:]
    parties = {"a": train[:180].reset_index(drop=True), "b": train[180:].reset_index(drop=True)}
    columns = ["size", "age"]
    peer = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 8))).fit(train[columns], train["cost"])
    scores = {}
    for how in ("auto", "none", "always"):
        fed = data.from_frames(
            parties, label="cost", regression=True, winsorize=how, test_fraction=0.0, held_fraction=0.0
        )
        scores[how] = r2_score(test["cost"], tacit.train(fed).predict(test[columns])["prediction"])
        notes = [note for note in fed.notes if "heavy tails" in note]
        assert len(notes) == (how == "auto")
        if notes:
            assert "Numbers with heavy tails: 'size'. A regression clips gross errors only" in notes[0]
    best = peer.score(test[columns], test["cost"])
    assert best > 0.9
    assert scores["auto"] == pytest.approx(scores["none"], abs=1e-3)
    assert scores["auto"] > best - 0.005
    assert scores["always"] < 0.8


@pytest.mark.parametrize(("kind", "least"), [("linear", 0.45), ("mlp", 0.9)])
def test_three_cells_in_another_unit_do_not_destroy_a_regression(kind, least):
    """Three of 2,000 training rows are 10,000 times too large. R² of scikit-learn's ridge is 0.30."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2500, 3))
    y = x @ [2.0, 1.0, -1.0] + 0.5 * rng.normal(size=2500)
    frame = pd.DataFrame(x, columns=list("abc")).assign(y=y)
    train, test = frame[:2000].reset_index(drop=True), frame[2000:]
    train.loc[[5, 805, 1905], "a"] *= 10_000
    parties = {str(k): train[k::4].reset_index(drop=True) for k in range(4)}
    fed = data.from_frames(parties, label="y", regression=True, test_fraction=0.0)
    run = tacit.train(fed, model=kind, seed=1)
    assert r2_score(test["y"], run.predict(test[list("abc")])["prediction"]) > least
    peer = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 8))).fit(train[list("abc")], train["y"])
    assert peer.score(test[list("abc")], test["y"]) < 0.35
