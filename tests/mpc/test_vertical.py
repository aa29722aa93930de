"""Regression on shares over columns at different parties equals pooled descent, and nobody is shown a score, a residual or another's weight."""

from __future__ import annotations

import functools

import pytest
import torch

from tacit.errors import PartyFailed
from tacit.mpc import vertical
from tacit.parties import Ledger
from tacit.runtimes import InProcess


def world(n=48, names=("a", "b", "c")):
    g = torch.Generator().manual_seed(0)
    x = {name: torch.randn(n, 2 + k, generator=g) for k, name in enumerate(names)}
    score = sum(v @ torch.linspace(-1, 1.5, v.shape[1]) for v in x.values())
    return x, score


def programs(x, y, label_at, **told):
    names, rows = list(x), len(y)
    made = {who: functools.partial(vertical.holder, names=names, label_at=label_at, helper="helper", x=v, y=y if who == label_at else None, rows=rows, **told)
            for who, v in x.items()}
    return {**made, "helper": functools.partial(vertical.helps, names=names, rows=rows, **told)}


@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_weights_equal_pooled_descent_to_1e_3(family):
    x, score = world()
    y = (score > 0).double() if family == "logistic" else score.double() / 3
    ledger, told = Ledger(), {"family": family, "epochs": 2, "batch": 16, "lr": 0.3}
    got = InProcess().run_sync(programs(x, y, "b", **told), ledger=ledger)
    for name, w in vertical.ideal(list(x), "b", x, y, **told).items():
        assert torch.allclose(got[name]["weights"], w, rtol=0, atol=1e-3), name
        assert w.abs().max() > 0.05
    assert {line.kind for line in ledger.seen if line.party == "helper"} == {"Width"}
    told_things = {line.kind for line in ledger.seen}
    assert told_things <= {"Width", "TapeKey", "Corrections", "MaskedFactors", "MaskedProducts", "MaskedValues", "MaskedBits", "MaskedSigns", "WeightShare"}


def test_a_table_of_other_length_is_refused():
    x, score = world(names=("a", "b"))
    made = programs(x, (score > 0).double(), "a", epochs=1)
    made["b"] = functools.partial(vertical.holder, names=["a", "b"], label_at="a", helper="helper", x=x["b"][:20], y=None, rows=48, epochs=1)
    with pytest.raises(PartyFailed, match="'b' has 20 rows; the job says 48"):
        InProcess().run_sync(made)
