"""`Batches.fold` for a stack of clients: one step for all of them, or a CUDA graph that is replayed.

`local` is written for one client and run under `vmap`. Only its loop must see the whole stack: finished
clients leave the stack, and on a GPU the few hundred small kernels of a step are launched as one graph. An
`autograd.Function` with a vmap rule is torch's public way to access the whole stack inside a vmapped
function.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..algorithms.types import Batch, Batches

Plan = tuple[Tensor, ...]  # (index, live, key) of a stack of clients, [S, T, …] each


class Stacked(Batches):
    """A client's plan inside a stack: its `fold` is run by the engine."""

    engine: FoldEngine

    def fold(self, step: Callable[..., Any], carry: Any, *fixed: Any) -> Any:
        call, leaves = _call(self.engine, step, carry, fixed)
        out = _Fold.apply(call, self.index, self.live, self.key, *leaves)  # type: ignore[no-untyped-call]
        return _rebuild(call.shape_carry, iter(out))


class Recorded(Batches):
    """The plan of one client that runs alone: its `fold` is run by the engine, as a graph."""

    engine: FoldEngine
    counts: list[int]  # the live rows of each step, if padding must be left out; else empty

    def fold(self, step: Callable[..., Any], carry: Any, *fixed: Any) -> Any:
        call, leaves = _call(self.engine, step, carry, fixed)
        call.own = (True,) * (len(leaves) - call.n_carry)
        stack = [leaf[None] for leaf in leaves]
        values, others = stack[: call.n_carry], stack[call.n_carry :]
        plan, t = (self.index[None], self.live[None], self.key[None]), 0
        self.engine.lengths = [len(self.index)]
        for count, steps in groupby(self.counts or [self.index.shape[1]] * len(self.index)):
            until = t + len(list(steps))
            part = tuple(x[:, t:until, :count] if x.dim() == 3 else x[:, t:until] for x in plan)
            values, t = self.engine.steps(call, part, values, others), until
        return _rebuild(call.shape_carry, iter(v[0] for v in values))


class _Leaf:
    def __repr__(self) -> str:
        return "·"


_LEAF = _Leaf()


def _flatten(thing: Any, leaves: list[Tensor]) -> Any:
    """The structure of nested dicts, tuples and dataclasses, with its tensors appended to `leaves`.

    Anything else is a constant.
    """
    if isinstance(thing, Tensor):
        leaves.append(thing)
        return _LEAF
    if isinstance(thing, dict):
        # sorted, because a step may build its memory in another order
        return {k: _flatten(thing[k], leaves) for k in sorted(thing)}
    if isinstance(thing, list):
        raise TypeError(
            "the carry and arguments of a fold must be tensors, dicts, tuples and dataclasses, not lists. "
            "Use a tuple."
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
    """A dataclass with tensor fields, such as an algorithm whose learning rate differs between clients."""

    thing: Any
    fields: dict[str, Any]

    def __repr__(self) -> str:
        return f"{type(self.thing).__name__}{self.fields}"


@dataclasses.dataclass
class _Call:
    """One fold: the step and the structure of its arguments."""

    engine: FoldEngine
    function: Callable[..., Any]
    shape_carry: Any
    shape_fixed: Any
    n_carry: int
    method: bool
    own: tuple[bool, ...] = ()  # whether each fixed tensor differs between clients; known inside the stack

    def one(self, index: Tensor, live: Tensor, key: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        """The step of one client as a function of tensors."""
        carry = _rebuild(self.shape_carry, iter(leaves[: self.n_carry]))
        owner, fixed = _rebuild(self.shape_fixed, iter(leaves[self.n_carry :]))
        arguments = ((owner,) if self.method else ()) + (carry, Batch(index, live, key)) + fixed
        out: list[Tensor] = []
        shape = _flatten(self.function(*arguments), out)
        if repr(shape) != repr(self.shape_carry):
            raise TypeError(
                f"{self.function.__qualname__} gets a carry of the form {self.shape_carry} and returns one "
                f"of the form {shape}. A step must return a carry of the same form."
            )
        return tuple(out)

    def stacked(self) -> Callable[..., tuple[Tensor, ...]]:
        """The step of all clients of a stack."""
        return torch.vmap(
            self.one, in_dims=(0, 0, 0, *[0] * self.n_carry, *[0 if o else None for o in self.own])
        )

    def run_each(self, batch: Sequence[Tensor], carry: list[Tensor], fixed: list[Tensor]) -> None:
        """Replace the carry of one client after the other by the next one, each on its stream."""
        main, streams = torch.cuda.current_stream(), self.engine.streams[: len(carry[0])]
        for stream in streams:
            stream.wait_stream(main)
        for s in range(len(carry[0])):
            with torch.cuda.stream(streams[s % len(streams)]):
                own = [f[s] if o else f for f, o in zip(fixed, self.own)]
                after = self.one(*(x[s] for x in batch), *(c[s] for c in carry), *own)
                for old, new in zip(carry, after):
                    old[s].copy_(new)
        for stream in streams:
            main.wait_stream(stream)

    def signature(self) -> str:
        return (
            f"{self.function.__module__}.{self.function.__qualname__} {self.shape_carry} {self.shape_fixed}"
        )


def _call(engine: FoldEngine, step: Callable[..., Any], carry: Any, fixed: Any) -> tuple[_Call, list[Tensor]]:
    """A fold, and the tensors of its carry and its other arguments."""
    owner, function = getattr(step, "__self__", None), getattr(step, "__func__", step)
    leaves: list[Tensor] = []
    shape_carry = _flatten(carry, leaves)
    n_carry = len(leaves)
    shape_fixed = _flatten((owner, fixed), leaves)
    return _Call(engine, function, shape_carry, shape_fixed, n_carry, owner is not None), leaves


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
        plan, leaves, dims = tuple(front[:3]), front[3:], list(in_dims[4:])
        for i in range(call.n_carry):  # after the first step every client has its own carry
            if dims[i] is None:
                leaves[i] = leaves[i].expand(info.batch_size, *leaves[i].shape)
                dims[i] = 0
        call.own = tuple(d is not None for d in dims[call.n_carry :])
        out = call.engine.run(call, plan, leaves[: call.n_carry], leaves[call.n_carry :])
        return tuple(out), (0,) * len(out)


class FoldEngine:
    """Runs folds. `lengths[s]` is the number of steps of client s, in descending order."""

    def __init__(self, graphs: bool = False, streams: int = 0):
        """`streams`: run a step client by client, on so many streams of the GPU, instead of as a stack."""
        self.lengths: list[int] = []
        self.graphs = graphs
        self.streams = [torch.cuda.Stream() for _ in range(streams)]
        self.graph_cache: dict[Any, _Graph] = {}  # the most recently used last
        self.seen: set[Any] = set()
        self.pool: Any = None
        self.rows: Any = None

    def use_rows(self, rows: Any) -> None:
        """Set the memory from which the steps read rows; graphs contain its addresses and are discarded."""
        if rows != self.rows:
            self.graph_cache.clear()
            self.seen.clear()
            self.rows = rows

    def run(self, call: _Call, plan: Plan, carry: list[Tensor], fixed: list[Tensor]) -> list[Tensor]:
        done: list[list[Tensor]] = []  # finished clients, shortest first
        t = 0
        while carry[0].shape[0]:
            s = carry[0].shape[0]
            until = self.lengths[s - 1]  # the steps of the shortest remaining client
            mine = [f[:s] if o else f for f, o in zip(fixed, call.own)]
            carry = self.steps(call, tuple(x[:s, t:until] for x in plan), carry, mine)
            t = until
            stay = sum(length > t for length in self.lengths[:s])
            done.append([c[stay:] for c in carry])
            carry = [c[:stay] for c in carry]
        return (
            done[0]
            if len(done) == 1
            else [torch.cat([part[i] for part in reversed(done)]) for i in range(call.n_carry)]
        )

    def steps(self, call: _Call, plan: Plan, carry: list[Tensor], fixed: list[Tensor]) -> list[Tensor]:
        if (
            self.graphs
            and self.lengths[0] > 1
            and (after := self._replay(call, plan, carry, fixed)) is not None
        ):
            return after
        if self.streams:
            carry = [c.clone() for c in carry]
            for t in range(plan[0].shape[1]):
                call.run_each([x[:, t] for x in plan], carry, fixed)
            return carry
        step = call.stacked()
        for t in range(plan[0].shape[1]):
            carry = list(step(*(x[:, t] for x in plan), *carry, *fixed))
        return carry

    def _replay(
        self, call: _Call, plan: Plan, carry: list[Tensor], fixed: list[Tensor]
    ) -> list[Tensor] | None:
        """Run the steps as a graph; None the first time a stack has this shape.

        Recording takes three steps, and full batches of other clients have another shape in every round.
        """
        s = len(plan[0])
        # plans of similar length share a graph, and stacks of similar size, because ragged clients leave
        # one by one
        room = 1 << (self.lengths[0] - 1).bit_length()
        size = s if s == len(self.lengths) else _round_up(s)

        def pad(t: Tensor) -> Tensor:
            return t if size == s else torch.cat([t, t[:1].expand(size - s, *t.shape[1:])])

        plan, carry = tuple(map(pad, plan)), [pad(c) for c in carry]
        fixed = [pad(f) if o else f for f, o in zip(fixed, call.own)]
        shapes = tuple((tuple(x.shape), x.dtype) for x in (*carry, *fixed))
        # without the number of steps: a graph has room for all of them
        name = (call.signature(), size, plan[0].shape[2], room, shapes, call.own)
        if name not in self.seen:
            self.seen.add(name)
            return None
        graph = self.graph_cache.pop(name, None) or _Graph(self, call, plan, room, carry, fixed)
        self.graph_cache[name] = graph
        if len(self.graph_cache) > GRAPHS:
            del self.graph_cache[next(iter(self.graph_cache))]
        return [c[:s] for c in graph.replay(plan, carry, fixed)]


GRAPHS = 64  # cached graphs, each with a copy of its stack; 250 ragged clients need 48 sizes


def _round_up(s: int) -> int:
    """The next of eight sizes between two powers of two: at most an eighth of the work is padding."""
    step = 1 << max(0, s.bit_length() - 4)
    return -(-s // step) * step


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: while a graph is recorded, no other graph may be destroyed."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Graph:
    """One stacked step as a CUDA graph over fixed buffers; a counter on the device selects the batch."""

    def __init__(
        self,
        engine: FoldEngine,
        call: _Call,
        plan: Plan,
        room: int,
        carry: list[Tensor],
        fixed: list[Tensor],
    ):
        self.plan = tuple(x.new_zeros(len(x), room, *x.shape[2:]) for x in plan)
        self.t = torch.zeros(1, dtype=torch.int64, device=plan[0].device)
        self.carry, self.fixed = [c.clone() for c in carry], [f.clone() for f in fixed]
        stacked = call.stacked()

        def step() -> None:
            batch = [x.index_select(1, self.t)[:, 0] for x in self.plan]
            if engine.streams:
                call.run_each(batch, self.carry, self.fixed)
            else:
                for old, new in zip(self.carry, stacked(*batch, *self.carry, *self.fixed)):
                    old.copy_(new)
            self.t += 1

        self._load(plan)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose kernels and allocate workspaces before recording
            for _ in range(2):
                step()
                self.t.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        if engine.pool is None:
            engine.pool = torch.cuda.graph_pool_handle()
        self.graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), torch.cuda.graph(self.graph, pool=engine.pool):
            step()

    def _load(self, plan: Plan) -> None:
        for buffer, value in zip(self.plan, plan):
            buffer[:, : value.shape[1]].copy_(value)

    def replay(self, plan: Plan, carry: list[Tensor], fixed: list[Tensor]) -> list[Tensor]:
        self._load(plan)
        for buffer, value in zip((*self.carry, *self.fixed), (*carry, *fixed)):
            buffer.copy_(value)
        self.t.zero_()
        for _ in range(plan[0].shape[1]):
            self.graph.replay()
        return [c.clone() for c in self.carry]
