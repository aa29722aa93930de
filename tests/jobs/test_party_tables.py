"""[data] of real parties: people, times, small sites and noisy statistics, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit.data.pipeline import Pipeline
from tacit.data.private_preparation import PrivatePreparation
from tacit.errors import BadData, BadJob, BadParameter
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.elsewhere import Deployed, Elsewhere
from tacit.jobs.train.party_rows import read_layout, read_party_table
from tacit.jobs.train.plan import make_plan
from tacit.jobs.train.preparing import program_of
from tacit.protocols.sum_program import ideal

LAYOUT: dict[str, Any] = {
    "label": "ill",
    "labels": ["no", "yes"],
    "numbers": ["age"],
    "categories": {"sex": ["f", "m"]},
    "held_fraction": 0.3,
}


def visits(people: int = 60, seed: int = 0) -> pd.DataFrame:
    """Patients with 1 to 6 visits each, over four years."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), rng.integers(1, 7, people))
    n = len(who)
    return pd.DataFrame(
        {
            "patient": [f"p{k:03}" for k in who],
            "day": pd.Timestamp("2014-01-01") + pd.to_timedelta(rng.integers(0, 1400, n), "D"),
            "age": rng.normal(50, 10, n).round(1),
            "sex": rng.choice(["f", "m"], n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )


def read(folder: Path, frame: pd.DataFrame, one_by_one: bool = False, **layout: Any) -> Any:
    frame.to_csv(folder / "own.csv", index=False)
    return read_party_table("a", folder / "own.csv", {**LAYOUT, **layout}, 0, one_by_one)


@pytest.mark.parametrize("one_by_one", [False, True], ids=["in order", "one by one"])
def test_rows_of_one_person_are_on_one_side(one_by_one: bool, tmp_path: Path) -> None:
    table = read(tmp_path, visits(), one_by_one, group="patient")
    who = table.frame["patient"].to_numpy()
    train, held = (set(who[rows.numpy()]) for rows in (table.train, table.held))
    assert not train & held
    assert train | held == set(who)
    assert 0.1 < len(table.held) / len(who) < 0.5
    assert len(table.train) + len(table.held) == len(who)
    fed = table.encode()
    assert len(set(fed.persons[fed.train.index].tolist())) == len(train)


def test_a_person_moves_nobody_else_between_training_and_held_out_rows(tmp_path: Path) -> None:
    """ε is for one person more or less, wherever their rows are in the file."""
    frame = visits()
    sides = {}
    for gone in (None, "p000", "p031", "p059"):
        table = read(tmp_path, frame[frame["patient"] != gone], True, group="patient")
        sides[gone] = set(table.frame["patient"].to_numpy()[table.held.numpy()])
    assert all(side == sides[None] - {gone} for gone, side in sides.items())
    other = read_party_table("a", tmp_path / "own.csv", {**LAYOUT, "group": "patient"}, 1, True)
    assert set(other.frame["patient"].to_numpy()[other.held.numpy()]) != sides[None]


@pytest.mark.parametrize("odd", ["x12", "7.5", "2.50"])
def test_how_a_column_of_ids_is_read_moves_nobody(odd: str, tmp_path: Path) -> None:
    """One id that is no integer makes pandas read the others as floats, or as texts."""
    frame = visits()
    frame["patient"] = frame["patient"].str[1:].astype(int).astype(str)
    sides = []
    for part in (frame, pd.concat([frame, frame.iloc[:2].assign(patient=odd)])):
        table = read(tmp_path, part, True, group="patient")
        held = table.frame["patient"].iloc[table.held.numpy()].astype(str)
        sides.append({text for text in held if text != odd and not text.startswith(odd.rstrip("0"))})
    assert {float(t) for t in sides[0]} == {float(t) for t in sides[1]}


def test_later_rows_are_held_out_and_earlier_rows_of_their_people_are_left_out(tmp_path: Path) -> None:
    layout = {k: v for k, v in LAYOUT.items() if k != "held_fraction"}
    frame = visits()
    frame.to_csv(tmp_path / "own.csv", index=False)
    after = {"time": "day", "test_after": "2016-06-01"}
    late = (frame["day"] >= "2016-06-01").to_numpy()
    plain = read_party_table("a", tmp_path / "own.csv", layout | after, 0)
    assert set(plain.held.tolist()) == set(np.flatnonzero(late))
    assert set(plain.train.tolist()) == set(np.flatnonzero(~late))
    table = read_party_table("a", tmp_path / "own.csv", layout | after | {"group": "patient"}, 0)
    tested = set(frame["patient"][late])
    assert set(table.held.tolist()) == set(np.flatnonzero(late))
    assert set(table.train.tolist()) == set(np.flatnonzero(~frame["patient"].isin(tested)))
    dated = layout | {"dates": {"day": ["year"]}, "test_after": "2016-06-01"}  # the first date is the time
    assert read_layout(dated).time == "day"


def test_a_small_site_is_refused_or_contributes_nothing(tmp_path: Path) -> None:
    frame = visits(5)
    n = len(frame)
    with pytest.raises(BadData, match=rf"it has {n} rows, .* fewer than 100 does not take part") as caught:
        read(tmp_path, frame, min_rows=100)
    assert caught.value.outside == "it has fewer than 100 rows (min_rows)"
    assert not read(tmp_path, frame, min_rows=n).is_small
    table = read(tmp_path, frame, min_rows=n + 1, small="drop")
    assert table.is_small
    assert len(table.training_rows) == 0
    assert read_layout({**LAYOUT, "small": "drop"}).min_rows == 20  # as in a simulation


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"small": "merge"}, "between real parties nobody has the rows of two of them"),
        ({"small": "drpo"}, "small is 'drpo'; it must be 'refuse' or 'drop'"),
        ({"min_rows": 0}, "min_rows is 0; it must be a whole number"),
        ({"group": "age"}, "group is 'age'; it must be a column that is neither the label nor a feature"),
        ({"time": "day"}, "left out without test_after"),
        ({"test_after": "2016-01-01"}, "test_after needs the column of the time"),
        ({"time": "day", "test_after": "2016-01-01"}, "both test_after and held_fraction are given"),
        ({"bounds": {"age": [0, 120]}}, "bounds belongs to fit_epsilon"),
        ({"fit_epsilon": 1.0}, "every number needs declared bounds, and 'age' has none"),
        ({"fit_epsilon": 1.0, "bounds": {"age": [120, 0]}}, "every number needs declared bounds"),
        ({"fit_epsilon": 1.0, "bounds": {"age": "0"}}, "every number needs declared bounds"),
        ({"fit_epsilon": 1.0, "bounds": {"age": ["low", 1]}}, "every number needs declared bounds"),
        ({"fit_epsilon": 1.0, "bounds": {"age": [0, 10**400]}}, "every number needs declared bounds"),
        ({"fit_epsilon": 1.0, "bounds": {"age": [[0], 1]}}, "every number needs declared bounds"),
        ({"fit_epsilon": 0.0, "bounds": {"age": [0, 120]}}, "fit_epsilon is 0"),
        ({"fit_epsilon": 1.0, "fit": "party", "bounds": {"age": [0, 1]}}, "here fit is 'party'"),
        ({"fit_epsilon": 1.0, "mean": [1.0], "std": [1.0]}, "here mean and std are declared"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_layouts_are_refused_before_any_row_is_read(layout: dict[str, Any], why: str) -> None:
    with pytest.raises(BadJob) as caught:
        read_layout({**LAYOUT, **layout})
    assert why in str(caught.value)


@pytest.mark.parametrize(("key", "column"), [("group", "patient"), ("time", "day")])
def test_a_missing_column_is_named(key: str, column: str, tmp_path: Path) -> None:
    layout = {"group": "patient"} if key == "group" else {"time": "day", "test_after": "2016-01-01"}
    visits().drop(columns=column).to_csv(tmp_path / "own.csv", index=False)
    whole = {k: v for k, v in LAYOUT.items() if k != "held_fraction"} | layout
    with pytest.raises(BadData, match=f"there is no column '{column}', the {key} of this job") as caught:
        read_party_table("a", tmp_path / "own.csv", whole, 0)
    assert caught.value.outside == f"its file has no column '{column}'"


# noisy statistics ---------------------------------------------------------------------------------------------

NOISY = {**LAYOUT, "fit_epsilon": 1.0, "bounds": {"age": [0, 120]}}


def plan(layout: dict[str, Any], parties: int = 3, **options: Any) -> Any:
    columns = read_layout(layout).recipe.columns
    names = tuple("abcdef"[:parties])
    fed = Elsewhere.of("f", names, (len(columns),), ("no", "yes"), columns)
    return make_plan(fed, model="logistic", rounds=2, runtime=Deployed(None, layout), **options)


@pytest.mark.parametrize("parties", [2, 3])
def test_a_noisy_preparation_is_one_sum_of_the_program_that_simulations_use(parties: int) -> None:
    program = program_of(plan(NOISY, parties), NOISY)
    assert isinstance(program, PrivatePreparation)
    assert (program.max_steps, program.parties, program.group) == (1, parties, "")
    by_people = {**NOISY, "group": "patient"}
    program = program_of(plan(by_people), by_people)
    assert isinstance(program, PrivatePreparation)
    assert program.spend["unit"] == "one person, with all their rows at a party"
    assert program_of(plan(NOISY, private={"name": "DPSGD", "epsilon": 2.0}), NOISY) is not None


@pytest.mark.parametrize("group", ["", "patient"], ids=["row", "person"])
def test_one_row_or_person_changes_the_statistics_of_a_file_by_no_more_than_epsilon_covers(
    group: str, tmp_path: Path
) -> None:
    """From the file to the sum, without [private]: nobody else becomes a held-out row or a training row."""
    frame = visits()
    layout = {"fit_epsilon": 1.0, "bounds": {"age": [0, 120]}} | ({"group": group} if group else {})
    program = read_layout({**LAYOUT, **layout}).private_preparation(3)

    def count(part: pd.DataFrame) -> np.ndarray:
        table = read(tmp_path, part, **layout)
        assert len(table.held)
        return program.count(table.training_rows)

    whole = count(frame)
    changed = 0
    for gone in (0, 100, len(frame) - 1):
        mine = frame["patient"] == frame["patient"][gone] if group else frame.index == gone
        change, at = np.abs(whole - count(frame[~mine])).astype(float), 0
        for n, most in program.blocks:
            assert np.linalg.norm(change[at : at + n]) <= most
            at += n
        changed += bool(change.any())
    assert changed  # at least one of them was a training row


def test_the_contract_and_the_plan_say_what_becomes_of_small_sites_and_later_rows() -> None:
    timed = {k: v for k, v in LAYOUT.items() if k != "held_fraction"}
    timed |= {"small": "drop", "time": "day", "test_after": "2016-01-01", "fit": "party"}
    contract = Contract.of(plan(timed), timed, "server", [len(read_layout(timed).recipe.columns)])
    assert "; a party with fewer than 20 rows contributes none" in contract.describe()
    assert "; rows of 2016-01-01 and later are held out" in contract.describe()
    assert Contract.read(contract.text).plan().fed.parties == ("a", "b", "c")
    by_people = {**NOISY, "group": "patient"}
    told = Contract.of(plan(by_people), by_people, "server", [3])
    assert told.tables["preparation"] == {
        **{"fit": "federated", "steps": 1, "epsilon": 1.0, "delta": 1e-6, "unit": "person"}
    }
    assert "with every party's noise, ε = 1 at δ = 1e-06 for each person" in told.describe()


@pytest.mark.parametrize(
    ("layout", "options", "why"),
    [
        (NOISY, {"class_weight": "balanced"}, "'balanced' needs the exact label counts"),
        (
            {**NOISY, "min_rows": 20},
            {"private": {"name": "DPSGD", "epsilon": 2.0}},
            "shows whether a party has so many rows, which ε does not cover",
        ),
        ({**NOISY, "min_rows": 20}, {}, "shows whether a party has so many rows, which ε does not cover"),
        ({**NOISY, "small": "drop"}, {}, "shows whether a party has so many rows, which ε does not cover"),
        ({**LAYOUT, "small": "drop"}, {"pace": "FedAsync"}, "small parties (small = 'drop') do not answer"),
    ],
    ids=["balanced", "min_rows", "min_rows of statistics", "small of statistics", "pace"],
)
def test_what_does_not_go_together_is_refused(layout: Any, options: Any, why: str) -> None:
    with pytest.raises(BadParameter) as caught:
        plan(layout, **options)
    assert why in str(caught.value)


def test_a_person_changes_the_noisy_statistics_by_no_more_than_one_row() -> None:
    """All rows of a person together, however many and however far out they are."""
    recipe = read_layout(NOISY).recipe
    program = PrivatePreparation(
        Pipeline(recipe, "ill", ("no", "yes")), 1.0, 1e-6, {"age": (0, 120)}, group="patient"
    )
    frame = visits()
    many = pd.DataFrame({"patient": "new", "age": [1e9, -1e9, 120.0] * 70, "sex": ["f", "m", "m"] * 70})
    whole = program.count(pd.concat([frame, many.assign(day=frame["day"][0], ill="no")]))
    change = np.abs(whole - program.count(frame))
    at = 0
    for n, most in program.blocks:
        assert np.sqrt(float((change[at : at + n] ** 2).sum())) <= most
        at += n
    assert change[0] > 0.99 * program.blocks[0][1]  # and it counts as one person
    fitted = ideal(program, {"a": visits(9000)}).recipe
    # σ of the noise is 12·120/9000 years and a little more, that of the mean 0.1: beyond 10 σ
    assert abs(fitted.mean[0] - 50) < 2.0


def test_rows_without_an_outcome_are_left_out_where_the_parties_agreed_to_it(tmp_path: Path) -> None:
    frame = visits()
    gone = frame.assign(ill=frame["ill"].where(frame.index % 7 != 3))
    with pytest.raises(BadData, match=r"rows have no 'ill', .* missing_label = \"drop\""):
        read(tmp_path, gone)
    kept, alone = read(tmp_path, gone, missing_label="drop"), read(tmp_path, gone.dropna())
    assert kept.y.tolist() == alone.y.tolist()
    assert kept.train.tolist() == alone.train.tolist()
    with pytest.raises(BadData, match="no rows with an outcome"):
        read(tmp_path, frame.assign(ill=None), missing_label="drop")
    with pytest.raises(BadJob, match="missing_label is 'skip'"):
        read(tmp_path, frame, missing_label="skip")
