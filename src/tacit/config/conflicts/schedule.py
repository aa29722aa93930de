"""When parties answer, and to whom: pace, speed and topology."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...aggregate import Mean
from ...guard import Noise
from ...pace import SAFA
from ...topologies import Gossip, Hierarchy
from .entry import Conflict, has_noise, hiding_stage, name_of

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan


def pace(p: Plan) -> Iterator[Conflict]:
    if p.pace is None:
        return
    name, algorithm = name_of(p.pace), name_of(p.algorithm)
    if p.algorithm.client_state(torch.zeros(1)):
        yield Conflict(
            "pace",
            f"the clients of {algorithm} keep state from round to round, and {name} has no rounds: work may "
            "be "
            "abandoned, and the model moves on in between",
            "Use an algorithm without client state, such as FedAvg or FedProx, or no pace.",
        )
    if not p.algorithm.scales:
        yield Conflict(
            "pace",
            f"{name} gives old updates less weight, and an update of {algorithm} cannot be scaled",
            "Use FedAvg or FedProx, or no pace.",
        )
    if p.sampling != "fixed":
        yield Conflict("sampling", f"{name} asks whichever party is free", "Use sampling='fixed'.")
    if isinstance(p.pace, SAFA) and p.asked_per_round not in (None, len(p.fed)):
        yield Conflict("per_round", "with SAFA every party trains", "Leave it out, and set SAFA's fraction.")
    for stage in p.guard:
        if isinstance(stage, Noise):
            why = "needs to know how many parties are in a round, and a fast party may be in a buffer twice"
        elif stage.hides:
            why = "agrees on masks or keys among the parties of one round, and here there are no rounds"
        elif stage.skips:
            why = "uses an update of an earlier round again"
        elif stage.quantile is not None:
            why = "follows how many updates of a round are clipped"
        elif stage.feedback:
            why = "keeps at the client what it left out, for the next round"
        else:
            continue
        yield Conflict(
            "guard",
            f"{name_of(stage)} {why}, so it cannot be combined with {name}",
            "Leave one of the two out; Clip and Quantize can be combined with it.",
        )


def speed(p: Plan) -> Iterator[Conflict]:
    if p.speed is not None and p.runtime not in ("cohort", "inprocess"):
        yield Conflict(
            "speed",
            "it sets the virtual clock of a simulation, and processes take real time",
            "Leave it out.",
        )


def hierarchy(p: Plan) -> Iterator[Conflict]:
    if not isinstance(p.topology, Hierarchy):
        return
    hides = hiding_stage(p) is not None
    if taken := set().union(*p.topology.names) & set(p.fed.parties):
        yield Conflict(
            "topology",
            f"{p.fed.name} has a party called {min(taken)!r}, which is an edge's name",
            "Rename the party.",
        )
    if p.pace is not None or p.speed is not None:
        yield Conflict(
            "topology", "a Hierarchy has synchronous rounds and no clock", "Leave out pace and speed."
        )
    if p.adversaries:
        yield Conflict("topology", "a Hierarchy is simulated with honest parties", "Leave out adversaries.")
    if has_noise(p):
        yield Conflict(
            "guard",
            "Noise is accounted for one server's sum, and with a Hierarchy there are several",
            "Leave one of the two out; SecAgg hides updates inside each edge.",
        )
    if hides and p.per_round < len(p.fed):
        yield Conflict(
            "guard",
            "a hidden sum inside an edge needs to know how many parties take part there, and with per_round "
            "that differs from round to round",
            "Leave per_round out.",
        )
    if hides and p.algorithm.weighted:
        yield Conflict(
            "guard",
            f"a hidden sum does not tell an edge how many rows it covers, and {name_of(p.algorithm)} weighs "
            "by rows",
            "Use an algorithm with weighted=False.",
        )
    if p.runtime != "cohort" and not len(p.fed.test.y):
        yield Conflict(
            "topology",
            f"{p.fed.name} has no test rows of the server's own, and through edges it cannot ask the clients "
            "for theirs",
            "Use runtime='cohort'.",
        )


def gossip(p: Plan) -> Iterator[Conflict]:
    if not isinstance(p.topology, Gossip):
        return
    others = (
        ("guard", p.guard),
        ("pace", p.pace),
        ("speed", p.speed),
        ("adversaries", p.adversaries),
        ("per_round", p.asked_per_round),
        ("aggregate", p.aggregate != Mean()),
        ("landscape", p.landscape),
    )
    for option, value in others:
        if value:
            yield Conflict(
                "gossip", f"{option} is for training with a server, and here there is none", "Leave it out."
            )
