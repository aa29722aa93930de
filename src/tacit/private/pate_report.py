"""The report of a student and its teachers: one HTML file, in which stands nothing that the noise was to
hide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..accounting.votes import gaussian_votes_epsilon
from ..report.markup import Safe, join, tag
from ..report.numbers import count, percent, significant
from ..report.page import assemble, write_page
from ..report.sections import Section, figure, table
from ..report.svg import Axis, Figure, Series, bars, plot
from .pate import UNANSWERED

POINTS = 60  # of a curve: enough for the eye


def write(taught: Any, path: Path) -> Path:
    """`taught` is what tacit.pate gave back."""
    return write_page(path, render(taught))


def render(taught: Any) -> str:
    job = taught.config
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
                f"{count(len(taught.labels))} questions",
                f"δ = {taught.delta:g}",
            )
        ]
    )
    stamps = [tag("p", tag("strong", s), class_="stamp", role="alert") for s in taught.ledger.stamps]
    return assemble(
        title,
        facts,
        stamps,
        [_verdict(taught), _curves(taught), _ledger(taught), _notes(taught)],
        "Made by tacit. This file holds no vote and no data-dependent ε, and makes no network request.",
    )


def _tile(name: str, value: str, more: str = "") -> Safe:
    return tag("div", tag("dt", name), tag("dd", value, tag("small", more) if more else None), class_="tile")


def _verdict(taught: Any) -> Section:
    m = taught.metrics
    head = f"Each teacher's data is protected with ε = {significant(taught.epsilon)} at δ = {taught.delta:g}"
    head += (
        f"; the student is right on {percent(m['accuracy'], 2)} of the test rows." if "accuracy" in m else "."
    )
    tiles = [
        _tile("ε", significant(taught.epsilon), f"δ = {taught.delta:g}"),
        _tile(
            "Questions answered",
            count(int((taught.labels != UNANSWERED).sum())),
            f"{percent(taught.answered)} of {count(len(taught.labels))}",
        ),
    ]
    tiles += [
        _tile(name, percent(m[key], 2))
        for key, name in (("accuracy", "Student's accuracy"), ("label_accuracy", "Answers that are right"))
        if key in m
    ]
    return Section(
        "verdict", "Verdict", join([tag("p", head, class_="headline"), tag("dl", tiles, class_="tiles")])
    )


def _curves(taught: Any) -> Section:
    drawn = [d for d in (_accuracy(taught), _spending(taught), _classes(taught)) if d]
    return Section(
        "answers", "Answers and what they cost", tag("div", [figure(d) for d in drawn], class_="figures")
    )


def _accuracy(taught: Any) -> Figure | None:
    """The student after each run on these rows, by the ε of all of them together."""
    known = [h for h in taught.history if "accuracy" in h]
    if not known:
        return None
    return plot(
        "Accuracy against ε",
        [Series("student", [h["epsilon"] for h in known], [h["accuracy"] for h in known], "c0")],
        Axis("ε of all answers so far"),
        Axis("accuracy"),
        joined=len(known) > 1,
    )


def _spending(taught: Any) -> Figure:
    """The data-independent ε after each question. It follows from which questions were answered, and from
    nothing else.
    """
    answered = np.cumsum(taught.labels != UNANSWERED)
    n = len(taught.labels)
    places = np.unique(np.linspace(1, n, min(n, POINTS)).astype(int))
    total, last = taught.price, (n, int(answered[-1]))
    check, each = prices(taught.config, total, last)
    eps = [gaussian_votes_epsilon(check * int(k) + each * int(answered[k - 1]), taught.delta) for k in places]
    return plot(
        "ε by the questions asked",
        [Series("ε, whatever the votes", [int(k) for k in places], eps, "c0")],
        Axis("questions"),
        Axis("ε"),
    )


def prices(job: dict[str, Any], total: float, last: tuple[int, int]) -> tuple[float, float]:
    """(what a question costs, what an answer costs) over the order, so that all of them cost `total`."""
    (asked, answered), aggregator = last, job["aggregator"]
    if aggregator["name"] != "ConfidentGNMax":
        return 0.0, total / max(answered, 1)
    ratio = (aggregator["sigma2"] / aggregator["sigma1"]) ** 2 / (
        1 if job["pate"]["noise"] == "teachers" else 2
    )
    each = total / (ratio * asked + answered)
    return ratio * each, each


def _classes(taught: Any) -> Figure | None:
    sure = taught.labels[taught.labels != UNANSWERED]
    kinds, many = np.unique(sure, return_counts=True)
    return (
        bars("Answers by class", [str(k) for k in kinds], [int(n) for n in many], count)
        if len(kinds)
        else None
    )


def _ledger(taught: Any) -> Section:
    spent = [
        [s.mechanism, significant(s.epsilon), f"{s.delta:g}", s.unit, s.adversary, s.note]
        for s in taught.ledger.spent
    ]
    parts = [
        table(
            ["mechanism", "ε", "δ", "protects each", "against", "note"],
            spent,
            caption="Differential privacy spent.",
            sortable=False,
        )
    ]
    seen = [[s.party, s.sender, s.kind, s.reveals, s.how, count(s.count)] for s in taught.ledger.seen]
    parts.append(
        table(
            ["who saw", "from", "message", "what it reveals", "how", "times"],
            seen,
            caption="Messages between parties.",
        )
        if seen
        else tag("p", "All teachers were in one place; no party sent anything.", class_="quiet")
    )
    return Section("ledger", "What was spent, and who saw what", join(parts))


def _notes(taught: Any) -> Section:
    said = [
        *taught.notes,
        "An ε computed from the votes is smaller, and as private as they are: it is not in this file.",
    ]
    return Section("notes", "Notes", tag("ul", [tag("li", n) for n in said]))
