"""Statistics of a federation that was made from tables equal those of the tables."""

from __future__ import annotations

import pandas as pd
import pytest

import tacit
from tacit import data, stats
from tacit.errors import BadData, BadParameter
from tests.stats.tables import heart, lung, pooled

FEATURES = ["age", "trestbps", "thalach", "exang"]


def hospitals():
    return {name: f[[*FEATURES, "num"]].dropna().astype(float) for name, f in heart().items()}


def federation(**options):
    frames = {name: f.assign(num=(f.num > 0).astype(int)) for name, f in hospitals().items()}
    return frames, data.from_frames(frames, label="num", test_fraction=0, **options)


def test_a_table_of_all_parties_rows_training_and_held_out():
    frames, fed = federation(held_fraction=0.3)
    expected, found = stats.describe(frames), stats.describe(fed)
    assert "party" not in found.table.to_string()  # the column that tells parties apart is not theirs
    pd.testing.assert_frame_equal(found.table, expected.table)
    by_quantile = stats.quantile(fed, "age").table
    assert by_quantile["value"][0] == pooled(frames)["age"].median()


def test_the_test_set_belongs_to_no_party_and_is_left_out():
    frames = {name: f.assign(num=(f.num > 0).astype(int)) for name, f in hospitals().items()}
    fed = data.from_frames(frames, label="num", test_fraction=0.25)
    n = stats.quantile(fed, "age").table["n"][0]
    assert n == int(fed.sizes.sum()) == len(pooled(frames)) - len(fed.test.y)


def test_a_regression_over_the_parties_of_a_column(tmp_path):
    frames, _ = federation()
    file = tmp_path / "patients.csv"
    pd.concat([f.assign(site=name) for name, f in frames.items()]).to_csv(file, index=False)
    fed = data.from_csv(file, "num", test_fraction=0).by("site")
    for formula in ("num ~ age + exang", "num ~ age + C(site)"):
        expected = stats.glm(frames, formula).summary()
        pd.testing.assert_frame_equal(stats.glm(fed, formula).summary(), expected, rtol=1e-12)


def test_survival_over_parties_of_a_federation():
    frames = {name: f[["time", "status", "age", "arm"]] for name, f in lung().items() if len(f) >= 10}
    fed = data.from_frames(frames, label="status", test_fraction=0)
    curve, expected = (stats.kaplan_meier(x, time="time", event="status", by="arm") for x in (fed, frames))
    pd.testing.assert_frame_equal(curve.table, expected.table)
    model, expected = (stats.cox(x, "age + C(arm)", time="time", event="status") for x in (fed, frames))
    pd.testing.assert_frame_equal(model.summary(), expected.summary(), rtol=1e-12)


def test_codes_that_mean_missing_are_missing():
    frames, _ = federation()
    coded = {name: f.assign(age=f.age.where(f.age > 40, -9)) for name, f in frames.items()}
    fed = data.from_frames(coded, label="num", test_fraction=0, missing_codes={"age": [-9]})
    rest = pooled(frames).query("age > 40").age
    assert stats.quantile(fed, "age").table["value"][0] == rest.median()


def test_a_federation_without_tables_is_refused():
    x = data.gaussian_blobs(60).split(3)
    part = federation()[1].party("va")
    for fed in (x, part):
        with pytest.raises(BadData, match=r"has no raw tables.*from_frames"):
            stats.describe(fed)
    with pytest.raises(BadParameter, match="a federation made from tables"):
        tacit.stats.describe([1, 2])
