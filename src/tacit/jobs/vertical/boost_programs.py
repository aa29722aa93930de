"""The programs of boosted trees over columns of several parties: label holder, holders of columns, helper.

The protocols are `mpc/histograms.py` (secret shares) and `mpc/encrypted_histograms.py` (homomorphic
encryption), the trees are `boost/vertical_grower.py`; here they meet. With backend="auto" the label holder
chooses by cost (`boost_cost.py`):

    holder of columns                                  label holder                                helper
      |--- CellCount(columns, cells) ------------------->|
      |<-- BackEnd("shares" or "he") --------------------|---------------------------------------->|
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...boost.encrypted_rows import add_encrypted_rows
from ...boost.kernels import multiply_words
from ...boost.splits import SplitRules
from ...boost.vertical_bins import OwnBins, OwnSplit, to_permuted
from ...boost.vertical_checks import find_false_sums, find_false_trees
from ...boost.vertical_grower import HELD_OUT, LEAF, Grower, VerticalRules, VerticalTree, find_records
from ...config.vertical_boost import BACKENDS, VerticalBoostConfig
from ...crypto.prg import KEY
from ...errors import BadData, ProtocolError
from ...mpc import encrypted_histograms, histograms
from ...mpc.encrypted_histograms import EncryptedLabelSide
from ...mpc.histogram_terms import HistogramTerms, Layout, LeafKey, MaskedLeaves, SumsEnd, TreeShapes
from ...mpc.histograms import COLUMNS, LabelSide
from ...mpc.leaf_scores import MOST, draw_mask, encode
from ...parties.message import Message
from ...parties.party import Party
from ...stats.columns import text_of
from .boost_cost import Sizes, choose_backend

POISSON_STEP = 0.7  # as XGBoost's default
MOST_ROWS = 1 << 20
MOST_CLASSES = 256
ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program and the helper colludes with no other "
    "party. A label holder that deviates can choose numbers and rows so that sums and sides show the "
    "anonymous bins of every row of the others; a holder of columns that deviates can corrupt the trees."
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


HE_ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program, under ring learning with errors (BFV, "
    "128 bits) and computational Diffie-Hellman; there is no helper. A label holder that deviates can choose "
    "numbers, rows and keys so that sums and sides show the anonymous bins of every row of the others; a "
    "holder of columns that deviates can corrupt the trees, and may learn "
    "gradients from the splits that follow."
)
MOST_CELLS = 1 << 20  # of a holder
# kinds of messages that tell the label holder something of a holder's columns, or a holder something of the
# label: which of its columns are split where. With other columns for the same job it would learn more
ANSWERS = frozenset(
    {"SumShares", "PaddedSums", "SplitSides", "Correlations", "SplitRequest", "ChosenSplits", "TreeShapes"}
)
# kinds that differ if they are made again: encryptions of the same words, and keys for them
ENCRYPTED = frozenset({"EncryptionKey", "EncryptedMasks", "EncryptedSums"})


class LabelShape(
    Message, reveals="the objective's number of trees in each round: the classes, if there are more than two"
):
    outputs: int


class CellCount(Message, reveals="how many columns the sender has, and how many cells they have together"):
    columns: int
    cells: int


class BackEnd(Message, reveals="whether secret shares or homomorphic encryption is cheaper"):
    name: str


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
        config.backend if config.backend != "auto" else "shares",
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


def _is_open(settings: Mapping[str, Any], helper: str) -> bool:
    """Whether the label holder chooses the back-end."""
    return bool(settings["backend"] == "auto" and helper and settings["reveal"] == "sums")


def fix_backend(settings: Mapping[str, Any], helper: str) -> dict[str, Any]:
    """Replace backend="auto" where there is nothing to choose."""
    if settings["backend"] != "auto" or _is_open(settings, helper):
        return dict(settings)
    return {**settings, "backend": "shares" if helper else "he"}


async def _learn_backend(me: Party, label_at: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    name = (await me.recv(label_at, BackEnd)).name
    if name not in BACKENDS:
        raise ProtocolError(f"{label_at!r} chose the back-end {name!r:.40}; there are {', '.join(BACKENDS)}.")
    return {**settings, "backend": name}


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
    own, settings = OwnBins.from_dict(bins), fix_backend(settings, helper)
    outputs = await _learn_outputs(me, label_at, settings)
    if _is_open(settings, helper):
        await me.send(label_at, CellCount(len(own.bins.widths), int((own.bins.widths + 1).sum())))
        settings = await _learn_backend(me, label_at, settings)
    terms = make_terms(names, label_at, helper, len(codes), settings, outputs)
    stamp(me, settings)
    cells, splits, requests = codes.numpy(), list[OwnSplit](), list[int]()
    order = _shuffle(me, cells.shape[1])  # others do not know which column is which

    def sides(records: np.ndarray) -> np.ndarray:
        asked = [OwnSplit.read(to_permuted(record.tobytes(), order), own.bins) for record in records]
        requests.extend([requests[-1] + 1 if requests else 0] * len(asked))
        splits.extend(asked)
        return np.stack([split.sides(cells) for split in asked])

    layout = Layout((own.bins.widths[order] + 1).tolist(), own.bins.is_category[order].tolist())
    if settings["backend"] == "he":
        shapes = await encrypted_histograms.hold_columns(
            me, terms, cells[:, order], layout, sides, add_encrypted_rows
        )
    else:
        shapes = await histograms.hold_columns(me, terms, cells[:, order], layout, sides)
    trees = check_shapes(shapes, len(names), names.index(me.name), outputs, requests, make_rules(settings))
    masked = (await me.recv(label_at, MaskedLeaves)).values
    if masked.dtype is not torch.int64 or tuple(masked.shape) != (count_leaves(trees),):
        raise ProtocolError(f"{label_at!r} sent masked values of other leaves than the trees have.")
    plain = [s.to_dict(own.bins) for s in splits]
    found = {"splits": plain, "trees": trees, "rows": len(codes), "outputs": outputs}
    found["masked"] = masked.tolist()
    return {**found, "backend": settings["backend"]}


def _shuffle(me: Party, count: int) -> np.ndarray:
    keys = np.frombuffer(me.secret.bytes(16 * count), np.uint8).reshape(count, 16)
    return np.array(sorted(range(count), key=lambda k: keys[k].tobytes()), dtype=np.int64)


def stamp(me: Party, settings: Mapping[str, Any]) -> None:
    me.ledger.stamp(HE_ASSUMES if settings["backend"] == "he" else ASSUMES)
    me.ledger.stamp(SUMS if settings["reveal"] == "sums" else SPLITS)


def check_shapes(
    shapes: TreeShapes, parties: int, place: int, outputs: int, requests: Sequence[int], rules: VerticalRules
) -> list[dict[str, Any]]:
    """Return the shape of the trees as plain values; raise ProtocolError unless they are the agreed trees.

    `requests`: in which request each of this party's splits was asked for.
    """
    if len({len(shapes.left), len(shapes.owner), len(shapes.split)}) != 1:
        raise ProtocolError("the label holder sent incomplete trees.")
    trees = []
    for left, owner, split in zip(shapes.left, shapes.owner, shapes.split):
        tree = {"left": left.tolist(), "owner": owner.tolist(), "split": split.tolist()}
        problem = check_tree(tree, parties, {place: len(requests)})
        if problem:
            raise ProtocolError(f"the label holder sent {problem}.")
        trees.append(tree)
    problem = find_false_trees(trees, outputs, place, requests, rules)
    if problem:
        raise ProtocolError(f"the label holder sent {problem}.")
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
    own, settings = OwnBins.from_dict(bins), fix_backend(settings, helper)
    outputs = len(labels) if settings["objective"] == "multiclass" else 1
    holders = [n for n in names if n != me.name]
    others = [*holders, *([helper] if helper else [])]
    await me.send(others, LabelShape(outputs))
    if _is_open(settings, helper):
        settings = {**settings, "backend": await _choose(me, holders, settings, len(codes), outputs)}
        await me.send(others, BackEnd(settings["backend"]))
    # the values of leaves are fixed under this mask for all predictions to come (mpc/leaf_scores.py)
    key = (await me.recv(helper, LeafKey)).key if helper else me.secret.bytes(KEY)
    if len(key) != KEY:
        raise ProtocolError(f"{helper!r} sent a key of {len(key)} bytes; expected {KEY}.")
    rules = make_rules(settings)
    terms = make_terms(names, me.name, helper, len(codes), settings, outputs)
    stamp(me, settings)
    is_encrypted, hides = settings["backend"] == "he", settings["reveal"] == "splits"
    order = [me.name, *holders]
    side: LabelSide | EncryptedLabelSide = (
        EncryptedLabelSide(me, terms) if is_encrypted else LabelSide(me, terms, multiply_words)
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
    masked = mask_leaves(grown.trees, grown.base, key)
    mark = mark_trees(grown.trees, masked.tolist())
    await side.finish(shapes, mark)
    await me.send(holders, MaskedLeaves(masked))
    if is_encrypted and helper:
        await me.send(helper, SumsEnd(mark))
    return {
        "leaf_key": key.hex(),
        "splits": [s.to_dict(own.bins) for s in grown.splits],
        "trees": [asdict(t) for t in grown.trees],
        "base": grown.base,
        "labels": list(labels),
        "losses": grown.losses,
        "best": grown.best,
        "rows": len(codes),
        "backend": settings["backend"],
    }


async def _choose(
    me: Party, holders: Sequence[str], settings: Mapping[str, Any], rows: int, outputs: int
) -> str:
    """The cheaper back-end, from the numbers of columns and cells that holders announce."""
    columns, cells = [], []
    for name, message in (await me.gather(holders, CellCount)).items():
        if not 0 <= message.columns <= COLUMNS or not 0 <= message.cells <= MOST_CELLS:
            raise ProtocolError(f"{name!r} announced columns with cells that no table has.")
        columns.append(message.columns)
        cells.append(message.cells)
    return choose_backend(Sizes(rows, tuple(columns), tuple(cells), outputs), make_rules(settings))


_SHAPE = ("left", "owner", "split")


async def help_all(
    me: Party, names: Sequence[str], label_at: str, helper: str, settings: Mapping[str, Any], rows: int
) -> dict[str, str]:
    """The helper: deals randomness, and with reveal="splits" finds splits.

    Returns the trees' digest, and the key of the mask of the leaves.
    """
    settings = fix_backend(settings, helper)
    outputs = await _learn_outputs(me, label_at, settings)
    if _is_open(settings, helper):
        settings = await _learn_backend(me, label_at, settings)
    stamp(me, settings)
    key = me.secret.bytes(KEY)
    await me.send(label_at, LeafKey(key))
    if settings["backend"] == "he":  # it only helps to predict
        return {"mark": (await me.recv(label_at, SumsEnd)).mark, "leaf_key": key.hex()}
    terms = make_terms(names, label_at, helper, rows, settings, outputs)
    rules = make_rules(settings)
    scale = 1.0, 1.0
    if settings["reveal"] == "splits":
        units = (await me.recv(label_at, SumUnits)).units
        if len(units) != 2 or not all(2.0**-200 < u < 2.0**200 for u in units):
            raise ProtocolError(f"{label_at!r} sent units that no gradient has.")
        scale = units[0], units[1]

    def search(
        layout: Layout, sums: np.ndarray, usable: np.ndarray | None, is_root: np.ndarray
    ) -> list[tuple[float, bytes]]:
        problem = find_false_sums(sums, layout.widths, is_root, rows, rules)
        if problem:
            raise ProtocolError(f"{label_at!r} asked for {problem}.")
        return find_records(layout.widths, layout.is_category, sums, usable, rules.split, scale)

    mark = await histograms.help_sums(me, terms, multiply_words, search)
    return {"mark": mark, "leaf_key": key.hex()}


def mark_trees(trees: Sequence[VerticalTree], masked: Sequence[int]) -> str:
    """A digest of the shape of the trees and the masked values of leaves: the same at all parties."""
    plain = [[[t.left, t.owner, t.split] for t in trees], [int(v) for v in masked]]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def count_leaves(trees: Sequence[Mapping[str, Any]]) -> int:
    return sum(o == LEAF for t in trees for o in t["owner"])


def find_unit(trees: Sequence[VerticalTree], base: float) -> float:
    """A power of two in which every score is below MOST: 1, unless a regression has large labels."""
    largest = abs(base) + sum(max(map(abs, tree.value)) for tree in trees)
    return float(2.0 ** max(0, math.frexp(largest / MOST)[1]))


def leaf_words(trees: Sequence[VerticalTree], base: float) -> Tensor:
    """The values of all leaves as words, at the label holder: tree after tree, in the order of nodes."""
    values = [v for t in trees for v, o in zip(t.value, t.owner) if o == LEAF]
    return encode(torch.tensor(values, dtype=torch.float64) / find_unit(trees, base), "the label holder")


def mask_leaves(trees: Sequence[VerticalTree], base: float, key: bytes) -> Tensor:
    """The values of leaves as the other parties keep them."""
    words = leaf_words(trees, base)
    return words - draw_mask(key, len(words))


def to_trees(entries: Sequence[Mapping[str, Any]]) -> list[VerticalTree]:
    known = {f.name for f in fields(VerticalTree)}
    return [VerticalTree(**{k: list(v) for k, v in e.items() if k in known}) for e in entries]
