"""`Batches.fold` for a stack of clients: one step for all of them at once, or recorded once as a CUDA graph
and replayed.

`local` is written for one client and run under `vmap`. Its loop is the one place where the stack must be seen
as a whole: there finished clients leave, and on a GPU a step's few hundred small kernels are launched as one
graph. An `autograd.Function` with its own vmap rule is torch's public way to be handed the whole stack inside
a vmapped function.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..algorithms.types import Batch, Batches


class Stacked(Batches):
    """A client's plan inside a stack: `fold` is handed to the engine that runs the stack."""

    engine: FoldEngine

    def fold(self, step: Callable[..., Any], carry: Any, *fixed: Any) -> Any:
        owner, function = getattr(step, "__self__", None), getattr(step, "__func__", step)
        leaves: list[Tensor] = []
        shape_carry = _flatten(carry, leaves)
        n_carry = len(leaves)
        shape_fixed = _flatten((owner, fixed), leaves)
        call = _Call(self.engine, function, shape_carry, shape_fixed, n_carry, owner is not None)
        out = _Fold.apply(call, self.index, self.live, self.key, *leaves)
        return _rebuild(shape_carry, iter(out))


class _Leaf:
    def __repr__(self) -> str:
        return "·"


_LEAF = _Leaf()


def _flatten(thing: Any, leaves: list[Tensor]) -> Any:
    """The shape of a nest of dicts, tuples and dataclasses, with its tensors moved to `leaves`. Anything else
    is a constant.
    """
    if isinstance(thing, Tensor):
        leaves.append(thing)
        return _LEAF
    if isinstance(thing, dict):
        return {
            k: _flatten(thing[k], leaves) for k in sorted(thing)
        }  # by name: a step may build its memory in another order
    if isinstance(thing, list):
        raise TypeError(
            "a fold's carry and arguments are tensors, dicts, tuples and dataclasses; a list was given. "
            "Make it a tuple."
        )
    if isinstance(thing, tuple):
        parts = [_flatten(v, leaves) for v in thing]
        return type(thing)(*parts) if hasattr(thing, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(thing) and any(
        isinstance(getattr(thing, f.name), Tensor) for f in dataclasses.fields(thing)
    ):
        return _Parts(
            thing, {f.name: _flatten(getattr(thing, f.name), leaves) for f in dataclasses.fields(thing)}
        )
    return thing


def _rebuild(shape: Any, leaves: Any) -> Any:
    if shape is _LEAF:
        return next(leaves)
    if isinstance(shape, dict):
        return {k: _rebuild(v, leaves) for k, v in shape.items()}
    if isinstance(shape, tuple):
        parts = [_rebuild(v, leaves) for v in shape]
        return type(shape)(*parts) if hasattr(shape, "_fields") else tuple(parts)
    if isinstance(shape, _Parts):
        return dataclasses.replace(shape.thing, **{k: _rebuild(v, leaves) for k, v in shape.fields.items()})
    return shape


@dataclasses.dataclass(frozen=True)
class _Parts:
    """A dataclass some of whose fields are tensors: an algorithm whose learning rate differs from client to
    client.
    """

    thing: Any
    fields: dict[str, Any]

    def __repr__(self) -> str:
        return f"{type(self.thing).__name__}{self.fields}"


class _Call:
    """One fold: the step, and how to take its arguments apart."""

    def __init__(
        self,
        engine: FoldEngine,
        function: Callable[..., Any],
        shape_carry: Any,
        shape_fixed: Any,
        n_carry: int,
        method: bool,
    ):
        self.engine, self.function, self.shape_carry, self.shape_fixed = (
            engine,
            function,
            shape_carry,
            shape_fixed,
        )
        self.n_carry, self.method = n_carry, method

    def one(self, index: Tensor, live: Tensor, key: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        """A step of one client, tensors in, tensors out: what vmap stacks."""
        carry = _rebuild(self.shape_carry, iter(leaves[: self.n_carry]))
        owner, fixed = _rebuild(self.shape_fixed, iter(leaves[self.n_carry :]))
        arguments = ((owner,) if self.method else ()) + (carry, Batch(index, live, key)) + fixed
        out: list[Tensor] = []
        shape = _flatten(self.function(*arguments), out)
        if repr(shape) != repr(self.shape_carry):
            raise TypeError(
                f"{self.function.__qualname__} was given a carry of the form {self.shape_carry} and gives "
                f"one of the form {shape}. "
                "A step must give back what it was given, with other values."
            )
        return tuple(out)

    def signature(self) -> str:
        return (
            f"{self.function.__module__}.{self.function.__qualname__} {self.shape_carry} {self.shape_fixed}"
        )


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(call: _Call, index: Tensor, live: Tensor, key: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("Stacked.fold was called outside a stack; use Batches for one client")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: _Call, *tensors: Tensor) -> Any:
        front = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims[1:])]
        index, live, key, leaves = front[0], front[1], front[2], front[3:]
        dims = list(in_dims[4:])
        for i in range(call.n_carry):  # every client has its own carry from the first step on
            if dims[i] is None:
                leaves[i] = leaves[i].expand(info.batch_size, *leaves[i].shape)
                dims[i] = 0
        out = call.engine.run(
            call,
            index,
            live,
            key,
            leaves[: call.n_carry],
            leaves[call.n_carry :],
            [d is not None for d in dims[call.n_carry :]],
        )
        return tuple(out), (0,) * len(out)


class FoldEngine:
    """Runs folds. `lengths[s]` is the number of steps of client s; clients stand in the stack longest
    first.
    """

    def __init__(self, graphs: bool = False):
        self.lengths: list[int] = []
        self.graphs = graphs
        self.recorded: dict[Any, _Graph] = {}  # in order of use, the latest last
        self.seen: set[Any] = set()
        self.pool: Any = None
        self.rows: Any = None

    def over(self, rows: Any) -> None:
        """The memory the steps read their rows from. A recording has its addresses in it, so other rows need
        other recordings.
        """
        if rows != self.rows:
            self.recorded.clear()
            self.seen.clear()
            self.rows = rows

    def run(
        self,
        call: _Call,
        index: Tensor,
        live: Tensor,
        key: Tensor,
        carry: list[Tensor],
        fixed: list[Tensor],
        own: list[bool],
    ) -> list[Tensor]:
        done: list[list[Tensor]] = []  # finished clients, shortest first
        t = 0
        while carry[0].shape[0]:
            s = carry[0].shape[0]
            until = self.lengths[s - 1]  # the shortest client still here
            mine = [f[:s] if o else f for f, o in zip(fixed, own)]
            carry = self._steps(
                call, index[:s, t:until], live[:s, t:until], key[:s, t:until], carry, mine, own
            )
            t = until
            stay = sum(length > t for length in self.lengths[:s])
            done.append([c[stay:] for c in carry])
            carry = [c[:stay] for c in carry]
        return (
            done[0]
            if len(done) == 1
            else [torch.cat([part[i] for part in reversed(done)]) for i in range(call.n_carry)]
        )

    def _steps(
        self,
        call: _Call,
        index: Tensor,
        live: Tensor,
        key: Tensor,
        carry: list[Tensor],
        fixed: list[Tensor],
        own: list[bool],
    ) -> list[Tensor]:
        if (
            self.graphs
            and self.lengths[0] > 1
            and (after := self._replay(call, index, live, key, carry, fixed, own)) is not None
        ):
            return after
        many = torch.vmap(call.one, in_dims=(0, 0, 0, *[0] * call.n_carry, *[0 if o else None for o in own]))
        for t in range(index.shape[1]):
            carry = list(many(index[:, t], live[:, t], key[:, t], *carry, *fixed))
        return carry

    def _replay(
        self,
        call: _Call,
        index: Tensor,
        live: Tensor,
        key: Tensor,
        carry: list[Tensor],
        fixed: list[Tensor],
        own: list[bool],
    ) -> list[Tensor] | None:
        """None the first time that a stack has this shape: whole batches of other clients have another every
        round, and a recording takes three steps.
        """
        s = len(index)
        room = (
            1 << (self.lengths[0] - 1).bit_length()
        )  # plans of similar length share a recording, and so do the pieces of one
        size = (
            s if s == len(self.lengths) else _rounded(s)
        )  # so do stacks of similar size: ragged clients leave one by one

        def filled(t: Tensor) -> Tensor:
            return (
                t if size == s else torch.cat([t, t[:1].expand(size - s, *t.shape[1:])])
            )  # company for the last ones; nobody reads it

        index, live, key, carry = filled(index), filled(live), filled(key), [filled(c) for c in carry]
        fixed = [filled(f) if o else f for f, o in zip(fixed, own)]
        shapes = tuple((tuple(x.shape), x.dtype) for x in (*carry, *fixed))
        name = (
            call.signature(),
            size,
            index.shape[2],
            room,
            shapes,
            tuple(own),
        )  # not how many steps: a recording has room for all of them
        if name not in self.seen:
            self.seen.add(name)
            return None
        graph = self.recorded.pop(name, None) or _Graph(self, call, index, live, key, room, carry, fixed, own)
        self.recorded[name] = graph
        if len(self.recorded) > RECORDINGS:
            del self.recorded[next(iter(self.recorded))]
        return [c[:s] for c in graph.play(index, live, key, carry, fixed)]


RECORDINGS = 64  # graphs kept; each holds a copy of its stack, and 250 ragged clients leave through 48 sizes


def _rounded(s: int) -> int:
    """Up to the next of eight sizes between two powers of two: at most an eighth is computed in vain."""
    step = 1 << max(0, s.bit_length() - 4)
    return -(-s // step) * step


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """While a graph is recorded no other may be destroyed, and those of an earlier run are, whenever Python's
    collector finds them.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Graph:
    """One stacked step as a CUDA graph over buffers that stay where they are; a counter on the device walks
    through the plan.
    """

    def __init__(
        self,
        engine: FoldEngine,
        call: _Call,
        index: Tensor,
        live: Tensor,
        key: Tensor,
        room: int,
        carry: list[Tensor],
        fixed: list[Tensor],
        own: list[bool],
    ):
        s, steps, width = index.shape
        self.index, self.live = index.new_zeros(s, room, width), live.new_zeros(s, room, width)
        self.key = key.new_zeros(s, room)
        self.t = torch.zeros(1, dtype=torch.int64, device=index.device)
        self.carry, self.fixed = [c.clone() for c in carry], [f.clone() for f in fixed]
        many = torch.vmap(call.one, in_dims=(0, 0, 0, *[0] * call.n_carry, *[0 if o else None for o in own]))

        def step() -> None:
            batch = (
                self.index.index_select(1, self.t)[:, 0],
                self.live.index_select(1, self.t)[:, 0],
                self.key.index_select(1, self.t)[:, 0],
            )
            for old, new in zip(self.carry, many(*batch, *self.carry, *self.fixed)):
                old.copy_(new)
            self.t += 1

        self.index[:, :steps].copy_(index)
        self.live[:, :steps].copy_(live)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            stream
        ):  # libraries choose their kernels and allocate their workspaces before the recording
            for _ in range(2):
                step()
                self.t.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        if engine.pool is None:
            engine.pool = torch.cuda.graph_pool_handle()
        self.graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), torch.cuda.graph(self.graph, pool=engine.pool):
            step()

    def play(
        self, index: Tensor, live: Tensor, key: Tensor, carry: list[Tensor], fixed: list[Tensor]
    ) -> list[Tensor]:
        steps = index.shape[1]
        self.index[:, :steps].copy_(index)
        self.live[:, :steps].copy_(live)
        self.key[:, :steps].copy_(key)
        for mine, theirs in zip((*self.carry, *self.fixed), (*carry, *fixed)):
            mine.copy_(theirs)
        self.t.zero_()
        for _ in range(steps):
            self.graph.replay()
        return [c.clone() for c in self.carry]
