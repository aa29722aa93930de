"""The guard of a job: its stages in order, and the two halves of what they do to an update.

    client   vectors − what the server knows → Lazy → Sparsify → Clip → weight → Quantize → (Noise) ───────────┐
                                                                                                      the
                                                                                                      sum │
                                                                                                      plain,
                                                                                                      masked
                                                                                                      or
                                                                                                      encrypted
    server   mean of the vectors + what it knows ← Sparsify ← Clip ← ÷ n ← ÷ step ← (Noise) ←──────────────────┘

Noise stands before Quantize in the list, because it says how much room rounding must leave, and is added
behind it: to whole numbers, where a sum is exact and a discrete Gaussian is what its proof says. A guard
with noise and without Quantize gets a fine grid of its own.

Where noise is added, every client counts the same and the sum is divided by a number that tells nothing:
how many take part, or are expected to. Where single updates are hidden and nothing is added, a client's
weight rides along as one more number of its vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import BadData, BadParameter, ProtocolError
from ..parameters import bad, check
from .noise import Noise
from .quantize import Fine, Quantize
from .stage import Clients, Form, Stage, State, refuse, source
from .wire import pack_row, unpack_row


def round_up(weight: float) -> float:
    """The next power of two."""
    return float(2.0 ** math.ceil(math.log2(weight))) if weight > 0 else 1.0


@dataclass(frozen=True)
class Layout:
    """Which vectors an algorithm's clients upload, in which order they lie in the one flat vector, and what
    the server already knows of them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    known: tuple[str, ...] = ()  # sent down before: only the difference goes up
    layers: tuple[int, ...] = ()

    @property
    def dimension(self) -> int:
        return sum(math.prod(s) for s in self.shapes.values())

    def join(self, vectors: State, down: State) -> Tensor:
        """[S, …] each → [S, D], in float64 on the CPU: what is bounded here must be bounded there."""
        moved = [vectors[k] - down[k] if k in self.known else vectors[k] for k in self.shapes]
        return torch.cat([v.detach().reshape(len(v), -1).to("cpu", torch.float64) for v in moved], 1)

    def cut(self, flat: Tensor, down: State) -> State:
        """[D] → […] each."""
        pieces = flat.split([math.prod(s) for s in self.shapes.values()])
        made = {k: p.view(s).to(torch.float32) for (k, s), p in zip(self.shapes.items(), pieces)}
        return {
            k: v.to(down["w"].device) + down[k] if k in self.known else v.to(down["w"].device)
            for k, v in made.items()
        }


def as_stages(given: Any) -> tuple[Stage, ...]:
    """What `guard=` was given, every parameter and the order checked."""
    if given is None:
        return ()
    stages = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for s in stages:
        if not isinstance(s, Stage) or isinstance(s, type):
            raise bad(
                "train",
                "guard",
                given,
                "a list of stages such as [guard.Clip(1.0), guard.Noise(multiplier=1.0)]",
            )
        check(s)
    for a, b in pairwise(stages):
        if a.place == b.place:
            raise refuse(b, f"does what {type(a).__name__} before it already does; keep one of them.")
        if a.place > b.place:
            raise refuse(b, f"stands behind {type(a).__name__}.")
    named = {type(s).__name__: s for s in stages}
    noise, hides = next((s for s in stages if isinstance(s, Noise)), None), [s for s in stages if s.hides]
    if noise is not None and "Clip" not in named:
        raise refuse(
            noise, "needs a bound on each update to know how much to add, and there is no Clip before it."
        )
    if hides and not any(isinstance(s, Quantize) for s in stages):
        raise refuse(hides[0], "adds up whole numbers, and there is no Quantize before it.")
    if hides and "Clip" not in named:
        raise refuse(hides[0], "needs a range in which all updates lie, and there is no Clip before it.")
    if noise is not None and noise.placement == "distributed" and not hides:
        raise refuse(
            noise,
            "with placement='distributed' gives each update only a part of the noise: it protects nothing "
            "unless a stage behind it "
            "hides single updates. Add SecAgg, or use placement='local'.",
        )
    for s in stages:
        s.beside(tuple(x for x in stages if x is not s))
    return stages


class SeesUpdates(Protocol):
    """An aggregation rule or an algorithm, which says whether the server looks at single updates."""

    @property
    def sees_each(self) -> bool: ...


def check_visibility(stages: Sequence[Stage], rule: SeesUpdates, why: str) -> None:
    """Raise BadParameter if a stage hides single updates that a rule or an algorithm must see.

    `why` completes the sentence "must see each of them to …".
    """
    hiding = [s for s in stages if s.hides]
    if hiding and rule.sees_each:
        raise BadParameter(
            f"guard: {type(hiding[0]).__name__} hides each update from the server, and "
            f"{type(rule).__name__} must see each of them to "
            f"{why} or leave the updates unhidden."
        )


@dataclass
class Guard:
    """Stages fitted to one job: `out` at the clients, `total` and `back` at the server."""

    stages: tuple[Stage, ...]
    layout: Layout
    clients: int  # at most so many take part in a round
    expected: float  # the number the sum is divided by where noise is added
    heaviest: float = 1.0  # no client weighs more, in the algorithm's own units
    shared: int = 0
    secret_seed: int | None = None
    state: State = field(default_factory=dict)  # what the server keeps between rounds and sends to all
    events: dict[str, int] = field(default_factory=dict)
    last: dict[str, Tensor] = field(
        default_factory=dict
    )  # what each client sent last, for those that may skip

    def __post_init__(self) -> None:
        self.noise = next((s for s in self.stages if isinstance(s, Noise)), None)
        self.hiding = next((s for s in self.stages if s.hides), None)
        quantize = next((s for s in self.stages if isinstance(s, Quantize)), None)
        self.grid: Quantize | None = quantize if quantize is not None or self.noise is None else Fine()
        self.early = tuple(s for s in self.stages if not isinstance(s, Noise | Quantize) and not s.hides)
        self.summed = (
            self.noise is not None or self.hiding is not None
        )  # whole numbers are added up, and nobody weighs them afterwards
        self.forms()  # every stage looks at what it will get, and refuses now

    @property
    def weighs(self) -> bool:
        """Whether a client's weight rides along in its vector, because nobody else may see it."""
        return self.hiding is not None and self.noise is None

    def forms(self, number: int = 0) -> tuple[list[tuple[Stage, Form]], Form, Form]:
        """In this round: each early stage with the form it receives, the form that goes onto the grid, and
        the form that leaves it.
        """
        least = 1 if self.hiding is None else self.hiding.survivors(self.clients)
        form = Form(
            "real",
            self.layout.dimension,
            self.clients,
            least,
            layers=self.layout.layers,
            hidden=self.hiding is not None,
            round=number,
            shared=self.shared,
        )
        early = []
        for s in self.early:
            early.append((s, form))
            self.state = {**s.server_state(form), **self.state}
            form = s.form(form, self.state)
        form = replace(form, dimension=form.dimension + self.weighs)
        if self.noise is not None:
            form = self.noise.form(form, self.state)
        after = form if self.grid is None else self.grid.form(form, self.state)
        if self.hiding is not None:
            self.hiding.form(after, self.state)
        return early, form, after

    def leaves(self, number: int = 0) -> Form:
        """What a client hands to whoever makes the sum: whole numbers in a ring where updates are hidden."""
        return self.forms(number)[2]

    def client_state(self) -> State:
        """What each client keeps between rounds, before its first."""
        return {k: v for s, form in self.forms()[0] for k, v in s.client_state(form).items()}

    # at the clients -----------------------------------------------------------------------------------------

    def out(self, weights: Tensor, vectors: State, down: State, me: Clients) -> tuple[Tensor, Tensor]:
        """Weights [S] and vectors [S, …] each → what is weighed and summed: weights [S] and rows [S, D]."""
        early, before, after = self.forms(me.round)
        weights, rows = weights.detach().to("cpu", torch.float64), self.layout.join(vectors, down)
        if not torch.isfinite(rows).all():
            raise BadData(
                f"guard: an update of round {me.round + 1} is not finite, so it cannot be bounded. Use a "
                "smaller learning rate."
            )
        for s, form in early:
            rows = s.out(rows, me, form)
        if self.weighs:
            share = (weights / self.heaviest).clamp(
                max=1.0
            )  # a larger party counts as one of the agreed size
            rows = (
                torch.cat([rows, torch.full((len(rows), 1), before.bound, dtype=torch.float64)], 1)
                * share[:, None]
            )
        if self.grid is not None:
            rows = self.grid.out(rows, me, before)
        if self.noise is not None:
            rows = self.noise.out(rows, me, after)
        for what, count in me.events.items():
            self.events[what] = self.events.get(what, 0) + count
        return torch.ones_like(weights) if self.summed else weights, rows

    # at the server ------------------------------------------------------------------------------------------

    def total(self, weights: Tensor, rows: Tensor, number: int) -> tuple[Tensor, float]:
        """(Σ weight · row, Σ weight); exact where rows are whole numbers."""
        form = self.leaves(number)
        if not self.summed:
            real = rows if self.grid is None else self.grid.read(rows, form)
            return (weights[:, None] * real).sum(0), float(weights.sum())
        return rows.sum(0), float(len(rows))

    def nobody(self, number: int) -> Tensor:
        """The sum of no vectors at all."""
        form = self.leaves(number)
        return torch.zeros(form.dimension, dtype=torch.int64 if self.summed else torch.float64)

    def back(self, total: Tensor, n: float, down: State, number: int) -> State:
        """The sum → the mean vectors that `merge` expects. `n`: the weights' sum, or, where all count alike,
        how many vectors are in it.
        """
        early, before, after = self.forms(number)
        state = dict(self.state)
        if self.summed:
            if after.modulus:  # numbers above the middle of the ring stand for negative ones
                total = torch.remainder(total + after.modulus // 2, after.modulus) - after.modulus // 2
            if self.noise is not None:
                total, n = (
                    self.noise.server(total, after, source(self.secret_seed, "server", number)),
                    self.expected,
                )
            total = total.to(torch.float64) * after.step
        if self.weighs:
            total, n = total[:-1], float(total[-1]) / before.bound
        for s, form in reversed(early):
            total, state = s.back(total, n, form, state)
        self.state = state
        return self.layout.cut(total / n, down)

    def moved(self, before: Tensor, after: Tensor) -> None:
        """The server's model went from here to there."""
        for s in self.early:
            self.state = s.moved(self.state, before, after)

    # one party and its server, over messages ----------------------------------------------------------------

    def give(
        self, name: str, number: int, weight: float, vectors: State, down: State, kept: State
    ) -> tuple[float, State, State]:
        """One client's half: (weight, what it sends, what it keeps). Nothing is sent where the server is to
        take the last upload again.
        """
        memory = {k: kept[k][None] for k in self.client_state()}
        self.take_state(down)  # on a machine of its own, a client has it from here
        me = Clients((name,), number, memory, self.state, self.secret_seed)
        weights, rows = self.out(torch.tensor([weight]), {k: v[None] for k, v in vectors.items()}, down, me)
        sent = {} if me.events.get("skipped") else self.pack(rows[0], number)
        return float(weights[0]), sent, {**kept, **{k: v[0] for k, v in me.memory.items()}}

    def take_state(self, down: State) -> None:
        """The server's part of the guard's state, as it was sent down: exactly the entries this guard has, of
        their shape, finite; a norm is above 0. Nothing of an earlier round is kept: what a party computes
        must follow from what the others were sent as well.
        """
        known = {k: v for s, form in self.forms()[0] for k, v in s.server_state(form).items()}
        sent = {k[6:]: v for k, v in down.items() if k.startswith("guard.")}
        for key in {*known, *sent}:
            value, like = sent.get(key), known.get(key)
            if (
                value is None
                or like is None
                or value.shape != like.shape
                or value.dtype != like.dtype
                or not torch.isfinite(value).all()
            ):
                raise ProtocolError(
                    f"guard: the server sends a state {key!r:.40} that this guard does not have, or none "
                    "that it has, or not in its form. "
                    "Nothing was sent."
                )
        if "clip" in sent and not float(sent["clip"]) > 0:
            raise ProtocolError(
                f"guard: the server sends clip = {float(sent['clip']):g}; it must be above 0. Nothing was "
                "sent."
            )
        self.state = sent

    def take(self, ups: Mapping[str, tuple[float, State]], down: State, number: int) -> State:
        """The server's half: the mean of what came."""
        rows = {}
        for name, (_, sent) in ups.items():
            if not sent and name not in self.last:
                raise ProtocolError(
                    f"guard: {name!r} sent nothing, and nothing it sent before is there to be taken again."
                )
            rows[name] = self.unpack(sent, number) if sent else self.last[name]
        if any(s.skips for s in self.early):
            self.last |= rows
        if not rows:
            return self.back(self.nobody(number), 0.0, down, number)
        weights = torch.tensor([weight for weight, _ in ups.values()], dtype=torch.float64)
        if not torch.isfinite(weights).all() or float(weights.min()) < 0:
            raise ProtocolError("guard: an upload's weight must be a finite number of at least 0.")
        return self.back(
            *self.total(
                torch.ones_like(weights) if self.summed else weights, torch.stack(list(rows.values())), number
            ),
            down,
            number,
        )

    def sent(self) -> State:
        """What the server tells all clients about its guard."""
        return {f"guard.{k}": v for k, v in self.state.items()}

    def save(self) -> State:
        return self.state | {f"last/{name}": row for name, row in self.last.items()}

    def load(self, saved: State) -> None:
        self.state = {k: v for k, v in saved.items() if not k.startswith("last/")}
        self.last = {k[5:]: v for k, v in saved.items() if k.startswith("last/")}

    # on the wire --------------------------------------------------------------------------------------------

    def pack(self, row: Tensor, number: int) -> State:
        """One client's row as a message holds it: no more bits than it needs. A row that is None was not
        sent.
        """
        return pack_row(row, self.leaves(number), sparse=any(s.sparse for s in self.early))

    def blank(self) -> State:
        """An upload of the size that all have (but for skipped ones), to count its bytes."""
        form = self.leaves()
        row = torch.zeros(form.dimension + (form.space == "ring" and not form.step), dtype=torch.float64)
        for s, given in self.forms()[0]:
            if s.sparse:
                row[: s.count(given)] = 1  # type: ignore[attr-defined]
        return self.pack(row, 0)

    def unpack(self, sent: State, number: int) -> Tensor:
        return unpack_row(sent, self.leaves(number))
