from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import BadParameter, PartyFailed
from tacit.mpc import inference, pair
from tacit.mpc.model import compile, to_text

from .test_model import images, made

LINEAR, ROWS = made(nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)), images(3, 2, 2)


def test_a_linear_model_needs_no_helper():
    """All 32 fractional bits of the product are revealed: the result is nearer than a truncated one."""
    with torch.no_grad():
        plain = LINEAR(ROWS)
    out = tacit.infer(LINEAR, ROWS, helper=None, batch=2)
    assert (out.value - plain).abs().max() < 1e-3
    assert {line.party for line in out.ledger.seen} == {"owner", "client"}
    assert out.ledger.stamps == ["SEMI-HONEST, NO HELPER: the secrets hold if owner and client follow their programs; the masks they need they made "
                                 "themselves, by oblivious transfer. A party that deviates can spoil the result unnoticed."]
    assert [line.count for line in out.ledger.seen if line.kind == "MaskedWeights"] == [1]


def test_a_logistic_regression_between_two_real_processes():
    model, x = made(nn.Linear(5, 1), nn.Sigmoid()), torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    out = tacit.infer(model, x, helper=None, runtime=tacit.Processes(), owner="hospital", client="patient")
    assert (out.value - model(x)).abs().max() < 1e-3


def test_the_two_programs_hold_to_the_protocol_suite():
    layers, weights = compile(LINEAR)

    def programs(_):
        return {"owner": functools.partial(pair.owner, layers=to_text(layers), weights=weights), "client": functools.partial(pair.client, batches=[ROWS])}

    def equal(a, b):
        return a is b is None or ("value" not in a and "value" not in b) or bool((a["value"] - b["value"]).abs().max() < 1e-3)

    tacit.testing.check_protocol(programs, lambda _: {"client": {"value": inference.ideal(LINEAR, ROWS)}}, [0], equal=equal)


@pytest.mark.parametrize(("model", "options", "words"), [
    (made(nn.Linear(8, 3), nn.ReLU()), {}, "only one Linear layer can be evaluated .* and this model has linear, relu"),
    (made(nn.Linear(8, 3), nn.Linear(3, 3)), {}, "this model has linear, linear"), (made(nn.Flatten()), {}, "this model has none"),
    (made(nn.Linear(8, 3)), {"reveal": "argmax"}, "reveal='argmax' takes comparisons"),
    (made(nn.Linear(8, 3)), {"private": ("input",)}, "there is nothing to share"),
    (made(nn.Linear(8, 3)), {"adversary": "active"}, "helper is None; it must be a name with adversary='active' or debug=True"),
    (made(nn.Linear(8, 3)), {"debug": True}, "helper is None; it must be a name"),
    (made(nn.Linear(8, 3)), {"owner": "client"}, "three different names, or two and helper=None")])
def test_what_needs_a_helper_is_refused_with_the_reason(model, options, words):
    with pytest.raises(BadParameter, match=words):
        tacit.infer(model, torch.ones(1, 8), helper=None, **options)


def test_an_input_of_another_shape_is_refused():
    with pytest.raises(PartyFailed, match="layer 1 takes 8 inputs and gets a shape of"):
        tacit.infer(LINEAR, torch.ones(2, 5), helper=None)
