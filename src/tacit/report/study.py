"""The report of a study: tables with published figures, learning curves, and times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import styles
from .markup import join, tag
from .numbers import count, format_seconds, is_finite, percent
from .page import assemble, write_page
from .sections import Section, figure, table
from .svg import Axis, Figure, Series, Table, plot

MOST_CURVES = 8  # in one chart; the table has all
NAMES = {
    "best": "best accuracy over the rounds, picked on the test set",
    "last": "accuracy after the last round",
    "picked": "accuracy at the round that the held-out rows pick",
    "rounds": "rounds to the target accuracy",
}


def render(summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    facts = [
        f"{count(summary['done'])} of {count(summary['runs'])} runs",
        *summary["devices"],
        format_seconds(summary["seconds"]),
    ]
    stamps = []
    if summary["quick"]:
        stamps.append(
            tag(
                "p",
                tag(
                    "strong",
                    "A quick look: a few rows and rounds. These figures say nothing about the method.",
                ),
                class_="stamp",
                role="alert",
            )
        )
    if summary["changed"]:
        stamps.append(
            tag(
                "p",
                f"Run with {summary['changed']}: this is not the study as its file has it.",
                class_="stamp",
                role="alert",
            )
        )
    if summary["done"] < summary["runs"]:
        stamps.append(
            tag(
                "p",
                f"Not finished: {count(summary['runs'] - summary['done'])} runs are missing.",
                class_="stamp going",
                role="status",
            )
        )
    curves = _curves(lines)
    parts = [
        _about(summary),
        *(_table(t, i, curves) for i, t in enumerate(summary["tables"])),
        _notes(summary),
    ]
    return assemble(
        summary["title"],
        join([tag("span", f) for f in facts if f]),
        stamps,
        parts,
        "Made by tacit. This file makes no network request.",
    )


def write(path: str | Path, summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Path:
    return write_page(path, render(summary, lines))


def timing(summary: Mapping[str, Any]) -> str:
    """Say how long it took, and how long one client at a time would take.

    The second figure is extrapolated, and the text says so.
    """
    if not summary["seconds"]:
        return ""
    words = (
        f"{count(summary['samples'])} samples in "
        f"{summary['seconds']:,.{0 if summary['seconds'] >= 10 else 1}f} s of stacks "
        f"({'; '.join(summary['devices'])})."
    )
    slow = summary["one_by_one"]
    if slow:
        words += (
            f" One client at a time on the same machine makes {count(slow['samples_per_second'])} samples a "
            "second, measured over"
            f" {slow['measured_seconds']:.1f} s: the whole study would take "
            f"{format_seconds(slow['extrapolated_seconds'])}, extrapolated from that."
        )
    return words


def _about(summary: Mapping[str, Any]) -> Section:
    claims = [t["claim"] for t in summary["tables"] if t.get("claim")]
    body = [
        tag("p", summary["about"]),
        tag("p", f"Published figures: {summary['source']}.") if summary["source"] else None,
        tag("p", timing(summary)),
    ]
    if claims:
        body.append(
            table(
                ["what is known", "ours"],
                [
                    [
                        c.get("says", ""),
                        {True: "agrees", False: "does not agree", None: "not known"}[c["holds"]],
                    ]
                    for c in claims
                ],
                caption="The known answers, and ours",
            )
        )
    return Section("about", "What was done", join([b for b in body if b]))


def _number(figure_: str, value: Any) -> str:
    if not is_finite(value):
        return "–"
    return count(round(value)) if figure_ == "rounds" else percent(value)


def _table(summary: Mapping[str, Any], place: int, curves: Mapping[tuple[str, str, str], Any]) -> Section:
    by = {(c["row"], c["column"]): c for c in summary["cells"]}
    rows, keys = [], {}
    for i, name in enumerate(summary["rows"]):
        row: list[Any] = [name]
        for j, column in enumerate(summary["columns"], 1):
            c = by.get((name, column))
            if c is None:
                row.append("")
                continue
            ours = c[summary["figure"]]
            if is_finite(ours["mean"]):
                keys[i, j] = float(ours["mean"])
            spread = ours["spread"]
            words = _number(summary["figure"], ours["mean"])
            words += (
                (f" ± {count(spread)}" if summary["figure"] == "rounds" else f" ± {100 * spread:.1f}")
                if is_finite(spread)
                else ""
            )
            if summary["figure"] == "rounds" and not is_finite(ours["mean"]) and c["seeds"]:
                reached = (
                    f"reached from {c['reached']} of {c['seeds']} seeds" if c["reached"] else "not reached"
                )
                words = f"{reached}, best {percent(c['best']['mean'])}"
            small = (
                [f"{count(c['seeds'])} of {count(c['asked'])} seeds"] if 0 < c["seeds"] < c["asked"] else []
            )
            small += [f"{count(c['diverged'])} of {count(c['seeds'])} diverged"] if c["diverged"] else []
            small += (
                [f"published {_number(summary['figure'], c['published'])}"]
                if c["published"] is not None
                else []
            )
            small += (
                [f"replicated {_number(summary['figure'], c['replicated'])}"]
                if c["replicated"] is not None
                else []
            )
            first = by.get((summary["rows"][0], column)) if summary["figure"] == "rounds" and i else None
            small += (
                [f"{what} {a / b:.1f}× fewer rounds" for what, a, b in _fewer(first, c) if a and b]
                if first
                else []
            )
            small += [c["choice"]] if c["choice"] else []
            row.append(join([words, tag("small", " · ".join(small)) if small else None]))
        rows.append(row)
    target = "" if summary["target"] is None else f" of {percent(summary['target'], 0)}"
    caption = f"{NAMES[summary['figure']].capitalize()}{target}, ± the standard deviation over seeds."
    body = [
        tag("p", summary["about"]) if summary["about"] else None,
        table(["", *summary["columns"]], rows, keys=keys, caption=caption),
        _others(summary, by),
        tag("p", summary["claim"]["text"], class_="headline") if summary.get("claim") else None,
        tag(
            "div",
            [figure(_chart(summary, column, curves)) for column in summary["columns"]],
            class_="figures",
        ),
    ]
    return Section(f"table-{place}", summary["name"], join([b for b in body if b]))


def _others(summary: Mapping[str, Any], by: Mapping[tuple[str, str], Any]) -> Any:
    """List the results at the last round and at the round picked by held-out rows.

    The table itself shows the best round, which is picked on the test set.
    """
    if summary["figure"] != "best":
        return None
    rows = [
        [
            name,
            *(
                f"{percent(c['last']['mean'])} / {percent(c['picked']['mean'])}"
                if (c := by.get((name, column))) and c["seeds"]
                else ""
                for column in summary["columns"]
            ),
        ]
        for name in summary["rows"]
    ]
    return tag(
        "details",
        tag("summary", "after the last round / at the round that the held-out rows pick"),
        table(
            ["", *summary["columns"]],
            rows,
            caption="Accuracy after the last round / at the round that the held-out rows pick.",
        ),
    )


def _fewer(first: Mapping[str, Any], cell: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [
        ("ours", first["rounds"]["mean"], cell["rounds"]["mean"]),
        ("published", first["published"], cell["published"]),
    ]


def _curves(
    lines: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str, str], dict[str, list[Mapping[str, Any]]]]:
    curves_by_cell: dict[tuple[str, str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for line in lines:
        if line.get("kind") == "cell":
            curves_by_cell.setdefault((line["table"], line["row"], line["column"]), {}).setdefault(
                line["choice"], []
            ).append(line)
    return curves_by_cell


def _chart(
    summary: Mapping[str, Any], column: str, curves: Mapping[tuple[str, str, str], Any]
) -> Figure | None:
    """Draw test accuracy by round, the mean over seeds, one curve per row."""
    by, colours = {(c["row"], c["column"]): c for c in summary["cells"]}, styles(summary["rows"])
    series: list[Series] = []
    left_out, diverged = 0, False
    for row in summary["rows"]:
        runs = curves.get((summary["name"], row, column), {}).get(
            (by.get((row, column)) or {}).get("choice", ""), []
        )
        if not runs or len(runs[0]["rounds"]) < 2:
            continue
        if len(series) == MOST_CURVES:
            left_out += 1
            continue
        diverged |= any(r["diverged"] for r in runs)
        shortest = min(len(r["rounds"]) for r in runs)
        step = max(1, math.ceil(shortest / 120))
        at = [k for k in range(shortest) if k % step == 0 or k == shortest - 1]
        series.append(
            Series(
                row,
                [runs[0]["rounds"][k] for k in at],
                [_mean([r["test"][k] for r in runs]) for k in at],
                colours[row],
            )
        )
    if not series:
        return None
    rows = [(s.name, *(percent(s.y[round(q * (len(s.y) - 1))]) for q in (0.25, 0.5, 1.0))) for s in series]
    caption = "Accuracy on the test set, mean of the seeds" + (
        " that have not diverged." if diverged else "."
    )
    caption += (
        f" {count(left_out)} more row{'s are' if left_out > 1 else ' is'} not drawn." if left_out else ""
    )
    return plot(
        column if len(summary["columns"]) > 1 else summary["name"],
        series,
        Axis("round"),
        Axis("test accuracy", form=lambda v, step: percent(v, 0)),
        caption=caption,
        table=Table(("", "after a quarter", "after half", "at the end"), rows),
    )


def _mean(values: Sequence[Any]) -> float:
    known = [float(v) for v in values if is_finite(v)]
    return math.fsum(known) / len(known) if known else math.nan


def _notes(summary: Mapping[str, Any]) -> Section:
    body = (
        tag("ul", [tag("li", n) for n in summary["notes"]])
        if summary["notes"]
        else tag("p", "Nothing is noted.")
    )
    return Section("notes", "Where ours differs, and why", body)
