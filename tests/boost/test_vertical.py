"""Boosted trees over columns of several parties: the same trees as on pooled rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xgboost

import tacit
from tacit import data
from tacit.boost.vertical_bins import OwnBins, OwnSplit
from tacit.errors import BadData, BadParameter, BadRun, PartyFailed, ProtocolError
from tacit.jobs.vertical.boost_predict import ScoreClasses, predict_here, read_classes

ROWS = 400
SETTINGS = {"trees": 4, "depth": 3, "bins": 16, "min_rows": 10}


def people(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(rows) + 1000,
            "age": rng.normal(50, 10, rows),
            "income": rng.normal(30, 8, rows),
            "calls": rng.normal(size=rows),
            "plan": rng.choice(["basic", "flat", "family"], rows),
            "bill": rng.gamma(2.0, 10.0, rows),
        }
    )
    frame.loc[rng.random(rows) < 0.2, "bill"] = None
    score = frame["age"] / 10 - 5 + frame["calls"] + (frame["plan"] == "flat") + frame["bill"].isna()
    frame["value"] = score + rng.normal(size=rows) / 2
    frame["risk"] = np.where(score + rng.logistic(size=rows) > 0.5, "bad", "good")
    frame["group"] = np.digitize(frame["value"], [-1, 1]).astype(str)
    return frame


LABELS = {"binary": "risk", "multiclass": "group", "regression": "value"}


def parties(frame: pd.DataFrame, label: str) -> dict[str, pd.DataFrame]:
    return {
        "bank": frame[["id", "age", "income", label]],
        "telecom": frame[["id", "calls", "plan"]].sample(frac=1, random_state=1),
        "utility": frame[["id", "bill"]].sample(frac=0.9, random_state=2),
    }


def pooled(frame: pd.DataFrame, label: str, **options: object) -> np.ndarray:
    columns = ["age", "income", "calls", "plan", "bill"]
    model = tacit.boost.train({"all": frame}, label=label, features=columns, **{**SETTINGS, **options})
    return np.asarray(model.predict(frame, margin=True))


@pytest.mark.parametrize(
    ("objective", "reveal"),
    [("binary", "sums"), ("binary", "splits"), ("multiclass", "sums"), ("regression", "splits")],
)
def test_margins_are_those_of_trees_on_the_pooled_rows(objective: str, reveal: str) -> None:
    """Both use integers of 26 bits, so the trees are the same; three parties, categories, missing values."""
    frame, label = people(), LABELS[objective]
    tables = parties(frame, label)
    model = tacit.boost.train(tables, on="id", label=label, objective=objective, reveal=reveal, **SETTINGS)
    shared = frame[frame["id"].isin(tables["utility"]["id"])]
    found = model.predict(dict.fromkeys(tables, shared), margin=True)
    expected = pooled(shared, label, objective=objective)
    # margins of a regression are in other units of 2^-26: equal up to rounding
    assert np.allclose(found, expected, atol=0 if objective != "regression" else 1e-5)
    assert np.ptp(found) > 0.5
    assert model.rows == len(shared) == 360


@pytest.mark.parametrize("objective", ["binary", "multiclass", "regression"])
def test_encrypted_sums_give_the_same_trees_as_shares(objective: str) -> None:
    """Three parties, categories, missing values; without a helper."""
    frame, label = people(), LABELS[objective]
    options = {**SETTINGS, "trees": 2, "held_out": 0.2, "seed": 2}  # no two splits have equal gains
    found = {}
    for backend in ("shares", "he"):
        model = tacit.boost.train(
            parties(frame, label), on="id", label=label, objective=objective, backend=backend, **options
        )
        assert model.backend == backend
        found[backend] = [
            {**p.to_dict(), "helper": "", "leaf_key": "", "masked": []} for p in model.parts.values()
        ]
        assert {p.helper for p in model.parts.values()} == {"helper" if backend == "shares" else ""}
    assert found["he"] == found["shares"]
    assert sum(len(p["splits"]) for p in found["he"][1:]) > 0


def test_the_trees_are_those_of_xgboost_with_the_same_bins() -> None:
    frame = people()
    tables = {"bank": frame[["id", "age", "risk"]], "telecom": frame[["id", "calls", "income"]]}
    model = tacit.boost.train(tables, on="id", label="risk", trees=5, depth=3, bins=16, min_rows=1)
    codes = np.concatenate([model.parts[n].bins.encode(tables[n]) for n in tables], axis=1)
    other = xgboost.XGBClassifier(
        n_estimators=5, max_depth=3, learning_rate=0.3, tree_method="hist", max_bin=256, n_jobs=1
    )
    other.fit(codes.astype(float), (frame["risk"] == "good").astype(int))
    theirs = other.predict_proba(codes.astype(float))[:, 1]
    assert np.abs(model.predict(tables) - theirs).max() < 1e-5


def test_a_label_holder_without_columns_and_held_out_rows() -> None:
    frame = people()
    tables = {"court": frame[["id", "risk"]], "telecom": frame[["id", "calls", "plan", "age"]]}
    model = tacit.boost.train(
        tables, on="id", label="risk", trees=60, depth=2, learning_rate=0.5, early_stopping=3
    )
    assert model.best_round is not None
    assert model.trees == model.best_round < 60
    assert model.losses[model.best_round] == min(model.losses)
    assert len(model.losses) == model.best_round + 4
    assert {t.owner[0] for t in model.parts["court"].trees} == {1}
    with pytest.raises(BadParameter, match=r"predict: tables .* the tables of \['telecom'\]"):
        model.predict({"court": frame})


def test_aligned_tables_and_tables_of_files_give_the_same_model() -> None:
    frame = people()
    whole = data.from_frame(
        frame.drop(columns=["value", "group"]), "risk", id="id", test_fraction=0.25, seed=3
    )
    vertical = whole.vertical(into={"bank": ["age", "income"], "telecom": ["plan", "bill"]}, label_at="bank")
    model = tacit.boost.train(vertical, **SETTINGS)
    assert model.rows == 300
    assert "100 test rows were not used" in model.notes[0]
    tables = {
        "bank": data.from_frame(frame[["id", "age", "income", "risk"]], "risk", id="id"),
        "telecom": data.from_frame(frame[["id", "plan", "bill"]], id="id"),
    }
    assert tacit.boost.train(tables, **SETTINGS).rows == ROWS


def test_parts_are_saved_and_read_and_have_only_their_own_splits(tmp_path) -> None:
    frame = people()
    tables = parties(frame, "risk")
    model = tacit.boost.train(tables, on="id", label="risk", **SETTINGS)
    place = model.save(tmp_path / "model")
    again = tacit.boost.load(place)
    rows = dict.fromkeys(tables, frame)
    assert np.array_equal(again.predict(rows), model.predict(rows))
    assert sorted(p.name for p in place.glob("*/part.json")) == ["part.json"] * 3
    assert model.importance("weight").sum() == sum(len(p.splits) for p in model.parts.values())
    texts = {n: (place / f"{n}" / "part.json").read_text() for n in tables}
    assert "bill" in texts["utility"]
    assert "bill" not in texts["bank"] + texts["telecom"]
    assert '"value"' in texts["bank"]
    assert '"value"' not in texts["utility"] + texts["telecom"]
    with pytest.raises(BadRun, match="already contains a party's part"):
        model.save(place)


@pytest.mark.parametrize(("center", "spread"), [(3e9, 1e6), (1e12, 1.0), (0.0, 1e9)])
def test_joint_predictions_of_large_numbers(tmp_path, center: float, spread: float) -> None:
    """Scores are words of 64 bits: large ones have a larger unit. The receiver does not have the label."""
    frame = people()
    tables = parties(frame.assign(value=center + spread * frame["value"]), "value")
    del tables["utility"]
    model = tacit.boost.train(tables, on="id", label="value", objective="regression", **SETTINGS)
    model.save(tmp_path / "parts")
    files = {}
    for name, table in tables.items():
        files[name] = str(tmp_path / f"{name}.csv")
        table.to_csv(files[name], index=False)
    predict_here(tmp_path / "parts", files, tmp_path / "out.csv", receiver="telecom")
    found = pd.read_csv(tmp_path / "out.csv").set_index("id")["prediction"]
    expected = model.predict({n: t.sort_values("id") for n, t in tables.items()})
    np.testing.assert_allclose(found.sort_index(), expected, rtol=1e-14)


def test_a_unit_of_scores_that_is_no_power_of_two_is_refused() -> None:
    frame = people()
    tables = parties(frame, "value")
    model = tacit.boost.train(tables, on="id", label="value", objective="regression", **SETTINGS)
    part = model.parts["telecom"]
    assert read_classes(part, ScoreClasses([], 4.0)) == ((), 4.0)
    for unit in (0.0, 0.5, 3.0, -2.0, float("nan"), float("inf")):
        with pytest.raises(ProtocolError, match="expected a power of two"):
            read_classes(part, ScoreClasses([], unit))
    with pytest.raises(ProtocolError, match="2 names of classes; expected 0"):
        read_classes(part, ScoreClasses(["a", "b"], 1.0))


def test_rows_of_different_people_are_not_predicted() -> None:
    frame = pd.DataFrame({"id": [f"A{k}" for k in range(60)], "age": range(60), "y": ["no", "yes"] * 30})
    tables = {"bank": frame, "telecom": frame[["id"]].assign(bill=[k % 7 for k in range(60)])}
    model = tacit.boost.train(tables, on="id", label="y", trees=2, depth=2, min_rows=5)
    found = model.predict(tables)
    lower = tables["telecom"].assign(
        id=tables["telecom"]["id"].str.lower()
    )  # the same ids, as psi compares them
    assert np.array_equal(model.predict(tables | {"telecom": lower}), found)
    without = {name: table.drop(columns="id") for name, table in tables.items()}
    assert np.array_equal(model.predict(without), found)
    with pytest.raises(BadData, match="row 1 of 'bank' and of 'telecom' have different ids"):
        model.predict(tables | {"telecom": tables["telecom"].iloc[::-1]})


def test_unseen_levels_and_missing_cells_are_predicted() -> None:
    frame = people()
    tables = {"bank": frame[["id", "age", "risk"]], "telecom": frame[["id", "calls", "plan"]]}
    model = tacit.boost.train(tables, on="id", label="risk", **SETTINGS)
    new = frame.head(5).assign(plan="never seen", calls=None, age=np.nan)
    assert np.isfinite(model.predict({"bank": new, "telecom": new.astype({"calls": float})})).all()


def test_small_cells_are_merged_with_the_largest() -> None:
    frame = pd.DataFrame(
        {"town": ["a"] * 30 + ["b"] * 12 + ["c"] * 3 + [None] * 5, "x": [1.0] * 46 + [2.0] * 4}
    )
    bins = OwnBins.fit(frame, [], 8, 10, "shop")
    assert bins.bins.features[0].levels == ("a", "b")
    assert bins.bins.features[1].cuts == ()
    counts = np.bincount(bins.encode(frame)[:, 0])
    assert counts.tolist() == [38, 12]  # c and the missing ones are with a


def test_unseen_levels_are_not_the_largest_level() -> None:
    """Where rare levels were merged with the largest, unseen ones are too; otherwise they are none of them."""
    frame = pd.DataFrame({"town": ["a"] * 30 + ["b"] * 12})
    new = pd.DataFrame({"town": ["a", "b", "new", None]})
    assert OwnBins.fit(frame, [], 8, 10, "shop").encode(new)[:, 0].tolist() == [0, 1, 2, 0]
    rare = pd.concat([frame, pd.DataFrame({"town": ["c"] * 3})])
    assert OwnBins.fit(rare, [], 8, 10, "shop").encode(new)[:, 0].tolist() == [0, 1, 0, 0]


def test_a_split_that_is_not_one_of_the_columns_is_refused() -> None:
    frame = people()
    bins = OwnBins.fit(frame[["age", "plan"]], [], 8, 10, "bank").bins
    cells = bytes(32)
    assert OwnSplit.read(bytes([0, 0, 3, 1]) + cells, bins).left[:5] == (True, True, True, True, False)
    for record in (
        bytes([2, 0, 0, 0]) + cells,  # no third column
        bytes([0, 0, 250, 0]) + cells,  # no such cut
        bytes([0, 0, 0, 2]) + cells,  # a set of a number
        bytes([1, 0, 0, 0]) + cells,  # a cut of a category
        bytes([0, 0, 0, 4]) + cells,
        bytes([0, 0, 0, 0]),
    ):
        with pytest.raises(BadData, match="a split is not one of"):
            OwnSplit.read(record, bins)


def test_bad_input_is_one_clear_error() -> None:
    frame = people(60)
    tables = {"bank": frame[["id", "age", "risk"]], "telecom": frame[["id", "calls"]]}
    with pytest.raises(BadParameter, match=r"reveal.*left out for parties with the same columns"):
        tacit.boost.train({"a": frame, "b": frame}, label="risk", reveal="splits")
    for options, message in (
        ({"monotone": {"age": 1}}, "monotone.*left out for vertical parties"),
        ({"reveal": "all"}, "reveal"),
        ({"backend": "paillier"}, "backend is 'paillier'; it must be one of 'auto', 'shares', 'he'"),
        ({"backend": "he", "reveal": "splits"}, "'sums' with backend='he'. Only a helper can search"),
        ({"depth": 9}, "depth"),
        ({"label": "nothing"}, "a column of exactly one party; none have it"),
        ({"label": "age"}, "'binary' for two classes, 'multiclass' for more"),
        ({"categories": ["nothing"]}, "categories"),
        ({"guard": tacit.guard.SecAgg()}, "guard"),
    ):
        with pytest.raises(BadParameter, match=message):
            tacit.boost.train(tables, **{"on": "id", "label": "risk", **options})
    with pytest.raises(BadData, match="has no column 'number'"):
        tacit.boost.train(tables, on="number", label="risk")
    with pytest.raises(BadData, match="not a number, as objective 'regression' needs"):
        tacit.boost.train(tables, on="id", label="risk", objective="regression")
    for change, message in (
        (lambda f: pd.concat([f, f[["calls"]]], axis=1), "two columns are named 'calls'"),
        (lambda f: f.assign(**{"1": 0}).rename(columns={"calls": 1}), "two columns are named '1'"),
        (lambda f: f.rename(columns={"calls": 7}), "a column whose name is not a text: 7"),
        (lambda f: f[["id"]], "the table of 'telecom' has no columns beside its id"),
        (lambda f: f.assign(since=pd.to_timedelta(f["id"], unit="D")), "'since' contains dates"),
    ):
        with pytest.raises(BadData, match=message):
            tacit.boost.train({**tables, "telecom": change(tables["telecom"])}, on="id", label="risk")
    with pytest.raises(BadData, match="share no people"):
        tacit.boost.train({**tables, "telecom": tables["telecom"].assign(id=1)[:1]}, on="id", label="risk")
    with pytest.raises((BadData, PartyFailed), match="held_out"):
        tacit.boost.train(tables, on="id", label="risk", held_out=0.0001, seed=1)


def test_a_party_with_more_cells_than_a_byte_has_values_trains_the_pooled_trees() -> None:
    """Twelve columns of 32 bins: the place of a cell among all of them is above 255."""
    rng = np.random.default_rng(4)
    wide = pd.DataFrame({f"x{k}": rng.normal(size=600) for k in range(13)})
    wide["y"] = (wide.x0 + wide.x12 - wide.x5 + rng.logistic(size=600) > 0).astype(int)
    people = [f"p{k}" for k in range(600)]
    parties = {
        "bank": wide[["x0", "y"]].assign(id=people),
        "telecom": wide.drop(columns=["x0", "y"]).assign(id=people),
    }
    options = {"label": "y", "trees": 2, "depth": 3, "bins": 32, "min_rows": 10}
    pooled = tacit.boost.train({"all": wide}, **options)
    for backend in ("shares", "he"):
        found = tacit.boost.train(parties, on="id", backend=backend, **options)
        assert np.abs(found.predict(parties) - pooled.predict(wide)).max() < 1e-6
