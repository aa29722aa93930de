"""Teachers that are real parties: each trains in its own process on its own rows, and their votes meet only
in a secure sum.
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
from ...private.pate import UNANSWERED, Aggregator, ConfidentGNMax, GNMax, exact
from ...private.pate_student import Lessons
from ...protocols import votes
from ...protocols.secagg import SecAggTerms
from ...runtimes.processes import Processes
from . import teachers

FAR = 14  # deviations: beyond them lies less than one draw in 10⁴²
ASKER = "server"


@dataclass(frozen=True)
class Heard:
    """What came out of the secure counting. `counts` are those the asker saw without noise; None where the
    teachers' noise was in them.
    """

    labels: np.ndarray
    counts: np.ndarray | None
    included: tuple[str, ...]


def shares(aggregator: Aggregator, terms: SecAggTerms) -> list[Fraction]:
    """The variance of each teacher's noise, one for each count: any `terms.enough` of them carry σ²
    together.
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
                "A sum of Laplace parts is not Laplace noise; GNMax and ConfidentGNMax can be added up.",
            )
    return [exact(s) ** 2 / terms.enough for s in sigmas]


def worth(aggregator: Aggregator, terms: SecAggTerms, classes: int) -> Aggregator:
    """The aggregator whose price is that of the teachers' noise together: a sum of discrete Gaussians is not
    quite one (Kairouz, Liu, Steinke 2021).
    """

    def sigma(variance: Fraction) -> float:
        each = math.sqrt(variance)
        return math.sqrt(2) * distributed_multiplier(
            math.sqrt(terms.enough) * each / math.sqrt(2), each, terms.enough, classes
        )

    found = [sigma(v) for v in shares(aggregator, terms)]
    return (
        GNMax(found[0])
        if isinstance(aggregator, GNMax)
        else replace(aggregator, sigma1=found[0], sigma2=found[1])  # type: ignore[type-var]
    )


def agreed(fed: Federation, aggregator: Aggregator, threshold: float, split: bool) -> SecAggTerms:
    """What all parties of the counting agree on. The length is set for each count."""
    if len(fed) < 2:
        raise bad(
            "pate", "teachers", len(fed), "at least 2 where votes are summed: the sum of one is that vote"
        )
    terms = check(SecAggTerms(f"pate of {fed.name}", len(fed), 1, 1, threshold))
    bound = 1 + (math.ceil(FAR * math.sqrt(max(shares(aggregator, terms)))) if split else 0)
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
    boss: str = ASKER,
) -> int:
    """A teacher's program: it learns from its own rows, which never leave it, then votes."""
    mine = teachers.train(
        teachers.alone(x, y, me.name, classes),
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
        lambda rows: mine.choices(rows)[0],
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
    """The asker's program. `least`: the noisy votes a question must reach to be counted again; None: every
    question is counted once.
    """
    again = [] if least is None else [lambda counts: counts.max(1).values >= least]
    done = await votes.asker(me, names, rows, SecAggTerms(**terms), classes, again, within, first)
    return [(which, counts, list(included)) for which, counts, included in done]


def count(
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
) -> Heard:
    """Run the programs and make labels of what the asker heard."""
    if type(model) not in models.ALL.values() and not isinstance(model, str):
        raise bad(
            "pate",
            "model",
            models.name_of(model),
            "one of " + ", ".join(map(repr, models.ALL)) + " where teachers are parties",
            "A process is sent no code, so a module of your own cannot go there.",
        )
    classes, names = fed.classes or 1, list(fed.parties)
    if ASKER in names:
        raise bad("pate", "the name of a party", ASKER, "another: the asker has this name among the messages")
    spec = (
        {"name": model}
        if isinstance(model, str)
        else {**to_table(model), "name": next(k for k, v in models.ALL.items() if v is type(model))}
    )
    terms = agreed(fed, aggregator, threshold, split)
    told = {
        "federation": terms.federation,
        "parties": terms.parties,
        "length": 1,
        "bound": terms.bound,
        "threshold": terms.threshold,
    }
    variances = [(v.numerator, v.denominator) for v in shares(aggregator, terms)] if split else []
    how = {"epochs": lessons.epochs, "lr": lessons.lr, "batch_size": lessons.batch_size}
    programs: dict[str, Any] = {}
    for k, name in enumerate(names):
        mine = fed.train.of(k)
        programs[name] = functools.partial(
            teacher,
            x=fed.rows.x[mine],
            y=fed.rows.y[mine],
            classes=classes,
            names=names,
            model=spec,
            lessons=how,
            seed=seed,
            terms=told,
            variances=variances,
        )
    twice = split and isinstance(aggregator, ConfidentGNMax)
    least = math.ceil(aggregator.threshold) if twice else None  # type: ignore[attr-defined]
    programs[ASKER] = functools.partial(
        asker, rows=rows, names=names, classes=classes, terms=told, least=least, within=within, first=None
    )
    able = (
        {"may_leave": names} if isinstance(runtime, Processes) else {}
    )  # with a deadline, a teacher that is killed is done without
    done = runtime.run_sync(programs, ledger=ledger, **able)[ASKER]
    which, counts, included = done[-1]
    heard = np.asarray(counts)
    if not split:
        return Heard(aggregator.decide(heard, os.urandom), heard, tuple(included))
    labels = np.full(len(rows), UNANSWERED)
    if not twice or len(done) == 2:
        labels[np.asarray(which)] = heard.argmax(1)
    return Heard(labels, None, tuple(included))
