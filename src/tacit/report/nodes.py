"""Figures of training without a server: the graph, consensus, and accuracy of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import form_share, form_whole, styles
from .markup import join, tag
from .numbers import is_finite, percent, significant
from .records import RunRecord
from .svg import WIDTH, Axis, Figure, Series, Table, bars, heading, plot

MOST_NODES = 60  # a larger circle is not readable
MOST_BARS = 40


def network(graph: Mapping[str, Any], accuracies: Sequence[Any] = ()) -> Figure | None:
    """Draw nodes on a circle; a larger dot means a better accuracy."""
    n, edges = int(graph.get("nodes") or 0), graph.get("edges") or []
    if not 2 <= n <= MOST_NODES or not edges:
        return None
    title = f"Communication graph: {graph.get('name')}, {n} nodes"
    head, down = heading(title)
    middle, radius, top = WIDTH / 2, 150.0, 24.0 + down
    at = [
        (
            middle + radius * math.sin(2 * math.pi * k / n),
            top + radius - radius * math.cos(2 * math.pi * k / n),
        )
        for k in range(n)
    ]
    parts = [head] + [
        tag("line", x1=at[i][0], y1=at[i][1], x2=at[j][0], y2=at[j][1], class_="grid")
        for i, j in edges
        if 0 <= i < n and 0 <= j < n
    ]
    known = [a for a in accuracies if is_finite(a)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    names = graph.get("names") or [str(k) for k in range(n)]
    for k, (x, y) in enumerate(at):
        a = accuracies[k] if k < len(accuracies) else None
        size = 4.0 + (6.0 * (a - low) / (high - low) if is_finite(a) and high > low else 2.0)
        words = f"{names[k]}: {percent(a)}" if is_finite(a) else str(names[k])
        parts.append(
            tag("g", tag("circle", cx=x, cy=y, r=size, class_="dot halo"), tag("title", words), class_="c0")
        )
    caption = (
        f"Spectral gap {significant(graph.get('gap'))}: each exchange reduces the distance of the nodes from "
        "their mean by at least this share."
    )
    return Figure(title, join(parts), WIDTH, top + 2 * radius + 24, caption=caption)


def consensus(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw the distance of the nodes' models from their mean, by round."""
    series, rows = [], []
    colors = colors or styles([r.label for r in runs])
    for run in runs:
        points = [
            (e["round"], e["consensus"])
            for e in run.rounds
            if is_finite(e.get("consensus")) and e["consensus"] > 0
        ]
        if points:
            series.append(
                Series(run.label, [r for r, _ in points], [c for _, c in points], colors[run.label])
            )
            rows.append((run.label, significant(points[-1][1])))
    if not series:
        return None
    values = [v for s in series for v in s.y]
    return plot(
        f"Distance from consensus{': ' if title else ''}{title}",
        series,
        Axis("round", form=form_whole),
        Axis("√(mean ‖θ − mean θ‖²)", log=max(values) / min(values) > 30),
        table=Table(("run", "after the last round"), rows),
    )


def last_accuracies(run: RunRecord) -> list[Any]:
    """Return the accuracy of each node in the last round that measured it."""
    return next((e["nodes"]["accuracy"] for e in reversed(run.rounds) if "nodes" in e), [])


def each_node(run: RunRecord) -> Figure | None:
    """Return every node's own accuracy after the last round."""
    last = last_accuracies(run)
    if not last or len(last) > MOST_BARS:
        return None
    names = list((run.last("graph") or {}).get("names") or range(len(last)))
    return bars(f"Accuracy of each node: {run.label}", [str(n) for n in names], last, percent)


def by_rounds(runs: Sequence[RunRecord]) -> Figure | None:
    """Draw the worst node's accuracy and that of the mean model."""
    series = []
    for k, run in enumerate(runs):
        points = [(e["round"], min(e["nodes"]["accuracy"])) for e in run.rounds if "nodes" in e]
        if len(points) > 1:
            series.append(
                Series(
                    f"worst node, {run.label}", [r for r, _ in points], [a for _, a in points], f"c{k % 8}"
                )
            )
    return (
        plot(
            "Accuracy of the worst node by round",
            series,
            Axis("round", form=form_whole),
            Axis("accuracy", form=form_share),
        )
        if series
        else None
    )
