"""What does not go together in one training run: a rule each, with the sentence that says why and what to do.
A new axis of `train` adds its rules here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ... import aggregate as rules
from ... import pace as paces
from ... import topologies
from ...aggregate import Mean
from ...algorithms import IFCA, FedNova
from ...algorithms.types import Algorithm
from ...errors import BadParameter
from ...guard import Noise, Quantize, Sparsify, Stage
from ...parameters import bad
from ...selection import PowerOfChoice

FINE = 24  # bits of a grid on which one over a thousand steps is still a number of its own


@dataclasses.dataclass(frozen=True)
class Asked:
    """The parts of a run that are not free of each other, each made and checked by itself."""

    algorithm: Algorithm
    stages: Sequence[Stage]
    rule: Any
    lies: Sequence[Any]
    runtime: str
    pace: Any
    speed: Any
    select: Any
    topology: Any
    sampling: str
    per_round: int | None  # as it was given
    parties: int

    @property
    def really(self) -> str:
        """How parties are sampled in fact."""
        return "everyone" if self.per_round in (None, self.parties) else self.sampling


def refuse(asked: Asked) -> None:
    """BadParameter by the first rule that is broken."""
    for rule in RULES:
        for sentence in rule(asked):
            raise BadParameter(sentence)


def _name(part: Any) -> str:
    return type(part).__name__


def _rule_of_aggregation(a: Asked) -> Iterator[str]:
    if isinstance(a.rule, rules.Best) and not a.algorithm.scores:
        yield (
            f"aggregate: Best tells updates by the scores parties send, and those of {_name(a.algorithm)} "
            "send none. "
            "Use algorithms.FedPSO, or another rule."
        )
    if a.rule.works_on_models and a.topology is not None:
        yield (
            f"aggregate: {_name(a.rule)} works where one server has every party's model. Leave out "
            "topology, or use another rule."
        )
    if a.rule.remembers and a.topology is not None:
        yield (
            f"aggregate: {_name(a.rule)} remembers what one server was sent in earlier rounds. Leave out "
            "topology, or use another rule."
        )
    if (a.stages or a.pace is not None) and a.rule != Mean():
        what = "guard: its stages work" if a.stages else f"pace: {_name(a.pace)} works"
        yield (
            f"{what} on a sum of updates, and {_name(a.rule)} makes something else of them. Aggregate "
            "with Mean, or leave it out."
        )


def _algorithm_that_sees_each(a: Asked) -> Iterator[str]:
    other = next(
        (
            word
            for word, there in (
                ("guard", a.stages),
                ("pace", a.pace),
                ("topology", a.topology),
                ("select", a.select),
            )
            if there
        ),
        None,
    )
    if a.algorithm.sees_each and other:
        yield (
            f"{other}: {_name(a.algorithm)} parts the parties by what each of them sends to one server, in "
            "synchronous rounds. "
            f"Leave out {other}, or use another algorithm."
        )


def _liars(a: Asked) -> Iterator[str]:
    if a.lies and (a.stages or a.pace is not None or a.runtime != "cohort"):
        yield (
            "adversaries: liars are simulated in the synchronous rounds of the cohort runtime, before any "
            "guard, whose stages a liar would "
            "not apply. Leave out guard and pace, and use runtime='cohort'."
        )


def _selection(a: Asked) -> Iterator[str]:
    if a.select is None:
        return
    name = _name(a.select)
    if any(isinstance(s, Noise) for s in a.stages):
        yield (
            f"guard: Noise counts on a draw that looks at nobody, and {name} looks. Leave one of the two out."
        )
    if (
        isinstance(a.select, PowerOfChoice)
        and (hiding := next((s for s in a.stages if s.hides), None)) is not None
    ):
        yield (
            f"guard: {_name(hiding)} hides what each party sends, and to {name} each party tells its loss "
            "in the clear. Use BySize, or leave one of the two "
            "out."
        )
    if a.sampling != "fixed" or a.pace is not None or a.topology is not None:
        yield (
            f"select: {name} is for synchronous rounds with one server (sampling='fixed'). Leave it out here."
        )
    if (
        a.select.needs_speed and a.speed is None and a.runtime in ("cohort", "inprocess")
    ):  # real parties are timed
        yield f"select: {name} needs to know how long parties take. Give speed, such as speeds.Lognormal()."
    if a.select.fills and a.per_round is None:
        yield (
            f"select: {name} fills every place of a round, and without per_round there is one for "
            "everybody, so it chooses nobody. Give per_round."
        )
    if isinstance(a.select, PowerOfChoice) and a.per_round is not None and a.select.candidates < a.per_round:
        yield str(
            bad(
                "PowerOfChoice",
                "candidates",
                a.select.candidates,
                f"at least {a.per_round}, the parties that take part in a round (per_round)",
                "With as many it is BySize; with more, those with the largest losses are asked.",
            )
        )


def _hidden(a: Asked) -> Iterator[str]:
    """What a hidden sum would not hide."""
    hiding = next((s for s in a.stages if s.hides), None)
    if hiding is None:
        return
    name = _name(a.algorithm)
    if isinstance(a.algorithm, IFCA):
        yield (
            f"guard: {_name(hiding)} hides single updates in a sum, and in the sum of {name} each cluster "
            "has a place of its own: a cluster with one party "
            "shows its update. Use another algorithm, or leave the guard out."
        )
    if hiding.adversary != "active":
        return
    if a.algorithm.client_state(torch.zeros(1)) or a.algorithm.own_buffers:
        yield (
            f"guard: clients of {name} keep state from round to round, and an active server could have "
            "prepared it so that all updates but one are known. "
            "Use FedAvg or another algorithm without client state, or adversary='curious'."
        )
    for s in a.stages:
        if s.feedback or s.quantile is not None:
            yield (
                f"guard: {_name(s)} depends on what a server sent or had sent before, which an active "
                "server chooses. Leave out "
                f"{'feedback' if s.feedback else 'quantile'}, or use adversary='curious'."
            )


def _division(a: Asked) -> Iterator[str]:
    """A server that divides by a mean of what parties send needs it to come through, however small."""
    nova = isinstance(a.algorithm, FedNova)
    how, other = (" (tau='harmonic')", "tau='mean'") if nova else ("", "another algorithm")
    for s in a.stages if a.algorithm.divides else ():
        why = (
            "may bring that near zero, or below"
            if isinstance(s, Noise)
            else "may leave that out"
            if isinstance(s, Sparsify)
            else f"with {s.bits} bits may round that to zero"
            if isinstance(s, Quantize) and nova and s.bits < FINE
            else ""
        )
        if why:
            more = f", or bits={FINE}" if isinstance(s, Quantize) else f", or leave {_name(s)} out"
            yield (
                f"guard: the server of {_name(a.algorithm)} divides by a mean of what parties send{how}, "
                f"and {_name(s)} {why}: the model would jump "
                f"anywhere. Use {other}{more}."
            )


def _no_server(a: Asked) -> Iterator[str]:
    if isinstance(a.topology, topologies.Gossip):
        for word, there in (
            ("guard", a.stages),
            ("pace", a.pace),
            ("speed", a.speed),
            ("adversaries", a.lies),
            ("per_round", a.per_round),
            ("aggregate", a.rule != Mean()),
        ):
            if there:
                yield f"gossip: {word} is for training with a server, and here there is none. Leave it out."


def _sampling(a: Asked) -> Iterator[str]:
    for stage in a.stages:
        if stage.hides and a.really == "poisson":
            yield (
                f"guard: {_name(stage)} needs to know how many take part in a round, and by Poisson "
                "sampling nobody does. "
                "Use sampling='fixed'."
            )
    words = {
        "everyone": "everyone takes part in every round",
        "poisson": "each client takes part by a coin of its own (Poisson)",
        "fixed": "a fixed number of clients is drawn without replacement",
    }
    for noise in (s for s in a.stages if isinstance(s, Noise)):
        if noise.sampling not in ("as run", a.really):
            yield (
                f"guard: Noise assumes that {words[noise.sampling]}, and in this run {words[a.really]}; its "
                "ε would be of another run. Set "
                "train's sampling and per_round to what you assume, or leave Noise's sampling out."
            )


def _paces(a: Asked) -> Iterator[str]:
    """What an asynchronous pace cannot go with."""
    if a.pace is None:
        return
    name, other = _name(a.pace), _name(a.algorithm)
    if a.algorithm.client_state(torch.zeros(1)):
        yield (
            f"train: the clients of {other} keep state from round to round, and with {name} there are none: "
            "work may be given up, and the model "
            "moves on, in between. Use an algorithm without client state, such as FedAvg or FedProx, or no "
            "pace."
        )
    if not a.algorithm.scales:
        yield (
            f"train: {name} counts old updates for less, and an update of {other} cannot be scaled. Use "
            "FedAvg or FedProx, or no pace."
        )
    if a.sampling != "fixed":
        yield str(bad("train", "sampling", a.sampling, f"'fixed' with {name}, which asks whoever is free"))
    if isinstance(a.pace, paces.SAFA) and a.per_round not in (None, a.parties):
        yield str(
            bad(
                "train",
                "per_round",
                a.per_round,
                "left out with SAFA, in which every party trains",
                "Set its fraction instead.",
            )
        )
    for s in a.stages:
        why = (
            "needs to know how many take part in a round and who may be in it twice, and a fast party is as "
            "often in a buffer as it likes"
            if isinstance(s, Noise)
            else "agrees on masks or keys among the parties of one round, and here there is none"
            if s.hides
            else "takes an update of an earlier round again"
            if s.skips
            else "follows how many updates of a round are shortened"
            if s.quantile is not None
            else "keeps at the client what it left out, for the next round"
            if s.feedback
            else ""
        )
        if why:
            yield (
                f"guard: {_name(s)} {why}, so it does not go with {name}. Leave one of the two out; Clip "
                "and Quantize go with it."
            )


def _levels(a: Asked) -> Iterator[str]:
    if a.topology is not None and (a.pace is not None or a.speed is not None):
        yield "topology: a Hierarchy goes by rounds and has no clock. Leave out pace and speed."


RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (
    _rule_of_aggregation,
    _algorithm_that_sees_each,
    _liars,
    _selection,
    _hidden,
    _division,
    _no_server,
    _sampling,
    _paces,
    _levels,
)
