"""tacit.anonymize: known traps, what it refuses, what it gives back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas
import pytest

import tacit
from tacit import anonymity
from tacit.anonymity import DeltaPresence, HomogeneityWarning, IdentifierWarning, KMap
from tacit.errors import BadData, BadParameter

from .adult import BITS, in_order, people

METHODS = ["datafly", "optimal", "cells", "mondrian", "cluster"]


@pytest.mark.parametrize("method", METHODS)
def test_a_null_is_as_rare_as_it_is(method):
    """A peer counts a null as fitting everywhere and reports k = 5 for a table with a unique null row: its
    true k is 1.
    """
    frame = pandas.DataFrame({"sex": ["M"] * 5 + [None], "zip": ["37203"] * 6})
    made = tacit.anonymize(frame, quasi=["sex", "zip"], k=2, method=method)
    sizes = made.table.groupby(["sex", "zip"], dropna=False).size()
    assert len(made.suppressed) or set(made.table["sex"].fillna("null")) != {"M", "null"}
    assert sizes.empty or sizes.min() >= 2


def test_nulls_that_are_many_stay_nulls():
    frame = pandas.DataFrame({"sex": ["M", "M", None, None]})
    made = tacit.anonymize(frame, quasi=["sex"], k=2)
    assert made.table["sex"].isna().tolist() == [False, False, True, True]


def test_the_policy_for_nulls_is_a_choice():
    frame = pandas.DataFrame({"sex": ["M", "M", None]}, index=list("xyz"))
    made = tacit.anonymize(frame, quasi=["sex"], k=2, nulls="suppress")
    assert made.suppressed == ["z"]
    assert "1 rows with a null in a quasi-identifier are suppressed" in made.explain()
    with pytest.raises(
        BadData, match=r"1 rows have a null in a quasi-identifier\. Fill the nulls in, or pass nulls='value'"
    ):
        tacit.anonymize(frame, quasi=["sex"], k=2, nulls="error")


def test_an_empty_string_is_a_value_and_no_null():
    frame = pandas.DataFrame({"sex": ["", "", None, None, "M", "M"]})
    made = tacit.anonymize(frame, quasi=["sex"], k=2)
    assert made.levels == {"sex": 0}
    assert made.classes == 3


def test_suppressed_rows_are_not_a_class_when_the_table_is_read_again():
    frame = pandas.DataFrame({"a": list("00112"), "b": list("11001")})
    once = tacit.anonymize(frame, quasi=["a", "b"], k=2, max_suppressed=0.2, suppressed="star")
    assert in_order(once).loc[4, ["a", "b"]].tolist() == ["*", "*"]
    assert once.classes == 2
    twice = tacit.anonymize(in_order(once), quasi=["a", "b"], k=2, suppressed="star")
    assert twice.classes == 2
    assert twice.suppressed == [4]
    assert (
        twice.trace[0].sentence
        == "1 input rows have * in every quasi-identifier: they are already suppressed."
    )
    with pytest.raises(BadData, match="Every row of the table is already suppressed"):
        tacit.anonymize(in_order(once).loc[[4]], quasi=["a", "b"], k=1)


def test_an_identifying_column_raises_a_warning_before_it_is_published():
    frame = pandas.DataFrame({"a": [1, 2] * 5, "patient": [f"P{i}" for i in range(10)], "town": ["x"] * 10})
    with pytest.warns(
        IdentifierWarning,
        match="'patient' is neither a quasi-identifier nor sensitive and differs in every row",
    ) as caught:
        made = tacit.anonymize(frame, quasi=["a"], k=5)
    assert made.warnings == [str(w.message) for w in caught]
    assert [
        w for w in tacit.risk(frame, made).warnings if "'patient'" in w
    ] == made.warnings  # once, and not twice
    assert tacit.anonymize(frame.drop(columns="patient"), quasi=["a"], k=5).warnings == []


def test_a_constant_sensitive_value_warns():
    frame = pandas.DataFrame({"a": list("0" * 5 + "1" * 5), "s": ["flu"] * 5 + ["flu", "none"] * 2 + ["flu"]})
    with pytest.warns(
        HomogeneityWarning,
        match=r"1 class \(5 rows of 10\) has a single value of 's': .* Use l-diversity \(l=2\)",
    ):
        made = tacit.anonymize(frame, quasi=["a"], sensitive=["s"], k=5)
    assert len(made.warnings) == 1
    assert tacit.anonymize(frame, quasi=["a"], sensitive=["s"], k=5, l=2).warnings == []


def test_k_map_counts_the_population():
    frame, everyone = pandas.DataFrame({"a": list("001")}), pandas.DataFrame({"a": list("000111")})
    ask = dict(quasi=["a"], hierarchies={"a": BITS}, k=None)
    assert tacit.anonymize(frame, models=[KMap(3)], population=everyone, **ask).levels == {"a": 0}
    assert tacit.anonymize(frame, models=[KMap(4)], population=everyone, **ask).levels == {"a": 1}


def test_presence_is_bounded_against_the_population():
    """2 of 3 zeros and 1 of 3 ones are in the table: at most 0.6 needs both together, 3 of 6."""
    frame, everyone = pandas.DataFrame({"a": list("001")}), pandas.DataFrame({"a": list("000111")})
    ask = dict(quasi=["a"], hierarchies={"a": BITS}, k=None, population=everyone)
    assert tacit.anonymize(frame, models=[DeltaPresence(0.0, 0.7)], **ask).levels == {"a": 0}
    assert tacit.anonymize(frame, models=[DeltaPresence(0.0, 0.6)], **ask).levels == {"a": 1}
    assert tacit.anonymize(frame, models=[DeltaPresence(0.4, 0.7)], **ask).levels == {"a": 1}
    with pytest.raises(BadData, match="No node of the lattice satisfies the privacy models"):
        tacit.anonymize(frame, models=[DeltaPresence(0.6, 0.7)], max_suppressed=1.0, **ask)
    with pytest.raises(BadData, match="more rows in the table than in the population"):
        tacit.anonymize(
            everyone, quasi=["a"], hierarchies={"a": BITS}, k=None, population=frame, models=[DeltaPresence()]
        )


@pytest.mark.filterwarnings("ignore:.*differs in every row:tacit.anonymity.IdentifierWarning")
def test_untouched_columns_keep_their_kind_and_the_original_is_left_alone():
    frame = pandas.DataFrame({"age": [39, 39, 40, 40], "note": list("abcd")})
    before = frame.copy(deep=True)
    made = tacit.anonymize(frame, quasi=["age"], k=2)
    assert made.levels == {"age": 0}  # level 1 parts them just as well and costs as little
    assert made.table["age"].dtype == frame["age"].dtype
    made.table["note"] = "changed"
    pandas.testing.assert_frame_equal(frame, before)


def test_categories_and_equal_row_labels_are_fine():
    frame = pandas.DataFrame(
        {"a": pandas.Categorical(list("0011")), "b": [True, True, False, False]}, index=[7, 7, 7, 7]
    )
    assert len(tacit.anonymize(frame, quasi=["a", "b"], k=2).table) == 4


ASK = dict(quasi=["Race", "Zip"], k=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quasi": "Zip"}, "anonymize: quasi is 'Zip'; it must be a list of column names"),
        ({"quasi": []}, "anonymize: quasi is .*; it must be a list of column names, like"),
        ({"quasi": ["Zip", "Zip"]}, "it must be a list without repetitions. 'Zip' is in it twice"),
        (
            {"method": "optimum"},
            "anonymize: method is 'optimum'; it must be one of 'datafly', 'optimal'.* Did you mean 'optimal'",
        ),
        ({"method": object}, "or such an object"),
        (
            {"method": anonymity.Cluster(shortlist=0)},
            "Cluster: shortlist is 0; it must be a whole number of at least 1",
        ),
        ({"metric": "prec"}, "anonymize: metric is 'prec'; it must be one of 'loss', 'height'"),
        (
            {"metric": "entropy", "method": "cluster"},
            "anonymize: metric is 'entropy'; it must be 'loss' for method 'cluster'",
        ),
        ({"max_suppressed": 5}, "max_suppressed is 5; it must be a fraction of the rows between 0 and 1"),
        ({"k": 0}, "KAnonymity: k is 0; it must be a whole number of at least 1"),
        ({"k": None}, "anonymize: k is None; it must be a whole number of at least 1, unless models"),
        (
            {"l": 2},
            "anonymize: sensitive is .*; it must be a list of the sensitive columns, which LDiversity "
            "protects",
        ),
        (
            {"models": [KMap(3)]},
            "anonymize: population is None; it must be a table of the population, which KMap compares with",
        ),
        ({"models": ["k"]}, "anonymize: models is 'k'; it must be a list of privacy models"),
        ({"nulls": "any"}, "anonymize: nulls is 'any'"),
        ({"suppressed": "keep"}, "anonymize: suppressed is 'keep'"),
        (
            {"hierarchies": {"Sex": None}},
            "anonymize: hierarchies is .'Sex'.; it must be for the quasi-identifiers 'Race', 'Zip'",
        ),
        (
            {"hierarchies": {"Zip": 3}},
            r"anonymize: hierarchies\['Zip'\] is 3; it must be a Hierarchy, a builder",
        ),
    ],
)
def test_a_bad_parameter_is_refused_in_the_one_sentence(change, words):
    with pytest.raises(BadParameter, match=words):
        tacit.anonymize(people(), **{**ASK, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quasi": ["Age"]}, r"anonymize: there is no column 'Age' \(quasi\)"),
        ({"sensitive": ["Zip"]}, "'Zip' is both in quasi and in sensitive"),
        ({"k": 13}, "The table has 12 rows, fewer than k = 13, so no class can have k rows"),
        ({"population": pandas.DataFrame({"Zip": ["37203"]})}, "The population has no column 'Race'"),
    ],
)
def test_bad_data_is_refused_with_what_is_there(change, words):
    with pytest.raises(BadData, match=words):
        tacit.anonymize(people(), **{**ASK, **change})


def test_no_rows_and_no_frame_are_refused():
    with pytest.raises(BadData, match="The table has no rows"):
        tacit.anonymize(people().iloc[:0], **ASK)
    with pytest.raises(BadParameter, match="anonymize: frame is 'list'; it must be a pandas DataFrame"):
        tacit.anonymize([1], **ASK)


@pytest.mark.slow
def test_ten_million_rows_and_more_than_two_to_the_31_cells_stay_within_five_gigabytes():
    """Run in a process of its own, whose memory is counted: 10 million rows × 9 columns by both methods, then
    34 million × 64 > 2³¹ cells. The latter are published in a table of their own, 2.2 GB, beside arrays of
    places of 8 bytes a row: 4.6 GB.
    """
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("large.py"))],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for line in ran.stdout.splitlines():
        what, peak = line.rsplit(" ", 1)
        assert float(peak) < 5.0, what
    assert len(ran.stdout.splitlines()) == 3
