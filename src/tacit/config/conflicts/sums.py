"""What the server combines, of whom, and what a hidden sum would not hide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...aggregate import Best, Mean
from ...algorithms import IFCA, FedNova
from ...guard import Noise, Quantize, Sparsify
from ...selection import PowerOfChoice
from .entry import Conflict, has_noise, hiding_stage, name_of

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan

FINE_BITS = 24  # a grid on which one over a thousand steps is still a number of its own


def aggregation(p: Plan) -> Iterator[Conflict]:
    name = name_of(p.aggregate)
    if isinstance(p.aggregate, Best) and not p.algorithm.scores:
        yield Conflict(
            "aggregate",
            f"Best selects by the scores that parties send, and parties of {name_of(p.algorithm)} send none",
            "Use algorithms.FedPSO, or another rule.",
        )
    if p.topology is not None and p.aggregate.works_on_models:
        yield Conflict(
            "aggregate",
            f"{name} needs one server that has every party's model",
            "Leave out topology, or use another rule.",
        )
    if p.topology is not None and p.aggregate.remembers:
        yield Conflict(
            "aggregate",
            f"{name} remembers what one server received in earlier rounds",
            "Leave out topology, or use another rule.",
        )
    if p.aggregate != Mean() and (p.guard or p.pace is not None):
        option, what = ("guard", "its stages work") if p.guard else ("pace", f"{name_of(p.pace)} works")
        yield Conflict(
            option,
            f"{what} on a sum of updates, and {name} computes something else from them",
            "Aggregate with Mean, or leave it out.",
        )


def too_few_updates(p: Plan) -> Iterator[Conflict]:
    """A rule that needs more parties than a round, or an edge, has: the rule itself raises."""
    p.aggregate.check_parties(p.update_counts())
    yield from ()


def single_updates(p: Plan) -> Iterator[Conflict]:
    """A rule or an algorithm that must see single updates."""
    hiding = hiding_stage(p)
    if hiding is not None:
        remedies = (
            (p.aggregate, "find outliers", "Aggregate with Mean"),
            (p.algorithm, "tell which parties are similar", "Use another algorithm"),
        )
        for component, why, remedy in remedies:
            if component.sees_each:
                yield Conflict(
                    "guard",
                    f"{name_of(hiding)} hides each update from the server, and {name_of(component)} must see "
                    "each "
                    f"of them to {why}",
                    f"{remedy}, or leave the updates unhidden.",
                )
    others = (("guard", p.guard), ("pace", p.pace), ("topology", p.topology), ("select", p.select))
    option = next((name for name, value in others if value), None)
    if p.algorithm.sees_each and option:
        yield Conflict(
            option,
            f"{name_of(p.algorithm)} clusters the parties by what each of them sends to one server, in "
            "synchronous rounds",
            f"Leave out {option}, or use another algorithm.",
        )


def division(p: Plan) -> Iterator[Conflict]:
    """A server that divides by a mean of what parties send needs it to arrive, however small it is."""
    if not p.algorithm.divides:
        return
    nova = isinstance(p.algorithm, FedNova)
    how, other = (" (tau='harmonic')", "tau='mean'") if nova else ("", "another algorithm")
    for stage in p.guard:
        if isinstance(stage, Noise):
            why = "may bring that near zero or below"
        elif isinstance(stage, Sparsify):
            why = "may leave that out"
        elif isinstance(stage, Quantize) and nova and stage.bits < FINE_BITS:
            why = f"with {stage.bits} bits may round that to zero"
        else:
            continue
        more = f", or bits={FINE_BITS}" if isinstance(stage, Quantize) else f", or leave {name_of(stage)} out"
        yield Conflict(
            "guard",
            f"the server of {name_of(p.algorithm)} divides by a mean of what parties send{how}, and "
            f"{name_of(stage)} {why}, so that the model diverges",
            f"Use {other}{more}.",
        )


def selection(p: Plan) -> Iterator[Conflict]:
    if p.select is None:
        return
    name, hiding = name_of(p.select), hiding_stage(p)
    asks_losses = isinstance(p.select, PowerOfChoice)
    if has_noise(p):
        yield Conflict(
            "guard",
            f"Noise assumes that parties are drawn independently of their data, and {name} is not",
            "Leave one of the two out.",
        )
    if asks_losses and hiding is not None:
        yield Conflict(
            "guard",
            f"{name_of(hiding)} hides what each party sends, and {name} asks each party for its loss in the "
            "clear",
            "Use BySize, or leave one of the two out.",
        )
    if asks_losses and p.private is not None:
        yield Conflict(
            "private",
            f"{name} asks parties for the losses of their rows, which no noise covers",
            "Use BySize.",
        )
    if p.sampling != "fixed" or p.pace is not None or p.topology is not None:
        yield Conflict(
            "select",
            f"{name} is for synchronous rounds with one server and sampling='fixed'",
            "Leave it out here.",
        )
    # real parties are timed
    if p.select.needs_speed and p.speed is None and p.runtime in ("cohort", "inprocess"):
        yield Conflict(
            "select",
            f"{name} needs to know how long parties take",
            "Give speed, such as speeds.Lognormal().",
        )
    if p.select.fills and p.asked_per_round is None:
        yield Conflict(
            "select",
            f"{name} chooses the participants of a round, and without per_round everyone takes part",
            "Give per_round.",
        )
    if asks_losses and p.asked_per_round is not None and p.select.candidates < p.asked_per_round:
        yield Conflict(
            "select",
            f"PowerOfChoice has candidates={p.select.candidates}, fewer than the {p.asked_per_round} parties "
            "of a round (per_round)",
            "With as many it equals BySize; with more, those with the largest losses are chosen.",
        )


def sampling(p: Plan) -> Iterator[Conflict]:
    hiding = hiding_stage(p)
    if hiding is not None and p.real_sampling == "poisson":
        yield Conflict(
            "guard",
            f"{name_of(hiding)} needs to know how many parties take part in a round, and by Poisson sampling "
            "nobody does",
            "Use sampling='fixed'.",
        )
    words = {
        "everyone": "everyone takes part in every round",
        "poisson": "each client takes part with a probability of its own (Poisson)",
        "fixed": "a fixed number of clients is drawn without replacement",
    }
    for noise in (stage for stage in p.guard if isinstance(stage, Noise)):
        if noise.sampling not in ("as run", p.real_sampling):
            yield Conflict(
                "guard",
                f"Noise assumes that {words[noise.sampling]}, and in this run {words[p.real_sampling]}; its "
                "ε "
                "would be that of another run",
                "Set train's sampling and per_round to what you assume, or leave Noise's sampling out.",
            )


def hidden_sums(p: Plan) -> Iterator[Conflict]:
    """What a hidden sum would not hide."""
    hiding = hiding_stage(p)
    if hiding is None:
        return
    name = name_of(p.algorithm)
    if isinstance(p.algorithm, IFCA):
        yield Conflict(
            "guard",
            f"{name_of(hiding)} hides single updates in a sum, and in the sum of {name} each cluster has its "
            "own "
            "place, so that a cluster with one party shows its update",
            "Use another algorithm, or leave the guard out.",
        )
    if p.runtime == "parties" and hiding.max_rows is None and p.weights_hidden:
        yield Conflict(
            "guard",
            f"{name_of(hiding)} hides how many rows a party has, and its weight is a share of a number that "
            "all "
            "parties agree on",
            f"Give {name_of(hiding)} max_rows, such as max_rows = 10000; a party with more rows is counted "
            "as having max_rows. Or use an algorithm with weighted = false.",
        )
    if hiding.adversary != "active":
        return
    if p.algorithm.client_state(torch.zeros(1)) or p.algorithm.own_buffers:
        yield Conflict(
            "guard",
            f"clients of {name} keep state from round to round, and an active server could prepare it so "
            "that "
            "all updates but one are known",
            "Use FedAvg or another algorithm without client state, or adversary='curious'.",
        )
    for stage in p.guard:
        settings = (
            ("feedback", stage.feedback),
            ("quantile", stage.quantile),
        )
        for setting, value in settings:
            if value:
                yield Conflict(
                    "guard",
                    f"{name_of(stage)} depends on what a server sent before, which an active server chooses",
                    f"Leave out {setting}, or use adversary='curious'.",
                )


def adversaries(p: Plan) -> Iterator[Conflict]:
    if p.adversaries and (p.guard or p.pace is not None or p.runtime != "cohort"):
        yield Conflict(
            "adversaries",
            "malicious parties are simulated in synchronous rounds of the cohort runtime, before any guard, "
            "whose stages a malicious party would not apply",
            "Leave out guard and pace, and use runtime='cohort'.",
        )
