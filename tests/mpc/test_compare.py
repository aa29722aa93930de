from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.mpc.compare import argmax, sign
from tacit.mpc.functions import largest
from tacit.mpc.share import reconstruct

from .at_table import play, value
from .by_bits import by_bits

VALUE = st.one_of(st.integers(-(2**48) + 1, 2**48 - 1), st.integers(-3, 3))


def signs(x, parties=2):
    made = play(sign, x, parties=parties)
    return reconstruct([m.bit for m in made]), reconstruct([m.positive for m in made])


@settings(deadline=None, max_examples=40)
@given(st.lists(VALUE, min_size=1, max_size=20), st.integers(2, 4))
def test_signs_and_positive_parts_are_exact(values, parties):
    x = torch.tensor(values)
    bit, positive = signs(x, parties)
    assert torch.equal(bit, (x >= 0).long())
    assert torch.equal(positive, x.clamp(min=0))


def test_all_magnitudes_and_a_shape():
    x = torch.tensor([[s * (2**k + d) for k in range(1, 47) for d in (-1, 0, 1)] for s in (1, -1)])
    bit, positive = signs(x)
    assert torch.equal(bit, (x >= 0).long())
    assert torch.equal(positive, x.clamp(min=0))


@settings(deadline=None, max_examples=10)
@given(st.lists(VALUE, min_size=1, max_size=20), st.integers(2, 3))
def test_the_reference_by_single_bits_says_the_same(values, parties):
    x = torch.tensor(values)
    assert torch.equal(value(by_bits, x, parties=parties), (x >= 0).long())


def test_many_at_once():
    x = torch.randint(-(2**40), 2**40, (100_003,), generator=torch.Generator().manual_seed(1))
    bit, positive = signs(x)
    assert torch.equal(bit, (x >= 0).long())
    assert torch.equal(positive, x.clamp(min=0))


def test_what_a_comparison_costs():
    """6 rounds; 8 bytes of c, 3 bits for each of 15 pairs of digits but 2 for the lowest of each level, and
    the sign: 8 + 41/8 + 1/8 = 13.25 bytes a value and party.
    """
    contexts = []
    play(sign, torch.arange(8000), contexts=contexts)
    assert [(c.rounds, c.bytes) for s in contexts for c in s.costs.values()] == [(6, 8000 * 13.25)] * 2


@settings(deadline=None, max_examples=15)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(st.integers(-4, 4), min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_maximum_and_argmax_and_the_first_of_equals(rows):
    x = torch.tensor(rows)
    assert torch.equal(value(largest, x), x.max(-1).values)
    first = torch.tensor([row.index(max(row)) for row in rows])
    assert torch.equal(value(argmax, x), first)


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_any_number_of_parties_agrees(parties):
    x = torch.tensor([3, -1, 7, 7, 0])
    assert int(value(argmax, x, parties=parties)) == 2
