from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import BadData, BadParameter, PartyFailed, ProtocolError
from tacit.mpc import Residual
from tacit.mpc.model import compile, from_text


def made(*layers, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(*layers)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -1, 1)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -1, 1)
    return model.eval()


def images(n=3, channels=2, side=8):
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(1))


MODELS = {
    "mlp": (made(nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5)), images()),
    "cnn": (
        made(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        images(),
    ),
    "norm first": (
        made(
            nn.BatchNorm2d(2),
            nn.Conv2d(2, 2, 3, bias=False),
            nn.BatchNorm2d(2),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(18, 4, bias=False),
            nn.BatchNorm1d(4),
        ),
        images(),
    ),
    "pools": (
        made(
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.AvgPool2d(3, stride=1, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        images(),
    ),
    "groups": (
        made(
            nn.Conv2d(2, 4, 3, groups=2, dilation=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(64, 3),
            nn.Softmax(-1),
        ),
        images(),
    ),
    "residual": (
        made(
            Residual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU())),
            Residual(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Conv2d(2, 4, 1, stride=2)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 3),
        ),
        images(),
    ),
    "activations": (
        made(
            nn.Linear(6, 8),
            nn.GELU(),
            nn.LayerNorm(8),
            nn.Sigmoid(),
            nn.Sequential(nn.Linear(8, 4), nn.Identity()),
        ),
        torch.randn(5, 6),
    ),
    "signals": (
        made(
            nn.Conv1d(2, 4, 3, padding=1),
            nn.BatchNorm1d(4),
            nn.LeakyReLU(0.1),
            nn.Conv1d(4, 6, 4, stride=2, dilation=2, groups=2, bias=False),
            nn.SiLU(),
            nn.Flatten(),
            nn.RMSNorm(30),
            nn.Linear(30, 3),
        ),
        torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(1)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("private", [("input", "model"), ("input",)])
def test_the_result_is_the_plain_models(name, private):
    model, x = MODELS[name]
    with torch.no_grad():
        plain = model(x)
    out = tacit.infer(model, x, private=private, batch=2)
    assert out.value.shape == plain.shape
    assert (out.value - plain).abs().max() < 2e-3


def test_norms_activations_and_convolutions_of_signals_in_the_checked_mode():
    model, x = MODELS["signals"]
    assert (tacit.infer(model, x[:1], adversary="active").value - model(x[:1])).abs().max() < 2e-3


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_argmax_alone_can_be_revealed(name):
    model, x = MODELS[name]
    out = tacit.infer(model, x, reveal="argmax")
    assert out.value.tolist() == model(x).argmax(-1).tolist()
    assert out.value.dtype is torch.int64
    shares = [line for line in out.ledger.seen if line.kind == "ResultShare"]
    assert [(s.party, s.sender) for s in shares] == [("client", "owner")]
    assert shares[0].bytes < 120 + 8 * len(x)  # one word an input: the logits are not in it


def test_masked_weights_are_sent_once_for_all_batches():
    model, x = MODELS["mlp"][0], torch.randn(12, 128)
    one, many = tacit.infer(model, x[:4], batch=4), tacit.infer(model, x, batch=4)
    sent = {
        name: sum(s.bytes for s in out.ledger.seen if s.kind == "MaskedWeights")
        for name, out in {"one": one, "many": many}.items()
    }
    assert sent["one"] == sent["many"] > 8 * 128 * 16
    assert many.bytes - one.bytes < one.bytes  # two more batches cost less than the first
    assert (many.value - model(x)).abs().max() < 1e-3


def test_the_ledger_has_costs_by_operation_and_by_layer():
    model, x = MODELS["mlp"]
    out = tacit.infer(model, x)
    kinds = {line.kind for line in out.ledger.seen if line.party == "client" and line.sender == "owner"}
    assert kinds == {  # no factors: the owner knows the weights, so it alone is sent something to multiply
        "Architecture",
        "MaskedWeights",
        "MaskedProducts",
        "MaskedValues",
        "MaskedBits",
        "MaskedSigns",
        "ResultShare",
    }
    back = {line.kind for line in out.ledger.seen if line.party == "owner" and line.sender == "client"}
    assert back - kinds == {"Batches", "MaskedFactors"}
    assert any("SEMI-HONEST" in stamp for stamp in out.ledger.stamps)
    rows = out.table().set_index("operation")
    assert rows.loc["2 relu", "rounds"] == 6
    assert rows.loc["1 linear", "rounds"] == 2
    assert out.rounds == rows["rounds"].sum() == 2 + 6 + 2


def test_debug_says_how_far_from_plain_it_is_and_that_nothing_was_hidden():
    model, x = MODELS["mlp"]
    assert tacit.infer(model, x).max_error_vs_plain is None
    out = tacit.infer(model, x, debug=True)
    assert 0 < out.max_error_vs_plain < 1e-3
    assert any("DEBUG" in stamp for stamp in out.ledger.stamps)


@pytest.mark.parametrize("private", [("input", "model"), ("input",)])
def test_an_overflow_inside_the_network_is_seen_in_debug_mode(private):
    """1000 · 30,000 · 2 is still in range, and that · 30,000 · 2 is not; wrapped around it would look like
    any other number.
    """
    model = made(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(30_000.0)
    with pytest.raises(
        PartyFailed, match=r"a product reaches ±3.*e\+12, and the range ends at .*it would overflow"
    ):
        tacit.infer(model, torch.full((1, 2), 1000.0), private=private, debug=True)


def test_real_processes_say_the_same():
    model, x = MODELS["mlp"]
    out = tacit.infer(
        model, x, runtime=tacit.Processes(), owner="hospital", client="patient", helper="notary"
    )
    assert (out.value - model(x)).abs().max() < 1e-3
    assert {line.party for line in out.ledger.seen} == {"hospital", "patient", "notary"}


def test_the_three_programs_hold_to_the_protocol_suite():
    """They compute the ideal, every message is on record, and a crash of anyone ends the run by name."""
    from tacit.mpc import inference
    from tacit.mpc.model import to_text

    model, x = (
        made(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
        torch.randn(2, 4, generator=torch.Generator().manual_seed(4)),
    )
    layers, weights = compile(model)

    def programs(reveal):
        return {
            "owner": functools.partial(
                inference.owner, layers=to_text(layers), weights=weights, reveal=reveal
            ),
            "client": functools.partial(inference.client, batches=[x]),
            "helper": inference.helper,
        }

    def equal(a, b):
        return (
            a is b is None
            or ("value" not in a and "value" not in b)
            or bool((a["value"] - b["value"]).abs().max() < 1e-3)
        )

    tacit.testing.check_protocol(
        programs,
        lambda reveal: {"client": {"value": inference.ideal(model, x, reveal)}},
        ["logits", "argmax"],
        equal=equal,
    )


def test_relu_moves_behind_a_max_pool_and_batch_norm_disappears():
    layers, weights = compile(MODELS["cnn"][0])
    assert [layer["kind"] for layer in layers] == [
        "conv2d",
        "maxpool",
        "relu",
        "conv2d",
        "relu",
        "flatten",
        "linear",
    ]
    assert sorted(weights) == ["0.bias", "0.weight", "4.bias", "4.weight", "7.bias", "7.weight"]


@pytest.mark.parametrize(
    ("layer", "words"),
    [(nn.LSTM(3, 3), "LSTM"), (nn.Hardswish(), "Hardswish")],
)
def test_what_cannot_be_evaluated_is_refused_with_what_can(layer, words):
    with pytest.raises(
        BadParameter,
        match=rf"infer: layer 0 is {words}.*cannot be evaluated on shares\. Allowed are Linear, Conv1d",
    ):
        tacit.infer(nn.Sequential(layer), torch.ones(1, 3))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.MaxPool2d(2, ceil_mode=True), "dilation=1, ceil_mode=False"),
        (nn.Conv2d(1, 1, 2, padding="same"), "symmetric padding"),
        (nn.Conv1d(1, 1, 3, padding_mode="circular", padding=1), "padding_mode='zeros'"),
        (nn.Conv2d(1, 1, 3, padding_mode="reflect", padding=1), "padding_mode='zeros'"),
        (nn.AvgPool2d(2, ceil_mode=True), "ceil_mode=False"),
        (nn.AdaptiveAvgPool2d(2), "an output of 1 × 1"),
    ],
)
def test_a_known_layer_with_unsupported_options_is_refused_with_the_supported_ones(layer, words):
    with pytest.raises(
        BadParameter,
        match=rf"infer: layer 0 is {type(layer).__name__}.*cannot be evaluated on shares\. It must "
        rf"have .*{words}",
    ):
        tacit.infer(nn.Sequential(layer), torch.ones(1, 1, 3, 3))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_may_be_a_name(padding):
    model, x = made(nn.Conv2d(2, 2, (3, 5), padding=padding, dilation=(2, 1))), images()
    assert (tacit.infer(model, x).value - model(x)).abs().max() < 1e-3


@pytest.mark.parametrize("options", [{}, {"helper": None}, {"adversary": "active"}])
def test_a_layer_that_occurs_twice_in_a_sequence_is_applied_twice(options):
    """torch's named_children lists a module once, however often it occurs; without two of four layers the result
    differs.
    """
    act, same = nn.ReLU(), nn.Linear(6, 6)
    model, x = (
        made(same, act, nn.Linear(6, 6), act, same, seed=3),
        torch.randn(4, 6, generator=torch.Generator().manual_seed(3)),
    )
    assert [layer["kind"] for layer in compile(model)[0]] == ["linear", "relu", "linear", "relu", "linear"]
    assert (tacit.infer(model, x, **options).value - model(x)).abs().max() < 1e-3


def test_a_branch_that_overwrites_what_the_shortcut_adds_is_refused():
    """torch would add relu(x): body runs first, and in place."""
    with pytest.raises(
        BadParameter, match=r"the body of 0 begins with an in-place layer .* Use inplace=False"
    ):
        compile(nn.Sequential(Residual(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(3, 3)))))
    compile(
        nn.Sequential(Residual(nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))))
    )  # what it overwrites is its own


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
@pytest.mark.parametrize(
    "model",
    [made(nn.Linear(6, 6), nn.BatchNorm1d(6)), made(nn.BatchNorm1d(6), nn.Linear(6, 6))],
    ids=["folded", "alone"],
)
def test_a_batch_norm_of_rows_does_not_take_channels_for_features(model, adversary):
    """On (rows, channels, length) torch scales the second dimension; where there are as many features the
    last would be scaled unseen.
    """
    with pytest.raises(
        PartyFailed, match=r"with its BatchNorm1d gets a shape of \[2, 6, 6\].*\(rows, features\) only"
    ):
        tacit.infer(model, torch.ones(2, 6, 6), adversary=adversary)


def test_a_batch_norm_of_images_behind_a_linear_layer_scales_channels():
    model, x = made(nn.Linear(8, 2), nn.BatchNorm2d(2)), images()
    assert (tacit.infer(model, x).value - model(x)).abs().max() < 1e-3


def test_a_batch_norm_that_does_not_fit_the_layer_before_it_is_refused():
    with pytest.raises(BadParameter, match=r"layer 1 is BatchNorm1d.*the layer before it has 5 outputs"):
        compile(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(6)))


@pytest.mark.parametrize("options", [{}, {"adversary": "active"}])
@pytest.mark.parametrize("side", [3, 28, 56, 90])
def test_a_mean_of_thousands_is_as_exact_as_one_of_nine(side, options):
    """1/8100 has 9 significant bits in 22 fractional ones: that alone would put the mean of a constant 100
    off by 0.08.
    """
    model, x = made(nn.AvgPool2d(side), nn.Flatten()), torch.full((1, 1, side, side), 100.0)
    assert abs(float(tacit.infer(model, x, **options).value) - 100) <= 100 * 2**-15 + 2**-15


def test_means_of_a_power_of_two_reach_to_the_end_of_the_range():
    model = made(nn.AvgPool2d(2), nn.Flatten())
    for edge, adversary in ((2.0**30, "semi-honest"), (2.0**26, "active")):
        assert tacit.infer(model, torch.full((1, 1, 2, 2), -edge), adversary=adversary).value.tolist() == [
            [-edge]
        ]


def test_a_mean_that_leaves_its_range_is_seen_in_debug_mode():
    """2^26: with 22 bits more it is 2^64, and wrapped around it would be 0."""
    with pytest.raises(
        PartyFailed, match=r"a multiplication by 0\.111111 got values from 6.*e\+08.*its domain is"
    ):
        tacit.infer(made(nn.AvgPool2d(3)), torch.full((1, 1, 3, 3), 2.0**26), debug=True)


def test_a_layer_norm_whose_squares_leave_the_range_is_seen_in_debug_mode():
    x = torch.tensor([[-40000.0, 40000.0]])  # 2 · 40,000² is above 2^30
    with pytest.raises(PartyFailed, match=r"a product reaches .*it would overflow"):
        tacit.infer(made(nn.LayerNorm(2)), x, debug=True)


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (
            made(nn.LayerNorm(3, elementwise_affine=False)),
            (2, 4),
            r"a layer norm over \[3\] gets a shape of \[2, 4\]",
        ),
        (
            made(nn.BatchNorm2d(3)),
            (2, 1, 4, 4),
            r"a batch norm, takes 3 channels and gets a shape of \[2, 1, 4, 4\]",
        ),
        (made(nn.Conv1d(3, 1, 2)), (2, 3), r"takes \(rows, channels, length\) and gets a shape of \[2, 3\]"),
        (made(nn.RMSNorm(3)), (2, 4), r"a rms norm over \[3\] gets a shape of \[2, 4\]"),
        (made(nn.Conv2d(1, 1, 5)), (2, 1, 3, 3), r"filters of \[5, 5\], larger than its images"),
        (made(nn.MaxPool2d(2)), (2, 4), r"layer 0 maxpool cannot take a shape of \[2, 4\]"),
        (made(nn.Softmax(5)), (2, 4), r"layer 0 softmax cannot take a shape of \[2, 4\]"),
        (made(Residual(nn.Linear(4, 3))), (2, 4), r"layer 0 residual cannot take a shape of \[2, 4\]"),
    ],
    ids=["layer norm", "batch norm", "signal", "rms norm", "filters", "pool", "softmax", "residual"],
)
def test_a_shape_that_does_not_fit_is_refused_by_the_layers_name(model, shape, words, adversary):
    """The first two would broadcast into a result where torch has none."""
    with pytest.raises(PartyFailed, match=words) as failed:
        tacit.infer(model, torch.ones(shape), adversary=adversary)
    assert isinstance(failed.value.error, BadData)


def test_debug_leaves_the_model_and_the_input_as_they_were():
    model, x = made(nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(3, 2)).train(), -torch.ones(2, 3)
    model[1].eval()
    tacit.infer(model, x, debug=True)
    assert [part.training for part in model.modules()] == [True, True, False, True]
    assert (x == -1).all()


def test_a_table_of_pandas_is_an_input():
    import pandas

    model, x = made(nn.Linear(3, 2)), torch.randn(4, 3)
    assert (
        tacit.infer(model, pandas.DataFrame(x.numpy(), columns=list("abc")), device=torch.device("cpu")).value
        - model(x)
    ).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"private": None}, "private is None; it must be"),
        ({"device": None}, "device is 'None'; it must be 'cpu'"),
        (
            {"private": ("model",)},
            r"private is \('model',\); it must be \('input', 'model'\) or \('input',\)",
        ),
        ({"private": ()}, "private is"),
        ({"reveal": "all"}, "reveal is 'all'; it must be 'logits' or 'argmax'"),
        ({"batch": 0}, "batch is 0"),
        ({"device": "tpu"}, "device is 'tpu'; it must be 'cpu', 'cuda'"),
        ({"owner": "client"}, "three different names"),
        ({"fraction": 99}, "fraction is 99"),
    ],
)
def test_bad_parameters_are_refused(options, words):
    with pytest.raises(BadParameter, match=words):
        tacit.infer(MODELS["mlp"][0], MODELS["mlp"][1], **options)


def test_bad_inputs_are_refused():
    model, x = MODELS["mlp"]
    with pytest.raises(BadParameter, match="infer: model is 'str'; it must be a torch"):
        tacit.infer("mlp", x)
    with pytest.raises(BadData, match="the input is str, not numbers"):
        tacit.infer(model, "abc")
    with pytest.raises(BadParameter, match="the shape of x is"):
        tacit.infer(model, torch.ones(3))
    with pytest.raises(BadData, match="the input: 1 of 384 numbers are not within"):
        tacit.infer(
            model,
            x.clone().index_put(
                (torch.tensor(0), torch.tensor(0), torch.tensor(0), torch.tensor(0)),
                torch.tensor(float("nan")),
            ),
        )
    with pytest.raises(PartyFailed, match="layer 1 takes 128 inputs and gets a shape of"):
        tacit.infer(model, torch.ones(2, 5))
    wild = made(nn.Linear(2, 1))
    with torch.no_grad():
        wild[0].weight.fill_(1e12)
    with pytest.raises(BadData, match=r"the model's 0\.weight: 2 of 2 numbers are not within"):
        tacit.infer(wild, torch.ones(1, 2))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '[{"kind": "exec"}]', '[{"kind": "residual", "body": 3, "shortcut": []}]', "[" * 5000],
)
def test_an_architecture_that_makes_no_sense_is_refused(text):
    with pytest.raises(ProtocolError, match="the architecture cannot be read"):
        from_text(text)


def test_a_model_whose_hooks_would_be_left_out_is_refused():
    from torch.nn.utils import prune

    pruned = nn.Sequential(nn.Linear(4, 3))
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    with pytest.raises(BadParameter, match="infer: 0 has a forward hook, whose code would not run on shares"):
        compile(pruned)
    prune.remove(pruned[0], "weight")
    assert compile(pruned)
    doubled = nn.Sequential(nn.Linear(4, 3))
    doubled.register_forward_hook(lambda module, args, out: 2 * out)
    with pytest.raises(BadParameter, match="infer: the model has a forward hook"):
        compile(doubled)
