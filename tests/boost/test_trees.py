"""Bins, kernels, splits and trees, each beside an independent computation."""

from __future__ import annotations

import copy
import itertools
import json

import numpy as np
import pandas as pd
import pytest

from tacit.boost import kernels, trees
from tacit.boost.bins import Bins, Feature
from tacit.boost.cut_search import CutSearch, count_keys, count_rounded
from tacit.boost.grower import _Round
from tacit.boost.model import leaf_values
from tacit.boost.program import BoostProgram
from tacit.boost.splits import SplitRules, _search_compiled, find_splits, search_numpy
from tacit.data.preparation import keys_of
from tacit.errors import BadData
from tacit.protocols.sum_steps import ideal

from .tables import divide, make_program, make_table

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


def histogram(codes, g, h, node=None, slots=None, used=None, plain=False):
    n = len(codes)
    node = np.zeros(n, np.int32) if node is None else node
    slots = np.zeros(1, np.int32) if slots is None else slots
    used = np.ones(n, bool) if used is None else used
    shape = (int(slots.max()) + 1, BINS.cells)
    if not plain:
        return kernels.histograms(codes, node, slots, used, g, h, BINS.offsets, shape)
    out = np.zeros((*shape, 3), np.int64)
    kernels.histograms_numpy(codes, node, slots, used, g, h, BINS.offsets, out)
    return out


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_become_the_same_integers_with_and_without_numba(outputs, monkeypatch):
    """Halves are rounded to even, and what is outside is clipped."""
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(size=400), np.arange(-9, 9) / 2, [1e9, -1e9, 1e300, -0.0]])
    values = np.column_stack([values] * outputs) * rng.choice([1.0, 0.5], outputs)
    weight = np.where(np.arange(len(values)) < 400, rng.random(len(values)) * 3, 1.0)
    found = []
    for numba in (True, False):
        monkeypatch.setattr(kernels, "has_numba", lambda numba=numba: numba)
        found += [kernels.to_integers(values, weight, scale, 1 << 10) for scale in (1.0, 2.0**9)]
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[3])
    assert (found[0].max(), found[0].min(), found[0].dtype, len(found[0])) == (1024, -1024, np.int64, outputs)


def test_places_of_words_have_room_for_many_columns():
    """Up to 128 columns of 256 cells have places of 16 bits."""
    for columns, kind in ((128, np.uint16), (129, np.uint32), (600, np.uint32)):
        codes = np.random.default_rng(columns).integers(0, 256, (5, columns)).astype(np.uint8)
        codes[0] = 255
        places = kernels.word_places(codes, np.arange(columns) * 256)
        assert places.dtype == kind
        assert np.array_equal(places, 2 * (codes.astype(int) + 256 * np.arange(columns)))


def test_compiled_histograms_and_paths_equal_those_of_numpy():
    assert kernels.has_numba()  # otherwise both sides would be numpy
    codes, g, h = rows_of(500)
    rng = np.random.default_rng(1)
    node, used = rng.integers(0, 4, 500).astype(np.int32), rng.random(500) < 0.8
    slots = np.array([1, -1, 0, 2], np.int32)
    found, plain = (histogram(codes, g, h, node, slots, used, p) for p in (False, True))
    assert np.array_equal(found, plain)
    largest = np.full(500, 2**26)  # the most that fits beside the rows
    wide = np.zeros_like(found)
    kernels._compiled().histogram_loop(codes, node, slots, used, g, largest, BINS.offsets, wide)
    assert np.array_equal(histogram(codes, g, largest, node, slots, used), wide)
    by_hand = g[(node == 0) & used & (codes[:, 1] == 2)].sum()
    assert found[1, BINS.offsets[1] + 2, 0] == by_hand
    tree = small_tree()
    ways = [np.zeros(500, np.int32), np.zeros(500, np.int32)]
    for way, descend in zip(ways, (kernels.descend, kernels.descend_numpy)):
        descend(codes, tree.nodes(), BINS, way)
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
    back = trees.from_bytes(trees.to_bytes([small_tree(), trees.Tree(), small_tree()]), BINS)
    codes = rows_of(300)[0]
    assert [len(t.feature) for t in back] == [7, 1, 7]
    for tree in (back[0], back[2]):
        assert np.array_equal(leaf_values(tree, codes, BINS), leaf_values(small_tree(), codes, BINS))


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("feature", 0, 9),  # no such feature
        ("feature", 1, -5),
        ("left", 0, 0),  # its own child: an endless way
        ("left", 1, 1),
        ("left", 2, 3),  # two parents
        ("left", 2, 900),
        ("left", 1, -2),
        ("cut", 0, 200),
        ("value", 3, float("nan")),
        ("feature", 0, 1),  # a cut for a category
        ("feature", 1, 0),  # a set for a number
    ],
)
def test_what_is_no_tree_is_refused(name, index, value, monkeypatch):
    tree = small_tree()
    getattr(tree, name)[index] = value
    said = []
    for numba in (True, False):
        monkeypatch.setattr(kernels, "has_numba", lambda numba=numba: numba)
        with pytest.raises(BadData) as error:
            trees.from_bytes(trees.to_bytes([tree]), BINS)
        said.append(str(error.value))
        with pytest.raises(BadData):
            tree.check(BINS)
    assert said[0] == said[1]


@pytest.mark.parametrize("numba", [True, False])
def test_a_leaf_with_a_set_is_refused(numba, monkeypatch):
    """It would move the numbers of later sets by one: a row would then be looked up outside of them."""
    monkeypatch.setattr(kernels, "has_numba", lambda: numba)
    nodes = small_tree().nodes()
    flags = nodes.flags.copy()
    flags[4] += 2
    for sets in (nodes.sets, np.repeat(nodes.sets, 2, axis=0)):
        with pytest.raises(BadData, match="another kind"):
            trees.check_nodes(nodes._replace(flags=flags, sets=sets), BINS)


@pytest.mark.parametrize("numba", [True, False])
def test_a_tree_extends_those_it_grew_from_and_no_others(numba, monkeypatch):
    monkeypatch.setattr(kernels, "has_numba", lambda: numba)
    tree, whole = trees.Tree(), small_tree().nodes()
    assert whole.extends(tree.nodes())
    left, right = tree.divide(0, trees.Split(0, 1, True, 5.0))
    assert whole.extends(tree.nodes())
    other = copy.deepcopy(tree)
    tree.divide(left, trees.Split(1, 0, False, 2.0, np.array([True, False, True, False])))
    other.divide(left, trees.Split(1, 0, False, 2.0, np.array([True, False, False, False])))
    assert whole.extends(tree.nodes())
    assert not whole.extends(other.nodes())
    assert not tree.nodes().extends(whole)
    tree.divide(right, trees.Split(2, 0, False, 1.0))
    assert not whole.extends(tree.nodes())


@pytest.mark.parametrize("numba", [True, False])
def test_words_are_sums_of_all_parties_up_to_the_most_rows(numba, monkeypatch):
    """Two cells: largest Hessians of the most rows, and the smallest and largest gradients."""
    monkeypatch.setattr(kernels, "has_numba", lambda: numba)
    most = kernels.PACKED_ROWS - 1
    units = 1 << 26
    parts = [np.array([[[units, units, 1], [-units, 0, 1]]]) * rows for rows in (1, 7, most - 8)]
    total = np.sum([kernels.pack_words(part) for part in parts], axis=0)
    assert np.array_equal(kernels.unpack_words(total, (1, 2)), np.sum(parts, axis=0))


def test_bytes_that_are_no_trees_are_refused():
    data = trees.to_bytes([small_tree()])
    for broken in (
        data[:-1],
        data[:3],
        data + b"\x01",
        b"\0" * 8,
        data[:2] + b"\x09\x00" + data[4:],
        b"\xff" * 50,
    ):
        with pytest.raises(BadData):
            trees.from_bytes(broken, BINS)


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
    hist = histogram(codes, g, h)
    total = np.array([[g.sum(), h.sum(), 120]])
    found = find_splits(hist, total, BINS, rules, (1.0, 1.0))[0]
    assert found.gain == pytest.approx(brute_force(codes, g.astype(float), h.astype(float), rules), rel=1e-9)
    assert (found.left + found.right == total[0]).all()


@pytest.mark.parametrize("monotone", [None, [1, 0, -1]])
@pytest.mark.parametrize(
    "rules", [SplitRules(), SplitRules(l1=3.0, max_step=0.4), SplitRules(min_rows=9, min_child_weight=30.0)]
)
def test_the_compiled_search_equals_that_of_numpy(rules, monotone):
    codes, g, h = rows_of(400, 3)
    node = np.random.default_rng(2).integers(0, 5, 400).astype(np.int32)
    hist = histogram(codes, g, h, node, np.arange(5, dtype=np.int32))
    total = hist[:, : int(BINS.widths[0]) + 1].sum(axis=1)
    usable = np.array([[True] * 3] * 4 + [[False, True, False]])
    limits = np.array([[-np.inf, np.inf], [-1.0, 1.0], [-0.3, 0.2], [0.0, 2.0], [-np.inf, np.inf]])
    more = (None, None, None) if monotone is None else (np.array(monotone), limits, limits * 1.5)
    both = [
        search(hist, total, BINS, rules, (4.0, 8.0), usable, *more)
        for search in (_search_compiled, search_numpy)
    ]
    for ours, theirs in zip(*both):
        assert np.array_equal(ours, theirs)


def test_the_compiled_search_equals_that_of_numpy_with_many_levels():
    """More levels than a set may have, some of them in no row; `other` is in some nodes only."""
    rng = np.random.default_rng(5)
    bins = Bins((Feature("n", (0.5, 1.5)), Feature("c", levels=tuple(f"{k:03d}" for k in range(200)))))
    codes = np.stack([rng.integers(0, 4, 900), rng.integers(0, 202, 900)], axis=1).astype(np.uint8)
    g, h = rng.integers(-8, 9, 900), rng.integers(0, 5, 900)
    node = rng.integers(0, 3, 900).astype(np.int32)
    codes[(node == 1) & (codes[:, 1] >= 200), 1] = 3
    slots, shape = np.arange(3, dtype=np.int32), (3, bins.cells)
    hist = kernels.histograms(codes, node, slots, np.ones(900, bool), g, h, bins.offsets, shape)
    total = hist[:, : int(bins.widths[0]) + 1].sum(axis=1)
    rules = SplitRules(min_child_weight=0.9)
    both = [
        search(hist, total, bins, rules, (1.0, 4.0), None, None, None, None)
        for search in (_search_compiled, search_numpy)
    ]
    for ours, theirs in zip(*both):
        assert np.array_equal(ours, theirs)
    for chosen in both[0][4]:
        assert 0 < min(chosen[:200].sum(), (~chosen[:200]).sum()) <= 63


def test_a_gain_below_gamma_is_no_split():
    codes, g, h = rows_of(120)
    hist = histogram(codes, g, h)
    total = np.array([[g.sum(), h.sum(), 120]])
    most = find_splits(hist, total, BINS, SplitRules(), (1.0, 1.0))[0].gain
    assert find_splits(hist, total, BINS, SplitRules(gamma=most * 1.01), (1.0, 1.0))[0].split is None


def search(values: np.ndarray, bins: int, min_rows: int = 1) -> tuple[float, ...]:
    found = CutSearch(1, bins, min_rows, count_rounded([values]).tolist())
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


def test_a_cut_divides_values_as_their_keys_do():
    """Values of many digits, each on one side of its key; a frequent one would fall into its neighbor's bin."""
    rng = np.random.default_rng(1)
    few = np.sort(np.concatenate([rng.normal(size=40), [0.0, 1 / 3, 100 / 3]]))
    values = np.repeat(few, 3)
    cuts = search(values, 64)
    assert len(cuts) == len(few) - 1
    assert np.searchsorted(np.asarray(cuts), few.astype(np.float32), side="right").tolist() == list(range(43))
    many = np.repeat(np.round(rng.normal(size=2000), 2) / 3, 3)
    for cut in search(many, 32):
        key = keys_of(np.array([cut]))
        assert ((many.astype(np.float32) >= np.float32(cut)) == (keys_of(many) >= key)).all()


def test_no_bin_has_fewer_rows_than_required():
    values = np.concatenate([np.arange(50.0), np.full(500, 7.0)])
    counts = np.bincount(np.searchsorted(np.asarray(search(values, 64, min_rows=10)), values, side="right"))
    assert counts.min() >= 10


def test_a_saved_tree_is_json():
    json.dumps(BINS.to_dict())


@pytest.mark.parametrize("rules", [{}, {"leaves": 6, "depth": 0}], ids=["by level", "best first"])
def test_no_histogram_is_asked_for_where_neither_sibling_can_be_split(rules, monkeypatch):
    """Trees are those of asking for all of them: a node is split only if both children have the least weight."""
    table, asked = divide(make_table(), 2), []
    original = BoostProgram._parse

    def parse(self, down):
        work = original(self, down)
        asked.append(sum(work.counts))
        return work

    monkeypatch.setattr(BoostProgram, "_parse", parse)
    options = {"trees": 20, "depth": 5, "min_child_weight": 20.0, **rules}
    few = ideal(make_program(**options), table).model
    count = sum(asked)
    asked.clear()
    monkeypatch.setattr(_Round, "can_split", lambda self, node: True)
    all_of_them = ideal(make_program(**options), table).model
    rows = make_table(seed=1)
    assert few.predict(rows).tolist() == all_of_them.predict(rows).tolist()
    for tree, other in zip(few.trees, all_of_them.trees, strict=True):
        assert (tree.feature, tree.cut, tree.value) == (other.feature, other.cut, other.value)
        assert (tree.gain, tree.cover, tree.rows) == (other.gain, other.cover, other.rows)
    assert count < sum(asked)
