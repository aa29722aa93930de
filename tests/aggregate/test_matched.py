"""Units are matched before averaging (FedMA, Wang et al. 2020): their order has no meaning."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tacit
from tacit import aggregate, algorithms, data, models
from tacit.aggregate.assignment import assign
from tacit.engine.task import Task
from tacit.errors import BadParameter


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2), st.booleans(), st.integers(0, 10**6))
def test_an_assignment_costs_no_more_than_any_other(n, more, ties, seed):
    rng = np.random.default_rng(seed)
    cost = rng.integers(-3, 4, (n, n + more)).astype(float) if ties else rng.standard_normal((n, n + more))
    found = assign(cost)
    assert len(set(found.tolist())) == n
    least = min(
        sum(cost[i, j] for i, j in enumerate(other)) for other in itertools.permutations(range(n + more), n)
    )
    assert cost[np.arange(n), found].sum() == pytest.approx(least, abs=1e-9)


def test_a_large_assignment_has_prices_that_prove_it():
    """Rows and columns in disguise: the cost is a price a row and a price a column, and something positive
    off one permutation.
    """
    rng = np.random.default_rng(0)
    n = 120
    wanted = rng.permutation(n)
    cost = rng.uniform(0.1, 1, (n, n))
    cost[np.arange(n), wanted] = 0
    np.testing.assert_array_equal(
        assign(cost + rng.standard_normal(n)[:, None] + rng.standard_normal(n)), wanted
    )


def test_scipy_finds_none_cheaper():
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(1)
    for shape in ((60, 60), (40, 70)):
        cost = rng.standard_normal(shape)
        assert cost[np.arange(shape[0]), assign(cost)].sum() == pytest.approx(
            cost[linear_sum_assignment(cost)].sum()
        )


def test_assignments_that_cannot_be():
    for cost in (np.zeros((3, 2)), np.array([[np.inf]])):
        with pytest.raises(ValueError, match=r"rows must not outnumber columns, and costs must be finite"):
            assign(cost)


def shuffled(net, seed):
    """The same function: hidden units of every layer in another order, with their norms, and the next layer's
    inputs with them.
    """
    g = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(net)
    weights = [i for i, m in enumerate(other) if isinstance(m, nn.Linear | nn.Conv2d)]
    for a, b in itertools.pairwise(weights):
        order = torch.randperm(other[a].weight.shape[0], generator=g)
        for m in other[a:b]:
            for t in (*m.parameters(), *(b for b in m.buffers() if b.dim())):
                t.data = t.data[order]
        w = other[b].weight
        blocks = torch.arange(w.shape[1]).view(len(order), -1)
        w.data = w.data[:, blocks[order].flatten()]
    return other


def flat(net, of):
    return torch.cat([t.detach().reshape(-1).float() for t in of(net)])


NETS = {
    "mlp": lambda: models.MLP(hidden=(9, 7)).build((5,), 3),
    "cnn": lambda: models.CNN(channels=(4, 6), hidden=(8,), kernel=3).build((1, 12, 12), 3),
    "batch norm": lambda: nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("key", ["delta", "w"])
def test_copies_in_other_orders_average_back_to_the_network_and_the_mean_does_not(name, key):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start, net = NETS[name](), NETS[name]()
    for m in net:
        if isinstance(m, nn.BatchNorm1d):
            m.running_mean.normal_(generator=torch.Generator().manual_seed(1))
            m.weight.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(2))
    x = torch.randn(6, *((5,) if name != "cnn" else (1, 12, 12)), generator=torch.Generator().manual_seed(3))
    copies = [shuffled(net, s).eval() for s in range(4)]
    net.eval()
    with torch.no_grad():
        assert all(torch.allclose(c(x), net(x), atol=1e-5) for c in copies)
        task = Task(start, x, torch.zeros(6, dtype=torch.int64))
        w = task.initial()
        sent = torch.stack([flat(c, lambda n: n.parameters()) for c in copies])
        vectors = {key: sent - w["w"] if key == "delta" else sent}
        if "buffers" in w:
            vectors["buffers"] = torch.stack(
                [flat(c, lambda n: [b for b in n.buffers() if b.is_floating_point()]) for c in copies]
            )
        told = (
            aggregate.Matched()
            .with_task(task, [x])
            .at_round({k: v[None] for k, v in w.items()} | {"round": torch.zeros(1)})
        )
        for rule, same in ((told, True), (aggregate.Mean(), False)):
            got = rule.result(rule.add(rule.start(), torch.tensor([[1.0, 2, 3, 1]]), vectors))
            model = task.module_at(
                got[key][0] + (w["w"] if key == "delta" else 0),
                got["buffers"][0] if "buffers" in got else None,
            )
            assert torch.allclose(model(x), net(x), atol=1e-4) is same


def test_without_permutations_it_is_the_mean():
    fed = data.gaussian_blobs(rows=120, classes=3, features=4, seed=1).split(3, seed=0)
    job = dict(model=models.MLP(hidden=(6,)), algorithm=algorithms.FedAvg(lr=0.01), rounds=2, local_epochs=1)
    plain, ours, parties = (
        tacit.train(fed, **job, **how)
        for how in (
            {},
            {"aggregate": aggregate.Matched()},
            {"aggregate": aggregate.Matched(), "runtime": "inprocess"},
        )
    )
    for a, b, c in zip(*(r.model.parameters() for r in (plain, ours, parties))):
        assert torch.allclose(a, b, atol=1e-5)
        assert torch.allclose(b, c, atol=1e-5)


class Backwards(nn.Sequential):
    """Layers that are not taken in the order they are listed in."""

    def forward(self, x):
        return self[1](torch.relu(self[2](torch.relu(self[0](x)))))


def drawn():
    """A layer used twice, with fixed values: with new random values, dead units would sometimes hide the reuse."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)), "layer 1 is a LayerNorm"),
        (
            nn.Sequential(
                nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 2, 1, groups=2), nn.Flatten(), nn.Linear(4, 3)
            ),
            "layer 0 is a Unflatten",
        ),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.Linear(4, 3)), "layer 0 is a Unflatten"),
        (Backwards(nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 4)), "layer one is a Backwards"),
        (drawn(), "this model does not apply its layers in the order in which they are listed"),
    ],
    ids=["norm", "groups", "shape", "order", "shared"],
)
def test_models_that_are_not_a_chain_are_refused(net, why):
    fed = data.gaussian_blobs(rows=60, classes=3, features=4, seed=1).split(3, seed=0)
    with pytest.raises(BadParameter, match=rf"Matched: {why}. It supports chains of linear layers"):
        tacit.train(fed, model=net, rounds=1, aggregate=aggregate.Matched())


def test_networks_with_shortcuts_are_refused():
    fed = data.digits(images=True).split(3, seed=0)
    with pytest.raises(BadParameter, match=r"Matched: layer 3 is a _Block. It supports chains"):
        tacit.train(fed, model="resnet8", rounds=1, aggregate=aggregate.Matched())
