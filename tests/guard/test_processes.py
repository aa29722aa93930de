"""Guards across real processes: what a client sends from a machine of its own is what the simulation sends."""

from __future__ import annotations

import pytest

import tacit
from tacit import algorithms, data
from tacit.errors import BadParameter
from tacit.guard import Clip, Lazy, Noise, Quantize, SecAgg, Sparsify

FED = data.digits().split(3, seed=0)
TOLD = {"model": "logistic", "algorithm": algorithms.Scaffold(lr=0.1), "rounds": 2, "batch_size": 64}


@pytest.mark.parametrize("guard", [[Clip(0.3, quantile=0.5), Quantize(bits=16, stochastic=False)], [Sparsify(top_k=0.1), Quantize(bits=8, stochastic=False)],
                                   [Clip(5.0), Quantize(bits=40, stochastic=False), SecAgg()], [Lazy(xi=5.0)]], ids=["adaptive", "sparse", "hidden", "lazy"])
def test_processes_and_the_simulation_give_the_same_model(guard):
    there, here = tacit.train(FED, **TOLD, guard=guard, runtime="processes"), tacit.train(FED, **TOLD, guard=guard)
    for a, b in zip(there.model.parameters(), here.model.parameters()):
        assert float((a - b).detach().abs().max()) < 1e-5


def test_noise_across_processes_is_accounted_alike_and_never_replayable():
    guard = [Clip(0.3), Noise(multiplier=1.0, placement="distributed"), Quantize(bits=24), SecAgg()]
    there, here = tacit.train(FED, **TOLD, guard=guard, runtime="processes"), tacit.train(FED, **TOLD, guard=guard)
    assert there.ledger.spent == here.ledger.spent
    again = tacit.train(FED, **TOLD, guard=guard, runtime="processes")
    assert any((a != b).any() for a, b in zip(there.model.parameters(), again.model.parameters()))


def test_signed_sums_are_refused_across_processes():
    with pytest.raises(BadParameter, match="Use adversary='curious' across processes"):
        tacit.train(FED, **TOLD, guard=[Clip(1.0), Quantize(), SecAgg(threshold=0.7, adversary="active")], runtime="processes")
