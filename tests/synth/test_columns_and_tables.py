from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadData, BadParameter
from tacit.synth import (
    MST,
    Combinations,
    Ordered,
    Range,
    Table,
    Unique,
    boolean,
    categorical,
    continuous,
    identifier,
    integer,
    timestamp,
)
from tacit.synth.conformance import example
from tacit.synth.encode import Discretizer, Layout
from tacit.synth.marginals import Grid


def kinds(frame: pd.DataFrame, **overrides) -> dict[str, str]:
    return {c.name: c.kind for c in Table.infer(frame, **overrides).columns}


def test_kinds_are_inferred_from_values_and_dtypes():
    n = 40
    frame = pd.DataFrame(
        {
            "row": range(100, 100 + n),
            "user_id": np.random.default_rng(0).permutation(10**6)[:n],
            "count": np.arange(n) % 7,
            "with_gaps": [1.0, np.nan, 3, 4] * 10,
            "price": np.linspace(0, 1, n),
            "flag": [True, False] * 20,
            "word": ["a", "b"] * 20,
            "two": [0, 1] * 20,
            "day": ["2024-01-05", "2024-02-01"] * 20,
            "when": pd.date_range("2024", periods=n, freq="h"),
            "code": [f"X{i:04d}" for i in range(n)],
            "nothing": [None] * n,
            "same": ["z"] * n,
            "size": pd.Categorical(["S", "L"] * 20, categories=["S", "L"], ordered=True),
            "mixed": ["low", 3] * 20,
        }
    )
    assert kinds(frame) == {
        "row": "id",
        "user_id": "id",
        "count": "integer",
        "with_gaps": "integer",
        "price": "continuous",
        "flag": "boolean",
        "word": "categorical",
        "two": "categorical",
        "day": "datetime",
        "when": "datetime",
        "code": "id",
        "nothing": "categorical",
        "same": "categorical",
        "size": "ordinal",
        "mixed": "categorical",
    }


def test_every_kind_goes_to_numbers_and_back_to_the_same_frame():
    frame, table = example()
    again = table.to_frame(table.to_numbers(frame))
    pd.testing.assert_frame_equal(again.drop(columns="name"), frame.drop(columns="name"), check_dtype=True)


def test_times_keep_zone_and_text_format_and_microseconds():
    zoned = pd.date_range("2024-03-30 23:30:00.123456", periods=5, freq="7h", tz="Europe/Zurich")
    frame = pd.DataFrame(
        {
            "zoned": zoned,
            "text": [
                "2024-01-05T10:00",
                "2024-02-01T11:30",
                "2024-02-02T00:00",
                "2024-02-03T01:00",
                "2024-02-04T02:00",
            ],
        }
    )
    table = Table.infer(frame)
    back = table.to_frame(table.to_numbers(frame))
    assert (back["zoned"] == frame["zoned"]).all()
    assert str(back["zoned"].dt.tz) == "Europe/Zurich"
    assert back["text"].tolist() == frame["text"].tolist()


def test_the_table_and_its_constraints_come_back_from_json():
    frame, table = example()
    table = table.resolve_constraints(table.to_numbers(frame))
    assert Table.from_dict(json.loads(json.dumps(table.to_dict(), allow_nan=False))) == table


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"a": []}), "the table has 0 rows; at least 2 are needed to learn from"),
        (pd.DataFrame({"a": [1]}), "the table has 1 row;"),
        (pd.DataFrame(index=[1, 2]), "the table has no columns"),
        ([1, 2], "expected a pandas DataFrame, got list"),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), "more than one column 'a'"),
        (pd.DataFrame({"a": [1.0, np.inf, 2.5]}), "'a' contains an infinite number in row 2 "),
        (pd.DataFrame({"a": [[1], [2], [3]]}), "'a' contains list objects"),
        (pd.DataFrame({"a": range(30)}), "every column is an identifier"),
        (
            pd.DataFrame({"note": [f"the patient number {i} felt unwell today" for i in range(30)]}),
            "'note' is free text, .* Drop it with frame.drop",
        ),
        (
            pd.DataFrame({"a": [*map(float, range(60)), *(f"w{i}" for i in range(30))]}),
            "'a' contains numbers and strings",
        ),
    ],
)
def test_tables_without_information_are_refused_with_advice(frame, words):
    with pytest.raises(BadData, match=words):
        Table.infer(frame)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"agee": "integer"}, "there is no column 'agee'. Did you mean 'age'?"),
        ({"age": "numeric"}, "age='numeric' is not a kind of column"),
    ],
)
def test_a_wrong_override_is_refused(overrides, words):
    with pytest.raises(BadParameter, match=words):
        Table.infer(pd.DataFrame({"age": [1, 2, 3, 2]}), **overrides)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (integer(0, 50), r"70 in row 3 \(line 4 of a CSV file\) is outside \[0, 50\] \(1 such rows\)"),
        (categorical([20, 30]), r"70 in row 3 \(line 4 of a CSV file\) is not one of the allowed values"),
    ],
)
def test_rows_outside_a_declared_domain_are_refused(column, words):
    frame = pd.DataFrame({"age": [20, 30, 70], "b": [1.5, 2.5, 3.5]})
    table = Table.infer(frame, age=column)
    with pytest.raises(BadData, match=words):
        table.to_numbers(frame)


def test_a_missing_value_in_a_column_declared_without_is_refused():
    frame = pd.DataFrame({"a": [1.5, None, 2.5], "b": [1, 2, 3]})
    with pytest.raises(BadData, match=r"nan in row 2 \(line 3 of a CSV file\) is missing"):
        Table.infer(frame, a=continuous(0, 5)).to_numbers(frame)


def test_a_domain_read_off_the_data_is_not_declared_and_not_cut_without_it():
    frame = pd.DataFrame({"age": [20, 30, 70], "job": ["a", "b", "c"]})
    assert Table.infer(frame).undeclared == ["age", "job"]
    with pytest.raises(BadData, match="the column 'job' has no declared domain"):
        Grid(Table.infer(frame, age=integer(0, 120)).modeled, 12)
    table = Table.infer(frame, age=integer(0, 120), job=categorical(["a", "b", "c", "d"]))
    assert Grid(table.modeled, 12).sizes == (12, 4)


def test_free_text_can_be_faked_and_high_cardinality_stays_a_category():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "note": [f"patient {i} felt quite unwell" for i in range(300)],
            "zip": rng.choice([f"Z{i}" for i in range(150)], 300),
        }
    )
    table = Table.infer(frame, note=identifier(faker="sentence"))
    assert [c.kind for c in table.columns] == ["id", "categorical"]
    made = table.to_frame(table.to_numbers(frame), seed=4)
    assert made["note"].tolist() == table.to_frame(table.to_numbers(frame), seed=4)["note"].tolist()
    assert not set(made["note"]) & set(frame["note"])


def test_an_unknown_faker_is_refused():
    frame = pd.DataFrame({"who": list("abc"), "x": [1.5, 2.5, 3.5]})
    table = Table.infer(frame, who=identifier(faker="nmae"))
    with pytest.raises(BadParameter, match="faker='nmae' is not a Faker provider"):
        table.to_frame(table.to_numbers(frame))


@pytest.mark.parametrize(
    ("constraints", "error", "words"),
    [
        ([Ordered("a", "z")], BadParameter, "names 'z', which is not a modeled column"),
        ([Ordered("b", "a")], BadData, "the table violates Ordered.* in 4 of 4 rows"),
        ([Unique("c")], BadData, "the table violates Unique.* in 2 of 4 rows"),
        ([Range("a", 2, 9)], BadData, "the table violates Range.*: it contains 1"),
        ([Range("c", 2, 9)], BadParameter, "'c' is categorical; a Range needs a numeric or datetime column"),
        ([Combinations("c")], BadParameter, "a combination needs at least two columns"),
        ([Combinations("c", "d"), Combinations("c", "a")], BadParameter, "is part of two Combinations"),
        ([Combinations("a", "b")], BadData, "4 combinations in 4 rows; sampling them would copy rows"),
        (
            [Combinations("c", "d", allowed=[("x", "p")])],
            BadData,
            "2 rows have a combination of c × d that is not allowed, first in row 3",
        ),
    ],
)
def test_constraints_that_the_table_breaks_or_does_not_know_are_refused(constraints, error, words):
    frame = pd.DataFrame(
        {"a": [1, 2, 3, 4], "b": [2, 3, 4, 9], "c": ["x", "x", "y", "y"], "d": ["p", "p", "q", "q"]}
    )
    with pytest.raises(error, match=words):  # noqa: PT012
        table = Table.infer(frame, constraints=constraints, a="integer", b="integer")
        x = table.to_numbers(frame)
        Layout(table.resolve_constraints(x)).encode(x)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=3, max_size=60).filter(
        lambda v: len({x for x in v if x is not None}) > 2
    ),
    st.integers(2, 40),
)
def test_decoded_cells_stay_in_the_range_of_the_data_and_encode_to_themselves(values, bins):
    frame = pd.DataFrame(
        {
            "a": pd.Series(values, dtype=float),
            "b": ["u", "v"] * (len(values) // 2) + ["u"] * (len(values) % 2),
        }
    )
    table = Table.infer(frame, a="continuous", b="categorical")
    v = Layout(table).encode(table.to_numbers(frame))
    cells = Discretizer.from_data(Layout(table).variables, v, bins)
    codes = cells.encode(v)
    assert (codes >= 0).all()
    assert (codes < cells.sizes).all()
    back = cells.decode(codes, np.random.default_rng(0))
    assert np.array_equal(np.isnan(back[:, 0]), np.isnan(v[:, 0]))
    assert np.nanmin(back[:, 0]) >= np.nanmin(v[:, 0]) - 1e-9
    assert np.nanmax(back[:, 0]) <= np.nanmax(v[:, 0]) + 1e-9
    assert np.array_equal(cells.encode(back), codes)


def test_a_value_many_rows_share_comes_back_exactly_and_one_of_a_single_row_does_not():
    x = np.concatenate([np.zeros(500), np.random.default_rng(0).normal(50, 3, 500)])
    frame = pd.DataFrame({"x": x})
    table = Table.infer(frame, x="continuous")
    cells = Discretizer.from_data(Layout(table).variables, x[:, None], 50)
    back = cells.decode(cells.encode(x[:, None]), np.random.default_rng(1))[:, 0]
    assert (back[:500] == 0).all()
    assert np.isin(back[500:], x[500:]).mean() < 0.02


def test_declared_moments_bound_what_comes_back():
    column = timestamp("2024-01-01", "2024-12-31", days=True)
    days = pd.to_datetime(pd.Series(column.to_series(column.fit_to_domain(np.array([0.0, 4e9, 1.71e9])))))
    assert (days.dt.normalize() == days).all()
    assert days.min() == pd.Timestamp("2024-01-01")
    assert days.max() == pd.Timestamp("2024-12-31")


def test_that_no_boolean_is_missing_is_read_off_the_data_and_so_not_declared():
    """Whether anybody's answer is missing may be a fact about one person: a private generator asks for it to
    be said.
    """
    frame = pd.DataFrame({"smoker": [True, False, True], "age": [30, 40, 50]})
    assert Table.infer(frame, age=integer(0, 120)).undeclared == ["smoker"]
    assert Table.infer(frame, age=integer(0, 120), smoker=boolean()).undeclared == []
    with pytest.raises(BadData, match="'smoker' of the table: kind or domain was inferred"):
        MST().fit(frame, Table.infer(frame, age=integer(0, 120)))


def test_a_declared_table_reads_nothing_off_data_and_a_range_narrows_it():
    made = Table.declare(
        {"age": integer(0, 120), "dose": continuous(0, 20, missing=True)}, [Range("dose", 2, None)]
    )
    age, dose = made.columns
    assert (age.name, age.dtype, age.low, age.high) == ("age", "int64", 0, 120)
    assert (dose.low, dose.high) == (2, 20)
    assert made.undeclared == []
    assert made.to_frame(np.array([[3.0, np.nan]]))["age"].dtype == np.int64
