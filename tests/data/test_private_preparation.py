"""Preparation with an ε: noisy sums, declared bounds, a line in the ledger."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import data
from tacit.accounting import discrete
from tacit.data.pipeline import Pipeline
from tacit.data.private_preparation import SCALE, PrivatePreparation
from tacit.data.recipe import Recipe
from tacit.errors import BadParameter
from tacit.jobs.train.party_rows import read_party_table
from tacit.protocols.sum_program import ideal


def people(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 12, n).round(),
            "sex": rng.choice(["f", "m"], n),
            "site": rng.choice(["a", "b"], n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )


RECIPE = Recipe(("age",), {"sex": ("f", "m", "other")})
PROGRAM = PrivatePreparation(Pipeline(RECIPE, "ill", ("no", "yes")), 1.0, 1e-6, {"age": (0, 120)})


def test_the_statistics_are_close_to_those_without_noise():
    """σ/Δ is 12 at each party: 30,000 rows give the mean a noise of σ = 0.07 years, the deviation 0.4.

    The bounds are 6 σ, and more: false alarms have a probability below 1e-8.
    """
    frame = people(30_000)
    fitted = ideal(replace(PROGRAM, parties=2), dict(iter(frame.groupby("site")))).recipe
    assert fitted.mean[0] == pytest.approx(frame["age"].mean(), abs=0.6)
    assert fitted.std[0] == pytest.approx(frame["age"].std(), abs=3)
    assert fitted.limits == {"age": (0.0, 120.0)}
    assert fitted.rare["sex"] == ("other",)  # nobody has it, and noise alone is below 6 σ


def coordinate(program: PrivatePreparation, counts: list[float]) -> Recipe:
    """The result for a sum in which `sex` has these counts, and the age is that of 50,000 people."""
    steps = program.coordinate()
    next(steps)
    total = [50_000, 50_000, 20_000 * SCALE, 10_000 * SCALE, 0, *map(round, counts)]
    with pytest.raises(StopIteration) as end:
        steps.send(np.array(total, dtype=np.int64))
    return end.value.value.recipe


@pytest.mark.parametrize("parties", [1, 2, 25, 400])
def test_a_category_of_noise_alone_is_rare_however_many_parties_add_noise(parties: int):
    """The noise of a count is multiplier·√parties, of k counts together multiplier·√(k·parties)."""
    program = replace(PROGRAM, parties=parties)
    sigma = program.multiplier * math.sqrt(parties)
    noise, kept = 10 + 5.9 * sigma, 10 + 6.1 * sigma
    assert coordinate(program, [kept, kept, kept]).rare["sex"] == ()
    assert coordinate(program, [kept, noise, -noise]).rare["sex"] == ("m", "other")
    # two counts together: below 10 + 6·√2·σ they are noise
    assert coordinate(program, [kept, noise, 2.4 * sigma]).rare["sex"] == ("m", "other")
    assert coordinate(program, [kept, noise, 2.7 * sigma]).rare["sex"] == ("m",)


def test_the_noise_has_the_declared_variance():
    """40 draws of 8 numbers: χ² of the variance of each with 39 degrees of freedom, of all with 312; false
    alarms below 1e-8. Noise of half the σ never passes.
    """
    table = people(20)
    exact = PROGRAM.count(table)
    off = np.stack([PROGRAM.local(0, table, {}) - exact for _ in range(40)])
    expected = np.repeat([c for n, c in PROGRAM.blocks], [n for n, _ in PROGRAM.blocks]) * PROGRAM.multiplier
    ratio = off.var(axis=0, ddof=1) / expected**2
    assert len(ratio) == 8
    assert ((ratio > 0.11) & (ratio < 3.3)).all()
    assert 0.57 < ratio.mean() < 1.6
    rho = sum(1 / (2 * PROGRAM.multiplier**2) for _ in PROGRAM.blocks)
    assert discrete.epsilon_of(rho, 1e-6) == pytest.approx(1.0, rel=1e-3)


def test_one_row_changes_each_statistic_by_no_more_than_is_declared():
    table = people(50)
    wild = pd.DataFrame({"age": [1e9], "sex": ["?"], "site": ["a"], "ill": ["no"]})
    without = PROGRAM.count(table)
    for row in (wild, wild.assign(age=-1e9), wild.assign(age=None)):
        change = np.abs(PROGRAM.count(pd.concat([table, row.astype({"age": float})])) - without)
        at = 0
        for n, most in PROGRAM.blocks:
            assert math.sqrt(float((change[at : at + n] ** 2).sum())) <= most
            at += n
    assert PROGRAM.blocks[2] == (1, SCALE)


def test_the_ledger_has_the_epsilon_of_the_preparation():
    fed = data.from_frame(
        people(600), label="ill", fit=RECIPE, groups=["site"], fit_epsilon=2.0, bounds={"age": [0, 120]}
    ).by("site")
    run = tacit.train(fed, model="logistic", rounds=1)
    (line,) = [s for s in run.ledger.spent if s.mechanism.startswith("preparation")]
    assert (line.epsilon, line.delta, line.unit) == (2.0, 1e-6, "one row")
    assert run.ledger.stamps == []


def private_sides(frame: pd.DataFrame, **options) -> tuple[pd.Series, data.Federation]:
    """Return on which side each row of a simulation is, by its content."""
    table = data.from_frame(
        frame, label="ill", fit=RECIPE, groups=["site"], fit_epsilon=2.0, bounds={"age": [0, 120]}, **options
    )
    fed = table.by("site", held_fraction=0.3)
    rows = table.table.frame
    side = pd.Series("train", index=rows.index)
    side.iloc[fed.held.index.numpy()] = "held"
    both = pd.concat([rows.assign(side=side), table.table.test.assign(side="test")])
    return both.set_index([c for c in both if c != "side"])["side"], fed


@pytest.mark.parametrize("group", ["", "patient"])
def test_with_an_epsilon_a_row_of_a_simulation_moves_no_other_to_another_side(group):
    """Before, the sides followed from one random order of all rows."""
    frame = people(600)
    frame["age"] += np.arange(600) / 1000  # no two rows are equal
    options = {"group": group} if group else {"drop": ["patient"]}
    frame["patient"] = np.arange(600) // 3
    whole, fed = private_sides(frame, **options)
    fewer, _ = private_sides(frame.iloc[3:], **options)
    assert set(whole) == {"train", "held", "test"}
    assert 90 < len(fed.held.index) < 220
    assert (
        fewer.equals(whole.loc[fewer.index])
        or (fewer.sort_index() == whole.loc[fewer.index].sort_index()).all()
    )
    if group:
        assert (whole.reset_index().groupby("patient")["side"].nunique() == 1).all()


def test_a_simulation_with_an_epsilon_holds_out_what_the_real_party_does(tmp_path):
    frame = people(400)
    frame["age"] += np.arange(400) / 1000
    _, fed = private_sides(frame, test_fraction=0.0)
    for k, site in enumerate(fed.parties):
        own = frame[frame["site"] == site].reset_index(drop=True)
        own.to_csv(tmp_path / f"{site}.csv", index=False)
        layout = {"label": "ill", "labels": ["no", "yes"], "numbers": ["age"], "held_fraction": 0.3}
        layout |= {
            "categories": {"sex": ["f", "m", "other"]},
            "fit_epsilon": 2.0,
            "bounds": {"age": [0, 120]},
        }
        theirs = read_party_table(site, tmp_path / f"{site}.csv", layout, 0)
        assert own["age"][theirs.held.numpy()].tolist() == frame["age"][fed.held.of(k).numpy()].tolist()


@pytest.mark.parametrize(
    ("fit", "is_exact"),
    [
        ("federated", True),
        ("pooled", True),
        ("party", True),
        ("none", False),
        (replace(RECIPE, mean=(50.0,), std=(20.0,)), False),
    ],
    ids=["federated", "pooled", "party", "none", "declared"],
)
def test_an_epsilon_that_does_not_cover_the_statistics_says_so(fit, is_exact):
    fed = data.from_frame(people(300), label="ill", fit=fit, groups=["site"]).by("site")
    run = tacit.train(fed, model="logistic", rounds=1, private=tacit.private.DPSGD(epsilon=3.0, delta=1e-3))
    assert any("ε does not cover the statistics" in stamp for stamp in run.ledger.stamps) is is_exact


def test_a_variance_below_the_noise_does_not_make_a_column_huge():
    """n = 500 of which all are 60 in [0, 120]: the sums are exact here, but noise of σ·√parties is expected."""
    program = replace(PROGRAM, parties=3)
    steps = program.coordinate()
    next(steps)
    total = [500, 500, 250 * SCALE, 125 * SCALE, 0, 250, 250, 0]
    with pytest.raises(StopIteration) as end:
        steps.send(np.array(total, dtype=np.int64))
    noise = program.multiplier * math.sqrt(3 * (1 + 4 * 0.5**2)) / 500  # of E[x²] − E[x]², on [0, 1]
    assert end.value.value.recipe.std[0] == pytest.approx(120 * math.sqrt(noise))


def test_bounds_of_a_column_that_is_no_number_are_refused():
    with pytest.raises(BadParameter, match=r"bounds has 'aeg', which is not a number.*'age'"):
        replace(PROGRAM, bounds={"age": (0, 120), "aeg": (0, 1)}).check()


def test_bounds_must_be_declared_and_all_problems_are_named():
    made = data.from_frame(people(100), label="ill", groups=["site"], fit_epsilon=1.0)
    with pytest.raises(BadParameter, match=r"every number needs declared bounds, and 'age' has none"):
        made.by("site")
    with pytest.raises(BadParameter) as caught:
        PrivatePreparation(PROGRAM.pipeline, -1.0, 2.0, {"age": (5, 5)}).check()
    assert len(str(caught.value).splitlines()) == 3
    with pytest.raises(BadParameter, match="fit_epsilon is of fit='federated'"):
        data.from_frame(people(100), label="ill", fit="party", fit_epsilon=1.0)
