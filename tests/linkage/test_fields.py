"""What is similar, what is missing, and which fields are refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadData, BadParameter
from tacit.linkage.fields import KINDS, MISSING, MOST, Field, encode, read_fields, read_records, to_texts
from tacit.linkage.weights import count_common, is_similar


def level(kind: str, one: str, other: str) -> int:
    """The number of levels that two values reach: 2 is equal (of a category 1)."""
    entry = Field("x", kind)
    normal = entry.how.normalize
    a = encode([normal(one), normal(other)], entry)
    common = count_common(a.filters[:1], a.filters[1:])
    return sum(bool(is_similar(common, a.counts[:1] + a.counts[1:], at)[0]) for at in entry.how.levels)


@pytest.mark.parametrize(
    ("kind", "one", "other", "reached"),
    [
        ("name", "Catherine", "catherine", 2),
        ("name", "catherine", "cathrine", 1),
        ("name", "catherine", "brian", 0),
        ("text", "12 stanley street", "12 stanly street", 1),
        ("text", "12 stanley street", "7 anzac parade", 0),
        ("date", "1980-03-05", "5.3.1980", 2),
        ("date", "1980-03-05", "1980-05-03", 1),  # day and month are swapped
        ("date", "1980-03-05", "1980-03-06", 1),  # one wrong digit
        ("date", "1980-03-05", "1981-03-05", 1),
        ("date", "1980-03-05", "1962-11-27", 0),
        ("code", "5304218", "5304281", 1),
        ("code", "5304218", "5304218", 2),
        ("code", "5304218", "9716634", 0),
        ("category", "NSW", "nsw", 1),
        ("category", "nsw", "vic", 0),
    ],
)
def test_levels_of_each_kind(kind: str, one: str, other: str, reached: int) -> None:
    assert level(kind, one, other) == reached


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_missing_value_reaches_no_level_not_even_with_itself(kind: str) -> None:
    assert level(kind, "", "") == 0
    assert level(kind, "", "1980-03-05") == 0


def test_a_long_text_keeps_its_count_below_256() -> None:
    """The inner product is computed modulo 256."""
    text = "".join(chr(97 + k % 26) + chr(97 + k * 7 % 26) for k in range(3000))
    made = encode([text, "a"], Field("x", "text"))
    assert made.counts[0] == made.filters[0].sum() <= MOST


def test_filters_depend_on_the_name_of_the_field() -> None:
    one, other = (encode(["ada"], Field(name, "name")).filters for name in ("given", "surname"))
    assert not np.array_equal(one, other)


def test_a_table_with_dates_and_numbers_as_pandas_reads_them() -> None:
    frame = pd.DataFrame({"born": pd.to_datetime(["1980-03-05", None]), "code": [12.0, np.nan]})
    fields = read_fields({"born": "date", "code": "code"})
    records = read_records(to_texts(frame, fields, "the table"), fields, "the table")
    assert records.values("born") == ["19800305", ""]
    assert records.values("code") == ["12", ""]
    assert records.encoded[0].counts[1] == MISSING
    assert records.notes[0] == "the table: 1 of 2 values of 'born' are missing."


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "fields is {}"),
        (["surname"], "fields is ['surname']"),
        ({"surname": "nmae"}, "the kind of 'surname' is 'nmae'"),
        ({"surname": {"kind": "name", "w": 1}}, "a table with kind, m and u"),
        ({"surname": {"kind": "name", "m": [0.9]}}, "m of 'surname' is [0.9]; it must be 2 probabilities"),
        ({"surname": {"kind": "name", "u": [0.9, 0.2]}}, "that add to less than 1"),
        ({"surname": {"kind": "name", "u": [True, 0.2]}}, "u of 'surname'"),
    ],
)
def test_bad_fields_are_refused(fields: object, text: str) -> None:
    with pytest.raises(BadParameter) as error:
        read_fields(fields)
    assert text in str(error.value)


def test_bad_columns_are_refused() -> None:
    fields = read_fields({"surname": "name", "born": "date"})
    with pytest.raises(BadData, match="the table has no column 'surname'"):
        to_texts(pd.DataFrame({"surnam": ["x"]}), fields, "the table")
    with pytest.raises(BadData, match="the table has 2 columns 'born'"):
        to_texts(pd.DataFrame([["x", "y", "z"]], columns=["surname", "born", "born"]), fields, "the table")
    with pytest.raises(BadData, match=r"no value that can be read as a date\. Dates are written like"):
        read_records({"surname": ["x"], "born": ["5.3.80"]}, fields, "the table")
