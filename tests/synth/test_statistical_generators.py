"""Copula, tree of columns and sequential trees, each compared with its paper."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from tacit import synth
from tacit.errors import BadData
from tacit.synth import bayes, cart
from tacit.synth.encode import Conditions, Discretizer, Layout, uniforms, uniforms_within


def normals(n: int = 1000, rho: float = 0.5, seed: int = 0) -> pd.DataFrame:
    """The published small study: two correlated normals and an independent category."""
    rng = np.random.default_rng(seed)
    xy = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n)
    return pd.DataFrame(
        {"x": xy[:, 0], "y": xy[:, 1], "c": rng.choice(list("abcde"), n, p=[0.3, 0.2, 0.4, 0.07, 0.03])}
    )


def ks(a: pd.Series, b: pd.Series) -> float:
    p, q = np.sort(a), np.sort(b)
    at = np.concatenate([p, q])
    return float(
        np.abs(np.searchsorted(p, at, "right") / len(p) - np.searchsorted(q, at, "right") / len(q)).max()
    )


def tv(a: pd.Series, b: pd.Series) -> float:
    return float(
        a.value_counts(normalize=True).sub(b.value_counts(normalize=True), fill_value=0).abs().sum() / 2
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("generator", [synth.GaussianCopula(), synth.Cart()], ids=lambda g: type(g).__name__)
def test_the_first_small_study_is_reached(generator, seed):
    """Published: 0.94, 0.887, 0.773. A correlation of 1,000 rows has a standard error of 0.024; ours is drawn
    once, so 0.1 is four of them.
    """
    real = normals(seed=seed)
    made = generator.fit(real, floor=1).sample(1000, seed=seed)
    assert 1 - ks(real["x"], made["x"]) >= 0.96
    assert 1 - ks(real["y"], made["y"]) >= 0.96
    assert 1 - tv(real["c"], made["c"]) >= 0.96
    assert abs(real["x"].corr(real["y"]) - made["x"].corr(made["y"])) <= 0.1


@pytest.mark.parametrize("generator", [synth.GaussianCopula(), synth.Cart()], ids=lambda g: type(g).__name__)
def test_the_first_small_study_as_the_documentation_prints_it(generator):
    """`benchmarks/synth.py --small`, to the seed: all three at least .96, and the correlation within .05,
    about two standard errors of 1,000 rows.
    """
    real = normals(seed=0)
    made = generator.fit(real, floor=1).sample(1000)
    assert (
        min(1 - ks(real["x"], made["x"]), 1 - ks(real["y"], made["y"]), 1 - tv(real["c"], made["c"])) >= 0.96
    )
    assert abs(real["x"].corr(real["y"]) - made["x"].corr(made["y"])) <= 0.05


@pytest.mark.parametrize(
    "generator", [synth.GaussianCopula(), synth.Cart(), synth.Bayes()], ids=lambda g: type(g).__name__
)
def test_the_second_small_study_is_reached(generator):
    """Published for Iris: 0.91, 0.85, 0.89, 0.80 and 0.96."""
    from sklearn.datasets import load_iris

    flowers = load_iris(as_frame=True)
    real = flowers.data.assign(species=[str(flowers.target_names[k]) for k in flowers.target])
    made = generator.fit(real, floor=1).sample(150)
    assert all(1 - ks(real[c], made[c]) >= 0.95 for c in flowers.data)
    assert 1 - tv(real["species"], made["species"]) >= 0.95


@pytest.mark.parametrize("rho", [-0.9, -0.3, 0.0, 0.6, 0.95])
def test_the_copula_finds_the_correlation_of_normals(rho):
    """Of 20,000 rows, twice: the standard error is below 0.01, and 0.05 is five of them."""
    made = synth.GaussianCopula().fit(normals(20_000, rho)).sample(20_000)
    assert abs(made["x"].corr(made["y"]) - rho) < 0.05


def test_the_copula_finds_latent_correlation_through_coarse_categories():
    """Five levels cut from each normal hide a third of the dependence from their ranks; the joint table must
    still be the real one.
    """
    real = normals(20_000, 0.7)
    levels = pd.DataFrame(
        {
            k: pd.Categorical(pd.cut(real[k], [-9, -1, -0.3, 0.3, 1, 9], labels=list("abcde")), ordered=True)
            for k in ("x", "y")
        }
    )
    made = synth.GaussianCopula().fit(levels).sample(20_000)
    joint = [pd.crosstab(f["x"].astype(str), f["y"].astype(str), normalize=True) for f in (levels, made)]
    # two tables of 25 cells from 20,000 rows differ by about 0.02 by chance
    assert (joint[0] - joint[1]).abs().to_numpy().sum() / 2 < 0.04


def chain(n: int = 4000) -> pd.DataFrame:
    """c depends on b, b on a, d on nothing."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, n)
    b = np.where(rng.random(n) < 0.8, a, rng.integers(0, 3, n))
    c = np.where(rng.random(n) < 0.8, b, rng.integers(0, 3, n))
    return pd.DataFrame(
        {
            "a": [f"a{i}" for i in a],
            "b": [f"b{i}" for i in b],
            "c": [f"c{i}" for i in c],
            "d": rng.choice(list("xy"), n),
        }
    )


def test_the_tree_is_the_chain_the_rows_came_from():
    frame = chain()
    table = synth.Table.infer(frame)
    codes = table.to_numbers(frame).astype(int)
    order, parent = bayes.fit_tree(codes, [3, 3, 3, 2])
    edges = {frozenset((i, p)) for i, p in enumerate(parent) if p >= 0}
    assert {frozenset((0, 1)), frozenset((1, 2))} <= edges
    assert len(edges) == 3
    assert order[0] == 0


def test_mutual_information_by_hand():
    """Two fair coins that always agree: log 2, less (2−1)(2−1)/(2·8) for chance."""
    assert bayes.mutual_information(np.array([[4.0, 0], [0, 4.0]])) == pytest.approx(np.log(2) - 1 / 16)


def test_conditions_go_through_the_tree_exactly():
    """P(a | c = c1, d = x), from the tables by brute force, and from 50,000 draws: five standard errors are 0.011. No draw is in vain."""
    frame = chain()
    fitted = synth.Bayes(even=False).fit(frame)
    layout, t = Layout(fitted.table), fitted.state.tensors
    cells = Discretizer.from_tensors(layout.variables, t)
    order, parent = t["order"].tolist(), t["parent"].tolist()
    weight = np.zeros(3)
    for row in product(*(range(s) for s in cells.sizes)):
        if row[2] == 1 and row[3] == 0:
            p = 1.0
            for i in order:
                share = t[f"share.{i}"].numpy()
                p *= share[row[i]] if parent[i] < 0 else share[row[parent[i]], row[i]]
            weight[row[0]] += p
    conditions = Conditions.parse(fitted.table, {"c": "c1", "d": "x"})
    v = fitted.draw(fitted.state, layout, 50_000, np.random.default_rng(0), conditions)
    assert (v[:, 2] == 1).all()
    assert (v[:, 3] == 0).all()
    assert np.bincount(v[:, 0].astype(int), minlength=3) / 50_000 == pytest.approx(
        weight / weight.sum(), abs=0.011
    )


def repeated(n: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 12, n)
    return pd.DataFrame(
        {
            "a": a.astype(str),
            "b": ((a * 5 + rng.integers(0, 3, n)) % 12).astype(str),
            "c": rng.integers(0, 40, n).astype(str),
            "d": ((a + rng.integers(0, 2, n)) % 9).astype(str),
            "e": rng.integers(0, 6, n).astype(str),
        }
    )


def test_natural_and_copy_rates_by_hand():
    rows = np.array([[1.0, 2], [1, 2], [3, 4], [5, np.nan]])
    assert cart.natural_rate(rows) == 0.5
    assert cart.copy_rate(rows, np.array([[3.0, 4], [5, np.nan], [0, 0], [1, 4]])) == 0.5


@pytest.mark.parametrize("leaf", [1, 5])
def test_trees_with_small_leaves_are_kept_from_copying(leaf):
    """Without the guard more than twice as many rows are copies as a fresh sample of the population would
    have; with it, no more.
    """
    both = repeated(6000)
    train, holdout = both.iloc[:3000].reset_index(drop=True), both.iloc[3000:].reset_index(drop=True)
    table = synth.Table.infer(both, columns=dict.fromkeys(both, "categorical"))
    x, fresh = table.to_numbers(train), table.to_numbers(holdout)
    natural = cart.copy_rate(x, fresh)
    free = synth.Cart(leaf=leaf, copies=None).fit(train, table)
    guarded = synth.Cart(leaf=leaf).fit(train, table)
    rates = [cart.copy_rate(x, table.to_numbers(f.sample(6000, seed=9))) for f in (free, guarded)]
    assert guarded.history[-1]["copies"] <= 2 * guarded.history[-1]["natural"]
    assert (
        rates[1] <= 2.1 * natural
    )  # the probe and this sample are two draws: 0.1 covers three standard errors of their rates
    assert guarded.history[-1]["leaf"] >= leaf
    assert rates[0] >= rates[1]


def test_the_guard_enlarges_leaves_if_rows_are_memorized():
    """400 rows of 5,000 kinds, five columns of 12 values: three columns identify a row, so leaves of one row repeat it
    completely.
    """
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        rng.integers(0, 12, (5000, 5))[rng.integers(0, 5000, 400)], columns=list("abcde")
    ).astype(str)
    table = synth.Table.infer(frame, columns=dict.fromkeys(frame, "categorical"))
    free, guarded = synth.Cart(leaf=1, copies=None).fit(frame, table), synth.Cart(leaf=1).fit(frame, table)
    assert free.history[0]["copies"] > 5 * free.history[0]["natural"]
    assert guarded.history[-1]["leaf"] > 1
    assert guarded.history[-1]["copies"] <= 2 * guarded.history[-1]["natural"]
    x = table.to_numbers(frame)
    assert cart.copy_rate(x, table.to_numbers(guarded.sample(4000, seed=5))) <= 2.5 * cart.natural_rate(x)


def test_a_table_that_can_only_be_copied_is_refused():
    frame = pd.DataFrame({"a": list("xyxy"), "b": list("ppqq")})
    with pytest.raises(
        BadData, match=r"Cart: even with one leaf per column, 100\.0% of the rows are copies of training rows"
    ):
        synth.Cart(copies=0.5).fit(frame, floor=1)


def test_sequential_trees_follow_dependence_that_correlation_cannot_show():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 4000)
    real = pd.DataFrame({"x": x, "y": x**2 + 0.05 * rng.normal(size=4000)})
    made = synth.Cart().fit(real).sample(4000)
    assert (made["y"] - made["x"] ** 2).std() < 0.1  # 0.05 in the real table; 0.3 for independent columns


def test_even_draws_are_uniform_and_evener_than_chance():
    rng = np.random.default_rng(0)
    even, plain = uniforms(1000, rng, True), uniforms(1000, rng, False)
    assert np.array_equal(np.sort((even * 1000).astype(int)), np.arange(1000))
    assert len(np.unique((plain * 1000).astype(int))) < 700  # about 632 of 1,000 cells are hit by chance
    groups = rng.integers(0, 5, 1000)
    u = uniforms_within(groups, rng, True)
    for g in range(5):
        mine = u[groups == g]
        assert np.array_equal(np.sort((mine * len(mine)).astype(int)), np.arange(len(mine)))


@pytest.mark.parametrize("rows", [150, 500])
def test_trees_copy_no_more_than_fresh_rows_do_in_small_tables_either(rows):
    """Held against 20,000 fresh rows, over five tables: on average, and each but for the error of what a
    small table says about itself (a factor of 1.5).
    """
    everything = repeated(25_000)
    table = synth.Table.infer(everything, columns=dict.fromkeys(everything, "categorical"))
    x = table.to_numbers(everything)
    ratios = []
    for seed in range(5):
        mixed = np.random.default_rng(seed).permutation(len(x))
        mine, fresh = mixed[:rows], mixed[rows : rows + 20_000]
        made = (
            synth.Cart(seed=seed)
            .fit(everything.iloc[mine].reset_index(drop=True), table, floor=1)
            .sample(10_000, seed=seed)
        )
        ratios.append(cart.copy_rate(x[mine], table.to_numbers(made)) / cart.copy_rate(x[mine], x[fresh]))
    assert np.mean(ratios) <= 2
    assert max(ratios) <= 3
