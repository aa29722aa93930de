"""FedNova: Wang, Liu, Liang, Joshi, Poor 2020, equations 6 to 11: normalized averaging, with momentum and
with a proximal term.
"""

from __future__ import annotations

import numpy as np
import pytest

from tacit.algorithms import SGD, Adam, FedAvg, FedNova
from tacit.errors import BadParameter

from .world import Line, World, hold


def steps(gradients, lr, rho=0.0, nesterov=False, mu=0.0):
    """The distance of a client from its start, given the gradient of each step: torch's SGD on F_k + μ/2‖w − w_t‖²."""
    moved = v = 0.0 * gradients[0]
    for g in gradients:
        g = g + mu * moved
        v = rho * v + g
        moved = moved - lr * (g + rho * v if nesterov else v)
    return moved


def l1(tau, lr, **how):
    """‖a_k‖₁ by its definition: entry j of a_k is the contribution of a unit gradient at step j alone to the update,
    divided by −η.
    """
    unit = np.eye(tau)
    return sum(abs(steps([np.array(u) for u in unit[j]], lr, **how) / -lr) for j in range(tau))


def paper(lr, tau="mean", **how):
    """d_k = (w_t − w_k)/(η‖a_k‖₁);  w ← w − τ_eff η Σ p_k d_k  with  τ_eff = Σ p_k ‖a_k‖₁, or 1 / Σ
    p_k/‖a_k‖₁;  p_k = n_k/n.
    """

    def run(world):
        w = world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = world.n[chosen] / world.n[chosen].sum()
            norms, directions = [], []
            for k in chosen:
                gradients = []
                for rows in world.batches(r, k):
                    here = w + (steps(gradients, lr, **how) if gradients else 0.0)
                    gradients.append(world.grad(here, rows))
                norms.append(l1(len(gradients), lr, **how))
                directions.append(steps(gradients, lr, **how) / (-lr * norms[-1]))
            tau_eff = p @ norms if tau == "mean" else 1 / (p @ (1 / np.array(norms)))
            w = w - tau_eff * lr * sum(p_k * d for p_k, d in zip(p, directions))
            yield w

    return run


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"rho": 0.9},
        {"rho": 0.9, "nesterov": True},
        {"mu": 0.5},
        {"rho": 0.9, "mu": 0.5},
        {"rho": 0.5, "nesterov": True, "mu": 1.0},
    ],
    ids=["plain", "momentum", "nesterov", "proximal", "momentum and proximal", "nesterov and proximal"],
)
@pytest.mark.parametrize("tau", ["mean", "harmonic"])
def test_fednova_is_the_papers(how, tau):
    lr = 0.1 if "rho" in how else 0.3
    solver = SGD(momentum=how.get("rho", 0.0), nesterov=how.get("nesterov", False))
    hold(
        FedNova(lr=lr, mu=how.get("mu", 0.0), solver=solver, tau=tau), paper(lr, tau, **how), World(rounds=4)
    )


def test_the_reference_has_the_papers_closed_forms():
    """Section 4.1: plain ‖a‖₁ = τ; momentum (τ − ρ(1 − ρ^τ)/(1 − ρ))/(1 − ρ); proximal (1 − (1 − α)^τ)/α with
    α = ημ.
    """
    tau, rho, alpha = 7, 0.9, 0.1 * 0.5
    assert np.isclose(l1(tau, 0.1), tau)
    assert np.isclose(l1(tau, 0.1, rho=rho), (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
    assert np.isclose(l1(tau, 0.1, mu=0.5), (1 - (1 - alpha) ** tau) / alpha)


def test_by_hand():
    """Targets 0 (1 row, τ = 2) and 8 (3 rows, τ = 1), w = 4, η = 1/4.

    Party 0 meets the gradients 8 and 4: d = 6. Party 1: d = −8. Mean direction 6/4 − 24/4 = −4.5; τ_eff = 2/4
    + 3/4 = 1.25; w = 4 + 1.25·4.5/4 = 5.40625. FedAvg gives 4.75: party 0's second step pulls it back.
    """
    line = Line(sizes=(1, 3), epochs=(2, 1), at=4.0, rounds=1)
    np.testing.assert_allclose(line.walk(FedNova(lr=0.25)), [5.40625], atol=1e-6)


def test_by_hand_with_momentum():
    """As above with ρ = 1/2. Party 0: v = 8, w = 2; v = 4 + 4 = 8, w = 0; a = (3/2, 1), ‖a‖₁ = 2.5, d =
    4/(0.25·2.5) = 6.4. Party 1: d = −8.

    Mean direction 1.6 − 6 = −4.4; τ_eff = 2.5/4 + 3/4 = 1.375; w = 4 + 1.375·4.4/4 = 5.5125.
    """
    line = Line(sizes=(1, 3), epochs=(2, 1), at=4.0, rounds=1)
    np.testing.assert_allclose(line.walk(FedNova(lr=0.25, solver=SGD(momentum=0.5))), [5.5125], atol=1e-6)


def test_if_one_party_has_most_of_the_rows_the_mean_tau_overshoots_and_the_harmonic_does_not():
    """Four parties that agree: each moves from w to 1, up to a millionth. One has 17 of the 20 rows and takes 17 times
    the steps of the others, so τ_eff Σ p_k/τ_k = 4 Σ p_k² = 2.92: in each round the error is multiplied by −1.92.
    """
    line = Line(
        targets=(1.0,) * 4, sizes=(17, 1, 1, 1), epochs=(20,) * 4, batch_size=1, per_round=4, rounds=3
    )
    np.testing.assert_allclose(line.walk(FedNova(lr=0.25)), [2.92, 1 - 1.92**2, 1 + 1.92**3], atol=1e-4)
    np.testing.assert_allclose(line.walk(FedNova(lr=0.25, tau="harmonic")), [1, 1, 1], atol=1e-4)


@pytest.mark.parametrize("solver", [Adam(), SGD(weight_decay=0.1)], ids=repr)
def test_a_solver_without_a_known_norm_is_refused(solver):
    with pytest.raises(BadParameter, match="it must be SGD without weight decay"):
        World().ours(FedNova(solver=solver))


@pytest.mark.parametrize("count", ["steps", "epochs"])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_an_update_may_be_divided_by_steps_or_by_epochs(count, mu):
    """The published variant: the update divided by τ_k steps, or by E_k epochs, whatever their number of steps; τ_eff is
    the mean of the divisors.
    """
    lr = 0.3

    def reference(world):
        w = world.start
        for r in range(world.rounds):
            chosen = world.sampled(r)
            p = world.n[chosen] / world.n[chosen].sum()
            ways, by = [], []
            for k in chosen:
                gradients = []
                for rows in world.batches(r, k):
                    here = w + (steps(gradients, lr, mu=mu) if gradients else 0.0)
                    gradients.append(world.grad(here, rows))
                ways.append(steps(gradients, lr, mu=mu))
                by.append(len(gradients) if count == "steps" else world.epochs[k])
            w = w + (p @ by) * sum(p_k * way / b for p_k, way, b in zip(p, ways, by))
            yield w

    hold(FedNova(lr=lr, mu=mu, count=count), reference, World(rounds=4))


def test_counted_in_steps_any_solver_is_allowed():
    """With equal sizes and epochs every client divides by the same number, so that with Adam too it is
    FedAvg.
    """
    world = World(sizes=(8, 8, 8), epochs=(2, 2, 2), per_round=3, rounds=3)
    for count in ("steps", "epochs"):
        np.testing.assert_allclose(
            world.ours(FedNova(lr=0.01, count=count, solver=Adam())),
            world.ours(FedAvg(lr=0.01, solver=Adam())),
            atol=1e-5,
        )
