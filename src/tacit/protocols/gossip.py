"""Training without a server: every node has a model of its own, and neighbours mix theirs.

Averaging (D-SGD): X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS
2017; with several local steps, A. Koloskova et al., "A Unified Theory of Decentralized SGD with Changing
Topology and Local Updates", ICML 2020, Algorithm 1.

    node i                                     each neighbour j
      |  local steps on its own rows              |  the same
      |---- Model(share, vectors) --------------->|     in the scope of this round
      |<--- Model(share, vectors) ----------------|
      |  Σ_j W_ij · model_j                       |

Push-sum (directed links): M. Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", ICML
2019, Algorithm 1. The same messages; W has columns that sum to one, and `share` (w in the paper) undoes the
bias: a node works with vectors / share.

Gossip learning by push: R. Ormándi, I. Hegedűs, M. Jelasity, "Gossip learning with linear models on fully
distributed data", Concurrency and Computation 25(4), 2013, Algorithm 1. A node wakes every Δ, picks a
neighbour, sends its model; whoever gets one merges it with its own, by age, and takes local steps.

    node i  ---- Model(age, vectors) ---->  one neighbour, whenever i wakes
            ---- Asleep() --------------->  all it may ever send to, after its last wake

Hidden averaging (the idea of SecureD-FL: B. Jeon, S. M. Ferdous, M. R. Rahman, A. Walid, "Privacy-preserving
Decentralized Aggregation for Federated Learning", INFOCOM Workshops 2021; they average by ADMM and hide by
who talks to whom in which round, with no cipher): around every node its neighbours run a secure sum
(secagg.py) of which that node is the server, so it learns the weighted sum of their models and no single one.
It needs two neighbours or more; neighbours that are all but one in league with the node open the last one's.

Without hiding, a node sees its neighbours' models whole; it never sees the rows, and never hears of nodes
that are not its neighbours, other than through them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..parties.message import Message

if TYPE_CHECKING:
    from ..parties.party import Party

Vectors = dict[str, Tensor]


class Model(Message, reveals="a node's whole model after its local steps, in the clear"):
    share: float
    vectors: dict[str, Tensor]


class Asleep(Message, reveals="that a node will send no more models"):
    pass


class Exchange(NamedTuple):
    """One node's part in one exchange: whom it sends to, and with which weights it takes whose (its own among
    them).
    """

    to: Sequence[str]
    takes: Mapping[str, float]


async def average(
    me: Party, t: int, exchange: Exchange, share: float, vectors: Vectors
) -> tuple[float, Vectors]:
    """(Σ_j W_ij share_j, Σ_j W_ij vectors_j), in the order of names that all runtimes share."""
    with me.scope(f"exchange {t}") as here:
        await here.send(exchange.to, Model(share, vectors))
        came = await here.gather([name for name in exchange.takes if name != me.name], Model)
    models = {name: (m.share, m.vectors) for name, m in came.items()} | {me.name: (share, vectors)}
    return mix_models(exchange.takes, models)


def mix_models(
    takes: Mapping[str, float], models: Mapping[str, tuple[float, Vectors]]
) -> tuple[float, Vectors]:
    weights = torch.tensor([takes[name] for name in takes], dtype=torch.float32)
    keys = next(iter(models.values()))[1]
    return (
        float(sum(takes[name] * models[name][0] for name in takes)),
        {
            k: torch.einsum("n,n...->...", weights, torch.stack([models[name][1][k] for name in takes]))
            for k in keys
        },
    )


@dataclass(frozen=True)
class FixedPoint:
    """How models become whole numbers for a secure sum: rounded to `step`, cut off at ±`most`."""

    federation: str
    step: float = 2.0**-20
    most: float = 64.0

    @property
    def bound(self) -> int:
        return int(self.most / self.step)


async def hidden_average(
    me: Party,
    t: int,
    exchange: Exchange,
    around: Mapping[str, Mapping[str, float]],
    vectors: Vectors,
    how: FixedPoint,
) -> tuple[float, Vectors]:
    """The same with nobody's model seen. `around` gives, for each neighbour, the weights with which it takes
    whose.
    """
    from . import secagg

    flat = torch.cat([v.reshape(-1) for v in vectors.values()])

    def terms(center: str, n: int) -> secagg.SecAggTerms:
        return secagg.SecAggTerms(
            f"{how.federation}, around {center}", n, len(flat), how.bound, threshold=1.0
        )

    async def heart() -> Tensor:
        others = [name for name in exchange.takes if name != me.name]
        with me.scope(f"hidden {t} {me.name}") as here:
            return (await secagg.server(here, others, terms(me.name, len(others)))).total

    async def helper(center: str) -> None:
        weight = around[center][me.name]
        values = (weight * flat.double()).clamp(-how.most, how.most).div(how.step).round().to(torch.int64)
        with me.scope(f"hidden {t} {center}") as here:
            await secagg.client(here, values, terms(center, len(around[center]) - 1), boss=center)

    total, *_ = await asyncio.gather(heart(), *(helper(center) for center in exchange.to))
    assert total is not None
    mine = exchange.takes[me.name] * flat.double() + total.double() * how.step
    pieces = mine.to(torch.float32).split([v.numel() for v in vectors.values()])
    return 1.0, {k: p.view(v.shape) for (k, v), p in zip(vectors.items(), pieces)}


async def node(
    me: Party,
    rounds: range,
    period: int,
    exchange: Callable[[int], Exchange],
    walk: Callable[[int, Vectors], Vectors],
    start: tuple[float, Vectors],
    mix: Callable[[Party, int, Exchange, float, Vectors], Any],
    after: Callable[[int, float, Vectors], None] = lambda r, share, v: None,
) -> tuple[float, Vectors]:
    """Local steps in every round; an exchange in every `period`-th. Returns (share, vectors): the node's
    model is vectors / share.
    """
    share, vectors = start
    for r in rounds:
        here = {k: v / share for k, v in vectors.items()}
        there = walk(r, here)
        vectors = {k: v + there[k] - here[k] for k, v in vectors.items()} if share != 1 else there
        if (r + 1) % period == 0:
            t = (r + 1) // period - 1
            share, vectors = await mix(me, t, exchange(t), share, vectors)
        after(r, share, vectors)
    return share, vectors


def ideal(
    rounds: range,
    period: int,
    weights: Callable[[int], Tensor],
    walk: Callable[[int, Vectors], Vectors],
    share: Tensor,
    vectors: Vectors,
) -> Iterator[tuple[int, Tensor, Vectors]]:
    """All nodes at once: vectors [n, …], share [n]; an exchange is Θ ← WΘ. Yields (round, share, vectors)."""
    for r in rounds:
        here = {k: v / _along(share, v) for k, v in vectors.items()}
        there = walk(r, here)
        vectors = (
            there if bool((share == 1).all()) else {k: v + there[k] - here[k] for k, v in vectors.items()}
        )
        if (r + 1) % period == 0:
            w = weights((r + 1) // period - 1)
            share, vectors = (
                w @ share,
                {k: (w @ v.reshape(len(v), -1)).view(v.shape) for k, v in vectors.items()},
            )
        yield r, share, vectors


def _along(share: Tensor, v: Tensor) -> Tensor:
    return share.view(-1, *[1] * (v.dim() - 1))


# gossip learning by push ------------------------------------------------------------------------------------


class WakeSchedule(NamedTuple):
    """When a node wakes, whom it then picks, and in which periods of Δ it is away: [cycles] each. It follows
    from the seed, so all runtimes live by it.
    """

    wakes: np.ndarray
    picks: np.ndarray
    away: np.ndarray


def wake_schedule(
    seed: int, k: int, neighbours: Sequence[int], cycles: range, wait: float, churn: float
) -> WakeSchedule:
    phase = np.random.default_rng([seed, k, 0]).random() * wait
    draws = [np.random.default_rng([seed, k, 1 + c]) for c in cycles]
    picks = np.array(
        [neighbours[int(d.integers(len(neighbours)))] if neighbours else k for d in draws], dtype=np.int64
    )
    away = np.array([d.random() < churn for d in draws], dtype=bool)
    return WakeSchedule(phase + wait * np.array(list(cycles), dtype=np.float64), picks, away)


def merge_by_age(age: float, mine: Vectors, older: float, theirs: Vectors) -> tuple[float, Vectors]:
    """Weighted by how many local updates each has behind it; two that have none are averaged."""
    total = age + older
    part = older / total if total else 0.5
    return max(age, older), {k: v + part * (theirs[k] - v) for k, v in mine.items()}


async def pusher(
    me: Party,
    book: WakeSchedule,
    names: Sequence[str],
    wait: float,
    first: int,
    walk: Callable[[int, Vectors], Vectors],
    start: tuple[float, Vectors],
    speaks_to: Sequence[str],
    hears: Sequence[str],
) -> tuple[float, Vectors]:
    """A node's life over the cycles of its diary, which begin with cycle `first`. Returns (age, model)."""
    age, vectors = start
    begun = me.clock.now() - wait * first
    works = 0

    def away(now: float) -> bool:
        cycle = int((now - begun) / wait) - first
        return 0 <= cycle < len(book.away) and bool(book.away[cycle])

    async def speak() -> None:
        for wake, pick, gone in zip(book.wakes, book.picks, book.away):
            await me.clock.until(begun + wake)
            if not gone:
                await me.send(names[pick], Model(age, vectors))
        await me.clock.until(begun + wait * (first + len(book.wakes)))
        await me.send(speaks_to, Asleep())

    async def listen() -> None:
        nonlocal age, vectors, works
        awake = set(hears)
        while awake:
            sender, message = await me.first(Model, Asleep)
            if not isinstance(message, Model):
                awake.discard(sender)
            elif not away(me.clock.now()):  # a node that is away hears nothing: the model is lost
                age, vectors = merge_by_age(age, vectors, message.share, message.vectors)
                vectors, age, works = walk(works, vectors), age + 1, works + 1

    await asyncio.gather(speak(), listen())
    return age, vectors


class Push(NamedTuple):
    """One model on its way in a simulation."""

    when: float
    sender: int
    receiver: int


def pushes(books: Sequence[WakeSchedule], wait: float, first: int) -> list[Push]:
    """All models that arrive, in the order in which they do."""
    sent = [
        Push(float(w), k, int(j))
        for k, b in enumerate(books)
        for w, j, gone in zip(b.wakes, b.picks, b.away)
        if not gone
    ]
    return sorted(p for p in sent if not books[p.receiver].away[int(p.when / wait) - first])


def waves(events: Sequence[Push]) -> list[list[Push]]:
    """The same in groups that can be worked out at once: within one nobody hears twice, or speaks after it
    has heard.
    """
    out: list[list[Push]] = []
    heard: set[int] = set()
    for event in events:
        if not out or event.sender in heard or event.receiver in heard:
            out.append([])
            heard = set()
        out[-1].append(event)
        heard.add(event.receiver)
    return out
