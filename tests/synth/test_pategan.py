"""PATE-GAN: what its answers cost, that a row reaches one vote an answer at most, and that the votes
teach.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from tacit.accounting import discrete
from tacit.errors import BadParameter
from tacit.parties.secret import Secret, SeededSecret
from tacit.private.pate import GNMax, LNMax
from tacit.synth import PATEGAN, categorical
from tacit.synth.pategan import Kernel, Teachers, fit_student, harden, rake

SIZES = (3, 4, 2)
SHARES = [np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.6, 0.4])]


def indicators(codes: np.ndarray) -> torch.Tensor:
    return torch.cat(
        [functional.one_hot(torch.from_numpy(codes[:, j]), size) for j, size in enumerate(SIZES)], dim=1
    ).double()


def independent(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.choice(len(p), n, p=p) for p in SHARES])


def dependent(n: int, rng: np.random.Generator) -> np.ndarray:
    """The same shares, but the third column follows from the second."""
    codes = independent(n, rng)
    codes[:, 2] = (codes[:, 1] >= 2) | ((codes[:, 1] == 1) & (rng.random(n) < 1 / 3))
    return codes


def test_everything_that_touches_rows_is_noise_that_was_paid_for(monkeypatch):
    """All noise goes through one function: what it was asked for adds up to the budget, by hand. One row is
    in one cell of each of 2 columns, and in one vote of each of 5 · 30 answers.
    """
    asked = []

    def heard(variance, n, source):
        asked.append((variance, n))
        return discrete_gaussian(variance, n, source)

    discrete_gaussian = discrete.gaussian
    monkeypatch.setattr(discrete, "gaussian", heard)
    frame = pd.DataFrame({"a": np.arange(300) % 3, "b": np.arange(300) % 2})
    generator = PATEGAN(epsilon=0.7, delta=1e-6, rounds=5, queries=30, steps=1)
    (spent,) = generator.fit(frame, {"a": categorical(range(3)), "b": categorical(range(2))}).ledger.spent
    (counting, cells), *answers = asked
    assert cells == 5
    assert [n for _, n in answers] == [30] * 5
    rho = 2 / (2 * float(counting)) + sum(n / (2 * float(variance)) for variance, n in answers)
    assert rho <= discrete.rho_of(0.7, 1e-6)
    assert spent.epsilon == pytest.approx(discrete.epsilon_of(rho, 1e-6))
    assert 0.695 < spent.epsilon <= 0.7


def test_an_answer_costs_half_of_gnmax_and_less_than_the_papers_laplace_votes_of_the_same_deviation():
    sigma, answers, delta = 272.0, 2000, 1e-9
    ours = discrete.epsilon_of(answers / (2 * sigma**2), delta)
    assert answers / (2 * sigma**2) == pytest.approx(GNMax(sigma).price(answers, answers) / 2)
    assert ours < 0.75 * GNMax(sigma).epsilon(answers, answers, delta)
    assert ours < 0.75 * LNMax(math.sqrt(2) / sigma).epsilon(answers, answers, delta)


def test_a_row_more_changes_one_vote_of_each_answer_at_most_and_no_other_teachers():
    rng = np.random.default_rng(0)
    rows, made = indicators(dependent(301, rng)), indicators(independent(500, rng))
    kernel, k = Kernel(SHARES), 20
    secret = SeededSecret(5)
    whole, less = (Teachers(part, k, SeededSecret(5), kernel).votes(made, made) for part in (rows, rows[:-1]))
    assert torch.equal(
        Teachers(rows, k, secret, kernel).owners[:-1], Teachers(rows[:-1], k, SeededSecret(5), kernel).owners
    )
    assert np.abs(whole - less).max() == 1
    assert 0 <= whole.min() <= whole.max() <= k


def test_votes_are_exact_so_the_order_of_rows_and_the_size_of_blocks_do_not_reach_them(monkeypatch):
    rng = np.random.default_rng(1)
    rows, made = indicators(dependent(200, rng)), indicators(independent(300, rng))
    kernel = Kernel(SHARES)
    alike = kernel(kernel.center(rows), kernel.center(made))
    assert torch.equal(alike, alike.round())
    teachers = Teachers(rows, 7, Secret(), kernel)
    first = teachers.votes(made, made)
    order = torch.randperm(len(rows))
    teachers.rows, teachers.owners = teachers.rows[order], teachers.owners[order]
    monkeypatch.setattr("tacit.synth.pategan.ENTRIES", 1000)
    assert np.array_equal(teachers.votes(made, made), first)


def test_the_kernel_is_the_sum_over_pairs_of_columns():
    rng = np.random.default_rng(2)
    kernel = Kernel(SHARES)
    a, b = (kernel.center(indicators(independent(5, rng))) for _ in range(2))
    each = [x @ y.T for x, y in zip(a.split(list(SIZES), 1), b.split(list(SIZES), 1))]
    by_hand = 2 * (each[0] * each[1] + each[0] * each[2] + each[1] * each[2])
    assert torch.equal(kernel(a, b), by_hand)


def test_teachers_vote_for_rows_that_are_likelier_among_real_ones():
    """200 votes, by rows that the operating system's randomness divides: 167 and 35 with a deviation of 4."""
    rng = np.random.default_rng(3)
    kernel, made = Kernel(SHARES), indicators(independent(2000, rng))
    teachers = Teachers(indicators(dependent(4000, rng)), 200, Secret(), kernel)
    real, wrong = np.array([[0, 0, 0], [1, 3, 1]]), np.array([[0, 0, 1], [1, 3, 0]])
    assert teachers.votes(indicators(real), made).min() > 130
    assert teachers.votes(indicators(wrong), made).max() < 70


def test_a_student_of_noise_predicts_nothing_and_one_of_signal_predicts_the_votes():
    """Everything from a seed. Noise of deviation 0.1 in 20 draws: what the student makes of it stays below a
    third of that, and mostly at nothing.
    """
    rng = np.random.default_rng(4)
    kernel = Kernel(SHARES)
    asked, fresh = indicators(independent(300, rng)), indicators(independent(300, rng))
    spreads = [
        float(
            fit_student(kernel, asked, torch.from_numpy(0.5 + 0.1 * rng.standard_normal(300)), 0.01)(
                fresh
            ).std()
        )
        for _ in range(20)
    ]
    assert max(spreads) < 0.033
    assert np.median(spreads) < 0.01
    truth = lambda rows: 0.3 * ((rows[:, 3:7].argmax(1) > 1) == (rows[:, 8] > 0)).double()  # noqa: E731
    verdict = fit_student(
        kernel, asked, truth(asked) + 0.1 * torch.from_numpy(rng.standard_normal(300)), 0.01
    )
    assert float(torch.corrcoef(torch.stack([verdict(fresh), truth(fresh)]))[0, 1]) > 0.8


def test_weights_are_put_right_until_columns_have_their_shares():
    rng = np.random.default_rng(5)
    rows = indicators(np.column_stack([rng.integers(0, size, 500) for size in SIZES]))
    weight = rake(torch.rand(500, dtype=torch.float64) + 0.1, rows, SHARES)
    assert float(weight.sum()) == pytest.approx(1)
    assert np.allclose((weight @ rows).numpy(), np.concatenate(SHARES), atol=1e-6)


def test_whole_cells_are_the_largest_of_each_column():
    assert harden(torch.tensor([[0.1, 0.7, 0.2, 0.4, 0.6]]), (3, 2)).tolist() == [[0, 1, 0, 0, 1]]


def test_votes_teach_what_single_columns_cannot_at_an_epsilon_of_1():
    """20,000 rows, two columns of 4 that mostly agree: independent columns are .42 off in the table of both.
    Runs without a seed differ; 10 of them were off by .093 to .128 (deviation .009), so .25 is beyond ten
    deviations for what learns, and out of reach for what does not.
    """
    rng = np.random.default_rng(6)
    a = rng.choice(4, 20_000, p=[0.4, 0.3, 0.2, 0.1])
    b = np.where(rng.random(20_000) < 0.6, a, rng.choice(4, 20_000, p=[0.4, 0.3, 0.2, 0.1]))
    frame = pd.DataFrame({"a": a, "b": b})
    made = (
        PATEGAN(rounds=4, queries=150, delta=1e-6)
        .fit(frame, {c: categorical(range(4)) for c in frame})
        .sample(20_000)
    )

    def both(t: pd.DataFrame) -> np.ndarray:
        return np.bincount(4 * t["a"].astype(int) + t["b"].astype(int), minlength=16) / len(t)

    alone = np.outer(np.bincount(a, minlength=4), np.bincount(b, minlength=4)).ravel() / 20_000**2
    assert 0.5 * np.abs(both(frame) - alone).sum() > 0.4
    assert 0.5 * np.abs(both(frame) - both(made)).sum() < 0.25


def test_sums_that_would_no_longer_be_exact_are_refused():
    frame = pd.DataFrame({"a": [0, 1] * 20, "b": [1, 0] * 20})
    with pytest.raises(
        BadParameter,
        match=r"PATEGAN: teacher_rows is 100000000; it must be at most 25,000,000 with 2 columns\. Larger "
        r"values would make the votes inexact",
    ):
        PATEGAN(teacher_rows=10**8).fit(frame, {c: categorical([0, 1]) for c in frame})
