"""The list of runs: search, tags, state, progress, and the curve of each run's metric."""

from __future__ import annotations

from collections.abc import Sequence

from ..report.catalog import Entry
from ..report.markup import Safe, number, plain, tag
from ..report.numbers import count, format_metric, metric_name, names, significant, truncate
from .shell import href, part

WIDTH, HEIGHT = 120, 28  # of a sparkline
MOST_ROWS = 5000  # of the list; more would make the page slow
STATES = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped or waiting",
    "diverged": "diverged",
    "unreadable": "cannot be read",
}


def sparkline(curve: Sequence[tuple[int, float]], title: str) -> Safe | None:
    if len(curve) < 2:
        return None
    xs, ys = [x for x, _ in curve], [y for _, y in curve]
    low, high = min(ys), max(ys)
    right, height = (xs[-1] - xs[0]) or 1, (high - low) or 1
    points = " ".join(
        f"{number(2 + (WIDTH - 4) * (x - xs[0]) / right)},"
        f"{number(HEIGHT - 3 - (HEIGHT - 6) * (y - low) / height)}"
        for x, y in curve
    )
    return tag(
        "svg",
        tag("polyline", points=points),
        class_="spark",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=title,
    )


def row(root: str, entry: Entry) -> Safe:
    """One run. The text that is searched is in data-text."""
    value = "" if entry.value is None else format_metric(entry.metric, entry.value)
    shown = f"{metric_name(entry.metric)} {value}" if value else ""
    text = " ".join((entry.id, entry.label, entry.data, entry.kind, entry.state, *entry.tags)).lower()
    steps = {"run": "rounds", "comparison": "rounds", "study": "cells"}[entry.kind]
    progress = tag(
        "progress", value=entry.done, max=max(1, entry.planned), aria_label=f"{entry.done} of {entry.planned}"
    )
    tags = [tag("button", t, type="button", class_="tag", data_tag=t) for t in entry.tags]
    what = [entry.label, entry.data, "" if entry.kind == "run" else entry.kind]
    return tag(
        "tr",
        tag(
            "td",
            tag(
                "input",
                type="checkbox",
                name="run",
                value=entry.id,
                aria_label=f"select {entry.id}",
                disabled=None if entry.kind == "run" else "disabled",
            ),
            class_="pick",
        ),
        tag(
            "th",
            tag("a", truncate(plain(entry.id), 60), href=href(root, "run", entry.id)),
            tag("small", " · ".join(truncate(plain(w), 60) for w in what if w)),
            tags,
            scope="row",
        ),
        tag(
            "td",
            tag("span", STATES[entry.state], class_=f"badge-state {entry.state}"),
            tag("small", truncate(plain(entry.problem), 200)) if entry.problem else None,
            class_="state-cell",
        ),
        tag(
            "td",
            progress,
            tag("small", f"{count(entry.done)} of {count(entry.planned)} {steps}"),
            class_="bar-cell",
            data_sort=repr(entry.progress),
        ),
        tag(
            "td", shown, class_="value", data_sort=repr(entry.value) if entry.value is not None else "-1e300"
        ),
        tag("td", sparkline(entry.curve, f"{entry.metric} by round, last {value}"), class_="spark-cell"),
        tag("td", f"ε {significant(entry.epsilon)}" if entry.epsilon is not None else "", class_="eps"),
        tag("td", count(entry.parties) if entry.parties else "", class_="parties"),
        tag("td", entry.started[:16].replace("T", " "), class_="when"),
        data_part=f"run:{entry.id}",
        data_text=text,
        data_tags="\n".join(entry.tags).lower(),
        data_state=entry.state,
    )


def parts(root: str, entries: Sequence[Entry]) -> dict[str, str]:
    found: dict[str, str] = {"overview": overview(entries)}
    found |= {f"run:{e.id}": row(root, e) for e in entries[:MOST_ROWS]}
    return found


def overview(entries: Sequence[Entry]) -> Safe:
    by_state = {s: sum(e.state == s for e in entries) for s in STATES}
    facts = [f"{count(n)} {STATES[s]}" for s, n in by_state.items() if n]
    tags = sorted({t for e in entries for t in e.tags})
    more = len(entries) - MOST_ROWS
    return part(
        "overview",
        tag(
            "span",
            f"{count(len(entries))} runs: {', '.join(facts)}" if entries else "no runs yet",
            f". The newest {count(MOST_ROWS)} are listed" if more > 0 else "",
            f". Tags: {names(tags, 12)}" if tags else "",
        ),
        "p",
        class_="facts-line",
    )


def body(root: str, directory: str, made: dict[str, str]) -> list[Safe]:
    """The page, from its parts."""
    header = tag(
        "header",
        tag("h1", "Runs"),
        Safe(made["overview"]),
        tag("p", directory, class_="quiet"),
    )
    tools = tag(
        "div",
        tag(
            "input",
            type="search",
            id="search",
            placeholder="Search: words, tag:baseline, state:running",
            aria_label="Search runs",
            autocomplete="off",
            spellcheck="false",
        ),
        tag("button", "Compare selected", type="submit", id="compare", disabled="disabled"),
        tag("span", "", id="found", role="status"),
        class_="tools",
    )
    heads = ["", "run", "state", "progress", "metric", "by round", "privacy", "parties", "started (UTC)"]
    table = tag(
        "table",
        tag("thead", tag("tr", [tag("th", h, scope="col") for h in heads])),
        tag("tbody", [Safe(m) for k, m in made.items() if k.startswith("run:")], id="rows"),
        class_="sortable list",
    )
    empty = tag(
        "p",
        "No run here yet. Start one with `tacit run job.toml`; it appears by itself.",
        class_="quiet empty",
    )
    form = tag("form", tools, table, empty, method="get", action=f"{root}/compare", id="list")
    return [header, tag("div", tag("main", tag("section", form), id="content"), class_="columns single")]
