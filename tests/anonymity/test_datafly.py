from __future__ import annotations

import pandas
import pytest

import tacit
from tacit.anonymity import Dates
from tacit.errors import BadData

from .adult import in_order, people

QUASI = ["Race", "Birthdate", "Sex", "Zip"]


def test_the_published_example_step_by_step():
    """Sweeney 2002: distinct values 2, 12, 2, 3; birth date to the month (12 distinct still), then to the
    year (3 distinct); then two rows stand alone, no more than k = 2; they are suppressed, and ten rows remain
    in five pairs.
    """
    made = tacit.anonymize(people(), quasi=QUASI, k=2, method="datafly", hierarchies={"Birthdate": Dates()})
    steps = [s.counts for s in made.trace]
    assert [s["distinct"] for s in steps[:3]] == [
        dict(zip(QUASI, d)) for d in ((2, 12, 2, 3), (2, 12, 2, 3), (2, 3, 2, 3))
    ]
    assert [s.get("generalize") for s in steps[:3]] == ["Birthdate", "Birthdate", None]
    assert [s["rare"] for s in steps[:3]] == [12, 12, 2]
    assert steps[3] == {"suppressed": 2}
    assert len(steps) == 4
    assert made.suppressed == ["r7", "r8"]
    assert made.levels == {"Race": 0, "Birthdate": 2, "Sex": 0, "Zip": 0}
    expected = {
        "r1": "Black 1965 M 37203",
        "r2": "Black 1965 M 37203",
        "r3": "Black 1965 F 37215",
        "r4": "Black 1965 F 37215",
        "r5": "Black 1964 F 37215",
        "r6": "Black 1964 F 37215",
        "r9": "White 1964 M 37217",
        "r10": "White 1964 M 37217",
        "r11": "White 1967 M 37215",
        "r12": "White 1967 M 37215",
    }
    assert {i: " ".join(row) for i, row in zip(in_order(made).index, in_order(made).to_numpy())} == expected
    assert made.table.groupby(QUASI).size().tolist() == [2] * 5
    assert "1. Distinct values: Race 2, Birthdate 12, Sex 2, Zip 3. 12 rows" in made.explain()


def test_a_lone_suppressed_row_gets_company_up_to_k():
    """Lines 4 and 5: one row occurs fewer than k = 3 times; it is suppressed, and two of the largest class go
    with it.
    """
    frame = pandas.DataFrame({"a": ["x"] * 6 + ["y"] * 3 + ["z"]})
    made = tacit.anonymize(frame, quasi=["a"], k=3, method="datafly")
    assert len(made.suppressed) == 3
    assert 9 in made.suppressed
    assert made.table["a"].value_counts().to_dict() == {"x": 4, "y": 3}
    assert made.loss == pytest.approx(3 / 10)
    assert made.trace[-1].counts == {"more": 2}


def test_where_no_class_can_spare_rows_the_smallest_goes_whole():
    frame = pandas.DataFrame({"a": ["x"] * 4 + ["y"] * 3 + ["z"]})
    made = tacit.anonymize(frame, quasi=["a"], k=3, method="datafly")
    assert made.table["a"].tolist() == ["x"] * 4
    assert made.loss == pytest.approx(4 / 8)


def test_a_limit_takes_the_place_of_k_in_the_loop():
    frame = pandas.DataFrame({"a": ["x"] * 50 + ["y"] * 45 + list("abcde")})
    kept = tacit.anonymize(frame, quasi=["a"], k=10, method="datafly", max_suppressed=0.04)
    assert kept.levels == {"a": 1}
    loose = tacit.anonymize(frame, quasi=["a"], k=10, method="datafly", max_suppressed=0.05)
    assert loose.levels == {"a": 0}
    assert len(loose.suppressed) == 5


def test_a_request_no_generalization_can_meet_is_refused():
    frame = pandas.DataFrame({"a": list("xyz"), "s": ["flu"] * 3})
    with pytest.raises(
        BadData,
        match="Every quasi-identifier is at its top level and 3 rows still violate the privacy models, more "
        "than the 0 that may be suppressed",
    ):
        tacit.anonymize(frame, quasi=["a"], sensitive=["s"], k=2, l=2, method="datafly", max_suppressed=0.0)


def test_it_is_at_most_as_good_as_the_optimum():
    frame = people()
    fly = tacit.anonymize(frame, quasi=QUASI, k=2, method="datafly", hierarchies={"Birthdate": Dates()})
    best = tacit.anonymize(
        frame, quasi=QUASI, k=2, method="optimal", hierarchies={"Birthdate": Dates()}, max_suppressed=2 / 12
    )
    assert best.loss <= fly.loss + 1e-12
