"""Clustered federated learning. F. Sattler, K.-R. Müller, W. Samek: "Clustered Federated Learning:
Model-Agnostic Distributed Multi-Task Optimization Under Privacy Constraints", IEEE Transactions on Neural
Networks and Learning Systems 32, 2021 (arXiv 1910.01991, 2019), Algorithms 1 and 2.

Where a model has come to rest for all together and parties still pull at it, they pull against each other:
the parties are cut in two where their updates are least alike, and each part goes on as a federation of its
own, from the same model. The paper's ε₁ and ε₂ are lengths; here they are in units of how long an update was
when it was longest, so that they do not depend on the model and the learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..parameters import bad, real
from .personal import Personal
from .types import Batches, LocalTask, State, Upload


class Cut(NamedTuple):
    """Parties in two: `side` [n] is true for those of the second part, `alike` the largest cosine between a
    party of one and a party of the other.
    """

    side: Tensor
    alike: float


@dataclass(frozen=True)
class CFL(Personal):
    """FedAvg in each cluster; the server looks at every party's update, and cuts a cluster in two where its
    parties pull against each other.

    It must see each update, so it does not go with secure aggregation; it learns which parties are alike. A
    party gets its own cluster's model alone.
    """

    eps1: float = real(
        0.5,
        above=0,
        below=1,
        doc="ε₁: a cluster has come to rest where its mean update is shorter than this part of an update at "
        "its longest",
    )
    eps2: float = real(
        0.6,
        above=0,
        doc="ε₂: and its parties pull at it where the longest of their updates is longer than this part of "
        "that",
    )
    gamma: float = real(
        0.75,
        least=0,
        below=1,
        doc="γ: how noisy an update may be; across a cut no two may have a cosine of 1 − 2γ² (−0.125) or "
        "more",
    )
    sees_each: ClassVar[bool] = True

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = batches.fold(self.step, self.solver.start(down), task, down, mine)
        return self.upload(batches, current.w - down["w"], current.buffers), mine

    def split(self, deltas: Tensor, weights: Tensor, reach: float) -> Cut | None:
        """The cut of a cluster whose parties sent these updates [n, D]; None where it stays whole. `reach`:
        how long an update was when it was longest.
        """
        if len(deltas) < 2:
            return None
        mean, longest = (weights.to(deltas) / weights.sum()) @ deltas, deltas.norm(dim=1).max()
        if not (mean.norm() < self.eps1 * reach and longest > self.eps2 * reach):  # Algorithm 2, lines 11-12
            return None
        cut = bipartition(cosines(deltas))
        return cut if cut.alike < 1 - 2 * self.gamma**2 else None  # γ < √((1 − α_cross)/2)

    def check(self) -> None:
        if self.eps2 < self.eps1:
            raise bad(
                "CFL",
                "eps2",
                self.eps2,
                f"at least eps1, which is {self.eps1:g}",
                "A mean is never longer than the longest update.",
            )


def cosines(deltas: Tensor) -> Tensor:
    """[n, n]"""
    x = deltas.double()
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return x @ x.T


def bipartition(alike: Tensor) -> Cut:
    """The two parts whose most alike parties, one of each, are the least alike (Algorithm 1): join the most
    alike first until two parts are left. What joins parties last is the weakest link of a maximum spanning
    tree.
    """
    n = len(alike)
    best, link = alike[0].clone(), torch.zeros(n, dtype=torch.int64)  # Prim: how each is linked to the tree
    best[0] = -torch.inf
    outside = torch.ones(n, dtype=torch.bool)
    outside[0] = False
    links = []
    for _ in range(n - 1):
        k = int(torch.where(outside.to(best.device), best, -torch.inf).argmax())
        links.append((float(best[k]), int(link[k]), k))
        outside[k] = False
        nearer = (alike[k] > best).cpu() & outside
        link[nearer] = k
        best = torch.where(nearer.to(best.device), alike[k], best)
    weakest = min(range(n - 1), key=lambda i: links[i][0])
    side = torch.zeros(n, dtype=torch.bool)
    side[links[weakest][2]] = True  # whoever came by the weakest link, and whoever hangs on it
    for _, at, k in links[weakest + 1 :]:
        side[k] = side[at]
    return Cut(side, links[weakest][0])
