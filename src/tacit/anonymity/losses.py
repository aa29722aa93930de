"""Information loss, lower is better: each measure is defined once, here.

A search minimizes a *metric* (`CellMetric`, `ClassMetric`); `measures.py` computes the same losses from two
tables. A cell metric charges every cell for its generalization, and every suppressed row the price of its
cells at the top level. It is additive, so lower bounds for the search are cheap. A class metric depends on
the class sizes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .table import EncodedTable


def domain_share(leaves: Any, total: int) -> Any:
    """The share of its domain a cell covers: (leaves below it − 1) / (all leaves − 1); a number or an array.

    Iyengar: "Transforming Data to Satisfy Privacy Constraints", KDD 2002; ARX calls the mean over cells loss.
    """
    return (leaves - 1) / max(total - 1, 1)


def lost_bits(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Bits needed to guess a cell from the table's frequencies: −log₂ n(value) / n(generalized value).

    Gionis, Tassa: "k-Anonymization with Minimal Loss of Information", TKDE 2009 (non-uniform entropy).
    Values that do not occur cost nothing.
    """
    return np.asarray(np.log2(np.maximum(group, 1)) - np.log2(np.maximum(value, 1)))


def discernibility(sizes: np.ndarray, suppressed: int, rows: int) -> float:
    """Each row is charged the size of its class, a suppressed row the size of the table.

    Bayardo, Agrawal: "Data Privacy through Optimal k-Anonymization", ICDE 2005.
    """
    return float((sizes.astype(float) ** 2).sum()) + float(suppressed) * rows


@dataclass(frozen=True)
class CellMetric:
    """Prices of cells: `price[j][l, v]` for value v of column j at level l, never decreasing in l.

    `suppressed_price[j][v]` is the price if the row is suppressed.
    """

    price: tuple[np.ndarray, ...]
    suppressed_price: tuple[np.ndarray, ...]
    scale: float  # divides the sum over all cells

    def charge(self, codes: np.ndarray, levels: tuple[int, ...]) -> np.ndarray:
        """The charge of each combination at these levels."""
        return sum(
            (p[level][codes[:, j]] for j, (p, level) in enumerate(zip(self.price, levels))),
            np.zeros(len(codes)),
        )

    def charge_suppressed(self, codes: np.ndarray) -> np.ndarray:
        """The charge of each combination if it is suppressed."""
        return sum((p[codes[:, j]] for j, p in enumerate(self.suppressed_price)), np.zeros(len(codes)))


def unit_metric(price: tuple[np.ndarray, ...], scale: float) -> CellMetric:
    """A cell metric in which a suppressed cell costs 1."""
    return CellMetric(price, tuple(np.ones(p.shape[1]) for p in price), scale)


def loss(table: EncodedTable) -> CellMetric:
    """Mean over cells of the share of the domain they cover; a suppressed cell costs 1."""
    return unit_metric(tuple(c.share for c in table.columns), table.rows * len(table.columns))


def height(table: EncodedTable) -> CellMetric:
    """Mean over cells of level / height; a suppressed cell costs 1. One minus Sweeney's precision.

    Sweeney: "Achieving k-Anonymity Privacy Protection Using Generalization and Suppression", IJUFKS 2002
    (Prec).
    """
    levels = [np.linspace(0, 1, c.height + 1)[:, None] for c in table.columns]
    price = tuple(np.repeat(p, len(c.hierarchy), axis=1) for p, c in zip(levels, table.columns))
    return unit_metric(price, table.rows * len(price))


def entropy(table: EncodedTable) -> CellMetric:
    """Non-uniform entropy: `lost_bits` over all cells, divided by the bits if every cell is *."""
    price = []
    for j, c in enumerate(table.columns):
        n = np.bincount(table.codes[:, j], table.counts, len(c.hierarchy))
        price.append(lost_bits(np.stack([np.bincount(u, n)[u] for u in c.up]), n))
    top = tuple(p[-1] for p in price)
    total = sum(float(p[table.codes[:, j]] @ table.counts) for j, p in enumerate(top))
    return CellMetric(tuple(price), top, total or 1.0)


@dataclass(frozen=True)
class ClassMetric:
    """A loss of the class sizes: "discernibility" or "class_size".

    class_size is C_avg of LeFevre, DeWitt, Ramakrishnan: "Mondrian", ICDE 2006; all suppressed rows count as
    one class.
    """

    name: str
    rows: int
    k: int

    def value(self, sizes: np.ndarray, is_published: np.ndarray) -> float:
        """The loss of a table whose other classes are suppressed."""
        suppressed = int(sizes[~is_published].sum())
        if self.name == "discernibility":
            return discernibility(sizes[is_published], suppressed, self.rows) / float(self.rows) ** 2
        return self.rows / (int(is_published.sum()) + (suppressed > 0)) / self.k

    def lower_bound(self, sizes: np.ndarray) -> float:
        """A lower bound for every more general table, whatever it suppresses."""
        if self.name == "discernibility":
            # classes only merge, and a suppressed row is charged n, more than in any class
            return discernibility(sizes, 0, self.rows) / float(self.rows) ** 2
        return self.rows / (len(sizes) + 1) / self.k


CELL_METRICS = {"loss": loss, "height": height, "entropy": entropy}
CLASS_METRICS = ("discernibility", "class_size")
METRICS = (*CELL_METRICS, *CLASS_METRICS)
