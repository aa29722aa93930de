"""MST and AIM on many columns and large domains: what is left out, what is scored, and that ε still holds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit.accounting import discrete
from tacit.parties.secret import SeededSecret
from tacit.synth import AIM, MST, aim, categorical
from tacit.synth.graphical import JunctionTree, fit_model, tree_cells
from tacit.synth.marginals import REMEMBERED, Curator
from tacit.synth.mst import mst, spanning_tree

from .counted import two_way_error

WIDE = 60


def wide(d: int = WIDE, n: int = 3000, seed: int = 0) -> tuple[pd.DataFrame, dict]:
    """Pairs of equal columns: 0 and 1, 2 and 3, …"""
    rng = np.random.default_rng(seed)
    half = rng.integers(0, 3, (n, d // 2))
    names = [f"c{j}" for j in range(d)]
    return pd.DataFrame(np.repeat(half, 2, axis=1), columns=names), {c: categorical([0, 1, 2]) for c in names}


def test_sixty_columns_keep_their_dependences_and_their_budget():
    frame, domain = wide()
    fitted = MST(epsilon=50, delta=1e-6, steps=30, insecure_seed=1).fit(frame, domain)
    made = fitted.sample(1000)
    agree = np.mean([(made[f"c{2 * j}"] == made[f"c{2 * j + 1}"]).mean() for j in range(WIDE // 2)])
    assert agree > 0.9
    (line,) = fitted.ledger.spent
    rho = float(line.note.split("ρ = ")[1].split()[0])
    assert rho <= discrete.rho_of(50, 1e-6) * (1 + 1e-5)


def test_pairs_with_too_many_cells_are_left_out_and_their_column_is_independent():
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, 50, 2000), *(rng.integers(0, 2, (3, 2000)))])
    codes[:, 2] = codes[:, 1]
    curator = Curator(codes, (50, 2, 2, 2), 1000.0, SeededSecret(0))
    model, _ = mst(curator, 50, max_cells=10)
    assert all(0 not in pair for pair in model.tree.cliques if len(pair) == 2)
    assert (1, 2) in model.tree.cliques
    assert curator.spent <= 1000 * (1 + 1e-9)
    assert model.sample(10, np.random.default_rng(0)).shape == (10, 4)


def test_no_pair_of_given_columns_is_selected():
    rng = np.random.default_rng(0)
    same = rng.integers(0, 3, 2000)
    curator = Curator(np.column_stack([same, same, same, same]), (3, 3, 3, 3), 100.0, SeededSecret(0))
    model, _ = mst(curator, 20, given=(0, 1))
    pairs = [c for c in model.tree.cliques if len(c) == 2]
    assert len(pairs) == 2
    assert (0, 1) not in pairs


def test_many_columns_and_few_rows_are_closer_than_independent_columns():
    """Ten columns with a common factor, ε = 1: all ρ for thirds of equal parts had .24, more than independence."""
    rng = np.random.default_rng(0)
    sizes = [64, 2, 3, 5, 8, 16, 2, 4, 6, 32]
    x = 0.8 * rng.normal(size=(3000, 1)) + 0.6 * rng.normal(size=(3000, 10))
    codes = np.clip(((x + 3) / 6 * sizes).astype(int), 0, np.array(sizes) - 1)
    rho = discrete.rho_of(1.0, 1e-9)
    curator = Curator(codes, tuple(sizes), rho, SeededSecret(0))
    model, support = mst(curator, 100)
    made = support.expand(model.sample(3000, rng), rng)
    alone = Curator(codes, tuple(sizes), rho, SeededSecret(0))
    single = fit_model([alone.measure((j,), rho / 10) for j in range(10)], sizes, steps=100)
    independent = single.sample(3000, rng)
    assert two_way_error(codes, made, sizes) < 0.9 * two_way_error(codes, independent, sizes)


def test_the_growth_of_a_junction_tree_by_hand():
    """Columns of 2, 3, 5, 7 and 11 values; pairs 0–1, 1–2, 2–3, and 4 alone."""
    sizes = (2, 3, 5, 7, 11)
    tree = JunctionTree.over([(0, 1), (1, 2), (2, 3), (4,)], sizes)
    bound = tree.growth_bounds(sizes)
    assert bound(0, 1) == 0
    assert bound(0, 4) == 22  # another component: one more clique
    assert bound(0, 2) == bound(2, 0) == min(15 * (2 - 1), 6 * (5 - 1))  # 0 joins 1–2, or 2 joins 0–1
    assert bound(0, 3) == min((15 + 35) * (2 - 1), (15 + 6) * (7 - 1))  # 0 joins 1–2 and 2–3, or 3 the others
    before = tree_cells([(0, 1), (1, 2), (2, 3), (4,)], sizes)
    for a, b in ((0, 2), (0, 3), (1, 3), (0, 4)):
        assert tree_cells([(0, 1), (1, 2), (2, 3), (4,), (a, b)], sizes) <= before + bound(a, b)


def test_aim_scores_a_part_of_many_candidates_and_keeps_its_budget_and_its_size(monkeypatch):
    """With a limit below the number of candidates, as for tables of more than 27 columns."""
    monkeypatch.setattr(aim, "SCORED", 30)
    scored = []
    was = Curator.distance
    monkeypatch.setattr(
        Curator,
        "distance",
        lambda self, clique, estimate, keep=True: scored.append(clique) or was(self, clique, estimate, keep),
    )
    frame, domain = wide(12, 2000)
    events: list[dict] = []
    fitted = AIM(epsilon=20, delta=1e-6, max_cells=1000, steps=10, insecure_seed=1).fit(
        frame, domain, watch=events.append
    )
    made = fitted.sample(1000)
    agree = np.mean([(made[f"c{2 * j}"] == made[f"c{2 * j + 1}"]).mean() for j in range(6)])
    assert agree > 0.9
    assert len(scored) < 0.8 * 78 * len(events)  # 12 columns and 66 pairs in each round otherwise
    cliques = [tuple(c) for c in fitted.state.metadata["cliques"]]
    assert tree_cells(cliques, [3] * 12) <= 1000
    assert 0.99 < events[-1]["spent"] <= 1 + 1e-9


def test_exact_counts_of_all_pairs_are_not_kept_in_memory():
    codes = np.zeros((10, 6), np.int64)
    curator = Curator(codes, (2000,) * 6, 1.0, SeededSecret(0))
    for a in range(6):
        for b in range(a):
            curator.distance((b, a), np.zeros((2000, 2000)), keep=a > 1)
    assert (0, 1) not in curator._known
    assert sum(c.size for c in curator._known.values()) == curator._known_cells <= REMEMBERED


@pytest.mark.parametrize("n", [0, 1])
def test_tables_without_rows_are_fitted(n):
    """The number of rows is private, so that it is never a reason to refuse."""
    frame, domain = wide(6, 10)
    assert len(MST(epsilon=1, steps=5).fit(frame.iloc[:n], domain).sample(5)) == 5


def test_a_spanning_tree_has_one_edge_less_than_columns():
    frame, _ = wide(8, 500)
    curator = Curator(frame.to_numpy(), (3,) * 8, 5.0, SeededSecret(0))
    model = fit_model([curator.measure((j,), 0.1) for j in range(8)], (3,) * 8, steps=5)
    spent = curator.spent
    assert len(spanning_tree(curator, model, 2.0, 2.0)) == 7
    assert float(curator.spent - spent) <= 2.0 * (1 + 1e-9)
