"""Ids are compared by one stated rule, and what is odd about them is said."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.identifiers import NULL_IDS, identify, normal
from tacit.errors import BadData


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("A-17", " a-17\t"),
        ("Ａ－１７", "a-17"),
        ("ﬁre", "FIRE"),
        ("Ångström", "ANGSTRÖM".replace("A", "Å", 1)),
        ("straße", "STRASSE"),
        ("Σίσυφος", "ΣΊΣΥΦΟΣ"),
        ("12", "１２"),
        ("\u00a0x\u2003", "x"),
    ],
)
def test_these_are_one_person(a: str, b: str) -> None:
    assert normal(a) == normal(b)
    assert np.array_equal(identify([a]).digests, identify([b]).digests)


@pytest.mark.parametrize(
    ("a", "b"),
    [("007", "7"), ("a b", "ab"), ("a-1", "a1"), ("1.0", "1"), ("+1", "1"), ("é", "e"), ("NA", "")],
)
def test_these_are_two(a: str, b: str) -> None:
    assert normal(a) != normal(b)


@given(st.text(max_size=12))
def test_the_rule_is_the_same_applied_twice(text: str) -> None:
    assert normal(normal(text)) == normal(text)


@given(st.lists(st.text(st.characters(max_codepoint=127), max_size=8), max_size=30))
def test_many_at_once_are_each_by_the_rule(ids: list[str]) -> None:
    """The quick way for plain text gives what the rule gives for one."""
    found = identify(ids)
    assert [d.tobytes() for d in found.digests] == [
        hashlib.sha256(b"tacit identifier 1|" + normal(ids[row]).encode()).digest()[:16] for row in found.rows
    ]
    firsts = [
        k
        for k, i in enumerate(ids)
        if normal(i) not in NULL_IDS and normal(i) not in [normal(j) for j in ids[:k]]
    ]
    assert found.rows.tolist() == firsts


def test_duplicates_missing_ids_and_mixed_kinds_are_reported() -> None:
    found = identify(["a", " A", "", None, 7, "7", float("nan"), "b"], "column 'id'")
    assert found.rows.tolist() == [0, 4, 7]
    assert found.total == 8
    assert found.notes == (
        "column 'id': 3 of 8 ids are missing (empty; rows 3, 4, 7); these rows are left out.",
        "column 'id': 2 of 8 rows have the id of an earlier row (rows 2, 6); the first row "
        "of each id is used.",
        "column 'id': text and integers are mixed; integers are compared by their digits, so 7 is "
        "'7' and not '007'.",
    )
    assert identify(["a", "b"]).notes == ()


@pytest.mark.parametrize(
    "ids",
    [
        ["NULL", "null"],
        ["NA", " na"],
        ["nan", float("nan")],
        ["None", None],
        ["N/A", "n/a"],
        ["", " "],
        ["<NA>", "NaT"],
    ],
)
def test_null_tokens_are_not_ids(ids: list[object]) -> None:
    found = identify(["a", *ids, "b"])
    assert found.rows.tolist() == [0, 3]
    assert "2 of 4 ids are missing (" in found.notes[0]
    assert "rows 2, 3); these rows are left out." in found.notes[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "row 2 has 1.5, a float; an id must be text or an integer. Read the column as text"),
        (7.0, "row 2 has 7.0, a float"),
        (True, "row 2 has True, a bool"),
        (b"x", "row 2 has b'x', a bytes"),
        ([1], "row 2 has \\[1\\], a list"),
        (pd.Timestamp("2020-01-01"), "a Timestamp"),
    ],
)
def test_an_invalid_id_is_refused_with_its_row(value: object, text: str) -> None:
    with pytest.raises(BadData, match=text):
        identify(["fine", value])


@pytest.mark.parametrize("ids", ["abc", b"abc", {"a": 1}])
def test_one_string_is_not_a_list_of_ids(ids: object) -> None:
    with pytest.raises(BadData, match="is not a list of ids"):
        identify(ids)  # type: ignore[arg-type]


def test_columns_and_arrays_are_lists_of_ids_too() -> None:
    wanted = identify(["1", "2", "3"]).digests
    for ids in (
        [1, 2, 3],
        range(1, 4),
        np.array([1, 2, 3]),
        pd.Series(["1", "2", "3"]),
        (str(i) for i in (1, 2, 3)),
    ):
        assert np.array_equal(identify(ids).digests, wanted)
