"""Times that the grid of a Cox model rounds: how many, and a grid that keeps their order."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from statsmodels.duration.hazard_regression import PHReg

import tacit
from tacit.stats.hazards import COUNT, FINER, CoxProgram
from tacit.stats.lifetimes import count_rounded, note_rounded
from tests.stats.references import quiet, split


def people(n: int = 240, decimals: int | None = None, seed: int = 0) -> pd.DataFrame:
    """Continuous survival times of mean 2, a few of which share a whole unit."""
    rng = np.random.default_rng(seed)
    age = rng.normal(size=n)
    time, censored = rng.exponential(2 * np.exp(-0.7 * age)), rng.uniform(0.5, 8, n)
    frame = pd.DataFrame({"age": age, "time": np.minimum(time, censored), "died": (time <= censored) * 1})
    if decimals is not None:
        frame["time"] = frame["time"].round(decimals).clip(lower=10.0**-decimals)
    return frame


def fit(frame: pd.DataFrame, **more):
    return tacit.stats.cox(split(frame, 3), "age", time="time", event="died", **more)


def pooled(frame: pd.DataFrame) -> float:
    found = quiet(PHReg(frame["time"], frame[["age"]], status=frame["died"], ties="efron").fit)
    return float(found.params[0])


def note(model) -> str:
    return next((n for n in model.notes if "rounded up" in n), "")


def test_rounded_times_are_noted_and_the_recommended_grid_gives_the_pooled_fit():
    """Before, times of mean 2 were rounded to whole units without a word."""
    frame = people(decimals=2)
    coarse, want = fit(frame), pooled(frame)
    events = int(frame["died"].sum())
    assert re.match(
        rf"2\d\d of 240 times are not on the grid and were rounded up: {events} events", note(coarse)
    )
    assert "grid=0.01 keeps it, and opens sums at more points" in note(coarse)
    fine = fit(frame, grid=0.01)
    assert note(fine) == ""
    assert abs(fine.summary()["coef"]["age"] - want) < 1e-6
    assert abs(coarse.summary()["coef"]["age"] - want) > 1e-2


def test_continuous_times_get_a_grid_on_which_few_events_tie():
    frame = people()
    found = re.search(r"grid=(\S+) keeps nearly all of it", note(fit(frame)))
    fine = fit(frame, grid=float(found[1]))
    assert abs(fine.summary()["coef"]["age"] - pooled(frame)) < 2e-3
    assert "strata='site' opens no grid" in note(fine)


def test_times_on_the_grid_and_times_of_a_site_have_no_note():
    frame = people()
    whole = frame.assign(time=np.ceil(frame["time"]))
    assert note(fit(whole)) == ""
    assert note(fit(whole, grid=sorted(set(whole["time"])))) == ""
    assert note(fit(frame, strata="site")) == ""
    declared = note(fit(frame, grid=[1, 2, 3, 8]))
    assert declared.endswith("Declare more points.")


def test_a_count_of_few_rounded_times_is_not_shown():
    frame = people().assign(time=lambda f: np.ceil(f["time"]))
    frame.loc[:2, "time"] += 0.5
    assert note(fit(frame)).startswith("Fewer than 5 of 240 times are not on the grid")
    assert note(fit(frame, min_count=1)).startswith("3 of 240 times")


@pytest.mark.parametrize(
    ("times", "grid", "counts"),
    [
        ([1, 2, 3], 1.0, [0, 0, 0, 0]),
        ([0.1, 0.2, 0.3, 1], 1.0, [3, 0, 0, 0]),  # 0.1·3 is no float, and a tenth all the same
        ([0.25, 1, 12.345], 1.0, [2, 2, 1, 0]),
        ([np.pi], 1.0, [1, 1, 1, 1]),
        ([7, 14, 15], 7.0, [1, 1, 1, 1]),
        ([1.5, 3], [1.5, 2, 3], [0, 0, 0, 0]),
        ([1.5, 2.5], [1.5, 2, 3], [1, 1, 1, 1]),
    ],
)
def test_rounded_times_are_counted_for_each_grid(times, grid, counts):
    assert count_rounded(np.array(times, dtype=float), grid).tolist() == counts


def test_a_grid_of_too_many_points_is_not_recommended():
    assert "is not possible" in note_rounded([9, 9, 9, 9], 1.0, 100_000, 200, 50, 40, 5)[0]
    assert "grid=0.1 keeps nearly" in note_rounded([9, 9, 9, 9], 1.0, 1000, 200, 50, 40, 5)[0]
    assert note_rounded([0, 0, 0, 0], 1.0, 10, 200, 50, 40, 5) == ()


def test_a_coordinator_learns_of_rounding_what_its_grid_shows_anyway():
    """A lying coordinator asks with a grid that singles out a time. Its counts of that time, in the next
    step, are the same number: the new sums tell nothing that these do not."""
    frame = people(60, decimals=2)
    point = float(frame["time"].iloc[7])
    grid = [point - 1e-4, point, 1000.0]
    program = CoxProgram("age", "time", "died", grid=grid, min_count=1)
    head = program.local(0, frame, {})
    rounded = int(head[4])
    steps = program.coordinate()
    next(steps)
    down = steps.send(head)
    assert int(down["phase"]) == COUNT
    cells = int(down["cells"])
    counts = program.local(1, frame, down)[: 2 * cells].reshape(2, cells)
    on_point = int((frame["time"] == point).sum())
    assert counts[1, 1] == on_point == len(frame) - rounded
    assert len(head) == program.length(0, {})
    assert (head[4 : 4 + len(FINER)] <= len(frame)).all()
