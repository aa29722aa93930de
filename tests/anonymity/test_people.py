"""People with several rows, the order of published rows, and t-closeness of the table that is published."""

from __future__ import annotations

import shlex
import time

import numpy as np
import pandas
import pytest

import tacit
from tacit.anonymity import Flat, Hierarchy, IdentifierWarning, KAnonymity, LDiversity, Optimal, TCloseness
from tacit.anonymity.models import DifferentialPrivacy
from tacit.errors import BadData, BadParameter
from tacit.parameters import propose_lines
from tacit.people import pick_one_row

from .adult import BITS, adult, files


def visits(seed: int = 0, people: int = 300) -> pandas.DataFrame:
    """One to nine visits each; age and zip are a person's, the diagnosis is a visit's."""
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 10, people)
    person = np.repeat(np.arange(people), times)
    return pandas.DataFrame(
        {
            "patient_nbr": 10_000 + person,
            "age": (20 + rng.integers(0, 60, people))[person],
            "zip": rng.choice(["8001", "8002", "8003", "8004"], people)[person],
            "diagnosis": rng.choice(list("ABCD"), len(person)),
        }
    )


QUASI = ["age", "zip"]


def people_by_class(frame: pandas.DataFrame, made: tacit.anonymity.AnonymizationResult) -> pandas.Series:
    whose = frame["patient_nbr"].to_numpy()[made.rows]
    return made.table.assign(whose=whose).groupby(QUASI, dropna=False)["whose"].nunique()


@pytest.mark.parametrize("limit", [0.0, 0.1])
def test_k_counts_people(limit):
    """Issue 22: with k = 5 over rows, 109 classes had fewer than 5 patients."""
    frame = visits(people=100)
    with pytest.warns(IdentifierWarning):
        by_rows = tacit.anonymize(frame, quasi=QUASI, k=5, max_suppressed=limit)
    made = tacit.anonymize(frame, quasi=QUASI, k=5, person="patient_nbr", max_suppressed=limit)
    assert limit == 0 or people_by_class(frame, by_rows).min() < 5
    assert people_by_class(frame, made).min() >= 5
    assert "patient_nbr" not in made.table
    measured = tacit.risk(frame, made)
    assert measured.after.k == people_by_class(frame, made).min()
    assert measured.after.prosecutor.highest == pytest.approx(1 / measured.after.k)


@pytest.mark.parametrize(("seed", "k", "limit"), [(1, 4, 0.2), (2, 3, 0.1), (3, 4, 0.0), (4, 2, 0.3)])
def test_the_optimum_over_people_equals_brute_force(seed, k, limit):
    """All six nodes: classes of fewer than k people are suppressed, a cell costs (values it covers − 1) / (values
    − 1), a suppressed cell 1. The lowest cost of a node within the limit is the loss that is returned.
    """
    frame = visits(seed, 40)
    hierarchies = {
        "age": Hierarchy.from_rows([[str(a), str(a // 10), "*"] for a in range(20, 80)]),
        "zip": Flat(),
    }
    made = tacit.anonymize(
        frame, quasi=QUASI, k=k, person="patient_nbr", hierarchies=hierarchies, max_suppressed=limit
    )
    cost = {"age": [0, 9 / 59, 1], "zip": [0, 1]}
    found = {}
    for a in range(3):
        for z in range(2):
            shown = frame.assign(
                age=[hierarchies["age"].generalize(str(v), a) for v in frame["age"]],
                zip="*" if z else frame["zip"],
            )
            is_small = shown.groupby(QUASI)["patient_nbr"].transform("nunique") < k
            if is_small.sum() <= limit * len(frame):
                published = (cost["age"][a] + cost["zip"][z]) / 2
                found[a, z] = (is_small.mean() + (1 - is_small.mean()) * published, int(is_small.sum()))
    best = min(loss for loss, _ in found.values())
    chosen = tuple(made.levels.values())
    assert made.loss == pytest.approx(best, abs=1e-12)
    assert found[chosen] == (pytest.approx(best, abs=1e-12), len(made.suppressed))
    assert len(found) > 1
    assert best < max(loss for loss, _ in found.values())


def test_l_and_t_count_a_person_once_for_each_value():
    """One person has nine of ten visits with A. Of the ten people of a class, one has A and nine have B: by
    people, A is 10% of both classes and t is 0; by rows it is half of one class.
    """
    rows = [("p0", "x", "A")] * 9
    rows += [(f"p{i}", "x", "B") for i in range(1, 10)]
    rows += [("q0", "y", "A")] + [(f"q{i}", "y", "B") for i in range(1, 10)]
    frame = pandas.DataFrame(rows, columns=["who", "town", "illness"])
    ask = dict(quasi=["town"], sensitive=["illness"], k=5, t=0.05, hierarchies={"town": Flat()})
    by_people = tacit.anonymize(frame, person="who", **ask)
    by_rows = tacit.anonymize(frame.drop(columns="who"), **ask)
    assert by_people.levels == {"town": 0}
    assert by_rows.levels == {"town": 1}
    assert tacit.risk(frame, by_people).after.sensitive[0].t == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("method", ["mondrian", "cluster", "datafly", "cells", "ambiguity"])
def test_methods_that_count_rows_are_refused(method):
    with pytest.raises(BadParameter, match=r"it must be 'optimal' or Fixed.* with person="):
        tacit.anonymize(visits(), quasi=QUASI, person="patient_nbr", method=method)


def test_differential_privacy_uses_one_row_of_each_person_and_says_so():
    frame = visits()[["patient_nbr", "zip"]]
    made = tacit.anonymize(
        frame,
        quasi=["zip"],
        k=None,
        models=[DifferentialPrivacy(epsilon=2.0, delta=1e-4)],
        method="private",
        person="patient_nbr",
        hierarchies={"zip": Flat().build(["8001", "8002", "8003", "8004"])},
    )
    assert made.ledger.spent[0].unit == "person (patient_nbr), added or removed"
    assert len(made.table) <= 300
    person = frame["patient_nbr"].to_numpy() - 10_000
    kept = pick_one_row(person)
    assert sorted(person[kept].tolist()) == list(range(300))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"person": "patient"}, "person is 'patient'; it must be the column that tells whose a row is"),
        ({"person": "age"}, "it must be a column that is neither a quasi-identifier nor sensitive"),
    ],
)
def test_a_wrong_person_is_refused(change, words):
    with pytest.raises(BadParameter, match=words):
        tacit.anonymize(visits(), **{"quasi": QUASI, **change})


def test_rows_of_nobody_and_too_few_people_are_refused():
    frame = visits()
    frame["patient_nbr"] = frame["patient_nbr"].astype("float").mask(frame.index == 3)
    with pytest.raises(BadData, match="1 rows have no value in 'patient_nbr', so it is unknown whose"):
        tacit.anonymize(frame, quasi=QUASI, person="patient_nbr")
    with pytest.raises(BadData, match="The table has 3 people, fewer than k = 5"):
        tacit.anonymize(visits(0, 3), quasi=QUASI, person="patient_nbr")


def test_an_id_with_repeats_is_warned_about():
    frame = visits().assign(patient_nbr=lambda f: f["patient_nbr"] // 2 * 2)
    frame = pandas.concat([frame.groupby("patient_nbr").head(2)], ignore_index=True)
    with pytest.warns(IdentifierWarning, match="'patient_nbr' .* different values in .* pass person="):
        made = tacit.anonymize(frame, quasi=QUASI, k=2)
    assert any("pass person='patient_nbr'" in w for w in tacit.risk(frame, made).warnings)


def test_the_command_line_names_its_own_option_quoted_for_a_shell():
    """Before: "pass person='…'", which is Python. A name of the table cannot end the quotes."""
    name = "id'; rm x"
    frame = visits().rename(columns={"patient_nbr": name})
    frame = pandas.concat([frame.groupby(name).head(2)], ignore_index=True)
    with propose_lines(), pytest.warns(IdentifierWarning) as caught:
        tacit.anonymize(frame, quasi=QUASI, k=2)
    text = str(caught[0].message)
    words = text.split("it tells whose a row is, give ")[1].split("; otherwise")[0]
    assert shlex.split(words) == ["--person", name]


def test_published_rows_have_no_labels_and_an_order_that_does_not_depend_on_the_original():
    frame = visits().drop(columns="patient_nbr")
    frame.index = [f"row {i}" for i in range(len(frame))]
    again = frame.iloc[np.random.default_rng(3).permutation(len(frame))]
    first, second = (tacit.anonymize(f, quasi=QUASI, k=5) for f in (frame, again))
    assert first.table.index.equals(pandas.RangeIndex(len(frame)))
    pandas.testing.assert_frame_equal(first.table, second.table)
    assert first.rows.tolist() != list(range(len(frame)))
    assert (first.table["diagnosis"].to_numpy() == frame["diagnosis"].to_numpy()[first.rows]).all()
    assert tacit.risk(frame, first).table()["after"]["granularity loss"] == pytest.approx(first.loss)


@pytest.mark.parametrize("suppressed", ["drop", "star"])
def test_the_order_of_published_rows_is_that_of_their_hashes(suppressed):
    """Columns are hashed one at a time; `pandas.util.hash_pandas_object` of the finished table agrees."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": rng.integers(20, 90, 300),
            "sex": pandas.Categorical(rng.choice(["f", "m"], 300)),
            "town": np.where(rng.random(300) < 0.02, None, rng.choice(["A", "B"], 300)),
            "pay": rng.integers(0, 50, 300) / 4,
        },
        index=rng.permutation(300) + 1000,
    )
    made = tacit.anonymize(
        frame,
        quasi=["age", "sex", "town"],
        k=4,
        max_suppressed=0.1,
        suppressed=suppressed,
        hierarchies={"age": tacit.anonymity.Intervals(width=10, factors=(2, 4))},
    )
    assert made.suppressed
    assert pandas.util.hash_pandas_object(made.table, index=False).is_monotonic_increasing
    assert list(made.table.index) == list(range(len(made.table)))
    assert (made.table["pay"].to_numpy() == frame["pay"].to_numpy()[made.rows]).all()
    if made.levels["sex"] == 0 and suppressed == "drop":
        assert made.table.dtypes["sex"] == frame.dtypes["sex"]


def test_cells_that_are_lists_are_refused_with_the_column():
    frame = pandas.DataFrame({"sex": list("fm") * 10, "notes": [[i] for i in range(20)]})
    with pytest.raises(BadData, match="the column 'notes' has cells that are lists"):
        tacit.anonymize(frame, quasi=["sex"], k=2)


def test_a_shuffled_table_from_a_file_is_not_matched_by_the_numbers_of_its_rows():
    frame = visits().drop(columns="patient_nbr").reset_index(drop=True)
    made = tacit.anonymize(frame, quasi=QUASI, k=2)
    measured = tacit.risk(frame, made.table, QUASI)
    assert any("cannot be matched" in w for w in measured.warnings)


def test_t_holds_on_the_table_that_is_published():
    """Suppressing the class of rare values changes the table: A was 40% of 100 rows and is 25% of the 80 that
    k leaves. Class x with 55% is within .2 of the first and not of the second.
    """
    rng = np.random.default_rng(2)
    frame = pandas.DataFrame(
        {"a": rng.integers(0, 2, 500).astype(str), "b": rng.integers(0, 40, 500).astype(str)}
    )
    frame["s"] = np.where(rng.random(500) < 0.2 + 0.02 * frame["b"].astype(int), "A", "B")
    made = tacit.anonymize(
        frame,
        quasi=["a", "b"],
        sensitive=["s"],
        k=5,
        t=0.15,
        hierarchies={"a": BITS, "b": Flat()},
        method=tacit.anonymity.Fixed({"a": 0, "b": 0}),
        max_suppressed=1.0,
    )
    assert 0 < len(made.table) < len(frame)
    share = (made.table["s"] == "A").mean()
    by_class = made.table.groupby(["a", "b"])["s"].agg(lambda s: abs((s == "A").mean() - share))
    assert by_class.max() <= 0.15 + 1e-9
    assert tacit.risk(frame, made).after.sensitive[0].t <= 0.15 + 1e-9
    before = (frame["s"] == "A").mean()
    assert share != pytest.approx(before, abs=1e-3)  # the table that t was held on before is another one


@pytest.mark.filterwarnings("ignore::tacit.anonymity.HomogeneityWarning")
def test_k_prunes_the_search_before_t_is_computed(monkeypatch):
    """Adult with k = 25 and t = .3, 2% suppressed: of 720 nodes 547 were evaluated before k pruned them, and t
    was computed for all of these.
    """
    quasi = ["sex", "age", "race", "marital-status", "education", "workclass"]
    computed = []
    measure = TCloseness.measure
    monkeypatch.setattr(TCloseness, "measure", lambda self, h: computed.append(1) or measure(self, h))
    frame = adult().sample(4000, random_state=0)
    made = tacit.anonymize(
        frame,
        quasi=quasi,
        sensitive=["salary-class"],
        k=25,
        t=0.3,
        hierarchies=files(quasi),
        max_suppressed=0.02,
    )
    assert made.trace[0].counts["nodes"] == 720
    assert len(made.lattice) < 120
    assert len(computed) < len(made.lattice)


def test_a_limit_on_time_gives_the_best_table_so_far_and_says_so(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    quasi = ["sex", "age", "race", "marital-status", "education"]
    frame = adult().sample(1000, random_state=0)
    ask = dict(
        quasi=quasi, sensitive=["salary-class"], k=5, t=0.2, hierarchies=files(quasi), max_suppressed=0.05
    )
    made = tacit.anonymize(frame, method=Optimal(seconds=2), **ask)
    assert any(w.startswith("The search was stopped after 2 seconds: the loss is") for w in made.warnings)
    assert tacit.risk(frame, made).after.k >= 5
    whole = tacit.anonymize(frame, **ask)
    assert len(made.lattice) < len(whole.lattice)
    assert whole.loss <= made.loss
    assert not any("stopped" in w for w in whole.warnings)


def test_two_columns_of_one_name_are_an_error():
    frame = pandas.DataFrame([[1, 2, 3]] * 9, columns=["a", "b", "b"])
    for call in (
        lambda: tacit.anonymize(frame, quasi=["a"], k=2),
        lambda: tacit.risk(frame, frame, ["a"]),
    ):
        with pytest.raises(BadData, match=r"two columns are named 'b'\. Give each column its own name"):
            call()


def test_models_state_their_unit():
    assert KAnonymity(5).is_monotone
    assert LDiversity(2).is_monotone
    assert TCloseness(0.2).compares_with_table
