"""What a private generator releases besides noisy statistics must not depend on any single row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadData
from tacit.synth import (
    AIM,
    DPCTGAN,
    DPGAN,
    MST,
    PATEGAN,
    Range,
    Statistics,
    Table,
    boolean,
    categorical,
    continuous,
    identifier,
    integer,
    timestamp,
)

ROWS = 60


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "x": rng.integers(0, 100, ROWS),
            "income": rng.integers(0, 1000, ROWS) / 2,
            "sex": rng.choice(["F", "M"], ROWS),
            "smoker": rng.choice([True, False], ROWS),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, ROWS), unit="D"),
            "person": np.arange(ROWS),
        }
    )


DECLARED = {
    "x": integer(0, 100, missing=True),
    "income": continuous(0, 500, missing=True),
    "sex": categorical(["F", "M"], missing=True),
    "smoker": boolean(missing=True),
    "day": timestamp("2020-01-01", "2021-01-01", days=True, missing=True),
    "person": identifier(),
}

# one person's row that changes what could be read off the table: (column, value)
REVEALING = [
    ("x", None),  # whether a value is missing
    ("x", 0.5),  # kind and step: a fraction among whole numbers
    ("x", 1e6),  # the domain
    ("income", 0.01),  # the step
    ("sex", "X"),  # a category of one person
    ("sex", 3),  # the type of the categories
    ("smoker", None),
    ("smoker", "yes"),
    ("day", None),
    ("day", pd.Timestamp("2020-03-01 07:15")),
    ("day", "unknown"),
    ("person", 0),  # no longer unique
]


def with_row(frame: pd.DataFrame, column: str, value: object) -> pd.DataFrame:
    row = frame.iloc[:1].astype(object).copy()
    row[column] = [value]
    joined = pd.concat([frame.astype(object), row], ignore_index=True)
    return joined.infer_objects()


@pytest.mark.parametrize(("column", "value"), REVEALING)
@pytest.mark.parametrize("generator", [MST, AIM])
def test_the_declaration_alone_decides_columns_kinds_and_types(generator, column, value):
    frame, seed = people(), {"insecure_seed": 1}
    if generator is AIM:
        frame, seed = frame[["x", "sex", "person"]], {**seed, "bins": 4}
    if column not in frame.columns:
        frame = frame.assign(**{column: people()[column]})
    declared = Table.declare({name: DECLARED[name] for name in frame.columns})
    tables = []
    for rows in (frame, with_row(frame, column, value)):
        fitted = generator(epsilon=1, **seed).fit(rows, declared)
        sample = fitted.sample(200)
        tables.append((fitted.table.to_dict(), list(sample.columns)))
        for name, c in DECLARED.items():
            if name in sample and c.is_number:
                shown = c.to_numbers_unchecked(sample[name].dropna())
                assert ((shown >= c.low) & (shown <= c.high)).all()
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    "fit",
    [
        MST(epsilon=1).fit,
        AIM(epsilon=1).fit,
        DPGAN(epsilon=1).fit,
        DPCTGAN(epsilon=1).fit,
        PATEGAN(epsilon=1).fit,
        Statistics([("x",)], epsilon=1).release,
    ],
)
def test_a_range_does_not_declare_a_column_that_was_inferred(fit):
    """A NaN in one row set `missing`, which showed in every sample: the constraint counted as a declaration."""
    frame = people()[["x", "income"]].astype(float)
    table = Table.infer(frame, constraints=[Range("x", 0, 100)], income=DECLARED["income"])
    assert table.undeclared == ["x"]
    with pytest.raises(BadData, match=r"'x' of the table: kind or domain was inferred"):
        fit(frame, table)


def test_a_range_declares_a_column_whose_kind_was_declared():
    table = Table.declare({"x": continuous()}, [Range("x", 0, 100)])
    assert table.undeclared == []
    assert not table.columns[0].missing


def test_an_inferred_identifier_is_not_declared():
    frame = people()[["person", "sex"]]
    table = Table.infer(frame, sex=categorical(["F", "M"]))
    assert table.undeclared == ["person"]
    with pytest.raises(BadData, match="'person' of the table"):
        MST(epsilon=1).fit(frame, table)
