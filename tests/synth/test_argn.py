"""The autoregressive network against brute force, and what one fitted model can be asked for."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from tacit import synth
from tacit.errors import BadData, BadParameter
from tacit.synth import argn
from tacit.synth.argn import _draw_cells
from tacit.synth.autoregressive import (
    CellSampler,
    ColumnNetwork,
    NetworkTrainer,
    draw_first,
    equalize,
    pick,
    resample,
    visible_columns,
)
from tacit.synth.conformance import CITIES, example
from tacit.synth.encode import Conditions

SIZES = [3, 4, 2]
ROWS = np.array(list(itertools.product(*map(range, SIZES))))


def network(seed: int = 0) -> ColumnNetwork:
    """Weights far from those of a new network, so that columns depend on each other."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = ColumnNetwork(SIZES, embedding=5, width=16).eval()
        for p in made.parameters():
            torch.nn.init.normal_(p, std=0.7)
    return made


def patients(n: int = 1500, seed: int = 0) -> pd.DataFrame:
    """`odd` is the exclusive or of two coins; pay depends on sex and age; one column is determined by another."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, n), rng.integers(0, 2, n)
    sex = rng.choice(["F", "M"], n)
    age = rng.integers(20, 70, n)
    city = rng.choice(list(CITIES), n)
    return pd.DataFrame(
        {
            "a": np.where(a, "heads", "tails"),
            "b": np.where(b, "heads", "tails"),
            "odd": np.where(a ^ b, "yes", "no"),
            "sex": sex,
            "age": age,
            "pay": np.where(rng.random(n) < 0.2 + 0.4 * (sex == "M") + 0.004 * (age - 20), "high", "low"),
            "city": city,
            "country": [CITIES[c] for c in city],
        }
    )


@pytest.fixture(scope="module")
def fitted() -> synth.ARGN:
    return synth.ARGN(epochs=40, width=32, batch=64, lr=0.005, device="cpu").fit(patients())


def test_columns_that_come_first_see_each_other_and_are_seen_by_all_others():
    """Columns 1 and 3 first: 1 sees none, 3 sees 1, 0 sees both, 2 sees those and 0."""
    seen = visible_columns(np.array([False, True, False, True]))
    assert seen.astype(int).tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 0, 0]]


def test_rows_in_two_orders_have_the_losses_and_gradients_of_each_order_alone():
    """The fast product over all first layers against the layers one by one, with an ordered column."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one = ColumnNetwork(SIZES, embedding=5, width=16, ordered=[0, 4, 0]).double().eval()
    rows = torch.from_numpy(ROWS)
    orders = [torch.from_numpy(visible_columns(np.array(f, dtype=bool))) for f in ([0, 0, 0], [0, 1, 1])]
    parts = [(rows[:7], orders[0]), (rows[7:], orders[1])]
    alone = torch.cat([one(codes, visible) for codes, visible in parts])
    together = one.forward_parts(parts)
    assert torch.allclose(together, alone, atol=1e-12)
    expected = torch.autograd.grad(alone.sum(), list(one.parameters()))
    for a, b in zip(torch.autograd.grad(together.sum(), list(one.parameters())), expected):
        assert torch.allclose(a, b, atol=1e-12)


def test_some_columns_come_first_but_never_all_of_several():
    rng = np.random.default_rng(0)
    numbers = {int(draw_first(4, rng).sum()) for _ in range(200)}
    assert numbers == {1, 2, 3}
    assert draw_first(1, rng).tolist() == [True]


@pytest.mark.parametrize("first", list(itertools.product([False, True], repeat=3)))
def test_the_probabilities_of_all_rows_sum_to_one_in_every_order(first):
    with torch.no_grad():
        loss = network()(torch.from_numpy(ROWS), torch.from_numpy(visible_columns(np.array(first))))
    assert float(torch.exp(-loss).sum()) == pytest.approx(1, abs=1e-5)


def test_filling_column_by_column_uses_the_probabilities_of_the_loss():
    net, order = network(), [1, 0, 2]
    sampler = CellSampler(net, np.zeros_like(ROWS), np.zeros(ROWS.shape, dtype=bool))
    total = np.zeros(len(ROWS))
    for i in order:
        total += sampler.log_shares(i, np.arange(len(ROWS)))[np.arange(len(ROWS)), ROWS[:, i]]
        sampler.set_cells(i, np.arange(len(ROWS)), ROWS[:, i])
    with torch.no_grad():
        loss = net(torch.from_numpy(ROWS), torch.from_numpy(visible_columns(np.array([False, True, False]))))
    assert total == pytest.approx(-loss.numpy(), abs=1e-5)


@pytest.mark.parametrize("even", [False, True])
def test_rows_under_two_conditions_have_their_conditional_distribution(even):
    """Column 0 in {0, 2} and column 1 in {1, 3}: the joint distribution of the network, cut and normalized.

    20,000 rows; with this seed the largest of the 8 differences is below .015 (a standard error is at most .0035;
    resampling adds to it).
    """
    net, allowed = network(), [np.array([1, 0, 1]) > 0, np.array([0, 1, 0, 1]) > 0, np.ones(2, dtype=bool)]
    drawn = _draw_cells(
        net, 20_000, np.random.default_rng(0), even, allowed, None, None, Conditions({}, {}, {})
    )
    with torch.no_grad():
        loss = net(torch.from_numpy(ROWS), torch.from_numpy(visible_columns(np.array([True, True, False]))))
    p = np.exp(-loss.numpy()) * allowed[0][ROWS[:, 0]] * allowed[1][ROWS[:, 1]]
    share = np.array([(drawn == row).all(axis=1).mean() for row in ROWS])
    assert share == pytest.approx(p / p.sum(), abs=0.02)


def test_a_stratified_draw_has_the_expected_counts_of_equal_rows():
    """640 rows with shares ½, ¼, ¼: strata of 64 contain 32, 16 and 16 up to one."""
    log_p = np.log(np.tile([0.5, 0.25, 0.25], (640, 1)))
    counts = np.bincount(pick(log_p, np.random.default_rng(0), even=True))
    assert np.abs(counts - [320, 160, 160]).max() <= 10


def test_a_cell_that_is_not_allowed_is_never_drawn():
    log_p = np.tile([0.0, -np.inf, -40.0, -np.inf], (5000, 1))
    for even in (False, True):
        assert set(pick(log_p, np.random.default_rng(0), even)) == {0}


def test_resampling_is_proportional_to_the_weights():
    """Systematic: 100 draws by the shares .1, .2 and .7 are 10, 20 and 70 up to one."""
    drawn = resample(np.log([0.1, 0.2, 0.7]), 100, np.random.default_rng(0))
    assert np.abs(np.bincount(drawn) - [10, 20, 70]).max() <= 1


def test_equalized_groups_have_one_distribution_and_keep_the_order_within():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3)) + np.repeat([[0, 0, 0], [2.0, -1, 0]], 100, axis=0)
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    groups = np.repeat([0, 1], 100)
    out = equalize(log_p, groups)
    means = [np.exp(out[groups == g]).mean(axis=0) for g in (0, 1)]
    assert means[0] == pytest.approx(means[1], abs=1e-5)
    assert means[0] == pytest.approx(np.exp(log_p).mean(axis=0), abs=1e-5)
    odds_before, odds_after = (x[:, 0] - x[:, 1] for x in (log_p, out))
    for g in (0, 1):
        assert (np.argsort(odds_before[groups == g]) == np.argsort(odds_after[groups == g])).all()


def test_it_learns_what_no_pair_of_columns_shows(fitted):
    made = fitted.sample(2000, seed=1)
    right = ((made["a"] != made["b"]) == (made["odd"] == "yes")).mean()
    assert right > 0.9  # independent columns: .5
    assert made["odd"].value_counts(normalize=True)["yes"] == pytest.approx(0.5, abs=0.03)
    assert (made["country"] == made["city"].map(CITIES)).all()


def test_training_ends_when_held_out_rows_no_longer_improve():
    noise = pd.DataFrame(np.random.default_rng(0).choice(list("abc"), (300, 4)), columns=list("wxyz"))
    generator = synth.ARGN(patience=1, batch=32, lr=0.02, device="cpu").fit(noise)
    values = [row["held_out"] for row in generator.history]
    assert len(values) < 30
    layout = synth.encode.Layout(generator.table)
    net = generator.load_network(generator.state, layout)
    x = torch.from_numpy(layout.encode(generator.table.to_numbers(noise)).astype(np.int64))
    with torch.no_grad():
        fit = float(net(x, torch.from_numpy(visible_columns(np.zeros(4, dtype=bool)))).mean())
    assert fit > 4 * np.log(3) - 0.15  # independent columns have no more to learn: the noise is not memorized


def test_a_dependence_in_few_rows_among_columns_of_noise_is_learned():
    """An untrained network that knew the frequencies of held-out rows looked better than any trained one."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(250, 8)).round(3), columns=[f"n{k}" for k in range(8)])
    frame["a"] = rng.choice(["x", "y"], 250)
    frame["b"] = np.where(rng.random(250) < 0.9, frame["a"], np.where(frame["a"] == "x", "y", "x"))
    made = synth.ARGN(device="cpu").fit(frame).sample(2000)
    assert (made["a"] == made["b"]).mean() > 0.75  # independent: .5; the rows: .9


class Scripted:
    """A trainer whose held-out rows have the given losses after 0, 1, 2, … epochs."""

    def __init__(self, losses):
        self.losses, self.epochs = losses, 0

    def epoch(self):
        self.epochs += 1
        return 1.0

    def evaluate(self, held_out):
        return self.losses[self.epochs]


def test_cross_validation_weighs_folds_by_their_rows_and_ends_after_the_best_epoch():
    """Means of 3 and 1 rows: (3·4 + 8) / 4 = 5, then 4, 3, 3.5, 4: the best is after epoch 2, and two more end it."""
    first, second = Scripted([4, 4, 3, 4, 4, 0]), Scripted([8, 4, 3, 2, 4, 0])
    folds = [(first, torch.zeros(3, 1)), (second, torch.zeros(1, 1))]
    best, history = argn.cross_validate(folds, 100, 2, lambda event: None)
    assert best == 2
    assert [row["held_out"] for row in history] == [4, 3, 3.5, 4]
    assert first.epochs == second.epochs == 4


def test_with_few_rows_the_network_is_trained_on_all_of_them(monkeypatch):
    trained = []
    epoch = NetworkTrainer.epoch
    monkeypatch.setattr(NetworkTrainer, "epoch", lambda self: trained.append(len(self.codes)) or epoch(self))
    frame = pd.DataFrame({"a": ["x", "y"] * 50, "b": ["x", "y"] * 50})
    synth.ARGN(device="cpu", epochs=6).fit(frame, dependencies=False)
    assert trained == [75] * 24 + [100] * 6
    assert [synth.ARGN().choose_dropout(n) for n in (999, 1000)] == [0.5, 0.1]
    assert synth.ARGN(dropout=0.2).choose_dropout(999) == 0.2


def test_conditions_on_later_columns_are_met_without_rejecting_rows(fitted):
    made = fitted.sample(400, conditions={"odd": "yes", "a": "heads", "age": (30, 32)}, seed=1)
    assert (made["odd"] == "yes").all()
    assert made["age"].between(30, 32).all()
    assert (made["b"] == "tails").mean() > 0.8  # without the conditions: .5


def test_a_number_that_no_row_has_can_be_a_condition():
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(-5, 1, 300), rng.normal(5, 1, 300)]
    frame = pd.DataFrame({"x": x, "side": np.where(x < 0, "left", "right")})
    generator = synth.ARGN(epochs=30, width=16, batch=32, device="cpu").fit(frame)
    made = generator.sample(50, conditions={"x": 3.123456}, seed=1)
    assert (made["x"] == 3.123456).all()
    assert (made["side"] == "right").mean() > 0.9
    assert generator.sample(50, conditions={"x": (0.4, 0.6)}, seed=1)["x"].between(0.4, 0.6).all()


@pytest.mark.parametrize("generator", [synth.Cart(), synth.Bayes()])
def test_every_generator_samples_given_shares(generator):
    made = generator.fit(patients(600)).sample(1000, seed=1, shares={"pay": {"high": 0.75}})
    assert (made["pay"] == "high").sum() == 750
    assert (made["pay"].iloc[:500] == "high").mean() == pytest.approx(0.75, abs=0.1)  # in random order


def test_shares_change_one_column_and_what_depends_on_it(fitted):
    made = fitted.sample(1000, seed=1, shares={"pay": {"high": 0.5, "low": 0.5}}, conditions={"odd": "yes"})
    assert (made["pay"] == "high").sum() == 500
    assert (made["odd"] == "yes").all()
    real = patients()
    expected = (real[real["pay"] == "high"]["sex"] == "M").mean()
    assert (made[made["pay"] == "high"]["sex"] == "M").mean() == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"pay": {"high": 0.7, "low": 0.7}}, "sum to 1.4; at most 1"),
        ({"pay": {"high": 0.7, "low": 0.1}}, "column whose values are all given they must sum to 1"),
        ({"age": {30: 0.5}}, "for a number they must sum to 1"),
        ({"pay": {"high": "much"}}, "shares between 0 and 1"),
        ({"pay": {"huge": 0.5}}, "'huge' is not a value of the column 'pay'"),
        ({"wage": {"high": 0.5}}, "shares: there is no modeled column 'wage'"),
        ({"pay": {"high": 0.5}, "odd": {"yes": 0.5}}, "expected one column"),
        ({"sex": {"F": 0.5}}, "'sex' has conditions as well"),
    ],
)
def test_shares_that_cannot_be_sampled_are_refused(fitted, shares, words):
    with pytest.raises((BadParameter, BadData), match=words):
        fitted.sample(10, conditions={"sex": "F"}, shares=shares)


def test_a_fair_sample_has_the_same_pay_for_both_sexes(fitted):
    def gap(made: pd.DataFrame) -> float:
        share = made.groupby("sex")["pay"].apply(lambda s: (s == "high").mean())
        return float(abs(share["M"] - share["F"]))

    plain, fair = fitted.sample(2000, seed=1), fitted.sample(2000, seed=1, fair=("pay", "sex"))
    assert gap(plain) > 0.25
    assert gap(fair) < 0.02
    assert (fair["pay"] == "high").mean() == pytest.approx((plain["pay"] == "high").mean(), abs=0.03)
    ages = fair.groupby("pay")["age"].mean()
    assert ages["high"] > ages["low"] + 1  # what is not protected still matters
    both = fitted.sample(2000, seed=1, fair=("pay", ["sex", "age", "country"]))
    assert abs(both["age"].corr(both["pay"] == "high")) < 0.06


@pytest.mark.parametrize(
    ("fair", "words"),
    [
        ("pay", "a pair like"),
        (("pay", []), "one or more other columns"),
        (("pay", "pay"), "one or more other columns"),
        (("wage", "sex"), "there is no modeled column 'wage'"),
        (("country", "city"), "cannot be independent"),
        (("odd", "sex"), "without conditions and shares"),
    ],
)
def test_a_fair_sample_that_cannot_be_is_refused(fitted, fair, words):
    with pytest.raises((BadParameter, BadData), match=words):
        fitted.sample(10, conditions={"odd": "yes"}, fair=fair)


def test_imputed_values_fit_their_row_and_nothing_else_changes(fitted):
    whole = patients(400, seed=1).assign(note="kept", pay=lambda f: f["pay"].mask(f.index == 7, "unheard-of"))
    holes = np.random.default_rng(0).random((400, 8)) < 0.2
    frame = whole.copy()
    for j, name in enumerate(whole.columns[:8]):
        frame[name] = frame[name].mask(holes[:, j])
    frame.index = np.arange(400) * 3
    filled = fitted.impute(frame, seed=1)
    assert list(filled.columns) == list(frame.columns)
    assert filled.index.equals(frame.index)
    assert not filled.isna().any().any()
    for name in frame:
        present = frame[name].notna()
        assert (filled[name][present] == frame[name][present]).all()
    assert filled["age"].dtype == np.int64
    odd = holes[:, 2] & ~holes[:, 0] & ~holes[:, 1]
    assert (filled["odd"].to_numpy()[odd] == whole["odd"].to_numpy()[odd]).mean() > 0.8
    country = holes[:, 7] & ~holes[:, 6]
    assert (filled["country"].to_numpy()[country] == whole["country"].to_numpy()[country]).all()
    assert fitted.impute(frame, seed=1).equals(filled)
    assert not fitted.impute(frame, seed=2).equals(filled)


def test_imputation_keeps_orders_dtypes_and_learned_missing_values_out():
    frame, table = example()
    generator = synth.ARGN(epochs=2, device="cpu").fit(frame, table)
    frame.loc[:20, "admitted"] = pd.NaT
    frame.loc[10:40, "discharged"] = pd.NaT
    frame.loc[5, "discharged"] = pd.Timestamp("2019-01-02")  # nearly no earlier date exists
    frame.loc[:30, "grade"] = None
    frame["age"] = frame["age"].astype(float).mask(frame.index < 9)
    filled = generator.impute(frame, seed=0)
    modeled = [c.name for c in generator.table.modeled]
    assert frame["score"].isna().any()
    assert frame["job"].isna().any()
    assert not filled[modeled].isna().any().any()
    assert (filled["admitted"] <= filled["discharged"]).all()
    assert filled["grade"].dtype == frame["grade"].dtype
    assert filled["age"].between(18, 90).all()
    assert filled["name"].equals(frame["name"])


def test_one_row_is_enough_to_impute_and_a_missing_column_is_named(fitted):
    row = patients(3).iloc[:1].assign(odd=None)
    assert fitted.impute(row)["odd"].iloc[0] in ("yes", "no")
    with pytest.raises(BadData, match="the table has no column 'odd'"):
        fitted.impute(row.drop(columns="odd"))
    with pytest.raises(BadParameter, match="seed"):
        fitted.impute(row, seed=-1)


@pytest.mark.parametrize(("rows", "width"), [(40, 16), (800, 16), (1600, 32), (100_000, 64)])
def test_layers_are_sized_by_the_rows(rows, width):
    assert synth.ARGN().layer_width(rows) == width
    assert synth.ARGN(width=24).layer_width(rows) == 24


def test_a_saved_network_keeps_its_width(tmp_path):
    """A file of an earlier version has 64 units, whatever the rows were."""
    fitted = synth.ARGN(epochs=1, width=64, device="cpu").fit(patients())
    state = fitted.state
    again = synth.ARGN(epochs=1, device="cpu").restore(fitted.table, state)
    pd.testing.assert_frame_equal(again.sample(20), fitted.sample(20))
    path = fitted.save(tmp_path / "argn.tacit")
    pd.testing.assert_frame_equal(synth.load(path).sample(20), fitted.sample(20))
