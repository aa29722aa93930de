"""The report of an anonymized table: one HTML file without any row of the tables.

It contains figures about re-identification and the words of the hierarchies, but no rows. Its owner decides
who may read it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import BadData
from ..report.layout import Section, figure, table
from ..report.markup import Safe, join, tag
from ..report.numbers import count, is_finite, names, percent, significant
from ..report.page import assemble
from ..report.svg import Figure
from . import drawings
from .assessment import Risk, assess
from .hierarchies import NULL
from .result import AnonymizationResult

MOST_COMBINATIONS = 40
MOST_STEPS = 200
MOST_LABELS = 200
NOT_KNOWN = "not measured"


def render(subject: Risk | AnonymizationResult) -> str:
    """The page as text."""
    risk = _assess(subject)
    sections = [s for build in ALL if (s := build(risk))]
    how = (
        f"k-ambiguous, k = {risk.compatibility.published}"
        if risk.compatibility is not None
        else f"k = {risk.after.k}"
    )
    title = f"{count(risk.after.rows)} rows, {how if risk.after.rows else 'nothing published'}"
    facts = [
        f"{count(risk.original_rows)} rows before",
        f"quasi-identifiers {names(list(risk.quasi), 9)}",
        f"sensitive {names(list(risk.sensitive), 5)}" if risk.sensitive else "",
        f"method {risk.result.method}" if risk.result else "",
    ]
    stamps = []
    if risk.after.unique and risk.compatibility is None:
        stamps.append(
            tag(
                "p",
                tag("strong", f"NOT ANONYMOUS: {count(risk.after.unique)} rows are unique."),
                class_="stamp",
                role="alert",
            )
        )
    foot = "Written by tacit. This file contains no row of the tables and makes no network request."
    return assemble(title, join([tag("span", f) for f in facts if f]), stamps, sections, foot)


def _assess(subject: Risk | AnonymizationResult) -> Risk:
    if isinstance(subject, Risk):
        return subject
    if subject.original is None:
        raise BadData(
            "the report needs the original table, which this result does not contain. Use tacit.risk(before, "
            "anonymized).report(path)."
        )
    return assess(
        subject.original,
        subject.table,
        subject.quasi,
        subject.sensitive,
        hierarchies=subject.hierarchies,
        levels=subject.levels,
        result=subject,
    )


def _figures(*figures: Figure | None) -> Safe:
    return tag("div", [figure(f) for f in figures if f], class_="figures")


def _tile(name: str, value: str, more: str = "", warn: bool = False) -> Safe:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", value, tag("small", more) if more else None),
        class_="tile warn" if warn else "tile",
    )


def verdict(risk: Risk) -> Section:
    before, after = risk.before, risk.after
    if not after.rows:
        headline = "No row is published."
    elif risk.compatibility is not None:
        headline = (
            f"Every original is compatible with at least {count(risk.compatibility.published)} published "
            f"rows, every published row with at least {count(risk.compatibility.originals)} originals; "
            f"before, {percent(before.unique_share)} of the rows were unique."
        )
    elif after.unique:
        headline = (
            f"{percent(after.unique_share)} of the published rows are still unique; before, "
            f"{percent(before.unique_share)} were."
        )
    else:
        headline = (
            f"Every published row shares its quasi-identifiers with at least {count(after.k - 1)} "
            f"other{'s' if after.k != 2 else ''}; before, "
            f"{percent(before.unique_share)} of the rows were unique."
        )
    number = risk.utility.suppressed
    tiles = [
        _tile("k, the smallest class", count(after.k), f"before: {count(before.k)}", after.k < 2),
        _tile(
            "Highest prosecutor risk",
            percent(after.prosecutor.highest),
            f"before: {percent(before.prosecutor.highest)}",
        ),
        _tile(
            "Average prosecutor risk",
            percent(after.prosecutor.average, 2),
            f"before: {percent(before.prosecutor.average, 2)}",
        ),
        _tile(
            "Rows suppressed",
            count(number),
            f"{percent(number / risk.original_rows)} of {count(risk.original_rows)}",
        ),
        _tile(
            "Loss (granularity)",
            significant(risk.utility.granularity) if is_finite(risk.utility.granularity) else NOT_KNOWN,
            "0: the original, 1: all *",
        ),
    ]
    tiles += [
        _tile(f"l of {s.column}", count(s.distinct), f"t = {significant(s.t)}", s.distinct < 2)
        for s in after.sensitive
    ]
    body = join(
        [
            tag("p", headline, class_="headline"),
            tag("dl", tiles, class_="tiles"),
            *(tag("p", w, class_="warning") for w in risk.warnings),
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
    source = (
        f"by the estimator {risk.after.uniques_by}"
        if basis.startswith("estimated")
        else risk.after.uniques_by
    )
    note = tag(
        "p",
        f"Journalist and marketer: {basis}. Population uniques: {source}. Lower is better, except for "
        "precision and accuracy."
        + (
            " The marketer risk is estimated by Pitman's model; its bounds (at least, at most) hold for the "
            "expectation of every random sample."
            if risk.after.marketer_bounds is not None
            else ""
        ),
        class_="quiet",
    )
    body = table(
        ["measure", "before", "after"], rows, caption="Risk and utility of both tables.", sortable=False
    )
    return Section("table", "Before and after", join([body, note]))


def _cell(value: float, share: bool) -> str:
    if math.isnan(value):
        return NOT_KNOWN
    return percent(value, 2) if share else count(value) if value == round(value) else significant(value)


def sizes(risk: Risk) -> Section:
    return Section(
        "classes", "Class sizes and risk", _figures(drawings.class_sizes(risk), drawings.at_risk(risk))
    )


def singled_out(risk: Risk) -> Section:
    combinations = risk.rank_combinations()
    rows = [
        [
            r["columns"],
            count(r["unique before"]),
            count(r["minimal before"]),
            percent(r["risk before"], 2),
            count(r["unique after"]),
            percent(r["risk after"], 2),
        ]
        for r in combinations.head(MOST_COMBINATIONS).to_dict("records")
    ]
    most = max(len(c.columns) for c in risk.combinations[0])
    caption = f"Every set of up to {most} columns, those with the most minimal uniques first" + (
        f"; {count(MOST_COMBINATIONS)} of {count(len(combinations))}."
        if len(combinations) > MOST_COMBINATIONS
        else "."
    )
    note = tag(
        "p",
        "Minimal: rows that are unique on these columns and on no proper subset. Risk: the average "
        "probability of choosing the right row.",
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
    return Section("columns", "Which columns identify people", body)


def disclosure(risk: Risk) -> Section | None:
    if not risk.after.sensitive:
        return None
    rows = []
    for before, after in zip(risk.before.sensitive, risk.after.sensitive):
        for when, s in (("before", before), ("after", after)):
            rows.append(
                [
                    s.column,
                    when,
                    count(s.values),
                    count(s.distinct),
                    significant(s.entropy),
                    significant(s.t),
                    significant(s.t_ordered) if is_finite(s.t_ordered) else "not numeric",
                    count(s.homogeneous),
                ]
            )
    note = tag(
        "p",
        "k limits re-identification, not attribute disclosure. l: the smallest number of different values "
        "in a class; t: the largest distance between a class and the whole table; disclosing rows: rows of "
        "classes with a single value.",
        class_="quiet",
    )
    head = ["sensitive column", "", "values", "l", "entropy l", "t", "t, ordered", "disclosing rows"]
    return Section(
        "disclosure",
        "Attribute disclosure",
        join([table(head, rows, caption="Sensitive values by class.", sortable=False), note]),
    )


def utility(risk: Risk) -> Section | None:
    figures = [
        drawings.trade(risk.result, risk.original_rows) if risk.result else None,
        drawings.accuracy(risk),
    ]
    return Section("utility", "Utility and risk", _figures(*figures)) if any(figures) else None


def lattice(risk: Risk) -> Section | None:
    drawing = drawings.lattice(risk.result) if risk.result else None
    return Section("lattice", "The lattice", _figures(drawing)) if drawing else None


def suppressed(risk: Risk) -> Section | None:
    number = risk.utility.suppressed
    if not number:
        return None
    parts: list[Any] = [
        tag(
            "p",
            f"{count(number)} of {count(risk.original_rows)} rows ({percent(number / risk.original_rows)}) "
            f"are suppressed: {count(risk.original_rows - risk.after.rows - risk.after.suppressed)} are not "
            f"in the table, {count(risk.after.suppressed)} have * in every quasi-identifier.",
        )
    ]
    if risk.result is not None and risk.result.original is not None and risk.result.original.index.is_unique:
        # positions, since a label may identify a person
        positions = sorted(int(i) for i in risk.result.original.index.get_indexer(risk.result.suppressed))
        more = f" and {count(len(positions) - MOST_LABELS)} more" if len(positions) > MOST_LABELS else ""
        parts.append(
            tag(
                "details",
                tag("summary", "which rows"),
                tag(
                    "p",
                    "Rows of the original, counted from 1: "
                    + ", ".join(str(i + 1) for i in positions[:MOST_LABELS])
                    + more,
                    class_="quiet",
                ),
            )
        )
    return Section("suppressed", "Suppressed rows", join(parts))


def trace(risk: Risk) -> Section | None:
    steps = list(risk.result.trace) if risk.result else []
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
    if risk.result is None or not risk.result.hierarchies:
        return None
    rows = []
    for column in risk.result.quasi:
        hierarchy = risk.result.hierarchies.get(column)
        if hierarchy is None:
            continue
        level = risk.result.levels.get(column)
        paths = [" → ".join(_label(w) for w in path) for path in _examples(list(zip(*hierarchy.levels)))]
        rows.append(
            [
                column,
                count(len(hierarchy)),
                " → ".join(count(len(set(words))) for words in hierarchy.levels),
                "differs by cell" if level is None else f"{level} of {hierarchy.height}",
                join([tag("small", p) for p in paths]),
            ]
        )
    head = ["column", "values", "words at each level", "level used", "examples"]
    settings = [(k, v) for k, v in risk.result.settings.items() if isinstance(v, str | int | float)]
    facts = tag("dl", [(tag("dt", k), tag("dd", v)) for k, v in settings], class_="facts")
    return Section(
        "hierarchies",
        "Hierarchies and settings",
        join([table(head, rows, caption="The words of a value, level by level.", sortable=False), facts]),
    )


def _examples(paths: Sequence[Any]) -> list[Any]:
    return [paths[i] for i in sorted({0, len(paths) // 2, len(paths) - 1})]


def _label(word: str) -> str:
    return "(null)" if word == NULL else word or "(empty)"


ALL = (
    verdict,
    before_and_after,
    sizes,
    singled_out,
    disclosure,
    utility,
    lattice,
    suppressed,
    trace,
    hierarchies,
)
