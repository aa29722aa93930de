"""Training without a server: equal to FedAvg where it must be, the same on every runtime, and hidden where it
says so.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, graphs
from tacit.errors import BadParameter
from tacit.protocols import gossip as protocol

STEP = algorithms.FedAvg(lr=0.2, weighted=False)


@functools.cache
def blobs(parties=6):
    return data.gaussian_blobs(rows=240, classes=3, features=4, seed=3).split(parties, seed=1)


def gossip(graph, parties=6, rounds=4, **given):
    return tacit.gossip(blobs(parties), model="logistic", algorithm=STEP, rounds=rounds, graph=graph, **given)


def same(a, b, within=1e-6):
    for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, atol=within, rtol=0)


def test_the_complete_graph_is_fedavg():
    same(gossip(graphs.complete(6)), tacit.train(blobs(), model="logistic", algorithm=STEP, rounds=4))
    one = gossip(graphs.complete(6))
    assert one.metrics["consensus"] < 1e-5


def test_the_mean_of_all_nodes_moves_as_if_they_had_met():
    """A doubly stochastic W preserves the mean of the models: an exchange changes the consensus, never the mean."""
    with_links, without = gossip(graphs.ring(6), rounds=1), gossip(graphs.ring(6), rounds=1, period=2)
    same(with_links, without)
    assert with_links.metrics["consensus"] < without.metrics["consensus"]


MODES = [
    dict(graph=graphs.ring(6)),
    dict(graph=graphs.torus(2, 3), period=2),
    dict(graph=graphs.one_peer_exponential(6)),
    dict(graph=graphs.alternating(graphs.ring(6), graphs.star(6))),
    dict(graph=graphs.directed_ring(6), mode="push_sum"),
    dict(graph=graphs.erdos_renyi(6, p=0.6, seed=2), mode="push"),
    dict(graph=graphs.ring(6), mode="push", churn=0.3, wait=2.5),
]
IDS = ["ring", "torus, two local rounds", "one peer", "alternating", "push-sum", "push", "push with churn"]


@pytest.mark.parametrize("given", MODES, ids=IDS)
def test_a_program_for_each_node_gives_what_the_stack_gives(given):
    stacked, apart = gossip(**given), gossip(**given, runtime="inprocess")
    same(stacked, apart)
    assert stacked.metrics["consensus"] == pytest.approx(apart.metrics["consensus"], abs=1e-5)
    assert all(s.how == "executed" for s in apart.ledger.seen)
    assert all(s.how == "ideal" for s in stacked.ledger.seen)
    if (
        given.get("mode") != "push"
    ):  # push has lines for what arrived, and those who were away still were sent something
        count = {s.kind: 0 for s in stacked.ledger.seen}
        for s in stacked.ledger.seen:
            count[s.kind] += s.count
        assert count["Model"] == sum(s.count for s in apart.ledger.seen if s.kind == "Model")


@pytest.mark.parametrize("given", [MODES[0], dict(graph=graphs.ring(6), secure=True)], ids=["ring", "hidden"])
def test_over_real_processes(given):
    same(gossip(given["graph"], rounds=2), gossip(**given, rounds=2, runtime=tacit.Processes()), within=1e-5)


def test_push_sum_agrees_on_the_true_mean():
    """Column-stochastic links alone would favor nodes with many incoming links; the push-sum weight corrects this."""
    graph = graphs.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], directed=True)
    w = torch.from_numpy(graph.matrix()).float()
    values = torch.tensor([[1.0], [2.0], [3.0], [10.0]])
    *_, (_, share, out) = protocol.ideal(
        range(80), 1, lambda t: w, lambda r, v: v, torch.ones(4), {"w": values}
    )
    np.testing.assert_allclose((out["w"][:, 0] / share).numpy(), 4.0, atol=1e-4)
    assert not np.allclose(out["w"][:, 0].numpy(), 4.0, atol=0.1)


def test_a_denser_graph_agrees_better():
    near = [
        gossip(g, parties=12, rounds=6).metrics["consensus"]
        for g in (graphs.ring(12), graphs.exponential(12), graphs.complete(12))
    ]
    assert near[0] > near[1] > near[2]


def test_a_hidden_average_shows_a_node_no_neighbors_model():
    plain, hidden = (
        gossip(graphs.ring(6), rounds=2, runtime="inprocess"),
        gossip(graphs.ring(6), rounds=2, runtime="inprocess", secure=True),
    )
    same(plain, hidden, within=1e-5)
    kinds = {s.kind for s in hidden.ledger.seen}
    assert "Model" not in kinds
    assert "MaskedVector" in kinds


def test_gossip_learns_and_reports_each_node():
    run = gossip(graphs.ring(6), rounds=15)
    assert run.metrics["accuracy"] > 0.9
    last = run.history[-1]
    assert len(last["nodes"]["accuracy"]) == 6
    assert run.metrics["worst_node"] == min(last["nodes"]["accuracy"])
    assert any("spectral gap" in e["text"] for e in run.events if e["kind"] == "note")
    assert last["bytes_up"] > 0
    assert last["bytes_down"] == 0


@pytest.mark.parametrize("given", [MODES[0], MODES[4], MODES[6]], ids=["ring", "push-sum", "push with churn"])
def test_a_run_cut_short_resumes_to_the_same_model(given, tmp_path):
    whole = gossip(**given, rounds=5, out=tmp_path / "whole")

    class Enough(Exception):
        pass

    def watch(event):
        if event["kind"] == "round" and event["round"] == 3:
            raise Enough

    with pytest.raises(Enough):
        gossip(**given, rounds=5, out=tmp_path / "cut", watch=watch)
    again = gossip(**given, rounds=5, out=tmp_path / "cut", resume=True)
    same(whole, again, within=0)


def test_buffers_are_mixed_like_weights():
    class Normed(torch.nn.Sequential):
        def __init__(self):
            torch.manual_seed(0)
            super().__init__(
                torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
            )

    fed = blobs()
    one, all_of_them = (
        tacit.gossip(fed, model=Normed(), algorithm=STEP, rounds=2, graph=graphs.complete(6)),
        tacit.train(fed, model=Normed(), algorithm=STEP, rounds=2),
    )
    same(one, all_of_them, within=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(graph=graphs.ring(5)), "ring has 5 nodes, and there are 6 parties"),
        (dict(graph="ring"), "graph is 'ring'; it must be a graph such as"),
        (dict(graph=graphs.directed_ring(6)), "directed ring is directed, .*push_sum"),
        (dict(graph=graphs.ring(6), churn=0.2), "churn is 0.2; it must be 0 with mode='average'"),
        (dict(graph=graphs.ring(6), mode="push", period=2), "Leave out period"),
        (
            dict(graph=graphs.star(6), secure=True),
            "node 1 of star receives from 1 other node, and the sum of one model hides nothing",
        ),
        (dict(graph=graphs.ring(6), mode="shout"), "mode is 'shout'; it must be one of"),
        (
            dict(graph=graphs.ring(6), mode="push", secure=True),
            "secure is True; it must be False with mode='push'",
        ),
    ],
    ids=range(8),
)
def test_what_is_refused(given, said):
    with pytest.raises(BadParameter, match=said):
        gossip(**given)


def test_an_algorithm_that_needs_a_server_is_refused():
    with pytest.raises(BadParameter, match="gossip: Scaffold needs a server, and here there is none"):
        tacit.gossip(blobs(), model="logistic", algorithm=algorithms.Scaffold(), graph=graphs.ring(6))


def test_waves_keep_the_order_that_matters():
    rng = np.random.default_rng(0)
    events = [
        protocol.Push(float(t), int(a), int(b))
        for t, (a, b) in enumerate(rng.integers(0, 6, (200, 2)))
        if a != b
    ]
    state = {k: str(k) for k in range(6)}
    for e in events:
        state[e.receiver] = both(state[e.receiver], state[e.sender])
    waved = {k: str(k) for k in range(6)}
    for wave in protocol.waves(events):
        before = dict(waved)
        for e in wave:
            waved[e.receiver] = both(before[e.receiver], before[e.sender])
    assert state == waved
    assert len(protocol.waves(events)) < len(events)


def both(a, b):
    return hashlib.sha256(f"{a} {b}".encode()).hexdigest()
