"""Exported modules on shares: each operation against torch, by itself and in the models people bring."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tacit
from tacit.errors import BadData, BadParameter, PartyFailed, ProtocolError
from tacit.mpc import lookup, program
from tacit.mpc.export import compile_program
from tacit.mpc.model import compile, from_text, layers_with_weights, to_text
from tacit.mpc.ring import FixedPoint


class Net(nn.Module):
    """A module with a few layers, whose forward is given."""

    def __init__(self, does):
        super().__init__()
        torch.manual_seed(5)
        self.layer, self.norm, self.does = nn.Linear(4, 4), nn.LayerNorm(4), does
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 1.5]))
        self.table = nn.Embedding(5, 4)
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.deep = nn.LSTM(4, 2, num_layers=2)
        self.gru = nn.GRU(4, 3, bias=False)
        self.conv = nn.Conv1d(4, 2, 3, padding="same")
        self.image = nn.Conv2d(1, 2, 2, stride=2)
        self.batch = nn.BatchNorm1d(4)
        nn.init.uniform_(self.batch.running_var, 0.5, 2.0)
        self.register_buffer("steps", torch.arange(3.0).reshape(3, 1), persistent=False)
        self.register_buffer("offset", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x):
        return self.does(self, x)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(6))


def both_ends(out):
    """All of what an LSTM returns."""
    states, (h, c) = out
    return torch.cat([states, (h + c).transpose(0, 1)], -1)


def masked(m, x):
    """Scores of which a public mask hides the later steps."""
    return (x @ x.transpose(1, 2)).masked_fill(m.steps < m.steps.T, -torch.inf)


def stable_softmax(scores):
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


FORWARD = {
    "arithmetic": lambda m, x: (2 - x) * m.layer(x) / 3 + x**3 - 0.25 * x**2 - (-x),
    "squares and roots": lambda m, x: (x * x + 1) ** -0.5 + torch.sqrt(x.square() + 2) / (1 + x.abs()),
    "weights": lambda m, x: m.scale * x + m.layer.bias - x @ m.layer.weight + m.offset,
    "a weight on the left": lambda m, x: m.layer.weight @ x.transpose(1, 2),
    "functions": lambda m, x: torch.exp(-x.abs()) + torch.log(x.abs() + 1) + F.silu(x) * F.leaky_relu(x, 0.1),
    "clamps": lambda m, x: (
        x.clamp(-0.5, 0.75) + F.relu6(3 * x) + torch.maximum(x, m.steps) - x.clamp(max=0.1)
    ),
    "norms": lambda m, x: m.layer(m.norm(x)) + F.rms_norm(x, (4,), m.scale, 1e-6) + F.layer_norm(x, (3, 4)),
    "norm before a sum": lambda m, x: m.norm(x) + m.layer(m.norm(x)),
    "means": lambda m, x: x.mean(1) + x.sum((1, 2), keepdim=True)[:, 0] + x.mean((1, 2))[:, None],
    "maxima": lambda m, x: x.max(1).values + x.amax(-1, keepdim=True)[:, 0],
    "views": lambda m, x: torch.cat(
        [x[:, 1:], x.flip(1), x.unsqueeze(2).expand(-1, 3, 2, 4).reshape(x.shape[0], 6, 4)[:, ::2]], 1
    ).permute(0, 2, 1),
    "chunks": lambda m, x: (
        torch.stack([*x.chunk(2, -1)], 1) * torch.stack(x.split(2, -1), 1) + x[:, None, :, 1:3]
    ),
    "positions": lambda m, x: x[:, [2, 0]] + x.roll(1, 1)[:, :2] + x.repeat(1, 2, 1)[:, 2:4],
    "joined with a constant": lambda m, x: torch.cat(
        [m.offset.expand(x.shape[0], 1, 4), x, m.steps[:1].expand(x.shape[0], 1, 4)], 1
    ),
    "comparisons": lambda m, x: (x > 0.1) * x + (x <= m.steps).float() * 0.5 + torch.where(x >= 0, x, 2.0),
    "logic": lambda m, x: (((x > 0) & (x < 1)) | ~(x < 0.5)).float() - ((x > 1) | (x < -1)) * 1.0,
    "counts of truths": lambda m, x: ((x > 0).sum(-1) == 0).float() + ((x > 0).sum(-1) >= 2) * 2.0,
    "opposites": lambda m, x: (1.0 - (x > 0).float()).bool().float() + (1 - (x > 1).int()),
    "public choice": lambda m, x: (
        torch.where(m.steps > 0.5, x, m.layer(x)) + x.masked_fill(m.steps > 1.5, 0.25)
    ),
    "softmax": lambda m, x: F.softmax(x, 1) + torch.softmax(x, -1),
    "masked scores, then arithmetic": lambda m, x: (
        torch.softmax(masked(m, x) / 2.5, -1)
        + torch.softmax(0.5 - (x.mean((1, 2)).reshape(-1, 1, 1) - masked(m, x)), -1)
        + stable_softmax(masked(m, x))
        + torch.softmax(x @ x.mT + ((x @ x.mT > 0) & (m.steps >= m.steps.T)).float(), -1)
    ),
    "masked scores, then views": lambda m, x: (
        torch.softmax(masked(m, x).transpose(1, 2), 1).transpose(1, 2)
        + torch.softmax(torch.cat([masked(m, x)[:, :, :2], x[:, :, :1]], -1), -1)
        + torch.sigmoid(masked(m, x))
        + torch.where(x[:, :, :1] > 0, torch.softmax(masked(m, x), -1), masked(m, x).relu())
    ),
    "masked scores": lambda m, x: (
        torch.softmax((x @ x.transpose(1, 2)).masked_fill(~(m.steps >= m.steps.T), float("-inf")), -1) @ x
    ),
    "masked, then scaled": lambda m, x: torch.softmax(
        ((x @ x.mT).masked_fill(m.steps < m.steps.T, float("-inf")) / 2).transpose(0, 1).transpose(0, 1), -1
    ),
    "a mask of constants": lambda m, x: (
        torch.where(x > 0, m.offset, m.steps) + torch.where(x > 1, m.steps, 0.5)
    ),
    "an additive mask": lambda m, x: torch.softmax(
        x @ x.mT + (1.0 - (m.steps >= m.steps.T).float()) * torch.finfo(torch.float32).min, -1
    ),
    "attention": lambda m, x: F.scaled_dot_product_attention(m.layer(x), x, x, is_causal=True),
    "secret mask": lambda m, x: torch.softmax(
        (x @ x.mT).masked_fill((x[:, :, 0] < -9).unsqueeze(1), -torch.inf), -1
    ),
    "recurrent": lambda m, x: both_ends(m.lstm(x[:, :2])),
    "two layers, steps first": lambda m, x: m.deep(x[:, :2].transpose(0, 1))[1][1].transpose(0, 1),
    "gated, steps first": lambda m, x: m.gru(x[:, :2].transpose(0, 1))[0].transpose(0, 1),
    "convolutions": lambda m, x: m.conv(x.mT).flatten(1) + m.image(x[:, None, :2]).flatten(1)[:, :1],
    "batch norm": lambda m, x: m.batch(x.mT) + F.adaptive_avg_pool1d(x.mT, 1),
    "pools": lambda m, x: (
        F.avg_pool1d(x.mT, 2, 1, 1)[..., :2]
        + F.max_pool1d(x.mT, 2, 1)
        + F.max_pool2d(x[:, None], 2, 1, 1)[:, 0, :, :2]
    ),
    "twice the same layer": lambda m, x: m.layer(torch.tanh(m.layer(x))),
}


@pytest.mark.parametrize("name", FORWARD)
def test_it_is_the_plain_result(name):
    model, x = Net(FORWARD[name]).eval(), numbers(3, 3, 4)
    with torch.no_grad():
        plain = model(x)
    layers, _ = compile_program(model, {"x": x})
    assert from_text(to_text(layers)) == layers
    out = tacit.infer(Program(model), x)
    assert out.value.shape == plain.shape
    assert (out.value - plain).abs().max() < 2e-3


class Program(nn.Module):
    """A model that torch.fx cannot trace, so that it is exported."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) if x.dim() else x


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("views", {"adversary": "active"}),
        pytest.param("logic", {"adversary": "active"}, marks=pytest.mark.slow),
        ("positions", {"adversary": "active"}),
        ("logic", {"helper": None}),
        ("recurrent", {"private": ("input",)}),
        pytest.param("recurrent", {"adversary": "active"}, marks=pytest.mark.slow),
        pytest.param("recurrent", {"helper": None}, marks=pytest.mark.slow),
    ],
)
def test_other_modes_give_the_same(name, options):
    model, x = Net(FORWARD[name]).eval(), numbers(1, 3, 4)
    out = tacit.infer(Program(model), x, **options)
    assert (out.value - model(x)).abs().max() < 2e-3


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (
            lambda m, x: torch.sin(x),
            r"Program uses sin in model \(File .*\): it cannot be evaluated on shares",
        ),
        (lambda m, x: m.table(x[..., 0].long()), "a secret number cannot be made an integer"),
        (lambda m, x: x[(x[:, 0, 0] > 0)], "it selects by a secret index"),
        (lambda m, x: x if x.sum() > 0 else -x, "cannot be exported"),
        (lambda m, x: (x, x), "returns 2 values instead of one tensor"),
        (lambda m, x: m.layer.weight, "does not depend on its input"),
        (lambda m, x: x.sum(0), "it combines rows of the batch"),
        (lambda m, x: F.max_pool2d(x[:, None], 2, ceil_mode=True), "it needs ceil_mode=False"),
        (lambda m, x: F.max_pool1d(x, 2, 1, 0, 2), "it needs ceil_mode=False, dilation=1"),
        (lambda m, x: F.avg_pool2d(x[:, None], 2, 2, 0, True), "it needs ceil_mode=False"),
        (lambda m, x: F.avg_pool2d(x[:, None], 2, 1, 1, False, False), "count_include_pad=True if it pads"),
        (lambda m, x: F.avg_pool2d(x[:, None], 2, 1, 0, False, True, 3), "no divisor_override"),
        (lambda m, x: F.dropout(x * x), "drops values at random in evaluation mode"),
        (lambda m, x: x**5, "the exponent 5 is not"),
        (lambda m, x: x.roll(1, 0), "it mixes rows of the batch"),
        (lambda m, x: m.lstm(x, (x[:, :2, :3].transpose(0, 1),) * 2)[0], "first state must be zeros"),
        (lambda m, x: torch.where(m.scale > 0, x, -x), "uses a weight of the model where a public constant"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name_and_place(forward, words):
    with pytest.raises(BadParameter, match=words):
        tacit.infer(Program(Net(forward)), numbers(2, 3, 4))


def test_an_output_that_a_public_mask_hides_is_not_opened():
    """It is a number far below the others, whatever the module computed there."""
    hidden = torch.tensor([False, True, False, True])
    net, x = Net(lambda m, x: m.layer(x).masked_fill(hidden, -torch.inf)), numbers(2, 3, 4)
    value = tacit.infer(net, x).value
    assert (value[..., hidden] == -(2.0**13)).all()
    assert (value - net(x).detach())[..., ~hidden].abs().max() < 1e-3


def test_a_refusal_names_the_module_and_the_line():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.erf(x) * 2

    model = nn.Sequential(nn.Linear(4, 4), Program(Inner()))
    with pytest.raises(
        BadParameter, match=r"(?s)uses erf in 1\.model \(File .*test_export.py.*torch\.erf\(x\)"
    ):
        compile_program(model, {"x": numbers(2, 4)})


def test_the_input_is_not_used_to_export():
    """The owner exports, and has no input: only names, shapes and types count."""
    model, x = Net(FORWARD["masked scores"]), numbers(2, 3, 4)
    one, two = (compile_program(model, {"x": v})[0] for v in (x, 100 * x))
    assert one == two


def test_buffers_that_are_not_saved_are_public_and_others_are_weights():
    layers, weights = compile_program(Net(lambda m, x: x * m.offset * m.steps), {"x": numbers(2, 3, 4)})
    assert [w.tolist() for w in weights.values()] == [[1.0, 2.0, 3.0, 4.0]]
    (constant,) = layers[0]["constants"]
    assert program.unpack_constant(constant).flatten().tolist() == [0.0, 1.0, 2.0]
    assert [layer["kind"] for layer in layers_with_weights(layers)] == ["affine"]


def test_a_norm_is_folded_into_the_layer_behind_it():
    layers, weights = compile_program(Net(lambda m, x: m.layer(m.norm(x))), {"x": numbers(2, 4)})
    assert [inner["kind"] for node in layers[0]["nodes"] for inner in node["layers"]] == [
        "layernorm",
        "linear",
    ]
    assert len(weights) == 2


# token ids --------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Mean of the embeddings of the tokens that the mask keeps, and a class."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.table, self.place, self.last = nn.Embedding(6, 4), nn.Embedding(8, 4), nn.Linear(4, 3)

    def forward(self, ids, mask=None):
        x = self.table(ids) + self.place(torch.arange(ids.shape[1]))
        kept = (ids != 0).float().unsqueeze(-1)
        if mask is not None:
            kept = kept * mask.unsqueeze(-1)
        return self.last((x * kept).mean(1))


IDS = torch.tensor([[1, 5, 0, 2], [3, 3, 4, 0], [0, 1, 2, 3]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])


@pytest.mark.parametrize("options", [{}, {"adversary": "active"}, {"helper": None}, {"private": ("input",)}])
def test_ids_and_masks_are_inputs(options):
    model = Reader().eval()
    out = tacit.infer(model, {"ids": IDS, "mask": MASK}, batch=2, **options)
    assert (out.value - model(IDS, MASK)).abs().max() < 1e-3
    assert tacit.infer(model, IDS, reveal="argmax").value.tolist() == model(IDS).argmax(-1).tolist()


def test_a_lookup_is_exact_and_sends_the_same_whichever_token_it_is():
    model = nn.Sequential(nn.Embedding(6, 4))
    outs = [tacit.infer(model, torch.full((1, 3), token)) for token in (0, 5)]
    for token, out in zip((0, 5), outs):
        assert (out.value - model[0].weight[token]).abs().max() <= 2**-16
    assert outs[0].costs == outs[1].costs
    assert [line.bytes for line in outs[0].ledger.seen] == [line.bytes for line in outs[1].ledger.seen]


def test_the_ledger_shows_that_ids_go_out_as_one_hot_rows_under_masks():
    out = tacit.infer(Reader().eval(), IDS)
    sent = [line for line in out.ledger.seen if line.party == "owner" and line.kind == "MaskedFactors"]
    assert sent[0].bytes >= 8 * IDS.numel() * 6  # 6 words for each token of a vocabulary of 6
    assert {line.kind for line in out.ledger.seen if line.party == "helper"} == {"Architecture", "Batches"}


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"ids": IDS + 3}, r"the input's ids has values from 3 to 8; allowed are token ids from 0 to 5"),
        ({"ids": IDS, "mask": MASK + 1}, r"the input's mask has values from 1 to 2; allowed are 0 and 1"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_the_client(x, words):
    with pytest.raises(PartyFailed, match=words) as failed:
        tacit.infer(Reader(), x)
    assert isinstance(failed.value.error, BadData)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ({"ids": IDS, "else": MASK}, r"Reader takes no input 'else'; its inputs are 'ids', 'mask'"),
        ({"ids": IDS, "mask": MASK[:2]}, "the number of rows of x is"),
        ({"ids": IDS[0]}, "tensors of shape"),
        ({"ids": IDS.tolist()}, "tensors of shape"),
        ({}, "tensors of shape"),
    ],
)
def test_bad_named_inputs_are_refused(x, words):
    with pytest.raises(BadParameter, match=words):
        tacit.infer(Reader(), x)


def test_ids_that_are_computed_are_refused_with_what_to_do():
    model = Net(lambda m, x: m.table(x + 1))
    with pytest.raises(BadParameter, match="its ids are computed from secret values"):
        tacit.infer(Program(model), IDS)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["nodes"][0].update(op="open"),
        lambda p: p["nodes"][1].update(args=[99]),
        lambda p: p["nodes"][1].update(args=[]),
        lambda p: p.update(output=-1),
        lambda p: p["inputs"][0].update(kind="secret"),
        lambda p: p["constants"].append({"dtype": "float64", "shape": [1 << 60], "data": ""}),
        lambda p: p["constants"].append({"dtype": "float64", "shape": [3], "data": "AAAA"}),
        lambda p: p["constants"].append({"dtype": "object", "shape": [1], "data": ""}),
        lambda p: p["nodes"][-1].update(constant=99),
        lambda p: p["nodes"][0].update(layers=[{"kind": "exec"}]),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(change):
    import json

    layers, _ = compile(Reader(), {"ids": IDS})
    assert from_text(to_text(layers)) == layers
    broken = json.loads(to_text(layers))
    change(broken[0])
    with pytest.raises(ProtocolError, match="the architecture cannot be read"):
        from_text(json.dumps(broken))


def test_a_batch_of_another_length_is_refused():
    layers, _ = compile(Reader(), {"ids": IDS})
    with pytest.raises(
        BadData, match=r"the input has the shape \[3, 2\]; the model takes 4 numbers a row \(ids\)"
    ):
        lookup.encode(layers[0], IDS[:, :2].double(), FixedPoint())
