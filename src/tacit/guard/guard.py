"""The guard of a job: its stages in order, at the clients and at the server.

    client   vectors − what the server knows → Lazy → Sparsify → Clip → weight → Quantize → (Noise) ──┐
                                                                    sum: plain, masked or encrypted   │
    server   mean of the vectors + what it knows ← Sparsify ← Clip ← ÷ n ← ÷ step ← (Noise) ←─────────┘

Noise comes before Quantize in the list, because Quantize must leave room for it. It is added after
Quantize, to integers: their sum is exact, and the proof for the discrete Gaussian applies. A guard with
noise and without Quantize gets a fine grid.

With noise, every client has the same weight, and the sum is divided by a public number: how many clients
take part, or are expected to. Where single updates are hidden without noise, a client's weight is one more
number of its vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parameters import bad, check
from .clip import Clip
from .noise import Noise
from .quantize import Fine, Quantize
from .stage import Clients, Form, Stage, State, refuse, source
from .wire import pack_row, unpack_row


def round_up(weight: float) -> float:
    """The next power of two."""
    return float(2.0 ** math.ceil(math.log2(weight))) if weight > 0 else 1.0


@dataclass(frozen=True)
class Layout:
    """The vectors that clients upload, in the order in which they are concatenated."""

    shapes: Mapping[str, tuple[int, ...]]
    known: tuple[str, ...] = ()  # vectors that the server sent: only the difference is uploaded
    layers: tuple[int, ...] = ()

    @property
    def dimension(self) -> int:
        return sum(math.prod(s) for s in self.shapes.values())

    def join(self, vectors: State, down: State) -> Tensor:
        """[S, …] each → [S, D], in float64 on the CPU, so that bounds hold exactly."""
        differences = [vectors[k] - down[k] if k in self.known else vectors[k] for k in self.shapes]
        return torch.cat([v.detach().reshape(len(v), -1).to("cpu", torch.float64) for v in differences], 1)

    def cut(self, flat: Tensor, down: State) -> State:
        """[D] → […] each."""
        pieces = torch.split(flat, [math.prod(s) for s in self.shapes.values()])
        vectors = {k: p.view(s).to(torch.float32) for (k, s), p in zip(self.shapes.items(), pieces)}
        return {
            k: v.to(down["w"].device) + down[k] if k in self.known else v.to(down["w"].device)
            for k, v in vectors.items()
        }


def as_stages(guard: Any) -> tuple[Stage, ...]:
    """The stages of a `guard=` argument, with their parameters and their order checked."""
    if guard is None:
        return ()
    stages = tuple(guard) if isinstance(guard, Sequence) and not isinstance(guard, str) else (guard,)
    for s in stages:
        if not isinstance(s, Stage) or isinstance(s, type):
            raise bad(
                "train",
                "guard",
                guard,
                "a list of stages such as [guard.Clip(1.0), guard.Noise(multiplier=1.0)]",
            )
        check(s)
    for a, b in pairwise(stages):
        if a.place == b.place:
            raise refuse(b, f"does the same as {type(a).__name__} before it. Keep one of them.")
        if a.place > b.place:
            raise refuse(b, f"comes after {type(a).__name__}.")
    noise = next((s for s in stages if isinstance(s, Noise)), None)
    hiding = next((s for s in stages if s.hides), None)
    if hiding is not None and not any(isinstance(s, Quantize) for s in stages):
        raise refuse(hiding, "adds integers, and there is no Quantize before it.")
    bounded = noise or hiding
    if bounded is not None and not any(isinstance(s, Clip) for s in stages):
        raise refuse(bounded, "needs a bound on each update, and there is no Clip before it.")
    if noise is not None and noise.placement == "distributed" and hiding is None:
        raise refuse(
            noise,
            "with placement='distributed' adds only a part of the noise to each update, which protects "
            "nothing unless a later stage hides single updates. Add SecAgg, or use placement='local'.",
        )
    for s in stages:
        s.check_with(tuple(x for x in stages if x is not s))
    return stages


@dataclass
class Guard:
    """The stages of one job: `out` at the clients, `total` and `back` at the server."""

    stages: tuple[Stage, ...]
    layout: Layout
    clients: int  # the largest number of clients in a round
    expected: float  # with noise, the number by which the sum is divided
    max_weight: float = 1.0  # the largest weight of a client, in the algorithm's units
    shared: int = 0
    insecure_seed: int | None = None
    state: State = field(default_factory=dict)  # the server's state, which is sent to all clients
    events: dict[str, int] = field(default_factory=dict)
    last: State = field(default_factory=dict)  # the last upload of each client, if clients may skip

    def __post_init__(self) -> None:
        self.noise = next((s for s in self.stages if isinstance(s, Noise)), None)
        self.hiding = next((s for s in self.stages if s.hides), None)
        quantize = next((s for s in self.stages if isinstance(s, Quantize)), None)
        self.grid: Quantize | None = quantize if quantize is not None or self.noise is None else Fine()
        self.early = tuple(s for s in self.stages if not isinstance(s, Noise | Quantize) and not s.hides)
        # whether integers are summed without weights
        self.is_summed = self.noise is not None or self.hiding is not None
        self.forms()  # every stage looks at what it will get, and refuses now

    @property
    def sends_weight(self) -> bool:
        """Whether a client sends its weight as a number of its vector, so that it is hidden too."""
        return self.hiding is not None and self.noise is None

    def forms(self, number: int = 0) -> tuple[list[tuple[Stage, Form]], Form, Form]:
        """The early stages with the forms of their inputs, and the forms before and after the grid."""
        form = Form(
            "real",
            self.layout.dimension,
            self.clients,
            1 if self.hiding is None else self.hiding.survivors(self.clients),
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
        form = replace(form, dimension=form.dimension + self.sends_weight)
        if self.noise is not None:
            form = self.noise.form(form, self.state)
        after = form if self.grid is None else self.grid.form(form, self.state)
        if self.hiding is not None:
            self.hiding.form(after, self.state)
        return early, form, after

    def output_form(self, number: int = 0) -> Form:
        """The form of a client's upload: integers in a ring if updates are hidden."""
        return self.forms(number)[2]

    def client_state(self) -> State:
        """A client's state before its first round."""
        return {k: v for s, form in self.forms()[0] for k, v in s.client_state(form).items()}

    # at the clients -----------------------------------------------------------------------------------------

    def out(self, weights: Tensor, vectors: State, down: State, me: Clients) -> tuple[Tensor, Tensor]:
        """Weights [S] and vectors [S, …] each → weights [S] and rows [S, D], for a weighted sum."""
        early, before, after = self.forms(me.round)
        weights, rows = weights.detach().to("cpu", torch.float64), self.layout.join(vectors, down)
        if not torch.isfinite(rows).all():
            raise BadData(
                f"guard: an update of round {me.round + 1} contains NaN or infinite values, so its norm "
                "cannot be bounded. Use a smaller learning rate."
            )
        for s, form in early:
            rows = s.out(rows, me, form)
        if self.sends_weight:
            share = (weights / self.max_weight).clamp(max=1.0)  # larger weights count as the agreed maximum
            ones = torch.full((len(rows), 1), before.bound, dtype=torch.float64)
            rows = torch.cat([rows, ones], 1) * share[:, None]
        if self.grid is not None:
            rows = self.grid.out(rows, me, before)
        if self.noise is not None:
            rows = self.noise.out(rows, me, after)
        for what, count in me.events.items():
            self.events[what] = self.events.get(what, 0) + count
        return torch.ones_like(weights) if self.is_summed else weights, rows

    # at the server ------------------------------------------------------------------------------------------

    def total(self, weights: Tensor, rows: Tensor, number: int) -> tuple[Tensor, float]:
        """(Σ weight · row, Σ weight); exact if rows are integers."""
        if self.is_summed:
            return rows.sum(0), float(len(rows))
        real = rows if self.grid is None else self.grid.read(rows, self.output_form(number))
        return (weights[:, None] * real).sum(0), float(weights.sum())

    def empty_sum(self, number: int) -> Tensor:
        """The sum of no rows."""
        return torch.zeros(
            self.output_form(number).dimension, dtype=torch.int64 if self.is_summed else torch.float64
        )

    def back(self, total: Tensor, n: float, down: State, number: int) -> State:
        """The sum → the mean vectors for `merge`; `n` is the sum of the weights, or the number of rows."""
        early, before, after = self.forms(number)
        state = dict(self.state)
        if self.is_summed:
            if after.modulus:  # the upper half of the ring represents negative numbers
                total = torch.remainder(total + after.modulus // 2, after.modulus) - after.modulus // 2
            if self.noise is not None:
                total, n = (
                    self.noise.server(total, after, source(self.insecure_seed, "server", number)),
                    self.expected,
                )
            total = total.to(torch.float64) * after.step
        if self.sends_weight:
            total, n = total[:-1], float(total[-1]) / before.bound
        for s, form in reversed(early):
            total, state = s.back(total, n, form, state)
        self.state = state
        return self.layout.cut(total / n, down)

    def after_step(self, before: Tensor, after: Tensor) -> None:
        """Update the stages' state after the server's step."""
        for s in self.early:
            self.state = s.after_step(self.state, before, after)

    # one party and its server, over messages ----------------------------------------------------------------

    def encode_upload(
        self, name: str, number: int, weight: float, vectors: State, down: State, mine: State
    ) -> tuple[float, State, State]:
        """At a client: (weight, upload, new state). An empty upload means that the server reuses the last."""
        memory = {k: mine[k][None] for k in self.client_state()}
        self.load_server_state(down)
        me = Clients((name,), number, memory, self.state, self.insecure_seed)
        weights, rows = self.out(torch.tensor([weight]), {k: v[None] for k, v in vectors.items()}, down, me)
        sent = {} if me.events.get("skipped") else self.pack(rows[0], number)
        return float(weights[0]), sent, {**mine, **{k: v[0] for k, v in me.memory.items()}}

    def load_server_state(self, down: State) -> None:
        """Check and load the state that the server sent.

        It must have exactly this guard's entries, with their shapes, and be finite; a norm must be above 0.
        State of an earlier round is discarded, so that a party computes from the same state as all others.
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
                    f"guard: the server's state {key!r:.40} is unexpected, missing, not finite or has "
                    "another shape or type than this guard's. Nothing was sent."
                )
        if "clip" in sent and not float(sent["clip"]) > 0:
            raise ProtocolError(
                f"guard: the server sends clip = {float(sent['clip']):g}; it must be above 0. Nothing was "
                "sent."
            )
        self.state = sent

    def decode_uploads(self, ups: Mapping[str, tuple[float, State]], down: State, number: int) -> State:
        """At the server: the mean of the uploads."""
        rows = {}
        for name, (_, sent) in ups.items():
            if not sent and name not in self.last:
                raise ProtocolError(
                    f"guard: {name!r} sent an empty upload, and there is no earlier upload of it to reuse."
                )
            rows[name] = self.unpack(sent, number) if sent else self.last[name]
        if any(s.skips for s in self.early):
            self.last |= rows
        if not rows:
            return self.back(self.empty_sum(number), 0.0, down, number)
        weights = torch.tensor([weight for weight, _ in ups.values()], dtype=torch.float64)
        if not torch.isfinite(weights).all() or float(weights.min()) < 0:
            raise ProtocolError("guard: an upload's weight must be a finite number of at least 0.")
        weights = torch.ones_like(weights) if self.is_summed else weights
        return self.back(*self.total(weights, torch.stack(list(rows.values())), number), down, number)

    def server_message(self) -> State:
        """The guard's part of what the server sends to all clients."""
        return {f"guard.{k}": v for k, v in self.state.items()}

    def save(self) -> State:
        return self.state | {f"last/{name}": row for name, row in self.last.items()}

    def load(self, saved: State) -> None:
        self.state = {k: v for k, v in saved.items() if not k.startswith("last/")}
        self.last = {k[5:]: v for k, v in saved.items() if k.startswith("last/")}

    # on the wire --------------------------------------------------------------------------------------------

    def pack(self, row: Tensor, number: int) -> State:
        """One client's row as message fields, with no more bits than it needs."""
        return pack_row(row, self.output_form(number), sparse=any(s.sparse for s in self.early))

    def blank_upload(self) -> State:
        """An upload of the usual size, to count its bytes."""
        form = self.output_form()
        row = torch.zeros(form.dimension + (form.space == "ring" and not form.step), dtype=torch.float64)
        for s, received in self.forms()[0]:
            if s.sparse:
                row[: s.count(received)] = 1  # type: ignore[attr-defined]
        return self.pack(row, 0)

    def unpack(self, sent: State, number: int) -> Tensor:
        return unpack_row(sent, self.output_form(number))
