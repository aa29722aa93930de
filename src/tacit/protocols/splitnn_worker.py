"""One party at its work in a split network: a batch forward and backward over its parts, rows nobody learns
from, weights handed on.
"""

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
from .splitnn_terms import Activations, CutGradients, SplitInputs, SplitTerms, losses

ASSUMES = (
    "SEMI-HONEST: every party follows its program. Activations and gradients cross the cut in the clear to "
    "their receiver; only the guards named in the "
    "job weaken what they say."
)
CHUNK = 1024  # rows at a time where nothing is learned


class SplitWorker:
    """One party at its work. Heavy arithmetic leaves the event loop free where there is something to move
    meanwhile: a slice that was just sent, or the next that may come. To hand work to a thread and wait for it
    costs as much as a small batch.
    """

    def __init__(self, me: Party, terms: SplitTerms, mine: SplitInputs):
        self.me, self.terms, self.mine = me, terms, mine
        self.parts = mine.parts
        self.random = any("Dropout" in type(m).__name__ for m in self.parts.modules())
        weights = list(self.parts.parameters())
        self.optimizer = mine.optimizer(weights) if weights else None
        self.threaded = isinstance(me.clock, RealClock)
        self.said = False  # something may still be on its way out
        me.ledger.stamp(ASSUMES)
        if mine.guards and isinstance(mine.guards[-1], QuantizeRows):
            self.quantize: QuantizeRows | None = mine.guards[-1]
            self.guards = mine.guards[:-1]
        else:
            self.quantize, self.guards = None, mine.guards
        if any(isinstance(g, QuantizeRows) for g in self.guards):
            raise bad(
                "splitnn",
                "guard",
                [type(g).__name__ for g in mine.guards],
                "an order in which QuantizeRows comes last",
            )

    async def compute(self, work: Callable[..., Any], *args: Any) -> Any:
        if self.threaded and (self.said or self.terms.slices > 1):
            return await asyncio.to_thread(work, *args)
        return work(*args)

    @contextlib.contextmanager
    def drawn(self, *place: Any) -> Iterator[None]:
        """Dropout draws from (seed, party, place), and leaves the process's random numbers as they were."""
        if not self.random:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            digest = hashlib.sha256(json.dumps([self.terms.seed, self.me.name, *place]).encode()).digest()
            torch.default_generator.manual_seed(int.from_bytes(digest[:7], "little"))
            yield

    async def recv(self, sender: str, kind: type[Any], step: int, rows: int) -> Tensor:
        came = await self.me.recv(sender, kind, within=self.mine.within)
        self.said = False  # who answers has heard
        values = came.values
        if came.step != step or values.dim() < 1 or len(values) != rows:
            raise ProtocolError(
                f"{sender!r} sent {kind.kind} of {tuple(values.shape)} for step {came.step}; "
                f"{self.me.name!r} is at step {step} "
                f"with {rows} rows. Do all parties run the same job?"
            )
        if kind is Activations and came.grid:
            if len(came.grid) != 2 or values.is_floating_point():
                raise ProtocolError(f"{sender!r} sent activations as levels, and not the grid they lie on.")
            values = QuantizeRows.values(values, *came.grid)
        if values.dtype != torch.float32:
            raise ProtocolError(f"{sender!r} sent {kind.kind} of {values.dtype}; float32 is due.")
        return values

    # --- one batch ------------------------------------------------------------------------------------------

    def leave(self, x: Tensor, place: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
        """(activations behind the guards, the extra loss)."""
        assert self.mine.bottom is not None
        with self.drawn("bottom", *place):
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
        await self.say(to, Activations(step, values, grid))

    async def say(self, to: str, message: Activations | CutGradients) -> None:
        self.said = True
        await self.me.send(to, message)

    def arrive(
        self, depth: int, came: list[Tensor], y: Tensor | None, share: float, place: Sequence[Any]
    ) -> tuple[list[Tensor], Tensor, float]:
        """(inputs, what goes on, loss). At the last stop the gradients are made at once, and lie with the
        inputs.
        """
        inputs = [v.detach().requires_grad_() for v in came]
        with self.drawn("stop", depth, *place):
            out = self.mine.stops[depth](inputs)
        if y is None:
            return inputs, out, 0.0
        loss = losses(self.terms.loss, out, y)
        (loss * share if share != 1 else loss).backward()
        return inputs, out, float(loss.detach()) * share

    async def back(self, to: str, step: int, gradient: Tensor | None, y: Tensor | None) -> None:
        if gradient is None:
            raise ProtocolError(
                f"{self.me.name!r} uses nothing of what {to!r} sent, so there is no gradient to send back. "
                "Check the merge and the part behind it."
            )
        if self.mine.protect is not None and y is not None:
            gradient = self.mine.protect.out(gradient, y, self.me.secret)
        await self.say(to, CutGradients(step, gradient))

    async def learn(self, turn: int, step: int, rows: Tensor) -> float:
        """One batch: forward over my parts, slice by slice; backward over them; a step. Gives my share of the
        loss, at the last stop.
        """
        route, mine, me = self.terms.routes[turn], self.mine, self.me.name
        last = len(route.stops) - 1
        pieces = list(rows.tensor_split(min(self.terms.slices, len(rows))))
        left: list[tuple[Tensor, Tensor | None]] = []
        total = 0.0
        if me in route.sources:
            for i, piece in enumerate(pieces):
                left.append(
                    await self.compute(lambda p=piece, i=i: self.leave(mine.x[turn][p], (turn, step, i)))
                )
                if route.stops[0] != me:
                    await self.send(route.stops[0], step, left[-1][0])
        at: dict[int, list[list[Tensor]]] = {}
        onward: dict[int, list[Tensor]] = {}
        for depth in (d for d, name in enumerate(route.stops) if name == me):
            senders = route.sources if depth == 0 else (route.stops[depth - 1],)
            for i, piece in enumerate(pieces):
                came = [
                    left[i][0]
                    if name == me and depth == 0
                    else await self.recv(name, Activations, step, len(piece))
                    for name in senders
                ]
                y = mine.y[turn][piece] if depth == last else None
                inputs, out, loss = await self.compute(
                    self.arrive, depth, came, y, len(piece) / len(rows), (turn, step, i)
                )
                at.setdefault(depth, []).append(inputs)
                onward.setdefault(depth, []).append(out)
                total += loss
                if depth == last:
                    await self._gradients(senders, depth, step, inputs, y)
                else:
                    await self.say(route.stops[depth + 1], Activations(step, out.detach(), []))
        for depth in sorted(at, reverse=True):
            if depth == last:
                continue
            senders = route.sources if depth == 0 else (route.stops[depth - 1],)
            for i, piece in enumerate(pieces):
                await self.compute(
                    onward[depth][i].backward,
                    await self.recv(route.stops[depth + 1], CutGradients, step, len(piece)),
                )
                await self._gradients(senders, depth, step, at[depth][i], None)
        for i, piece in enumerate(pieces if left else ()):
            z, extra = left[i]
            gradient: Tensor | None
            if route.stops[0] == me:
                gradient = at[0][i][route.sources.index(me)].grad
            else:
                gradient = await self.recv(route.stops[0], CutGradients, step, len(piece))
            await self.compute(self._backward, z, extra, gradient, len(piece) / len(rows))
        await self.compute(self._step)
        return total

    async def _gradients(
        self, senders: Sequence[str], depth: int, step: int, inputs: list[Tensor], y: Tensor | None
    ) -> None:
        for name, value in zip(senders, inputs):
            if not (name == self.me.name and depth == 0):  # my own source has it already
                await self.back(name, step, value.grad, y)

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

    # --- rows nobody learns from ----------------------------------------------------------------------------

    async def outputs(self, turn: int, count: int, x: Tensor | None) -> Tensor | None:
        """Forward only. The last stop has the network's outputs; the others have nothing."""
        route, me = self.terms.routes[turn], self.me.name
        self.parts.eval()
        outs: list[Tensor] = []
        try:
            for step, start in enumerate(range(0, count, CHUNK)):
                n = min(CHUNK, count - start)
                z = None
                if me in route.sources:
                    assert x is not None
                    z = await self.compute(self._quiet, lambda s=start, n=n: self.leave(x[s : s + n], ())[0])
                    if route.stops[0] != me:
                        await self.send(route.stops[0], step, z)
                for depth in (d for d, name in enumerate(route.stops) if name == me):
                    senders = route.sources if depth == 0 else (route.stops[depth - 1],)
                    came = [
                        z if name == me and depth == 0 else await self.recv(name, Activations, step, n)
                        for name in senders
                    ]
                    out = await self.compute(self._quiet, lambda d=depth, c=came: self.mine.stops[d](c))
                    if depth == len(route.stops) - 1:
                        outs.append(out)
                    else:
                        await self.say(route.stops[depth + 1], Activations(step, out, []))
        finally:
            self.parts.train()
        return torch.cat(outs) if outs else None

    @staticmethod
    def _quiet(work: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return work()

    # --- weights of clients that share a part ---------------------------------------------------------------

    def carried(self, memory: bool) -> dict[str, Tensor]:
        """My parts' weights and buffers; with `memory`, what the optimiser remembers of each, too."""
        made = {f"w.{k}": v.detach().clone() for k, v in self.parts.state_dict().items()}
        if memory and self.optimizer is not None:
            for i, p in enumerate(self.parts.parameters()):
                made |= {
                    f"o.{i}.{k}": torch.as_tensor(v).clone()
                    for k, v in self.optimizer.state.get(p, {}).items()
                    if v is not None
                }
        return made

    def take(self, vectors: Mapping[str, Tensor], sender: str, memory: bool) -> None:
        mine = self.parts.state_dict()
        if {k: v.shape for k, v in mine.items()} != {
            k[2:]: v.shape for k, v in vectors.items() if k.startswith("w.")
        }:
            raise ProtocolError(
                f"{sender!r} handed on weights that do not fit the part of {self.me.name!r}. All clients of "
                "a relay need the same part."
            )
        self.parts.load_state_dict({k: vectors[f"w.{k}"] for k in mine})
        if memory and self.optimizer is not None:
            for i, p in enumerate(self.parts.parameters()):
                state = {k.split(".", 2)[2]: v for k, v in vectors.items() if k.startswith(f"o.{i}.")}
                if state:
                    self.optimizer.state[p] = state
                else:
                    self.optimizer.state.pop(p, None)
