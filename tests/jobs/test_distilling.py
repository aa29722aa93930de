"""FedMD and transfer: models of different makes, heads for other tasks, layers that keep what they know."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, models, transfer
from tacit.errors import BadData, BadParameter
from tacit.jobs.fedmd import split_public_rows
from tacit.parties.conformance import check_protocol
from tacit.protocols import fedmd as protocol


@functools.cache
def world():
    return split_public_rows(data.digits().split(3, skew=data.Dirichlet(0.7), seed=0), 150)


KINDS = [
    "logistic",
    models.MLP(hidden=(16,)),
    nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10)),
]


@functools.cache
def taught():
    fed, public = world()
    return tacit.fedmd(fed, models=[*KINDS], public=public, rounds=3, first_epochs=4)


def test_three_makes_of_models_teach_each_other():
    run = taught()
    assert run.metrics["accuracy"] > run.metrics["alone"] + 0.03
    assert len({type(m[1]) if isinstance(m, nn.Sequential) else type(m) for m in run.models.values()}) >= 1
    assert [len(list(m.parameters())) for m in run.models.values()] == [2, 4, 4]
    assert len(run.history) == 4
    assert list(run.table().columns) == ["alone", "taught", "gain"]


def test_only_scores_are_sent():
    run = taught()
    assert {s.kind for s in run.ledger.seen} == {"PublicScores", "Consensus"}
    assert all(s.party == "server" for s in run.ledger.seen if s.kind == "PublicScores")


def test_the_same_seed_gives_the_same_models():
    fed, public = world()
    one, two = (
        tacit.fedmd(
            fed, models={n: "logistic" for n in fed.parties}, public=public, rounds=1, first_epochs=1, seed=4
        )
        for _ in range(2)
    )
    for a, b in zip(one.models.values(), two.models.values()):
        assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def test_the_programs_compute_the_ideal():
    def programs(inputs):
        seen = {}

        def mine(name, value):
            def scores():
                return torch.full((2, 3), value) + seen.get(name, 0.0)

            def learn(r, agreed):
                seen[name] = seen.get(name, 0.0) + agreed

            async def program(me):
                await protocol.party(me, 2, scores, learn)
                return seen[name]

            return program

        async def boss(me):
            await protocol.server(me, ["a", "b"], 2, 2, 3)

        return {"server": boss, "a": mine("a", inputs[0]), "b": mine("b", inputs[1])}

    def ideal(inputs):
        seen = [torch.zeros(2, 3), torch.zeros(2, 3)]

        def scores(k):
            return lambda: torch.full((2, 3), inputs[k]) + seen[k]

        def learn(k):
            def step(r, agreed):
                seen[k] = seen[k] + agreed

            return step

        protocol.ideal(2, [scores(0), scores(1)], [learn(0), learn(1)])
        return {"server": None, "a": seen[0], "b": seen[1]}

    check_protocol(programs, ideal, [(1.0, 3.0), (-2.0, 0.5)])


def test_scores_of_another_shape_are_refused_by_name():
    async def boss(me):
        await protocol.server(me, ["a"], 1, 5, 3)

    async def liar(me):
        await me.scope("round 0").send("server", protocol.PublicScores(0, torch.zeros(5, 2)))

    with pytest.raises(tacit.TacitError, match=r"party 'a' sent scores of shape \(5, 2\)"):
        tacit.run_programs({"server": boss, "a": liar})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(models=["mlp"]), "a model for each of the 3 parties"),
        (dict(models={"p0": "mlp"}), "models has none for 'p1'"),
        (dict(public=torch.zeros(3, 5)), "public is .3, 5.; it must be a tensor"),
        (dict(rounds=0), "rounds is 0"),
        (dict(lr=-1.0), "lr is -1.0; it must be a number above 0"),
        (dict(fed=None), "a federation with a classification task"),
    ],
    ids=range(6),
)
def test_what_is_refused(given, said):
    fed, public = world()
    with pytest.raises(BadParameter, match=said):
        tacit.fedmd(**{"fed": fed, "models": ["logistic"] * 3, "public": public, **given})


def test_without_test_rows_nothing_is_begun():
    import dataclasses

    fed, public = world()
    with pytest.raises(BadData, match="has no test rows"):
        tacit.fedmd(
            dataclasses.replace(fed, test=fed.test._replace(x=fed.test.x[:0], y=fed.test.y[:0])),
            models=["logistic"] * 3,
            public=public,
        )


# transfer ---------------------------------------------------------------------------------------------------


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def test_a_new_head_and_nothing_else():
    old = body()
    new = transfer.rehead(old, 5, seed=1)
    assert new[4].out_features == 5
    assert old[4].out_features == 3
    assert all(
        torch.equal(a, b) for a, b in zip(old[:4].state_dict().values(), new[:4].state_dict().values())
    )
    assert torch.equal(new[4].weight, transfer.rehead(old, 5, seed=1)[4].weight)
    assert not torch.equal(new[4].weight, transfer.rehead(old, 5, seed=2)[4].weight)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_frozen_layers_come_out_as_they_went_in(decay):
    model = transfer.freeze(body(), 2)
    algorithm = algorithms.FedAvg(lr=0.3, solver=algorithms.SGD(weight_decay=decay))
    before = [p.detach().clone() for p in model.parameters()]
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(4)
    after = list(tacit.train(fed, model=model, algorithm=algorithm, rounds=2).model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before[:4], after[:4]))
    assert not torch.equal(before[4], after[4])
    assert all(p.requires_grad for p in transfer.freeze(model, 0).parameters())


def started():
    """A module that knows something, as another process makes it."""
    return transfer.freeze(transfer.rehead(body(), 3, seed=1), 2)


def test_a_pretrained_model_starts_in_processes_too():
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(2)
    told = {"algorithm": algorithms.FedAvg(lr=0.3), "rounds": 2}
    here, there = (
        tacit.train(fed, model=started(), **told),
        tacit.train(fed, model=started, runtime="processes", **told),
    )
    assert all(torch.equal(a, b) for a, b in zip(here.model.parameters(), there.model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(started()[:4].parameters(), there.model[:4].parameters()))


def two_tasks(overlap):
    """Ten digits seen through some of the 64 columns: the second task has the odd ones out of four classes of
    the first, and shares all or no columns.
    """
    digits = data.digits()
    x, y = digits.rows.x, digits.rows.y
    first, second = torch.arange(32), torch.arange(32) if overlap else torch.arange(32, 64)
    a = data.from_arrays(x[y < 5][:, first], y[y < 5])
    few = (y >= 5).nonzero()[:, 0][:260]
    b = data.from_arrays(x[few][:, second], y[few] - 5)
    return a.split(4, seed=0), b.split(4, seed=0)


@pytest.mark.parametrize("overlap", [True, False], ids=["the same columns", "other columns"])
def test_what_was_learned_on_one_task_helps_another_with_the_same_columns(overlap):
    source, target = two_tasks(overlap)
    learned = tacit.train(
        source, model=models.MLP(hidden=(32,)), algorithm=algorithms.FedAvg(lr=0.3), rounds=15
    ).model
    fresh = models.build(models.MLP(hidden=(32,)), (32,), 5, 0)
    job = dict(algorithm=algorithms.FedAvg(lr=0.1), rounds=4)
    known = tacit.train(target, model=transfer.freeze(transfer.rehead(learned, 5), 1), **job).metrics["loss"]
    anew = tacit.train(target, model=transfer.freeze(transfer.rehead(fresh, 5), 1), **job).metrics["loss"]
    if overlap:
        assert known < anew - 0.05
    else:
        assert (
            known > anew - 0.2
        )  # columns that mean something else: what was learned is worth little, and may harm


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: transfer.freeze(body(), 3), "layers is 3; it must be a whole number between 0 and 2"),
        (
            lambda: transfer.rehead(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), 2),
            "the last layer of the model is not linear",
        ),
        (lambda: transfer.rehead(body(), 0), "classes is 0"),
        (lambda: transfer.rehead("mlp", 3), "rehead: model is 'mlp'; it must be a torch.nn.Module"),
        (lambda: transfer.freeze([1], 1), "freeze: model is 'list'; it must be a torch.nn.Module"),
    ],
    ids=range(5),
)
def test_what_transfer_refuses(ask, said):
    with pytest.raises(BadParameter, match=said):
        ask()
