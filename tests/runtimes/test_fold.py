"""The loop over batches, for a stack of clients at once: it must give what one client after the other
would.
"""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.algorithms.types import Batch, Batches
from tacit.runtimes import fold
from tacit.runtimes.fold import FoldEngine, Recorded, Stacked, _flatten, _rebuild, _round_up


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Stepper:
    """An algorithm whose rate may be a number, or a tensor with one value a client."""

    rate: Any

    def step(self, carry: Pair, batch: Batch, shift: dict[str, Tensor], word: str) -> Pair:
        assert word == "constant"
        total = (batch.index * batch.live).sum() * self.rate + shift["by"]
        return Pair(carry.a * 0.5 + total, {"count": carry.b["count"] + 1, "key": batch.key.double()})


def plans(lengths: list[int], width: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    n, t = len(lengths), max(lengths)
    return (
        torch.randint(0, 9, (n, t, width), generator=g),
        torch.randint(0, 2, (n, t, width), generator=g).double(),
        torch.randint(-99, 99, (n, t), generator=g),
        torch.ones(n),
    )


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    width=st.integers(1, 3),
    seed=st.integers(0, 99),
    own_rate=st.booleans(),
)
def test_a_stack_of_ragged_clients_folds_as_each_client_alone(
    lengths: list[int], width: int, seed: int, own_rate: bool
) -> None:
    lengths = sorted(lengths, reverse=True)
    index, live, key, size = plans(lengths, width, seed)
    rates = torch.arange(1.0, len(lengths) + 1).double()
    shift = torch.linspace(0, 1, len(lengths)).double()
    engine = FoldEngine()
    engine.lengths = lengths

    def one(index: Tensor, live: Tensor, key: Tensor, size: Tensor, rate: Tensor, by: Tensor) -> Any:
        batches = Stacked(index, live, key, size)
        batches.engine = engine
        return batches.fold(Stepper(rate if own_rate else 3.0).step, _start(), {"by": by}, "constant")

    got = torch.vmap(one)(index, live, key, size, rates, shift)
    for s, t in enumerate(lengths):
        alone = Batches(index[s, :t], live[s, :t], key[s, :t], size[s])
        want = alone.fold(
            Stepper(float(rates[s]) if own_rate else 3.0).step, _start(), {"by": shift[s]}, "constant"
        )
        assert torch.allclose(got.a[s], want.a)
        assert got.b["count"][s] == t == want.b["count"]
        assert got.b["key"][s] == want.b["key"]


def _start() -> Pair:
    return Pair(
        torch.zeros((), dtype=torch.float64),
        {"count": torch.zeros((), dtype=torch.int64), "key": torch.zeros((), dtype=torch.float64)},
    )


LEAVES = st.one_of(
    st.integers(), st.text(max_size=3), st.none(), st.integers(0, 9).map(lambda n: torch.tensor(float(n)))
)
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Stepper, inner),
    ),
    max_leaves=8,
)


def _sorted(thing: Any) -> str:
    """The nest as text, its dicts in the order of their names: the order they were built in means nothing."""
    if isinstance(thing, dict):
        return "{" + ", ".join(f"{k!r}: {_sorted(thing[k])}" for k in sorted(thing)) + "}"
    if isinstance(thing, tuple):
        return f"{type(thing).__name__}(" + ", ".join(map(_sorted, thing)) + ")"
    return f"Stepper({_sorted(thing.rate)})" if isinstance(thing, Stepper) else repr(thing)


@settings(max_examples=60, deadline=None)
@given(thing=NESTS)
def test_a_nest_taken_apart_and_put_together_is_the_same(thing: Any) -> None:
    leaves: list[Tensor] = []
    shape = _flatten(thing, leaves)
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    assert _sorted(_rebuild(shape, iter(leaves))) == _sorted(thing)


def test_the_same_step_has_the_same_signature_and_another_constant_another() -> None:
    """Recorded graphs are found by it."""

    def shape(thing: Any) -> str:
        return repr(_flatten(thing, []))

    assert shape((Stepper(torch.tensor(1.0)), 2)) == shape((Stepper(torch.tensor(5.0)), 2))
    assert shape((Stepper(1.0), 2)) != shape((Stepper(1.5), 2))


def test_a_stacked_plan_outside_a_stack_is_refused() -> None:
    batches = Stacked(*(t[0] for t in plans([2], 1, 0)))
    batches.engine = FoldEngine()
    with pytest.raises(RuntimeError, match="outside a stack; use Batches for one client"):
        batches.fold(Stepper(1.0).step, _start(), {"by": torch.zeros(())}, "constant")


def _folded(step: Any, carry: Any) -> Any:
    """Two clients, two steps each, stacked."""
    index, live, key, size = plans([2, 2], 3, 0)
    engine = FoldEngine()
    engine.lengths = [2, 2]

    def one(index: Tensor, live: Tensor, key: Tensor, size: Tensor) -> Any:
        batches = Stacked(index, live, key, size)
        batches.engine = engine
        return batches.fold(step, carry)

    return torch.vmap(one)(index, live, key, size)


def test_a_memory_built_in_another_order_keeps_its_names() -> None:
    start = {"a": torch.zeros(()), "b": torch.ones(())}
    got = _folded(lambda carry, batch: {"b": carry["b"] * 3, "a": carry["a"] + 1}, start)
    assert got["a"].tolist() == [2, 2]
    assert got["b"].tolist() == [9, 9]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda carry, batch: {"a": carry["a"]}, "must return a carry of the same form"),
        (lambda carry, batch: [carry["a"]], "not lists"),
    ],
)
def test_a_step_that_changes_the_form_of_its_carry_is_refused(step: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        _folded(step, {"a": torch.zeros(()), "b": torch.ones(())})


def test_stacks_of_similar_size_share_a_recording() -> None:
    assert [_round_up(s) for s in (1, 7, 8, 9, 15, 16, 17, 33, 100, 1000)] == [
        1,
        7,
        8,
        9,
        15,
        16,
        18,
        36,
        104,
        1024,
    ]
    assert all(s <= _round_up(s) <= s * 9 / 8 for s in range(8, 3000))


class Played:
    """A recorded step without a card: what a graph is asked to do, done by the CPU."""

    made: ClassVar[list[Played]] = []

    def __init__(self, engine: Any, call: Any, plan: tuple[Tensor, ...], room: int, carry: Any, fixed: Any):
        self.many = call.stacked()
        self.shape = len(plan[0]), room
        self.made.append(self)

    def replay(self, plan: tuple[Tensor, ...], carry: Any, fixed: Any) -> list[Tensor]:
        assert len(plan[0]) == self.shape[0]
        assert plan[0].shape[1] <= self.shape[1]  # there is room for so many steps
        for t in range(plan[0].shape[1]):
            carry = self.many(*(x[:, t] for x in plan), *carry, *fixed)
        return list(carry)


def test_recordings_are_shared_by_chunks_and_plans_of_one_size_and_made_at_the_second_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that leaves ends a piece of the plan; pieces of one stack are of every length."""
    monkeypatch.setattr(fold, "_Graph", Played)
    monkeypatch.setattr(Played, "made", [])
    engine = FoldEngine(graphs=True)

    def run(lengths: list[int], engine: FoldEngine, seed: int = 0) -> Any:
        index, live, key, size = plans(lengths, 2, seed)
        engine.lengths = lengths

        def one(index: Tensor, live: Tensor, key: Tensor, size: Tensor) -> Any:
            batches = Stacked(index, live, key, size)
            batches.engine = engine
            return batches.fold(Stepper(3.0).step, _start(), {"by": torch.ones(()).double()}, "constant")

        return torch.vmap(one)(index, live, key, size)

    ragged = [13, *[12] * 20, *[9] * 8, 7, 2, 1, 1]
    sizes = [33, 32, 30, 30, 22, 1]  # in the stack after each leaves, rounded up: two pieces have room for 30
    for made in (1, 5, 5):  # seen (30 twice), recorded, and shared from then on
        got, want = run(ragged, engine), run(ragged, FoldEngine())
        assert torch.equal(got.a, want.a)
        assert torch.equal(got.b["count"], torch.tensor(ragged))
        assert len(Played.made) == made
    assert sorted(g.shape for g in Played.made) == sorted({(size, 16) for size in sizes})
    assert torch.equal(run([15, *ragged[1:]], engine, 5).a, run([15, *ragged[1:]], FoldEngine(), 5).a)
    assert len(Played.made) == 5  # other lengths, the same recordings
    run([1, 1], engine)
    run([1, 1], engine)
    assert len(Played.made) == 5  # one step is not worth a recording


class Stream:
    """A stream without a card: it does what it is asked at once."""

    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, Stream)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    return [Stream(), Stream()]


def test_ragged_clients_on_streams_fold_as_each_client_alone(streams: Any) -> None:
    lengths = [5, 5, 3, 1]
    index, live, key, size = plans(lengths, 3, 0)
    engine = FoldEngine()
    engine.lengths, engine.streams = lengths, streams

    def one(index: Tensor, live: Tensor, key: Tensor, size: Tensor, by: Tensor) -> Any:
        batches = Stacked(index, live, key, size)
        batches.engine = engine
        return batches.fold(Stepper(3.0).step, _start(), {"by": by}, "constant")

    shift = torch.linspace(0, 1, 4).double()
    got = torch.vmap(one)(index, live, key, size, shift)
    for s, t in enumerate(lengths):
        alone = Batches(index[s, :t], live[s, :t], key[s, :t], size[s])
        want = alone.fold(Stepper(3.0).step, _start(), {"by": shift[s]}, "constant")
        assert torch.allclose(got.a[s], want.a)
        assert got.b["count"][s] == t


def test_a_client_alone_is_recorded_without_the_padding_of_its_batches(streams: Any) -> None:
    """Its batches have 3, 3, 1, 3 and 2 live rows."""
    counts, widths = [3, 3, 1, 3, 2], []
    index, _, key, size = plans([5], 3, 0)
    live = (torch.arange(3) < torch.tensor(counts)[:, None]).double()

    def step(carry: Tensor, batch: Batch) -> Tensor:
        widths.append(len(batch.index))
        return carry * 2 + (batch.index * batch.live).sum()

    want = Batches(index[0], live, key[0], size[0]).fold(step, torch.zeros(()).double())
    for told, seen in ((counts, counts), ([], [3] * 5)):
        widths.clear()
        batches = Recorded(index[0], live, key[0], size[0])
        batches.engine, batches.counts = FoldEngine(), told
        batches.engine.streams = streams[:1]
        assert torch.equal(batches.fold(step, torch.zeros(()).double()), want)
        assert widths == seen


def test_nothing_is_collected_while_a_graph_is_recorded_and_afterwards_it_is_as_before() -> None:
    on = gc.isenabled()
    try:
        for before in (gc.enable, gc.disable):
            before()
            was = gc.isenabled()
            seen = []
            with contextlib.suppress(KeyError), fold._no_garbage_collection():
                seen.append(gc.isenabled())
                raise KeyError
            assert (seen, gc.isenabled()) == ([False], was)
    finally:
        (gc.enable if on else gc.disable)()
