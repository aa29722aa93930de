"""Servers below servers. L. Liu, J. Zhang, S. H. Song, K. B. Letaief: "Client-Edge-Cloud Hierarchical
Federated Learning", ICC 2020, Algorithm 1 (HierFAVG).

    server                     edge e                                  clients of e
      |                          |---- rounds.py, κ rounds of it ------->|
      |<--- Below(weight, v) ----|                                       |
      |  weighted mean           |                                       |
      |---- Above(v) ----------->|                                       |

An edge is the server of rounds.py to its own clients, in the clear or with a hidden sum. After every `period`
rounds it sends its model up, and goes on from what comes back. Between edges and the server there may be
further levels of the same kind, each with a period of its own, counted in exchanges of the level below.

An edge learns what the server of rounds.py learns, of its own clients only: with a hidden sum, their mean.
Whoever is above learns the edges' models and how many rows stand behind each; it never hears of a single
client. With every period 1 the result is FedAvg's.
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
    reveals="the model an edge reached with its clients, and the weight (number of rows) behind it; no "
    "single client's",
):
    weight: float
    vectors: dict[str, Tensor]


class Above(Message, reveals="the mean of the models of all edges below the sender"):
    vectors: dict[str, Tensor]


async def edge(
    me: Party,
    boss: str,
    blocks: Sequence[range],
    serve: Callable[[range], Awaitable[None]],
    stand: Callable[[], tuple[float, Vectors]],
    take: Callable[[Vectors], None],
) -> None:
    """`serve` one block of rounds to the clients, tell the level above where we `stand`, `take` what it makes
    of it.
    """
    for t, block in enumerate(blocks):
        await serve(block)
        with me.scope(f"below {boss} {t}") as here:
            await here.send(boss, Below(*stand()))
            take((await here.recv(boss, Above)).vectors)


async def level(
    me: Party,
    boss: str | None,
    below: Sequence[str],
    exchanges: int,
    period: int,
    after: Callable[[int, Vectors], Awaitable[None]] | None = None,
) -> None:
    """A server of servers: the weighted mean of those below, `exchanges` times; every `period`-th goes up
    first, if there is anyone above.
    """
    weight = 0.0
    for t in range(exchanges):
        with me.scope(f"below {me.name} {t}") as here:
            came = await here.gather(below, Below)
            behind, mean = merged({name: (m.weight, m.vectors) for name, m in came.items()})
            weight += behind
            if boss is not None and ((t + 1) % period == 0 or t + 1 == exchanges):
                up = (t + 1) // period - 1 if (t + 1) % period == 0 else (t + 1) // period
                with me.scope(f"below {boss} {up}") as there:
                    await there.send(boss, Below(weight, mean))
                    mean, weight = (await there.recv(boss, Above)).vectors, 0.0
            await here.send(below, Above(mean))
        if after is not None:
            await after(t, mean)


def merged(models: Mapping[str, tuple[float, Vectors]]) -> tuple[float, Vectors]:
    """(the weight of all, their weighted mean); whoever has no weight had no client in these rounds. This is
    the ideal, too.
    """
    weights = torch.tensor([w for w, _ in models.values()], dtype=torch.float64)
    total = float(weights.sum())
    share = (weights / total if total else torch.full_like(weights, 1 / len(weights))).to(torch.float32)
    keys = next(iter(models.values()))[1]
    return total, {
        k: torch.einsum("n,n...->...", share, torch.stack([v[k] for _, v in models.values()])) for k in keys
    }


ideal = merged
