"""Figures of the anonymity report. Each function returns a Figure, or None if there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..report.maps import heat
from ..report.markup import Safe, join, tag
from ..report.numbers import count, names, percent, significant
from ..report.svg import WIDTH, Axis, Figure, Series, Table, bars, heading, plot
from .assessment import Risk
from .combinations import Combination
from .result import AnonymizationResult, LatticeNode
from .risk import Exposure

MOST_NODES = 400  # drawn nodes of the lattice; of more, an even selection that includes the chosen node
MOST_EDGES = 600
MOST_PAIRS = 12  # columns of the heat map of pairs
MOST_POINTS = 300


def class_sizes(risk: Risk) -> Figure:
    """Cumulative rows by class size, before and after: a curve further to the right is safer."""
    series, rows = [], []
    for name, style, exposure in (("before", "c1", risk.before), ("after", "c0", risk.after)):
        sizes, share = _cumulative(exposure)
        series.append(
            Series(
                name,
                sizes,
                share,
                style,
                words=[
                    f"{name}: {percent(s)} of rows in classes of at most {count(z)}"
                    for z, s in zip(sizes, share)
                ],
            )
        )
        rows += [(name, count(z), percent(s)) for z, s in zip(sizes, share)][:20]
    return plot(
        "Rows in classes of at most this size",
        series,
        Axis("rows in the class", log=True, form=lambda v, step: count(v)),
        Axis("share of published rows", -0.02, 1.02, fixed=True, form=lambda v, step: percent(v, 0)),
        table=Table(("table", "class size", "rows"), rows),
        caption="A class contains the rows that share all quasi-identifiers. A row in a class of one is "
        "re-identified by an attacker who knows them.",
    )


def _cumulative(exposure: Exposure) -> tuple[list[float], list[float]]:
    if not exposure.rows:
        return [], []
    sizes, classes = np.unique(exposure.sizes, return_counts=True)
    share = np.cumsum(sizes * classes) / exposure.rows
    pick = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), 120)).round().astype(int))
    return [float(v) for v in sizes[pick]], [float(v) for v in share[pick]]


def at_risk(risk: Risk) -> Figure:
    labels, values = [], []
    for t in risk.before.prosecutor.above:
        for name, exposure in (("before", risk.before), ("after", risk.after)):
            labels.append(f"above {t:g}, {name}")
            values.append(exposure.prosecutor.above[t])
    marked = [i for i, label in enumerate(labels) if label.endswith("after") and values[i] > 0]
    return bars(
        "Rows by prosecutor risk",
        labels,
        values,
        percent,
        marked=marked,
        columns=("risk", "share of rows"),
        caption="Share of published rows that an attacker who knows that the person is in the table "
        "re-identifies with a probability above the threshold.",
    )


def by_column(risk: Risk) -> Figure | None:
    share = sorted(risk.by_column().items(), key=lambda item: -item[1])
    if not any(v for _, v in share):
        return None
    return bars(
        "Minimal uniques by column",
        [name for name, _ in share],
        [v for _, v in share],
        lambda v: percent(v, 0),
        columns=("column", "share of minimal uniques"),
        caption="The share of the original's minimal uniques (a row and a smallest set of columns on which "
        "it is unique) that involve the column.",
    )


def pairs(risk: Risk, after: bool = False) -> Figure | None:
    """Unique rows for every pair of columns; the diagonal shows single columns."""
    measured = {c.columns: c for c in risk.combinations[int(after)]}
    columns = list(risk.quasi)[:MOST_PAIRS]
    if len(columns) < 2 or not any(len(c) == 2 for c in measured):
        return None

    def of(a: str, b: str) -> Combination:
        return measured[(a,)] if a == b else measured.get((a, b)) or measured[(b, a)]

    rows = (risk.after if after else risk.before).rows or 1
    values = [[of(a, b).unique / rows for b in columns] for a in columns]
    texts = [[count(of(a, b).unique) for b in columns] for a in columns]
    words = [
        [f"{a} and {b}" * (a != b) + a * (a == b) + f": {t} rows are unique" for b, t in zip(columns, row)]
        for a, row in zip(columns, texts)
    ]
    return heat(
        f"Unique rows by pair of columns, {'after' if after else 'before'}",
        columns,
        columns,
        values,
        texts,
        top_value=max((v for row in values for v in row), default=0.0) or 1.0,
        words=words,
        caption="The number of rows that are unique on these two columns.",
    )


def accuracy(risk: Risk) -> Figure | None:
    known = [s for s in risk.scores if not math.isnan(s.anonymous)]
    if not known:
        return None
    labels, values = [], []
    for s in known:
        labels += [f"{s.model.split()[-1]}, original", f"{s.model.split()[-1]}, anonymous"]
        values += [s.original, s.anonymous]
    labels, values = [*labels, "most frequent class"], [*values, known[0].majority]
    return bars(
        f"Predicting {risk.target}",
        labels,
        values,
        percent,
        columns=("trained on", "accuracy"),
        caption="Models trained on the original and on the published rows, tested on held-out original rows "
        "(3 folds).",
    )


def trade(result: AnonymizationResult, rows: int) -> Figure | None:
    """Loss and risk of every anonymous table that the search evaluated."""
    nodes = [v for v in result.lattice or [] if v.anonymous and v.loss is not None and rows > v.suppressed]
    if len(nodes) < 2:
        return None
    chosen = _chosen(result)
    nodes = [
        v for i, v in enumerate(nodes) if i % math.ceil(len(nodes) / MOST_POINTS) == 0 or v.levels == chosen
    ]

    def series(name: str, style: str, nodes: Sequence[LatticeNode]) -> Series:
        risk = [v.classes / (rows - v.suppressed) for v in nodes]
        words = [
            f"levels {_word(v.levels)}: loss {significant(v.loss)}, average risk {percent(r, 2)}, "
            f"{count(v.suppressed)} suppressed"
            for v, r in zip(nodes, risk)
        ]
        return Series(name, [v.loss for v in nodes], risk, style, words=words)

    both = [
        series("other anonymous tables", "c0", [v for v in nodes if v.levels != chosen]),
        series("chosen", "c1", [v for v in nodes if v.levels == chosen]),
    ]
    return plot(
        "Utility and risk",
        [s for s in both if len(s.x)],
        Axis(f"{result.settings.get('metric', 'loss')} (lower is better)"),
        Axis("average prosecutor risk", form=lambda v, step: percent(v, 1 if step >= 0.001 else 2)),
        joined=False,
        caption="Each mark is a node of the lattice that satisfies the privacy models; further left means "
        "less loss, further down less risk.",
    )


def lattice(result: AnonymizationResult) -> Figure | None:
    """The generalization lattice, from the original (bottom) to * everywhere (top), with the chosen node."""
    if not result.lattice:
        return None
    heights = [result.hierarchies[q].height for q in result.quasi]
    total = math.prod(h + 1 for h in heights)
    seen = {v.levels: v for v in result.lattice}
    chosen = _chosen(result)
    is_complete = total <= MOST_NODES
    nodes = (
        [tuple(int(x) for x in node) for node in np.ndindex(*(h + 1 for h in heights))]
        if is_complete
        else list(seen)
    )
    if len(nodes) > MOST_NODES:
        nodes = [
            node
            for i, node in enumerate(nodes)
            if i % math.ceil(len(nodes) / MOST_NODES) == 0 or node == chosen
        ]
    floors: dict[int, list[tuple[int, ...]]] = {}
    for node in sorted(nodes):
        floors.setdefault(sum(node), []).append(node)
    head, down = heading("The generalization lattice")
    lowest, highest = min(floors), max(floors)
    top, step = 70.0 + down, min(34.0, 330.0 / max(1, highest - lowest))
    place = {}
    for floor, level in floors.items():
        for i, node in enumerate(level):
            place[node] = (60 + (WIDTH - 90) * (i + 0.5) / len(level), top + step * (highest - floor))
    edges = (
        [(a, b) for a in nodes for i in range(len(a)) if (b := (*a[:i], a[i] + 1, *a[i + 1 :])) in place]
        if is_complete
        else []
    )
    parts: list[Safe] = [head, *_key(46 + down)]
    if 0 < len(edges) <= MOST_EDGES:
        parts.append(
            tag(
                "path",
                d="".join(
                    f"M{place[a][0]:.1f} {place[a][1]:.1f}L{place[b][0]:.1f} {place[b][1]:.1f}"
                    for a, b in edges
                ),
                class_="grid",
            )
        )
    for floor in sorted(floors):
        if step > 11 or floor % 2 == 0:
            parts.append(
                tag(
                    "text",
                    str(floor),
                    x=40,
                    y=top + step * (highest - floor) + 4,
                    text_anchor="end",
                    class_="soft small",
                )
            )
    for node in sorted(nodes, key=lambda node: node == chosen):  # the chosen node last, on top
        parts.append(_node(node, place[node], seen.get(node), node == chosen))
    middle = top + step * (highest - lowest) / 2
    parts.append(
        tag(
            "text",
            "sum of levels",
            x=14,
            y=middle,
            text_anchor="middle",
            class_="soft small",
            transform=f"rotate(-90 14 {middle:.1f})",
        )
    )
    rows = [
        (
            str(f),
            count(sum(sum(n) == f for n in seen)),
            count(sum(v.anonymous for n, v in seen.items() if sum(n) == f)),
        )
        for f in sorted({sum(n) for n in seen})
    ]
    selection = "" if is_complete or len(nodes) == len(seen) else f" {count(len(nodes))} of them are drawn."
    caption = (
        f"{count(total)} nodes for {names(list(result.quasi))}; the search evaluated "
        f"{count(len(seen))}.{selection} "
        + (
            f"Chosen: {_word(chosen)}."
            if chosen
            else "No single node was chosen: levels differ from cell to cell."
        )
    )
    return Figure(
        "The generalization lattice",
        join(parts),
        WIDTH,
        top + step * (highest - lowest) + 24,
        Table(("sum of levels", "evaluated", "anonymous"), rows),
        caption,
    )


def _node(node: tuple[int, ...], at: tuple[float, float], seen: LatticeNode | None, chosen: bool) -> Safe:
    x, y = at
    what = (
        "not evaluated"
        if seen is None
        else "not anonymous"
        if not seen.anonymous
        else (
            f"anonymous{'' if seen.loss is None else f', loss {significant(seen.loss)}'}, "
            f"{count(seen.suppressed)} suppressed"
        )
    )
    word = tag("title", f"levels {_word(node)}: {what}{', chosen' if chosen else ''}")
    if chosen:
        return tag(
            "g",
            tag("rect", x=x - 7, y=y - 7, width=14, height=14, rx=2, class_="dot halo"),
            word,
            class_="c1",
        )
    mark = tag("circle", cx=x, cy=y, r=3.6 if seen else 2.2, class_="dot halo")
    return tag("g", mark, word, class_="alone" if seen is None else "alarm" if not seen.anonymous else "c2")


def _key(y: float) -> list[Safe]:
    parts, x = [], 16.0
    for style, word in (
        ("c1", "chosen"),
        ("c2", "anonymous"),
        ("alarm", "not anonymous"),
        ("alone", "not evaluated"),
    ):
        mark = (
            tag("rect", x=x, y=y - 10, width=11, height=11, rx=2, class_="dot")
            if style == "c1"
            else tag("circle", cx=x + 5, cy=y - 4.5, r=4.2, class_="dot")
        )
        parts.append(tag("g", mark, tag("text", word, x=x + 16, y=y), class_=style))
        x += 34 + 7 * len(word)
    return parts


def _chosen(result: AnonymizationResult) -> tuple[int, ...] | None:
    levels = [result.levels.get(q) for q in result.quasi]
    return tuple(int(v) for v in levels if v is not None) if None not in levels else None


def _word(levels: Sequence[int] | None) -> str:
    return "[" + ", ".join(map(str, levels or ())) + "]"
