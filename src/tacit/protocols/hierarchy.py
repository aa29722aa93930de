"""Hierarchical federated averaging. L. Liu, J. Zhang, S. H. Song, K. B. Letaief: "Client-Edge-Cloud
Hierarchical Federated Learning", ICC 2020, Algorithm 1 (HierFAVG).

    server                     edge e                                  clients of e
      |                          |---- rounds.py, κ rounds of it ------->|
      |<--- Below(weight, v) ----|                                       |
      |  weighted mean           |                                       |
      |---- Above(v) ----------->|                                       |

An edge is the server of rounds.py for its own clients, in the clear or with a hidden sum. After every
`period` rounds it sends its model to its parent and continues with the model it receives. There may be
further levels between edges and the server, each with its own period, counted in exchanges of the level
below.

An edge learns what the server of rounds.py learns about its own clients: with a hidden sum, only their mean.
A parent learns the edges' models and the number of rows behind each. An edge's model is the mean of its
clients': where only one of them took part, it is that client's. If every period is 1, the result equals
FedAvg.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..parties.message import Message

if TYPE_CHECKING:
    from ..parties.party import Party

Vectors = dict[str, Tensor]


class Below(
    Message,
    reveals="the model an edge reached with its clients, and the weight (number of rows) behind it: a "
    "client's own, if only that one took part",
):
    weight: float
    vectors: dict[str, Tensor]


class Above(Message, reveals="the mean of the models of all edges below the sender"):
    vectors: dict[str, Tensor]


async def edge(
    me: Party,
    parent: str,
    blocks: Sequence[range],
    serve: Callable[[range], Awaitable[None]],
    current_model: Callable[[], tuple[float, Vectors]],
    load_model: Callable[[Vectors], None],
) -> None:
    """Run an edge: `serve` a block of rounds, send `current_model()` to the parent, `load_model` its mean."""
    for t, block in enumerate(blocks):
        await serve(block)
        with me.scope(f"below {parent} {t}") as here:
            await here.send(parent, Below(*current_model()))
            load_model((await here.recv(parent, Above)).vectors)


async def level(
    me: Party,
    parent: str | None,
    below: Sequence[str],
    exchanges: int,
    period: int,
    after: Callable[[int, Vectors], Awaitable[None]] | None = None,
) -> None:
    """Average the models of the level below, `exchanges` times; every `period`-th mean is sent up first."""
    weight = 0.0
    for t in range(exchanges):
        with me.scope(f"below {me.name} {t}") as here:
            models = await here.gather(below, Below)
            behind, mean = weighted_mean({name: (m.weight, m.vectors) for name, m in models.items()})
            weight += behind
            if parent is not None and ((t + 1) % period == 0 or t + 1 == exchanges):
                with me.scope(f"below {parent} {t // period}") as there:
                    await there.send(parent, Below(weight, mean))
                    mean, weight = (await there.recv(parent, Above)).vectors, 0.0
            await here.send(below, Above(mean))
        if after is not None:
            await after(t, mean)


def weighted_mean(models: Mapping[str, tuple[float, Vectors]]) -> tuple[float, Vectors]:
    """Return (total weight, weighted mean). An edge without clients in these rounds has weight 0.

    This is also the ideal function.
    """
    weights = torch.tensor([w for w, _ in models.values()], dtype=torch.float64)
    total = float(weights.sum())
    share = (weights / total if total else torch.full_like(weights, 1 / len(weights))).to(torch.float32)
    return total, {
        k: torch.einsum("n,n...->...", share, torch.stack([v[k] for _, v in models.values()]))
        for k in next(iter(models.values()))[1]
    }


ideal = weighted_mean
