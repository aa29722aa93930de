"""FedDF (Lin, Kong, Stich, Jaggi 2020) and FedBE (Chen, Chao 2021): models taught by what the parties' models
say together.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tacit
from tacit import aggregate, algorithms, data
from tacit.engine.task import Task
from tacit.errors import BadData, BadParameter

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((20, 4)).astype(np.float32)
FED = data.gaussian_blobs(rows=240, classes=3, features=4, seed=1).split(
    4, skew=data.LabelsPerParty(1), seed=0
)


def linear(w, x):
    """Outputs of a linear layer of three classes: weights, then biases."""
    return x @ w[:12].reshape(3, 4).T + w[12:]


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def taught(w, wanted, steps, lr):
    """Adam on the cross-entropy to `wanted`, over all rows."""
    m, v = np.zeros(15), np.zeros(15)
    for t in range(1, steps + 1):
        d = (softmax(linear(w, ROWS)) - wanted) / len(ROWS)
        g = np.concatenate([(d.T @ ROWS).ravel(), d.sum(0)])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def ours(rule, w, deltas, weights, number=0, key="delta"):
    task = Task(torch.nn.Linear(4, 3), torch.from_numpy(ROWS), torch.zeros(len(ROWS), dtype=torch.int64))
    told = rule.with_task(task, [torch.from_numpy(ROWS)]).at_round(
        {"w": torch.tensor(w, dtype=torch.float32)[None], "round": torch.tensor([float(number)])}
    )
    sent = torch.tensor(deltas if key == "delta" else deltas + w, dtype=torch.float32)
    with torch.no_grad():
        found = (
            told.result(told.add(told.start(), torch.tensor([weights]), {key: sent}))[key][0].double().numpy()
        )
    return found + w if key == "delta" else found


@pytest.mark.parametrize("key", ["delta", "w"])
def test_feddf_is_the_papers(key):
    w, deltas, weights = RNG.standard_normal(15), RNG.standard_normal((3, 15)), [1.0, 2.0, 5.0]
    start = w + np.average(deltas, axis=0, weights=weights)
    wanted = softmax(np.mean([linear(w + d, ROWS) for d in deltas], axis=0))
    found = ours(
        aggregate.Distill(rows=torch.from_numpy(ROWS), steps=30, lr=0.05, batch_size=20),
        w,
        deltas,
        weights,
        key=key,
    )
    np.testing.assert_allclose(found, taught(start, wanted, 30, 0.05), atol=1e-4)
    assert np.abs(found - start).max() > 0.1


def test_fedbe_draws_models_from_the_gaussian_of_the_parties():
    w, deltas, weights = RNG.standard_normal(15), RNG.standard_normal((3, 15)), [1.0, 2.0, 5.0]
    start = w + np.average(deltas, axis=0, weights=weights)
    spread = np.sqrt(np.average((w + deltas - start) ** 2, axis=0, weights=weights))
    draw = torch.Generator().manual_seed(7)  # the round's number
    drawn = [start + spread * torch.randn(15, generator=draw).numpy() for _ in range(4)]
    wanted = np.mean([softmax(linear(m, ROWS)) for m in [*(w + deltas), *drawn, start]], axis=0)
    found = ours(
        aggregate.Distill(rows=torch.from_numpy(ROWS), steps=30, lr=0.05, samples=4),
        w,
        deltas,
        weights,
        number=7,
    )
    np.testing.assert_allclose(found, taught(start, wanted, 30, 0.05), atol=1e-4)


def test_batches_are_drawn_and_the_same_round_draws_the_same():
    w, deltas = RNG.standard_normal(15), RNG.standard_normal((3, 15))
    rule = aggregate.Distill(rows="test", steps=5, batch_size=6, lr=0.05)
    first, again, later = (ours(rule, w, deltas, [1.0, 1.0, 1.0], number=r) for r in (0, 0, 1))
    assert (first == again).all()
    assert (first != later).any()


@pytest.mark.parametrize("samples", [0, 3])
def test_a_simulation_and_parties_give_the_same(samples):
    rule = aggregate.Distill(rows=FED.test.x, steps=10, batch_size=16, samples=samples, lr=0.01)
    job = dict(
        model=torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
        ),
        rounds=2,
        algorithm=algorithms.FedAvg(lr=0.1),
        aggregate=rule,
    )
    one, other = tacit.train(FED, **job), tacit.train(FED, runtime="inprocess", **job)
    for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values()):
        assert torch.allclose(a.float(), b.float(), atol=1e-5)


def test_the_teacher_brings_together_what_the_mean_loses():
    """Ten parties with few classes each train long in a round: their mean is worse than their ensemble. Seeds are
    fixed, so the test is deterministic.
    """
    fed = data.digits().split(10, skew=data.Dirichlet(0.1), seed=0)
    job = dict(model="mlp", algorithm=algorithms.FedAvg(lr=0.1), rounds=2, local_epochs=8, seed=1)
    plain, feddf, fedbe = (
        tacit.train(fed, aggregate=rule, **job).metrics
        for rule in (
            None,
            aggregate.Distill(rows=fed.test.x),
            aggregate.Distill(rows=fed.rows.x[::2], samples=10),
        )
    )
    assert feddf["accuracy"] > plain["accuracy"] + 0.05
    assert fedbe["accuracy"] > plain["accuracy"] + 0.05


def test_runs_side_by_side_have_their_own_teachers():
    rules = [
        aggregate.Distill(rows="test", steps=3),
        aggregate.Distill(rows=FED.rows.x[:9], steps=3),
        aggregate.Distill(rows=FED.rows.x[9:18], steps=3),
    ]
    assert len({repr(r) for r in rules}) == 3
    job = dict(model="logistic", rounds=1)
    found = tacit.compare(
        FED, algorithms=[algorithms.FedAvg(lr=0.2)], aggregates=rules[:1], seeds=[0, 1], **job
    )
    alone = [
        tacit.train(FED, algorithm=algorithms.FedAvg(lr=0.2), aggregate=rules[0], seed=s, **job).metrics[
            "accuracy"
        ]
        for s in (0, 1)
    ]
    rows = [r for r in found.results if r.config["algorithm"]["name"] == "FedAvg" and "aggregate" in r.config]
    assert [r.metrics["accuracy"] for r in rows] == alone


def test_a_run_is_resumed_with_the_same_rows_only(tmp_path):
    job = dict(model="logistic", rounds=2, out=tmp_path / "run")
    tacit.train(FED, aggregate=aggregate.Distill(rows=FED.rows.x[:9], steps=3), **job)
    with pytest.raises(tacit.TacitError, match=r"holds another run: it differs in aggregate.rows"):
        tacit.train(FED, aggregate=aggregate.Distill(rows=FED.rows.x[9:18], steps=3), resume=True, **job)


@pytest.mark.parametrize(
    ("rule", "told", "error", "text"),
    [
        (
            aggregate.Distill(),
            {},
            BadParameter,
            r"Distill: rows is None; it must be a tensor of rows without labels, or 'test' .* prefer "
            r"other rows",
        ),
        (
            aggregate.Distill(rows="train"),
            {},
            BadParameter,
            r"Distill: rows is 'train'; it must be .* A job file cannot hold a tensor: pass it in Python",
        ),
        (
            aggregate.Distill(rows=torch.zeros(3, 9)),
            {},
            BadData,
            r"Distill: its rows have shape \(9,\), and the federation's have shape \(4,\)",
        ),
        (aggregate.Distill(rows=torch.zeros(0, 4)), {}, BadData, r"Distill: there are no rows to distill on"),
        (
            aggregate.Distill(rows="test"),
            {"algorithm": algorithms.FedNova()},
            BadParameter,
            r"Distill works on the parties' models, .* they send d, tau",
        ),
        (
            aggregate.Distill(rows="test"),
            {"topology": tacit.Hierarchy(edges=2, period=1)},
            BadParameter,
            r"Distill needs one server that has every party's model",
        ),
        (
            aggregate.Distill(rows="test", steps=0),
            {},
            BadParameter,
            r"Distill: steps is 0; it must be a whole number of at least 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(rule, told, error, text):
    with pytest.raises(error, match=text):
        tacit.train(FED, model="logistic", rounds=1, **{"aggregate": rule, **told})
