"""FedMD: distillation between parties with different model architectures. D. Li, J. Wang: "FedMD:
Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019, Algorithm 1.

    server                                  party k
      |                                       |  trains on its own rows
      |<--- PublicScores(round, scores) ------|     its model's logits on the public rows
      |---- Consensus(round, scores) -------->|     their mean
      |                                       |  digest: fits the mean; revisit: trains on its own rows
      …                                       …

The server learns each party's scores on the public rows and nothing else; parties learn their mean. No
weights and no private rows are sent. Scores leak as much about a party's rows as any query access to its
model does: there is no formal bound.
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
            answers = await here.gather(parties, PublicScores)
            for name, answer in answers.items():
                if tuple(answer.scores.shape) != (rows, classes) or not torch.isfinite(answer.scores).all():
                    raise ProtocolError(
                        f"party {name!r} sent scores of shape {tuple(answer.scores.shape)} or non-finite "
                        f"scores; expected {(rows, classes)} finite numbers (public rows, classes)."
                    )
            await here.send(parties, Consensus(r, mean([answer.scores for answer in answers.values()])))


async def party(
    me: Party,
    rounds: int,
    scores: Callable[[], Tensor],
    learn: Callable[[int, Tensor], None],
    server: str = "server",
) -> None:
    for r in range(rounds):
        with me.scope(f"round {r}") as here:
            await here.send(server, PublicScores(r, scores()))
            learn(r, (await here.recv(server, Consensus)).scores)


def mean(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(scores)).mean(0)


def ideal(
    rounds: int, scores: Sequence[Callable[[], Tensor]], learn: Sequence[Callable[[int, Tensor], None]]
) -> None:
    """Compute the same in one place."""
    for r in range(rounds):
        agreed = mean([s() for s in scores])
        for step in learn:
            step(r, agreed)
