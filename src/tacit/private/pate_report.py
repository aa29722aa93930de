"""The HTML report of PATE: one file without anything that the noise protects."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..accounting.votes import gaussian_votes_epsilon
from ..report.layout import Section, grid, table, tile
from ..report.markup import join, tag
from ..report.numbers import count, percent, significant
from ..report.page import assemble
from ..report.svg import Axis, Figure, Series, bars, plot
from .pate import UNANSWERED

POINTS = 60  # of a curve


def render(result: Any) -> str:
    """Render the report of a `PateResult` as HTML."""
    job = result.config
    title = (
        f"A student of {count(job['pate']['teachers'])} teachers on {job['data']['name']}"
        if "name" in job["data"]
        else "A student of many teachers"
    )
    facts = join(
        [
            tag("span", f)
            for f in (
                f"aggregator {job['aggregator']['name']}",
                f"{count(len(result.labels))} queries",
                f"δ = {result.delta:g}",
            )
        ]
    )
    stamps = [tag("p", tag("strong", s), class_="stamp", role="alert") for s in result.ledger.stamps]
    return assemble(
        title,
        facts,
        stamps,
        [_verdict(result), _curves(result), _ledger(result), _notes(result)],
        "Made by tacit. This file contains no votes and no data-dependent ε, and makes no network request.",
    )


def _verdict(result: Any) -> Section:
    m = result.metrics
    head = f"Each teacher's data is protected with ε = {significant(result.epsilon)} at δ = {result.delta:g}"
    head += (
        f"; the student classifies {percent(m['accuracy'], 2)} of the test rows correctly."
        if "accuracy" in m
        else "."
    )
    tiles = [
        tile("ε", significant(result.epsilon), f"δ = {result.delta:g}"),
        tile(
            "Queries answered",
            count(int((result.labels != UNANSWERED).sum())),
            f"{percent(result.answered)} of {count(len(result.labels))}",
        ),
    ]
    tiles += [
        tile(name, percent(m[key], 2))
        for key, name in (("accuracy", "Student's accuracy"), ("label_accuracy", "Correct answers"))
        if key in m
    ]
    return Section(
        "verdict", "Verdict", join([tag("p", head, class_="headline"), tag("dl", tiles, class_="tiles")])
    )


def _curves(result: Any) -> Section:
    figures = grid([_accuracy(result), _spending(result), _classes(result)])
    return Section("answers", "Answers and what they cost", join([figures]))


def _accuracy(result: Any) -> Figure | None:
    """Plot the student's accuracy after each run on these rows, by their total ε."""
    known = [h for h in result.history if "accuracy" in h]
    if not known:
        return None
    return plot(
        "Accuracy vs. ε",
        [Series("student", [h["epsilon"] for h in known], [h["accuracy"] for h in known], "c0")],
        Axis("ε of all answers so far"),
        Axis("accuracy"),
        joined=len(known) > 1,
    )


def _spending(result: Any) -> Figure:
    """Plot the data-independent ε after each query.

    It depends on which queries were answered, and on nothing else.
    """
    answered = np.cumsum(result.labels != UNANSWERED)
    n = len(result.labels)
    places = np.unique(np.linspace(1, n, min(n, POINTS)).astype(int))
    check, each = split_price(result.config, result.price, (n, int(answered[-1])))
    eps = [gaussian_votes_epsilon(check * int(k) + each * int(answered[k - 1]), result.delta) for k in places]
    return plot(
        "ε by number of queries",
        [Series("ε, independent of the votes", [int(k) for k in places], eps, "c0")],
        Axis("queries"),
        Axis("ε"),
    )


def split_price(job: dict[str, Any], total: float, last: tuple[int, int]) -> tuple[float, float]:
    """Return (cost per query, cost per answer), divided by the order.

    All queries and answers together cost `total`.
    """
    (queries, answers), aggregator = last, job["aggregator"]
    if aggregator["name"] != "ConfidentGNMax":
        return 0.0, total / max(answers, 1)
    ratio = (aggregator["sigma2"] / aggregator["sigma1"]) ** 2 / (
        1 if job["pate"]["noise"] == "teachers" else 2
    )
    each = total / (ratio * queries + answers)
    return ratio * each, each


def _classes(result: Any) -> Figure | None:
    kinds, many = np.unique(result.labels[result.labels != UNANSWERED], return_counts=True)
    return (
        bars("Answers by class", [str(k) for k in kinds], [int(n) for n in many], count)
        if len(kinds)
        else None
    )


def _ledger(result: Any) -> Section:
    spent = [
        [s.mechanism, significant(s.epsilon), f"{s.delta:g}", s.unit, s.adversary, s.note]
        for s in result.ledger.spent
    ]
    parts = [
        table(
            ["mechanism", "ε", "δ", "protects each", "against", "note"],
            spent,
            caption="Privacy budget spent.",
            sortable=False,
        )
    ]
    lines = [[s.party, s.sender, s.kind, s.reveals, s.how, count(s.count)] for s in result.ledger.seen]
    parts.append(
        table(
            ["who saw", "from", "message", "what it reveals", "how", "times"],
            lines,
            caption="Messages between parties.",
        )
        if lines
        else tag("p", "All teachers were in one process; no messages were sent.", class_="quiet")
    )
    return Section("ledger", "What was spent, and who saw what", join(parts))


def _notes(result: Any) -> Section:
    notes = [
        *result.notes,
        "An ε computed from the votes is smaller, but as private as they are; it is not in this file.",
    ]
    return Section("notes", "Notes", tag("ul", [tag("li", n) for n in notes]))
