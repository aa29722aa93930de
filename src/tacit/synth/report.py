"""The report of a synthetic table: score → property → column → plot. Fidelity, utility and privacy stand
beside each other.

It is made like every report of tacit (its markup, its charts, its policy). It shows the real table's
histograms, and rows of it as points where that is not switched off: it is for those who may see the real
table, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.maps import heat
from ..report.markup import Safe, join, tag
from ..report.numbers import count, is_finite, significant, truncate
from ..report.page import assemble, write_page
from ..report.sections import Section, figure, table
from ..report.svg import Axis, Figure, Rule, Series, Table, bars, plot
from .scores import Score

if TYPE_CHECKING:
    from .evaluate import Evaluation

MOST_BARS = 24  # categories drawn; the rest is told as a share
MOST_PARTS = 40  # columns or pairs in a table of parts, the worst first
MOST_POINTS = 300  # of each table in a cloud
MOST_CLOUDS = 3
MOST_COLUMNS = 30  # of a correlation map
BINS = 24
RENAMED = {
    "importance agreement": "importance in the synthetic table"
}  # of a column the score's part is another thing than the score
STYLE = {"real": "c0", "synthetic": "c1", "holdout": "c2"}
KEEP = (
    "This report shows the real table: its histograms, and rows of it as points. Keep it where the real "
    "table is kept."
)
KEEP_LESS = "This report shows histograms of the real table. Keep it where the real table is kept."


def render(seen: Evaluation, points: bool = True) -> str:
    views = seen.views
    facts = [
        f"{count(views.real.rows)} real rows",
        f"{count(views.synthetic.rows)} synthetic rows",
        f"{count(views.holdout.rows)} held-out rows" if views.holdout else "no held-out rows",
        f"{count(len(views.columns))} columns",
        f"target {seen.target}" if seen.target else "",
    ]
    stamps = [tag("p", tag("strong", KEEP if points else KEEP_LESS), class_="stamp going", role="status")]
    sections = [
        summary(seen),
        *(s for facet in ("fidelity", "utility", "privacy") if (s := scores(seen, facet))),
        distances(seen),
        columns(seen),
        pairs(seen, points),
    ]
    return assemble(
        f"{seen.name}: a synthetic table",
        join([tag("span", f) for f in facts if f]),
        stamps,
        [s for s in sections if s],
        "Made by tacit. This file makes no network request.",
    )


def write(seen: Evaluation, path: str | Path, points: bool = True) -> Path:
    return write_page(path, render(seen, points))


def number(value: Any) -> str:
    return f"{value:.3f}" if is_finite(value) and abs(value) < 1000 else significant(value)


def _interval(score: Score) -> str:
    return f"{number(score.interval[0])} – {number(score.interval[1])}" if score.interval else ""


def _tile(score: Score | None, warn: bool) -> Safe | None:
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
    return tag(
        "div",
        tag("dt", score.name),
        tag("dd", number(score.value), tag("small", more)),
        class_="tile warn" if warn else "tile",
    )


def summary(seen: Evaluation) -> Section:
    """The figures that must be read together."""
    held = {s.name: s for s in seen.scores}
    said = seen.warnings
    tstr = [s for s in seen.scores if s.name.startswith("TSTR")]
    best = max(tstr, key=lambda s: s.value if math.isfinite(s.value) else -math.inf) if tstr else None
    tiles = [
        _tile(held.get("quality score"), False),
        _tile(held.get("detection AUC"), False),
        _tile(best, False),
        *(
            _tile(
                held.get(n),
                any(w.startswith(n) for w in said)
                or (n == "exact copies" and any("copies of" in w for w in said)),
            )
            for n in ("exact copies", "membership AUC")
        ),
    ]
    head = (
        "No attack that was tried got more from this table than from people it was not made of."
        if not said
        else said[0]
    )
    return Section(
        "summary",
        "Summary",
        join(
            [
                tag("p", head, class_="headline"),
                tag("dl", [t for t in tiles if t], class_="tiles"),
                tag("ul", [tag("li", w) for w in said[1:]], class_="said") if len(said) > 1 else None,
                tag(
                    "p",
                    "Fidelity, utility and privacy are not one number: a copy of the real table has the "
                    "best of the first two. None of the attacks succeeding "
                    "is no guarantee either; that takes differential privacy.",
                    class_="quiet",
                ),
            ]
        ),
    )


def scores(seen: Evaluation, facet: str) -> Section | None:
    """Score → property → parts. Utility comes with the copy rate and the membership AUC."""
    chosen = seen.of(facet)  # type: ignore[arg-type]
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
        "Value, its 95% interval, what real unseen rows reach in its place, what it can be, which way "
        "is better, and what it looks at."
    )
    if facet == "utility":
        caption += " Copies and membership stand here because utility without them rewards copying."
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
                tag("summary", f"{about}: what is measured, and each part"),
                tag("ul", notes),
                [_parts(s) for s in inside],
            )
        )
    return Section(facet, facet.capitalize(), join(parts))


def _parts(score: Score) -> Safe | None:
    if not score.parts:
        return None
    order = sorted(score.parts.items(), key=lambda p: p[1], reverse=score.metric.better == "lower")
    less = f", the {MOST_PARTS} worst of {count(len(order))}" if len(order) > MOST_PARTS else ""
    return table(
        ("part", score.name), [(n, number(v)) for n, v in order[:MOST_PARTS]], caption=f"{score.name}{less}"
    )


def _figures(*drawn: Figure | None) -> Safe:
    return tag("div", [figure(d) for d in drawn if d], class_="figures")


def distances(seen: Evaluation) -> Section | None:
    """Synthetic and held-out rows: how far each is from the nearest training row."""
    import numpy as np

    from .views import View, nearest

    views = seen.views
    if views.holdout is None:
        return None
    rng = np.random.default_rng(0)
    base = views.points(views.real)
    far = {
        v.name: nearest(views.points(View(v.name, v.x[rng.permutation(v.rows)[:2000]])), base, 1)[0][:, 0]
        for v in (views.synthetic, views.holdout)
    }
    edges = np.linspace(0, max(float(np.quantile(np.concatenate(list(far.values())), 0.99)), 1e-9), BINS + 1)
    series, rows = [], []
    for name, d in far.items():
        share = np.histogram(np.minimum(d, edges[-1]), edges)[0] / len(d)
        series.append(_steps(name, edges, share))
        rows.append(
            (
                name,
                number(float((d == 0).mean())),
                *(number(float(np.quantile(d, q))) for q in (0.05, 0.5, 0.95)),
            )
        )
    drawn = plot(
        "Distance to the nearest training row",
        series,
        Axis("distance"),
        Axis("share of rows"),
        caption="Held-out rows show what is natural. A synthetic curve that lies to the left of theirs, or "
        "stands at zero, is copying.",
        table=Table(("rows", "share at 0", "5% quantile", "median", "95% quantile"), rows),
    )
    guidance = [s for s in seen.scores if s.metric.about == "guidance"]
    risks = bars(
        "Singling out, linkability, inference",
        [s.name for s in guidance],
        [s.value for s in guidance],
        number,
        caption="Success on training rows beyond success on unseen rows, as a share of what could be lost; "
        "0 is none.",
        columns=("risk", "excess"),
        rules=[Rule("everything is lost", 1.0)],
    )
    return Section("distances", "Distances and risks", _figures(drawn, risks))


def _steps(name: str, edges: Any, share: Any) -> Series:
    """A histogram as an outline."""
    x, y = [float(edges[0])], [0.0]
    for k, s in enumerate(share):
        x += [float(edges[k]), float(edges[k + 1])]
        y += [float(s), float(s)]
    x.append(float(edges[-1]))
    y.append(0.0)
    return Series(name, x, y, STYLE[name], words=[f"{name}: {significant(v)}" for v in y])


def columns(seen: Evaluation) -> Section:
    """Every column: its scores, and both histograms over each other."""
    views = seen.views
    shape = {
        n: s
        for score in seen.scores
        if score.name in ("KS complement", "TV complement")
        for n, s in score.parts.items()
    }
    order = sorted(range(len(views.columns)), key=lambda j: shape.get(views.names[j], 1.0))
    body = []
    for place, j in enumerate(order):
        name = views.names[j]
        inside = [
            f"{RENAMED.get(s.name, s.name)} {number(s.parts[name])}" for s in seen.scores if name in s.parts
        ]
        drawn = _histogram(seen, j) if views.columns[j].is_number else _categories(seen, j)
        body.append(
            tag(
                "details",
                tag("summary", f"{name} ({views.columns[j].kind}): {number(shape.get(name))}"),
                tag("p", "; ".join(inside), class_="quiet"),
                _figures(drawn),
                open="open" if place < 2 else None,
            )
        )
    return Section(
        "columns",
        "Columns, the worst first",
        join([tag("p", "Open a column to see both distributions.", class_="quiet"), *body]),
    )


def _both(seen: Evaluation) -> list[Any]:
    return [seen.views.real, seen.views.synthetic]


def _histogram(seen: Evaluation, j: int) -> Figure | None:
    import numpy as np

    views = seen.views
    column, real = views.columns[j], views.real.x[:, j]
    there = real[~np.isnan(real)]
    if not len(there):
        return None
    low, high = np.quantile(
        there, [0.005, 0.995]
    )  # the outermost values are single people's: they are drawn in the last bins
    if high <= low:
        low, high = there.min(), there.max() if there.max() > there.min() else there.min() + 1
    edges = np.linspace(low, high, BINS + 1)
    if column.step:  # as many values in each bin, or whole numbers would look like a comb
        wide = column.step * math.ceil(((high - low) / column.step + 1) / BINS)
        edges = low - column.step / 2 + wide * np.arange(math.ceil((high - low + column.step) / wide) + 1)
    series, rows = [], []
    for view in _both(seen):
        x = view.x[:, j][~np.isnan(view.x[:, j])]
        share = np.histogram(np.clip(x, low, high), edges)[0] / max(1, view.rows)
        series.append(_steps(view.name, edges, share))
        stats = [number(float(f(x))) if len(x) else "" for f in (np.mean, np.std, np.median)]
        rows.append((view.name, *stats, f"{np.isnan(view.x[:, j]).mean():.1%}"))
    axis = Axis(
        "date" if column.kind == "datetime" else column.name, form=lambda v, step: column.shown(v)[:10]
    )
    return plot(
        column.name,
        series,
        axis,
        Axis("share of rows"),
        caption="What lies beyond the outer half percent of the real table is drawn in the last bins.",
        table=Table(("rows", "mean", "standard deviation", "median", "missing"), rows),
    )


def _categories(seen: Evaluation, j: int) -> Figure:
    import numpy as np

    views = seen.views
    shares = [views.joint(v, (j,)) for v in _both(seen)]
    order = [int(k) for k in np.argsort(-shares[0], kind="stable") if shares[0][k] + shares[1][k] > 0]
    shown, rest = order[:MOST_BARS], order[MOST_BARS:]
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
        for v, share in zip(_both(seen), shares)
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


def pairs(seen: Evaluation, points: bool) -> Section | None:
    """Correlation maps of the numbers, similarity of all pairs, and clouds of the pairs that differ most."""
    from .fidelity import correlation

    views = seen.views
    similar = {n: v for s in seen.scores if s.metric.about == "pairs" for n, v in s.parts.items()}
    if not similar:
        return None
    numbers = views.numbers[:MOST_COLUMNS]
    drawn: list[Figure | None] = []
    if len(numbers) > 1:
        names = [views.names[j] for j in numbers]
        for view in _both(seen):
            r = [
                [1.0 if a == b else correlation(view.x[:, a], view.x[:, b]) for b in numbers] for a in numbers
            ]
            drawn.append(
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
                    caption="Pearson's correlation; the stronger the colour, the further from 0.",
                )
            )
    every = list(range(len(views.columns)))[:MOST_COLUMNS]
    labels = [views.names[j] for j in every]
    gaps = [
        [
            0.0 if a == b else 1 - similar.get(f"{views.names[min(a, b)]} × {views.names[max(a, b)]}", 1.0)
            for b in every
        ]
        for a in every
    ]
    drawn.append(
        heat(
            "Pairs: how far off",
            labels,
            labels,
            gaps,
            [[f"{v:.2f}" for v in row] for row in gaps],
            top_value=max(0.1, max(map(max, gaps))),
            caption="1 − similarity of correlation (two numbers) or of the joint table.",
        )
    )
    clouds = _clouds(seen, similar) if points else []
    return Section(
        "pairs",
        "Pairs",
        join(
            [
                _figures(*drawn),
                tag("h3", "Pairs of numbers that differ most") if clouds else None,
                _figures(*clouds) if clouds else None,
            ]
        ),
    )


def _clouds(seen: Evaluation, similar: dict[str, float]) -> Sequence[Figure]:
    import numpy as np

    views = seen.views
    both = [
        (a, b)
        for a, b in views.pairs()
        if f"{views.names[a]} × {views.names[b]}" in similar and a in views.numbers and b in views.numbers
    ]
    worst = sorted(both, key=lambda p: similar.get(f"{views.names[p[0]]} × {views.names[p[1]]}", 1.0))[
        :MOST_CLOUDS
    ]
    rng = np.random.default_rng(0)
    drawn = []
    for a, b in worst:
        series, rows = [], []
        for view in _both(seen):
            x = view.x[rng.permutation(view.rows)[:MOST_POINTS]]
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
        drawn.append(
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
    return drawn
