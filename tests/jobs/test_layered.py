"""Through edges: FedAvg where the periods are one, the same on every runtime, hidden inside each edge."""

from __future__ import annotations

import functools

import pytest
import torch

import tacit
from tacit import algorithms, data, guard
from tacit.errors import BadParameter
from tacit.protocols.hierarchy import weighted_mean

WEIGHED, ALIKE = algorithms.FedAvg(lr=0.2), algorithms.FedAvg(lr=0.2, weighted=False)
MASKED = [guard.Clip(10.0), guard.Quantize(bits=24), guard.SecAgg()]


@functools.cache
def blobs():
    return data.gaussian_blobs(rows=240, classes=3, features=4, seed=3).split(
        8, skew=data.Quantity(alpha=1.0), seed=1
    )


def train(rounds=4, algorithm=WEIGHED, **given):
    return tacit.train(blobs(), model="logistic", algorithm=algorithm, rounds=rounds, **given)


def same(a, b, within=1e-6):
    for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, atol=within, rtol=0)


@pytest.mark.parametrize("edges", [1, 3, 8, (4, 2), (6, 3, 2)], ids=str)
@pytest.mark.parametrize(
    "algorithm", [WEIGHED, ALIKE, algorithms.FedProx(mu=0.1)], ids=["weighed", "alike", "FedProx"]
)
def test_with_every_period_one_it_is_the_flat_algorithm(edges, algorithm):
    same(
        train(algorithm=algorithm),
        train(algorithm=algorithm, topology=tacit.Hierarchy(edges=edges)),
        within=1e-6,
    )


def test_also_when_some_edges_have_no_participant_in_a_round():
    same(
        train(per_round=2, rounds=6),
        train(per_round=2, rounds=6, topology=tacit.Hierarchy(edges=4)),
        within=1e-6,
    )


def test_a_longer_period_lets_edges_go_their_own_way():
    apart = train(topology=tacit.Hierarchy(edges=4, period=2))
    flat = train()
    assert (
        max(
            float((a - b).abs().max())
            for a, b in zip(apart.model.state_dict().values(), flat.model.state_dict().values())
        )
        > 1e-3
    )


SHAPES = [
    dict(edges=4),
    dict(edges=3, period=2),
    dict(edges=(4, 2), period=(2, 2)),
    dict(edges=(4, 2), period=(1, 3)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_program_for_everyone_gives_what_the_stack_gives(shape):
    """Five rounds: the last exchange comes before its period is over."""
    stacked, apart = (
        train(rounds=5, topology=tacit.Hierarchy(**shape), runtime=r) for r in ("cohort", "inprocess")
    )
    same(stacked, apart)
    assert {s.how for s in apart.ledger.seen} == {"executed"}
    ups = [sum(s.count for s in run.ledger.seen if s.kind == "Below") for run in (stacked, apart)]
    assert ups[0] == ups[1]


def test_inside_an_edge_sums_are_hidden():
    flat = train(algorithm=ALIKE)
    stacked, apart = (
        train(algorithm=ALIKE, topology=tacit.Hierarchy(edges=2), guard=MASKED, runtime=r)
        for r in ("cohort", "inprocess")
    )
    same(flat, stacked, within=1e-4)
    same(flat, apart, within=1e-4)
    assert not any(s.kind == "Upload" for s in apart.ledger.seen)
    assert any(s.party == "edge-1" and s.kind == "MaskedVector" for s in apart.ledger.seen)


def test_the_server_receives_nothing_from_a_client():
    run = train(topology=tacit.Hierarchy(edges=2), runtime="inprocess")
    assert {s.sender for s in run.ledger.seen if s.party == "server"} == {"edge-0", "edge-1"}


def test_over_real_processes():
    same(
        train(rounds=2, algorithm=ALIKE),
        train(
            rounds=2,
            algorithm=ALIKE,
            topology=tacit.Hierarchy(edges=2),
            guard=MASKED,
            runtime=tacit.Processes(),
        ),
        within=1e-4,
    )


def test_clients_keep_their_state_below_edges():
    same(
        train(algorithm=algorithms.FedAvgM(lr=0.1)),
        train(algorithm=algorithms.FedAvgM(lr=0.1), topology=tacit.Hierarchy(edges=1)),
    )
    one, two = (
        train(algorithm=algorithms.Scaffold(lr=0.1), topology=tacit.Hierarchy(edges=2, period=2), runtime=r)
        for r in ("cohort", "inprocess")
    )
    same(one, two)


def test_a_run_cut_short_resumes_to_the_same_model(tmp_path):
    job = dict(rounds=5, topology=tacit.Hierarchy(edges=3, period=2))
    whole = train(**job, out=tmp_path / "whole")

    class Enough(Exception):
        pass

    def watch(event):
        if event["kind"] == "round" and event["round"] == 4:
            raise Enough

    with pytest.raises(Enough):
        train(**job, out=tmp_path / "cut", watch=watch)
    same(whole, train(**job, out=tmp_path / "cut", resume=True), within=0)


def test_a_weighted_mean_of_those_below():
    total, mean = weighted_mean(
        {"a": (1.0, {"w": torch.tensor([0.0])}), "b": (3.0, {"w": torch.tensor([4.0])})}
    )
    assert total == 4
    assert mean["w"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(topology=tacit.Hierarchy(edges=9)), "edges is 9; it must be at most 8 for 8 parties"),
        (
            dict(topology=tacit.Hierarchy(edges=(2, 4))),
            r"edges is \(2, 4\); it must be .* non-increasing list",
        ),
        (
            dict(topology=tacit.Hierarchy(edges=2, period=0)),
            "period is 0; it must be a whole number of at least 1",
        ),
        (dict(topology=tacit.Hierarchy(edges=2, period=(1, 2))), "a list of 1, one for each level"),
        (dict(topology="Hierarchy"), "it must be tacit.Hierarchy"),
        (dict(topology={"name": "Hierarhcy"}), "Did you mean 'Hierarchy'"),
        (
            dict(topology=tacit.Hierarchy(2), guard=[guard.Clip(1.0), guard.Noise(multiplier=1.0)]),
            "Noise is accounted for one server's sum",
        ),
        (
            dict(topology=tacit.Hierarchy(2), guard=MASKED),
            "FedAvg weighs by rows. Use an algorithm with weighted=False",
        ),
        (dict(topology=tacit.Hierarchy(2), adversaries={"scale": 0.2}), "honest parties"),
    ],
    ids=range(9),
)
def test_what_is_refused(given, said):
    with pytest.raises(BadParameter, match=said):
        train(**given)


def test_a_party_may_not_be_called_an_edge():
    import dataclasses

    fed = dataclasses.replace(blobs(), parties=("edge-0", *blobs().parties[1:]))
    with pytest.raises(BadParameter, match="a party called 'edge-0', which is an edge's name"):
        tacit.train(fed, model="logistic", rounds=1, topology=tacit.Hierarchy(2))


def test_ended_edges_and_clients_are_not_resumed(tmp_path):
    """They would begin with nothing of what they kept, and the model would be another: refused before
    anything is touched.
    """
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(4)
    job = dict(
        model="logistic",
        algorithm=algorithms.Scaffold(lr=0.2),
        rounds=4,
        topology=tacit.Hierarchy(edges=2, period=2),
    )
    with pytest.raises(
        BadParameter,
        match=r"resume: edges and their clients keep their state to themselves",
    ):
        tacit.train(fed, **job, runtime="inprocess", out=tmp_path / "run", resume=True)

    def stop(event):
        if event["kind"] == "round" and event["round"] == 3:
            raise RuntimeError("stopped on purpose")

    whole = tacit.train(fed, **job)
    with pytest.raises(RuntimeError, match="stopped on purpose"):
        tacit.train(fed, **job, out=tmp_path / "run", watch=stop)
    again = tacit.train(
        fed, **job, out=tmp_path / "run", resume=True
    )  # in a simulation everything is in the run's directory
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.model.state_dict().values(), whole.model.state_dict().values())
    )
