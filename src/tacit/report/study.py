"""The report of a study: its tables, ours beside the published figures, the curves behind them, and the time
they took.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import styles
from .markup import join, tag
from .numbers import count, is_finite, percent, span
from .page import assemble, put
from .sections import Section, figure, table
from .svg import Axis, Figure, Series, Table, plot

MOST_CURVES = 8  # in one chart; more are told by the table
NAMES = {
    "best": "best accuracy over the rounds, picked on the test set",
    "last": "accuracy after the last round",
    "picked": "accuracy at the round that the held-out rows pick",
    "rounds": "rounds to the target accuracy",
}


def render(found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    facts = [
        f"{count(found['done'])} of {count(found['runs'])} runs",
        *found["devices"],
        span(found["seconds"]),
    ]
    stamps = []
    if found["quick"]:
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
    if found["changed"]:
        stamps.append(
            tag(
                "p",
                f"Run with {found['changed']}: this is not the study as its file has it.",
                class_="stamp",
                role="alert",
            )
        )
    if found["done"] < found["runs"]:
        stamps.append(
            tag(
                "p",
                f"Not finished: {count(found['runs'] - found['done'])} runs are missing.",
                class_="stamp going",
                role="status",
            )
        )
    curves = _curves(lines)
    shown = [_about(found), *(_table(t, i, curves) for i, t in enumerate(found["tables"])), _notes(found)]
    return assemble(
        found["title"],
        join([tag("span", f) for f in facts if f]),
        stamps,
        shown,
        "Made by tacit. This file makes no network request.",
    )


def write(path: str | Path, found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Path:
    return put(path, render(found, lines))


def timing(found: Mapping[str, Any]) -> str:
    """The seconds it took, and what the same would take one client at a time, which is extrapolated and says
    so.
    """
    if not found["seconds"]:
        return ""
    words = (
        f"{count(found['samples'])} samples in "
        f"{found['seconds']:,.{0 if found['seconds'] >= 10 else 1}f} s of stacks "
        f"({'; '.join(found['devices'])})."
    )
    slow = found["one_by_one"]
    if slow:
        words += (
            f" One client at a time on the same machine makes {count(slow['samples_per_second'])} samples a "
            "second, measured over"
            f" {slow['measured_seconds']:.1f} s: the whole study would take "
            f"{span(slow['extrapolated_seconds'])}, extrapolated from that."
        )
    return words


def _about(found: Mapping[str, Any]) -> Section:
    claims = [t["claim"] for t in found["tables"] if t.get("claim")]
    body = [
        tag("p", found["about"]),
        tag("p", f"Published figures: {found['source']}.") if found["source"] else None,
        tag("p", timing(found)),
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


def _table(found: Mapping[str, Any], place: int, curves: Mapping[tuple[str, str, str], Any]) -> Section:
    by = {(c["row"], c["column"]): c for c in found["cells"]}
    rows, keys = [], {}
    for i, name in enumerate(found["rows"]):
        row: list[Any] = [name]
        for j, column in enumerate(found["columns"], 1):
            c = by.get((name, column))
            if c is None:
                row.append("")
                continue
            ours = c[found["figure"]]
            if is_finite(ours["mean"]):
                keys[i, j] = float(ours["mean"])
            spread = ours["spread"]
            words = _number(found["figure"], ours["mean"])
            words += (
                (f" ± {count(spread)}" if found["figure"] == "rounds" else f" ± {100 * spread:.1f}")
                if is_finite(spread)
                else ""
            )
            if found["figure"] == "rounds" and not is_finite(ours["mean"]) and c["seeds"]:
                reached = (
                    f"reached from {c['reached']} of {c['seeds']} seeds" if c["reached"] else "not reached"
                )
                words = f"{reached}, best {percent(c['best']['mean'])}"
            small = (
                [f"{count(c['seeds'])} of {count(c['asked'])} seeds"] if 0 < c["seeds"] < c["asked"] else []
            )
            small += [f"{count(c['diverged'])} of {count(c['seeds'])} diverged"] if c["diverged"] else []
            small += (
                [f"published {_number(found['figure'], c['published'])}"]
                if c["published"] is not None
                else []
            )
            small += (
                [f"replicated {_number(found['figure'], c['replicated'])}"]
                if c["replicated"] is not None
                else []
            )
            first = by.get((found["rows"][0], column)) if found["figure"] == "rounds" and i else None
            small += (
                [f"{what} {a / b:.1f}× fewer rounds" for what, a, b in _fewer(first, c) if a and b]
                if first
                else []
            )
            small += [c["choice"]] if c["choice"] else []
            row.append(join([words, tag("small", " · ".join(small)) if small else None]))
        rows.append(row)
    target = "" if found["target"] is None else f" of {percent(found['target'], 0)}"
    caption = f"{NAMES[found['figure']].capitalize()}{target}, ± the standard deviation over seeds."
    body = [
        tag("p", found["about"]) if found["about"] else None,
        table(["", *found["columns"]], rows, keys=keys, caption=caption),
        _others(found, by),
        tag("p", found["claim"]["text"], class_="headline") if found.get("claim") else None,
        tag("div", [figure(_chart(found, column, curves)) for column in found["columns"]], class_="figures"),
    ]
    return Section(f"table-{place}", found["name"], join([b for b in body if b]))


def _others(found: Mapping[str, Any], by: Mapping[tuple[str, str], Any]) -> Any:
    """The best round is picked on the test set; what the last one gives, and the one that the held-out rows
    pick, stands below, folded away.
    """
    if found["figure"] != "best":
        return None
    rows = [
        [
            name,
            *(
                f"{percent(c['last']['mean'])} / {percent(c['picked']['mean'])}"
                if (c := by.get((name, column))) and c["seeds"]
                else ""
                for column in found["columns"]
            ),
        ]
        for name in found["rows"]
    ]
    return tag(
        "details",
        tag("summary", "after the last round / at the round that the held-out rows pick"),
        table(
            ["", *found["columns"]],
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
    made: dict[tuple[str, str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for line in lines:
        if line.get("kind") == "cell":
            made.setdefault((line["table"], line["row"], line["column"]), {}).setdefault(
                line["choice"], []
            ).append(line)
    return made


def _chart(
    found: Mapping[str, Any], column: str, curves: Mapping[tuple[str, str, str], Any]
) -> Figure | None:
    """Test accuracy over the rounds, the mean of the seeds, a curve a row."""
    by, colours = {(c["row"], c["column"]): c for c in found["cells"]}, styles(found["rows"])
    series: list[Series] = []
    left_out, diverged = 0, False
    for row in found["rows"]:
        runs = curves.get((found["name"], row, column), {}).get(
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
        column if len(found["columns"]) > 1 else found["name"],
        series,
        Axis("round"),
        Axis("test accuracy", form=lambda v, step: percent(v, 0)),
        caption=caption,
        table=Table(("", "after a quarter", "after half", "at the end"), rows),
    )


def _mean(values: Sequence[Any]) -> float:
    known = [float(v) for v in values if is_finite(v)]
    return math.fsum(known) / len(known) if known else math.nan


def _notes(found: Mapping[str, Any]) -> Section:
    body = (
        tag("ul", [tag("li", n) for n in found["notes"]]) if found["notes"] else tag("p", "Nothing is noted.")
    )
    return Section("notes", "Where ours differs, and why", body)
