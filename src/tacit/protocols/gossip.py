"""Decentralized training: every node has its own model, and neighbors average theirs.

Averaging (D-SGD): X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS
2017; with several local steps, A. Koloskova et al., "A Unified Theory of Decentralized SGD with Changing
Topology and Local Updates", ICML 2020, Algorithm 1.

    node i                                     each neighbor j
      |  local steps on its own rows              |  the same
      |---- Model(share, vectors) --------------->|     in the scope of this round
      |<--- Model(share, vectors) ----------------|
      |  Σ_j W_ij · model_j                       |

Push-sum (directed links): M. Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", ICML
2019, Algorithm 1. The same messages; the columns of W sum to one, and `share` (w in the paper) corrects the
bias: a node trains vectors / share.

Gossip learning by push: R. Ormándi, I. Hegedűs, M. Jelasity, "Gossip learning with linear models on fully
distributed data", Concurrency and Computation 25(4), 2013, Algorithm 1. A node wakes every Δ, picks a
neighbor and sends its model. The receiver merges it with its own, weighted by age, and takes local steps.

    node i  ---- Model(age, vectors) ---->  one neighbor, whenever i wakes
            ---- Asleep() --------------->  all its receivers, after its last wake

Hidden averaging (the idea of SecureD-FL: B. Jeon, S. M. Ferdous, M. R. Rahman, A. Walid, "Privacy-preserving
Decentralized Aggregation for Federated Learning", INFOCOM Workshops 2021; they average by ADMM and hide
models by the communication schedule, without encryption): the neighbors of every node run a secure sum
(secagg.py) with that node as the server, so it learns the weighted sum of their models and no single model.
It needs at least two neighbors. If all neighbors but one collude with the node, they learn that one's model.

Without hiding, a node sees its neighbors' models. It never sees rows, and learns about other nodes only
through its neighbors' models.
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
    """One node's part in an exchange: its receivers, and the weights of the models it averages."""

    to: Sequence[str]
    takes: Mapping[str, float]


async def average(
    me: Party, t: int, exchange: Exchange, share: float, vectors: Vectors
) -> tuple[float, Vectors]:
    """Return (Σ_j W_ij share_j, Σ_j W_ij vectors_j), in the same order of names in all runtimes."""
    with me.scope(f"exchange {t}") as scope:
        await scope.send(exchange.to, Model(share, vectors))
        messages = await scope.gather([name for name in exchange.takes if name != me.name], Model)
    models = {name: (m.share, m.vectors) for name, m in messages.items()}
    return mix_models(exchange.takes, models | {me.name: (share, vectors)})


def mix_models(
    coefficients: Mapping[str, float], models: Mapping[str, tuple[float, Vectors]]
) -> tuple[float, Vectors]:
    weights = torch.tensor(list(coefficients.values()), dtype=torch.float32)
    return (
        float(sum(weight * models[name][0] for name, weight in coefficients.items())),
        {
            k: torch.einsum(
                "n,n...->...", weights, torch.stack([models[name][1][k] for name in coefficients])
            )
            for k in next(iter(models.values()))[1]
        },
    )


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point encoding of models for a secure sum: rounded to `step`, clipped to ±`most`."""

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
    encoding: FixedPoint,
) -> tuple[float, Vectors]:
    """Average without revealing single models; `around` has each neighbor's averaging weights."""
    from . import secagg

    flat = torch.cat([v.reshape(-1) for v in vectors.values()])

    def terms(center: str, n: int) -> secagg.SecAggTerms:
        return secagg.SecAggTerms(
            f"{encoding.federation}, around {center}", n, len(flat), encoding.bound, threshold=1.0
        )

    async def center_sum() -> Tensor:
        others = [name for name in exchange.takes if name != me.name]
        with me.scope(f"hidden {t} {me.name}") as scope:
            return (await secagg.server(scope, others, terms(me.name, len(others)))).total

    async def help_neighbor(center: str) -> None:
        values = (
            (around[center][me.name] * flat.double())
            .clamp(-encoding.most, encoding.most)
            .div(encoding.step)
            .round()
            .to(torch.int64)
        )
        with me.scope(f"hidden {t} {center}") as scope:
            await secagg.client(scope, values, terms(center, len(around[center]) - 1), server=center)

    total, *_ = await asyncio.gather(center_sum(), *(help_neighbor(center) for center in exchange.to))
    assert total is not None
    result = exchange.takes[me.name] * flat.double() + total.double() * encoding.step
    pieces = torch.split(result.to(torch.float32), [v.numel() for v in vectors.values()])
    return 1.0, {k: p.view(v.shape) for (k, v), p in zip(vectors.items(), pieces)}


async def node(
    me: Party,
    rounds: range,
    period: int,
    exchange: Callable[[int], Exchange],
    local_steps: Callable[[int, Vectors], Vectors],
    start: tuple[float, Vectors],
    mix: Callable[[Party, int, Exchange, float, Vectors], Any],
    after: Callable[[int, float, Vectors], None] = lambda r, share, v: None,
) -> tuple[float, Vectors]:
    """Run a node: local steps in every round, an exchange in every `period`-th.

    Returns (share, vectors): the node's model is vectors / share.
    """
    share, vectors = start
    for r in rounds:
        before = {k: v / share for k, v in vectors.items()}
        updated = local_steps(r, before)
        vectors = {k: v + updated[k] - before[k] for k, v in vectors.items()} if share != 1 else updated
        if (r + 1) % period == 0:
            t = (r + 1) // period - 1
            share, vectors = await mix(me, t, exchange(t), share, vectors)
        after(r, share, vectors)
    return share, vectors


def ideal(
    rounds: range,
    period: int,
    weights: Callable[[int], Tensor],
    local_steps: Callable[[int, Vectors], Vectors],
    share: Tensor,
    vectors: Vectors,
) -> Iterator[tuple[int, Tensor, Vectors]]:
    """Compute the same for all nodes at once: an exchange is Θ ← WΘ.

    vectors [n, …], share [n]. Yields (round, share, vectors).
    """
    for r in rounds:
        before = {k: v / _along(share, v) for k, v in vectors.items()}
        updated = local_steps(r, before)
        vectors = (
            updated
            if bool((share == 1).all())
            else {k: v + updated[k] - before[k] for k, v in vectors.items()}
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
    """When a node wakes, which neighbor it picks, and in which periods it is offline: [cycles] each.

    It follows from the seed, so it is the same in all runtimes.
    """

    wakes: np.ndarray
    picks: np.ndarray
    away: np.ndarray


def wake_schedule(
    seed: int, k: int, neighbors: Sequence[int], cycles: range, wait: float, churn: float
) -> WakeSchedule:
    phase = np.random.default_rng([seed, k, 0]).random() * wait
    draws = [np.random.default_rng([seed, k, 1 + c]) for c in cycles]
    picks = [neighbors[int(d.integers(len(neighbors)))] if neighbors else k for d in draws]
    return WakeSchedule(
        phase + wait * np.array(list(cycles), dtype=np.float64),
        np.array(picks, dtype=np.int64),
        np.array([d.random() < churn for d in draws], dtype=bool),
    )


def merge_by_age(age: float, own: Vectors, other_age: float, other: Vectors) -> tuple[float, Vectors]:
    """Merge two models weighted by their number of local updates; without any, average them."""
    total = age + other_age
    part = other_age / total if total else 0.5
    return max(age, other_age), {k: v + part * (other[k] - v) for k, v in own.items()}


async def pusher(
    me: Party,
    schedule: WakeSchedule,
    names: Sequence[str],
    wait: float,
    first: int,
    local_steps: Callable[[int, Vectors], Vectors],
    start: tuple[float, Vectors],
    receivers: Sequence[str],
    senders: Sequence[str],
) -> tuple[float, Vectors]:
    """Run a node over the cycles of its schedule, which begin with `first`; return (age, model)."""
    age, vectors = start
    start_time = me.clock.now() - wait * first
    updates = 0

    def is_away(now: float) -> bool:
        cycle = int((now - start_time) / wait) - first
        return 0 <= cycle < len(schedule.away) and bool(schedule.away[cycle])

    async def send_models() -> None:
        for wake, pick, skipped in zip(schedule.wakes, schedule.picks, schedule.away):
            await me.clock.until(start_time + wake)
            if not skipped:
                await me.send(names[pick], Model(age, vectors))
        await me.clock.until(start_time + wait * (first + len(schedule.wakes)))
        await me.send(receivers, Asleep())

    async def receive_models() -> None:
        nonlocal age, vectors, updates
        awake = set(senders)
        while awake:
            sender, message = await me.first(Model, Asleep)
            if not isinstance(message, Model):
                awake.discard(sender)
            elif not is_away(me.clock.now()):  # an offline node receives nothing: the model is lost
                age, vectors = merge_by_age(age, vectors, message.share, message.vectors)
                vectors, age, updates = local_steps(updates, vectors), age + 1, updates + 1

    await asyncio.gather(send_models(), receive_models())
    return age, vectors


class Push(NamedTuple):
    """One model sent in a simulation."""

    when: float
    sender: int
    receiver: int


def pushes(schedules: Sequence[WakeSchedule], wait: float, first: int) -> list[Push]:
    """Return all models that arrive, in order of arrival."""
    models = [
        Push(float(w), k, int(j))
        for k, b in enumerate(schedules)
        for w, j, skipped in zip(b.wakes, b.picks, b.away)
        if not skipped
    ]
    return sorted(p for p in models if not schedules[p.receiver].away[int(p.when / wait) - first])


def waves(events: Sequence[Push]) -> list[list[Push]]:
    """Group them so that a group can be computed at once.

    Within a group no node receives twice, or sends after it received.
    """
    groups: list[list[Push]] = []
    receivers: set[int] = set()
    for event in events:
        if not groups or event.sender in receivers or event.receiver in receivers:
            groups.append([])
            receivers = set()
        groups[-1].append(event)
        receivers.add(event.receiver)
    return groups
