"""Generated people, and second records of them with typing errors: no real person, no data set."""

from __future__ import annotations

import string

import numpy as np
import pandas as pd

GIVEN = [
    "anna",
    "ben",
    "clara",
    "david",
    "emma",
    "felix",
    "greta",
    "hugo",
    "ida",
    "jonas",
    "klara",
    "leon",
    "mia",
    "noah",
    "olivia",
    "paul",
]
SURNAMES = [
    "smith",
    "jones",
    "taylor",
    "brown",
    "williams",
    "wilson",
    "johnson",
    "davies",
    "robinson",
    "wright",
    "thompson",
    "evans",
    "walker",
    "white",
    "roberts",
    "green",
    "hall",
    "wood",
    "jackson",
    "clarke",
    "patel",
    "khan",
    "lewis",
    "james",
    "phillips",
    "mason",
    "mitchell",
    "rose",
    "davis",
    "rodgers",
    "cox",
    "alexander",
    "rossi",
    "muller",
    "schneider",
    "fischer",
    "weber",
    "wagner",
    "becker",
    "hoffmann",
]
STREETS = [
    "stanley",
    "pinkerton",
    "lambrigg",
    "meredith",
    "yambina",
    "elizabeth",
    "rawson",
    "anzac",
    "banks",
    "carstensz",
]
FIELDS = {"given": "name", "surname": "name", "street": "text", "postcode": "code", "born": "date"}


def make_people(count: int, seed: int = 0) -> pd.DataFrame:
    """Distinct people; surnames follow Zipf's law, as real ones nearly do."""
    rng = np.random.default_rng(seed)
    common = 1 / np.arange(1, len(SURNAMES) + 1)
    days = rng.integers(0, 25_000, count).astype("timedelta64[D]") + np.datetime64("1935-01-01")
    return pd.DataFrame(
        {
            "given": rng.choice(GIVEN, count),
            "surname": rng.choice(SURNAMES, count, p=common / common.sum()),
            "street": [
                f"{n} {s} street" for n, s in zip(rng.integers(1, 99, count), rng.choice(STREETS, count))
            ],
            "postcode": rng.integers(2000, 8000, count).astype(str),
            "born": days.astype(str),
        }
    )


def add_errors(people: pd.DataFrame, seed: int, share: float = 0.15) -> pd.DataFrame:
    """In this share of the cells: a wrong letter, two swapped ones, a missing value, or day and month swapped."""
    rng = np.random.default_rng(seed)
    frame = people.copy()
    for column in frame.columns:
        for row in np.flatnonzero(rng.random(len(frame)) < share):
            text, kind = frame.at[row, column], rng.integers(4)
            k = int(rng.integers(len(text) - 1))
            if kind == 0:
                text = ""
            elif column == "born":
                year, month, day = text.split("-")
                text = f"{year}-{day}-{month}"
            elif kind == 1:
                text = text[:k] + text[k + 1] + text[k] + text[k + 2 :]
            else:
                pool = string.digits if text[k].isdigit() else string.ascii_lowercase
                text = text[:k] + str(rng.choice(list(pool))) + text[k + 1 :]
            frame.at[row, column] = text
    return frame


def make_tables(shared: int, alone: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, dict[int, int]]:
    """Two tables with `shared` people in common, and the true pairs of rows."""
    people = make_people(shared + 2 * alone, seed)
    left = people.iloc[: shared + alone].reset_index(drop=True)
    other = pd.concat([people.iloc[:shared], people.iloc[shared + alone :]], ignore_index=True)
    order = np.random.default_rng(seed + 1).permutation(len(other))
    right = add_errors(other.iloc[order].reset_index(drop=True), seed + 2)
    return left, right, {int(i): k for k, i in enumerate(order) if i < shared}
