"""Boosted trees on shares: the same splits as in the clear, and values to fixed-point precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tacit.errors import BadData, BadParameter, PartyFailed
from tacit.mpc import shared_trees, split_search
from tacit.mpc.split_search import SUM, CandidateMap, ColumnCells, SplitLimits, list_candidates
from tacit.runtimes.inprocess import InProcess

from .at_table import value
from .at_trees import make_programs, make_rows, make_terms


@pytest.mark.parametrize("objective", ["binary", "regression"])
@pytest.mark.parametrize(("how", "label_at"), [("inner", 0), ("inner", 1), ("left", 0)])
def test_trees_on_shares_equal_those_in_the_clear(how: str, label_at: int, objective: str) -> None:
    rows = make_rows(1500, how=how, objective=objective)
    terms = make_terms(rows, label_at, how=how, objective=objective, trees=3, min_rows=15, bins=12)
    found = InProcess().run_sync(make_programs(terms, rows, base=0.125))
    codes, y = rows.counted(terms)
    expected = shared_trees.ideal(terms, rows.columns, codes, y, 0.125)
    holder, other = (found[terms.names[k]] for k in (label_at, 1 - label_at))
    assert holder.picks == other.picks == expected.picks
    assert any(place for tree in expected.picks for level in tree[2:] for place in level)
    assert float((holder.leaves / 2.0**SUM - expected.leaves).abs().max()) < 2.0**-20
    unit = 2.0**terms.limits.gain_bits
    splits = expected.gains > 0
    assert float((holder.gains / unit - expected.gains)[splits].abs().max()) < 0.002
    assert not holder.gains[~splits].any()
    assert other.leaves is None
    assert other.gains is None


def test_each_leaf_has_min_rows_people_who_count() -> None:
    rows = make_rows(1500)
    terms = make_terms(rows, trees=4, depth=4, min_rows=40, bins=12)
    found = InProcess().run_sync(make_programs(terms, rows))["b"]
    codes, _ = rows.counted(terms)
    start = np.cumsum([0, *(c.width for own in rows.columns for c in own)])
    column_of = np.repeat(np.arange(len(start) - 1), np.diff(start))
    for tree in found.picks:
        node = torch.zeros(len(codes), dtype=torch.int64)
        for level in tree:
            left = torch.ones(len(codes), dtype=torch.bool)
            for k, place in enumerate(level):
                if place:
                    one = found.candidates[place - 1]
                    cells = [c - int(start[column_of[c]]) + 1 for c in one.cells]
                    inside = torch.isin(codes[:, int(column_of[one.cells[0]])], torch.tensor(cells))
                    left[node == k] = (inside ^ one.flips)[node == k]
            node = 2 * node + (~left).long()
        sizes = torch.bincount(node)
        assert int(sizes[sizes > 0].min()) >= 40


def test_a_node_without_a_split_is_a_leaf() -> None:
    """With min_rows near half the people only the root is split, and with a large γ nothing is."""
    rows = make_rows(600)
    people = int(rows.match.sum())
    terms = make_terms(rows, trees=1, depth=2, min_rows=people // 2 - 30, bins=12)
    picks = InProcess().run_sync(make_programs(terms, rows))["a"].picks[0]
    assert picks[0] != [0]
    assert picks[1] == [0, 0]
    terms = make_terms(rows, trees=1, depth=2, gamma=1e6, bins=12)
    found = InProcess().run_sync(make_programs(terms, rows))["b"]
    assert found.picks == [[[0], [0, 0]]]
    g = 0.5 - rows.y[rows.match.bool()]
    assert float(found.leaves[0, 0]) / 2**SUM == pytest.approx(
        -0.3 * float(g.sum() / (len(g) / 4 + 1)), abs=1e-6
    )


def test_gamma_may_be_as_large_as_gains_of_a_million_rows() -> None:
    terms = replace(make_terms(make_rows(100)), rows=1 << 20, gamma=2.0**25)
    assert shared_trees.gain_floor(terms, 0) == 2**25 * 2**terms.limits.gain_bits
    assert shared_trees.gain_floor(replace(terms, gamma=1e300), 0) == 2**40  # comparisons take 2^48


def test_weights_and_scores_have_the_stated_errors() -> None:
    """Over sums of 1 to 60,000 rows; |G| up to 30 D."""
    rng = np.random.default_rng(0)
    limits = SplitLimits(60_000, 1.0, 20, 1.0)
    h = 10 ** rng.uniform(-2, np.log10(15_000), 3000)
    g = h * rng.uniform(-1, 1, 3000) * 10 ** rng.uniform(-3, 0.5, 3000)
    words = [torch.from_numpy(np.round(v * 2.0**SUM)).long() for v in (g, h)]

    async def weigh(ctx, g, h):
        return await split_search.weight(ctx, limits, g, h)

    async def rate(ctx, g, h):
        return await split_search.score(ctx, limits, g, h)

    w = g / (h + 1)
    error = np.abs(value(weigh, *words).numpy() / 2.0**SUM - w)
    assert (error < 2.0**-21 + 2.0**-22 * np.abs(w)).all()
    unit = 2.0**-limits.gain_bits
    error = np.abs(value(rate, *words).numpy() * unit - g * w)
    assert (error < 4 * unit * (1 + np.abs(w)) + 2.0**-21 * (g * w + np.abs(g))).all()


def test_weights_are_limited_to_128_where_hessians_are_small() -> None:
    """At a base rate of 0.1% a leaf of 998 cases has H near 1; at confident wrong predictions H is near 0."""
    limits = SplitLimits(1_300_000, 0.01, 20, 0.0)
    g = torch.tensor([20.0, -20.0, 998.0, -1e6, 1.2, -1.4, 3.0, 0.0], dtype=torch.float64)
    h = torch.tensor([0.02, 0.02, 1.0, 0.0, 0.0, 0.0, 0.02, 0.0], dtype=torch.float64)
    words = [torch.round(v * 2.0**SUM).long() for v in (g, h)]

    async def weigh(ctx, g, h):
        return await split_search.weight(ctx, limits, g, h)

    async def rate(ctx, g, h):
        return await split_search.score(ctx, limits, g, h)

    w = (g / (h + 0.01)).clamp(-128, 128)
    assert w.abs().max() == 128
    assert float((value(weigh, *words).double() / 2.0**SUM - w).abs().max()) < 0.1
    assert torch.allclose(value(rate, *words).double() / 2.0**limits.gain_bits, g * w, rtol=1e-2)


def test_a_leaf_is_limited_where_the_constant_says_that_labels_of_1_are_rare() -> None:
    """The constant is that of the holder's whole table, here 0.03%; half of the matched people have a 1."""
    rows = make_rows(600)
    options: dict[str, Any] = {"trees": 1, "depth": 1, "l2": 0.01, "min_child_weight": 0.0, "gamma": 1e6}
    terms = make_terms(rows, bins=12, **options)
    found = InProcess().run_sync(make_programs(terms, rows, base=-8.0))["b"]
    expected = shared_trees.ideal(terms, rows.columns, *rows.counted(terms), -8.0).leaves
    assert float(expected[0, 0]) == pytest.approx(0.3 * 128)
    assert float(found.leaves[0, 0]) / 2**SUM == pytest.approx(0.3 * 128, abs=1e-3)


def test_weights_of_more_than_a_million_bins() -> None:
    """The largest match that stays shared, 2^20 people: H is 2^20 in a regression."""
    limits = SplitLimits(round(1.27 * 2**20), 10_000.0, 20, 0.0, is_bounded=True)
    g, h = torch.tensor([[3.0 * 2**20, -8.0 * 2**20, 1.0], [2.0**20, 2.0**20, 20.0]]).double()

    async def weigh(ctx, g, h):
        return await split_search.weight(ctx, limits, g, h)

    found = value(weigh, *(torch.round(v * 2.0**SUM).long() for v in (g, h))).double() / 2.0**SUM
    assert torch.allclose(found, g / (h + 10_000), atol=2.0**-19)


def test_of_equal_gains_the_first_wins_and_missing_values_go_right() -> None:
    """Two equal columns without missing values in this node, though others have some."""
    columns = [[ColumnCells(2, False, True)], [ColumnCells(2, False, False)]]
    listed = list_candidates(columns)
    assert [(c.party, c.cut, c.missing_left) for c in listed] == [
        (0, 0, False),
        (0, 1, False),
        (1, 0, False),
        (0, 0, True),
    ]
    candidates = CandidateMap.of(listed, 4)
    one = torch.tensor([[30, -30], [25, 25], [100, 100]])
    sums = torch.cat([one, one], 1).unsqueeze(1) * torch.tensor([1 << SUM, 1 << SUM, 1]).reshape(3, 1, 1)

    async def step(ctx, sums, total, floor):
        return torch.stack(await split_search.search(ctx, limits, candidates, sums, total, floor))

    limits = SplitLimits(200, 1.0, 20, 0.0)
    place, gain = value(step, sums, sums[..., :2].sum(-1), torch.tensor(0)).flatten().tolist()
    assert place == 1
    assert gain / 2**limits.gain_bits == pytest.approx(2 * 900 / 26, abs=1e-3)


def test_few_people_grow_no_tree_and_open_one_bit() -> None:
    rows = make_rows(400)
    rows.match = rows.match * (rows.match.cumsum(0) <= 39)
    terms = make_terms(rows, trees=1, min_rows=20, bins=12)
    found = InProcess().run_sync(make_programs(terms, rows))
    assert found["a"] is None
    assert found["b"] is None
    assert found["h"] is False
    rows = make_rows(400)
    rows.match = rows.match * (rows.match.cumsum(0) <= 40)
    assert InProcess().run_sync(make_programs(terms, rows))["h"] is True


@pytest.mark.parametrize(("how", "label_at"), [("inner", 0), ("inner", 1), ("left", 0)])
@pytest.mark.parametrize("rare", [0.0, 1.0])
def test_a_class_of_few_people_grows_no_tree(how: str, label_at: int, rare: float) -> None:
    """A leaf's value would tell the label's holder which of these few people are matched."""
    rows = make_rows(400, how=how)
    counted = rows.match if how == "inner" else rows.present
    for people, expected in ((9, False), (10, True)):
        chosen = counted.bool() & (counted.cumsum(0) <= people)
        rows.y = torch.where(chosen, rare, 1 - rare).double()
        if how == "inner":  # who is not matched does not count
            rows.y[~counted.bool()] = rare
        terms = make_terms(rows, label_at, how=how, trees=1, depth=1, bins=12)
        found = InProcess().run_sync(make_programs(terms, rows))
        assert found["h"] is expected
        assert (found["a"] is not None) is expected


def test_settings_that_would_open_a_value_about_few_people_are_refused() -> None:
    rows = make_rows(100)
    with pytest.raises(BadParameter, match="min_rows is 9; it must be at least 10, the minimum of the join"):
        shared_trees.check_terms(make_terms(rows, min_rows=9))
    with pytest.raises(BadParameter, match=r"label is 'b\.y'; it must be a column of 'a' with how='left'"):
        shared_trees.check_terms(make_terms(rows, how="left"))
    none = replace(make_terms(rows), columns=((), ()))
    with pytest.raises(BadParameter, match="at least one column besides the label"):
        shared_trees.check_terms(none)


def test_columns_without_a_split_are_refused() -> None:
    rows = make_rows(100)
    rows.columns = [[ColumnCells(1, False, False)] * 3] * 2
    with pytest.raises(PartyFailed, match="there is nothing to split"):
        InProcess().run_sync(make_programs(make_terms(rows), rows))


def test_columns_that_need_too_much_memory_are_refused() -> None:
    terms: Any = replace(make_terms(make_rows(100)), rows=1 << 20)
    columns = [[ColumnCells(60, False, False)] * 3, [ColumnCells(60, False, False)] * 3]
    with pytest.raises(BadData, match="at most 134217728 are possible"):
        shared_trees.check_columns(terms, columns)
