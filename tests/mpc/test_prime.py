from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadData, ProtocolError
from tacit.mpc import prime
from tacit.mpc.beaver import Bilinear
from tacit.mpc.prime import FixedPointPrime, P

ELEMENT = st.one_of(st.integers(0, P - 1), st.sampled_from([0, 1, P - 1, P // 2, P // 2 + 1]))


@given(st.lists(st.tuples(ELEMENT, ELEMENT), min_size=1, max_size=8), st.integers(0, 130))
def test_arithmetic_is_that_of_whole_numbers_modulo_p(pairs, by):
    a, b = zip(*pairs)
    x, y = torch.tensor(a), torch.tensor(b)
    assert prime.add(x, y).tolist() == [(m + n) % P for m, n in pairs]
    assert prime.sub(x, y).tolist() == [(m - n) % P for m, n in pairs]
    assert prime.mul(x, y).tolist() == [m * n % P for m, n in pairs]
    assert prime.rotate(x, by).tolist() == [(m << by) % P for m in a]
    assert int(prime.total(x, 0)) == sum(a) % P


@settings(deadline=None, max_examples=10)
@given(st.lists(ELEMENT, min_size=12, max_size=12))
def test_matrix_products_are_exact(values):
    x, y = torch.tensor(values[:6]).reshape(2, 3), torch.tensor(values[6:]).reshape(3, 2)
    expected = [[sum(int(x[i, k]) * int(y[k, j]) for k in range(3)) % P for j in range(2)] for i in range(2)]
    assert prime.matmul(x, y).tolist() == expected


def test_long_sums_of_the_largest_elements_stay_exact():
    """(−1)·(−1) summed 2,500 times; every limb is full."""
    row = torch.full((1, 2500), P - 1)
    assert int(prime.matmul(row, row.T)) == 2500
    assert int(prime.matmul(row[0], row[0])) == 2500


def test_convolution_is_torchs():
    rng = torch.Generator().manual_seed(0)
    x, w = (
        torch.randint(0, 1000, (1, 2, 5, 5), generator=rng),
        torch.randint(0, 1000, (3, 2, 3, 3), generator=rng),
    )
    made = prime.bilinear(Bilinear("conv2d", ((1, 1), (1, 1), (1, 1), 1)), x, w)
    assert torch.equal(made, torch.nn.functional.conv2d(x.double(), w.double(), padding=1).long())


@given(st.floats(-6e7, 6e7))
def test_numbers_come_back_within_half_a_unit(x):
    fixed = FixedPointPrime()
    assert abs(float(fixed.decode(fixed.encode(torch.tensor(x, dtype=torch.float64)))) - x) <= 2**-17


def test_the_range_of_the_field_is_held_at_encoding():
    with pytest.raises(
        BadData,
        match=r"1 of 1 numbers are not within ±6.71089e\+07, the range of 16 fractional bits in the checked "
        r"mode's field of 61",
    ):
        FixedPointPrime().encode(torch.tensor(1e8))


@pytest.mark.parametrize("bad", [-1, P, 2**63 - 1])
def test_values_outside_the_field_are_refused(bad):
    with pytest.raises(ProtocolError, match="'b' sent numbers outside"):
        prime.check_elements(torch.tensor([0, bad]), "'b'")


def test_compiled_loops_compute_the_same(monkeypatch):
    edges = torch.tensor([0, 1, 2, 2**31, 2**32 - 1, 2**60, P - 2, P - 1])
    x = torch.cat([edges, torch.randint(0, P, (100,), generator=torch.Generator().manual_seed(1))])
    pairs = [(x[:, None], x[None]), (x, x.flip(0)), (x, torch.tensor(P - 1).expand_as(x))]
    for step in (prime.add, prime.sub, prime.mul):
        found = []
        for least in (1, 1 << 60):
            monkeypatch.setattr(prime, "COMPILED", least)
            found.append([step(a, b) for a, b in pairs])
            found[-1] += [prime.fold(x + x), prime.fold(torch.tensor([2**63 - 1]))]
            found[-1] += [prime.rotate(x[::3], by) for by in (0, 1, 21, 60, 84)]
        assert all(torch.equal(a, b) for a, b in zip(*found))


def draw(*shape, seed=0):
    return torch.randint(0, P, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (draw(3, 9), draw(9, 300, seed=1)),  # more columns than are added up together
        (draw(40, 6), draw(6, 2, seed=1)),  # more rows than columns
        (draw(2, 1, 3, 5), draw(4, 5, 6, seed=1)),
        (torch.full((2, 103), P - 1), torch.full((103, 3), P - 1)),  # every half is full
    ],
)
def test_compiled_matrix_products_are_exact(monkeypatch, x, y):
    monkeypatch.setattr(prime, "COMPILED", 1)
    expected = np.matmul(x.numpy().astype(object), y.numpy().astype(object)) % P
    assert prime.matmul(x, y).tolist() == expected.tolist()


def test_compiled_steps_of_the_check_and_of_comparisons_compute_the_same(monkeypatch):
    x, beta, beta_r = (draw(2, 3, 7, seed=k) for k in range(3))
    c, row, one = draw(3, 7, seed=3), np.array([0b10110001, 0xFF, 0b01010], np.uint8), draw(2, seed=4)
    words = torch.tensor([-1, 0, 7, 8, -8, -9, 2**63 - 1])
    found = []
    for least in (1, 1 << 60):
        monkeypatch.setattr(prime, "COMPILED", least)
        steps = [*prime.finish_sign(x, beta, beta_r, c, row, one), prime.from_words(words)]
        steps.append(prime.weigh_errors(c, x[0], torch.tensor(P - 2), beta[0].flatten()))
        found.append([step.tolist() for step in steps])
    assert found[0] == found[1]
    errors = zip(x[0].flatten().tolist(), c.flatten().tolist(), beta[0].flatten().tolist())
    assert found[0][-1] == sum((tag + 2 * value) * weight for tag, value, weight in errors) % P
