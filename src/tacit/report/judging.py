"""How good a model is: its metrics with intervals, confusion matrix, calibration, ROC curve and subgroups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .figures import form_share
from .layout import Page, Section, grid, table
from .markup import join, tag
from .numbers import count, format_metric, is_finite, metric_name, percent
from .records import RunRecord
from .svg import Axis, Figure, Series, Table, plot

MOST_WORDED = 5  # classes whose columns say "predicted", so that the table is not cut
ORDER = (
    "auc",
    "average_precision",
    "accuracy",
    "f1",
    "precision",
    "recall",
    "brier",
    "r2",
    "mae",
    "rmse",
    "loss",
)


def judging(page: Page) -> Section | None:
    """The metrics of one run's model on held-out rows."""
    if page.comparison or len(page.records) != 1:
        return None
    run = page.records[0]
    metrics = run.metrics
    if not any(f"{name}_low" in metrics for name in ORDER) and not any(n in metrics for n in run.own_metrics):
        return None
    parts = [
        _metrics(run),
        _confusion(metrics.get("confusion"), _labels(run)),
        grid([calibration(run), roc(run), precision_recall(run)]),
        *_subgroups(metrics.get("subgroups") or {}, run.metric),
    ]
    return Section("judging", "How good the model is", join(p for p in parts if p))


def interval(metrics: Mapping[str, Any], name: str) -> str:
    """Return '71.2% to 78.9%', or nothing if there is no interval."""
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    if not (is_finite(low) and is_finite(high)):
        return ""
    return f"{format_metric(name, low)} to {format_metric(name, high)}"


def _labels(run: RunRecord) -> list[str]:
    return [str(v) for v in run.federation.get("labels") or []]


def _metrics(run: RunRecord) -> Any:
    metrics, chosen = run.metrics, run.metric
    rows: list[tuple[str, ...]] = []
    marks = {}
    labels = _labels(run)
    known = [n for n in (*ORDER, *run.own_metrics) if is_finite(metrics.get(n))]
    for name in sorted(known, key=lambda n: n != chosen):
        binning = metrics.get(f"{name}_error") if name in ("auc", "average_precision") else None
        notes = [
            "judged by this metric" if name == chosen else "",
            f"binning error at most {format_metric(name, binning)}" if is_finite(binning) else "",
            f"always predicting the largest class: {percent(metrics.get('majority'))}"
            if name == "accuracy" and is_finite(metrics.get("majority"))
            else "",
            "your own metric" if name in run.own_metrics else "",
            f"of class {labels[1]}" if name == "average_precision" and len(labels) == 2 else "",
        ]
        marks[len(rows)] = "best" if name == chosen else ""
        rows.append(
            (
                metric_name(name),
                format_metric(name, metrics[name]),
                interval(metrics, name),
                "; ".join(filter(None, notes)),
            )
        )
    return table(
        ("metric", "value", "95% interval", ""),
        rows,
        caption="Metrics on held-out rows",
        sortable=False,
        marks=marks,
    )


def _confusion(matrix: Any, labels: Sequence[str]) -> Any:
    if not matrix:
        return None
    names = list(labels) if len(labels) == len(matrix) else [str(k) for k in range(len(matrix))]
    is_wide = len(names) > MOST_WORDED
    return table(
        ("true class", *(name if is_wide else f"predicted {name}" for name in names)),
        [(name, *map(count, row)) for name, row in zip(names, matrix)],
        caption="Confusion matrix: a line for each true class, a column for each predicted class",
        sortable=False,
    )


def _share(text: str) -> Axis:
    return Axis(text, 0.0, 1.0, fixed=True, form=form_share)


def calibration(run: RunRecord) -> Figure | None:
    """Draw the observed share of the second class against its mean predicted probability."""
    points = run.metrics.get("calibration") or []
    if len(points) < 2:
        return None
    rows = [(percent(p), percent(o), count(n)) for p, o, n in points]
    words = [f"predicted {p}, observed {o}, {n} rows" for p, o, n in rows]
    label = _positive(run)
    return plot(
        "Calibration",
        [Series(label, [p for p, _, _ in points], [o for _, o, _ in points], words=words)],
        _share(f"mean predicted probability of {label}"),
        _share("share observed"),
        diagonal=True,
        caption="On the diagonal, predicted probabilities are those observed. Bins with few rows are merged.",
        table=Table(("mean predicted", "share observed", "rows"), rows),
    )


def roc(run: RunRecord) -> Figure | None:
    """Draw the ROC curve at the bounds of the calibration's bins."""
    points = run.metrics.get("curve") or []
    if len(points) < 3:
        return None
    auc = run.metrics.get("auc")
    within = interval(run.metrics, "auc")
    return plot(
        "ROC curve",
        [
            Series(
                "model",
                [fpr for _, _, fpr, _ in points],
                [tpr for _, tpr, _, _ in points],
                words=[
                    f"threshold {threshold:.3g}: {percent(tpr)} found, {percent(fpr)} false alarms"
                    for threshold, tpr, fpr, _ in points
                ],
            )
        ],
        _share("false positive rate"),
        _share("true positive rate"),
        diagonal=True,
        caption=f"AUC {percent(auc)}" + (f", 95% interval {within}." if within else "."),
        table=_thresholds(points),
    )


def precision_recall(run: RunRecord) -> Figure | None:
    """Draw precision against recall at the same thresholds."""
    points = [p for p in run.metrics.get("curve") or [] if p[1] > 0]
    if len(points) < 2:
        return None
    average = run.metrics.get("average_precision")
    within = interval(run.metrics, "average_precision")
    return plot(
        "Precision and recall",
        [
            Series(
                "model",
                [tpr for _, tpr, _, _ in points],
                [precision for *_, precision in points],
                words=[
                    f"threshold {threshold:.3g}: precision {percent(precision)}, recall {percent(tpr)}"
                    for threshold, tpr, _, precision in points
                ],
            )
        ],
        _share("recall"),
        _share("precision"),
        caption=f"Of {_positive(run)}. Average precision {percent(average)}"
        + (f", 95% interval {within}." if within else "."),
        table=_thresholds(points),
    )


def _thresholds(points: Sequence[Sequence[float]]) -> Table:
    header = ("threshold", "true positive rate", "false positive rate", "precision")
    return Table(header, [(f"{t:.4g}", percent(a), percent(b), percent(c)) for t, a, b, c in points])


def _positive(run: RunRecord) -> str:
    """Return the name of the second class."""
    labels = _labels(run)
    return labels[1] if len(labels) == 2 else "class 1"


def _subgroups(groups: Mapping[str, Mapping[str, Mapping[str, Any]]], chosen: str) -> list[Any]:
    parts = []
    for column, values in groups.items():
        known = [n for n in ORDER if any(is_finite(v.get(n)) for v in values.values())]
        shown = sorted(known, key=lambda n: n != chosen)[:3]
        rows = []
        for value, metrics in values.items():
            cells = [
                format_metric(name, metrics.get(name))
                + (f" ({within})" if (within := interval(metrics, name)) else "")
                for name in shown
            ]
            base = percent(metrics["majority"]) if is_finite(metrics.get("majority")) else ""
            rows.append((value, count(metrics.get("rows")), *cells, base))
        parts.append(
            table(
                (column, "rows", *(metric_name(n) for n in shown), "largest class"),
                rows,
                caption=f"By {column}, with 95% intervals",
                sortable=False,
            )
        )
    note = "Subgroups with few rows are merged. Among many, some differ by chance: compare intervals."
    return [*parts, tag("p", note)] if parts else []
