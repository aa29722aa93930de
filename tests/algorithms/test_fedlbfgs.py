"""FedLBFGS: Liu, Nocedal 1989, Algorithm 2.1, with the mean gradient of parties of unequal sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from tacit.algorithms import FedLBFGS

from .world import Array, Line, World, hold


def paper(memory: int = 10, max_step: float = 5.0) -> Callable[[World], Iterator[Array]]:
    """The matrices that the two-loop recursion avoids: H ← VᵀHV + ρssᵀ, V = I − ρysᵀ, from γI."""

    def run(world: World) -> Iterator[Array]:
        w, one = world.start, np.eye(len(world.start))
        pairs: list[tuple[Array, Array]] = []
        last: tuple[Array, Array] | None = None
        for r in range(world.rounds):
            chosen = world.sampled(r)
            g = sum(world.n[k] * world.grad(w, world.held_by[k]) for k in chosen) / world.n[chosen].sum()
            if last is not None and (w - last[0]) @ (g - last[1]) > 1e-7 * np.sum((w - last[0]) ** 2):
                pairs = [*pairs, (w - last[0], g - last[1])][-memory:]
            h = one if not pairs else one * (pairs[-1][0] @ pairs[-1][1]) / (pairs[-1][1] @ pairs[-1][1])
            for s, y in pairs:
                v = one - np.outer(y, s) / (y @ s)
                h = v.T @ h @ v + np.outer(s, s) / (y @ s)
            last, step = (w, g), -h @ g
            w = w + step * min(1.0, max_step / np.linalg.norm(step))
            yield w

    return run


EVERYONE = World(per_round=5, rounds=8)


@pytest.mark.parametrize(
    ("algorithm", "reference"),
    [
        (FedLBFGS(), paper()),
        (FedLBFGS(memory=2), paper(memory=2)),
        (FedLBFGS(max_step=0.3), paper(max_step=0.3)),
    ],
    ids=["all pairs", "two pairs", "bounded steps"],
)
def test_the_two_loop_recursion_is_the_papers_matrix(
    algorithm: FedLBFGS, reference: Callable[[World], Iterator[Array]]
) -> None:
    hold(algorithm, reference, EVERYONE)


def test_a_round_without_some_parties_is_the_papers_with_theirs() -> None:
    """Pairs of different parties may show no curvature; those are left out by both."""
    hold(FedLBFGS(), paper(), World(rounds=6))


@dataclass(frozen=True)
class Softmax(World):
    """Multinomial logistic regression: convex, so that there is an optimum to compare with."""

    sizes: tuple[int, ...] = (7, 90, 3, 200, 15)
    per_round: int = 5
    rounds: int = 30

    @cached_property
    def module(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            return nn.Linear(self.features, self.classes)

    def loss(self, w: Array) -> tuple[float, Array]:
        """The mean cross-entropy of the pooled rows and its gradient, in float64."""
        c, x = self.classes, self.x.astype(np.float64)
        z = x @ w[: c * self.features].reshape(c, -1).T + w[c * self.features :]
        z = z - z.max(1, keepdims=True)
        log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
        d = (np.exp(log_p) - np.eye(c)[self.y]) / len(x)
        return float(-log_p[np.arange(len(x)), self.y].mean()), np.concatenate([(d.T @ x).ravel(), d.sum(0)])


def test_ragged_parties_end_at_the_optimum_of_the_pooled_rows() -> None:
    """The optimum is scipy's, with its own line search, from zero."""
    world = Softmax()
    best = minimize(world.loss, np.zeros_like(world.start), jac=True, method="L-BFGS-B", tol=1e-14)
    found = world.ours(FedLBFGS())
    assert world.loss(found[0])[0] > best.fun + 1e-3
    assert world.loss(found[-1])[0] == pytest.approx(best.fun, abs=1e-7)
    # softmax does not change if all its scores do, so differences are compared
    weights, optimum = (
        w[: world.classes * world.features].reshape(world.classes, -1) for w in (found[-1], best.x)
    )
    np.testing.assert_allclose(weights - weights.mean(0), optimum - optimum.mean(0), atol=2e-3)


def test_by_hand() -> None:
    """F = ((w − 0)² + 3(w − 8)²)/4 has F' = 2w − 12. From w = 4, η = 1/4: F' = −4, w = 5; then s = 1, y = 2,
    γ = 1/2 and F' = −2: w = 6, the minimum.
    """
    np.testing.assert_allclose(Line(sizes=(1, 3), at=4.0).walk(FedLBFGS(lr=0.25)), [5.0, 6.0], atol=1e-6)
