"""Bins, kernels, splits and trees, each beside an independent computation."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.boost import kernels, trees
from tacit.boost.bins import Bins, Feature
from tacit.boost.cut_search import CutSearch, count_keys
from tacit.boost.model import leaf_values
from tacit.boost.splits import SplitRules, find_splits
from tacit.errors import BadData

BINS = Bins((Feature("a", (0.0, 1.0, 2.0)), Feature("c", levels=("u", "v", "w")), Feature("d", (5.0,))))


def rows_of(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, w + 1, n) for w in BINS.widths]).astype(np.uint8)
    return codes, rng.integers(-50, 50, n), rng.integers(1, 20, n)


def test_cells_are_the_numbers_of_cuts_not_above_and_levels_in_order():
    frame = pd.DataFrame(
        {"a": [-1, 0.0, 1.5, 2.0, None], "c": ["v", "u", "?", None, "w"], "d": [5, 4.9, 0, 6, None]}
    )
    assert BINS.encode(frame).tolist() == [[0, 1, 1], [1, 0, 0], [2, 3, 0], [3, 4, 1], [4, 2, 2]]


def test_bins_survive_their_plain_form_and_nonsense_is_refused():
    assert Bins.from_bytes(BINS.to_bytes()) == BINS
    for text in (
        b"{",
        b"7",
        b'[{"name": "a"}]',
        b'[{"name": "a", "cuts": [2, 1]}]',
        b'[{"name": "a", "cuts": ["x"]}]',
    ):
        with pytest.raises(BadData):
            Bins.from_bytes(text)
    with pytest.raises(BadData, match="at most 254"):
        Feature("a", tuple(range(300)))


def test_compiled_histograms_and_paths_equal_those_of_numpy():
    assert kernels.has_numba()  # otherwise both sides would be numpy
    codes, g, h = rows_of(500)
    slot = np.random.default_rng(1).integers(-1, 3, 500).astype(np.int32)
    found = kernels.histograms(codes, slot, g, h, BINS.offsets, (3, BINS.cells))
    plain = np.zeros_like(found)
    kernels.histograms_numpy(codes, slot, g, h, BINS.offsets, plain)
    assert np.array_equal(found, plain)
    by_hand = g[(slot == 1) & (codes[:, 1] == 2)].sum()
    assert found[1, BINS.offsets[1] + 2, 0] == by_hand
    tree = small_tree()
    ways = [np.zeros(500, np.int32), np.zeros(500, np.int32)]
    for way, descend in zip(ways, (kernels.descend, kernels.descend_numpy)):
        descend(codes, np.asarray(tree.feature, np.int32), tree.routes(BINS), way)
    assert np.array_equal(*ways)
    assert [walk(tree, row) for row in codes] == ways[0].tolist()


def small_tree() -> trees.Tree:
    tree = trees.Tree()
    left, right = tree.divide(0, trees.Split(0, 1, True, 5.0))
    tree.divide(left, trees.Split(1, 0, False, 2.0, np.array([True, False, True, False])))
    tree.divide(right, trees.Split(2, 1, False, 1.0))
    tree.value[3:] = [0.5, -0.25, 0.125, -1.0]
    return tree


def walk(tree: trees.Tree, row: np.ndarray) -> int:
    node = 0
    while tree.feature[node] != trees.LEAF:
        f = tree.feature[node]
        if row[f] == BINS.widths[f]:
            goes_left = tree.default_left[node]
        else:
            goes_left = tree.sets[node][row[f]] if node in tree.sets else row[f] <= tree.cut[node]
        node = tree.left[node] + (not goes_left)
    return node


def test_trees_survive_the_wire():
    back = trees.from_vectors(trees.to_vectors([small_tree(), trees.Tree(), small_tree()]), BINS)
    codes = rows_of(300)[0]
    assert [len(t) for t in back] == [7, 1, 7]
    for tree in (back[0], back[2]):
        assert np.array_equal(leaf_values(tree, codes, BINS), leaf_values(small_tree(), codes, BINS))


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("feature", 0, 9),  # no such feature
        ("left", 0, 0),  # its own child: an endless way
        ("left", 1, 1),
        ("left", 2, 3),  # two parents
        ("left", 2, 900),
        ("cut", 0, 200),
        ("value", 3, float("nan")),
        ("sizes", 0, 6),
        ("default", 0, 2),  # a set for a number
        ("default", 1, 0),  # a cut for a category
    ],
)
def test_what_is_no_tree_is_refused(name, index, value):
    vectors = trees.to_vectors([small_tree()])
    vectors[name][index] = value
    with pytest.raises(BadData):
        trees.from_vectors(vectors, BINS)


def test_vectors_of_another_type_are_refused():
    vectors = trees.to_vectors([small_tree()])
    for broken in (
        {**vectors, "cut": vectors["cut"].to(torch.int64)},
        {**vectors, "sets": torch.zeros(5, dtype=torch.uint8)},
    ):
        with pytest.raises(BadData):
            trees.from_vectors(broken, BINS)
    del vectors["value"]
    with pytest.raises(BadData, match="value"):
        trees.from_vectors(vectors, BINS)


def brute_force(codes, g, h, rules):
    """The largest gain over all cuts of numbers, all sets of levels and both ways of missing values."""
    whole, best = rules.gain(g.sum(), h.sum()), 0.0
    for f, feature in enumerate(BINS.features):
        width = feature.width
        sides = (
            [set(range(j + 1)) for j in range(width)]
            if not feature.is_category
            else [set(s) for k in range(width + 1) for s in itertools.combinations(range(width), k)]
        )
        for left, blank in itertools.product(sides, (set(), {width})):
            goes = np.isin(codes[:, f], list(left | blank))
            if min(goes.sum(), (~goes).sum()) < max(rules.min_rows, 1):
                continue
            if min(h[goes].sum(), h[~goes].sum()) < rules.min_child_weight:
                continue
            gain = (
                rules.gain(g[goes].sum(), h[goes].sum()) + rules.gain(g[~goes].sum(), h[~goes].sum()) - whole
            )
            best = max(best, float(gain))
    return best


@pytest.mark.parametrize(
    "rules",
    [
        SplitRules(),
        SplitRules(l2=3.0, l1=4.0),
        SplitRules(min_rows=20, min_child_weight=100.0),
        SplitRules(l2=0.0),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_split_is_that_of_all_splits(rules, seed):
    codes, g, h = rows_of(120, seed)
    hist = kernels.histograms(codes, np.zeros(120, np.int32), g, h, BINS.offsets, (1, BINS.cells))
    total = np.array([[g.sum(), h.sum(), 120]])
    found = find_splits(hist, total, BINS, rules, (1.0, 1.0))[0]
    assert found.gain == pytest.approx(brute_force(codes, g.astype(float), h.astype(float), rules), rel=1e-9)
    assert (found.left + found.right == total[0]).all()


def test_a_gain_below_gamma_is_no_split():
    codes, g, h = rows_of(120)
    hist = kernels.histograms(codes, np.zeros(120, np.int32), g, h, BINS.offsets, (1, BINS.cells))
    total = np.array([[g.sum(), h.sum(), 120]])
    most = find_splits(hist, total, BINS, SplitRules(), (1.0, 1.0))[0].gain
    assert find_splits(hist, total, BINS, SplitRules(gamma=most * 1.01), (1.0, 1.0))[0].split is None


def search(values: np.ndarray, bins: int, min_rows: int = 1) -> tuple[float, ...]:
    found = CutSearch(1, bins, min_rows)
    for level in range(3):
        found.narrow(count_keys([values], level, found.places))
    return found.cuts()[0]


def test_few_values_have_a_bin_each():
    values = np.array([3.0, 17, 17, 250, 1999, 2001, -4, np.nan, 0])
    assert search(np.repeat(values, 2), 32) == (0.0, 3.0, 17.0, 250.0, 1999.0, 2001.0)


def test_many_values_have_bins_of_equal_size():
    values = np.random.default_rng(0).normal(size=20_000)
    cuts = search(values, 64)
    counts = np.bincount(np.searchsorted(np.asarray(cuts), values, side="right"))
    assert len(cuts) == 63
    assert counts.min() > 0.6 * 20_000 / 64
    assert counts.max() < 1.6 * 20_000 / 64


def test_no_bin_has_fewer_rows_than_required():
    values = np.concatenate([np.arange(50.0), np.full(500, 7.0)])
    counts = np.bincount(np.searchsorted(np.asarray(search(values, 64, min_rows=10)), values, side="right"))
    assert counts.min() >= 10


def test_a_saved_tree_is_json():
    json.dumps(BINS.to_dict())
