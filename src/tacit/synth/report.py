"""The HTML report of an evaluation: score → property → column → plot.

It shows the real table's histograms and, unless disabled, some of its rows as points: it is for those who may
see the real table, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..report.layout import Section, grid, table, tile
from ..report.maps import heat
from ..report.markup import Safe, join, tag
from ..report.numbers import count, is_finite, significant, truncate
from ..report.page import assemble, write_page
from ..report.svg import Axis, Figure, Rule, Series, Table, bars, plot
from .fidelity import correlation
from .scores import MetricScore
from .views import nearest_rows

if TYPE_CHECKING:
    from .evaluate import Evaluation

MAX_BARS = 24  # categories shown; the rest is summarized as a share
MAX_PARTS = 40  # columns or pairs in a table of parts, worst first
MAX_POINTS = 300  # points of each table in a scatter plot
MAX_SCATTERS = 3
MAX_COLUMNS = 30  # columns of a correlation map
BINS = 24
# the parts of this score mean something else than the score
RENAMED = {"importance agreement": "importance in the synthetic table"}
STYLE = {"real": "c0", "synthetic": "c1", "holdout": "c2"}
KEEP = (
    "This report shows the real table: its histograms, and some rows as points. Keep it where the real "
    "table is kept."
)
KEEP_LESS = "This report shows histograms of the real table. Keep it where the real table is kept."


def render(evaluation: Evaluation, points: bool = True) -> str:
    """Render the report as HTML."""
    views = evaluation.views
    facts = [
        f"{count(views.real.rows)} real rows",
        f"{count(views.synthetic.rows)} synthetic rows",
        f"{count(views.holdout.rows)} held-out rows" if views.holdout else "no held-out rows",
        f"{count(len(views.columns))} columns",
        f"target {evaluation.target}" if evaluation.target else "",
    ]
    stamps = [
        tag("p", tag("strong", KEEP if points else KEEP_LESS), class_="stamp unfinished", role="status")
    ]
    sections = [
        summary(evaluation),
        *(s for facet in ("fidelity", "utility", "privacy") if (s := scores(evaluation, facet))),
        distances(evaluation),
        columns(evaluation),
        pairs(evaluation, points),
    ]
    return assemble(
        f"{evaluation.name}: a synthetic table",
        join([tag("span", f) for f in facts if f]),
        stamps,
        [s for s in sections if s],
        "Made by tacit. This file makes no network request.",
    )


def write(evaluation: Evaluation, path: str | Path, points: bool = True) -> Path:
    """Write the report to `path`."""
    return write_page(path, render(evaluation, points))


def number(value: Any) -> str:
    """Format a score with three decimals, or in significant digits if it is large."""
    return f"{value:.3f}" if is_finite(value) and abs(value) < 1000 else significant(value)


def _interval(score: MetricScore) -> str:
    return f"{number(score.interval[0])} – {number(score.interval[1])}" if score.interval else ""


def _tile(score: MetricScore | None, warn: bool) -> Safe | None:
    if score is None:
        return None
    more = " · ".join(
        w
        for w in (
            f"95%: {_interval(score)}" if score.interval else "",
            f"unseen real rows: {number(score.reference)}" if score.reference is not None else "",
            f"{score.metric.better} is better",
        )
        if w
    )
    return tile(score.name, number(score.value), more, "warn" if warn else "")


def summary(evaluation: Evaluation) -> Section:
    """Render the scores that must be read together."""
    by_name = {s.name: s for s in evaluation.scores}
    warnings = evaluation.warnings
    tstr = [s for s in evaluation.scores if s.name.startswith("TSTR")]
    best = max(tstr, key=lambda s: s.value if math.isfinite(s.value) else -math.inf) if tstr else None
    tiles = [
        _tile(by_name.get("quality score"), False),
        _tile(by_name.get("detection AUC"), False),
        _tile(best, False),
        *(
            _tile(
                by_name.get(n),
                any(w.startswith(n) for w in warnings)
                or (n == "exact copies" and any("copies of" in w for w in warnings)),
            )
            for n in ("exact copies", "membership AUC")
        ),
    ]
    head = "No attack succeeded better on training rows than on unseen rows." if not warnings else warnings[0]
    return Section(
        "summary",
        "Summary",
        join(
            [
                tag("p", head, class_="headline"),
                tag("dl", [t for t in tiles if t], class_="tiles"),
                tag("ul", [tag("li", w) for w in warnings[1:]], class_="sentences")
                if len(warnings) > 1
                else None,
                tag(
                    "p",
                    "Fidelity, utility and privacy are separate: a copy of the real table has the best "
                    "fidelity and utility. Failing attacks are no guarantee; that requires differential "
                    "privacy.",
                    class_="quiet",
                ),
            ]
        ),
    )


def scores(evaluation: Evaluation, facet: str) -> Section | None:
    """Render the scores of a facet, with definitions and parts.

    Utility includes the copy rate and the membership AUC.
    """
    chosen = evaluation.by_facet(facet)  # type: ignore[arg-type]
    if not any(s.metric.facet == facet for s in chosen):
        return None
    rows = [
        (
            s.name,
            number(s.value),
            _interval(s),
            "" if s.reference is None else number(s.reference),
            f"{s.metric.low:g} to {s.metric.high:g}",
            s.metric.better,
            s.metric.about,
        )
        for s in chosen
    ]
    caption = (
        "Value, 95% interval, value of unseen real rows, range, direction that is better, and the property "
        "measured."
    )
    if facet == "utility":
        caption += " Copies and membership are included because utility alone rewards copying."
    parts: list[Safe | None] = [
        table(("metric", "value", "95%", "real rows", "range", "better", "property"), rows, caption=caption)
    ]
    for about in dict.fromkeys(s.metric.about for s in chosen):
        inside = [s for s in chosen if s.metric.about == about]
        notes = [
            tag(
                "li",
                tag("strong", s.name),
                f": {s.metric.doc}. {s.note}".rstrip() + ("" if s.note.endswith(".") or not s.note else "."),
            )
            for s in inside
        ]
        parts.append(
            tag(
                "details",
                tag("summary", f"{about}: definitions and parts"),
                tag("ul", notes),
                [_parts(s) for s in inside],
            )
        )
    return Section(facet, facet.capitalize(), join(parts))


def _parts(score: MetricScore) -> Safe | None:
    if not score.parts:
        return None
    order = sorted(score.parts.items(), key=lambda p: p[1], reverse=score.metric.better == "lower")
    less = f", the {MAX_PARTS} worst of {count(len(order))}" if len(order) > MAX_PARTS else ""
    return table(
        ("part", score.name), [(n, number(v)) for n, v in order[:MAX_PARTS]], caption=f"{score.name}{less}"
    )


def distances(evaluation: Evaluation) -> Section | None:
    """Plot the distances of synthetic and held-out rows to the nearest training row."""
    views = evaluation.views
    if views.holdout is None:
        return None
    rng = np.random.default_rng(0)
    base = views.points(views.real)
    distance = {
        v.name: nearest_rows(views.points(v.subsample(rng, 2000)), base, 1)[0][:, 0]
        for v in (views.synthetic, views.holdout)
    }
    edges = np.linspace(
        0, max(float(np.quantile(np.concatenate(list(distance.values())), 0.99)), 1e-9), BINS + 1
    )
    series, rows = [], []
    for name, d in distance.items():
        series.append(_steps(name, edges, np.histogram(np.minimum(d, edges[-1]), edges)[0] / len(d)))
        rows.append(
            (
                name,
                number(float((d == 0).mean())),
                *(number(float(np.quantile(d, q))) for q in (0.05, 0.5, 0.95)),
            )
        )
    figures = plot(
        "Distance to the nearest training row",
        series,
        Axis("distance"),
        Axis("share of rows"),
        caption="Held-out rows are the reference. A synthetic curve to the left of theirs, or at zero, "
        "indicates copying.",
        table=Table(("rows", "share at 0", "5% quantile", "median", "95% quantile"), rows),
    )
    guidance = [s for s in evaluation.scores if s.metric.about == "guidance"]
    risks = bars(
        "Singling out, linkability, inference",
        [s.name for s in guidance],
        [s.value for s in guidance],
        number,
        caption="Success on training rows in excess of success on unseen rows, as a share of the possible "
        "excess; 0 is no risk.",
        columns=("risk", "excess_risk"),
        rules=[Rule("full disclosure", 1.0)],
    )
    return Section("distances", "Distances and risks", join([grid([figures, risks])]))


def _steps(name: str, edges: Any, share: Any) -> Series:
    """Return a histogram as an outline."""
    x, y = [float(edges[0])], [0.0]
    for k, s in enumerate(share):
        x += [float(edges[k]), float(edges[k + 1])]
        y += [float(s), float(s)]
    x.append(float(edges[-1]))
    y.append(0.0)
    return Series(name, x, y, STYLE[name], words=[f"{name}: {significant(v)}" for v in y])


def columns(evaluation: Evaluation) -> Section:
    """Render every column: its scores, and the real and synthetic histograms."""
    views = evaluation.views
    shape = {
        n: s
        for score in evaluation.scores
        if score.name in ("KS complement", "TV complement")
        for n, s in score.parts.items()
    }
    order = sorted(range(len(views.columns)), key=lambda j: shape.get(views.names[j], 1.0))
    body = []
    for place, j in enumerate(order):
        name = views.names[j]
        inside = [
            f"{RENAMED.get(s.name, s.name)} {number(s.parts[name])}"
            for s in evaluation.scores
            if name in s.parts
        ]
        figures = _histogram(evaluation, j) if views.columns[j].is_number else _categories(evaluation, j)
        body.append(
            tag(
                "details",
                tag("summary", f"{name} ({views.columns[j].kind}): {number(shape.get(name))}"),
                tag("p", "; ".join(inside), class_="quiet"),
                grid([figures]),
                open="open" if place < 2 else None,
            )
        )
    return Section(
        "columns",
        "Columns, worst first",
        join([tag("p", "Expand a column to see both distributions.", class_="quiet"), *body]),
    )


def _both(evaluation: Evaluation) -> list[Any]:
    return [evaluation.views.real, evaluation.views.synthetic]


def _histogram(evaluation: Evaluation, j: int) -> Figure | None:
    views = evaluation.views
    column, real = views.columns[j], views.real.x[:, j]
    present = real[~np.isnan(real)]
    if not len(present):
        return None
    low, high = np.quantile(present, [0.005, 0.995])  # the extreme values may identify single people
    if high <= low:
        low, high = present.min(), present.max() if present.max() > present.min() else present.min() + 1
    edges = np.linspace(low, high, BINS + 1)
    if column.step:  # equally many possible values per bin, to avoid a comb pattern
        wide = column.step * math.ceil(((high - low) / column.step + 1) / BINS)
        edges = low - column.step / 2 + wide * np.arange(math.ceil((high - low + column.step) / wide) + 1)
    series, rows = [], []
    for view in _both(evaluation):
        x = view.x[:, j][~np.isnan(view.x[:, j])]
        series.append(
            _steps(view.name, edges, np.histogram(np.clip(x, low, high), edges)[0] / max(1, view.rows))
        )
        stats = [number(float(f(x))) if len(x) else "" for f in (np.mean, np.std, np.median)]
        rows.append((view.name, *stats, f"{np.isnan(view.x[:, j]).mean():.1%}"))
    axis = Axis(
        "date" if column.kind == "datetime" else column.name, form=lambda v, step: column.format_value(v)[:10]
    )
    return plot(
        column.name,
        series,
        axis,
        Axis("share of rows"),
        caption="Values beyond the outer half percent of the real table are shown in the last bins.",
        table=Table(("rows", "mean", "standard deviation", "median", "missing"), rows),
    )


def _categories(evaluation: Evaluation, j: int) -> Figure:
    views = evaluation.views
    shares = [views.joint(v, (j,)) for v in _both(evaluation)]
    order = [int(k) for k in np.argsort(-shares[0], kind="stable") if shares[0][k] + shares[1][k] > 0]
    shown, rest = order[:MAX_BARS], order[MAX_BARS:]
    names = ["(missing)" if views.levels[j][k] is None else str(views.levels[j][k]) for k in shown]
    x = list(range(len(shown)))
    series = [
        Series(
            v.name,
            x,
            [float(share[k]) for k in shown],
            STYLE[v.name],
            words=[f"{n}, {v.name}: {share[k]:.1%}" for n, k in zip(names, shown)],
        )
        for v, share in zip(_both(evaluation), shares)
    ]
    left = [sum(float(share[k]) for k in rest) for share in shares]
    more = f" {count(len(rest))} rarer values ({left[0]:.1%} real, {left[1]:.1%} synthetic)." if rest else ""

    def label(value: float, step: float) -> str:
        whole = round(value)
        return truncate(names[whole], 9) if abs(value - whole) < 1e-6 and 0 <= whole < len(names) else ""

    return plot(
        views.names[j],
        series,
        Axis("value, most frequent first", form=label),
        Axis("share of rows"),
        joined=False,
        caption=f"Real and synthetic shares of each value.{more}",
        table=Table(
            ("value", "real", "synthetic"),
            [(n, f"{shares[0][k]:.1%}", f"{shares[1][k]:.1%}") for n, k in zip(names, shown)],
        ),
    )


def pairs(evaluation: Evaluation, points: bool) -> Section | None:
    """Render correlation maps, similarities of pairs, and scatter plots of the worst pairs."""
    views = evaluation.views
    similar = {n: v for s in evaluation.scores if s.metric.about == "pairs" for n, v in s.parts.items()}
    if not similar:
        return None
    numbers = views.numbers[:MAX_COLUMNS]
    figures: list[Figure | None] = []
    if len(numbers) > 1:
        names = [views.names[j] for j in numbers]
        for view in _both(evaluation):
            r = [
                [1.0 if a == b else correlation(view.x[:, a], view.x[:, b]) for b in numbers] for a in numbers
            ]
            figures.append(
                heat(
                    f"Correlation, {view.name}",
                    names,
                    names,
                    [[abs(v) for v in row] for row in r],
                    [
                        [f"{v:.2f}".replace("-0.00", "0.00") if math.isfinite(v) else "–" for v in row]
                        for row in r
                    ],
                    top_value=1.0,
                    caption="Pearson correlation; stronger colors are further from 0.",
                )
            )
    every = list(range(len(views.columns)))[:MAX_COLUMNS]
    labels = [views.names[j] for j in every]
    gaps = [
        [
            0.0 if a == b else 1 - similar.get(f"{views.names[min(a, b)]} × {views.names[max(a, b)]}", 1.0)
            for b in every
        ]
        for a in every
    ]
    figures.append(
        heat(
            "Pairs: dissimilarity",
            labels,
            labels,
            gaps,
            [[f"{v:.2f}" for v in row] for row in gaps],
            top_value=max(0.1, max(map(max, gaps))),
            caption="1 − correlation similarity (two numbers) or contingency similarity.",
        )
    )
    scatters = _scatters(evaluation, similar) if points else []
    return Section(
        "pairs",
        "Pairs",
        join(
            [
                grid(figures),
                tag("h3", "Numeric pairs with the largest difference") if scatters else None,
                grid(scatters),
            ]
        ),
    )


def _scatters(evaluation: Evaluation, similar: dict[str, float]) -> Sequence[Figure]:
    views = evaluation.views
    both = [
        (a, b)
        for a, b in views.pairs()
        if f"{views.names[a]} × {views.names[b]}" in similar and a in views.numbers and b in views.numbers
    ]
    worst = sorted(both, key=lambda p: similar.get(f"{views.names[p[0]]} × {views.names[p[1]]}", 1.0))[
        :MAX_SCATTERS
    ]
    rng = np.random.default_rng(0)
    figures = []
    for a, b in worst:
        series, rows = [], []
        for view in _both(evaluation):
            x = view.x[rng.permutation(view.rows)[:MAX_POINTS]]
            series.append(
                Series(
                    view.name,
                    [float(v) for v in x[:, a]],
                    [float(v) for v in x[:, b]],
                    STYLE[view.name],
                    words=[
                        f"{view.name}: {significant(float(p))}, {significant(float(q))}"
                        for p, q in x[:, [a, b]]
                    ],
                )
            )
            rows.append(
                (
                    view.name,
                    *(
                        number(float(np.nanmean(view.x[:, j]))) if not np.isnan(view.x[:, j]).all() else ""
                        for j in (a, b)
                    ),
                )
            )
        name = f"{views.names[a]} × {views.names[b]}"
        figures.append(
            plot(
                name,
                series,
                Axis(views.names[a]),
                Axis(views.names[b]),
                joined=False,
                caption=f"Similarity {number(similar.get(name))}.",
                table=Table(("rows", f"mean {views.names[a]}", f"mean {views.names[b]}"), rows),
            )
        )
    return figures
