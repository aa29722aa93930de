"""PATE among real parties.

Each teacher trains in its own process on its own rows, and votes meet only in a secure sum.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import models
from ...accounting import discrete, distributed_multiplier
from ...data.federation import Federation
from ...parameters import bad, check, from_table, to_table
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...private.pate import UNANSWERED, Aggregator, ConfidentGNMax, GNMax, exact_fraction
from ...private.pate_student import Lessons
from ...protocols import votes
from ...protocols.secagg import SecAggTerms
from ...runtimes.processes import Processes
from . import teachers

TAIL = 14  # standard deviations; larger draws have probability below 10⁻⁴²
SERVER = "server"


@dataclass(frozen=True)
class VoteOutcome:
    """The result of the secure counting.

    `counts` are those the server saw without noise; None if they include the teachers' noise.
    """

    labels: np.ndarray
    counts: np.ndarray | None
    included: tuple[str, ...]


def noise_variances(aggregator: Aggregator, terms: SecAggTerms) -> list[Fraction]:
    """Return the variance of each teacher's noise, one for each count.

    Any `terms.enough` teachers together add σ².
    """
    match aggregator:
        case GNMax():
            sigmas = [aggregator.sigma]
        case ConfidentGNMax():
            sigmas = [aggregator.sigma1, aggregator.sigma2]
        case _:
            raise bad(
                "pate",
                "noise",
                "teachers",
                f"'server' with {type(aggregator).__name__}",
                "A sum of Laplace noise is not Laplace noise; use GNMax or ConfidentGNMax.",
            )
    return [exact_fraction(s) ** 2 / terms.enough for s in sigmas]


def effective_aggregator(aggregator: Aggregator, terms: SecAggTerms, classes: int) -> Aggregator:
    """Return the aggregator whose price is that of the teachers' joint noise.

    A sum of discrete Gaussians is not exactly a discrete Gaussian (Kairouz, Liu, Steinke 2021).
    """

    def sigma(variance: Fraction) -> float:
        each = math.sqrt(variance)
        return math.sqrt(2) * distributed_multiplier(
            math.sqrt(terms.enough) * each / math.sqrt(2), each, terms.enough, classes
        )

    sigmas = [sigma(v) for v in noise_variances(aggregator, terms)]
    return (
        GNMax(sigmas[0])
        if isinstance(aggregator, GNMax)
        else replace(aggregator, sigma1=sigmas[0], sigma2=sigmas[1])  # type: ignore[type-var]
    )


def make_terms(fed: Federation, aggregator: Aggregator, threshold: float, split: bool) -> SecAggTerms:
    """Return the terms of secure aggregation; the length is set for each count."""
    if len(fed) < 2:
        raise bad(
            "pate", "teachers", len(fed), "at least 2 if votes are summed: the sum of one vote is that vote"
        )
    terms = check(SecAggTerms(f"pate of {fed.name}", len(fed), 1, 1, threshold))
    bound = 1 + (math.ceil(TAIL * math.sqrt(max(noise_variances(aggregator, terms)))) if split else 0)
    return replace(terms, bound=bound)


async def teacher(
    me: Party,
    x: Tensor,
    y: Tensor,
    classes: int,
    names: list[str],
    model: dict[str, Any],
    lessons: dict[str, Any],
    seed: int,
    terms: dict[str, Any],
    variances: list[tuple[int, int]],
    boss: str = SERVER,
) -> int:
    """Run a teacher: train on its own rows, which never leave it, then vote."""
    ensemble = teachers.train(
        teachers.single_party(x, y, me.name, classes),
        from_table(model, models.ALL, "model"),
        Lessons(**lessons),
        seed,
        "cpu",
        tuple(names),
    )

    def noise(count: int, n: int) -> Tensor:
        return torch.from_numpy(discrete.gaussian(Fraction(*variances[count]), n, me.secret.bytes))

    return await votes.teacher(
        me,
        lambda rows: ensemble.choices(rows)[0],
        SecAggTerms(**terms),
        classes,
        noise if variances else None,
        boss,
    )


async def asker(
    me: Party,
    rows: Tensor,
    names: list[str],
    classes: int,
    terms: dict[str, Any],
    least: int | None,
    within: float | None,
    first: float | None,
) -> list[tuple[Tensor, Tensor, list[str]]]:
    """Run the server that asks the queries.

    `least`: the noisy votes that a query needs to be counted again; None: every query is counted once.
    """
    again = [] if least is None else [lambda counts: counts.max(1).values >= least]
    results = await votes.asker(me, names, rows, SecAggTerms(**terms), classes, again, within, first)
    return [(which, counts, list(included)) for which, counts, included in results]


def collect_votes(
    fed: Federation,
    rows: Tensor,
    aggregator: Aggregator,
    model: Any,
    lessons: Lessons,
    seed: int,
    runtime: Any,
    ledger: Ledger,
    split: bool,
    threshold: float,
    within: float | None,
) -> VoteOutcome:
    """Run all programs, and derive labels from the counts."""
    if type(model) not in models.ALL.values() and not isinstance(model, str):
        raise bad(
            "pate",
            "model",
            models.name_of(model),
            "one of " + ", ".join(map(repr, models.ALL)) + " if teachers are parties",
            "No code is sent to other processes, so your own module cannot be used there.",
        )
    classes, names = fed.classes or 1, list(fed.parties)
    if SERVER in names:
        raise bad("pate", "the name of a party", SERVER, "another name: the server has this name")
    spec = (
        {"name": model}
        if isinstance(model, str)
        else {**to_table(model), "name": next(k for k, v in models.ALL.items() if v is type(model))}
    )
    terms = make_terms(fed, aggregator, threshold, split)
    terms_table = {
        "federation": terms.federation,
        "parties": terms.parties,
        "length": 1,
        "bound": terms.bound,
        "threshold": terms.threshold,
    }
    variances = [(v.numerator, v.denominator) for v in noise_variances(aggregator, terms)] if split else []
    lessons_table = {"epochs": lessons.epochs, "lr": lessons.lr, "batch_size": lessons.batch_size}
    programs: dict[str, Any] = {}
    for k, name in enumerate(names):
        mine = fed.train.of(k)
        programs[name] = functools.partial(
            teacher,
            x=fed.rows.matrix("pate")[mine],
            y=fed.rows.y[mine],
            classes=classes,
            names=names,
            model=spec,
            lessons=lessons_table,
            seed=seed,
            terms=terms_table,
            variances=variances,
        )
    two_stages = split and isinstance(aggregator, ConfidentGNMax)
    least = math.ceil(aggregator.threshold) if two_stages else None  # type: ignore[attr-defined]
    programs[SERVER] = functools.partial(
        asker,
        rows=rows,
        names=names,
        classes=classes,
        terms=terms_table,
        least=least,
        within=within,
        first=None,
    )
    options = (
        {"may_leave": names} if isinstance(runtime, Processes) else {}
    )  # with a deadline, a teacher may drop out
    results = runtime.run_sync(programs, ledger=ledger, **options)[SERVER]
    which, counts, included = results[-1]
    counts_array = np.asarray(counts)
    if not split:
        return VoteOutcome(aggregator.decide(counts_array, os.urandom), counts_array, tuple(included))
    labels = np.full(len(rows), UNANSWERED)
    if not two_stages or len(results) == 2:
        labels[np.asarray(which)] = counts_array.argmax(1)
    return VoteOutcome(labels, None, tuple(included))
