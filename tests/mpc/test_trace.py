from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tacit
from tacit.errors import BadParameter, PartyFailed
from tacit.mpc.model import compile, from_text, to_text


class Block(nn.Module):
    """As in ResNet: two convolutions, a shortcut with its own where sizes change, and a sum in place."""

    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        )
        self.norm, self.last = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.down = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            if inside != outside
            else None
        )

    def forward(self, x):
        y = self.last(self.two(F.relu(self.norm(self.one(x)))))
        y += x if self.down is None else self.down(x)
        return torch.relu(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Block(2, 2), nn.Dropout(), Block(2, 3, 2))
        self.fc, self.side = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = torch.flatten(F.adaptive_avg_pool2d(F.max_pool2d(self.body(x), 2), 1), 1)
        x = F.dropout(x, 0.5, self.training)
        return self.fc(x) + torch.add(self.side(x).tanh(), x)


def net():
    torch.manual_seed(0)
    model = Net()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -1, 1)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return model.eval()


def test_a_module_with_skip_connections_gives_the_plain_result():
    model, x = net(), torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = model(x)
    for private in (("input", "model"), ("input",)):
        assert (tacit.infer(model, x, private=private).value - plain).abs().max() < 1e-3
    assert not model.training


def test_blocks_work_on_tagged_shares_too():
    model, x = (
        nn.Sequential(net().body[0], nn.Flatten()),
        torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(1)),
    )
    assert (tacit.infer(model, x, adversary="active").value - model(x)).abs().max() < 1e-3


def test_batch_norm_is_folded_inside_a_graph_and_the_architecture_travels():
    layers, weights = compile(net())
    assert from_text(to_text(layers)) == layers
    assert not any("norm" in name or "last" in name for name in weights)


class One(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.layer, self.relu, self.does = nn.Linear(3, 3), nn.ReLU(inplace=True), forward

    def forward(self, x):
        return self.does(self, x)


def late(self, x):
    y = self.layer(x)
    return self.relu(y) + y  # in torch y is overwritten, and this is 2·relu(y)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda self, x: self.layer(x) * x, r"joins branches by something other than \+"),
        (
            lambda self, x: x if x.sum() > 0 else self.layer(x),
            "cannot be traced: .symbolically traced variables cannot",
        ),
        (lambda self, x: self.layer(self.layer(x)), "applies 'layer' twice"),
        (lambda self, x: self.layer(x.view(x.size(0), -1)), "calls size, which cannot be evaluated"),
        (lambda self, x: self.layer(x) + 1, "adds something that is not another branch"),
        (lambda self, x: torch.add(self.layer(x), x, alpha=2), "adds something that is not another branch"),
        (lambda self, x: self.layer(x) + self.layer.bias, "uses a parameter or a constant directly"),
        (lambda self, x: (self.layer(x), x), "returns more than one output"),
        (
            lambda self, x: F.dropout(self.layer(x)),
            "calls dropout with unsupported arguments: it drops values at random",
        ),
        (lambda self, x: torch.sin(x), "calls sin, which cannot be evaluated on shares"),
        (late, "overwrites a value that is used again"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_cannot_be_traced_is_refused_by_name(forward, words):
    with pytest.raises(
        BadParameter,
        match=f"infer: layer the model, a One, {words}.*Your own module may apply the allowed layers",
    ):
        compile(One(forward))


def test_tracing_leaves_each_part_in_its_mode():
    model = One(lambda self, x: self.layer(x))
    model.layer.eval()
    compile(model)
    assert [part.training for part in model.modules()] == [True, False, True]


def test_a_layer_with_code_of_its_own_is_not_taken_for_the_layer_it_derives_from():
    class Twice(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    with pytest.raises(BadParameter, match="Twice"):
        compile(nn.Sequential(Twice(2, 2)))


@pytest.mark.parametrize("options", [{}, {"adversary": "active"}])
def test_branches_are_concatenated(options):
    def forward(self, x):
        y = F.leaky_relu(self.layer(x), 0.2)
        return torch.cat([F.silu(torch.cat((y, x, y), dim=-1)), x], 1)

    model, x = One(forward), torch.randn(2, 3, generator=torch.Generator().manual_seed(4))
    out = tacit.infer(model, x, **options)
    assert out.value.shape == (2, 12)
    assert (out.value - model(x)).abs().max() < 1e-3


def test_concatenated_branches_that_do_not_fit_are_refused():
    model = One(lambda self, x: torch.cat([self.layer(x), torch.flatten(x, 0)], 0))
    with pytest.raises(PartyFailed, match="layer 0 graph node 2 cannot take a shape"):
        tacit.infer(model, torch.ones(2, 3))


def test_branches_of_different_shapes_are_refused():
    model = One(lambda self, x: self.layer(x) + torch.flatten(x))
    with pytest.raises(PartyFailed, match="adds branches of shapes"):
        tacit.infer(model, torch.ones(2, 3))


@pytest.mark.parametrize(
    "nodes",
    [
        '[{"sum": [1], "layers": []}]',
        '[{"sum": [], "layers": []}]',
        '[{"sum": [0], "layers": 3}]',
        '[{"sum": ["0"], "layers": []}]',
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(nodes):
    with pytest.raises(tacit.errors.ProtocolError, match="the architecture cannot be read"):
        from_text('[{"kind": "graph", "nodes": ' + nodes + "}]")


def test_the_class_does_not_drown_in_a_last_sigmoid_behind_branches():
    """σ of 11 and of 12 are the same 16 bits; the larger score is still the class."""

    class Net(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x + x)

    assert tacit.infer(
        Net(), torch.tensor([[5.5, 6.0, 5.0], [1.0, 7.0, 7.5]]), reveal="argmax"
    ).value.tolist() == [1, 2]
