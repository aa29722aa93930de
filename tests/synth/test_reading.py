"""How tables are read before a fit: dates, codes, ids, declared words for missing; people; dependencies."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pandas as pd
import pytest

from tacit import synth
from tacit.data.table_files import read_table
from tacit.errors import BadData, BadParameter
from tacit.jobs.anonymize import compare_limits
from tacit.synth.dependencies import find_dependencies
from tacit.synth.reading import find_date_format
from tests.cli.shell import run


def born(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("1930-01-01") + pd.to_timedelta(rng.integers(0, 25_000, n), unit="D")
    return pd.DataFrame({"born": days.strftime("%d.%m.%Y"), "sex": rng.choice(["f", "m"], n)})


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["31.12.1990", "01.02.1991"], "%d.%m.%Y"),
        (["1.2.1990"], "%d.%m.%Y"),
        (["31/12/1990", "01/02/1991"], "%d/%m/%Y"),
        (["12/31/1990", "01/02/1991"], "%m/%d/%Y"),
        (["31-12-1990 23:59"], "%d-%m-%Y %H:%M"),
        (["31/12/1990", "12/31/1990"], None),
        (["31.12.1990", "n"], None),
        (["a"], None),
        ([], None),
    ],
)
def test_the_order_of_day_and_month_follows_from_the_values(values, found):
    assert find_date_format(values, "born") == found


def test_dates_that_may_be_either_are_refused_until_they_are_declared():
    frame = pd.DataFrame({"born": ["01/02/1990", "03/04/1991"] * 20})
    with pytest.raises(BadData, match=r"no value tells whether the day .*timestamp\(format='%d/%m/%Y'\)"):
        synth.Table.infer(frame)
    table = synth.Table.infer(frame, born=synth.timestamp(format="%m/%d/%Y"))
    x = table.to_numbers(frame)
    assert pd.Timestamp(x[0, 0], unit="s") == pd.Timestamp("1990-01-02")


def test_day_first_dates_are_dates_and_birth_dates_are_not_copied():
    """Issue 22: they became categories, and all real birth dates were emitted."""
    frame = born()
    table = synth.Table.infer(frame)
    assert [c.kind for c in table.columns] == ["datetime", "categorical"]
    made = synth.GaussianCopula(seed=0).fit(frame).sample(400, seed=1)
    assert made["born"].str.fullmatch(r"\d\d\.\d\d\.\d{4}").all()
    assert made["born"].isin(set(frame["born"])).mean() < 0.2


def test_codes_of_diagnoses_are_categories_and_patients_are_ids():
    rng = np.random.default_rng(0)
    codes = [
        f"{rng.choice(list('ABCDEI'))}{rng.integers(0, 99):02d}.{rng.integers(0, 9)}" for _ in range(300)
    ]
    frame = pd.DataFrame({"icd": codes, "who": [f"P{i:03d}" for i in range(300)]})
    assert frame["icd"].nunique() > 0.9 * len(frame)
    table = synth.Table.infer(frame)
    assert {c.name: c.kind for c in table.columns} == {"icd": "categorical", "who": "id"}


def test_the_table_of_columns_says_what_deserves_a_look():
    rng = np.random.default_rng(1)
    frame = born(500).assign(
        patient_nbr=rng.integers(0, 200, 500) + 1000,
        town=["Rare"] * 3 + ["Zug"] * 497,
        age=[117, *rng.integers(20, 80, 499)],
    )
    frame.loc[:3, "sex"] = None
    shown = synth.describe(frame, synth.Table.infer(frame))
    assert shown.loc["born", "kind"] == "datetime"
    assert shown.loc["born", "note"] == "dates written as %d.%m.%Y"
    assert shown.loc["sex", "missing"] == 4
    assert shown.loc["town", "rare"] == 1
    assert shown.loc["age", "values"] == "20 to 117"
    assert shown.loc["age", "rare"] > 0
    assert "may be an id with repeats" in shown.loc["patient_nbr", "note"]
    with pytest.warns(
        synth.IdentifierWarning, match=r"'patient_nbr' has \d+ different .*person='patient_nbr'"
    ):
        synth.Independent().fit(frame)


def test_declared_words_are_no_missing_values(tmp_path):
    (tmp_path / "a.csv").write_text("zip,grade,x\n01201,NA,1\n1201,?,2\n,A,NA\n")
    plain = read_table(tmp_path / "a.csv")
    assert plain["zip"].tolist()[:2] == ["01201", "1201"]
    assert plain["grade"].isna().sum() == 2
    kept = read_table(tmp_path / "a.csv", declared={"grade": ["NA", "?", "A"], "absent": ["q"]})
    assert kept["grade"].tolist() == ["NA", "?", "A"]
    assert kept["x"].isna().sum() == 1


def test_the_command_keeps_declared_words_and_prints_how_columns_were_read(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [
        f"0{rng.integers(1200, 1204)},{rng.choice(['NA', '?', 'A'])},{rng.integers(9)}" for _ in range(200)
    ]
    (tmp_path / "a.csv").write_text("zip,grade,x\n" + "\n".join(rows) + "\n")
    (tmp_path / "c.toml").write_text('grade = {kind = "categorical", values = ["NA", "?", "A"]}\n')
    code, _, messages = run(
        capsys,
        *("synth", str(tmp_path / "a.csv"), "--model", "independent"),
        *("--columns", str(tmp_path / "c.toml"), "--out", str(tmp_path / "b.csv")),
    )
    assert code == 0, messages
    assert "how each column was read:" in messages
    made = pd.read_csv(io.StringIO((tmp_path / "b.csv").read_text()), dtype=str, keep_default_na=False)
    assert set(made["grade"]) == {"NA", "?", "A"}
    assert set(made["zip"]) <= {"01200", "01201", "01202", "01203"}


def test_two_columns_of_one_name_are_an_error_everywhere():
    frame = pd.DataFrame(np.arange(90).reshape(30, 3), columns=["a", "b", "b"])
    for call in (
        lambda: synth.Table.infer(frame),
        lambda: synth.Cart().fit(frame),
        lambda: synth.evaluate(frame, frame, frame),
    ):
        with pytest.raises(BadData, match="'b'"):
            call()


def test_two_rows_are_refused():
    with pytest.raises(BadData, match="at least 20"):
        synth.Cart().fit(pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}))


# people with several rows


def visits(people: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(people), rng.integers(2, 12, people))
    town = np.where(person == 0, "Nowhere", rng.choice(["Bern", "Basel"], people)[person])
    return pd.DataFrame(
        {
            "patient_nbr": person + 500,
            "town": town,
            "cost": np.where(person == 0, 9e6, rng.normal(100, 10, len(person)).round(1)),
        }
    )


def test_the_floor_counts_people():
    """Person 0 has twelve rows: more than the floor by rows, and one person."""
    frame = pd.concat([visits(), visits().iloc[[0] * 12]], ignore_index=True)
    by_rows = synth.Independent().fit(frame.drop(columns="patient_nbr"))
    by_people = synth.Independent().fit(frame, person="patient_nbr")
    assert "Nowhere" in by_rows.sample(2000)["town"].unique()
    made = by_people.sample(2000)
    assert set(made["town"]) == {"Bern", "Basel"}
    assert made["cost"].max() < 1000
    assert "patient_nbr" not in made


def test_a_private_generator_uses_one_row_of_each_person_and_its_unit_is_a_person():
    columns = {"town": synth.categorical(["Bern", "Basel", "Nowhere"])}
    frame = visits(400).drop(columns="cost")
    made = synth.MST(epsilon=50.0).fit(frame, columns, person="patient_nbr")
    assert made.ledger.spent[0].unit.startswith("person (patient_nbr), added or removed")
    with pytest.raises(BadParameter, match="a column that `table` does not declare"):
        synth.MST().fit(frame, {**columns, "patient_nbr": synth.identifier()}, person="patient_nbr")


def test_evaluation_refuses_people_on_both_sides():
    frame = visits()
    made = synth.Independent().fit(frame, person="patient_nbr").sample(100)
    with pytest.raises(BadData, match=r"1 people .* have rows in the real table and in the holdout"):
        synth.evaluate(frame, made, frame[frame["patient_nbr"] == 503], person="patient_nbr")


# functional dependencies


def addresses(n: int = 1500, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    towns = {f"{8000 + i}": f"Town {i // 4}" for i in range(40)}
    zips = rng.choice(list(towns), n, p=rng.dirichlet(np.full(40, 0.5)))
    town = np.array([towns[z] for z in zips])
    canton = np.array([f"C{int(t.split()[1]) // 3}" for t in town])
    return pd.DataFrame(
        {"zip": "Z" + pd.Series(zips), "town": town, "canton": canton, "age": rng.integers(20, 80, n)}
    )


@pytest.mark.parametrize(
    "generator", [synth.Cart(), synth.GaussianCopula(), synth.Bayes(), synth.Independent()]
)
def test_columns_that_another_one_determines_keep_to_it(generator):
    """Issue 22: 14% impossible rows from Cart, 99% from the copula."""
    frame = addresses()
    possible = set(map(tuple, frame[["zip", "town", "canton"]].to_numpy()))
    made = generator.fit(frame).sample(1500)
    assert set(map(tuple, made[["zip", "town", "canton"]].to_numpy())) <= possible
    assert any(set(c.columns) == {"zip", "town", "canton"} for c in generator.table.constraints)


def test_dependencies_can_be_left_out():
    assert synth.Independent().fit(addresses(), dependencies=False).table.constraints == ()


def test_dependencies_by_chance_are_not_kept():
    """Ten values of a, and a rare b: it holds one value in nine of ten by chance alone."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, 10, 60), rng.random(60) < 0.01, np.arange(60)]).astype(float)
    x[0, 1] = 1.0
    assert find_dependencies(x, [0, 1, 2]) == []


def test_a_chain_is_one_group_and_a_copy_is_found():
    a = np.repeat(np.arange(12), 20).astype(float)
    x = np.column_stack([a, a // 2, a // 6, a * 10, np.tile(np.arange(20), 12)])
    assert find_dependencies(x, range(5)) == [[0, 1, 2, 3]]


def test_loss_by_the_limit_of_suppression():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 80, 400), "zip": rng.choice(["1", "2", "3"], 400)})
    table = compare_limits(frame, [0.0, 0.05, 0.3], quasi=["age", "zip"], k=5)
    assert table.index.tolist() == [0.0, 0.05, 0.3]
    assert table["loss"].is_monotonic_decreasing
    assert (table["suppressed"] <= 400 * table.index).all()
    assert json.loads(table.to_json())["loss"]
    with pytest.raises(BadParameter, match="left out: `limits` gives it"):
        compare_limits(frame, quasi=["age", "zip"], max_suppressed=0.1)


def test_travelers_stored_as_floats_are_recognized_as_people_with_several_rows():
    """A table of statsmodels: 210 travelers with four rows each, numbered 1.0, 2.0, …"""
    from statsmodels.datasets import modechoice

    frame = modechoice.load_pandas().data
    with pytest.warns(synth.IdentifierWarning, match=r"'individual' has 210 different"):
        synth.Independent().fit(frame)
    amounts = frame.assign(individual=frame.individual + 0.5)  # no whole numbers, so no numbers of people
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        synth.Independent().fit(amounts)


def test_the_ends_of_dates_are_shown_as_dates_and_those_of_times_as_times():
    days = pd.Series([f"{d:02d}.03.2024" for d in range(1, 31)])
    times = pd.Series([f"2024-03-{d:02d}T08:15:00" for d in range(1, 31)])
    frame = pd.DataFrame({"born": days, "seen": times})
    values = synth.describe(frame, synth.Table.infer(frame))["values"]
    assert values["born"] == "2024-03-01 to 2024-03-30"
    assert values["seen"] == "2024-03-01T08:15:00 to 2024-03-30T08:15:00"


def test_codes_for_missing_and_columns_without_values_are_named_before_the_fit():
    """-9999 was learned as a measurement, and values between it and the others were sampled."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"lab": rng.normal(5, 1, 200).round(1), "age": rng.integers(18, 90, 200), "e": None})
    frame.loc[::20, "lab"] = -9999.0
    notes = synth.describe(frame, synth.Table.infer(frame))["note"]
    assert notes["lab"].startswith("-9999: far from the other values")
    assert (notes["age"], notes["e"]) == ("", "no row has a value: drop the column")


def test_a_column_without_values_is_refused_with_what_helps():
    """The error said that no value was shared by 10 rows, and advised to merge values."""
    frame = born().assign(e=None)
    with pytest.raises(BadData, match=r"no row has a value of the column 'e'.* Drop it\.$"):
        synth.Cart(seed=0).fit(frame)
