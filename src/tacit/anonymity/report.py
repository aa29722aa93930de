"""The report of an anonymous table: one HTML file, made like every report of tacit (its markup, its charts,
its policy), that holds no row of any table.

Who may read it is for its owner to say: figures about how people could be found, and the words of the
hierarchies, are in it; values of rows are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadData
from ..report.markup import Safe, join, tag
from ..report.numbers import count, is_finite, names, percent, significant
from ..report.page import assemble, write_page
from ..report.sections import Section, figure, table
from ..report.svg import Figure
from . import drawings
from .assessment import Risk, assess
from .hierarchies import NULL
from .result import Anonymized

MOST_COMBINATIONS = 40
MOST_STEPS = 200
MOST_LABELS = 200
NOT_KNOWN = "not measured"


def render(subject: Risk | Anonymized) -> str:
    """The page as text."""
    risk = _assessed(subject)
    shown = [s for make in ALL if (s := make(risk))]
    how = f"k-ambiguous, k = {risk.fits.published}" if risk.fits is not None else f"k = {risk.after.k}"
    title = f"{count(risk.after.rows)} rows, {how if risk.after.rows else 'nothing published'}"
    facts = [
        f"{count(risk.given)} rows before",
        f"quasi-identifiers {names(list(risk.quasi), 9)}",
        f"sensitive {names(list(risk.sensitive), 5)}" if risk.sensitive else "",
        f"method {risk.made.method}" if risk.made else "",
    ]
    stamps = []
    if risk.after.unique and risk.fits is None:
        stamps.append(
            tag(
                "p",
                tag("strong", f"NOT ANONYMOUS: {count(risk.after.unique)} rows can be told from all others."),
                class_="stamp",
                role="alert",
            )
        )
    foot = "Made by tacit. This file holds no row of the tables and makes no network request."
    return assemble(title, join([tag("span", f) for f in facts if f]), stamps, shown, foot)


def write(subject: Risk | Anonymized, path: str | Path) -> Path:
    return write_page(path, render(subject))


def _assessed(subject: Risk | Anonymized) -> Risk:
    if isinstance(subject, Risk):
        return subject
    if subject.original is None:
        raise BadData(
            "the report needs the original table, which this result does not hold. Use tacit.risk(before, "
            "anonymized).report(path)."
        )
    return assess(
        subject.original,
        subject.table,
        subject.quasi,
        subject.sensitive,
        hierarchies=subject.hierarchies,
        levels=subject.levels,
        made=subject,
    )


def _figures(*drawn: Figure | None) -> Safe:
    return tag("div", [figure(d) for d in drawn if d], class_="figures")


def _tile(name: str, value: str, more: str = "", warn: bool = False) -> Safe:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", value, tag("small", more) if more else None),
        class_="tile warn" if warn else "tile",
    )


def verdict(risk: Risk) -> Section:
    was, now = risk.before, risk.after
    if not now.rows:
        headline = "No row is published."
    elif risk.fits is not None:
        headline = (
            f"Every original fits at least {count(risk.fits.published)} published rows, every published row "
            f"at least {count(risk.fits.originals)} "
            f"originals; before, {percent(was.unique_share)} of the rows were unique."
        )
    elif now.unique:
        headline = (
            f"{percent(now.unique_share)} of the published rows are still unique; before it was "
            f"{percent(was.unique_share)}."
        )
    else:
        headline = (
            f"Every published row shares its quasi-identifiers with at least {count(now.k - 1)} "
            f"other{'s' if now.k != 2 else ''}; before, "
            f"{percent(was.unique_share)} of the rows were unique."
        )
    lost = risk.utility.suppressed
    tiles = [
        _tile("k, the smallest class", count(now.k), f"before: {count(was.k)}", now.k < 2),
        _tile(
            "Highest prosecutor risk",
            percent(now.prosecutor.highest),
            f"before: {percent(was.prosecutor.highest)}",
        ),
        _tile(
            "Average prosecutor risk",
            percent(now.prosecutor.average, 2),
            f"before: {percent(was.prosecutor.average, 2)}",
        ),
        _tile("Rows suppressed", count(lost), f"{percent(lost / risk.given)} of {count(risk.given)}"),
        _tile(
            "Loss (granularity)",
            significant(risk.utility.granularity) if is_finite(risk.utility.granularity) else NOT_KNOWN,
            "0 the original, 1 all *",
        ),
    ]
    tiles += [
        _tile(f"l of {s.column}", count(s.distinct), f"t = {significant(s.t)}", s.distinct < 2)
        for s in now.learnt
    ]
    body = join(
        [
            tag("p", headline, class_="headline"),
            tag("dl", tiles, class_="tiles"),
            *(tag("p", w, class_="plainly") for w in risk.warnings),
        ]
    )
    return Section("verdict", "Verdict", body)


def before_and_after(risk: Risk) -> Section:
    shares = ("unique share", "prosecutor", "journalist", "marketer", "rows with", "accuracy")
    rows = [
        [name, *(_cell(v, name.startswith(shares)) for v in pair)]
        for name, pair in zip(risk.table().index, risk.table().to_numpy(dtype=float).tolist())
    ]
    basis = risk.after.basis
    uniques = (
        "Population uniques "
        f"{'by the model of ' + risk.after.uniques_by if basis.startswith('estimated') else 'from ' + risk.after.uniques_by}."
    )
    note = tag(
        "p",
        f"Journalist and marketer: {basis}. {uniques} Lower risk is better; of the last lines only "
        "precision and accuracy are better when higher.",
        class_="quiet",
    )
    shown = table(
        ["measure", "before", "after"], rows, caption="Risk and utility of both tables.", sortable=False
    )
    return Section("table", "Before and after", join([shown, note]))


def _cell(value: float, share: bool) -> str:
    if math.isnan(value):
        return NOT_KNOWN
    return percent(value, 2) if share else count(value) if value == round(value) else significant(value)


def sizes(risk: Risk) -> Section:
    return Section(
        "classes", "Class sizes and risk", _figures(drawings.class_sizes(risk), drawings.at_risk(risk))
    )


def singled_out(risk: Risk) -> Section:
    found = risk.singled_out()
    rows = [
        [
            r["columns"],
            count(r["unique before"]),
            count(r["minimal before"]),
            percent(r["risk before"], 2),
            count(r["unique after"]),
            percent(r["risk after"], 2),
        ]
        for r in found.head(MOST_COMBINATIONS).to_dict("records")
    ]
    most = max(len(c.columns) for c in risk.combinations[0])
    caption = f"Every set of up to {most} columns, those that single most people out first" + (
        f"; {count(MOST_COMBINATIONS)} of {count(len(found))}." if len(found) > MOST_COMBINATIONS else "."
    )
    note = tag(
        "p",
        "Minimal: rows that are unique on these columns and on no smaller part of them. Risk: the average "
        "chance to pick the right row.",
        class_="quiet",
    )
    head = ["columns", "unique before", "minimal", "risk before", "unique after", "risk after"]
    body = join(
        [
            _figures(drawings.by_column(risk), drawings.pairs(risk), drawings.pairs(risk, after=True)),
            table(head, rows, caption=caption),
            note,
        ]
    )
    return Section("columns", "Which columns single people out", body)


def learnt(risk: Risk) -> Section | None:
    if not risk.after.learnt:
        return None
    rows = []
    for was, now in zip(risk.before.learnt, risk.after.learnt):
        for when, s in (("before", was), ("after", now)):
            rows.append(
                [
                    s.column,
                    when,
                    count(s.values),
                    count(s.distinct),
                    significant(s.entropy),
                    significant(s.t),
                    significant(s.t_ordered) if is_finite(s.t_ordered) else "no numbers",
                    count(s.homogeneous),
                ]
            )
    note = tag(
        "p",
        "k bounds who is found, not what is said of them. l: the least number of different values in a "
        "class; t: the largest distance between a "
        "class's values and the whole table's; giving away: rows whose whole class has one value.",
        class_="quiet",
    )
    head = ["sensitive column", "", "values", "l", "entropy l", "t", "t, ordered", "rows giving it away"]
    return Section(
        "learnt",
        "What is learnt about those found",
        join([table(head, rows, caption="Sensitive values by class.", sortable=False), note]),
    )


def utility(risk: Risk) -> Section | None:
    drawn = [drawings.trade(risk.made, risk.given) if risk.made else None, drawings.accuracy(risk)]
    return Section("utility", "Utility beside risk", _figures(*drawn)) if any(drawn) else None


def lattice(risk: Risk) -> Section | None:
    drawn = drawings.lattice(risk.made) if risk.made else None
    return Section("lattice", "The lattice", _figures(drawn)) if drawn else None


def suppressed(risk: Risk) -> Section | None:
    lost = risk.utility.suppressed
    if not lost:
        return None
    parts: list[Any] = [
        tag(
            "p",
            f"{count(lost)} of {count(risk.given)} rows ({percent(lost / risk.given)}) are suppressed: "
            f"{count(risk.given - risk.after.rows - risk.after.suppressed)} are left out of the table, "
            f"{count(risk.after.suppressed)} show * in every quasi-identifier.",
        )
    ]
    if risk.made is not None and risk.made.original is not None and risk.made.original.index.is_unique:
        places = sorted(
            int(i) for i in risk.made.original.index.get_indexer(risk.made.suppressed)
        )  # places, for a label may be a person's number
        more = f" and {count(len(places) - MOST_LABELS)} more" if len(places) > MOST_LABELS else ""
        parts.append(
            tag(
                "details",
                tag("summary", "which rows"),
                tag(
                    "p",
                    "Rows of the original, the first is 1: "
                    + ", ".join(str(i + 1) for i in places[:MOST_LABELS])
                    + more,
                    class_="quiet",
                ),
            )
        )
    return Section("suppressed", "Suppressed rows", join(parts))


def trace(risk: Risk) -> Section | None:
    steps = list(risk.made.trace) if risk.made else []
    if not steps:
        return None
    items = [tag("li", str(step)) for step in steps[:MOST_STEPS]]
    more = (
        tag("p", f"and {count(len(steps) - MOST_STEPS)} more steps", class_="quiet")
        if len(steps) > MOST_STEPS
        else None
    )
    return Section("trace", "Step by step", join([tag("ol", items), more]))


def hierarchies(risk: Risk) -> Section | None:
    if risk.made is None or not risk.made.hierarchies:
        return None
    rows = []
    for column in risk.made.quasi:
        way = risk.made.hierarchies.get(column)
        if way is None:
            continue
        level = risk.made.levels.get(column)
        paths = [" → ".join(_shown(w) for w in path) for path in _some(list(zip(*way.levels)))]
        rows.append(
            [
                column,
                count(len(way)),
                " → ".join(count(len(set(words))) for words in way.levels),
                "differs by cell" if level is None else f"{level} of {way.height}",
                join([tag("small", p) for p in paths]),
            ]
        )
    head = ["column", "values", "words at each level", "level used", "for example"]
    settings = [(k, v) for k, v in risk.made.settings.items() if isinstance(v, str | int | float)]
    facts = tag("dl", [(tag("dt", k), tag("dd", v)) for k, v in settings], class_="facts")
    return Section(
        "hierarchies",
        "Hierarchies and settings",
        join([table(head, rows, caption="What values become, level by level.", sortable=False), facts]),
    )


def _some(paths: Sequence[Any]) -> list[Any]:
    return [paths[i] for i in sorted({0, len(paths) // 2, len(paths) - 1})]


def _shown(word: str) -> str:
    return "(null)" if word == NULL else word or "(empty)"


ALL = (
    verdict,
    before_and_after,
    sizes,
    singled_out,
    learnt,
    utility,
    lattice,
    suppressed,
    trace,
    hierarchies,
)
