"""Clusters that split during training: found if parties differ, never if they do not; the same in every runtime;
resumed to the same bits.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import aggregate, algorithms, data, guard, selection
from tacit.algorithms import CFL, FedAvg
from tacit.errors import BadParameter, PartyFailed
from tacit.jobs.train.clustered import Clusters
from tacit.jobs.train.plan import make_plan


def permuted(parties: int = 6, kinds: int = 2) -> data.Federation:
    """As many kinds of parties: what is class c to the first is c + 1 to the second, and so on."""
    fed = data.gaussian_blobs(rows=70 * parties, classes=4, features=4, seed=5).split(
        parties, held_fraction=0.25, seed=1
    )
    y = (fed.rows.y + fed.owner % kinds) % 4
    return dataclasses.replace(fed, rows=fed.rows._replace(y=y))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4))


JOB: dict[str, Any] = {"model": "logistic", "algorithm": CFL(lr=0.3), "rounds": 8}


def vector(run: tacit.Result) -> torch.Tensor:
    return torch.cat([v.reshape(-1).double() for v in run.model.state_dict().values()])


def told(run: tacit.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.items() if k != "seconds" and not isinstance(v, float)} for e in run.history]


def found(run: tacit.Result) -> set[frozenset[str]]:
    """The parties of each cluster that was not cut again."""
    clusters = {0: frozenset(run.origin.fed.parties)}
    for e in run.history:
        for s in e.get("splits", []):
            del clusters[s["cluster"]]
            clusters |= {n: frozenset(who) for n, who in zip(s["into"], s["parties"])}
    return set(clusters.values())


@pytest.mark.parametrize("kinds", [2, 3])
def test_kinds_of_parties_are_found_and_each_party_is_better_off_than_with_one_model(kinds):
    fed = permuted(9, kinds)
    run, one = (
        tacit.train(fed, **{**JOB, "rounds": 15}),
        tacit.train(fed, **{**JOB, "rounds": 15, "algorithm": FedAvg(lr=0.3)}),
    )
    assert found(run) == {frozenset(f"p{k}" for k in range(9) if k % kinds == kind) for kind in range(kinds)}
    ours, theirs = (np.array(r.history[-1]["parties"]["accuracy"]) for r in (run, one))
    assert ours.mean() > theirs.mean() + 0.2
    assert (ours >= theirs).all()
    assert run.history[-1]["clusters"] == kinds


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_similar_parties_are_never_split(model, seed):
    """Rows partitioned at random, models trained beyond convergence; seeds are fixed, so the test is deterministic."""
    fed = data.digits().split(4 + seed, seed=seed, held_fraction=0.1)
    run = tacit.train(
        fed, model=model, algorithm=CFL(lr=0.2), rounds=20, local_epochs=3, batch_size=16, seed=seed
    )
    assert all(e["clusters"] == 1 for e in run.history)
    assert run.metrics["accuracy"] > 0.85


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_round": 4},
        {"aggregate": aggregate.Momentum(aggregate.Median(), beta=0.3)},
        {"model": Normed()},
    ],
    ids=["plain", "some take part", "momentum of medians", "batch norm"],
)
def test_a_program_for_each_party_splits_them_equally(options):
    stacked, apart = (
        tacit.train(permuted(), **{**JOB, **options}, runtime=r) for r in ("cohort", "inprocess")
    )
    assert found(stacked) == {frozenset(("p0", "p2", "p4")), frozenset(("p1", "p3", "p5"))}
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)


def test_real_processes_split_equally_and_the_server_sees_what_the_ledger_says():
    job = {**JOB, "rounds": 5}
    stacked, apart = tacit.train(permuted(4), **job), tacit.train(permuted(4), **job, runtime="processes")
    assert len(found(stacked)) == 2
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)
    for run in (stacked, apart):
        (said,) = {s.reveals for s in run.ledger.seen if s.kind == "Upload"}
        assert said.endswith("in the clear; with the others', which parties are similar")


def test_a_party_is_sent_its_own_clusters_model_and_no_other():
    """A split does not add a byte to what a party receives: no party gets a second model."""
    run = tacit.train(permuted(), **JOB, runtime="inprocess")
    plain = tacit.train(permuted(), **{**JOB, "algorithm": FedAvg(lr=0.3)}, runtime="inprocess")
    down = {
        r: {s.party: s.bytes for s in x.ledger.seen if s.kind == "Down"}
        for r, x in (("cfl", run), ("fedavg", plain))
    }
    assert down["cfl"] == down["fedavg"]


@pytest.mark.parametrize("options", [{}, {"per_round": 4}], ids=["everyone", "some"])
@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_run_resumes_to_the_same_bits_from_before_and_after_a_split(runtime, options, tmp_path: Path):
    job = {**JOB, **options, "runtime": runtime}
    whole = tacit.train(permuted(), **job)
    (cut,) = [e["round"] for e in whole.history if "splits" in e]
    for at in (cut - 1, cut, cut + 2):

        def stop(event: dict[str, Any], at: int = at) -> None:
            if event["kind"] == "round" and event["round"] == at:
                raise RuntimeError("stopped on purpose")

        with pytest.raises((RuntimeError, PartyFailed), match="stopped on purpose"):
            tacit.train(permuted(), **job, out=tmp_path / str(at), watch=stop)
        again = tacit.train(permuted(), **job, out=tmp_path / str(at), resume=True)
        assert torch.equal(vector(again), vector(whole))
        assert told(again) == told(whole)


def test_saved_state_is_restored():
    p = make_plan(permuted(), **{**JOB, "per_round": 4})
    clusters = Clusters(p)
    clusters.add([0, 1, 2, 3, 4, 5], [1.0, 2.0, 3.0, 1.0, 1.0, 1.0], list(torch.tensor([[1.0], [-1.0]] * 3)))
    clusters.split([0, 1, 2, 3, 4, 5])
    clusters.add([2, 3], [3.0, 1.0], [torch.ones(1), torch.zeros(1)])
    again = Clusters(p)
    again.load(clusters.save())
    assert again.of.tolist() == clusters.of.tolist()
    assert (
        (again.numbers, again.total, again.reach)
        == (clusters.numbers, clusters.total, clusters.reach)
        == ([1, 2], 3, 1.0)
    )
    assert {k: (v.tolist(), w) for k, (v, w) in again.last.items()} == {2: ([1.0], 3.0), 3: ([0.0], 1.0)}


def test_a_comparison_has_the_gain_of_each_party():
    found = tacit.compare(
        permuted(), model="logistic", algorithms=[FedAvg(lr=0.3), CFL(lr=0.3)], rounds=8, seeds=2
    )
    own = {g["label"]: np.array(g["federated_own"]) for g in found.summary["gain"]}
    assert (own["CFL"] > own["FedAvg"]).all()
    alone = tacit.train(permuted(), **JOB, seed=1)
    row = next(r for r in found.summary["rows"] if r["label"] == "CFL" and r["seed"] == 1)
    assert row["metrics"]["personal_accuracy"] == alone.metrics["personal_accuracy"]


def test_the_report_draws_the_tree(tmp_path: Path):
    run = tacit.train(permuted(9, 3), **{**JOB, "rounds": 15})
    page = run.report(tmp_path / "report.html").read_text()
    section = page.split('id="clusters"')[1].split("</section>")[0]
    assert section.count("<circle ") == 5  # everybody, two parts, and one of them in two again
    for names in found(run):
        assert ", ".join(sorted(names)) in section
    assert (
        'id="clusters"'
        not in tacit.train(permuted(), **{**JOB, "algorithm": FedAvg()})
        .report(tmp_path / "plain.html")
        .read_text()
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            dict(guard=[guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg()]),
            r"guard: SecAgg hides each update from the server, and CFL must see each of them to tell "
            r"which parties are similar\. Use another algorithm",
        ),
        (
            dict(guard=[guard.Clip(1.0)]),
            r"guard: CFL clusters the parties by what each of them sends to one server.*Leave out guard",
        ),
        (dict(pace="FedBuff"), "pace: CFL clusters the parties"),
        (dict(topology=tacit.Hierarchy(edges=2)), "topology: CFL clusters the parties"),
        (dict(select=selection.BySize(), per_round=2), "select: CFL clusters the parties"),
    ],
    ids=["hidden", "guard", "pace", "topology", "select"],
)
def test_what_does_not_go_with_it_is_refused(options, said):
    with pytest.raises(BadParameter, match=said):
        tacit.train(permuted(), **{**JOB, **options})


def test_contributions_are_not_computed_for_clusters():
    with pytest.raises(BadParameter, match="contribution: it is for one model"):
        tacit.contribution(tacit.train(permuted(), model="logistic", algorithm=algorithms.CFL(), rounds=1))
