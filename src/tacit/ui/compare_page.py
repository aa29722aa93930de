"""Several runs in one chart, and what their jobs do differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadRun
from ..report import figures, timing
from ..report.catalog import Entry
from ..report.layout import Section, grid, table
from ..report.markup import Safe, join, plain, tag
from ..report.numbers import count, format_metric, format_seconds, is_finite, metric_name, significant, size
from ..report.page import Contents
from ..report.records import RunRecord, read_run

MOST = 24  # runs in one chart: more cannot be told apart
MOST_DIFFERENCES = 60
MOST_LETTERS = 60  # of a setting


def check(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of a comparison; raise BadRun if they cannot be compared."""
    found = list(dict.fromkeys(entries))
    if not 2 <= len(found) <= MOST:
        raise BadRun(f"{len(found)} runs were selected; select 2 to {MOST}.")
    if others := [e.id for e in found if e.kind != "run"]:
        raise BadRun(f"{', '.join(others)}: only single runs can be compared here.")
    return found


def relabel(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs under names that differ, as one group each, whatever their data were.

    A name is the run's label, with its directory where several runs have the same.
    """
    labels = [r.label for r in records]
    found = []
    for record in records:
        label = record.label
        if labels.count(label) > 1 or not label:
            label = f"{record.name} ({label})"
        events = [{**e, "label": label, "skew": ""} if e["kind"] == "start" else e for e in record.events]
        found.append(replace(record, events=tuple(events)))
    return found


def compare(entries: Sequence[Entry], link: Callable[[Entry], str]) -> Contents:
    known: list[tuple[Entry, RunRecord]] = []
    problems = []
    for entry in entries:
        try:
            known.append((entry, replace(read_run(entry.path), name=entry.id)))
        except BadRun as error:
            problems.append(f"{entry.id}: {error}")
    runs = relabel([r for _, r in known])
    colors = figures.styles([r.label for r in runs])
    parts = [Section("results", "Results", _results([e for e, _ in known], runs, link))]
    for id, title, draw in (
        ("curves", "Learning curves", figures.curves),
        ("bytes", "Accuracy vs. communication", figures.accuracy_against_bytes),
        ("epsilon", "Accuracy vs. privacy budget", figures.accuracy_against_epsilon),
        ("time", "Accuracy vs. time", timing.against_time),
        ("parties", "Results per party", figures.per_party),
    ):
        # a chart of one run's parties beside the curves of all would not say whose they are
        shown = runs if id != "parties" or sum(bool(r.party_accuracy) for r in runs) > 1 else []
        drawing = grid([draw(shown, colors=colors)]) if shown else None
        if drawing:
            parts.append(Section(id, title, drawing))
    parts.append(Section("differences", "What their jobs do differently", _differences(runs)))
    stamps = [tag("p", text, class_="stamp unfinished") for text in problems]
    names = dict.fromkeys(plain(r.federation.get("name") or "unnamed data") for r in runs)
    if len(names) > 1:
        text = f"Different data ({', '.join(names)}): metrics of these runs cannot be compared."
        stamps.append(tag("p", text, class_="stamp unfinished"))
    if any(not r.is_finished for r in runs):
        stamps.append(
            tag("p", "Not all runs are finished. This page changes by itself.", class_="stamp unfinished")
        )
    return Contents(f"{count(len(runs))} runs compared", Safe(""), stamps, parts)


def _results(entries: Sequence[Entry], runs: Sequence[RunRecord], link: Callable[[Entry], str]) -> Safe:
    metrics = list(dict.fromkeys([*(r.metric for r in runs if r.metrics), "loss"]))
    rows = []
    for entry, run in zip(entries, runs):
        epsilon = next((e["epsilon"] for e in reversed(run.rounds) if is_finite(e.get("epsilon"))), None)
        sent = run.total("bytes_up") + run.total("bytes_down")
        rows.append(
            [
                tag("a", plain(run.label), href=link(entry)),
                f"{count(run.done)} of {count(run.planned)}",
                *(format_metric(m, run.metrics[m]) if is_finite(run.metrics.get(m)) else "" for m in metrics),
                significant(epsilon) if epsilon is not None else "none",
                size(sent),
                format_seconds(run.total("seconds")),
                count(len(run.federation.get("parties") or ())),
            ]
        )
    header = ["run", "rounds", *map(metric_name, metrics), "ε spent", "sent", "time", "parties"]
    return table(header, rows, caption="The last round that was evaluated.")


def _differences(runs: Sequence[RunRecord]) -> Safe:
    flat = [_flatten(r.job) for r in runs]
    keys = [
        k for k in dict.fromkeys(k for f in flat for k in f) if len({str(f.get(k, "")) for f in flat}) > 1
    ]
    if not keys:
        return tag("p", "Nothing: their job files are equal.")
    rows = [[key, *(_shown(f.get(key, "–")) for f in flat)] for key in keys[:MOST_DIFFERENCES]]
    more = len(keys) - len(rows)
    return join(
        [
            table(["setting", *(r.label for r in runs)], rows, caption="Settings that are not the same."),
            tag("p", f"{count(more)} more settings differ.", class_="quiet") if more > 0 else None,
        ]
    )


def _shown(value: Any) -> str:
    text = plain(value)
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def _flatten(value: Any, before: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        items = ((str(k), v) for k, v in value.items())
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        items = ((str(v.get("name", i)), v) for i, v in enumerate(value))
    else:
        return {before: value}
    found: dict[str, Any] = {}
    for key, inner in items:
        found |= _flatten(inner, f"{before}.{key}" if before else key)
    return found
