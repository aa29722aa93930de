"""Risk: attackers by hand and by brute force, the traps other tools fell into, and the figures of the raw
Adult table.
"""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.anonymity.classes import classes_of
from tacit.anonymity.combinations import measure_combinations, share_by_column
from tacit.anonymity.risk import measure_exposure
from tacit.errors import BadData, BadParameter

DATA = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data") / "arx"
tables = st.lists(
    st.tuples(*[st.sampled_from(["a", "b", "", None, "*"])] * 3, st.sampled_from("xyz")),
    min_size=1,
    max_size=30,
).map(lambda rows: pd.DataFrame(rows, columns=["p", "q", "r", "s"], dtype=object))


def adult() -> pd.DataFrame:
    return pd.read_csv(DATA / "adult.csv.gz", sep=";", dtype=str)


def brute(frame: pd.DataFrame, columns: list[str]) -> list[int]:
    """For each row, how many rows have the same cells, by comparing them all; None is None, and a row of *
    alone is in no class.
    """
    rows = [
        tuple("null" if v is None else ("text", v) for v in row)
        for row in frame[columns].itertuples(index=False)
    ]
    return [0 if all(v == ("text", "*") for v in a) else sum(a == b for b in rows) for a in rows]


# --- attackers ---


def test_attackers_by_hand():
    """Classes of 1, 2 and 3 rows in a sample; 4, 2 and 6 in the population: n = 6, J = 3. Prosecutor: highest
    1, average 3/6; above 0.4: the class of 1 and that of 2, 3 of 6 rows. Journalist: highest 1/2; Σ f/F = 1/4
    + 2/2 + 3/6 = 7/4, so average and marketer (7/4)/6, above J/ΣF = 3/12. The population has no unique.
    """
    sample = pd.DataFrame({"x": list("abbccc")})
    everybody = pd.DataFrame({"x": list("aaaabbcccccc")})
    found = measure_exposure(sample, ["x"], population=everybody, thresholds=(0.4,))
    assert (found.k, found.classes, found.unique) == (1, 3, 1)
    assert (found.prosecutor.highest, found.prosecutor.average, found.prosecutor.above) == (
        1,
        0.5,
        {0.4: 0.5},
    )
    assert (found.journalist.highest, found.journalist.average) == (0.5, pytest.approx(7 / 24))
    assert found.journalist.above == {0.4: pytest.approx(2 / 6)}
    assert found.marketer == pytest.approx(7 / 24)
    assert (found.uniques, found.uniques_by) == (0, "counted")


def test_the_journalists_average_is_never_below_classes_by_population():
    """One class of 9 of 10 and nine classes of 1 of 100: Σ (f/F) / n = (9/10 + 9/100) / 18 = 0.055; J / ΣF =
    10 / 910 = 0.011.
    """
    sample = pd.DataFrame({"x": ["a"] * 9 + list("bcdefghij")})
    everybody = pd.DataFrame({"x": ["a"] * 10 + [c for c in "bcdefghij" for _ in range(100)]})
    found = measure_exposure(sample, ["x"], population=everybody)
    assert found.journalist.average == pytest.approx(0.055)


def test_a_larger_population_lowers_the_journalists_risk_and_not_the_prosecutors():
    frame = adult().head(3000)
    quasi = ["age", "sex", "education"]
    small, large = (measure_exposure(frame, quasi, population_size=n) for n in (6_000, 600_000))
    assert small.prosecutor == large.prosecutor
    assert small.journalist.average > 10 * large.journalist.average
    assert small.marketer > large.marketer
    assert "600,000 people" in large.basis


def test_a_population_that_lacks_somebody_is_refused():
    with pytest.raises(
        BadData,
        match=r"the population has 1 rows like \{'x': 'a'\}, the published table has 2. The population must "
        r"contain everybody",
    ):
        tacit.risk(
            pd.DataFrame({"x": ["a", "a"]}),
            pd.DataFrame({"x": ["a", "a"]}),
            ["x"],
            population=pd.DataFrame({"x": ["a", "b"]}),
        )


@given(tables)
@settings(deadline=None)
def test_classes_are_those_of_brute_force(frame):
    found = classes_of(frame, ["p", "q", "r"])
    sizes = brute(frame, ["p", "q", "r"])
    assert [0 if c < 0 else int(found.sizes[c]) for c in found.label] == sizes
    e = measure_exposure(frame, ["p", "q", "r"])
    kept = [s for s in sizes if s]
    assert (e.rows, e.suppressed, e.unique, e.k) == (
        len(kept),
        sizes.count(0),
        sizes.count(1),
        min(kept, default=0),
    )
    if kept:
        assert e.prosecutor.average == pytest.approx(np.mean([1 / s for s in kept]))
        assert e.prosecutor.above[0.33] == pytest.approx(np.mean([1 / s > 0.33 for s in kept]))


def test_the_raw_adult_table():
    """ARX's figures of its own benchmark: 51.4% unique, average prosecutor risk 0.647."""
    frame = adult()
    found = measure_exposure(frame, list(frame))
    assert found.unique_share == pytest.approx(0.514, abs=0.0005)
    assert found.prosecutor.average == pytest.approx(0.647, abs=0.0005)
    assert found.k == 1


# --- traps ---


def test_a_unique_null_is_not_in_every_class():
    """A peer treats a null as matching every class and reports k = 5: the one person without an age is identified by
    anyone who knows that it is missing.
    """
    frame = pd.DataFrame({"age": [30] * 5 + [None], "zip": ["1"] * 6})
    found = tacit.risk(frame, frame, ["age", "zip"])
    assert (found.after.k, found.after.unique) == (1, 1)
    assert any(
        "1 rows have a null in a quasi-identifier. A null is a value of its own" in w for w in found.warnings
    )


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_every_kind_of_null_is_the_same_null(missing):
    frame = pd.DataFrame({"x": pd.Series([missing, None, "a", "a"], dtype=object)})
    assert measure_exposure(frame, ["x"]).k == 2


def test_an_empty_string_is_a_value_and_not_a_null():
    assert (
        measure_exposure(pd.DataFrame({"x": pd.Series(["", "", None, None], dtype=object)}), ["x"]).classes
        == 2
    )
    assert measure_exposure(pd.DataFrame({"x": pd.Series(["", None, None], dtype=object)}), ["x"]).k == 1


@pytest.mark.parametrize("stars", [1, 3, 50])
def test_suppressed_rows_are_not_a_class_when_a_table_is_read_again(tmp_path, stars):
    """Counted as a class, 3 rows of * would make k = 3, and 50 would lower the average risk."""
    frame = pd.DataFrame({"age": ["30"] * 5 + ["40"] * 6 + ["*"] * stars, "zip": ["1"] * 11 + ["*"] * stars})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = measure_exposure(pd.read_csv(tmp_path / "t.csv", dtype=str), ["age", "zip"])
    assert (found.k, found.classes, found.suppressed, found.rows) == (5, 2, stars, 11)
    assert found.prosecutor.average == pytest.approx(2 / 11)


def test_a_star_in_one_column_alone_is_a_value():
    frame = pd.DataFrame({"age": ["*", "*", "30"], "zip": ["1", "1", "1"]})
    assert (
        measure_exposure(frame, ["age", "zip"]).k,
        measure_exposure(frame, ["age", "zip"]).suppressed,
    ) == (1, 0)


def test_fewer_suppressed_rows_than_k_are_warned_of():
    before = pd.DataFrame({"age": list("aaaaabbbbbc")})
    after = pd.DataFrame({"age": list("aaaaabbbbb*")})
    assert any(
        "1 suppressed row in the table, fewer than k = 5" in w
        for w in tacit.risk(before, after, ["age"]).warnings
    )


def test_a_table_of_stars_publishes_no_row():
    before, after = pd.DataFrame({"x": ["a", "b"]}), pd.DataFrame({"x": ["*", "*"]})
    found = tacit.risk(before, after, ["x"])
    assert (found.after.rows, found.after.k, found.after.prosecutor.highest, found.utility.granularity) == (
        0,
        0,
        0.0,
        1.0,
    )
    assert any("No row is published" in w for w in found.warnings)


def test_k_is_5_and_all_have_the_same_diagnosis():
    frame = pd.DataFrame(
        {"age": ["30"] * 5 + ["40"] * 5, "diagnosis": ["flu"] * 5 + ["flu", "cold", "flu", "cold", "cold"]}
    )
    found = tacit.risk(frame, frame, ["age"], sensitive="diagnosis")
    assert found.after.k == 5
    assert any(
        "5 rows are in classes with a single value of 'diagnosis' (homogeneity)" in w for w in found.warnings
    )
    constant = tacit.risk(frame, frame.assign(diagnosis="flu"), ["age"], sensitive=["diagnosis"])
    assert any("Every published row has the same 'diagnosis'" in w for w in constant.warnings)


def test_an_identifying_column_raises_a_warning():
    frame = pd.DataFrame({"age": ["30"] * 4, "name": list("abcd")})
    assert any(
        "'name' is neither a quasi-identifier nor sensitive and differs in every row" in w
        for w in tacit.risk(frame, frame, ["age"]).warnings
    )


def test_numbers_beyond_31_bits_do_not_wrap():
    """Sixteen columns of 40,000 values each: their product is 2^244. A key that wrapped would merge rows that
    differ.
    """
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"c{i}": rng.integers(0, 2**40, 40_000) for i in range(16)})
    assert measure_exposure(frame, list(frame)).unique == 40_000
    assert measure_exposure(pd.concat([frame, frame]), list(frame)).k == 2


# --- what is learned ---


def test_l_and_t_by_hand():
    """Li et al.'s salaries 3k … 11k: the class {3, 4, 5} against all nine has ordered distance 0.375, {6, 8,
    11} 0.167; equal distance is 2/3 for each class of three of nine. Every class has three values: l = 3,
    entropy-l = 3.
    """
    frame = pd.DataFrame({"class": list("aaabbbccc"), "salary": [3, 4, 5, 6, 8, 11, 7, 9, 10]})
    found = measure_exposure(frame, ["class"], ["salary"]).sensitive[0]
    assert (found.distinct, found.entropy) == (3, pytest.approx(3))
    assert found.t == pytest.approx(2 / 3)
    assert found.t_ordered == pytest.approx(0.375)
    other = measure_exposure(
        pd.DataFrame({"class": list("aaabbbbbb"), "salary": [6, 8, 11, 3, 4, 5, 7, 9, 10]}),
        ["class"],
        ["salary"],
    ).sensitive[0]
    assert other.t_ordered == pytest.approx(1 / 6)


@given(tables)
@settings(deadline=None)
def test_l_and_t_are_those_of_brute_force(frame):
    found = measure_exposure(frame, ["p", "q"], ["s"]).sensitive[0]
    groups: dict[tuple, list[str]] = {}
    for p, q, s in frame[["p", "q", "s"]].itertuples(index=False):
        if (p, q) != ("*", "*"):
            groups.setdefault((p, q), []).append(s)
    every = [s for g in groups.values() for s in g]
    if not every:
        assert found.distinct == 0
        return
    overall = {v: every.count(v) / len(every) for v in set(every)}
    assert found.distinct == min(len(set(g)) for g in groups.values())
    assert found.t == pytest.approx(
        max(sum(abs(g.count(v) / len(g) - overall[v]) for v in overall) / 2 for g in groups.values())
    )
    entropies = [
        -sum(g.count(v) / len(g) * math.log(g.count(v) / len(g)) for v in set(g)) for g in groups.values()
    ]
    assert found.entropy == pytest.approx(math.exp(min(entropies)))
    assert found.homogeneous == sum(len(g) for g in groups.values() if len(set(g)) == 1)


# --- which columns ---


@given(tables)
@settings(max_examples=60, deadline=None)
def test_minimal_uniques_are_those_of_brute_force(frame):
    columns = ["p", "q", "r", "s"]
    kept = frame[[s > 0 for s in brute(frame, columns)]]
    unique = {
        c: [s == 1 for s in _plainly(kept, list(c))]
        for m in range(1, 5)
        for c in itertools.combinations(columns, m)
    }
    for c in measure_combinations(frame, columns, 4):
        assert c.unique == sum(unique[c.columns])
        parts = [p for m in range(1, len(c.columns)) for p in itertools.combinations(c.columns, m)]
        assert c.minimal == sum(
            u and not any(unique[p][i] for p in parts) for i, u in enumerate(unique[c.columns])
        )
        assert c.smallest == min(_plainly(kept, list(c.columns)), default=0)


def _plainly(frame: pd.DataFrame, columns: list[str]) -> list[int]:
    rows = [
        tuple("null" if v is None else ("text", v) for v in row)
        for row in frame[columns].itertuples(index=False)
    ]
    return [rows.count(r) for r in rows]


def test_the_column_that_singles_out_is_named():
    frame = pd.DataFrame({"sex": list("mfmfmf"), "zip": list("112233"), "id": list("abcdef")})
    found = measure_combinations(frame, ["sex", "zip", "id"])
    assert share_by_column(found) == {
        "sex": 0.5,
        "zip": 0.5,
        "id": 0.5,
    }  # six rows on id alone, six on sex and zip together
    assert {c.columns: c.minimal for c in found if c.minimal} == {("id",): 6, ("sex", "zip"): 6}


def test_too_many_combinations_are_refused_before_they_are_counted():
    frame = pd.DataFrame([range(40)], columns=[f"c{i}" for i in range(40)])
    with pytest.raises(BadParameter, match="40 columns have 760,098 of them; use a smaller number"):
        measure_combinations(frame, list(frame), 5)
    with pytest.raises(BadParameter, match="combinations is 0; it must be a whole number of at least 1"):
        measure_combinations(frame, list(frame), 0)


# --- the job ---


def test_bad_requests_say_what_to_do():
    frame = pd.DataFrame({"age": ["1", "2"], "zip": ["a", "b"], "d": ["x", "y"]})
    for given_, error, words in (
        (
            lambda: tacit.risk(frame, frame, ["agee"]),
            BadData,
            r"there is no column 'agee' \(quasi\). Did you mean 'age'",
        ),
        (
            lambda: tacit.risk(frame, frame, "age"),
            BadParameter,
            "quasi is 'age'; it must be a list of column names",
        ),
        (lambda: tacit.risk(frame, frame), BadParameter, "quasi is None; it must be a list"),
        (lambda: tacit.risk(frame, frame, ["age", "age"]), BadParameter, "'age' is in it twice"),
        (lambda: tacit.risk(frame, frame[["zip"]], ["age"]), BadData, "there is no column 'age'"),
        (lambda: tacit.risk(frame, frame, ["age"], sensitive="age"), BadParameter, "'age' is in both lists"),
        (
            lambda: tacit.risk(frame.head(1), frame, ["age"]),
            BadParameter,
            "Are the two tables in the right order",
        ),
        (lambda: tacit.risk(frame.head(0), frame.head(0), ["age"]), BadData, "the table before has no rows"),
        (
            lambda: tacit.risk(frame, "anon.csv", ["age"]),
            BadParameter,
            "after is 'str'; it must be a pandas DataFrame, or the result of tacit.anonymize",
        ),
        (
            lambda: tacit.risk(frame, frame, ["age"], thresholds=[1.5]),
            BadParameter,
            "thresholds is .*; it must be numbers above 0 and below 1",
        ),
        (
            lambda: tacit.risk(frame, frame, ["age"], target="x"),
            BadData,
            r"there is no column 'x' \(target\)",
        ),
        (
            lambda: tacit.risk(frame, frame, ["age"], hierarchies={"zip": [["a", "*"]]}),
            BadParameter,
            "hierarchies is 'zip'; it must be for quasi",
        ),
    ):
        with pytest.raises(error, match=words):
            given_()


def test_the_table_has_both_sides_and_the_inputs_are_not_changed():
    frame = adult().head(500)
    copy = frame.copy()
    found = tacit.risk(frame, frame.assign(age="*"), ["age", "sex"], sensitive="salary-class")
    table = found.table()
    assert list(table.columns) == ["before", "after"]
    assert table.loc["k", "before"] == 1
    assert table.loc["k", "after"] == frame.groupby("sex").size().min()
    assert frame.equals(copy)
    assert "warning" in str(found) or not found.warnings


# --- who fits whom ---


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), min_size=4, max_size=8), st.booleans()
)
@settings(max_examples=15, deadline=None)
def test_k_ambiguity_is_measured_by_what_fits(rows, two_way):
    """Against every pair of rows: a cell fits its own value, and * fits all."""
    frame = pd.DataFrame(rows, columns=["p", "q"])
    made = tacit.anonymize(
        frame,
        quasi=["p", "q"],
        k=2,
        method=tacit.anonymity.Ambiguity(two_way=two_way),
        hierarchies={"p": tacit.anonymity.Flat(), "q": tacit.anonymity.Flat()},
    )
    found = tacit.risk(frame, made)

    def fit(row, original):
        return all(cell in ("*", value) for cell, value in zip(row, original))

    shown = list(made.table.itertuples(index=False))
    by_original = [sum(fit(row, original) for row in shown) for original in rows]
    assert found.compatibility is not None
    assert found.compatibility.published == min(by_original) >= 2
    assert found.compatibility.originals == min(sum(fit(row, original) for original in rows) for row in shown)
    assert found.compatibility.average == pytest.approx(np.mean([1 / n for n in by_original]))
    assert any("need not be equal" in w for w in found.warnings)
