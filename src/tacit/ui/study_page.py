"""A study's page: its tables fill while its runs finish."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadRun
from ..report.catalog import Entry
from ..report.layout import Section, table, tile
from ..report.markup import Safe, join, tag
from ..report.numbers import count, is_finite, percent
from ..report.page import Contents

MOST_SQUARES = 60  # of one cell of a table
TITLES = {"done": "done", "failed": "diverged", "running": "running", "open": "not started"}


def read_lines(entry: Entry) -> list[dict[str, Any]]:
    """Return the lines of a study so far, without one that a kill cut short."""
    file = entry.path / "cells.jsonl"
    found = []
    for line in file.read_bytes().split(b"\n") if file.is_file() else ():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def states(lines: Sequence[Mapping[str, Any]], planned: Sequence[str], is_running: bool) -> dict[str, str]:
    """Return {id of a run: "done", "failed", "running" or "open"}, in the order of the study."""
    found = dict.fromkeys(planned, "open")
    for line in lines:
        if line.get("kind") == "begun" and is_running:
            found |= {str(i): "running" for i in line.get("cells") or () if found.get(str(i)) == "open"}
        elif line.get("kind") == "cell":
            found[str(line.get("id"))] = "failed" if line.get("diverged") else "done"
    return found


def study_contents(entry: Entry) -> Contents:
    try:
        note = json.loads((entry.path / "study.json").read_text(encoding="utf-8"))
        lines = read_lines(entry)
        cells = note.get("cells") or []
        planned = [str(c["id"]) for c in cells]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRun(f"{entry.path} cannot be read as a study: {error}.") from None
    finished = [x for x in lines if x.get("kind") == "cell"]
    place = {str(c["id"]): (str(c["table"]), str(c["row"]), str(c["column"])) for c in (*cells, *finished)}
    all_states = states(lines, planned, entry.state == "running")
    last = {str(x["id"]): x for x in finished}
    parts = [_overview(all_states, bool(planned))]
    for k, name in enumerate(dict.fromkeys(t for t, _, _ in place.values())):
        ids = [i for i in place if place[i][0] == name]
        parts.append(Section(f"table-{k}", name, _table(ids, place, all_states, last)))
    stamps = []
    if note.get("quick"):
        stamps.append(tag("p", "Quick run: these results say nothing about the method.", class_="stamp"))
    if entry.state != "finished":
        text = "Not finished: the tables fill while runs finish."
        stamps.append(tag("p", text, class_="stamp unfinished", role="status"))
    elif (entry.path / "summary.json").is_file():
        text = "The report, with published figures beside these, is report.html in the study's directory."
        parts.append(Section("report", "Report", tag("p", text)))
    return Contents(entry.label, tag("span", entry.id), stamps, parts)


def _overview(found: Mapping[str, str], is_known: bool) -> Section:
    many = {s: sum(v == s for v in found.values()) for s in TITLES}
    total, ended = len(found), many["done"] + many["failed"]
    tiles = [
        tile("Runs done", f"{count(ended)} of {count(total)}" if is_known else count(ended)),
        tile("Running", count(many["running"])),
        tile("Diverged", count(many["failed"]), style="warn" if many["failed"] else ""),
        tile("Not started", count(many["open"]) if is_known else "not known"),
    ]
    bar = tag("progress", value=ended, max=max(1, total), aria_label=f"{ended} of {total} runs")
    return Section("progress", "Progress", join([bar, tag("dl", tiles, class_="tiles")]))


def _table(
    ids: Sequence[str],
    place: Mapping[str, tuple[str, str, str]],
    found: Mapping[str, str],
    last: Mapping[str, Mapping[str, Any]],
) -> Safe:
    rows = list(dict.fromkeys(place[i][1] for i in ids))
    columns = list(dict.fromkeys(place[i][2] for i in ids))
    by_place: dict[tuple[str, str], list[str]] = {}
    for i in ids:
        by_place.setdefault(place[i][1:], []).append(i)
    body = [[row, *(_cell(by_place.get((row, c), []), found, last) for c in columns)] for row in rows]
    caption = "Mean accuracy after the last round of the runs that are done; one square for each run."
    return table(["", *columns], body, caption=caption, sortable=False)


def _cell(ids: Sequence[str], found: Mapping[str, str], last: Mapping[str, Mapping[str, Any]]) -> Safe:
    values = [
        float(last[i]["test"][-1]) for i in ids if i in last and is_finite((last[i].get("test") or [0])[-1])
    ]
    mean = percent(sum(values) / len(values)) if values else "–"
    squares = [tag("i", "", class_=found[i], title=f"{i}: {TITLES[found[i]]}") for i in ids[:MOST_SQUARES]]
    return join([tag("strong", mean), tag("div", squares, class_="cells")])
