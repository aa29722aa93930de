"""What anonymity costs: loss metrics a search can minimise.

A *cell* metric charges every cell by what it was generalised to and every suppressed row at the price of its
cells at the top. It is additive, which is what makes the search's lower bounds cheap. A *class* metric looks
at the sizes of classes alone. All are losses: lower is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .encoded import Encoded


@dataclass(frozen=True)
class CellMetric:
    """`price[j][l, v]`: column j's charge for value v at level l, never falling with l; `lost[j][v]`: when
    its row is suppressed.
    """

    name: str
    price: tuple[np.ndarray, ...]
    lost: tuple[np.ndarray, ...]
    scale: float  # divides the sum over all cells

    def rows(self, table: Encoded, levels: tuple[int, ...]) -> np.ndarray:
        """Each combination's charge at these levels."""
        return sum(
            (p[level][table.codes[:, j]] for j, (p, level) in enumerate(zip(self.price, levels))),
            np.zeros(len(table.codes)),
        )

    def suppressed(self, table: Encoded) -> np.ndarray:
        """Each combination's charge when it is suppressed."""
        return sum((lost[table.codes[:, j]] for j, lost in enumerate(self.lost)), np.zeros(len(table.codes)))


def loss(table: Encoded) -> CellMetric:
    """Mean over cells of (leaves below − 1) / (all leaves − 1), a suppressed cell 1. Iyengar: "Transforming
    Data to Satisfy Privacy Constraints", KDD 2002; the figure ARX calls loss.
    """
    price = tuple(c.share for c in table.columns)
    return CellMetric("loss", price, tuple(np.ones(p.shape[1]) for p in price), table.rows * len(price))


def height(table: Encoded) -> CellMetric:
    """Mean over cells of level / height, a suppressed cell 1: one minus precision. Sweeney: "Achieving
    k-Anonymity Privacy Protection Using Generalization and Suppression", IJUFKS 2002 (Prec).
    """
    price = tuple(
        np.repeat(np.linspace(0, 1, c.height + 1)[:, None], len(c.hierarchy), axis=1) for c in table.columns
    )
    return CellMetric("height", price, tuple(np.ones(p.shape[1]) for p in price), table.rows * len(price))


def entropy(table: Encoded) -> CellMetric:
    """Non-uniform entropy: bits a reader lacks to guess each cell from the table's own frequencies, −log₂
    n(value)/n(generalised), over the bits in the fully starred table. Gionis, Tassa: "k-Anonymization with
    Minimal Loss of Information", TKDE 2009.
    """
    price, lost = [], []
    for j, c in enumerate(table.columns):
        n = np.bincount(table.codes[:, j], table.counts, len(c.hierarchy))
        of = np.stack([np.bincount(u, n)[u] for u in c.up])
        price.append(
            np.log2(np.maximum(of, 1)) - np.log2(np.maximum(n, 1))
        )  # values the table does not have cost nothing and are nowhere
        lost.append(price[-1][-1])
    total = sum(float(lost_j[table.codes[:, j]] @ table.counts) for j, lost_j in enumerate(lost))
    return CellMetric("entropy", tuple(price), tuple(lost), total or 1.0)


@dataclass(frozen=True)
class ClassMetric:
    """Sizes of classes in, a number out. `value` charges the published classes and the suppressed rows;
    `floor` is a lower bound for every table that is more general than this one, whatever it suppresses.
    """

    name: str
    rows: int
    k: int

    def value(self, sizes: np.ndarray, kept: np.ndarray) -> float:
        lost = int(sizes[~kept].sum())
        if (
            self.name == "discernibility"
        ):  # Bayardo, Agrawal: "Data Privacy through Optimal k-Anonymization", ICDE 2005
            return (float((sizes[kept].astype(float) ** 2).sum()) + float(lost) * self.rows) / float(
                self.rows
            ) ** 2
        return (
            self.rows / (int(kept.sum()) + (lost > 0)) / self.k
        )  # LeFevre, DeWitt, Ramakrishnan: "Mondrian", ICDE 2006: C_avg; the suppressed are one class

    def floor(self, sizes: np.ndarray) -> float:
        if (
            self.name == "discernibility"
        ):  # classes only merge, and a suppressed row is charged n, more than any class it could be in
            return float((sizes.astype(float) ** 2).sum()) / float(self.rows) ** 2
        return self.rows / (len(sizes) + 1) / self.k


CELLS = {"loss": loss, "height": height, "entropy": entropy}
CLASSES = ("discernibility", "class_size")
METRICS = (*CELLS, *CLASSES)
