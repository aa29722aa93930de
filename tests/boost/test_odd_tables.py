"""Tables that would be misread, and calls that users of other libraries make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import cli
from tacit.errors import BadData, BadParameter

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"x": RNG.normal(size=120).round(2), "z": RNG.integers(0, 5, 120)})
TABLE["y"] = (TABLE["x"] + RNG.normal(size=120) > 0).astype(int)
FEW = {"label": "y", "trees": 2, "depth": 2}


def parties(table: pd.DataFrame = TABLE) -> dict[str, pd.DataFrame]:
    return {"a": table[:60].reset_index(drop=True), "b": table[60:].reset_index(drop=True)}


def test_a_column_of_numbers_at_one_party_and_text_at_another_is_refused():
    """Before, every number became a level of a category, in silence."""
    mixed = parties()
    mixed["b"]["z"] = mixed["b"]["z"].map(lambda v: f"level {v}")
    with pytest.raises(BadData, match=r"'z' is a number at 'a' and text at 'b' \('level"):
        tacit.boost.train(mixed, **FEW)
    assert tacit.boost.train(mixed, **FEW, categories=["z"]).rows == 120


def test_a_word_among_numbers_is_refused_and_categories_of_words_are_not():
    found = TABLE.assign(z=TABLE["z"].astype(object).where(TABLE.index != 70, "unknown"))
    with pytest.raises(BadData, match="table of 'b': column 'z' contains 'unknown' among numbers"):
        tacit.boost.train(parties(found), **FEW)
    people = found.assign(id=[f"p{k}" for k in range(120)])
    tables = {"a": people[["id", "y", "x"]], "b": people[["id", "z"]]}
    with pytest.raises(BadData, match="contains 'unknown' among numbers"):
        tacit.boost.train(tables, on="id", **FEW)
    codes = TABLE.assign(z=[["3a", "4b", "7"][k % 3] for k in range(120)])
    assert tacit.boost.train(parties(codes), **FEW).rows == 120


def test_with_an_epsilon_no_cell_is_a_reason_to_refuse():
    """A neighbor with one word, one list or no value among declared numbers trains as well."""
    private = {"epsilon": 1.0, "labels": [0, 1], "bounds": {"x": (-4, 4), "z": (0, 5)}}
    for cell in ("unknown", [1, 2], None, np.inf):
        column = TABLE["z"].astype(object)
        column.at[3] = cell
        assert tacit.boost.train(parties(TABLE.assign(z=column)), **FEW, **private).booster.rounds == 2


def test_a_party_without_values_does_not_make_a_category():
    known = parties()
    known["b"]["z"] = None
    model = tacit.boost.train(known, **FEW)
    assert model.booster.bins.features[1].levels is None


def test_whole_numbers_larger_than_64_bits_are_numbers():
    """They ended in a RecursionError. One that no float holds is infinite."""
    column = TABLE["z"].astype(object)
    column.at[3] = 10**30
    assert tacit.boost.train(parties(TABLE.assign(z=column)), **FEW).rows == 120
    column.at[3] = 10**400
    with pytest.raises(BadData, match="infinite values"):
        tacit.boost.train(parties(TABLE.assign(z=column)), **FEW)


def test_cells_that_are_lists_are_refused_by_column():
    with pytest.raises(BadData, match="column 'w' contains list objects"):
        tacit.boost.train(parties(TABLE.assign(w=[[1, 2]] * 120)), **FEW)


def test_a_label_at_one_party_only_names_on():
    with pytest.raises(BadData, match=r"has no label 'y'.*give on=, the id column"):
        tacit.boost.train({"a": TABLE, "b": TABLE[["x"]]}, **FEW)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("eta", "learning_rate"), ("n_estimators", "trees"), ("max_depth", "depth"), ("reg_lambda", "l2")],
)
def test_names_of_xgboost_are_translated(theirs, ours):
    with pytest.raises(TypeError, match=f"{theirs}'. Here it is called '{ours}'"):
        tacit.boost.train(parties(), label="y", **{theirs: 1})


def test_prediction_needs_a_table(tmp_path):
    model = tacit.boost.train(parties(), **FEW)
    with pytest.raises(BadData, match="DataFrame with the columns x, z; got ndarray"):
        model.predict(TABLE[["x", "z"]].to_numpy())
    with pytest.raises(BadParameter, match="there is no directory"):
        model.save(tmp_path / "none" / "model.json")


def test_the_levels_kept_of_a_column_with_very_many_do_not_depend_on_the_parties():
    """254 are kept; among equally frequent ones, they were those of the first party's first rows."""
    many = TABLE.assign(name=[f"n{k}" for k in RNG.permutation(120)])
    many = pd.concat([many, many.assign(name=[f"m{k}" for k in range(120)])] * 2, ignore_index=True)
    many = pd.concat([many, many[:120].assign(name=[f"k{k}" for k in range(120)])], ignore_index=True)
    apart = {"a": many[1::2].reset_index(drop=True), "b": many[::2].reset_index(drop=True)}
    models = [tacit.boost.train(fed, **FEW) for fed in (apart, {"all": many})]
    assert models[0].booster.bins == models[1].booster.bins
    np.testing.assert_array_equal(*(model.predict(many) for model in models))
    assert "'name' has 360 levels: the 240 of which a party has 2 rows are used" in models[0].notes[0]
    often = pd.concat([many, many], ignore_index=True)
    model = tacit.boost.train({"all": often}, **FEW)
    assert "'name' has 360 levels: the 254 most frequent are used" in model.notes[0]


def test_dates_of_a_federation_are_not_left_out_in_silence():
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(TABLE.index, unit="D")
    fed = tacit.data.from_frames(parties(TABLE.assign(day=day)), label="y", dates={"day": ["year"]})
    assert tacit.boost.train(fed, trees=1).notes == (
        "Dates are not used: 'day'. Add columns of numbers, like days since a date, to use them.",
    )


def test_a_column_that_is_missing_at_prediction_is_named_with_a_similar_one():
    model = tacit.boost.train(parties(), **FEW)
    with pytest.raises(
        BadData, match=r"^the table has no column 'z'; the model needs it\. Did you mean 'Z'\?"
    ):
        model.predict(TABLE.rename(columns={"z": "Z"}))
    with pytest.raises(BadData, match=r"^the table has no columns 'x', 'z'; the model needs them\.$"):
        model.predict(TABLE[["y"]])
    with pytest.raises(BadData, match=r"text: frame.rename\(columns=str\)"):
        tacit.boost.train(parties(TABLE.rename(columns={"z": "7"})), **FEW).predict(
            TABLE.rename(columns={"z": 7})
        )


def test_codes_of_missing_values_are_missing_at_prediction_too(tmp_path, monkeypatch, capsys):
    """Before, a federation's codes were missing values in training and numbers in new rows."""
    monkeypatch.chdir(tmp_path)
    gaps = TABLE["x"].mask(TABLE.index % 5 == 0)
    cities = pd.Series(["a", "b", "unknown"] * 40)
    coded = TABLE.assign(x=gaps.fillna(-9999), town=cities)
    plain = TABLE.assign(x=gaps, town=cities.mask(cities == "unknown"))
    codes = {"x": [-9999], "town": ["unknown"]}
    expected = tacit.boost.train(parties(plain), **FEW).predict(plain)
    fed = tacit.data.from_frames(parties(coded), label="y", test_fraction=0, missing_codes=codes)
    given = {"missing_codes": codes, **FEW}
    model = tacit.boost.train(parties(coded), **given)
    np.testing.assert_array_equal(model.predict(coded), expected)
    for found in (tacit.boost.train(fed, trees=2, depth=2), model):
        np.testing.assert_array_equal(found.predict(coded), found.predict(plain))
        np.testing.assert_array_equal(np.isnan(found.encode(coded)[:, 0]), gaps.isna())
    np.testing.assert_array_equal(tacit.boost.load(model.save("model.json")).predict(coded), expected)
    coded.to_csv("new.csv", index=False)
    assert cli.main(["predict", "model.json", "new.csv", "--out", "scored.csv"]) == 0
    np.testing.assert_allclose(pd.read_csv("scored.csv")["p(1)"], expected)
    with pytest.raises(BadParameter, match="the model declares codes of missing values, in 'x', 'town'"):
        tacit.infer(model, coded.head(2).drop(columns="y"))
    with pytest.raises(BadParameter, match="missing_codes is 'q'; it must be one of the model's columns"):
        tacit.boost.train(parties(), **FEW, missing_codes={"q": [1]})

    woe = tacit.boost.woe(fed, bins=3, min_rows=5)
    pd.testing.assert_frame_equal(woe.transform(coded), woe.transform(plain))
    card = woe.scorecard()
    kept = tacit.boost.load_scorecard(card.save("card.json"))
    np.testing.assert_array_equal(kept.score(coded), kept.score(plain))


def test_codes_of_missing_values_in_job_files_are_kept_by_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    coded = TABLE.assign(x=TABLE["x"].where(TABLE.index % 5 != 0, -9999))
    for name, frame in parties(coded).items():
        frame.to_csv(f"{name}.csv", index=False)
    files = '[parties]\na = "a.csv"\nb = "b.csv"\n'
    job = '[boost]\nlabel = "y"\nfeatures = ["x", "z"]\ntrees = 2\ndepth = 2\n{}[data]\n{}' + files
    Path("boost.toml").write_text(job.format("missing_codes = { x = [-9999] }\n", ""))
    assert cli.main(["boost", "boost.toml", "--out", "model.json"]) == 0
    expected = tacit.boost.train(parties(coded), **FEW, missing_codes={"x": [-9999]}).predict(coded)
    np.testing.assert_array_equal(tacit.boost.load("model.json").predict(coded), expected)
    Path("boost.toml").write_text(job.format("", "missing_codes = { x = [-9999] }\n"))
    assert cli.main(["boost", "boost.toml", "--out", "other.json"]) == 2
    assert "missing_codes must be in [boost], because the model keeps them" in capsys.readouterr().err


def test_with_an_epsilon_a_declared_code_is_a_missing_value_and_not_the_lower_bound():
    private = {"epsilon": 2.0, "labels": [0, 1], "bounds": {"x": (-4, 4), "z": (0, 5)}, **FEW}
    model = tacit.boost.train(parties(), **private, missing_codes={"x": [-9999]})
    code, gap = TABLE.assign(x=-9999.0), TABLE.assign(x=np.nan)
    np.testing.assert_array_equal(model.predict(code), model.predict(gap))


def test_codes_of_a_vertical_table_are_missing_at_prediction_too():
    people = TABLE.assign(id=[f"p{k}" for k in range(120)], x=TABLE["x"].where(TABLE.index % 3 != 0, -9999))
    bank = tacit.data.from_frame(people[["id", "y", "z"]], "y", id="id")
    telecom = tacit.data.from_frame(people[["id", "x"]], id="id", missing_codes={"x": [-9999]})
    tables = {"bank": bank, "telecom": telecom}
    model = tacit.boost.train(tables, trees=2, depth=2, min_rows=5)
    gaps = people.assign(x=people["x"].mask(people["x"] == -9999))
    scores = [model.predict({"bank": t[["id", "z"]], "telecom": t[["id", "x"]]}) for t in (people, gaps)]
    np.testing.assert_array_equal(*scores)
    woe = tacit.boost.woe(tables, label="y", min_rows=5)
    pd.testing.assert_series_equal(*(woe.transform(t)["x"] for t in (people, gaps)))
    with pytest.raises(BadData, match="expected a pandas DataFrame with the columns of all bins; got dict"):
        woe.transform(tables)
    with pytest.raises(BadParameter, match=r"missing_codes.* declare them with the table"):
        tacit.boost.woe(tables, label="y", missing_codes={"x": [-9999]})
    with pytest.raises(BadParameter, match="epsilon is 1; it must be None for tables with missing_codes"):
        tacit.boost.woe(tables, label="y", epsilon=1, labels=[0, 1], bounds={"x": (-4, 4), "z": (0, 5)})


def test_a_value_of_one_row_is_not_listed_in_the_model_of_a_column_with_very_many(tmp_path):
    """The saved model had 254 ids of patients among its levels, and as many dates of birth."""
    table = pd.concat([TABLE] * 4, ignore_index=True)
    born = pd.Timestamp("1950-01-01") + pd.to_timedelta(np.arange(480) // 1.5, unit="D")
    table = table.assign(patient=[f"P{k:05}" for k in range(480)], born=born.strftime("%d.%m.%Y"))
    table = table.sample(frac=1, random_state=0)  # equal dates are at one party, or at both
    apart = {"a": table[1::2].reset_index(drop=True), "b": table[::2].reset_index(drop=True)}
    model = tacit.boost.train(apart, categories=["patient", "born"], **FEW)
    model.save(tmp_path / "model.json")
    text = (tmp_path / "model.json").read_text()
    assert not [v for v in table["patient"] if v in text]
    days = table["born"].value_counts()
    assert (days > 1).sum() == 160
    at_one = {day for frame in apart.values() for day, n in frame["born"].value_counts().items() if n > 1}
    assert {v for v in days.index if v in text} == at_one
    assert model.notes[0].startswith("'patient' is not used: no party has 2 rows with one of its values")
    assert f"'born' has 320 levels: the {len(at_one)} of which a party has 2 rows are used" in model.notes[1]
    assert np.isfinite(tacit.boost.load(tmp_path / "model.json").predict(table)).all()


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d %H:%M:%S", "%H:%M"])
def test_dates_as_text_are_refused_as_by_a_federation_of_tables(form):
    """They were levels: the model had a leaf for a day."""
    days = pd.Timestamp("1950-01-01") + pd.to_timedelta(np.arange(120) * 40.3, unit="h")
    table = TABLE.assign(born=days.strftime(form).where(np.arange(120) % 7 > 0))
    with pytest.raises(
        BadData, match=r"the column 'born' contains (date|time)s, like .*dates or times, not categories"
    ):
        tacit.data.from_frame(table, "y")
    with pytest.raises(
        BadData, match=r"'a': column 'born' contains (date|time)s, like .*not categories. Convert it"
    ):
        tacit.boost.train({"a": table}, **FEW)
    with pytest.raises(BadData, match=r"if it is a category, declare all: categories=\['born', …\]"):
        tacit.boost.woe({"a": table}, label="y")
    people = table.assign(id=[f"p{k}" for k in range(120)])
    with pytest.raises(
        BadData, match=r"'b': column 'born' contains (date|time)s, like .*not categories. Convert"
    ):
        tacit.boost.train({"a": people[["id", "y", "x"]], "b": people[["id", "born"]]}, on="id", **FEW)
    declared = tacit.boost.train({"a": table}, categories=["born"], **FEW)
    assert "born" in declared.booster.bins.names


def test_a_label_of_words_is_refused_by_objectives_of_numbers():
    """A function ended with pandas' ValueError, and 'poisson' advised to declare the label as a category."""
    words = parties(TABLE.assign(y=TABLE["y"].map({0: "no", 1: "yes"})))
    with pytest.raises(
        BadData, match=r"'y' is not numeric.*or convert it: objective is a function of numbers"
    ):
        tacit.boost.train(words, objective=lambda m, y: (m - y, np.ones(len(y))), **FEW)
    with pytest.raises(
        BadData, match=r"'y' is not numeric.*or if it has classes, set objective='multiclass'"
    ):
        tacit.boost.train(words, objective="poisson", **FEW)


def test_totals_and_spellings_of_the_label_in_job_files_are_read_as_meant(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named = TABLE.assign(y=np.where(TABLE["y"] > 0, "yes", "no"))
    for name, frame in parties(named).items():
        odd = frame.assign(
            x=frame["x"].astype(object), y=frame["y"].mask(frame.index % 3 == 0, frame["y"] + " ")
        )
        pd.concat([odd, odd.head(1).assign(x="Total")]).to_csv(f"{name}.csv", index=False)
    spelled = '{ "yes " = "yes", "no " = "no" }'
    job = '[boost]\nlabel = "y"\nlabels = ["no", "yes"]\nfeatures = ["x", "z"]\ntrees = 2\ndepth = 2\n'
    job += '[data]\ndrop_rows = {{ x = ["Total"] }}\nspellings = {{ {} = ' + spelled.replace(
        "{", "{{"
    ).replace("}", "}}")
    job += ' }}\n[parties]\na = "a.csv"\nb = "b.csv"\n'
    Path("boost.toml").write_text(job.format("y"))
    assert cli.main(["boost", "boost.toml", "--out", "model.json"]) == 0, capsys.readouterr().err
    expected = tacit.boost.train(parties(named), **FEW, labels=["no", "yes"]).predict(named)
    np.testing.assert_array_equal(tacit.boost.load("model.json").predict(named), expected)
    Path("boost.toml").write_text(job.format("z"))
    assert cli.main(["boost", "boost.toml", "--out", "other.json"]) == 2
    assert "spellings of 'z', and this model does not keep them for new rows" in capsys.readouterr().err
