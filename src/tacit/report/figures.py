"""The figures of the report, made from records alone.

Each function returns a Figure, or None if the records contain nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .maps import heat, plane
from .markup import plain
from .numbers import (
    SHARES,
    count,
    format_metric,
    is_finite,
    mean_error,
    metric_name,
    metric_title,
    names,
    percent,
    plus_minus,
    significant,
    size,
    truncate,
    worst_decile,
)
from .records import ALONE, BASELINES, CENTRAL, RunRecord
from .svg import Axis, Figure, Rule, Series, Table, bars, combine, plot

MOST_ROWS = 40  # parties drawn one by one; beyond it they are grouped
MOST_LABELS = 30
MOST_POINTS = 160  # points of a curve: more than the pixels between two marks
BASELINE_STYLE = {CENTRAL: "central", ALONE: "alone"}


def styles(labels: Sequence[str]) -> dict[str, str]:
    """Return a CSS class per label, the same in every chart of a page.

    After eight algorithms colors are reused, with dashed lines.
    """
    out, k = {}, 0
    for label in dict.fromkeys(labels):
        if label in BASELINE_STYLE:
            out[label] = BASELINE_STYLE[label]
        else:
            out[label], k = f"c{k % 8}" + (f" d{min(2, k // 8)}" if k >= 8 else ""), k + 1
    return out


def form_share(value: float, step: float) -> str:
    return percent(value, max(0, -math.floor(math.log10(step * 100) + 1e-9)))


def form_whole(value: float, step: float) -> str:
    return count(value) if abs(value - round(value)) < 1e-6 else ""


def metric_axis(metric: str, values: Sequence[Any]) -> Axis:
    known = [v for v in values if is_finite(v)]
    wide = bool(known) and min(known) > 0 and max(known) / min(known) > 30
    name = metric_name(metric)
    return Axis(name, form=form_share) if metric in SHARES else Axis(name, log=wide)


def judged_by(runs: Sequence[RunRecord]) -> str:
    """The metric that these runs are judged by: the same for all."""
    return next((r.metric for r in runs if r.metrics), "accuracy")


def _share_of(runs: Sequence[RunRecord]) -> str:
    """The metric that is drawn against a cost: a share, of which more is better."""
    metric = judged_by(runs)
    return metric if metric in SHARES else "accuracy"


def _thin(items: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """Return evenly spaced items, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def federation(summary: Mapping[str, Any]) -> Figure | None:
    """Draw labels × parties, the sizes, and the feature shift of each party."""
    parties, sizes = [plain(p) for p in summary.get("parties") or []], summary.get("sizes") or []
    if not parties:
        return None
    panels = []
    if summary.get("counts"):
        panels.append(_labels(parties, [str(v) for v in summary.get("labels") or []], summary["counts"]))
    if sizes:
        panels.append(_spread("Rows per party", parties, sizes, count, "rows"))
    if summary.get("shift"):
        panels.append(
            _spread(
                "Feature shift per party",
                parties,
                summary["shift"],
                significant,
                "shift",
                "Mean distance of the party's feature means from the pooled means, in pooled standard "
                "deviations.",
            )
        )
    return combine(f"Data distribution across {count(len(parties))} parties", panels) if panels else None


def _labels(parties: list[str], labels: list[str], counts: Sequence[Sequence[int]]) -> Figure:
    labels = labels or [str(j) for j in range(len(counts[0]))]
    each = math.ceil(len(labels) / MOST_LABELS)
    columns = [
        labels[j] if each == 1 else f"{labels[j]}–{labels[min(j + each, len(labels)) - 1]}"
        for j in range(0, len(labels), each)
    ]
    grouped = [[sum(row[j : j + each]) for j in range(0, len(labels), each)] for row in counts]
    if len(parties) <= MOST_ROWS:
        shares = [[c / (sum(row) or 1) for c in row] for row in grouped]
        texts, rows = [[count(c) for c in row] for row in grouped], parties
        words = [
            [
                f"{p}, label {c}: {count(n)} rows, {percent(s, 0)} of the party's rows"
                for c, n, s in zip(columns, row, share)
            ]
            for p, row, share in zip(parties, grouped, shares)
        ]
        caption = "Number of rows. A stronger color means a larger share of the party's rows."
    else:
        # Similar parties are adjacent: sorted by their most frequent label, then its count, and averaged in
        # groups.
        own = [[c / (sum(row) or 1) for c in row] for row in grouped]
        own.sort(key=lambda s: (max(range(len(s)), key=s.__getitem__), -max(s)))
        bounds = [round(k * len(own) / MOST_ROWS) for k in range(MOST_ROWS + 1)]
        groups = [own[a:b] for a, b in pairwise(bounds)]
        shares = [[math.fsum(column) / len(g) for column in zip(*g)] for g in groups]
        texts, rows = (
            [[percent(s, 0) for s in row] for row in shares],
            [f"{a + 1:,}–{b:,}" for a, b in pairwise(bounds)],
        )
        words = [
            [f"parties {r} (sorted), label {c}: {percent(s, 0)} of their rows" for c, s in zip(columns, row)]
            for r, row in zip(rows, shares)
        ]
        caption = (
            f"{count(len(parties))} parties, sorted by their most frequent label and averaged in {MOST_ROWS} "
            "groups. A stronger color means a larger share. A staircase pattern indicates label skew; a "
            "uniform color indicates none."
        )
    return heat(
        "Labels held by each party",
        rows,
        columns,
        shares,
        texts,
        row_name="party" if rows is parties else "parties, sorted",
        column_name="label",
        top_value=max(0.3, max(map(max, shares))),
        caption=caption,
        words=words,
    )


def _spread(
    title: str, parties: list[str], values: Sequence[Any], form: Any, unit: str, caption: str = ""
) -> Figure:
    """Draw one bar per party or, with many parties, a histogram."""
    if len(parties) <= MOST_ROWS:
        return bars(title, parties, values, form, caption=caption, columns=("party", unit))
    known = sorted(float(v) for v in values if is_finite(v))
    low, high = (known[0], known[-1]) if known else (0.0, 1.0)
    bins = 1 if high == low else 16
    width = (high - low) / bins
    held = [0] * bins
    for v in known:
        held[min(bins - 1, int((v - low) / width)) if width else 0] += 1
    ranges = [f"{form(low + k * width)} – {form(low + (k + 1) * width)}" for k in range(bins)]
    middle = known[len(known) // 2] if known else math.nan
    return bars(
        f"{title} (histogram)",
        ranges,
        held,
        count,
        columns=(unit, "parties"),
        caption=f"{caption} Smallest {form(low)}, median {form(middle)}, largest {form(high)}.".strip(),
    )


class Group(NamedTuple):
    """The runs of an algorithm, and its style in the charts."""

    name: str
    style: str
    runs: list[RunRecord]


def group_runs(runs: Sequence[RunRecord], colors: Mapping[str, str] | None = None) -> list[Group]:
    """Return the runs by algorithm; a page passes its `colors`, which are the same in all charts."""
    labels = list(dict.fromkeys(r.label for r in runs))
    colors = colors or styles(labels)
    return [Group(name, colors[name], [r for r in runs if r.label == name]) for name in labels]


def _history(runs: Sequence[RunRecord], metric: str) -> list[tuple[int, float, float | None]]:
    """Return (round, mean, standard error) over the seeds that measured the metric.

    A value that is not finite leaves a gap instead of a mean of the others.
    """
    seen: dict[int, list[Any]] = {}
    for run in runs:
        for event in run.rounds:
            if metric in event:
                seen.setdefault(event["round"], []).append(
                    event[metric] if is_finite(event[metric]) else math.nan
                )
    return [(r, *mean_error(seen[r])) for r in sorted(seen)]


def band(name: str, style: str, metric: str, points: Sequence[tuple[float, float, float | None]]) -> Series:
    points = _thin(points)
    return Series(
        name,
        [p[0] for p in points],
        [p[1] for p in points],
        style,
        [p[1] - (p[2] or 0) for p in points],
        [p[1] + (p[2] or 0) for p in points],
        [f"{plain(name)}: {plus_minus(metric, p[1], p[2])}" for p in points],
    )


def _curve(
    runs: Sequence[RunRecord], metric: str, title: str, colors: Mapping[str, str] | None
) -> Figure | None:
    groups = group_runs(runs, colors)
    series, rules = [], []
    for name, style, group in groups:
        points = _history(group, metric)
        if any(is_finite(m) for r, m, _ in points if r > 0) or len(points) > 1:
            mark = " (diverged)" if any(r.diverged is not None for r in group) else ""
            series.append(band(name + mark, style, metric, points))
        elif is_finite(level := mean_error(r.metrics.get(metric) for r in group)[0]):
            rules.append(Rule(name, level, style))  # a baseline without history: only its final result
    if not series:
        return None
    seeds = max(len(g.runs) for g in groups)
    rounds = _thin(sorted({v for s in series for v in s.x}), 12)
    where = [dict(zip(s.x, zip(s.y, s.low, s.high))) for s in series]
    rows = [
        (
            count(r),
            *(plus_minus(metric, w[r][0], (w[r][2] - w[r][1]) / 2 or None) if r in w else "" for w in where),
        )
        for r in rounds
    ]
    chance = ": small differences may be due to chance" if len(series) > 1 else ""
    caption = (
        f"Mean over {seeds} seeds; the band is ± one standard error."
        if seeds > 1
        else f"One seed, so there is no band{chance}."
    )
    diverged = [f"{r.label}, seed {r.seed}, in round {r.diverged}" for r in runs if r.diverged is not None]
    if diverged and metric == "loss":
        caption += f" Diverged, and not drawn from that round on: {names(diverged, 3)}."
    values = [v for s in series for v in (*s.y, *s.low)]
    return plot(
        title,
        series,
        Axis("round", form=form_whole),
        metric_axis(metric, values),
        rules=rules,
        caption=caption,
        table=Table(("round", *(s.name for s in series)), rows),
    )


def curves(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw the runs' metric and the loss on the global test set by round, with a band over seeds."""
    after, judged = f": {title}" if title else "", judged_by(runs)
    both = (
        _curve(runs, metric, f"{metric_title(metric)} by round{after}", colors)
        for metric in dict.fromkeys((judged, "loss"))
    )
    panels = [panel for panel in both if panel]
    head = "Loss" if judged == "loss" else f"{metric_title(judged)} and loss"
    return combine(f"{head} by round{after}", panels) if panels else None


def accuracy_against_bytes(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw the runs' metric against the bytes sent so far, up and down, by all parties."""
    series, rules, measured, metric = [], [], [], _share_of(runs)
    for name, style, group in group_runs(runs, colors):
        paths: dict[int, list[tuple[float, float]]] = {}
        for run in group:
            sent = 0.0
            for event in run.rounds:
                sent += sum(event[k] for k in ("bytes_up", "bytes_down") if is_finite(event.get(k)))
                if is_finite(event.get(metric)):
                    paths.setdefault(event["round"], []).append((sent, event[metric]))
        points = [
            (math.fsum(b for b, _ in path) / len(path), *mean_error(a for _, a in path))
            for _, path in sorted(paths.items())
        ]
        if points and points[-1][0] > 0:
            series.append(band(name, style, metric, points))
            measured.append((name, points))
        elif is_finite(level := mean_error(r.metrics.get(metric) for r in group)[0]):
            rules.append(Rule(name, level, style))
    if not series:
        return None
    ends = [s.x[-1] for s in series]
    bests = [max(p[1] for p in points) for _, points in measured]
    level = math.floor(100 * min(bests)) / 100  # all of them reach it

    def until(points: Sequence[Any], accuracy: float) -> str:
        return size(next(p[0] for p in points if p[1] >= accuracy))

    rows = [
        (name, size(points[-1][0]), percent(points[-1][1]), until(points, 0.95 * best), until(points, level))
        for (name, points), best in zip(measured, bests)
    ]
    return plot(
        f"{metric_title(metric)} vs. bytes sent{': ' if title else ''}{title}",
        series,
        Axis("bytes sent so far, all parties", log=max(ends) / min(ends) > 20, form=lambda v, step: size(v)),
        Axis(metric_name(metric), form=form_share),
        rules=rules,
        caption="Uploads and downloads of all parties, without those of evaluations."
        + (" Baselines, which send no messages, are dashed lines." if rules else ""),
        table=Table(
            (
                "algorithm",
                "total sent",
                f"final {metric_name(metric)}",
                "sent to reach 95% of its best",
                f"sent to reach {percent(level)}",
            ),
            rows,
        ),
    )


def accuracy_against_epsilon(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw the runs' metric against the ε spent so far."""
    series, rows, metric = [], [], _share_of(runs)
    for name, style, group in group_runs(runs, colors):
        paths: dict[float, list[float]] = {}
        for run in group:
            for event in run.rounds:
                if is_finite(event.get("epsilon")) and is_finite(event.get(metric)):
                    paths.setdefault(event["epsilon"], []).append(event[metric])
        points = [(spent, *mean_error(path)) for spent, path in sorted(paths.items())]
        if points:
            series.append(band(name, style, metric, points))
            best = max(points, key=lambda p: p[1])
            rows.append(
                (
                    name,
                    significant(points[-1][0]),
                    percent(points[-1][1]),
                    f"{percent(best[1])} at ε = {significant(best[0])}",
                )
            )
    if not series:
        return None
    return plot(
        f"{metric_title(metric)} vs. ε{': ' if title else ''}{title}",
        series,
        Axis("ε spent so far", form=lambda v, step: significant(v)),
        Axis(metric_name(metric), form=form_share),
        caption="The ledger below states δ, what ε protects, and against whom.",
        table=Table(
            ("algorithm", "total ε", f"final {metric_name(metric)}", f"best {metric_name(metric)}"), rows
        ),
    )


def per_party(
    runs: Sequence[RunRecord], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw each party's accuracy on its own held-out rows, with the worst decile marked.

    One run is shown party by party; several runs as sorted curves.
    """
    runs = [r for r in runs if any(map(is_finite, r.party_accuracy))]
    after = f": {title}" if title else ""
    if not runs:
        return None
    if len(runs) == 1 and len(runs[0].party_accuracy) <= MOST_ROWS:
        return _each_party(runs[0], f"Accuracy of each party{after}")
    groups = group_runs(runs, colors)
    series, rows = [], []
    for name, style, group in groups:
        # Pooled over seeds, not averaged: each seed has another partition, so parties do not correspond.
        known = sorted(v for r in group for v in r.party_accuracy if is_finite(v))
        steps = _thin([((k + 0.5) / len(known), v) for k, v in enumerate(known)])
        series.append(
            Series(
                name,
                [s[0] for s in steps],
                [s[1] for s in steps],
                style,
                words=[f"{plain(name)}: {percent(s[1])}" for s in steps],
            )
        )
        rows.append(
            (
                name,
                *map(
                    percent,
                    (known[0], _decile_mean(known), known[len(known) // 2], mean_error(known)[0], known[-1]),
                ),
            )
        )
    pooled = ", all seeds pooled" if len(runs) > len(groups) else ""
    summary = "; ".join(f"{row[0]} {row[2]}" for row in rows[:6])
    return plot(
        f"Parties, worst to best{after}",
        series,
        Axis("parties, worst to best", 0.0, 1.0, fixed=True, form=form_share),
        Axis("accuracy", form=form_share),
        shade=(0.0, 0.1, "worst decile"),
        caption=f"On each party's own held-out rows{pooled}. Mean of the worst decile: {summary}.",
        table=Table(("algorithm", "worst", "worst decile", "median", "mean", "best"), rows),
    )


def _each_party(run: RunRecord, title: str) -> Figure:
    parties = [plain(p) for p in run.federation.get("parties") or []]
    rows = [
        (parties[i] if i < len(parties) else f"party {i}", v)
        for i, v in enumerate(run.party_accuracy)
        if is_finite(v) or not run.untested
    ]
    rows.sort(key=lambda row: row[1] if is_finite(row[1]) else math.inf)
    known = [v for _, v in rows if is_finite(v)]
    worst, mean = worst_decile(known), mean_error(known)[0]
    share = f"{count(len(worst))} of {count(len(rows))}"
    caption = (
        f"On each party's own held-out rows. The worst decile is marked ({share}, mean "
        f"{percent(_decile_mean(known))})."
    )
    if run.untested:
        rows.append((f"small parties ({count(run.untested)})", None))
        caption += " Small parties have too few held-out rows to report an accuracy."
    return bars(
        title,
        [name for name, _ in rows],
        [v for _, v in rows],
        percent,
        dots=True,
        marked=worst,
        rules=[Rule(f"mean {percent(mean)}", mean)],
        columns=("party", "accuracy"),
        caption=caption,
    )


def _decile_mean(values: Sequence[Any]) -> float:
    return mean_error(values[i] for i in worst_decile(values))[0]


def gain(
    entries: Sequence[Mapping[str, Any]], *, title: str = "", colors: Mapping[str, str] | None = None
) -> Figure | None:
    """Draw each party's accuracy alone (x) against federated (y)."""
    colors = colors or styles([str(e.get("label")) for e in entries])
    series, rows = [], []
    for e in entries:
        pairs = [
            (p, a, b)
            for p, a, b in zip(e.get("parties") or [], e.get("local") or [], e.get("federated") or [])
            if is_finite(a) and is_finite(b)
        ]
        if not pairs or e.get("label") in BASELINES:
            continue
        label = str(e["label"])
        series.append(
            Series(
                label,
                [a for _, a, _ in pairs],
                [b for _, _, b in pairs],
                colors[label],
                words=[
                    f"{truncate(plain(p), 40)} with {label}: local {percent(a)}, federated {percent(b)}"
                    for p, a, b in pairs
                ],
            )
        )
        rows.append(
            (
                label,
                f"{count(sum(a <= b for _, a, b in pairs))} of {count(len(pairs))}",
                format_metric("accuracy", min(b - a for _, a, b in pairs)),
                format_metric("accuracy", max(b - a for _, a, b in pairs)),
            )
        )
    if not series:
        return None
    return plot(
        f"Local vs. federated accuracy{': ' if title else ''}{title}",
        series,
        Axis("accuracy of local training", form=form_share),
        Axis("accuracy of federated training", form=form_share),
        diagonal=True,
        joined=False,
        caption="One mark per party and algorithm. Parties above the diagonal benefited from federated "
        "training.",
        table=Table(("algorithm", "parties that benefited", "smallest gain", "largest gain"), rows),
    )


def landscape_line(line: Mapping[str, Any], *, title: str = "") -> Figure | None:
    """Draw the loss from the global model (t = 0) to each local optimum (t = 1) and beyond."""
    t, party = list(line.get("t") or []), [c for c in line.get("loss") or []]
    if len(t) < 2 or not (party or line.get("global")):
        return None
    who = [plain(n) for n in line.get("names") or [f"party {k}" for k in range(len(party))]]
    series: list[Series] = []
    if len(party) <= 8:
        series = [Series(who[k], t, curve, f"c{k}", thin=True) for k, curve in enumerate(party)]
    else:
        across = [sorted(c[k] for c in party if is_finite(c[k])) for k in range(len(t))]
        picks = [[a[int(q * (len(a) - 1))] if a else math.nan for a in across] for q in (0.1, 0.5, 0.9)]
        series = [
            Series(f"{count(len(party))} parties: median, 10% to 90%", t, picks[1], "c0", picks[0], picks[2])
        ]
    if line.get("global"):
        series.append(Series("mean of the optima", t, line["global"], "central"))
    rows = [
        (significant(v), *(significant(s.y[k]) for s in series)) for k, v in _thin(list(enumerate(t)), 11)
    ]
    values = [v for s in series for v in s.y]
    return plot(
        f"Loss along lines to the local optima{': ' if title else ''}{title}",
        series,
        Axis("t (0: global model, 1: local optimum)"),
        metric_axis("loss", values),
        caption="From the global model to each party's optimum and beyond. A flat curve between 0 and 1 "
        "means that the parties agree; a barrier means that averaging raises the loss.",
        table=Table(("t", *(s.name for s in series)), rows),
    )


def landscape_plane(surface: Mapping[str, Any], *, title: str = "") -> Figure | None:
    """Draw the loss around the global model, with the local optima in that plane."""
    a, b, values = surface.get("a") or [], surface.get("b") or [], surface.get("loss") or []
    if len(a) < 2 or len(b) < 2 or len(values) != len(b) or any(len(row) != len(a) for row in values):
        return None
    gaps = sum(not is_finite(v) for row in values for v in row)
    return plane(
        f"Loss around the global model{': ' if title else ''}{title}",
        a,
        b,
        values,
        surface.get("points") or [],
        "A stronger color means a higher loss. "
        "Directions are filter-normalized, so that scales are comparable across layers."
        + (f" {count(gaps)} points are not finite and shown in gray." if gaps else ""),
    )
