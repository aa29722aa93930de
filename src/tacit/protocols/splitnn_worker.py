"""One party of a split network: training batches, forward passes, and exchange of weights."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parameters import bad
from ..parties.clock import RealClock
from ..parties.party import Party
from .splitnn_guards import QuantizeRows
from .splitnn_terms import Activations, CutGradients, Route, SplitInputs, SplitTerms, compute_loss

ASSUMES = (
    "SEMI-HONEST: every party follows its program. Activations and gradients cross the cut in the clear to "
    "their receiver; only the guards named in the "
    "job weaken what they say."
)
CHUNK = 1024  # rows per forward pass without training


class SplitWorker:
    """One party's computation.

    Arithmetic runs in a thread only if messages can move meanwhile (a slice was just sent, or the next may
    arrive): a thread switch costs as much as a small batch.
    """

    def __init__(self, me: Party, terms: SplitTerms, mine: SplitInputs):
        self.me, self.terms, self.mine = me, terms, mine
        self.parts = mine.parts
        self.random = any("Dropout" in type(m).__name__ for m in self.parts.modules())
        weights = list(self.parts.parameters())
        self.optimizer = mine.optimizer(weights) if weights else None
        self.threaded = isinstance(me.clock, RealClock)
        self.is_sending = False  # a message may still be in transit
        me.ledger.stamp(ASSUMES)
        last = mine.guards[-1] if mine.guards else None
        self.quantize = last if isinstance(last, QuantizeRows) else None
        self.guards = mine.guards if self.quantize is None else mine.guards[:-1]
        if any(isinstance(g, QuantizeRows) for g in self.guards):
            raise bad(
                "splitnn",
                "guard",
                [type(g).__name__ for g in mine.guards],
                "an order in which QuantizeRows comes last",
            )

    async def compute(self, work: Callable[..., Any], *args: Any) -> Any:
        if self.threaded and (self.is_sending or self.terms.slices > 1):
            return await asyncio.to_thread(work, *args)
        return work(*args)

    @contextlib.contextmanager
    def seeded_dropout(self, *place: Any) -> Iterator[None]:
        """Seed dropout by (seed, party, place) and restore the process's random state."""
        if not self.random:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            digest = hashlib.sha256(json.dumps([self.terms.seed, self.me.name, *place]).encode()).digest()
            torch.default_generator.manual_seed(int.from_bytes(digest[:7], "little"))
            yield

    async def recv(self, sender: str, kind: type[Any], step: int, rows: int) -> Tensor:
        message = await self.me.recv(sender, kind, within=self.mine.within)
        self.is_sending = False  # an answer implies delivery
        values: Tensor = message.values
        if message.step != step or values.dim() < 1 or len(values) != rows:
            raise ProtocolError(
                f"{sender!r} sent {kind.kind} of shape {tuple(values.shape)} for step {message.step}; "
                f"{self.me.name!r} is at step {step} with {rows} rows. Do all parties run the same job?"
            )
        if kind is Activations and message.grid:
            if len(message.grid) != 2 or values.is_floating_point():
                raise ProtocolError(f"{sender!r} sent quantized activations without their grid.")
            values = QuantizeRows.values(values, *message.grid)
        if values.dtype != torch.float32:
            raise ProtocolError(f"{sender!r} sent {kind.kind} of {values.dtype}; expected float32.")
        return values

    # --- one batch ------------------------------------------------------------------------------------------

    def forward_bottom(self, x: Tensor, place: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
        """Return (guarded activations, extra loss)."""
        assert self.mine.bottom is not None
        with self.seeded_dropout("bottom", *place):
            z = self.mine.bottom(x)
        if not torch.is_grad_enabled() and not self.mine.guards:
            return z, None
        extra = self.mine.peek(x, z) if self.mine.peek is not None and torch.is_grad_enabled() else None
        for guard in self.guards:
            z = guard.out(z, self.me.secret)
        return z, extra

    async def send(self, to: str, step: int, z: Tensor) -> None:
        values, grid = z.detach(), list[float]()
        if self.quantize is not None:
            values, *grid = self.quantize.codes(values)
        await self.send_message(to, Activations(step, values, grid))

    async def send_message(self, to: str, message: Activations | CutGradients) -> None:
        self.is_sending = True
        await self.me.send(to, message)

    def forward_stop(
        self, depth: int, activations: list[Tensor], y: Tensor | None, share: float, place: Sequence[Any]
    ) -> tuple[list[Tensor], Tensor, float]:
        """Return (inputs, output, loss). The last stop computes the gradients of the inputs at once."""
        inputs = [v.detach().requires_grad_() for v in activations]
        with self.seeded_dropout("stop", depth, *place):
            out = self.mine.stops[depth](inputs)
        if y is None:
            return inputs, out, 0.0
        loss = compute_loss(self.terms.loss, out, y)
        torch.autograd.backward(loss * share if share != 1 else loss)
        return inputs, out, float(loss.detach()) * share

    async def send_gradient(
        self, to: str, step: int, gradient: Tensor | None, y: Tensor | None, absent: Tensor | None = None
    ) -> None:
        """Send the gradient; it is 0 for rows the receiver does not hold, so it learns nothing about them."""
        if gradient is None:
            raise ProtocolError(
                f"the output of {self.me.name!r} does not depend on the activations of {to!r}, so there is "
                "no gradient to send back. Check the merge and the part behind it."
            )
        if self.mine.protect is not None and y is not None:
            gradient = self.mine.protect.out(gradient, y, self.me.secret)
        if absent is not None:
            gradient = gradient * (~absent).to(gradient.dtype).reshape(-1, *[1] * (gradient.dim() - 1))
        await self.send_message(to, CutGradients(step, gradient))

    async def train_batch(self, turn: int, step: int, rows: Tensor) -> float:
        """Train one batch: forward slice by slice, backward, optimizer step; return the last stop's loss."""
        route, mine, me = self.terms.routes[turn], self.mine, self.me.name
        last = len(route.stops) - 1
        pieces = list(rows.tensor_split(min(self.terms.slices, len(rows))))
        sources_out: list[tuple[Tensor, Tensor | None]] = []
        total = 0.0
        if me in route.sources:
            for i, piece in enumerate(pieces):
                sources_out.append(
                    await self.compute(
                        lambda p=piece, i=i: self.forward_bottom(mine.x[turn][p], (turn, step, i))
                    )
                )
                if route.stops[0] != me:
                    await self.send(route.stops[0], step, sources_out[-1][0])
        stop_inputs: dict[int, list[list[Tensor]]] = {}
        stop_outputs: dict[int, list[Tensor]] = {}
        for depth in (d for d, name in enumerate(route.stops) if name == me):
            for i, piece in enumerate(pieces):
                own = sources_out[i][0] if sources_out else None
                activations = await self._inputs(route, depth, own, step, len(piece))
                y = mine.y[turn][piece] if depth == last else None
                inputs, out, loss = await self.compute(
                    self.forward_stop, depth, activations, y, len(piece) / len(rows), (turn, step, i)
                )
                stop_inputs.setdefault(depth, []).append(inputs)
                stop_outputs.setdefault(depth, []).append(out)
                total += loss
                if depth == last:
                    absent = mine.absent[turn][piece] if turn in mine.absent else None
                    await self._send_gradients(route, depth, step, inputs, y, absent)
                else:
                    await self.send_message(route.stops[depth + 1], Activations(step, out.detach(), []))
        for depth in sorted(stop_inputs, reverse=True):
            for i, piece in enumerate(pieces if depth != last else ()):
                await self.compute(
                    stop_outputs[depth][i].backward,
                    await self.recv(route.stops[depth + 1], CutGradients, step, len(piece)),
                )
                await self._send_gradients(route, depth, step, stop_inputs[depth][i], None)
        for i, piece in enumerate(pieces if sources_out else ()):
            gradient = (
                stop_inputs[0][i][route.sources.index(me)].grad
                if route.stops[0] == me
                else await self.recv(route.stops[0], CutGradients, step, len(piece))
            )
            await self.compute(self._backward, *sources_out[i], gradient, len(piece) / len(rows))
        await self.compute(self._step)
        return total

    async def _inputs(
        self, route: Route, depth: int, own: Tensor | None, step: int, rows: int
    ) -> list[Tensor]:
        """Return the activations a stop receives; `own` are those of this party as a source."""
        return [
            own
            if own is not None and depth == 0 and name == self.me.name
            else await self.recv(name, Activations, step, rows)
            for name in route.senders(depth)
        ]

    async def _send_gradients(
        self,
        route: Route,
        depth: int,
        step: int,
        inputs: list[Tensor],
        y: Tensor | None,
        absent: Tensor | None = None,
    ) -> None:
        for name, value in zip(route.senders(depth), inputs):
            if not (name == self.me.name and depth == 0):  # the own source reads it directly
                await self.send_gradient(name, step, value.grad, y, absent)

    @staticmethod
    def _backward(z: Tensor, extra: Tensor | None, gradient: Tensor | None, share: float) -> None:
        if z.requires_grad:
            torch.autograd.backward(
                [z] if extra is None else [z, extra * share],
                [gradient] if extra is None else [gradient, None],
            )

    def _step(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    # --- forward passes without training --------------------------------------------------------------------

    async def forward_rows(self, turn: int, count: int, x: Tensor | None) -> Tensor | None:
        """Run forward only; the last stop returns the network's outputs, others None."""
        route, me = self.terms.routes[turn], self.me.name
        self.parts.eval()
        outs: list[Tensor] = []
        try:
            for step, start in enumerate(range(0, count, CHUNK)):
                n = min(CHUNK, count - start)
                z = None
                if me in route.sources:
                    assert x is not None
                    z = await self.compute(
                        self._without_grad, lambda s=start, n=n: self.forward_bottom(x[s : s + n], ())[0]
                    )
                    if route.stops[0] != me:
                        await self.send(route.stops[0], step, z)
                for depth in (d for d, name in enumerate(route.stops) if name == me):
                    activations = await self._inputs(route, depth, z, step, n)
                    out = await self.compute(
                        self._without_grad, lambda d=depth, c=activations: self.mine.stops[d](c)
                    )
                    if depth == len(route.stops) - 1:
                        outs.append(out)
                    else:
                        await self.send_message(route.stops[depth + 1], Activations(step, out, []))
        finally:
            self.parts.train()
        return torch.cat(outs) if outs else None

    @staticmethod
    def _without_grad(work: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return work()

    # --- weights of clients that share a part ---------------------------------------------------------------

    def export_state(self, memory: bool) -> dict[str, Tensor]:
        """Return weights and buffers; with `memory`, the optimizer's state as well."""
        state = {f"w.{k}": v.detach().clone() for k, v in self.parts.state_dict().items()}
        if memory and self.optimizer is not None:
            for i, p in enumerate(self.parts.parameters()):
                state |= {
                    f"o.{i}.{k}": torch.as_tensor(v).clone()
                    for k, v in self.optimizer.state.get(p, {}).items()
                    if v is not None
                }
        return state

    def load_state(self, vectors: Mapping[str, Tensor], sender: str, memory: bool) -> None:
        mine = self.parts.state_dict()
        if {k: v.shape for k, v in mine.items()} != {
            k[2:]: v.shape for k, v in vectors.items() if k.startswith("w.")
        }:
            raise ProtocolError(
                f"{sender!r} sent weights that do not fit the part of {self.me.name!r}. All clients of a "
                "relay need the same part."
            )
        self.parts.load_state_dict({k: vectors[f"w.{k}"] for k in mine})
        if memory and self.optimizer is not None:
            for i, p in enumerate(self.parts.parameters()):
                state = {k.split(".", 2)[2]: v for k, v in vectors.items() if k.startswith(f"o.{i}.")}
                if state:
                    self.optimizer.state[p] = state
                else:
                    self.optimizer.state.pop(p, None)
