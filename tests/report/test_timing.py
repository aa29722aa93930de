"""Accuracy against time, and how old updates were: from the events alone."""

from __future__ import annotations

from typing import Any

from tacit.report import RunRecord, render
from tacit.report.timing import against_time, ages, mark


def record(
    label: str,
    points: list[tuple[float, float]],
    staleness: list[dict[str, int]] | None = None,
    runtime: str = "cohort",
    **start: Any,
) -> RunRecord:
    rounds = [
        {
            "kind": "round",
            "round": k + 1,
            "clock": t,
            "accuracy": a,
            "loss": 1 - a,
            **({"staleness": staleness[k]} if staleness else {}),
        }
        for k, (t, a) in enumerate(points)
    ]
    zero = {"kind": "round", "round": 0, "accuracy": 0.1, "loss": 2.0}
    begun = {
        "kind": "start",
        "label": label,
        "skew": "IID()",
        "seed": 0,
        "runtime": runtime,
        "rounds": len(points),
        **start,
    }
    return RunRecord(
        {}, (begun, zero, *rounds, {"kind": "end", "metrics": {"accuracy": points[-1][1]}, "seconds": 1.0})
    )


ROUNDS = record("FedAvg", [(10.0, 0.5), (20.0, 0.7), (30.0, 0.9)])
BUFFERED = record(
    "FedAvg, FedBuff(buffer=2)",
    [(2.0, 0.5), (4.0, 0.77), (6.0, 0.8)],
    [{"0": 2}, {"1": 1, "2": 1}, {"15": 2}],
)


def test_the_time_to_a_mark_that_all_runs_reach_by_hand():
    """The lower of the two best is 0.8; 95% of it, 0.76, is passed at 30 s by rounds and at 4 s by the
    buffer.
    """
    assert mark([ROUNDS, BUFFERED], "accuracy") == 0.95 * 0.8
    drawn = against_time([ROUNDS, BUFFERED])
    assert drawn is not None
    assert drawn.table is not None
    assert drawn.table.header[-1] == "time to reach 76.0%"
    assert [(row[0], row[1], row[-1]) for row in drawn.table.rows] == [
        ("FedAvg", "3", "30.0 s"),
        ("FedAvg, FedBuff(buffer=2)", "3", "4.0 s"),
    ]
    assert "Simulated time" in drawn.caption


def test_a_regression_is_timed_by_its_loss():
    """0.5 and 0.2 are the lowest losses; 0.5/0.95 is passed at once by the first and in its second version by
    the other.
    """
    runs = [record("a", [(3.0, 0.5), (5.0, 0.5)]), record("b", [(1.0, 0.1), (2.0, 0.8)])]
    for r in runs:
        for e in r.events:
            if e["kind"] == "round":
                del e["accuracy"]  # type: ignore[attr-defined]
    drawn = against_time(runs)
    assert drawn is not None
    assert drawn.table is not None
    assert [row[-1] for row in drawn.table.rows] == ["3.0 s", "2.0 s"]


def test_ages_are_counted_over_all_versions_and_the_oldest_share_a_bar():
    drawn = ages([BUFFERED])
    assert drawn is not None
    assert drawn.table is not None
    assert dict(drawn.table.rows)["0"] == "2"
    assert dict(drawn.table.rows)["11 to 15"] == "2"
    assert "15 at most" in drawn.caption
    assert "33.3% of the updates were fresh" in drawn.caption


def test_runs_without_a_clock_have_no_such_section_and_those_with_one_do():
    plain = RunRecord({}, tuple({k: v for k, v in e.items() if k != "clock"} for e in ROUNDS.events))
    assert against_time([plain]) is None
    assert ages([plain]) is None
    assert 'id="time"' not in render([plain])
    page = render([ROUNDS, BUFFERED])
    assert 'id="time"' in page
    assert "Staleness of the updates" in page


def test_over_a_network_the_clock_is_labeled_as_real():
    drawn = against_time([record("a", [(1.0, 0.5)], runtime="one process a party")])
    assert drawn is not None
    assert "Wall-clock time" in drawn.caption
