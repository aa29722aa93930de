"""Forest plots and step curves, drawn with the report's pen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..report.markup import Safe, join, tag
from ..report.numbers import significant, truncate
from ..report.svg import Axis, Figure, Series, Table, heading, plot

ROW = 22.0
MOST_TERMS = 60  # of a forest plot that can be read


def forest(title: str, table: pd.DataFrame, value: str, is_ratio: bool) -> Figure:
    """Draw one row per term: the estimate, its interval and the line of no effect.

    `table` has the columns `value`, low and high. Terms without a finite interval are left out.
    """
    rows = table[np.isfinite(table[[value, "low", "high"]]).all(axis=1)].iloc[:MOST_TERMS]
    axis = Axis(value, log=is_ratio).over([*rows["low"], *rows["high"], 1.0 if is_ratio else 0.0])
    head, down = heading(title)
    width, left, right, top = 640.0, 190.0, 480.0, 44.0 + down
    bottom = top + ROW * max(len(rows), 1)

    def px(v: float) -> float:
        return left + (right - left) * axis.part(v)

    parts: list[Safe] = [head]
    for v, word in axis.ticks():
        parts += [
            tag("line", x1=px(v), x2=px(v), y1=top, y2=bottom, class_="grid"),
            tag("text", word, x=px(v), y=bottom + 17, text_anchor="middle", class_="soft"),
        ]
    none = px(1.0 if is_ratio else 0.0)
    parts.append(tag("line", x1=none, x2=none, y1=top, y2=bottom, class_="rule quiet"))
    cells = []
    for k, (term, row) in enumerate(rows.iterrows()):
        y = top + ROW * (k + 0.5)
        estimate, low, high = (float(row[c]) for c in (value, "low", "high"))
        word = f"{significant(estimate)} [{significant(low)}, {significant(high)}]"
        parts += [
            tag("text", truncate(str(term), 26), x=left - 12, y=y + 4, text_anchor="end"),
            tag(
                "g",
                tag("line", x1=px(low), x2=px(high), y1=y, y2=y, class_="line"),
                tag("rect", x=px(estimate) - 4, y=y - 4, width=8.0, height=8.0, class_="dot"),
                tag("title", f"{term}: {word}"),
                class_="c0",
            ),
            tag("text", word, x=right + 14, y=y + 4, class_="small"),
        ]
        cells.append((str(term), significant(estimate), significant(low), significant(high)))
    label = axis.label + (" (log scale)" if is_ratio else "")
    parts.append(tag("text", label, x=(left + right) / 2, y=bottom + 37, text_anchor="middle"))
    return Figure(title, join(parts), width, bottom + 48, Table(("term", value, "low", "high"), cells))


def steps(
    title: str,
    curves: Sequence[tuple[str, Any, Any, Any, Any]],
    x: str,
    y: str,
    *,
    start: float = 1.0,
    is_share: bool = True,
) -> Figure:
    """Draw step functions (name, times, values, low, high), each beginning with `start` at time 0."""
    series = []
    for k, (name, times, values, low, high) in enumerate(curves):
        ts = np.concatenate([[0.0], np.asarray(times, dtype=float)])
        xs = np.repeat(ts, 2)[1:]
        ys, lows, highs = (
            np.repeat(np.concatenate([[start], np.nan_to_num(np.asarray(v, dtype=float), nan=start)]), 2)[:-1]
            for v in (values, low, high)
        )
        series.append(Series(name, xs.tolist(), ys.tolist(), f"c{k % 8}", lows.tolist(), highs.tolist()))
    vertical = Axis(y, 0.0, 1.0, fixed=True) if is_share else Axis(y)
    return plot(title, series, Axis(x), vertical)
