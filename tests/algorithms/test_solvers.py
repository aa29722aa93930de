"""Local solvers against torch.optim, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import optim

from tacit.algorithms import SGD, Adam, Cosine, Exponential, Inverse

DIM, STEPS = 6, 12


def gradient(w: torch.Tensor, t: int) -> torch.Tensor:
    """The gradient of a quadratic that is tilted differently at every step, so that no two steps are equal."""
    scale = torch.linspace(0.5, 3.0, DIM, dtype=w.dtype)
    return scale * w + torch.sin(torch.arange(DIM, dtype=w.dtype) + t)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(), lambda p: optim.SGD(p, lr=0.1)),
        (SGD(momentum=0.9), lambda p: optim.SGD(p, lr=0.1, momentum=0.9)),
        (SGD(momentum=0.9, nesterov=True), lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
        (SGD(weight_decay=0.2), lambda p: optim.SGD(p, lr=0.1, weight_decay=0.2)),
        (
            SGD(momentum=0.5, nesterov=True, weight_decay=0.2),
            lambda p: optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.2),
        ),
        (Adam(), lambda p: optim.Adam(p, lr=0.1)),
        (
            Adam(beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.2),
            lambda p: optim.Adam(p, lr=0.1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.2),
        ),
    ],
    ids=lambda v: repr(v) if not callable(v) else "",
)
def test_a_solver_is_torchs(ours, theirs):
    start = torch.linspace(-1, 1, DIM, dtype=torch.float64)
    current = ours.start({"w": start.float()})
    p = start.clone().requires_grad_()
    optimizer = theirs([p])
    for t in range(STEPS):
        current = ours.step(current, gradient(current.w, t), ours.rate(0.1, {"round": torch.tensor(0.0)}))
        p.grad = gradient(p.detach(), t)
        optimizer.step()
        np.testing.assert_allclose(current.w.numpy(), p.detach().numpy(), atol=1e-5, err_msg=f"step {t}")
    assert float(current.steps) == STEPS


def test_a_rate_given_as_a_tensor_is_the_same_rate():
    """In a study the learning rate differs from run to run and comes as a tensor."""
    current = SGD().start({"w": torch.ones(DIM)})
    g = gradient(current.w, 0)
    torch.testing.assert_close(SGD().step(current, g, torch.tensor(0.1)).w, SGD().step(current, g, 0.1).w)


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Exponential(gamma=0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
        (Inverse(decay=1.0), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
        (Cosine(rounds=4), [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0]),
        (Cosine(rounds=2), [1, 0.5, 0, 0, 0]),
    ],
    ids=repr,
)
def test_a_schedule_by_hand(schedule, wanted):
    """From round 0: γ^t; 1/(1 + t); half of one plus the cosine of 0, 45, 90, 135, 180 degrees, and zero for
    good after the last.
    """
    for solver in (SGD(schedule=schedule), Adam(schedule=schedule)):
        rates = [float(solver.rate(0.2, {"round": torch.tensor(float(r))})) for r in range(5)]
        np.testing.assert_allclose(rates, 0.2 * np.array(wanted), atol=1e-7)
