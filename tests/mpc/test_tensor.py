from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.errors import BadData, BadParameter

share = tacit.mpc.share


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.floats(-1000, 1000), st.floats(-1000, 1000)), min_size=1, max_size=6),
    st.integers(2, 4),
)
def test_operators_against_plain_numbers(pairs, parties):
    x, y = (torch.tensor(v, dtype=torch.float64) for v in zip(*pairs))
    a, b = share(x, parties), share(y, parties)
    for made, wanted in [
        (a + b, x + y),
        (a - b, x - y),
        (a + 1.5, x + 1.5),
        (2 - a, 2 - x),
        (-a, -x),
        (a * 0.5, x * 0.5),
        (a.relu(), x.relu()),
    ]:
        assert (made.open() - wanted).abs().max() < 2e-4
    assert ((a * b).open() - x * y).abs().max() < 0.2  # 1000 · half a unit, twice, and float32
    assert abs(float((a.reshape(1, -1) @ b.reshape(-1, 1)).open()) - float(x @ y)) < 1


def test_the_names_others_call():
    x = torch.tensor([[1.0, 2.0, 0.5], [4.0, -1.0, 4.0]])
    a = share(x, parties=2)
    assert torch.allclose(a.sigmoid().open(), x.sigmoid(), atol=2e-4)
    assert torch.allclose(a.softmax(-1).open(), x.softmax(-1), atol=3e-4)
    assert torch.allclose(a.reciprocal().open(), 1 / x, atol=3e-4)
    assert a.argmax(-1).open().tolist() == [1, 0]
    assert torch.allclose((a @ torch.eye(3)).open(), x, atol=1e-4)
    assert torch.allclose((a / share(torch.full((2, 3), 4.0))).open(), x / 4, atol=3e-4)
    assert torch.allclose((2 / a).open(), 2 / x, atol=3e-4)
    assert torch.allclose(a.max(0).open(), x.max(0).values)
    assert a.shape == (2, 3)
    assert repr(a) == "<SharedTensor [2, 3] between 2 parties>"


def test_no_party_saw_the_value_until_it_was_opened():
    a = share(torch.tensor([3.0])) * share(torch.tensor([2.0]))
    assert "OutputShare" not in {line.kind for line in a.ledger.seen}
    a.open()
    assert {line.kind for line in a.ledger.seen} >= {"MaskedFactors", "MaskedProducts", "OutputShare"}


@pytest.mark.parametrize("parties", [1, 0, True, 2.0, "two"])
def test_too_few_parties_are_refused(parties):
    with pytest.raises(
        BadParameter, match=r"mpc\.share: parties is .*; it must be a whole number of at least 2"
    ):
        share(torch.ones(1), parties)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(BadData, match="cannot be combined: parties, fractional bits"):
        share(torch.ones(1), 2) + share(torch.ones(1), 3)
    with pytest.raises(BadData, match="cannot be combined"):
        share(torch.tensor(1.0)) * share(torch.ones(2)).argmax()
    with pytest.raises(BadData, match="is an index, without fractional bits"):
        share(torch.ones(2)).argmax() + 1
    with pytest.raises(BadData, match=r"shapes \[2, 3\] and \[2, 3\] do not match for this operation"):
        share(torch.ones(2, 3)) @ share(torch.ones(2, 3))
    with pytest.raises(BadData, match="the public summand is str, not numbers"):
        share(torch.ones(2)) + "x"
    with pytest.raises(BadData, match="numbers are not within"):
        share(torch.tensor([2.0**40]))


def test_more_fractional_bits_are_more_precise():
    x = torch.rand(200, dtype=torch.float64)
    errors = [
        float(((share(x, fraction=f) * share(x, fraction=f)).open() - x * x).abs().max()) for f in (12, 18)
    ]
    assert errors[1] < 1e-5 < errors[0]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("divisor", [1, 2, -3, 7.5, 3000, -1e5])
def test_division_by_a_public_number_keeps_its_digits(divisor, checked):
    """1/3000 in 16 fractional bits is 22 units, 0.7% off; within two units of the last place, and 2^-16 of
    the value, it must be right.
    """
    x = torch.tensor([3e6, -7.0, 0.5, 1e5])
    error = ((share(x, checked=checked) / divisor).open().double() - x.double() / divisor).abs()
    assert (error <= 2**-14 + 2**-16 * (x.double() / divisor).abs()).all()


@pytest.mark.parametrize("checked", [False, True])
def test_summands_that_do_not_fit_are_refused(checked):
    with pytest.raises(BadData, match=r"shapes \[2\] and \[3\] cannot be added"):
        share(torch.ones(2), checked=checked) + share(torch.ones(3), checked=checked)


@pytest.mark.parametrize("checked", [False, True])
def test_comparisons_give_shared_ones_and_zeros(checked):
    x, y = torch.tensor([[1.0, -2.0, 3.5], [0.0, 7.0, -1.0]]), torch.tensor([1.0, 0.0, 3.5])
    a, b = share(x, checked=checked), share(y, checked=checked)
    for made, wanted in [
        (a >= b, x >= y),
        (a <= b, x <= y),
        (a > b, x > y),
        (a < 0.5, x < 0.5),
        (a == b, x == y),
        (a != y, x != y),
        (a <= 3.5, x <= 3.5),
    ]:
        assert made.open().tolist() == wanted.float().tolist()
    assert ((a > 0) * a).open().tolist() == x.relu().tolist()
    with pytest.raises(BadData, match="is secret, so a program cannot branch on it"):
        bool(a > b)


@pytest.mark.parametrize("checked", [False, True])
def test_shared_tensors_are_joined_by_torch(checked):
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -4.0]])
    a, b = share(x, checked=checked), share(y, checked=checked)
    assert torch.cat([a, b]).open().tolist() == [[1.0, 2.0], [3.0, -4.0]]
    assert torch.cat([a, b, a], dim=-1).open().tolist() == [[1.0, 2.0, 3.0, -4.0, 1.0, 2.0]]
    assert torch.stack([a, b], -1).open().tolist() == [[[1.0, 3.0], [2.0, -4.0]]]
    with pytest.raises(BadData, match=r"torch\.cat joins tensors that are all shared"):
        torch.cat([a, y])
    with pytest.raises(TypeError):
        torch.sin(a)


@pytest.mark.parametrize("checked", [False, True])
def test_norms_and_activations_of_shared_tensors(checked):
    x = torch.tensor([[0.5, -1.5, 3.0, 0.25], [1.0, 2.0, -3.0, 4.0]])
    a = share(x, checked=checked)
    for made, wanted in [
        (a.silu(), torch.nn.functional.silu(x)),
        (a.leaky_relu(0.2), torch.nn.functional.leaky_relu(x, 0.2)),
        (a.layer_norm(), torch.nn.functional.layer_norm(x, (4,))),
        (a.rms_norm(), torch.nn.functional.rms_norm(x, (4,), eps=1e-6)),
        ((a * a + 1).rsqrt(), (x * x + 1).rsqrt()),
    ]:
        assert (made.open() - wanted).abs().max() < 1e-3
