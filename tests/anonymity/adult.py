"""Adult with ARX's hierarchies, from the shared data; and tiny tables for comparisons with brute force."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pandas

from tacit.anonymity import Hierarchy
from tacit.anonymity.result import AnonymizationResult

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data") / "arx"

COLUMNS = [
    "sex",
    "age",
    "race",
    "marital-status",
    "education",
    "native-country",
    "workclass",
    "occupation",
    "salary-class",
]


@cache
def adult() -> pandas.DataFrame:
    return pandas.read_csv(ROOT / "adult.csv.gz", sep=";", dtype=str, keep_default_na=False)


def files(columns: list[str]) -> dict[str, Path]:
    return {c: ROOT / f"adult_hierarchy_{c}.csv" for c in columns}


PEOPLE = """r1 Black 9/20/65 M 37203 · r2 Black 2/14/65 M 37203 · r3 Black 10/23/65 F 37215
· r4 Black 8/24/65 F 37215 · r5 Black 11/7/64 F 37215 · r6 Black 12/1/64 F 37215
· r7 White 10/23/64 M 37215 · r8 White 3/15/64 F 37217 · r9 White 8/13/64 M 37217
· r10 White 5/5/64 M 37217 · r11 White 2/13/67 M 37215 · r12 White 3/21/67 M 37215"""


def people() -> pandas.DataFrame:
    """The example of Sweeney 2002."""
    rows = [r.split() for r in PEOPLE.split("·")]
    return pandas.DataFrame(
        [r[1:] for r in rows], index=[r[0] for r in rows], columns=["Race", "Birthdate", "Sex", "Zip"]
    )


BITS = Hierarchy.from_rows([["0", "*"], ["1", "*"]])
THREE = Hierarchy.from_rows([["0", "low", "*"], ["1", "low", "*"], ["2", "high", "*"]])


def in_order(made: AnonymizationResult) -> pandas.DataFrame:
    """The published rows in the order and with the labels of the original."""
    assert made.original is not None
    assert made.rows is not None
    return made.table.set_axis(made.original.index[made.rows]).iloc[made.rows.argsort()]
