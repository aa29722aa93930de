"""A hierarchy of servers over real parties: an edge is the server of its own clients, and a client here.

    server                                edge e                               clients of e
      |<--- EdgeHere(job) ------------------|   at its start, also after a restart
      |---- EdgeTurn(job, 0) -------------->|
      |                                     |---- rounds.py, κ rounds of it ----->|
      |<--- EdgeModel(0, weight, vectors) --|
      |  weighted mean (hierarchy.py)       |
      |---- EdgeTurn(job, 1, mean) -------->|---- κ more rounds from the mean --->|
      …                                     …
      |---- EdgeTurn(job, T, mean) -------->|   the last
      |<--- EdgeDone() ---------------------|   it is on the edge's disk

The computation is that of hierarchy.py, whose `weighted_mean` is the ideal function. Clients notice nothing:
they agree on a contract with their edge, and answer it as they would any server.

Both sides state the digest of the job they run (the contract without what is an edge's own); another one ends
the run. A server or an edge that is restarted is asked again, and asks again, for the exchange it was in.

The server learns the model of each edge and the weight behind it: the mean of that edge's clients, and so a
client's own where only one of them took part. An edge learns what a server of rounds.py learns of its own
clients, and the means over all edges.

A lying edge can send any finite model, and claim any weight up to `most`: it has at most that share of the
mean, as a malicious client of that many rows has. It cannot speak for another edge (certificates), learn
another edge's model (sealed channels), or count twice (one model of an exchange is used). A lying server can
send any finite model, as any server can; clients' own contracts and policies bound what they contribute to.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from .hierarchy import weighted_mean

if TYPE_CHECKING:
    from ..parties.party import Party

MOST_STARTS = 100  # of an edge in one exchange: each is answered with the whole model
Vectors = dict[str, Tensor]
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class EdgeHere(Message, reveals="that an edge is there, and the digest of the job it runs"):
    job: str


class EdgeTurn(Message, reveals="which exchange is next, and the mean of the models of all edges"):
    job: str
    number: int
    vectors: dict[str, Tensor]


class EdgeModel(
    Message,
    reveals="the model an edge reached with its clients, and the weight (number of rows) behind it: a "
    "client's own, if only that one took part",
):
    number: int
    weight: float
    vectors: dict[str, Tensor]


class EdgeDone(Message, reveals="that an edge has the last mean"):
    pass


def shapes_of(vectors: Vectors) -> Shapes:
    return {k: (tuple(v.shape), v.dtype) for k, v in vectors.items()}


def find_fault(vectors: Vectors, expected: Shapes) -> str | None:
    """Return what is wrong with a model: a vector is missing, of another shape or type, or not finite."""
    for key in (*expected, *vectors):
        if key not in vectors or key not in expected:
            return f"it has {'no' if key in expected else 'an unexpected'} vector {key!r:.40}"
        shape, dtype = expected[key]
        if tuple(vectors[key].shape) != shape or vectors[key].dtype != dtype:
            return (
                f"its vector {key!r} has the shape {tuple(vectors[key].shape)} and {vectors[key].dtype}; it "
                f"must be {shape} and {dtype}"
            )
        if not torch.isfinite(vectors[key]).all():
            return f"its vector {key!r} contains NaN or infinity"
    return None


async def server(
    me: Party,
    edges: Sequence[str],
    job: str,
    exchanges: range,
    mean: Vectors,
    shapes: Shapes,
    most: float,
    merged: Callable[[int, Mapping[str, float], Vectors, Mapping[str, str]], Awaitable[None]],
) -> None:
    """Run the server: `merged` gets (exchange, weights, mean, {edge: why its model is not in it}).

    `mean` is the result of the exchange before these; empty at the start. `most` is the largest weight that
    an edge may claim.
    """

    async def ask(name: str, t: int, until: type[Message]) -> Message:
        """Send an edge its turn, again whenever it was restarted, until it answers."""
        await me.send(name, EdgeTurn(job, t, mean))
        starts = 0
        while True:
            answer = await me.recv(name, EdgeHere, EdgeModel, EdgeDone)
            if isinstance(answer, EdgeHere):
                starts += 1
                if starts > MOST_STARTS:
                    raise ProtocolError(
                        f"edge {name!r} said {starts} times in one exchange that it was started. Each time "
                        "it is sent the model; look at its log, and start again without it."
                    )
                if answer.job != job:
                    raise ProtocolError(
                        f"edge {name!r} runs another job than this server (digests {answer.job[:16]} and "
                        f"{job[:16]}). Compare the job files and --period: all but names and numbers of "
                        "parties must be equal."
                    )
                await me.send(name, EdgeTurn(job, t, mean))
            elif isinstance(answer, until) and (not isinstance(answer, EdgeModel) or answer.number == t):
                return answer

    for t in exchanges:
        answers = await _all(ask(name, t, EdgeModel) for name in edges)
        found: dict[str, tuple[float, Vectors]] = {}
        wrong: dict[str, str] = {}
        for name, answer in zip(edges, answers):
            assert isinstance(answer, EdgeModel)
            if not math.isfinite(answer.weight) or not 0 <= answer.weight <= most:
                wrong[name] = f"it claims the weight {answer.weight:g}; it may claim at most {most:g}"
            elif (fault := find_fault(answer.vectors, shapes)) is not None:
                wrong[name] = fault
            else:
                found[name] = answer.weight, answer.vectors
        if not found:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in wrong.items())
            raise ProtocolError(f"exchange {t + 1} has no valid model of an edge: {reasons}.")
        mean = weighted_mean(found)[1]
        await merged(t, {name: weight for name, (weight, _) in found.items()}, mean, wrong)
    await _all(ask(name, exchanges.stop, EdgeDone) for name in edges)


async def _all(work: Iterable[Coroutine[Any, Any, Message]]) -> list[Message]:
    """Await all of these; if one fails, the others end with it."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Uplink:
    """An edge's side: `exchange` its model for the mean, as often as its rounds say."""

    def __init__(self, me: Party, parent: str, job: str, shapes: Shapes):
        self.me, self.parent, self.job, self.shapes = me, parent, job, shapes
        self.turn: EdgeTurn | None = None  # the last that came

    async def start(self) -> None:
        await self.me.send(self.parent, EdgeHere(self.job))

    async def _next(self) -> EdgeTurn:
        turn = await self.me.recv(self.parent, EdgeTurn)
        if turn.job != self.job:
            raise ProtocolError(
                f"the server {self.parent!r} runs another job than this edge (digests {turn.job[:16]} and "
                f"{self.job[:16]}). Compare the job files and --period: all but names and numbers of parties "
                "must be equal."
            )
        self.turn = turn
        return turn

    async def exchange(self, t: int, weight: float, vectors: Vectors) -> Vectors:
        """Return the mean of exchange t (from 0). An edge that is restarted may ask again."""
        turn = self.turn or await self._next()
        while turn.number == t:
            await self.me.send(self.parent, EdgeModel(t, weight, vectors))
            turn = await self._next()  # the same one again, if the server was restarted
        if turn.number != t + 1:
            raise ProtocolError(
                f"the server {self.parent!r} is at exchange {turn.number}, and this edge at {t}. One of them "
                "was started from its beginning: start the server and all edges again."
            )
        if (fault := find_fault(turn.vectors, self.shapes)) is not None:
            raise ProtocolError(f"the mean that the server {self.parent!r} sent cannot be used: {fault}.")
        return turn.vectors

    async def finish(self) -> None:
        """Say that the last mean is on disk."""
        await self.me.send(self.parent, EdgeDone())
