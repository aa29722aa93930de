"""Clipped sums equal those of one example at a time, for every kind of layer and every kind of clipping."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tacit.errors import BadParameter
from tacit.private import without_batch_norm
from tacit.private.ghost import GhostClipping, automatic_factors, flat_factors, unit_factors
from tacit.private.layers import KINDS, FunctionalRule, find_layers

from .reference import clipped_sum, close, each_gradient

ROWS = 7


class Scale(nn.Module):
    """A layer nobody has a rule for."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return x * self.by.tanh()


class Twice(nn.Module):
    """One layer used three times in a pass, as recurrent networks do."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.LazyLinear(3)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.out(x.flatten(1))


class Tied(nn.Module):
    """An embedding whose weights are also those of the output."""

    def __init__(self):
        super().__init__()
        self.embed, self.mid, self.out = nn.Embedding(9, 5), nn.Linear(5, 5), nn.Linear(5, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.mid(self.embed(x)).mean(1)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0][:, -1])


def images(c=3, side=9):
    return torch.randn(ROWS, c, side, side)


MODELS = {
    "linear": lambda: (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(ROWS, 6)),
    "linear without bias": lambda: (nn.Sequential(nn.Linear(6, 3, bias=False)), torch.randn(ROWS, 6)),
    "linear over places": lambda: (
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)),
        torch.randn(ROWS, 4, 6),
    ),
    "linear over places, wide": lambda: (
        nn.Sequential(nn.Linear(150, 120), nn.Tanh(), nn.Flatten(), nn.Linear(480, 3)),
        torch.randn(ROWS, 4, 150),
    ),
    "conv2d": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(324, 3)),
        images(),
    ),
    "conv2d, stride, dilation, uneven": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(1, 0)),
            nn.Flatten(),
            nn.Linear(140, 3),
        ),
        images(),
    ),
    "conv2d, grouped": lambda: (
        nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(392, 3)),
        images(4),
    ),
    "conv2d, wide on few places": lambda: (
        nn.Sequential(nn.Conv2d(48, 48, 3), nn.Flatten(), nn.Linear(48, 3)),
        images(48, 3),
    ),
    "conv2d, circular padding": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(324, 3)
        ),
        images(),
    ),
    "conv1d": lambda: (
        nn.Sequential(nn.Conv1d(3, 4, 3, padding=2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        torch.randn(ROWS, 3, 9),
    ),
    "conv3d": lambda: (
        nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(54, 3)),
        torch.randn(ROWS, 1, 4, 4, 4),
    ),
    "embedding": lambda: (
        nn.Sequential(nn.Embedding(9, 5, padding_idx=0), nn.Flatten(), nn.Linear(30, 3)),
        torch.randint(0, 9, (ROWS, 6)),
    ),
    "layer norm": lambda: (
        nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
        torch.randn(ROWS, 6),
    ),
    "layer norm over two axes": lambda: (
        nn.Sequential(nn.LayerNorm((4, 6)), nn.Flatten(), nn.Linear(24, 3)),
        torch.randn(ROWS, 4, 6),
    ),
    "rms norm": lambda: (nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 3)), torch.randn(ROWS, 6)),
    "group norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(196, 3)),
        images(),
    ),
    "instance norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(196, 3)),
        images(),
    ),
    "a layer of one's own": lambda: (
        nn.Sequential(nn.Linear(6, 6), Scale(), nn.Linear(6, 3)),
        torch.randn(ROWS, 6),
    ),
    "one layer three times": lambda: (Twice(nn.Linear(6, 6)), torch.randn(ROWS, 6)),
    "one convolution three times": lambda: (Twice(nn.Conv2d(3, 3, 3, padding=1)), images()),
    "one norm three times": lambda: (Twice(nn.GroupNorm(1, 3)), images()),
    "tied weights": lambda: (Tied(), torch.randint(0, 9, (ROWS, 4))),
    "lstm": lambda: (Recurrent(), torch.randint(0, 9, (ROWS, 4))),
    "a frozen part": lambda: (frozen(), torch.randn(ROWS, 6)),
}


def frozen():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    return model


def made(name):
    torch.manual_seed(1)
    model, x = MODELS[name]()
    model(x)  # lazy layers learn their shape
    return (
        model,
        x * (1 if x.dtype == torch.int64 else torch.logspace(-1, 1, ROWS).view(-1, *[1] * (x.dim() - 1))),
        torch.randint(0, 3, (ROWS,)),
    )


def sums(model, x, y, factors, groups="flat", method="auto"):
    ghost = GhostClipping(model, factors, groups, method)
    F.cross_entropy(model(x), y).backward()
    out = dict(zip(map(id, ghost.parameters), ghost.take()))
    ghost.close()
    return [out[id(p)] for p in model.parameters() if p.requires_grad], ghost


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["flat", "automatic", "per-layer", "none"])
def test_the_clipped_sum_equals_one_example_at_a_time(name, kind):
    model, x, y = made(name)
    each = each_gradient(model, x, y)
    order = {id(p): k for k, p in enumerate(p for p in model.parameters() if p.requires_grad)}
    ghost = GhostClipping(model, unit_factors, "per-layer")
    groups = [
        [
            order[id(p)]
            for i, layer in enumerate(ghost.layers)
            if ghost.group[i] == g
            for p in layer.parameters.values()
        ]
        for g in range(len(ghost.layers))
    ]
    groups = [sorted(set(g)) for g in groups if g]
    ghost.close()
    clip = sorted(sum(float(g.square().sum()) for g in e) ** 0.5 for e in each)[
        ROWS // 2
    ]  # examples on both sides of the bound
    want = clipped_sum(each, None if kind == "none" else clip, kind, 0.01, groups)
    factors = {
        "flat": flat_factors(clip),
        "automatic": automatic_factors(clip, 0.01),
        "per-layer": flat_factors(clip),
        "none": unit_factors,
    }[kind]
    got, _ = sums(model, x, y, factors, "per-layer" if kind == "per-layer" else "flat")
    assert close(got, want, 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_by_torch_func_gives_the_same(name):
    model, x, y = made(name)
    want = clipped_sum(each_gradient(model, x, y), 0.7)
    got, ghost = sums(model, x, y, flat_factors(0.7), method="functional")
    assert close(got, want, 1e-5)
    assert len(ghost.layers) == 1


def test_every_kind_of_layer_with_a_rule_is_among_those_tested():
    seen = {type(m) for name in MODELS for m in MODELS[name]()[0].modules()}
    assert set(KINDS) - seen <= {nn.InstanceNorm1d, nn.InstanceNorm3d}, (
        "the two are InstanceNorm2d's rule on other shapes"
    )


def test_no_clipped_gradient_is_longer_than_the_bound():
    model, x, y = made("conv2d")
    for i in range(ROWS):
        got, _ = sums(copy.deepcopy(model), x[i : i + 1] * 50, y[i : i + 1], flat_factors(0.7))
        assert sum(float(g.double().square().sum()) for g in got) ** 0.5 <= 0.7


def test_a_pass_computes_no_gradient_of_a_weight():
    """Book-keeping: one backward pass to the outputs. Parameters are not part of the graph, and a second pass
    never happens.
    """
    model, x, y = made("conv2d")
    ghost = GhostClipping(model, flat_factors(1.0))
    seen = []
    for p in model.parameters():
        assert not p.requires_grad
    loss = F.cross_entropy(model(x), y)
    loss.register_hook(lambda g: seen.append(1))
    loss.backward()
    assert len(seen) == 1
    assert all(p.grad is None for p in model.parameters())
    ghost.close()
    assert all(p.requires_grad for p in model.parameters())


def test_a_gradient_penalty_is_refused():
    model, x, _ = made("linear")
    ghost = GhostClipping(model, flat_factors(1.0))
    x.requires_grad_()
    out = model(x).sum()
    with pytest.raises(
        BadParameter,
        match=r"second-order gradients \(create_graph=True\) reach the weights without passing the layers' "
        r"outputs",
    ):
        torch.autograd.grad(out, x, create_graph=True)
    with ghost.paused():
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def test_an_example_whose_gradient_is_not_finite_counts_as_nothing():
    model, x, y = made("conv2d")
    want = clipped_sum(each_gradient(model, x[1:], y[1:]), 0.7)
    x[0] = float("inf")
    got, _ = sums(model, x, y, flat_factors(0.7))
    assert all(torch.isfinite(g).all() for g in got)
    assert close(got, want, 1e-5)


def test_batch_norm_is_refused_with_the_fix_and_the_fix_works():
    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.Flatten(), nn.Linear(588, 3))
    with pytest.raises(
        BadParameter,
        match=r"'1' is a BatchNorm2d, which mixes the "
        r"examples.*nn.GroupNorm.*tacit.private.without_batch_norm\(model\)",
    ):
        find_layers(model)
    assert isinstance(without_batch_norm(model)[1], nn.GroupNorm)
    assert len(find_layers(model)) == 3


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.InstanceNorm2d(3, track_running_stats=True), "InstanceNorm2d, which mixes"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), "has dropout inside a layer that is run again"),
        (nn.Embedding(5, 3, max_norm=1.0), "max_norm, scale_grad_by_freq or sparse"),
        (nn.Embedding(5, 3, scale_grad_by_freq=True), "max_norm, scale_grad_by_freq or sparse"),
        (nn.ReLU(), "no trainable parameter"),
    ],
)
def test_layers_that_cannot_be_private_are_refused(layer, words):
    with pytest.raises(BadParameter, match=words):
        find_layers(nn.Sequential(layer))


def test_a_layer_vmap_cannot_express_goes_example_by_example_and_says_so():
    class Odd(Scale):
        def forward(self, x):
            return (
                x * self.by if float(x.detach().sum()) > -1e9 else x
            )  # looks at a value, which vmap refuses

    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Linear(6, 6), Odd(), nn.Linear(6, 3)),
        torch.randn(ROWS, 6),
        torch.randint(0, 3, (ROWS,)),
    )
    want = clipped_sum(each_gradient(model, x, y), 0.5)
    got, ghost = sums(model, x, y, flat_factors(0.5))
    assert close(got, want)
    assert "1" in ghost.looped
    assert any(isinstance(layer, FunctionalRule) for layer in ghost.layers)
