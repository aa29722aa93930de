"""Personalized algorithms: the server's model and every party's own, compared with the papers' pseudocode in numpy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data
from tacit.algorithms import APFL, IFCA, SGD, Ditto, FedBN, FedPer, FedRep, FineTune, PFedMe
from tacit.errors import BadParameter
from tacit.jobs.train.plan import make_plan, make_task
from tacit.runtimes.cohort import Cohort

from .world import World, hold

WORLD = World(rounds=5)
HEAD = slice(
    -(WORLD.classes * WORLD.hidden + WORLD.classes), None
)  # the last layer of the world's perceptron


def own_models(algorithm, world=WORLD):
    """Every party's model after the last round, by the engine."""
    p = world.plan(algorithm)
    task = make_task(p)
    cohort = Cohort(task, [task.initial()], [p.run()])
    for r in range(world.rounds):
        cohort.round(r)
    return np.stack([m["w"].double().numpy() for m in cohort.personal(0)])


def weighted(world, chosen, moves):
    share = world.n[chosen] / world.n[chosen].sum()
    return sum(s * m for s, m in zip(share, moves))


def both(reference):
    """A reference yields (w, own models); `hold` wants the first, the last round's own models are held
    here.
    """

    def first(world):
        for w, _ in reference(world):
            yield w

    return first


def last_own(reference, world=WORLD):
    return np.stack(list(reference(world))[-1][1])


def ditto(world, lr=0.2, lam=0.5):
    w, own = world.start, [world.start] * world.parties
    for r in range(world.rounds):
        chosen = world.sampled(r)
        ends = [world.sgd(r, k, w, lr) for k in chosen]
        for k in chosen:
            own[k] = world.sgd(r, k, own[k], lr, pull=lambda v, w=w: lam * (v - w))
        w = w + weighted(world, chosen, [e - w for e in ends])
        yield w, list(own)


def finetune(world, lr=0.2):
    w, own = world.start, [world.start] * world.parties
    for r in range(world.rounds):
        chosen = world.sampled(r)
        for k in chosen:
            own[k] = world.sgd(r, k, w, lr)
        w = w + weighted(world, chosen, [own[k] - w for k in chosen])
        yield w, list(own)


def fedper(world, lr=0.2):
    w, heads = world.start, [world.start[HEAD]] * world.parties
    for r in range(world.rounds):
        chosen, moves = world.sampled(r), []
        for k in chosen:
            begin = w.copy()
            begin[HEAD] = heads[k]
            end = world.sgd(r, k, begin, lr)
            heads[k] = end[HEAD]
            move = end - begin
            move[HEAD] = 0
            moves.append(move)
        w = w + weighted(world, chosen, moves)
        yield w, [np.concatenate([w[: HEAD.start], h]) for h in heads]


def fedrep(world, lr=0.2, share=0.5):
    w, heads = world.start, [world.start[HEAD]] * world.parties
    for r in range(world.rounds):
        chosen, moves = world.sampled(r), []
        for k in chosen:
            v = w.copy()
            v[HEAD] = heads[k]
            begin, steps = v.copy(), world.batches(r, k)
            for t, rows in enumerate(steps):
                g = world.grad(v, rows)
                keep = np.zeros_like(g)
                keep[HEAD] = 1
                v = v - lr * g * (keep if t < np.ceil(share * len(steps)) else 1 - keep)
            heads[k] = v[HEAD]
            move = v - begin
            move[HEAD] = 0
            moves.append(move)
        w = w + weighted(world, chosen, moves)
        yield w, [np.concatenate([w[: HEAD.start], h]) for h in heads]


def apfl(world, lr=0.2, alpha=0.4, adaptive=True):
    w = world.start
    own, mixing, copies = [w] * world.parties, [alpha] * world.parties, [w] * world.parties
    for r in range(world.rounds):
        chosen = world.sampled(r)
        for k in chosen:
            u, v, a = w, own[k], mixing[k]
            for rows in world.batches(r, k):
                h = world.grad(a * v + (1 - a) * u, rows)
                next_a = float(np.clip(a - lr * ((v - u) @ h), 0, 1)) if adaptive else a
                u, v, a = u - lr * world.grad(u, rows), v - lr * a * h, next_a
            own[k], mixing[k], copies[k] = v, a, u
        w = w + weighted(world, chosen, [copies[k] - w for k in chosen])
        yield w, [a * v + (1 - a) * u for v, a, u in zip(own, mixing, copies)]


def pfedme(world, lr=0.05, lam=2.0, inner=0.1, steps=3, beta=0.7):
    w, own = world.start, [world.start] * world.parties
    for r in range(world.rounds):
        chosen, moves = world.sampled(r), []
        for k in chosen:
            u = w
            for rows in world.batches(r, k):
                theta = u
                for _ in range(steps):
                    theta = theta - inner * (world.grad(theta, rows) + lam * (theta - u))
                u = u - lr * lam * (u - theta)
            own[k] = theta
            moves.append(u - w)
        w = w + beta * weighted(world, chosen, moves)
        yield w, list(own)


CASES = [
    (Ditto(lr=0.2, lam=0.5), ditto),
    (FineTune(lr=0.2), finetune),
    (FedPer(lr=0.2), fedper),
    (FedRep(lr=0.2), fedrep),
    (APFL(lr=0.2, alpha=0.4), apfl),
    (APFL(lr=0.2, alpha=0.4, adaptive=False), functools.partial(apfl, adaptive=False)),
    (PFedMe(lr=0.05, lam=2.0, inner_lr=0.1, inner_steps=3, beta=0.7), pfedme),
]


@pytest.mark.parametrize(
    ("algorithm", "reference"),
    CASES,
    ids=["Ditto", "FineTune", "FedPer", "FedRep", "APFL", "APFL, α fixed", "PFedMe"],
)
def test_the_servers_model_and_everyones_own_are_the_papers(algorithm, reference):
    hold(algorithm, both(reference), WORLD)
    np.testing.assert_allclose(own_models(algorithm), last_own(reference), atol=1e-5)


def test_ditto_without_a_tie_is_each_party_alone():
    """λ = 0: a party's own model does not depend on the other parties."""
    more = World(rounds=3, per_round=5)
    alone = np.stack(
        [functools.reduce(lambda v, r, k=k: more.sgd(r, k, v, 0.2), range(3), more.start) for k in range(5)]
    )
    np.testing.assert_allclose(own_models(Ditto(lr=0.2, lam=0.0), more), alone, atol=1e-5)


def test_a_head_under_momentum_rests_while_it_is_not_its_turn():
    """All steps but the last go to the head: common layers move by one step only, whatever the solver
    remembers.
    """
    algorithm = FedRep(lr=0.2, head_steps=0.9, solver=SGD(momentum=0.9, weight_decay=0.1))
    world = World(sizes=(40, 40), epochs=(1, 1), batch_size=4, per_round=2, rounds=1)
    run = tacit.train(
        world.federation(), model=world.module, algorithm=algorithm, rounds=1, batch_size=4, seed=world.seed
    )
    w = np.concatenate([p.detach().numpy().ravel() for p in run.model.parameters()])
    np.testing.assert_array_equal(
        w[HEAD], world.start[HEAD].astype(np.float32)
    )  # the server's head is nobody's
    assert not np.array_equal(w[: HEAD.start], world.start[: HEAD.start].astype(np.float32))


class Normed(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def test_fedbn_leaves_norms_and_their_statistics_where_they_are():
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(4)
    p = make_plan(fed, model=Normed(), algorithm=FedBN(lr=0.2), rounds=3)
    task = make_task(p)
    cohort = Cohort(task, [task.initial()], [p.run()])
    begin = task.initial()
    for r in range(3):
        cohort.round(r)
    norm = torch.zeros(task.dim, dtype=torch.bool)
    for s in task.parameters:
        norm[s.start : s.stop] = s.name.startswith("1.")
    assert torch.equal(cohort.w[0][norm], begin["w"][norm])  # the server's norms never move
    assert torch.equal(cohort.buffers[0], begin["buffers"])
    own = cohort.personal(0)
    assert not torch.equal(own[0]["w"][norm], own[1]["w"][norm])
    assert not torch.equal(own[0]["buffers"], own[1]["buffers"])
    assert all(torch.equal(m["w"][~norm], cohort.w[0][~norm]) for m in own)


def opposed():
    """Two kinds of parties: what is class 0 to one is class 1 to the other."""
    fed = data.gaussian_blobs(rows=600, classes=2, features=4, seed=5).split(8, held_fraction=0.25, seed=1)
    owner, y = fed.owner, fed.rows.y.clone()
    turned = owner % 2 == 1
    y[turned] = 1 - y[turned]
    import dataclasses

    return dataclasses.replace(fed, rows=fed.rows._replace(y=y))


def test_ifca_finds_the_two_kinds_of_parties():
    fed = opposed()
    run = tacit.train(fed, model="logistic", algorithm=IFCA(lr=0.5, clusters=2, spread=1.0), rounds=8)
    one = tacit.train(fed, model="logistic", algorithm=algorithms.FedAvg(lr=0.5), rounds=8)
    assert run.metrics["personal_accuracy"] > 0.95
    assert np.mean(one.history[-1]["parties"]["accuracy"]) < 0.7


def test_ifca_by_hand():
    """Members 3/4 and 1/4 of the weight; deltas come as sums over all, so each is divided by its own
    share.
    """
    state = {"centers": torch.tensor([[0.0], [10.0]])}
    mean = {"member": torch.tensor([0.75, 0.25]), "delta": torch.tensor([[1.5], [1.0]])}
    w, after = IFCA().merge(torch.tensor([0.0]), state, mean, 1.0)
    assert after["centers"].tolist() == [[2.0], [14.0]]
    assert w.tolist() == [5.0]  # 0.75 · 2 + 0.25 · 14
    _, still = IFCA().merge(
        torch.tensor([0.0]),
        state,
        {"member": torch.tensor([1.0, 0.0]), "delta": torch.tensor([[1.0], [0.0]])},
        1.0,
    )
    assert still["centers"].tolist() == [[1.0], [10.0]]  # a model nobody chose stays


def test_ifca_is_refused_with_secure_aggregation():
    from tacit import guard

    with pytest.raises(ValueError, match="a cluster with one party shows its update"):
        tacit.train(
            opposed(),
            model="logistic",
            algorithm=IFCA(lr=0.5),
            guard=[guard.Clip(50.0), guard.Quantize(bits=28), guard.SecAgg()],
        )


@pytest.mark.parametrize(
    "algorithm",
    [FineTune(lr=0.2), FedPer(lr=0.2), FedBN(lr=0.2), Ditto(lr=0.2), APFL(lr=0.2), IFCA(lr=0.2)],
    ids=lambda a: type(a).__name__,
)
def test_over_messages_parties_test_their_own_models_too(algorithm):
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(
        4, skew=data.Dirichlet(0.5), held_fraction=0.25
    )
    stacked, apart = (
        tacit.train(fed, model=Normed(), algorithm=algorithm, rounds=3, min_rows=1, runtime=r)
        for r in ("cohort", "inprocess")
    )
    assert stacked.history[-1]["parties"] == apart.history[-1]["parties"]
    assert stacked.metrics["personal_accuracy"] == pytest.approx(apart.metrics["personal_accuracy"])


def test_gain_is_measured_on_what_a_party_ends_up_with():
    fed = data.digits().split(6, skew=data.Dirichlet(0.2), held_fraction=0.25, seed=2)
    found = tacit.compare(
        fed, model="logistic", algorithms=[algorithms.FedAvg(lr=0.2), Ditto(lr=0.2)], rounds=6, min_rows=1
    )
    own = {g["label"]: np.mean(g["federated_own"]) for g in found.summary["gain"]}
    assert own["Ditto"] > own["FedAvg"]


def test_a_head_of_all_layers_is_refused():
    with pytest.raises(
        BadParameter,
        match="head is 2, and the model has 2 layers with parameters, of which at least one must be shared",
    ):
        tacit.train(WORLD.federation(), model=WORLD.module, algorithm=FedPer(head=2), rounds=1)


@pytest.mark.parametrize(
    "algorithm",
    [FedBN(lr=0.2), Ditto(lr=0.2), IFCA(lr=0.2), algorithms.CFL(lr=0.2), algorithms.FedAvg(lr=0.2)],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_each_partys_model_can_be_had_and_is_the_one_that_was_tested(algorithm, runtime):
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(
        4, skew=data.Dirichlet(0.5), held_fraction=0.25
    )
    run = tacit.train(fed, model=Normed(), algorithm=algorithm, rounds=3, min_rows=1, runtime=runtime)
    own = run.models()
    assert list(own) == list(fed.parties)
    for k, name in enumerate(fed.parties):
        rows = fed.held.of(k)
        right = (own[name](fed.rows.x[rows]).argmax(1) == fed.rows.y[rows]).double().mean()
        assert float(right) == pytest.approx(run.history[-1]["parties"]["accuracy"][k])


def test_real_parties_keep_their_own_models():
    fed = data.gaussian_blobs(rows=100, classes=3, features=4, seed=3).split(2, held_fraction=0.25)
    run = tacit.train(fed, model="mlp", algorithm=Ditto(lr=0.2), rounds=1, runtime="processes")
    with pytest.raises(
        BadParameter,
        match="models: with Ditto a party's own model depends on the state that it keeps, which the "
        "server does not have",
    ):
        run.models()
