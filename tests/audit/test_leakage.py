"""Measures of leakage: 0 and 1 where they should be, equal to their definitions written out, and lower when
less shows.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tacit.audit import labels, leakage
from tacit.errors import BadData


def noise(n=200, wide=3, seed=0):
    return torch.randn(n, wide, generator=torch.Generator().manual_seed(seed))


def test_distance_correlation_is_its_definition():
    """Székely, Rizzo and Bakirov's Definitions 3 to 5, with loops."""
    x, z = noise(12, 2).numpy(), noise(12, 3, 1).numpy() + noise(12, 1).numpy()

    def centred(v):
        n = len(v)
        d = np.array([[np.linalg.norm(v[i] - v[j]) for j in range(n)] for i in range(n)])
        return np.array(
            [[d[i, j] - d[i].mean() - d[:, j].mean() + d.mean() for j in range(n)] for i in range(n)]
        )

    A, B = centred(x), centred(z)
    want = math.sqrt((A * B).mean() / math.sqrt((A * A).mean() * (B * B).mean()))
    assert float(leakage.distance_correlation(x, z)) == pytest.approx(want, abs=1e-5)


def test_a_rotation_and_scaling_shows_everything_and_independence_nothing():
    x = noise(300)
    turn = torch.linalg.qr(noise(3, 3, 2)).Q
    assert float(leakage.distance_correlation(x, 7 * x @ turn + 5)) == pytest.approx(1, abs=1e-4)
    assert leakage.hsic(x, x) == pytest.approx(1, abs=1e-6)
    for measure in (leakage.distance_correlation, leakage.hsic, leakage.constrained_covariance):
        own, other = float(measure(x, torch.tanh(x))), float(measure(x, noise(300, seed=9)))
        assert own > 3 * other, measure.__name__


def test_its_gradient_points_to_less_correlation_and_is_finite_where_rows_are_equal():
    x = noise(60)
    z = x.clone().requires_grad_()
    leakage.distance_correlation(x, z).backward()
    assert torch.isfinite(z.grad).all()
    free = torch.randn(60, 3, generator=torch.Generator().manual_seed(3))
    z = (x + 0.5 * free).requires_grad_()
    before = leakage.distance_correlation(x, z)
    before.backward()
    assert float(leakage.distance_correlation(x, z.detach() - 5 * z.grad)) < float(before.detach())
    z = torch.zeros(60, 3, requires_grad=True)
    leakage.distance_correlation(x, z).backward()
    assert torch.isfinite(z.grad).all()


def test_constrained_covariance_is_the_largest_covariance_of_functions_in_the_unit_balls():
    """By search: f = Σ α_i k(x_i, ·), g likewise, of norm at most 1; alternating maximization reaches COCO
    from below.
    """
    x, z = noise(30, 1).double(), noise(30, 1).double() * 1.0 + 0.3 * noise(30, 1, 4).double()
    K, L = (leakage._center(leakage._kernel(v)) for v in (x, z))
    best = 0.0
    for seed in range(3):
        b = noise(30, 1, seed).double()
        for _ in range(200):
            b = b / (b.T @ L @ b).sqrt()
            a = L @ b
            a = a / (a.T @ K @ a).sqrt()
            b = K @ a
        b = b / (b.T @ L @ b).sqrt()
        best = max(best, float(a.T @ K @ L @ b) / 30)
    assert leakage.constrained_covariance(x, z) == pytest.approx(best, rel=1e-3)


def test_mmd_is_zero_for_one_sample_and_grows_with_the_distance():
    x = noise(200)
    assert leakage.mmd(x, x) == pytest.approx(0, abs=1e-7)
    near, far = leakage.mmd(x, noise(200, seed=1)), leakage.mmd(x, noise(200, seed=1) + 2)
    assert near < 0.15 < 0.6 < far <= math.sqrt(2)


def test_kernel_target_alignment_of_labels_themselves_and_of_noise():
    y = torch.arange(90) % 3
    assert leakage.kernel_target_alignment(torch.nn.functional.one_hot(y).float(), y) == pytest.approx(
        1, abs=1e-6
    )
    assert abs(leakage.kernel_target_alignment(noise(90), y)) < 0.1
    with pytest.raises(BadData, match="all rows are of one class"):
        leakage.kernel_target_alignment(noise(9), torch.zeros(9))


def test_maximal_information_of_functions_and_of_noise():
    x = torch.linspace(-1, 1, 200)
    for f in (lambda v: v, lambda v: v**2, lambda v: torch.sin(6 * v)):
        assert leakage.maximal_information(x, f(x)) > 0.99
    assert leakage.maximal_information(noise(300, 1), noise(300, 1, 5)) < 0.35


def test_best_cuts_are_the_best_of_all_cuts():
    """Every way to cut 12 points into at most three columns, by brute force."""
    x, q = noise(12, 1)[:, 0].double(), torch.tensor([0, 1, 0, 1, 1, 0, 2, 2, 1, 0, 2, 1])
    order = x.argsort()

    def information(cuts):
        ends = [0, *cuts, 12]
        total = 0.0
        for a, b in itertools.pairwise(ends):
            part = q[order[a:b]]
            for k in range(3):
                joint = float((part == k).sum()) / 12
                if joint:
                    total += joint * math.log(joint / ((b - a) / 12 * float((q == k).sum()) / 12))
        return total

    found = leakage._best_cuts(x, q, 3, 15)
    assert found[2] == pytest.approx(max(information([c]) for c in range(1, 12)), abs=1e-9)
    assert found[3] == pytest.approx(
        max(information(list(c)) for c in itertools.combinations(range(1, 12), 2)), abs=1e-9
    )


def test_the_report_has_every_measure():
    x, y = noise(120), torch.arange(120) % 2
    made = leakage.report(x, x * 2, y)
    assert set(made) == {
        "distance_correlation",
        "hsic",
        "constrained_covariance",
        "maximal_information",
        "kernel_target_alignment",
        "mmd",
    }
    with pytest.raises(BadData, match="4 and 5 rows; both must have the same rows"):
        leakage.hsic(noise(4), noise(5))


def test_auc_is_the_share_of_pairs_ranked_right():
    score, yes = torch.tensor([0.1, 0.4, 0.35, 0.8, 0.4]), torch.tensor([0, 0, 1, 1, 1])
    pairs = [(a > b) + 0.5 * (a == b) for a in score[yes == 1].tolist() for b in score[yes == 0].tolist()]
    assert leakage.auc(score, yes) == pytest.approx(sum(pairs) / len(pairs))


def gradients(p=0.1, n=400):
    """Of logistic regression at its start: (σ − y)·w, long and one-sided for the rarer class."""
    g = torch.Generator().manual_seed(0)
    y = (torch.rand(n, generator=g) < p).long()
    sigma = p + 0.02 * torch.randn(n, generator=g)
    return (sigma - y)[:, None] * torch.tensor([[1.0, -2.0, 0.5, 1.0]]) + 0.01 * torch.randn(
        n, 4, generator=g
    ), y


def test_gradients_give_labels_away_and_protection_takes_them_back():
    from tacit.parties.secret import SeededSecret
    from tacit.protocols.splitnn_guards import IsoNoise, Marvell, MaskGradients, MaxNorm

    g, y = gradients()
    bare = labels.attack(g, y)
    assert min(bare.values()) > 0.95
    secret = SeededSecret(0)
    assert labels.norm_attack(MaxNorm().out(g, y, secret), y) < 0.8
    assert max(labels.attack(Marvell(50.0).out(g, y, secret), y).values()) < 0.75
    assert max(labels.attack(IsoNoise(20.0).out(g, y, secret), y).values()) < 0.75
    assert labels.norm_attack(MaskGradients(0.25).out(g, y, secret), y) < bare["norm"]


def test_label_attacks_need_two_classes_and_a_row_of_the_rarer():
    g, y = gradients()
    with pytest.raises(
        BadData, match="of 3 classes; there must be as many labels as gradients, and two classes"
    ):
        labels.norm_attack(g, torch.arange(400) % 3)
    common = int((y == 0).nonzero()[0])
    with pytest.raises(BadData, match="is not of the minority class"):
        labels.direction_attack(g, y, known=common)
    assert labels.direction_attack(g, y, known=int((y == 1).nonzero()[0])) > 0.95
