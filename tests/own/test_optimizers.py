"""Any optimizer at the client: the same weights as a plain loop with torch.optim."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import tacit
from tacit import algorithms, data
from tacit.algorithms import SGD, AdamW, Cosine, FedAvg

ONE = data.gaussian_blobs(rows=40, seed=0).split(1, seed=0, held_fraction=0.0)
FOUR = data.gaussian_blobs(rows=80, seed=0).split(4, skew=data.Quantity(alpha=2.0), seed=0)
STEPS = 6


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


CASES: dict[str, tuple[Any, Any]] = {
    "sgd": ("sgd", lambda p: optim.SGD(p, lr=0.05)),
    "momentum": (SGD(momentum=0.9), lambda p: optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": ("Adam", lambda p: optim.Adam(p, lr=0.05)),
    "adamw": ("adamw", lambda p: optim.AdamW(p, lr=0.05)),
    "AdamW class": (optim.AdamW, lambda p: optim.AdamW(p, lr=0.05)),
    "AdamW table": (
        {"name": "adamw", "weight_decay": 0.3, "beta1": 0.8},
        lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.3, betas=(0.8, 0.999)),
    ),
    "rmsprop": (
        {"name": "rmsprop", "momentum": 0.5, "weight_decay": 0.1},
        lambda p: optim.RMSprop(p, lr=0.05, momentum=0.5, weight_decay=0.1),
    ),
    "adagrad": ("adagrad", lambda p: optim.Adagrad(p, lr=0.05)),
    **{
        name: (name.lower(), lambda p, name=name: getattr(optim, name)(p, lr=0.05))
        for name in ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop")
    },
    "factory": (
        lambda p: optim.NAdam(p, lr=0.02, betas=(0.7, 0.9)),
        lambda p: optim.NAdam(p, lr=0.02, betas=(0.7, 0.9)),
    ),
}


def loop(make: Any, clip: float | None = None) -> torch.Tensor:
    """Full batches, as the federation of one party has them."""
    module = copy.deepcopy(network())
    optimizer = make(module.parameters())
    index = ONE.train.index
    x, y = ONE.rows.x[index], ONE.rows.y[index]
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return weights(module)


def train(optimizer: Any, fed: Any = ONE, **more: Any) -> Any:
    options = {"rounds": 1, "local_steps": STEPS, "batch_size": None, "evaluate_every": 0, **more}
    return tacit.train(fed, model=network(), algorithm=FedAvg(lr=0.05), optimizer=optimizer, **options)


@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_a_plain_loop(case: str) -> None:
    ours, theirs = CASES[case]
    np.testing.assert_allclose(weights(train(ours).model), loop(theirs), atol=1e-5)


@pytest.mark.parametrize("norm", [0.05, 1e3])
def test_gradients_are_clipped_as_torch_clips_them(norm: float) -> None:
    ours = weights(train(AdamW(max_norm=norm, eps=1e-3)).model)
    expected = loop(lambda p: optim.AdamW(p, lr=0.05, eps=1e-3), norm)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    both = weights(train({"name": "nadam", "max_norm": norm}).model)
    np.testing.assert_allclose(both, loop(lambda p: optim.NAdam(p, lr=0.05), norm), atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop", "adagrad", SGD(max_norm=0.1), "radam"], ids=str)
def test_stack_loop_and_messages_give_the_same_model(optimizer: Any) -> None:
    stacked, each, parties = (
        train(optimizer, FOUR, rounds=2, local_steps=None, batch_size=8, engine=engine, runtime=runtime)
        for engine, runtime in (("stack", "cohort"), ("each", "cohort"), ("auto", "inprocess"))
    )
    np.testing.assert_allclose(weights(stacked.model), weights(each.model), atol=1e-5)
    np.testing.assert_allclose(weights(stacked.model), weights(parties.model), atol=1e-5)
    notes = [e["text"] for e in stacked.events if e["kind"] == "note"]
    assert any("this optimizer is torch's own" in n for n in notes) == (optimizer == "radam")


def test_a_schedule_changes_the_rate_of_later_rounds() -> None:
    half = train(AdamW(schedule=Cosine(rounds=2)), FOUR, rounds=2)
    assert not torch.allclose(weights(half.model), weights(train("adamw", FOUR, rounds=2).model))


def test_the_job_keeps_the_optimizer_as_the_algorithms_solver() -> None:
    run = train({"name": "nadam", "weight_decay": 0.1})
    table = run.config["algorithm"]["solver"]
    assert table == {"name": "Torch", "optimizer": "NAdam", "weight_decay": 0.1}
    assert run.config["algorithm"] == train(algorithms.Torch("NAdam", 0.1)).config["algorithm"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "lbfgs"}, "optimizer is 'lbfgs'; it must be one of sgd, adam"),
        ({"optimizer": "admw"}, "Did you mean 'adamw'"),
        (
            {"optimizer": optim.SGD([torch.zeros(1, requires_grad=True)])},
            "optimizer is 'an object of SGD'; .* give the class, optimizer=torch.optim.SGD",
        ),
        ({"optimizer": optim.Adafactor}, "Others depend on layers, or need a closure"),
        ({"optimizer": optim.SGD([torch.zeros(1, requires_grad=True)])}, "it must be a name, a solver"),
        ({"optimizer": lambda p: 3}, "the function returns int; it must return a torch.optim"),
        ({"optimizer": "adam", "algorithm": algorithms.FedSGD()}, "FedSGD has its own local steps"),
        (
            {"optimizer": lambda p: optim.SGD(p, lr=0.1), "runtime": "processes"},
            "a function stays in this process",
        ),
        ({"optimizer": {"name": "adamw", "momentum": 0.9}}, "AdamW has no parameter 'momentum'"),
    ],
)
def test_optimizers_that_cannot_be_used_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        tacit.train(ONE, **{"model": network(), "rounds": 1, "algorithm": FedAvg(lr=0.1), **options})
    assert isinstance(caught.value, tacit.TacitError)
