"""Utility: by hand, against the search's own price for the same table, and by training on what was
published.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.anonymity.hierarchies import Hierarchy
from tacit.errors import BadData

DATA = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data") / "arx"
BEFORE = pd.DataFrame({"age": ["30", "31", "42", "42"], "sex": ["m", "m", "f", "m"]})
AFTER = pd.DataFrame({"age": ["30-39", "30-39", "40-49", "*"], "sex": ["m", "m", "f", "*"]})
AGE = Hierarchy.from_rows(
    [["30", "30-39", "*"], ["31", "30-39", "*"], ["42", "40-49", "*"], ["43", "40-49", "*"]]
)
SEX = Hierarchy.from_rows([["m", "*"], ["f", "*"]])


def test_by_hand_with_hierarchies():
    """Four rows, the last suppressed; classes of 2 and 1: discernibility 4 + 1 + 1·4 = 9, average class size
    3/2. Granularity: age (2−1)/(4−1) three times, sex 0 three times, the suppressed row 1 and 1: (1 + 2) / 8.
    Precision: age at level 1 of 2 three times, suppressed 1: 1 − (1.5 + 2) / 8. Entropy: 30–39 stands for 30
    and 31, one row each: 1 bit each; 40–49 is 42 alone in the table: 0; the suppressed row is 42 of four
    rows, 1 bit, and m of four rows log₂(4/3) bits. All *: ages 2 + 2 + 1 + 1, sexes 3·log₂(4/3) + 2.
    """
    found = tacit.risk(BEFORE, AFTER, ["age", "sex"], hierarchies={"age": AGE, "sex": SEX}).utility
    assert (found.discernibility, found.class_size, found.suppressed) == (9, 1.5, 1)
    assert found.granularity == pytest.approx(3 / 8)
    assert found.precision == pytest.approx(1 - 3.5 / 8)
    assert found.entropy == pytest.approx((2 + 1 + math.log2(4 / 3)) / (6 + 3 * math.log2(4 / 3) + 2))


def test_by_hand_without_hierarchies():
    """Three ages are in the table; 30–39 stands for two of them: (2−1)/(3−1). 40–49 stands for 42 alone: 0.
    How high a level is, nobody can tell.
    """
    found = tacit.risk(BEFORE, AFTER, ["age", "sex"]).utility
    assert found.granularity == pytest.approx((0.5 + 0.5 + 0 + 2) / 8)
    assert math.isnan(found.precision)


def test_a_row_left_out_counts_like_one_of_stars():
    kept = AFTER.iloc[[0, 1, 2]].set_axis([10, 11, 12])
    a = tacit.risk(BEFORE.set_axis([10, 11, 12, 13]), kept, ["age", "sex"]).utility
    b = tacit.risk(BEFORE, AFTER, ["age", "sex"]).utility
    assert (a.granularity, a.entropy, a.discernibility, a.suppressed) == pytest.approx(
        (b.granularity, b.entropy, b.discernibility, b.suppressed)
    )


def test_renumbered_rows_are_not_matched_with_the_first_ones():
    """A file without the suppressed rows says nothing about which are missing: row 0 after may be row 1
    before.
    """
    after = AFTER.iloc[[1, 2]].reset_index(drop=True)
    found = tacit.risk(BEFORE, after, ["age", "sex"])
    assert math.isnan(found.utility.entropy)
    assert any("cannot be matched" in w for w in found.warnings)
    with_words = tacit.risk(BEFORE, after, ["age", "sex"], hierarchies={"age": AGE, "sex": SEX}).utility
    assert with_words.granularity == pytest.approx((2 / 3 + 4) / 8)


def test_the_original_loses_nothing():
    found = tacit.risk(BEFORE, BEFORE, ["age", "sex"]).utility
    assert (found.granularity, found.entropy, found.suppressed) == (0, 0, 0)


@pytest.fixture(scope="module")
def adult() -> pd.DataFrame:
    return pd.read_csv(DATA / "adult.csv.gz", sep=";", dtype=str)


@pytest.mark.parametrize(
    ("metric", "of"),
    [
        ("loss", "granularity"),
        ("entropy", "entropy"),
        ("height", "precision"),
        ("discernibility", "discernibility"),
    ],
)
def test_the_measure_is_the_price_the_search_paid(adult, metric, of):
    """Two programs for one figure: the search prices combinations of codes, the measure reads the two
    tables.
    """
    quasi = ["age", "sex", "race", "education"]
    made = tacit.anonymize(
        adult,
        quasi=quasi,
        k=10,
        hierarchies={q: DATA / f"adult_hierarchy_{q}.csv" for q in quasi},
        max_suppressed=0.02,
        metric=metric,
    )
    found = getattr(tacit.risk(adult, made).utility, of)
    shown = {"precision": 1 - found, "discernibility": found / len(adult) ** 2}.get(of, found)
    assert shown == pytest.approx(made.loss, abs=1e-9)


def test_arx_chose_levels_whose_loss_is_its_own(adult):
    """ARX 3.9.2 on Adult, 9 quasi-identifiers, k = 5, 4%: levels [0,3,0,1,1,1,1,2,0], 370 classes, 1,178 rows
    suppressed, loss .2928.
    """
    levels = dict(zip(adult, [0, 3, 0, 1, 1, 1, 1, 2, 0]))
    ways = {c: Hierarchy.from_csv(DATA / f"adult_hierarchy_{c}.csv") for c in adult}
    after = pd.DataFrame(
        {c: adult[c].map(dict(zip(ways[c].values, ways[c].levels[level]))) for c, level in levels.items()}
    )
    small = after.assign(n=1).groupby(list(after))["n"].transform("size") < 5
    after[small] = "*"
    found = tacit.risk(adult, after, list(adult), hierarchies=ways)
    assert (found.after.classes, found.utility.suppressed, found.after.k) == (370, 1178, 5)
    assert found.utility.granularity == pytest.approx(0.2928, abs=5e-5)


# --- accuracy ---


def made_up(n: int = 2000) -> pd.DataFrame:
    """y is 1 where age is at least 50, but for one row in ten; the town says nothing."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, n)
    y = (age >= 50) ^ (rng.random(n) < 0.1)
    return pd.DataFrame(
        {"age": age.astype(str), "town": rng.choice(list("abc"), n), "y": np.where(y, "yes", "no")}
    )


def tens(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(age=[f"{int(a) // 10}x" for a in frame["age"]])


def test_what_keeps_the_signal_keeps_the_accuracy():
    """At best 90%: one label in ten is turned. 2,000 test rows: a standard error of 0.7 points; the bounds
    are more than four away.
    """
    frame = made_up()
    for score in tacit.risk(frame, tens(frame), ["age", "town"], target="y").scores:
        assert score.original > 0.85
        assert score.anonymous > 0.85
        assert score.majority < 0.6


def test_what_hides_the_signal_loses_the_accuracy():
    frame = made_up()
    for score in tacit.risk(frame, frame.assign(age="any"), ["age", "town"], target="y").scores:
        assert score.original > 0.85
        assert score.anonymous < 0.6


def test_rows_that_were_left_out_are_not_trained_on():
    """Only the old are published, so a model that is trained on them says yes to everybody."""
    frame = made_up()
    old = tens(frame)[frame["age"].astype(int) >= 60]
    for score in tacit.risk(frame, old, ["age", "town"], target="y").scores:
        assert abs(score.anonymous - (frame["y"] == "yes").mean()) < 0.05


def test_a_generalized_label_is_not_a_label():
    frame = made_up(600)
    for score in tacit.risk(frame, frame.assign(y="*"), ["age", "y"], target="y").scores:
        assert score.anonymous == 0.0


def test_the_same_seed_gives_the_same_accuracy_and_lost_rows_give_none():
    frame = made_up(600)
    first, second = (tacit.risk(frame, tens(frame), ["age", "town"], target="y").scores for _ in range(2))
    assert first == second
    unknown = tacit.risk(
        frame, tens(frame).head(500).reset_index(drop=True), ["age", "town"], target="y"
    ).scores
    assert all(math.isnan(s.anonymous) for s in unknown)


def test_a_target_of_names_is_refused():
    frame = made_up(30).assign(y=[f"person {i}" for i in range(30)])
    with pytest.raises(BadData, match="occurs fewer than 3 times in 'y', so it cannot be in every fold"):
        tacit.risk(frame, frame, ["age"], target="y")
