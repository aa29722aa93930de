"""Sequences of events, and the evaluation of linked tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lifelines.datasets import load_recur
from scipy.stats import ks_2samp

from tacit.errors import BadData, BadParameter
from tacit.synth import (
    MST,
    Ordered,
    Sequences,
    evaluate_linked,
    evaluate_sequences,
    load_linked,
    load_sequences,
)

from .linked_tables import RECUR_KEYS, SHOP_KEYS, recurrences, shop


def sensor_hours(n: int, seed: int) -> pd.DataFrame:
    """Hourly temperatures of sensors with a level of their own, a daily cycle and an AR(1) disturbance."""
    rng = np.random.default_rng(seed)
    length = rng.integers(12, 40, n)
    rows = []
    for i in range(n):
        outside = rng.random() < 0.5
        level, noise = (8.0 if outside else 20.0) + rng.normal(0, 2), 0.0
        at = pd.Timestamp("2025-03-01") + pd.Timedelta(hours=int(rng.integers(0, 2000)))
        for _ in range(length[i]):
            at += pd.Timedelta(hours=int(rng.choice([1, 1, 1, 2, 5])))
            noise = 0.8 * noise + rng.normal(0, 0.5)
            cycle = (3 if outside else 0.5) * np.sin(2 * np.pi * at.hour / 24)
            rows.append(
                (
                    f"s{i}",
                    "outside" if outside else "inside",
                    at,
                    round(level + cycle + noise, 1),
                    noise > 0.4,
                )
            )
    return pd.DataFrame(rows, columns=["sensor", "place", "at", "temperature", "alarm"])


@pytest.fixture(scope="module")
def hours() -> pd.DataFrame:
    return sensor_hours(250, 0)


@pytest.fixture(scope="module")
def model(hours) -> Sequences:
    return Sequences().fit(hours, "sensor", "at")


@pytest.fixture(scope="module")
def drawn(model) -> pd.DataFrame:
    return model.sample(250, seed=3)


def test_events_are_in_order_and_attributes_never_change(hours, drawn):
    assert list(drawn.columns) == list(hours.columns)
    assert drawn.dtypes.astype(str).equals(hours.dtypes.astype(str))
    assert drawn.sensor.nunique() == 250
    assert not set(drawn.sensor) & set(hours.sensor)
    assert (drawn.groupby("sensor")["at"].diff().dropna() >= pd.Timedelta(0)).all()
    assert (drawn.groupby("sensor").place.nunique() == 1).all()


def test_lengths_gaps_autocorrelation_and_daily_cycle_are_those_of_the_real_events(hours, drawn):
    def gaps(f: pd.DataFrame) -> pd.Series:
        return f.groupby("sensor")["at"].diff().dropna().dt.total_seconds() / 3600

    def autocorrelation(f: pd.DataFrame, lag: int) -> float:
        x = f.temperature - f.groupby("place").temperature.transform("mean")
        return float(x.corr(x.groupby(f.sensor).shift(lag)))

    lengths = [f.groupby("sensor").size() for f in (hours, drawn)]
    assert ks_2samp(*lengths).statistic < 0.12  # the 1e-3 quantile for 250 and 250 is 0.175
    assert ks_2samp(gaps(hours), gaps(drawn)).statistic < 0.05
    for lag in (1, 2, 3):
        assert abs(autocorrelation(hours, lag) - autocorrelation(drawn, lag)) < 0.25, lag
    # the cycle of the day, outside: the warmest hours are 12 degrees of a sine above the coldest
    cycles = [f[f.place == "outside"].groupby(f["at"].dt.hour).temperature.mean() for f in (hours, drawn)]
    assert np.corrcoef(*cycles)[0, 1] > 0.8


def test_evaluation_gives_the_figures_that_pandas_gives(hours, drawn):
    unseen = sensor_hours(250, 1)
    unseen["sensor"] = "u" + unseen.sensor
    found = evaluate_sequences(hours, drawn, "sensor", "at", unseen)
    statistics = found.statistics
    for name, frame in (("real", hours), ("synthetic", drawn), ("holdout", unseen)):
        sizes = frame.groupby("sensor").size()
        by = statistics[name]
        assert by["events(sensor) → entities", "children, mean"] == pytest.approx(sizes.mean())
        assert by["events(sensor) → entities", "children, largest"] == sizes.max()
        gap = frame.sort_values(["sensor", "at"], kind="stable").groupby("sensor")["at"].diff().dropna()
        assert by["events", "days between, 50% quantile"] == pytest.approx(
            gap.dt.total_seconds().median() / 86_400
        )
        shifted = frame.groupby("sensor").temperature.shift(1)
        assert by["events", "autocorrelation of temperature, lag 1"] == pytest.approx(
            frame.temperature.corr(shifted)
        )
    ks = ks_2samp(hours.groupby("sensor").size(), drawn.groupby("sensor").size()).statistic
    assert found["events(sensor) → entities", "cardinality"].value == pytest.approx(1 - ks)
    assert found["events", "transitions"].value > 0.9
    assert found["entities", "exact copies of entities"].value == 0
    assert found.warnings == []


def test_copies_of_entities_and_broken_dependence_are_seen():
    real, unseen = shop(300, 0), shop(300, 1)
    order = {"orders": "date"}
    copied = evaluate_linked(real, real, SHOP_KEYS, order, unseen)
    assert copied["customers", "exact copies of entities"].value == 1
    assert any("100.0% of the synthetic customers are copies" in w for w in copied.warnings)
    assert copied["orders(customer) → customers", "parent–child pairs"].value == pytest.approx(1)
    rng = np.random.default_rng(0)
    shuffled = {**real, "customers": real["customers"].copy()}
    for column in ("region", "age", "joined"):
        shuffled["customers"][column] = rng.permutation(shuffled["customers"][column].to_numpy())
    broken = evaluate_linked(real, shuffled, SHOP_KEYS, order, unseen)
    link = "orders(customer) → customers"
    assert broken[link, "cardinality"].value == 1  # the number of children is still the same
    assert broken[link, "parent–child pairs"].value < copied[link, "parent–child pairs"].value - 0.05
    assert broken["customers", "exact copies of entities"].value < 0.1
    with pytest.raises(BadData, match="no score"):
        broken["customers", "cardinality"]


def test_evaluation_needs_whole_tables_and_says_what_a_missing_holdout_means(tmp_path):
    real = recurrences()
    found = evaluate_linked(real, real, RECUR_KEYS)
    assert any("Without a holdout" in w for w in found.warnings)
    page = found.report(tmp_path / "report.html").read_text()
    assert "parent–child pairs" in page
    assert "children, mean" in page
    with pytest.raises(BadData, match="the synthetic tables have no events"):
        evaluate_linked(real, {"patients": real["patients"]}, RECUR_KEYS)
    orphans = {**real, "patients": real["patients"].iloc[:-5]}
    with pytest.raises(BadData, match=r"evaluate_linked, synthetic tables: .*orphans"):
        evaluate_linked(real, orphans, RECUR_KEYS)
    events = load_recur()
    with pytest.raises(BadParameter, match="entities that were not learned from"):
        evaluate_sequences(events, events, "ID", "TIME0", events)


def test_sequences_are_saved_and_loaded(model, drawn, tmp_path):
    file = model.save(tmp_path / "hours.tacit")
    assert load_sequences(file).sample(250, seed=3).equals(drawn)
    assert set(load_linked(file).sample(5)) == {"entities", "events"}


def test_rows_of_a_real_study_keep_the_order_of_start_and_stop():
    events = load_recur()
    out = Sequences(seed=2).fit(events, "ID", "TIME0", constraints=[Ordered("TIME0", "TIME1")]).sample(400)
    assert abs((out.EVENT == 4).mean() - (events.EVENT == 4).mean()) < 0.05
    assert out.groupby("ID").TIME0.min().max() == 0  # every observation begins at 0


def test_intervals_begin_where_the_previous_one_ended():
    events = load_recur().sort_values(["ID", "TIME0"])
    assert (events.groupby("ID").TIME1.shift().fillna(0) == events.TIME0).all()
    out = Sequences().fit(events.sample(frac=1, random_state=0), "ID", "TIME0").sample(400)
    assert (out.groupby("ID").TIME1.shift().fillna(0) == out.TIME0).all()
    assert (out.TIME1 >= out.TIME0).all()
    assert ks_2samp(events.TIME1 - events.TIME0, out.TIME1 - out.TIME0).statistic < 0.05
    # one interval that begins later: no rule any more
    events.loc[events.EVENT == 4, "TIME0"] += 1
    events["TIME1"] = events[["TIME0", "TIME1"]].max(axis=1)
    loose = Sequences().fit(events, "ID", "TIME0").sample(400)
    assert (loose.groupby("ID").TIME1.shift().fillna(0) != loose.TIME0).any()


def test_bad_input_is_one_clear_error(hours):
    with pytest.raises(BadParameter) as raised:
        Sequences().fit(hours, "senor", "when", attributes=["plce"])
    for part in ("'senor'", "'when'", "'plce'"):
        assert part in str(raised.value)
    with pytest.raises(BadData, match="'temperature' is not an attribute: it changes within"):
        Sequences().fit(hours, "sensor", "at", attributes=["temperature"])
    with pytest.raises(BadData, match="no 'sensor', so it is unknown whose they are"):
        Sequences().fit(hours.assign(sensor=None), "sensor", "at")
    with pytest.raises(BadData, match="every 'sensor' has one row"):
        Sequences().fit(hours.drop_duplicates("sensor"), "sensor", "at")
    with pytest.raises(BadData, match="order column 'at' is missing in"):
        Sequences().fit(hours.assign(at=hours["at"].where(hours.index > 3)), "sensor", "at")
    with pytest.raises(BadParameter, match="there is no column 'tmp'"):
        Sequences().fit(hours, "sensor", "at", columns={"tmp": "categorical"})
    with pytest.raises(BadParameter, match="guarantee for entities"):
        Sequences(MST(epsilon=1.0)).fit(hours, "sensor", "at")
    with pytest.raises(BadParameter, match="not fitted yet"):
        Sequences().sample(3)
