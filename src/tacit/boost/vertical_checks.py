"""What the other parties check of a label holder: the helper the sums it opens, holders the trees.

With reveal="splits" the helper opens sums over anonymous cells, so it sees gradients that no agreed loss has,
and nodes of single rows. With reveal="sums" nobody but the label holder sees them (mpc/histograms.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .rows import UNITS
from .vertical_grower import LEAF, PACKINGS, VerticalRules


def find_false_sums(
    sums: np.ndarray, widths: Sequence[int], is_root: np.ndarray, rows: int, rules: VerticalRules
) -> str:
    """Return what is wrong with the sums of a holder's nodes (nodes × cells × words): '' if nothing is.

    Every cell has |Σg| and Σh of at most its rows times the largest gradient; a root has the rows of a round,
    and every other node as many as a leaf must have.
    """
    if not widths:
        return ""
    g, h, count = np.moveaxis(PACKINGS["shares"].unpack(sums), -1, 0)
    if ((count < 0) | (count > rows)).any():
        return "sums with more rows than there are, or fewer than none"
    if ((g > count * UNITS) | (g < -count * UNITS) | (h < 0) | (h > count * UNITS)).any():
        return "gradients that the agreed loss does not have"
    total = count[:, : widths[0]].sum(axis=1)
    least = least_rows_of_root(rows, rules)
    if (total[is_root] < least).any():
        return f"a tree that begins with {int(total[is_root].min())} rows; it needs {least}"
    others, fewest = total[~is_root], max(rules.split.min_rows, 1)
    if (others < fewest).any():
        return f"a node of {int(others.min())} rows; a leaf must have {fewest}"
    return ""


def least_rows_of_root(rows: int, rules: VerticalRules) -> int:
    """All rows, unless some are held out or left out at random.

    Then fewer than the mean minus ten of its roots have a probability below e^-50 (Chernoff).
    """
    share = (1.0 - rules.held_out) * rules.rows
    if share >= 1.0:
        return rows
    mean = rows * share
    return max(1, math.floor(mean - 10.0 * math.sqrt(mean)))


def find_false_trees(
    trees: Sequence[Mapping[str, Any]],
    outputs: int,
    place: int,
    requests: Sequence[int],
    rules: VerticalRules,
) -> str:
    """Return what is wrong with the shape of trees (each a tree by itself), '' if nothing is.

    `requests`: in which request each split of the party at `place` was asked for: one request for each depth
    of a round. Each is in the trees once, in that order; early stopping leaves out the last rounds.
    """
    most = rules.trees * outputs
    if len(trees) % outputs or len(trees) > most or (len(trees) < most and not rules.early_stopping):
        return f"{len(trees)} trees; {most} are agreed"
    own = []
    for k, tree in enumerate(trees):
        depth = [0] * len(tree["left"])
        for node, owner in enumerate(tree["owner"]):
            if owner == LEAF:
                continue
            if depth[node] >= rules.depth:
                return f"a tree that is deeper than the agreed {rules.depth}"
            first = tree["left"][node]
            depth[first] = depth[first + 1] = depth[node] + 1
            if owner == place:
                own.append((k // outputs, depth[node], k, node, tree["split"][node]))
    own.sort()
    splits = [split for *_, split in own]
    if splits != list(range(len(splits))) or (len(splits) < len(requests) and not rules.early_stopping):
        return "other splits than it asked for, or in another order"
    for (a, b), (x, y) in zip(itertools.pairwise(own), itertools.pairwise(requests)):
        if (a[:2] == b[:2]) != (x == y):
            return "splits at another depth than it asked for"
    return ""
