"""Values that few rows share are neither learned nor sampled."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import synth
from tacit.errors import BadData, BadParameter
from tacit.synth.generator import Generator
from tacit.synth.protect import FLOOR, protect

ROWS = 600
UNPROTECTED = [name for name, cls in synth.ALL.items() if not cls.private]


def quick(name: str) -> Generator:
    generator = synth.ALL[name]()
    changes = {"epochs": 2, "steps": 20} if name == "TabDDPM" else {"epochs": 2}
    return (
        dataclasses.replace(generator, **changes) if "epochs" in generator.__dataclass_fields__ else generator
    )


def patients() -> pd.DataFrame:
    """One woman of 117 with the only income above a million, and 40 villages of one resident each."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, ROWS),
            "income": rng.normal(30_000, 5_000, ROWS).round(2),
            "village": rng.choice(["Aa", "Bb", "Cc"], ROWS),
            "stage": pd.Categorical(
                rng.choice(["I", "II"], ROWS), categories=["I", "II", "IV"], ordered=True
            ),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, ROWS), unit="D"),
        }
    )
    frame.loc[0, ["age", "income"]] = [117, 2_000_000.0]
    frame.loc[1, "seen"] = pd.Timestamp("1950-01-01")
    frame.loc[2:41, "village"] = [f"village {i}" for i in range(40)]
    frame.loc[50, "stage"] = "IV"
    frame.loc[60, "income"] = np.nan
    return frame


@pytest.mark.parametrize("name", UNPROTECTED)
def test_no_generator_samples_or_saves_a_value_of_few_rows(name, tmp_path):
    frame = patients()
    generator = quick(name).fit(frame)
    sample = generator.sample(1000, seed=1)
    shared = frame["village"].value_counts()
    assert set(sample["village"]) <= set(shared[shared >= FLOOR].index)
    assert set(sample["stage"].dropna()) <= {"I", "II"}
    assert sample["income"].notna().all()
    assert sample["age"].max() < 100  # 89 but for her
    assert sample["income"].max() < 60_000
    assert sample["seen"].min() >= pd.Timestamp("2019-12-01")  # 2020-01-01 but for 1950
    ordered = frame["income"].dropna().sort_values()
    assert not sample["income"].isin([*ordered[:FLOOR], *ordered[-FLOOR:]]).any()
    saved = generator.save(tmp_path / "generator").read_bytes()
    assert b"village 7" not in saved
    assert b"2000000" not in saved


@pytest.mark.parametrize("name", UNPROTECTED)
def test_a_declared_category_of_few_rows_is_not_sampled(name):
    frame = patients()[["age", "village"]]
    known = sorted(frame["village"].unique())
    table = synth.Table.declare({"age": synth.integer(0, 120), "village": synth.categorical(known)})
    sample = quick(name).fit(frame, table).sample(100, seed=1)
    assert set(sample["village"]) <= {"Aa", "Bb", "Cc"}


def test_a_floor_of_1_publishes_every_value():
    frame = patients()
    sample = synth.Cart(seed=0).fit(frame, floor=1).sample(3000, seed=1)
    assert any(v.startswith("village") for v in sample["village"])


def test_rare_combinations_are_replaced_by_frequent_ones():
    rng = np.random.default_rng(0)
    city = rng.choice(["Bern", "Rome"], ROWS)
    frame = pd.DataFrame(
        {"city": city, "country": np.where(city == "Bern", "CH", "IT"), "x": rng.normal(size=ROWS)}
    )
    frame.loc[:4, "country"] = "CH"
    frame.loc[:4, "city"] = "Rome"  # a mistake in five rows
    table = synth.Table.infer(frame, constraints=[synth.Combinations("city", "country")])
    sample = synth.Bayes(seed=0).fit(frame, table).sample(1000, seed=1)
    assert set(zip(sample["city"], sample["country"])) == {("Bern", "CH"), ("Rome", "IT")}


def test_an_order_survives_the_cut():
    rng = np.random.default_rng(0)
    a = rng.normal(size=ROWS)
    frame = pd.DataFrame({"a": a, "b": a + rng.exponential(0.01, ROWS)})
    table = synth.Table.infer(frame, constraints=[synth.Ordered("a", "b")])
    sample = synth.Cart(seed=0).fit(frame, table).sample(500, seed=1)
    assert (sample["a"] <= sample["b"]).all()


def test_the_ten_smallest_and_largest_numbers_are_drawn_from_tails():
    """The 10th and 11th smallest are 18 and 20, the 10th and 11th largest 180 and 178: the ends are 19 and 179.
    The ten largest are 1, 3, …, 19 beyond: a scale of 10 / ln 2. The third is 15 beyond.
    """
    x = np.arange(100.0)[:, None] * 2
    table = synth.Table.infer(pd.DataFrame({"x": x[:, 0]}), x="integer")
    tops = []
    for seed in range(200):
        y, narrowed, protection = protect(x, table, 10, np.random.default_rng(seed))
        assert narrowed.columns[0].low <= y.min()
        assert y.max() <= narrowed.columns[0].high
        assert 4 <= y.min() < 19
        assert 179 < y.max() <= 194
        assert (np.abs(y[11:89] - x[11:89]) <= 2).all()  # between the middles to the neighbors
        assert protection.replaced == {"x": 20}
        tops.append(y[-10:, 0] - 179)
    # the mean of an exponential with scale b = 10 / ln 2, truncated at 15: b - 15 / (exp(15 / b) - 1)
    b = 10 / math.log(2)
    assert np.mean(tops) == pytest.approx(b - 15 / math.expm1(15 / b), rel=0.05)


def test_no_single_value_determines_a_tail():
    """Whatever the largest value is, the same numbers are drawn; it is not reached, however many are."""
    x = np.r_[np.random.default_rng(0).exponential(1, 400), 1e5]
    drawn = []
    for largest in (1e5, 1e9):
        x[-1] = largest
        table = synth.Table.infer(pd.DataFrame({"x": x}), x=synth.continuous(0, 1e9))
        y, _, protection = protect(x[:, None], table, 10, np.random.default_rng(0))
        drawn.append(y)
        assert y.max() < 20
        assert protection.bounds["x"][1] == y.max()
    assert np.array_equal(*drawn)


@pytest.mark.parametrize("name", ["Independent", "Cart", "GaussianCopula"])
def test_the_ends_of_a_column_are_nobodys_value(name):
    """The smallest and the largest value of a sample must not be the value of one person."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"income": rng.lognormal(10, 0.6, ROWS).round(2), "x": rng.normal(size=ROWS)})
    sample = getattr(synth, name)(seed=0).fit(frame).sample(500, seed=1)
    for column in frame:
        ends = sample[column].min(), sample[column].max()
        assert not frame[column].isin(ends).any()
        ordered = frame[column].sort_values().to_numpy()
        assert ordered[2] < ends[0] < ordered[9]  # beyond the tenth smallest; three people are beyond it
        assert ordered[-10] < ends[1] < ordered[-3]


def test_dates_and_declared_bounds_hold_in_tails():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 3000, ROWS), unit="D"),
            "share": rng.random(ROWS) ** 4,
            "cents": rng.lognormal(3, 1, ROWS).round(2),
        }
    )
    table = synth.Table.infer(
        frame, share=synth.continuous(0, 1), cents=synth.continuous(0, 10_000, step=0.01)
    )
    sample = synth.Cart(seed=0).fit(frame, table).sample(3000, seed=1)
    assert (sample["day"] == sample["day"].dt.normalize()).all()
    assert sample["share"].between(0, 1).all()
    assert sample["cents"].between(0, 10_000).all()
    assert np.allclose(sample["cents"], sample["cents"].round(2), atol=1e-9)


def test_an_end_that_most_of_the_outermost_people_share_has_no_tail():
    """Twelve rows each have 0 to 19, four have 100: the tenth largest is 19, and so is the median of the ten."""
    x = np.r_[np.tile(np.arange(20.0), 12), np.full(4, 100.0)]
    table = synth.Table.infer(pd.DataFrame({"x": x}), x="integer")
    y, _, _ = protect(x[:, None], table, 10, np.random.default_rng(0))
    assert (y.min(), y.max()) == (0, 19)


def test_numbers_in_order_are_cut_off_and_not_drawn():
    a = np.sort(np.random.default_rng(0).normal(size=ROWS))
    frame = pd.DataFrame({"a": a, "b": a + 1})
    table = synth.Table.infer(frame, constraints=[synth.Ordered("a", "b")])
    x = table.to_numbers(frame)
    y, _, _ = protect(x, table, 10, np.random.default_rng(0))
    assert (y[:, 0].min(), y[:, 0].max()) == ((a[9] + a[10]) / 2, (a[-10] + a[-11]) / 2)


def test_an_end_that_ten_people_share_stays():
    x = np.r_[np.zeros(12), np.arange(1.0, 89)]
    table = synth.Table.infer(pd.DataFrame({"x": x}), x="continuous")
    y, _, _ = protect(x[:, None], table, 10, np.random.default_rng(0))
    assert y.min() == 0
    assert (y == 0).sum() == 12


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"a": [1.0, 2.5]}), "the table has 2 rows; protecting rare values needs at least 20"),
        (pd.DataFrame({"c": [f"v{i % 30}" for i in range(120)]}), "no value of the column 'c' is shared by"),
        (pd.DataFrame({"x": [1.5] * 3 + [np.nan] * 97}), "the column 'x' has 3 values that are not missing"),
    ],
)
def test_a_table_without_values_that_enough_rows_share_is_refused(frame, words):
    with pytest.raises(BadData, match=words):
        synth.Independent().fit(frame)


@pytest.mark.parametrize("floor", [0, -1, 2.5, True, "10"])
def test_a_floor_is_a_whole_number(floor):
    with pytest.raises(BadParameter, match="fit: floor is"):
        synth.Independent().fit(patients(), floor=floor)


def test_a_private_generator_takes_no_floor():
    with pytest.raises(BadParameter, match="floor is 5; it must be None"):
        synth.MST().fit(patients()[["age"]], {"age": synth.integer(0, 120)}, floor=5)


@pytest.mark.parametrize("name", ["GaussianCopula", "CTGAN"])
def test_holders_together_sample_no_value_of_few_rows(name):
    """Each holder has 6 of a village's 12 residents: together they are enough, one of them alone is not."""
    frame = patients()[["age", "village"]]
    frame.loc[100:111, "village"] = "shared"
    known = sorted(frame["village"].unique())
    table = {"age": synth.integer(0, 120), "village": synth.categorical(known)}
    holders = {"a": frame.iloc[::2], "b": frame.iloc[1::2]}
    assert [(part["village"] == "shared").sum() for part in holders.values()] == [6, 6]
    sample = tacit.synthesize(holders, table, quick(name)).sample(500, seed=1)
    assert set(sample["village"]) <= {"Aa", "Bb", "Cc", "shared"}
    ordered = frame["age"].sort_values()
    assert ordered.iloc[FLOOR - 1] <= sample["age"].min()
    assert sample["age"].max() <= ordered.iloc[-FLOOR]


@pytest.mark.parametrize(
    "generator", [synth.Cart(), synth.GaussianCopula(), synth.Bayes(), synth.Independent()]
)
def test_amounts_of_one_holder_are_not_published_to_the_last_digit(generator):
    """540 people have no gain, 60 have an amount of their own between 1,000 and 99,000. On Adult, 84% (Cart) and
    100% (copula) of the values of one synthetic row were those of one person before they were drawn anew.
    """
    rng = np.random.default_rng(0)
    amounts = rng.choice(np.arange(1_000, 99_000), 60, replace=False)
    frame = pd.DataFrame({"gain": np.r_[np.zeros(540, int), amounts], "sex": rng.choice(["f", "m"], 600)})
    made = generator.fit(frame).sample(600, seed=1)
    positive = made.loc[made["gain"] > 0, "gain"]
    assert len(positive) > 30
    assert positive.isin(set(amounts.tolist())).mean() < 0.25
    assert made["gain"].mean() == pytest.approx(frame["gain"].mean(), rel=0.35)
