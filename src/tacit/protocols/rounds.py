"""Synchronous federated rounds.

    server                                    client k (chosen in this round)
      |---- Down(round, vectors) --------------->|
      |                                          |  local(…) on its own rows
      |<--- Upload(weight, vectors) -----------------|
      |  merge                                   |
      …                                          …
      |---- Test(round, vectors) --------------->|   now and then, to everyone
      |<--- Tested(counts) ----------------------|
      |---- Stop() ----------------------------->|   at the end

The server learns each chosen client's weight and update in the clear, and everyone's counts on its own held-out rows; the clients learn
the model. Nobody's rows are sent. Against a curious server this hides nothing an update gives away: guards and secure aggregation do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..parties.message import Message

if TYPE_CHECKING:
    from ..parties.party import Party  # only named here: a simulation that notes what would be said needs no msgpack

Vectors = dict[str, Tensor]


class Down(Message, reveals="the server's current model, and the part of its state that the algorithm sends"):
    round: int
    vectors: dict[str, Tensor]


class Upload(Message, reveals="one party's model update and its weight (its number of rows), in the clear"):
    weight: float
    vectors: dict[str, Tensor]


class Test(Message, reveals="the server's current model, to be tested on held-out rows"):
    round: int
    vectors: dict[str, Tensor]


class Tested(Message, reveals="one party's counts on its held-out rows: confusion matrix, summed loss, score histograms"):
    counts: dict[str, Tensor]


class Stop(Message, reveals="that the run is over"):
    pass


async def server(me: Party, clients: Sequence[str], rounds: Iterable[int], choose: Callable[[int], Sequence[str]], down: Callable[[int], Vectors],
                 merge: Callable[[int, dict[str, tuple[float, Vectors]]], None], test: Callable[[int], Vectors | None],
                 tested: Callable[[int, dict[str, Vectors]], None]) -> None:
    """`choose` who takes part, send `down`, `merge` what comes up; where `test` gives a model, have everyone test it.

    Rounds count from 0; the model before training is tested as that of round −1.
    """

    async def examine(r: int) -> None:
        model = test(r)
        if model is not None:
            await me.send(clients, Test(r, model))
            answers = await me.gather(clients, Tested)
            tested(r, {name: answer.counts for name, answer in answers.items()})

    for r in rounds:
        if r == 0:
            await examine(-1)
        chosen = choose(r)
        await me.send(chosen, Down(r, down(r)))
        ups = await me.gather(chosen, Upload)
        merge(r, {name: (up.weight, up.vectors) for name, up in ups.items()})
        await examine(r)
    await me.send(clients, Stop())


async def client(me: Party, local: Callable[[int, Vectors], tuple[float, Vectors]], test: Callable[[int, Vectors], Vectors],
                 boss: str = "server") -> None:
    """Answer the server until it says stop. What the client keeps between rounds stays inside `local`."""
    while True:
        message: Any = await me.recv(boss, Down, Test, Stop)
        if isinstance(message, Stop):
            return
        if isinstance(message, Down):
            await me.send(boss, Upload(*local(message.round, message.vectors)))
        else:
            await me.send(boss, Tested(test(message.round, message.vectors)))


def ideal(rounds: Iterable[int], choose: Callable[[int], Sequence[str]], down: Callable[[int], Vectors],
          local: dict[str, Callable[[int, Vectors], tuple[float, Vectors]]],
          merge: Callable[[int, dict[str, tuple[float, Vectors]]], None]) -> None:
    """What the programs compute: every chosen client's `local`, then `merge`, round by round."""
    for r in rounds:
        vectors = down(r)
        merge(r, {name: local[name](r, vectors) for name in choose(r)})
