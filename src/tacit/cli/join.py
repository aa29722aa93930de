"""tacit join: sums and counts over people whom several parties have, between real parties or with all of them
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .verbs import FILE, KIT, PATIENCE, PROCESSES, READING, WAIT, Answer, answer, arg
from .vertical import run_vertical_job


def add(verb: Callable[..., Any]) -> None:
    verb(
        "join",
        _join,
        "Sum and count over the people whom several parties have, on secret shares; no figure is about fewer "
        "people than the minimum.",
        arg("job", help="a job file (TOML) with [join] and [parties.NAME], the same at all parties"),
        KIT,
        FILE,
        arg(
            "--out",
            metavar="DIR",
            help="the folder of the figures (default: part in the kit); without a kit, one for all parties",
        ),
        *READING,
        PROCESSES,
        WAIT,
        PATIENCE,
    )


def _join(args: Any) -> Answer:
    from ..jobs.vertical import join_deployed

    value = run_vertical_job(args, "join", join_deployed, "figures")
    return answer(value, _lines(value))


def _lines(value: dict[str, Any]) -> Iterable[str]:
    yield from (f"note    {note}" for note in value["notes"])
    if value["people"] is not None:
        yield f"people  {value['people']} shared"
    for question in value["answers"]:
        if question["what"] in ("describe", "regress"):
            yield from _moments(question)
            continue
        if question["what"] == "boost":
            trees, name = question["trees"], question["name"]
            grown = "not grown (too few people)" if trees is None else f"{trees} trees, {question['folder']}"
            yield f"{name}: boost: {grown}"
            continue
        for group, people, figures in zip(question["groups"], question["people"], question["figures"]):
            limits = [f" above {t:g}" for t in question["above"]] or [""]
            for limit, figure in zip(limits, figures):
                place = (
                    "" if question["by"] is None else f", {question['by']} {group} ({people or 'few'} people)"
                )
                shown = "not shown (too few people)" if figure is None else _text(figure)
                yield f"{question['name']}: {question['what']}{limit}{place}: {shown}"
    if value["folder"]:
        yield f"figures {value['folder']}"


def _text(figure: float | bool) -> str:
    return ("no", "yes")[figure] if isinstance(figure, bool) else f"{figure:,.10g}"


def _moments(question: dict[str, Any]) -> Iterable[str]:
    name, people = question["name"], question["people"]
    if people is None:
        yield f"{name}: {question['what']}: not shown (too few people)"
        return
    rows = question.get("columns") or question["terms"]
    for row, values in rows.items():
        yield f"{name}: {row}: " + ", ".join(f"{key} {value:.6g}" for key, value in values.items())
    if "r2" in question:
        yield f"{name}: {people} people, R² {question['r2']:.4f}"
    if "loglik" in question:
        found = "" if question["converged"] else "; NOT CONVERGED"
        yield f"{name}: {people} people, log-likelihood {question['loglik']:.6g}{found}"
