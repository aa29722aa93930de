"""Figures of runs that have a clock: accuracy against time, and the age of updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from .figures import band, group_runs, judged_by, metric_axis
from .numbers import LOWER_IS_BETTER, count, format_metric, format_seconds, is_finite, mean_error, percent
from .records import RunRecord
from .svg import Axis, Figure, Table, bars, combine, plot

# of what every run reaches at its best: a mark that all of them pass, so that their times can be compared
REACHED = 0.95
MOST_AGES = 12  # bars; older updates share the last


def metric_of(runs: Sequence[RunRecord]) -> str:
    metric = judged_by(runs)
    return metric if any(metric in e for r in runs for e in r.rounds) else "loss"


def _points(runs: Sequence[RunRecord], metric: str) -> list[tuple[float, float, float | None]]:
    """Return (time, mean, standard error) of each version, over the seeds."""
    seen: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for event in run.rounds:
            clock = event.get("clock", 0.0 if event["round"] == 0 else None)
            if is_finite(clock) and is_finite(event.get(metric)):
                seen.setdefault(event["round"], []).append((clock, event[metric]))
    return [
        (math.fsum(t for t, _ in some) / len(some), *mean_error(v for _, v in some))
        for _, some in sorted(seen.items())
    ]


def mark(runs: Sequence[RunRecord], metric: str) -> float | None:
    """Return a value that every run reaches, so that their times can be compared."""
    best = min if metric in LOWER_IS_BETTER else max
    tops = [
        best(p[1] for p in points) for group in group_runs(runs) if (points := _points(group.runs, metric))
    ]
    if not tops:
        return None
    return REACHED * min(tops) if metric not in LOWER_IS_BETTER else max(tops) / REACHED


def until(points: Sequence[tuple[float, float, float | None]], metric: str, level: float) -> float | None:
    return next(
        (t for t, value, _ in points if (value <= level if metric in LOWER_IS_BETTER else value >= level)),
        None,
    )


def against_time(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw accuracy against the clock, and compare the times to a common value."""
    timed = [r for r in runs if any(is_finite(e.get("clock")) for e in r.rounds)]
    if not timed:
        return None
    metric = metric_of(timed)
    level = mark(timed, metric)
    series, rows = [], []
    for name, style, group in group_runs(timed, colors):
        points = _points(group, metric)
        if not points or points[-1][0] <= 0:
            continue
        series.append(band(name, style, metric, points))
        took = None if level is None else until(points, metric, level)
        rows.append(
            (
                name,
                count(max(r.done for r in group)),
                format_seconds(points[-1][0]),
                format_metric(metric, points[-1][1]),
                "not reached" if took is None else format_seconds(took),
            )
        )
    if not series:
        return None
    ends = [s.x[-1] for s in series]
    after = f": {title}" if title else ""
    real = any(
        r.start.get("runtime") in ("one process a party", "parties on their own machines") for r in timed
    )
    clock = (
        "Wall-clock time since the first task was sent."
        if real
        else "Simulated time, from the speeds in the job."
    )
    return plot(
        f"{metric.capitalize()} vs. time{after}",
        series,
        Axis("time", log=max(ends) / min(ends) > 20, form=lambda v, step: format_seconds(v)),
        metric_axis(metric, [v for s in series for v in s.y]),
        caption=clock
        + (
            ""
            if len(series) < 2 or level is None
            else f" The table shows when each run first reached {format_metric(metric, level)}."
        ),
        table=Table(
            (
                "run",
                "versions",
                "total time",
                f"final {metric}",
                f"time to reach {'' if level is None else format_metric(metric, level)}",
            ),
            rows,
        ),
    )


def ages(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw how many versions appeared while an update was being computed."""
    panels = []
    for name, style, group in group_runs(runs, colors):
        held: Counter[int] = Counter()
        for run in group:
            for event in run.rounds:
                for age, many in (event.get("staleness") or {}).items():
                    if str(age).isdigit() and is_finite(many):
                        held[int(age)] += int(many)
        total = sum(held.values())
        if not total:
            continue
        top = max(held)
        labels = [str(a) for a in range(min(top + 1, MOST_AGES))]
        values = [held[a] for a in range(len(labels))]
        if top >= MOST_AGES:
            labels[-1] = f"{MOST_AGES - 1} to {top}"
            values[-1] += sum(many for age, many in held.items() if age >= MOST_AGES)
        mean = sum(age * many for age, many in held.items()) / total
        panels.append(
            bars(
                f"Staleness of the updates: {name}" + (f", {title}" if title else ""),
                labels,
                values,
                count,
                columns=("versions behind", "updates"),
                style=style,
                caption="Model versions published while an update was being computed: "
                f"{mean:.2g} on average, {count(top)} at most; {percent(held[0] / total)} of the updates "
                "were fresh.",
            )
        )
    return combine("Staleness of the updates", panels) if panels else None
