"""Graphs and their weights: what gossip needs of W, known spectral gaps, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tacit import graphs
from tacit.errors import BadParameter

UNDIRECTED = [
    graphs.ring(2),
    graphs.ring(3),
    graphs.ring(16),
    graphs.torus(4, 4),
    graphs.torus(2, 3),
    graphs.grid(3, 5),
    graphs.star(9),
    graphs.complete(7),
    graphs.erdos_renyi(20, p=0.2, seed=1),
    graphs.exponential(12),
    graphs.from_edges(4, [(0, 1), (2, 1), (3, 2)]),
]


@pytest.mark.parametrize("graph", UNDIRECTED, ids=lambda g: f"{g.name} {g.nodes}")
def test_metropolis_hastings_weights_are_symmetric_and_doubly_stochastic(graph):
    w = graph.matrix()
    np.testing.assert_allclose(w, w.T)
    np.testing.assert_allclose(w.sum(1), 1)
    assert (w >= 0).all()
    linked = {(i, j) for i in range(graph.nodes) for j in range(graph.nodes) if i != j and w[i, j] > 0}
    assert linked == {*graph.edges, *((j, i) for i, j in graph.edges)}
    assert all(graph.neighbors()[k] == sorted(j for i, j in linked if i == k) for k in range(graph.nodes))


@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_the_gap_of_a_ring_is_the_one_of_the_books(n):
    """W of a ring is circulant with 1/3 on three places: λ_k = (1 + 2 cos(2πk/n))/3."""
    second = max(abs((1 + 2 * np.cos(2 * np.pi * k / n)) / 3) for k in range(1, n))
    assert graphs.ring(n).gap() == pytest.approx(1 - second)


def test_other_gaps():
    assert graphs.complete(9).gap() == pytest.approx(1)
    assert graphs.star(10).gap() == pytest.approx(1 / 10)  # λ₂ = 1 − 1/n
    assert graphs.exponential(64).gap() > graphs.torus(8, 8).gap() > graphs.ring(64).gap()


def test_one_peer_exponential_averages_exactly_after_log_n_exchanges():
    g = graphs.one_peer_exponential(8)
    w = np.eye(8)
    for t in range(3):
        w = g.at(t).matrix() @ w
        assert (g.at(t).matrix() > 0).sum(1).max() == 2  # hears from one
    np.testing.assert_allclose(w, 1 / 8)
    assert g.gap() == pytest.approx(1)
    assert g.at(3) is g.at(0)


def test_directed_weights_sum_to_one_per_sender():
    w = graphs.from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)], directed=True).matrix()
    np.testing.assert_allclose(w.sum(0), 1)
    np.testing.assert_allclose(w[:, 0], [1 / 3, 1 / 3, 1 / 3])


def test_the_gap_says_how_fast_nodes_agree():
    rng = np.random.default_rng(0)
    for graph in (graphs.ring(10), graphs.torus(3, 4), graphs.star(8)):
        x = rng.standard_normal(graph.nodes)
        far = np.linalg.norm(x - x.mean())
        for _ in range(30):
            x = graph.matrix() @ x
        assert np.linalg.norm(x - x.mean()) <= far * (1 - graph.gap()) ** 30 * (1 + 1e-9)


@pytest.mark.parametrize(
    "graph",
    [
        *UNDIRECTED,
        graphs.one_peer_exponential(6),
        graphs.directed_ring(5),
        graphs.alternating(graphs.ring(4), graphs.star(4)),
        graphs.from_weights([[0.5, 0.5], [0.5, 0.5]]),
    ],
    ids=lambda g: f"{g.name} {g.nodes}",
)
def test_a_graph_is_restored_from_its_table(graph):
    back = graphs.from_table(graphs.to_table(graph), 99)
    assert back == graph
    np.testing.assert_array_equal(back.at(0).matrix(), graph.at(0).matrix())


def test_a_name_alone_gives_a_graph_with_one_node_per_party():
    assert graphs.from_table("ring", 7) == graphs.ring(7)
    assert graphs.from_table({"name": "erdos_renyi", "p": 0.9}, 5).nodes == 5


def test_a_drawn_graph_hangs_together_and_follows_from_its_seed():
    a = graphs.erdos_renyi(30, p=0.15, seed=4)
    assert graphs.connected(a)
    assert a == graphs.erdos_renyi(30, p=0.15, seed=4) != graphs.erdos_renyi(30, p=0.15, seed=5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: graphs.ring(1), "ring: nodes is 1; it must be a whole number of at least 2"),
        (lambda: graphs.ring(10**6), "at most 20000"),
        (
            lambda: graphs.erdos_renyi(50, p=0.01),
            r"p is 0.01; it must be large enough that 50 nodes are connected. Try 0\.16",
        ),
        (lambda: graphs.erdos_renyi(5, p=2), "p is 2; it must be a number above 0 and at most 1"),
        (
            lambda: graphs.from_edges(3, [(0, 3)]),
            r"edges is \(0, 3\); it must be pairs of two different nodes between 0 and 2",
        ),
        (lambda: graphs.from_edges(4, [(0, 1), (2, 3)]), "is not connected"),
        (
            lambda: graphs.from_edges(3, [(0, 1), (1, 2)], directed=True),
            "is not connected.*along the edges' directions",
        ),
        (lambda: graphs.from_weights([[1, 0], [0.5, 0.5]]), "W is not symmetric"),
        (lambda: graphs.from_weights([[0.5, 0.4], [0.4, 0.5]]), "row 0 sums to 0.9"),
        (lambda: graphs.from_weights([[1.0, 0], [0, 1.0]]), "is not connected"),
        (lambda: graphs.from_weights([[2.0, -1], [-1, 2.0]]), "negative somewhere"),
        (lambda: graphs.from_weights([[1.0, 2, 3]]), "a square matrix"),
        (lambda: graphs.alternating(graphs.ring(4), graphs.ring(5)), "with the same number of nodes"),
        (lambda: graphs.from_table("rnig", 4), "Did you mean 'ring'"),
        (lambda: graphs.from_table({"name": "torus"}, 4), "torus: rows is missing"),
        (lambda: graphs.from_table({"name": "ring", "p": 1}, 4), "p is 1; it must be left out"),
    ],
    ids=range(16),
)
def test_what_is_refused(make, said):
    with pytest.raises(BadParameter, match=said):
        make()
