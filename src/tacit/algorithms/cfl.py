"""CFL. F. Sattler, K.-R. Müller, W. Samek: "Clustered Federated Learning:
Model-Agnostic Distributed Multi-Task Optimization Under Privacy Constraints", IEEE Transactions on Neural
Networks and Learning Systems 32, 2021 (arXiv 1910.01991, 2019), Algorithms 1 and 2.

If the mean update is small while single updates are large, the parties' objectives conflict. The cluster is
then split in two where its updates have the smallest cosine similarity, and each part trains on as a
federation of its own, from the same model. The paper's ε₁ and ε₂ are norms; here they are relative to the
largest norm of an update so far, so that they do not depend on the model and the learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..parameters import bad, real
from .personal import Personal


class Cut(NamedTuple):
    """A split of n parties in two."""

    side: Tensor  # [n]: whether a party is in the second part
    alike: float  # the largest cosine similarity between parties of different parts


@dataclass(frozen=True)
class CFL(Personal):
    """FedAvg in each cluster; the server splits a cluster whose parties' objectives conflict.

    The server must see each update, so it cannot be combined with secure aggregation, and it learns which
    parties are similar. A party receives only the model of its cluster.
    """

    eps1: float = real(
        0.5,
        above=0,
        below=1,
        doc="ε₁: a cluster is stationary if the norm of its mean update is below this share of the largest "
        "norm of an update so far",
    )
    eps2: float = real(
        0.6,
        above=0,
        doc="ε₂: its parties conflict if the largest norm of their updates is above this share of it",
    )
    gamma: float = real(
        0.75,
        least=0,
        below=1,
        doc="γ, the noise of updates: parties of different parts must have cosines below 1 − 2γ² (−0.125)",
    )
    sees_each = True

    def split(self, deltas: Tensor, weights: Tensor, reach: float) -> Cut | None:
        """The split of a cluster whose parties sent these updates [n, D]; None if it stays whole.

        `reach` is the largest norm of an update so far.
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
                "The norm of a mean is never above the largest norm.",
            )


def cosines(deltas: Tensor) -> Tensor:
    """[n, n] cosine similarities."""
    x = deltas.double()
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return torch.matmul(x, x.T)


def bipartition(alike: Tensor) -> Cut:
    """The split in two that minimizes the largest cosine similarity across the parts (Algorithm 1).

    Merging the most similar parties first leaves the weakest link of a maximum spanning tree for last.
    """
    n = len(alike)
    best, link = alike[0].clone(), torch.zeros(n, dtype=torch.int64)  # Prim: each party's link to the tree
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
    side[links[weakest][2]] = True  # the party behind the weakest link, and its subtree
    for _, at, k in links[weakest + 1 :]:
        side[k] = side[at]
    return Cut(side, links[weakest][0])
