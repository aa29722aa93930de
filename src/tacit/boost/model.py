"""A boosted model: its bins, its trees, and how margins become predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import bad
from . import kernels
from .bins import Bins
from .objectives import Objective
from .trees import LEAF, Nodes, Tree

KINDS = ("gain", "total_gain", "weight", "cover", "total_cover")


@dataclass
class Booster:
    """Trees of all rounds; tree t belongs to output t mod outputs. `labels` are the classes' names."""

    bins: Bins
    objective: Objective
    base: float
    labels: tuple[str, ...] = ()
    trees: list[Tree] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return len(self.trees) // self.objective.outputs

    def margins(self, codes: np.ndarray, trees: int | None = None) -> np.ndarray:
        """Return the margins of binned rows by the first `trees` rounds: rows × outputs, float64."""
        outputs = self.objective.outputs
        margin = np.full((len(codes), outputs), self.base)
        for t, tree in enumerate(self.trees[: None if trees is None else trees * outputs]):
            margin[:, t % outputs] += leaf_values(tree, codes, self.bins)
        return margin

    def predict(self, frame: pd.DataFrame, *, margin: bool = False, trees: int | None = None) -> np.ndarray:
        """Return a prediction for each row.

        With two classes the probability of the second, with more classes one column for each, otherwise the
        value. `margin` returns what comes before the sigmoid, softmax or exponential.
        """
        if not isinstance(frame, pd.DataFrame):
            raise BadData(
                f"predict: expected a pandas DataFrame with the columns {', '.join(self.bins.names[:5])}"
                f"{', …' if len(self.bins.names) > 5 else ''}; got {type(frame).__name__}."
            )
        found = self.margins(self.bins.encode(frame), trees)
        if margin:
            return found if self.objective.outputs > 1 else found[:, 0]
        return self.objective.predict(found)

    def importance(self, kind: str = "gain") -> pd.Series:
        """Return a number for each feature, in descending order, as XGBoost's get_score: the mean gain of
        its splits; "total_gain", "weight" (how many splits), "cover" and "total_cover" (Hessians).
        """
        if kind not in KINDS:
            raise bad("importance", "kind", kind, ", ".join(map(repr, KINDS)))
        count = np.zeros(len(self.bins.features))
        gain, cover = count.copy(), count.copy()
        for tree in self.trees:
            for node, f in enumerate(tree.feature):
                if f != LEAF:
                    count[f] += 1
                    gain[f] += tree.gain[node]
                    cover[f] += tree.cover[node]
        return rank_columns(kind, list(self.bins.names), count, gain, cover)


def rank_columns(
    kind: str, names: list[str], count: np.ndarray, gain: np.ndarray, cover: np.ndarray
) -> pd.Series:
    """Return one kind of importance by column, in descending order, from sums over its splits."""
    import pandas as pd

    each = np.maximum(count, 1)
    values = {
        "gain": gain / each,
        "total_gain": gain,
        "weight": count,
        "cover": cover / each,
        "total_cover": cover,
    }
    return pd.Series(values[kind], index=names, name=kind).sort_values(ascending=False, kind="stable")


def leaf_values(
    tree: Tree | Nodes, codes: np.ndarray, bins: Bins, node: np.ndarray | None = None
) -> np.ndarray:
    """Return the value of each row's leaf; `node`, if given, is where each row is, and is moved down."""
    node = np.zeros(len(codes), dtype=np.int32) if node is None else node
    nodes = tree.nodes() if isinstance(tree, Tree) else tree
    kernels.descend(codes, nodes, bins, node)
    return np.asarray(nodes.value[node].astype(np.float64))


def thresholds(tree: Tree, bins: Bins) -> Sequence[float | None]:
    """Return the number below which a row goes left at each split of a number; None elsewhere."""
    out: list[float | None] = []
    for node, f in enumerate(tree.feature):
        cuts = None if f == LEAF else bins.features[f].cuts
        if cuts is None:
            out.append(None)
        else:  # behind the last cut: every value goes left, and missing ones may not
            j = tree.cut[node]
            out.append(cuts[j] if j < len(cuts) else float(np.finfo(np.float32).max))
    return out
