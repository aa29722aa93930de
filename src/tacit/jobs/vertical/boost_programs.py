"""The programs of boosted trees over columns of several parties: label holder, holders of columns, helper.

The protocol is `mpc/histograms.py`, the trees are `boost/vertical_grower.py`; here they meet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...boost.kernels import multiply_words
from ...boost.splits import SplitRules
from ...boost.vertical_bins import OwnBins, OwnSplit, to_permuted
from ...boost.vertical_grower import HELD_OUT, Grower, VerticalRules, VerticalTree, find_records
from ...config.vertical_boost import VerticalBoostConfig
from ...errors import BadData, ProtocolError
from ...mpc import histograms
from ...mpc.histogram_terms import HistogramTerms, Layout, TreeShapes
from ...mpc.histograms import LabelSide
from ...parties.message import Message
from ...parties.party import Party
from ...stats.columns import text_of

POISSON_STEP = 0.7  # as XGBoost's default
MOST_ROWS = 1 << 20
MOST_CLASSES = 256
ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program and the helper colludes with no other "
    "party. A label holder that deviates can choose numbers and rows so that sums and sides show single rows "
    "of the others; a holder of columns that deviates can corrupt the trees."
)
SUMS = (
    "OPENED: the label holder learned the sums of its gradients, Hessians and rows over each anonymous bin "
    "of the others' columns in each node (bins of a deep node may have few rows: it then learns in which "
    "anonymous bin a row is), and for each split of theirs which rows of the node go left. The others "
    "learned neither labels, gradients nor rows of nodes; each knows its own splits, and the shape of the "
    "trees."
)
SPLITS = (
    "OPENED: the label holder learned the largest gain of each other party at each node, and for each split "
    "of theirs which rows of the node go left. The helper learned sums of gradients, Hessians and rows over "
    "anonymous bins, without names, labels or rows. The others learned neither labels, gradients nor rows of "
    "nodes; each knows its own splits, and the shape of the trees."
)


class LabelShape(
    Message, reveals="the objective's number of trees in each round: the classes, if there are more than two"
):
    outputs: int


class SumUnits(
    Message, reveals="the units of gradients and Hessians as powers of two, for the helper's search"
):
    units: list[float]


def make_rules(settings: Mapping[str, Any]) -> VerticalRules:
    """Return the rules of checked options, given as plain values."""
    config = VerticalBoostConfig(**settings)
    weights = config.class_weight
    if isinstance(weights, Mapping):
        weights = {text_of(k): float(v) for k, v in weights.items()}
    step = float(config.max_delta_step) or (POISSON_STEP if config.objective == "poisson" else 0.0)
    return VerticalRules(
        config.objective,
        config.trees,
        config.depth,
        float(config.learning_rate),
        SplitRules(
            float(config.l2),
            float(config.l1),
            float(config.gamma),
            float(config.min_child_weight),
            config.min_rows,
            step,
        ),
        float(config.subsample),
        float(config.colsample_bytree),
        weights,
        float(config.held_out or (HELD_OUT if config.early_stopping else 0.0)),
        config.early_stopping or 0,
        config.seed,
    )


def make_terms(
    names: Sequence[str], label_at: str, helper: str, rows: int, settings: Mapping[str, Any], outputs: int
) -> HistogramTerms:
    if not 2 <= rows <= MOST_ROWS:
        raise BadData(f"boost: {rows} rows are shared; there must be 2 to {MOST_ROWS}.")
    rules = make_rules(settings)
    text = json.dumps([list(names), label_at, helper, rows, settings, outputs], sort_keys=True)
    return HistogramTerms(
        tuple(names),
        label_at,
        helper,
        rows,
        rules.most_vectors(outputs, rows),
        rules.most_splits(outputs),
        settings["reveal"],
        text,
    )


async def _learn_outputs(me: Party, label_at: str, settings: Mapping[str, Any]) -> int:
    outputs = (await me.recv(label_at, LabelShape)).outputs
    allowed = range(2, MOST_CLASSES + 1) if settings["objective"] == "multiclass" else range(1, 2)
    if outputs not in allowed:
        raise ProtocolError(f"{label_at!r} announced {outputs} trees in each round.")
    return outputs


async def hold_columns(
    me: Party,
    names: Sequence[str],
    label_at: str,
    helper: str,
    settings: Mapping[str, Any],
    codes: Tensor,
    bins: Mapping[str, Any],
) -> dict[str, Any]:
    """A holder of columns. Returns its splits, and the shape of the trees."""
    own = OwnBins.from_dict(bins)
    outputs = await _learn_outputs(me, label_at, settings)
    terms = make_terms(names, label_at, helper, len(codes), settings, outputs)
    stamp(me, settings)
    cells, splits = codes.numpy(), list[OwnSplit]()
    order = _shuffle(me, cells.shape[1])  # others do not know which column is which

    def sides(record: bytes) -> np.ndarray:
        split = OwnSplit.read(to_permuted(record, order), own.bins)
        splits.append(split)
        return split.sides(cells)

    layout = Layout((own.bins.widths[order] + 1).tolist(), own.bins.is_category[order].tolist())
    shapes = await histograms.hold_columns(me, terms, cells[:, order], layout, sides)
    trees = check_shapes(shapes, len(names), names.index(me.name), len(splits))
    plain = [s.to_dict(own.bins) for s in splits]
    return {"splits": plain, "trees": trees, "rows": len(codes), "outputs": outputs}


def _shuffle(me: Party, count: int) -> np.ndarray:
    keys = np.frombuffer(me.secret.bytes(16 * count), np.uint8).reshape(count, 16)
    return np.array(sorted(range(count), key=lambda k: keys[k].tobytes()), dtype=np.int64)


def stamp(me: Party, settings: Mapping[str, Any]) -> None:
    me.ledger.stamp(ASSUMES)
    me.ledger.stamp(SUMS if settings["reveal"] == "sums" else SPLITS)


def check_shapes(shapes: TreeShapes, parties: int, place: int, splits: int) -> list[dict[str, Any]]:
    """Return the shape of the trees as plain values; raise ProtocolError unless they are trees."""
    trees = []
    for left, owner, split in zip(shapes.left, shapes.owner, shapes.split):
        tree = {"left": left.tolist(), "owner": owner.tolist(), "split": split.tolist()}
        problem = check_tree(tree, parties, {place: splits})
        if problem:
            raise ProtocolError(f"the label holder sent {problem}.")
        trees.append(tree)
    if len({len(shapes.left), len(shapes.owner), len(shapes.split)}) != 1:
        raise ProtocolError("the label holder sent incomplete trees.")
    return trees


def check_tree(tree: Mapping[str, Any], parties: int, splits: Mapping[int, int]) -> str:
    """Return what is wrong with a tree; `splits`: how many each party has, where it is known."""
    left, owner, split = tree["left"], tree["owner"], tree["split"]
    n = len(left)
    if not n or len(owner) != n or len(split) != n:
        return "a tree without nodes, or with nodes that are incomplete"
    children = [0] * n
    for node in range(n):
        who = owner[node]
        if who == -1:
            continue
        if not 0 <= who < parties or not node < left[node] < n - 1:
            return "a split without an owner or children"
        if not 0 <= split[node] < splits.get(who, 1 << 30):
            return "a split that its owner does not have"
        children[left[node]] += 1
        children[left[node] + 1] += 1
    return "" if children[0] == 0 and all(c == 1 for c in children[1:]) else "nodes that do not form a tree"


async def hold_label(
    me: Party,
    names: Sequence[str],
    helper: str,
    settings: Mapping[str, Any],
    codes: Tensor,
    bins: Mapping[str, Any],
    y: Tensor,
    labels: Sequence[str],
) -> dict[str, Any]:
    """The label holder. Returns the trees with values, and its own splits."""
    own, rules = OwnBins.from_dict(bins), make_rules(settings)
    outputs = len(labels) if rules.objective == "multiclass" else 1
    terms = make_terms(names, me.name, helper, len(codes), settings, outputs)
    stamp(me, settings)
    await me.send([*terms.holders, helper], LabelShape(outputs))
    side, order, hides = (
        LabelSide(me, terms, multiply_words),
        [me.name, *terms.holders],
        settings["reveal"] == "splits",
    )
    grower = Grower(rules, side, order, codes.numpy(), own.bins, y.numpy(), labels, hides)
    if hides:
        await me.send(helper, SumUnits(list(grower.scale)))
    await side.start()
    grown = await grower.grow()
    place = [names.index(n) for n in order]  # trees name owners by their place among all parties
    for tree in grown.trees:
        tree.owner = [-1 if o < 0 else place[o] for o in tree.owner]
    shapes = TreeShapes(
        *([torch.tensor(getattr(t, key), dtype=torch.int32) for t in grown.trees] for key in _SHAPE)
    )
    await side.finish(shapes, mark_shapes(grown.trees))
    return {
        "splits": [s.to_dict(own.bins) for s in grown.splits],
        "trees": [asdict(t) for t in grown.trees],
        "base": grown.base,
        "labels": list(labels),
        "losses": grown.losses,
        "best": grown.best,
        "rows": len(codes),
    }


_SHAPE = ("left", "owner", "split")


async def help_all(
    me: Party, names: Sequence[str], label_at: str, helper: str, settings: Mapping[str, Any], rows: int
) -> str:
    """The helper: deals randomness, and with reveal="splits" finds splits. Returns the trees' digest."""
    stamp(me, settings)
    terms = make_terms(names, label_at, helper, rows, settings, await _learn_outputs(me, label_at, settings))
    rules = make_rules(settings).split
    scale = 1.0, 1.0
    if settings["reveal"] == "splits":
        units = (await me.recv(label_at, SumUnits)).units
        if len(units) != 2 or not all(2.0**-200 < u < 2.0**200 for u in units):
            raise ProtocolError(f"{label_at!r} sent units that no gradient has.")
        scale = units[0], units[1]

    def search(layout: Layout, sums: np.ndarray, usable: np.ndarray | None) -> list[tuple[float, bytes]]:
        return find_records(layout.widths, layout.is_category, sums, usable, rules, scale)

    return await histograms.help_sums(me, terms, multiply_words, search)


def mark_shapes(trees: Sequence[VerticalTree]) -> str:
    """A digest of the shape of the trees: the same at all parties of a model."""
    plain = [[t.left, t.owner, t.split] for t in trees]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def to_trees(entries: Sequence[Mapping[str, Any]]) -> list[VerticalTree]:
    known = {f.name for f in fields(VerticalTree)}
    return [VerticalTree(**{k: list(v) for k, v in e.items() if k in known}) for e in entries]
