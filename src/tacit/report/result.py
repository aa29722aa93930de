"""The report of any result: its values, history, notes and ledger, as `to_dict` returns them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .layout import Page, Section, figure, table
from .markup import Safe, join, tag
from .numbers import count
from .page import assemble
from .records import RunRecord
from .sections import ledger
from .svg import Axis, Series, plot

MOST_ROWS = 200  # of a table in the report; `save` writes all of it
STEPS = ("epoch", "round")
FOOT = "Made by tacit from the run's own records. This file makes no network request."

PLAN_FOOT = "Made by tacit before anything ran. This file makes no network request."


def render(title: str, values: Mapping[str, Any], more: Sequence[Section] = ()) -> str:
    """Render the values of a result, and further sections before the ledger."""
    scalars = {k: v for k, v in values.items() if isinstance(v, str | int | float | None)}
    parts: list[Any] = [table(["", "value"], [[k, show(v)] for k, v in scalars.items()], sortable=False)]
    for name, value in values.items():
        if name in ("notes", "warnings"):
            parts += [tag("p", line) for line in value]
        elif name == "history":
            parts.append(tag("div", curves(value), class_="figures"))
        elif name != "ledger" and name not in scalars and value:
            parts.append(_structure(name, value))
    sections = [Section("result", "Result", join(parts if scalars else parts[1:])), *more]
    seen = values["ledger"]
    return assemble(
        title,
        Safe(""),
        [tag("p", tag("strong", s), class_="stamp", role="alert") for s in seen["stamps"]],
        [*sections, ledger(Page([RunRecord({}, [], seen)], None, {}))],
        FOOT,
    )


def render_plan(title: str, lines: Sequence[str], guard: Sequence[Mapping[str, Any]]) -> str:
    """Render what a run would do, one sentence a line, and the settings of its guard. Nothing ran."""
    parts: list[Any] = [tag("p", line) for line in lines]
    if guard:
        parts.append(_structure("guard", list(guard)))
    return assemble(title, Safe(""), [], [Section("plan", "What would happen", join(parts))], PLAN_FOOT)


def show(value: Any) -> str:
    """Format one value."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def curves(history: Sequence[Mapping[str, Any]]) -> list[Safe]:
    """Draw every number of a history against its epoch or round."""
    step = next((s for s in STEPS if history and s in history[0]), "")
    names = dict.fromkeys(
        k for row in history for k, v in row.items() if isinstance(v, float) and k != "seconds" and step
    )
    return [
        figure(
            plot(
                name.replace("_", " "),
                [
                    Series(
                        name.replace("_", " "),
                        [row[step] for row in history],
                        [v if isinstance(v := row.get(name), float) else None for row in history],
                    )
                ],
                Axis(step),
                Axis(name),
            )
        )
        for name in names
    ]


def _structure(name: str, value: Any) -> Safe:
    """Show a table if the value is one, a list of names, or else JSON."""
    caption = name.replace("_", " ")
    rows = value if isinstance(value, list) and all(isinstance(r, dict) for r in value) else None
    if rows:
        header = list(dict.fromkeys(k for row in rows for k in row))
        cells = [[show(row.get(k, "")) for k in header] for row in rows[:MOST_ROWS]]
        left_out = f", the first {MOST_ROWS} of {count(len(rows))} rows" if len(rows) > MOST_ROWS else ""
        return table(header, cells, caption=caption + left_out)
    if isinstance(value, dict) and not any(isinstance(v, dict | list) for v in value.values()):
        return table(["", caption], [[k, show(v)] for k, v in value.items()], sortable=False)
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return tag("details", tag("summary", f"{caption} ({count(len(value))})"), tag("pre", text))
