"""Parties with models of different makes teach each other. D. Li, J. Wang: "FedMD: Heterogenous Federated
Learning via Model Distillation", NeurIPS workshop 2019, Algorithm 1.

    server                                  party k
      |                                       |  learns on its own rows
      |<--- PublicScores(round, scores) ------|     its model's answers on the public rows
      |---- Consensus(round, scores) -------->|     their mean
      |                                       |  digest: learns to answer so; revisit: learns on its own rows again
      …                                       …

The server learns each party's scores on rows everybody has, and nothing else; parties learn the mean of
all. No weights and no own rows are sent. What the scores give away of a party's rows is what a model that
answers questions gives away: nothing bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message

if TYPE_CHECKING:
    from ..parties.party import Party


class PublicScores(Message, reveals="a party's model's scores on the public rows"):
    round: int
    scores: Tensor


class Consensus(Message, reveals="the mean of all parties' scores on the public rows"):
    round: int
    scores: Tensor


async def server(me: Party, parties: Sequence[str], rounds: int, rows: int, classes: int) -> None:
    for r in range(rounds):
        with me.scope(f"round {r}") as here:
            came = await here.gather(parties, PublicScores)
            for name, said in came.items():
                if tuple(said.scores.shape) != (rows, classes) or not torch.isfinite(said.scores).all():
                    raise ProtocolError(
                        f"party {name!r} sent scores of shape {tuple(said.scores.shape)} or not finite; "
                        f"{rows} public rows and {classes} "
                        "classes were agreed on."
                    )
            await here.send(parties, Consensus(r, mean([said.scores for said in came.values()])))


async def party(
    me: Party,
    rounds: int,
    scores: Callable[[], Tensor],
    learn: Callable[[int, Tensor], None],
    boss: str = "server",
) -> None:
    for r in range(rounds):
        with me.scope(f"round {r}") as here:
            await here.send(boss, PublicScores(r, scores()))
            learn(r, (await here.recv(boss, Consensus)).scores)


def mean(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(scores)).mean(0)


def ideal(
    rounds: int, scores: Sequence[Callable[[], Tensor]], learn: Sequence[Callable[[int, Tensor], None]]
) -> None:
    """What the programs compute."""
    for r in range(rounds):
        agreed = mean([s() for s in scores])
        for step in learn:
            step(r, agreed)
