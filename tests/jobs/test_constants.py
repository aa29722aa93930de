"""Frozen parameters and counters are constants of a model: never sent, clipped, noisy or averaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data
from tacit.errors import BadParameter, BadRun, PartyFailed
from tacit.guard import Clip, Noise, Quantize, SecAgg

FED = data.gaussian_blobs(rows=120, classes=3, features=4, seed=0).split(3, seed=0)
NOISY = [Clip(1.0), Noise(multiplier=1.0)]


def make_adapted() -> nn.Module:
    """A small trained head on a frozen base of 4,096 parameters."""
    base, head = nn.Linear(4, 1024, bias=False), nn.Linear(1024, 3)
    base.weight.requires_grad_(False)
    return nn.Sequential(base, nn.Tanh(), head)


def make_normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def make_unequal() -> nn.Module:
    """Frozen values that are others in every process."""
    module = make_adapted()
    with torch.no_grad():
        module[0].weight.fill_(os.getpid())  # type: ignore[operator, union-attr]
    return module


def train(model: Any, **options: Any) -> tacit.Result:
    algorithm = algorithms.FedAvg(lr=0.1)
    return tacit.train(FED, **{"model": model, "algorithm": algorithm, "rounds": 2, "seed": 1, **options})


@pytest.mark.parametrize("guard", [(), NOISY, [Clip(1.0), Quantize(), SecAgg()]], ids=["", "Noise", "SecAgg"])
@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_guards_leave_a_frozen_base_alone_and_only_the_head_is_sent(runtime: str, guard: Any) -> None:
    torch.manual_seed(0)
    module = make_adapted()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    run = train(module, runtime=runtime, guard=guard)
    after = run.model.state_dict()
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["2.weight"], before["2.weight"])
    sent = sum(e["bytes_up"] for e in run.events if e["kind"] == "round")
    each = 2.5 if len(guard) == 3 else 4.0  # bytes of a number
    assert sent < each * (3 * 1024 + 1024) * 3 * 2  # head and messages; the base has 4,096 numbers more


def test_a_stack_of_clients_has_the_model_of_one_by_one() -> None:
    torch.manual_seed(0)
    module = make_adapted()
    first, second = (train(module, engine=engine).model.state_dict() for engine in ("stack", "each"))
    assert all(torch.allclose(first[k], second[k], atol=1e-6) for k in first)


@pytest.mark.parametrize("engine", ["stack", "each"])
def test_counters_of_batch_norms_do_not_travel(engine: str) -> None:
    run = train(make_normalized, engine=engine, guard=[Clip(0.5)])
    assert int(run.model[1].num_batches_tracked) == 0  # type: ignore[index, arg-type]
    assert float(run.model[1].running_var.min()) > 0  # type: ignore[index, union-attr, operator]


def test_running_statistics_under_noise_are_refused() -> None:
    with pytest.raises(BadParameter, match="running statistics, and noise would make a variance negative"):
        train(make_normalized, guard=NOISY)

    def endless() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3))

    with pytest.raises(BadParameter, match="momentum=None averages over all batches"):
        train(endless)
    fixed = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3))
    assert train(fixed, guard=NOISY).metrics["loss"] > 0


def test_a_run_resumes_only_with_the_same_frozen_base(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = make_adapted()
    train(module, out=tmp_path / "run")
    with torch.no_grad():
        module[0].weight.add_(1.0)  # type: ignore[operator, union-attr]
    with pytest.raises(BadRun, match=r"the model it starts from changed"):
        train(module, out=tmp_path / "run", resume=True)


def test_seeds_side_by_side_share_the_frozen_base() -> None:
    with pytest.raises(BadParameter, match=r"share the frozen part of a model, and '0.weight' is another"):
        tacit.compare(FED, model=make_adapted, algorithms=[algorithms.FedAvg(lr=0.1)], rounds=1, seeds=2)


def test_a_party_with_another_frozen_base_is_told_so() -> None:
    with pytest.raises(PartyFailed, match="the frozen part of its model is another than the server's"):
        train(make_unequal, runtime="processes")
