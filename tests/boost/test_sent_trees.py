"""Trees that are read where they lie (compiled_trees.py), beside the same steps over arrays."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from tacit.boost import kernels, trees
from tacit.boost.objectives import OBJECTIVES
from tacit.boost.rows import UNITS, RowState
from tacit.errors import BadData
from tests.boost.test_trees import BINS, rows_of, small_tree

SCALE = (2.0**20, 2.0**20)


def grow_at_random(splits: int, seed: int) -> list[trees.Tree]:
    """Return a tree after each of its splits; the last values of its leaves are random."""
    rng = np.random.default_rng(seed)
    stages = [trees.Tree()]
    for _ in range(splits):
        tree = copy.deepcopy(stages[-1])
        leaf = int(rng.choice([n for n, f in enumerate(tree.feature) if f == trees.LEAF]))
        f = int(rng.integers(0, len(BINS.features)))
        members = rng.random(int(BINS.widths[f])) < 0.5 if BINS.is_category[f] else None
        cut = 0 if members is not None else int(rng.integers(0, BINS.widths[f]))
        tree.divide(leaf, trees.Split(f, cut, bool(rng.random() < 0.5), 1.0, members))
        stages.append(tree)
    stages[-1].value = [float(np.float32(v)) for v in rng.normal(size=len(stages[-1]))]
    return stages


def sent(*found: trees.Tree) -> trees.SentTrees:
    return trees.SentTrees(np.frombuffer(bytearray(trees.to_bytes(found)), np.uint8), BINS, len(found))


def state_of(rows: int) -> tuple[RowState, np.ndarray]:
    codes = rows_of(rows)[0]
    y = np.random.default_rng(3).integers(0, 2, rows).astype(float)
    return RowState(codes, y, BINS, OBJECTIVES["binary"](2), 0.1, np.ones(rows)), codes


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_moved_and_counted_as_over_arrays(seed):
    """Trees that grow, and one that is exchanged for another midway: rows then begin at the root."""
    assert kernels.has_numba()
    stages = [*grow_at_random(9, seed), *grow_at_random(4, 100 + seed)[2:]]
    (fast, codes), (plain, _) = state_of(300), state_of(300)
    used = np.random.default_rng(seed).random(300) < 0.9
    columns = np.array([0, 2]) if seed % 2 else BINS.places
    bins = BINS if len(columns) == 3 else type(BINS)(tuple(BINS.features[k] for k in columns))
    for tree in stages:
        slots = np.full(len(tree), -1, np.int32)
        asked = [n for n, f in enumerate(tree.feature) if f == trees.LEAF][::2]
        slots[asked] = np.arange(len(asked))
        found = fast.grow_and_count(sent(tree), [slots], [len(asked)], used, columns, bins, SCALE)[0]
        plain.grow(sent(tree))
        g, h = plain.gradients(SCALE)
        shape, cells = (len(asked), bins.cells), np.ascontiguousarray(codes[:, columns])
        expected = kernels.histogram_words(cells, plain.node[0], slots, used, g[0], h[0], bins.offsets, shape)
        assert np.array_equal(fast.node, plain.node)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("seed", range(4))
def test_margins_are_the_same_with_and_without_numba(seed, monkeypatch):
    first, second = grow_at_random(6, seed), grow_at_random(5, 50 + seed)
    margins = []
    for numba in (True, False):
        monkeypatch.setattr(kernels, "has_numba", lambda numba=numba: numba)
        state, _ = state_of(200)
        state.grow(sent(first[3]))  # rows are in the leaves of a tree that the finished one extends
        state.finish(trees.to_bytes([first[-1]]))
        state.grow(sent(first[2]))  # and of one that it does not
        state.finish(trees.to_bytes([first[-1], second[-1]]))
        assert state.rounds == 2
        margins.append(state.margin)
    assert np.array_equal(*margins)
    whole, _ = state_of(200)
    whole.finish(trees.to_bytes([first[-1], second[-1]]))  # two rounds at once, as after a restart
    assert np.array_equal(whole.margin, margins[0])


@pytest.mark.parametrize("numba", [True, False])
def test_what_is_no_tree_is_refused_as_it_is_sent(numba, monkeypatch):
    monkeypatch.setattr(kernels, "has_numba", lambda: numba)
    good = trees.to_bytes([small_tree()])
    n = 7
    feature, left, cut, flags, value = (4, 4 + 2 * n, 4 + 4 * n, 4 + 5 * n, 4 + 6 * n)

    def changed(at: int, *new: int) -> bytes:
        return good[:at] + bytes(new) + good[at + len(new) :]

    for data, text in (
        (good[:-1], "one is empty or cut off"),
        (good + b"\1", "the last one is cut off"),
        (bytes(8), "one is empty or cut off"),
        (changed(feature, 9, 0), "splits a feature that is not one of the 3"),
        (changed(feature, 254, 255), "splits a feature that is not one of the 3"),
        (changed(left, 0, 0), "no valid children"),
        (changed(left + 2, 6, 0), "no valid children"),
        (changed(cut, 200), "a cut outside"),
        (changed(flags, 7), "another kind"),
        (changed(flags + 3, 2), "another kind"),  # a leaf with a set
        (changed(2, 0, 0), "another kind"),  # fewer sets than are marked
        (changed(value + 4 * 3, 0, 0, 128, 127), "finite leaves"),
        (changed(value + 4 * 3, 1, 0, 192, 255), "finite leaves"),
        (changed(left + 4, 3, 0), "do not form one tree"),  # two parents
    ):
        with pytest.raises(BadData, match=text):
            trees.SentTrees(np.frombuffer(bytearray(data), np.uint8), BINS, 5)
    with pytest.raises(BadData, match="at most 1 are expected"):
        trees.SentTrees(np.frombuffer(bytearray(good * 2), np.uint8), BINS, 1)
    assert trees.SentTrees(np.frombuffer(bytearray(good * 2), np.uint8), BINS, 2).sizes == [n, n]


def test_compiled_gradients_are_those_of_the_objective():
    """Bit for bit, clipped ones and the smallest Hessian included."""
    state, _ = state_of(500)
    rng = np.random.default_rng(7)
    state.margin = np.concatenate(
        [rng.normal(size=(490, 1)) * 5, [[40.0], [-40.0], [0.0], [-0.0], [800.0]] * 2]
    )
    state.weight = rng.random(500) * 3
    scale = 2.0**25, 2.0**40
    expected = [
        kernels.to_integers(values, state.weight, s, UNITS)
        for values, s in zip(state.objective.gradients(state.margin, state.y), scale)
    ]
    for found, values in zip(state.gradients(scale), expected):
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)
    assert abs(expected[1]).max() == UNITS
