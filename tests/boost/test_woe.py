"""Weight of evidence: bins and values of the pooled rows, scorecards, and bad input."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch

import tacit
from tacit.boost.bins import Feature
from tacit.boost.woe_bins import WoeRules, bin_column, merge_ordered, weigh
from tacit.boost.woe_program import WoeProgram
from tacit.errors import BadData, BadParameter
from tacit.protocols.sum_steps import ideal

from .tables import divide


def loans(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(float),
            "income": rng.lognormal(10, 1, n).round(),
            "job": rng.choice(list("abcdef"), n, p=[0.3, 0.3, 0.2, 0.1, 0.09, 0.01]),
        }
    )
    frame.loc[rng.random(n) < 0.1, "income"] = np.nan
    frame.loc[rng.random(n) < 0.002, "age"] = np.nan
    frame.loc[rng.random(n) < 0.05, "job"] = None
    eta = -1.5 - (frame["age"].fillna(40) - 45) / 20 + (frame["job"] == "b") * 0.8
    eta -= np.log(frame["income"].fillna(5e3) / 2e4) * 0.5
    return frame.assign(paid=np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "no", "yes"))


@pytest.fixture(scope="module")
def table():
    return loans()


@pytest.fixture(scope="module")
def fed(table):
    return divide(table, 3)


@pytest.fixture(scope="module")
def weighed(fed):
    return tacit.boost.woe(fed, label="paid", event="no")


def bins_of(values, column):
    """The bin of each value, read from the names that the table shows."""
    out = pd.Series(-1, index=values.index)
    for k, b in enumerate(column.bins):
        for part in b.name.replace("), ", ")|").split("|"):
            if part.startswith("["):
                low, high = (float(v) for v in part[1:-1].split(", "))
                out[(values >= low) & (values < high)] = k
            elif part == "missing":
                out[values.isna()] = k
            elif not pd.api.types.is_numeric_dtype(values):
                names = part.split(", ")
                out[values.isin(names)] = k
                if "missing" in names:
                    out[values.isna()] = k
                if "other" in names:
                    named = {n for other in column.bins for n in other.name.split(", ")}
                    out[values.notna() & ~values.isin(named)] = k
    return out


def test_woe_and_iv_are_those_of_pandas_on_the_pooled_rows(weighed, table):
    event = table["paid"] == "no"
    for column in weighed.columns:
        at = bins_of(table[column.name], column)
        assert (at >= 0).all()
        events, others = (pd.Series(m).groupby(at).sum() for m in (event, ~event))
        shares = events / events.sum(), others / others.sum()
        woe = np.log(shares[1] / shares[0])
        iv = (shares[1] - shares[0]) * woe
        assert [b.events for b in column.bins] == events.tolist()
        assert [b.woe for b in column.bins] == pytest.approx(woe.tolist(), rel=1e-12)
        assert column.iv == pytest.approx(iv.sum(), rel=1e-12)
        assert weighed.transform(table)[column.name].to_numpy() == pytest.approx(woe[at].to_numpy())
    assert weighed.iv().is_monotonic_decreasing
    assert weighed.information == pytest.approx({c.name: c.iv for c in weighed.columns})


def test_bins_do_not_depend_on_the_partition_or_the_runtime(weighed, table, fed):
    alone = tacit.boost.woe({"all": table}, label="paid", event="no")
    executed = tacit.boost.woe(fed, label="paid", event="no", runtime="inprocess")
    assert alone.columns == executed.columns == weighed.columns
    assert {line.how for line in executed.ledger.seen} == {"executed"}
    assert "boost.woe opened sums over all parties" in executed.ledger.stamps[0]
    with_guard = tacit.boost.woe(
        fed, label="paid", event="no", runtime="inprocess", guard=tacit.guard.SecAgg(threshold=0.7)
    )
    assert with_guard.columns == weighed.columns


def test_every_bin_is_large_enough_and_numbers_are_monotone(fed):
    found = tacit.boost.woe(fed, label="paid", event="no", bins=5, min_share=0.08, min_rows=30, min_cell=12)
    rows = sum(found.totals)
    for column in found.columns:
        named = [b for b in column.bins if b.name not in ("missing", "other")]
        assert 2 <= len(named) <= 5
        assert all(b.rows >= 0.08 * rows for b in named)
        assert all(b.rows >= 30 and min(b.events, b.others) >= 12 for b in column.bins)
    intervals = [b.woe for b in found.columns[1].bins if b.name.startswith("[")]
    assert intervals == sorted(intervals)
    assert "missing" in [b.name for b in found.columns[1].bins]
    assert any(b.name.endswith(", missing") for b in found.columns[0].bins)  # six missing ages: too few


def test_without_merging_bins_are_quantiles(fed, table):
    found = tacit.boost.woe(
        fed, label="paid", features=["age"], monotone=False, bins=4, min_share=0.0, min_rows=1, min_cell=1
    )
    cuts = found.columns[0].feature.cuts
    assert len(cuts) == 3
    shares = np.searchsorted(np.sort(table["age"].dropna()), cuts) / table["age"].notna().sum()
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.03)
    declared = tacit.boost.woe(fed, label="paid", features=["age"], cuts={"age": [30, 50]}, monotone=False)
    assert declared.columns[0].feature.cuts == (30.0, 50.0)


# merging, by hand -------------------------------------------------------------------------------------------

TOTALS = np.array([100, 100])
ANY = WoeRules(10, False, 0, 1, 1)


def test_small_bins_join_the_neighbor_with_the_closer_rate():
    """Rates .1, .5, .55, .9; the second has 2 rows and joins the third."""
    counts = np.array([[45, 5], [1, 1], [9, 11], [5, 45]])
    rules = WoeRules(10, False, 0, 10, 1)
    assert merge_ordered([[0], [1], [2], [3]], counts, TOTALS, rules) == [[0], [1, 2], [3]]


def test_violators_are_pooled_in_the_better_direction():
    """Rates .1, .4, .3, .8: rising, the middle two are pooled."""
    counts = np.array([[90, 10], [60, 40], [70, 30], [20, 80]])
    rules = WoeRules(10, True, 0, 1, 1)
    assert merge_ordered([[0], [1], [2], [3]], counts, counts.sum(0), rules) == [[0], [1, 2], [3]]


def test_the_pair_that_loses_least_iv_is_merged_first():
    counts = np.array([[90, 10], [50, 50], [48, 52], [10, 90]])
    rules = WoeRules(3, False, 0, 1, 1)
    assert merge_ordered([[0], [1], [2], [3]], counts, counts.sum(0), rules) == [[0], [1, 2], [3]]


def test_woe_by_hand():
    """A bin with half of the others and a quarter of the events: ln 2 and (1/2 − 1/4) ln 2."""
    woe, iv = weigh(np.array([[50, 25], [50, 75]]), TOTALS)
    assert woe == pytest.approx([math.log(2), math.log(2 / 3)])
    assert iv[0] == pytest.approx(math.log(2) / 4)
    woe, _ = weigh(np.array([[10, 0]]), TOTALS)  # 10.5 against 0.5
    assert woe == pytest.approx([math.log(21)])


def test_small_levels_are_other_and_what_nobody_has_is_no_bin():
    feature = Feature("job", levels=("a", "b", "c", "d"))
    counts = np.array([[40, 20], [30, 40], [3, 2], [0, 1], [0, 0], [20, 30]])  # a, b, c, d, other, missing
    column = bin_column(feature, counts, counts.sum(0), WoeRules(10, True, 0, 6, 1))
    assert [(b.name, b.others, b.events) for b in column.bins] == [
        ("a", 40, 20),
        ("b", 30, 40),
        ("other", 3, 3),
        ("missing", 20, 30),
    ]
    assert column.place == (0, 1, 2, 2, 2, 3)
    column = bin_column(feature, counts, counts.sum(0), WoeRules(10, True, 0, 7, 1))
    assert [b.name for b in column.bins] == ["a", "b, other", "missing"]
    counts[2:5] = 0
    column = bin_column(feature, counts, counts.sum(0), ANY)
    assert column.place == (0, 1, -1, -1, -1, 2)


def test_a_column_without_values_has_one_bin_and_no_information(fed):
    empty = {name: frame.assign(age=np.nan) for name, frame in fed.items()}
    found = tacit.boost.woe(empty, label="paid")
    assert [b.name for b in found.columns[0].bins] == ["missing"]
    assert found.columns[0].iv == pytest.approx(0, abs=1e-12)
    assert "One bin is left of 'age'" in found.notes[0]
    assert found.transform(pd.DataFrame({"age": [3.0], "income": [1.0], "job": ["a"]}))["age"].tolist() == [0]


# scorecards -------------------------------------------------------------------------------------------------


def test_a_scorecard_has_the_coefficients_of_statsmodels_and_doubles_odds(weighed, table, fed, tmp_path):
    card = weighed.scorecard(pdo=20, base_score=600, base_odds=50, rounded=False)
    names = [c.name for c in card.card.columns]
    x = sm.add_constant(weighed.transform(table)[names])
    fit = sm.Logit((table["paid"] == "no").astype(float), x).fit(disp=False)
    assert card.card.coefficients == pytest.approx(fit.params.tolist(), abs=1e-6)
    assert card.predict(table).to_numpy() == pytest.approx(fit.predict(x).to_numpy(), abs=1e-6)
    odds = (1 - card.predict(table)) / card.predict(table)
    assert card.score(table).to_numpy() == pytest.approx(600 + 20 * np.log2(odds / 50), abs=1e-8)
    assert card.coefficients["coef"].tolist() == list(card.card.coefficients)
    assert {line.how for line in card.ledger.seen} == {"ideal"}


def test_rounded_points_add_up_and_survive_a_file(weighed, table, tmp_path):
    card = weighed.scorecard()
    points = card.table()
    assert points["points"].dtype == np.int64
    assert points["column"][0] == "base points"
    one = table.head(1)
    total = points["points"][0]
    for column in card.card.columns:
        at = bins_of(one[column.name], column).iloc[0]
        total += points[points["column"] == column.name]["points"].iloc[at]
    assert card.score(one).tolist() == [total]
    file = card.save(tmp_path / "card.json")
    again = tacit.boost.load_scorecard(file)
    assert again == card.card
    assert again.score(table).equals(card.score(table))
    rows = pd.read_csv(card.save(tmp_path / "card.csv"), keep_default_na=False)
    assert rows["points"].tolist() == points["points"].tolist()
    weighed.save(tmp_path / "bins.csv")
    assert len(pd.read_csv(tmp_path / "bins.csv")) == len(weighed.table())
    assert "<html" in weighed.report(tmp_path / "woe.html").read_text()
    assert "<html" in card.report(tmp_path / "card.html").read_text()
    with pytest.raises(BadParameter, match="already exists"):
        card.save(file)
    with pytest.raises(BadParameter, match=r"ends in \.json or \.csv"):
        card.save(tmp_path / "card.xlsx")


def test_a_scorecard_uses_what_was_chosen(weighed, fed):
    card = weighed.scorecard(features=["age", "job"])
    assert [c.name for c in card.card.columns] == ["age", "job"]
    few = weighed.scorecard(min_iv=weighed.iv().iloc[1] + 1e-9)
    assert [c.name for c in few.card.columns] == [weighed.iv().index[0]]
    executed = weighed.scorecard(features=["age"], fed=fed)
    assert executed.card.coefficients == weighed.scorecard(features=["age"]).card.coefficients


def test_a_coefficient_with_the_wrong_sign_is_noted():
    """b says what a says less c, and c has no effect of its own: given a and b, a suppressor."""
    rng = np.random.default_rng(0)
    a, c = rng.integers(0, 2, (2, 4000))
    noisy = np.where(rng.random(4000) < 0.1, 1 - a, a)
    bad = rng.random(4000) < np.where(a == 1, 0.6, 0.2) - 0.15 * (noisy == 1)
    frame = pd.DataFrame(
        {"a": a.astype(float), "b": noisy.astype(float), "c": c.astype(float), "bad": bad.astype(int)}
    )
    found = tacit.boost.woe({"p": frame[:2000], "q": frame[2000:]}, label="bad", features=["a", "b"])
    assert "The coefficients of 'b' have the opposite sign" in found.scorecard().notes[0]


# bad input --------------------------------------------------------------------------------------------------


def test_bad_options_and_tables_are_refused(weighed, fed, table, tmp_path):
    cases = [
        ({"label": ""}, "label is ''"),
        ({"label": "paid", "labels": ["yes"]}, "the two outcomes, like"),
        ({"label": "paid", "fine": 3, "bins": 5}, "fine is 3; it must be at least bins"),
        ({"label": "paid", "min_cell": 0}, "min_cell is 0"),
        ({"label": "paid", "features": ["paid"]}, "columns without the label"),
    ]
    for options, match in cases:
        with pytest.raises(BadParameter, match=match):
            tacit.boost.woe(fed, **options)
    with pytest.raises(BadData, match="the event is 'maybe'; the outcomes of 'paid' are 'no' and 'yes'"):
        tacit.boost.woe(fed, label="paid", event="maybe")
    with pytest.raises(BadData, match=r"boost.woe needs two outcomes. Join them into two in the tables"):
        tacit.boost.woe({n: f.dropna() for n, f in fed.items()}, label="job", features=["age"])
    with pytest.raises(BadData, match=r"boost.woe: 'a': .* rows have no 'paid'"):
        tacit.boost.woe({"a": table.assign(paid=None)}, label="paid")
    rare = table.assign(paid=np.where(np.arange(len(table)) < 3, "no", "yes"))
    with pytest.raises(BadData, match=r"have 3 events .* at least 5 of each are needed"):
        tacit.boost.woe({"a": rare}, label="paid", event="no")
    with pytest.raises(BadParameter, match="pdo is 0; it must be a number above 0"):
        weighed.scorecard(pdo=0)
    with pytest.raises(BadParameter, match=r"features is 'ages'.*age"):
        weighed.scorecard(features=["ages"])
    with pytest.raises(BadData, match="no column has several bins"):
        weighed.scorecard(min_iv=99)
    with pytest.raises(BadParameter, match="column is 'jobs'"):
        weighed.table("jobs")
    with pytest.raises(BadData, match="has no column 'income'"):
        weighed.transform(table.drop(columns="income"))


def test_files_that_are_not_scorecards_are_refused(weighed, tmp_path):
    good = weighed.scorecard().card.to_dict()
    broken = {
        "nothing": {},
        "coefficients": {**good, "coefficients": good["coefficients"][:-1]},
        "place": {**good, "columns": [{**good["columns"][0], "place": [99]}, *good["columns"][1:]]},
        "text": {**good, "pdo": "many"},
    }
    for name, data in broken.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(data))
        with pytest.raises(BadData, match="is not a scorecard that tacit saved"):
            tacit.boost.load_scorecard(file)
    with pytest.raises(BadData, match="cannot be read"):
        tacit.boost.load_scorecard(tmp_path / "absent.json")


def test_a_party_refuses_bins_of_other_columns_or_more_than_agreed(table):
    """What a coordinator sends before the counts decides which rows are counted together."""
    terms = {"columns": ["age"], "label": "paid", "objective": "binary", "labels": ["yes", "no"], "bins": 4}
    program = WoeProgram(terms)
    assert ideal(program, {"a": table}).totals == tuple((table["paid"] == v).sum() for v in ("yes", "no"))
    steps = program.coordinate()
    down, step = next(steps), 0
    while "agreed" not in down:
        down, step = steps.send(program.local(step, table, down)), step + 1
    sent = json.loads(bytes(down["agreed"].numpy()))
    for change, match in (
        ({"bins": [{"name": "income", "cuts": [1.0]}]}, "other columns"),
        ({"bins": [{"name": "age", "cuts": [20, 30, 40, 50, 60]}]}, "more bins of 'age' than agreed"),
        ({"labels": ["no", "yes"]}, "other classes"),
    ):
        text = json.dumps({**sent, **change}).encode()
        lie = {"agreed": torch.frombuffer(bytearray(text), dtype=torch.uint8)}
        with pytest.raises(BadData, match=match):
            program.local(step, table, lie)
