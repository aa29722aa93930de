"""LightSecAgg: the sum is exact for any dropouts, in one recovery, and T pieces reveal nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit import testing
from tacit.crypto import field
from tacit.errors import BadParameter, PartyFailed
from tacit.parameters import check
from tacit.parties.codec import decode, encode
from tacit.parties.conformance import Tap
from tacit.protocols import lightsecagg
from tacit.protocols.lightsecagg import LightSecAggTerms, SummedShares, SumOutcome, ideal

from .masked import aggregate, inputs, names_of, programs

STEPS = ("key exchange", "sharing", "upload", "recovery")
ALARM = 1e-9  # probability of a false alarm of each statistical test


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_sum_is_exact_in_the_field_whichever_party_drops_at_any_step(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 9), label="parties")
    terms = LightSecAggTerms(
        "fed",
        n,
        data.draw(st.integers(1, 40)),
        data.draw(st.sampled_from([1, 100, 2**15, 2**27])),
        data.draw(st.sampled_from([0.7, 0.9, 1.0])),
        data.draw(st.sampled_from([0.0, 0.3, 0.5])),
    )
    leave = data.draw(st.dictionaries(st.sampled_from(names_of(n)), st.integers(0, 3)), label="leaves after")
    values = inputs(terms, data.draw(st.integers(0, 1000)))
    if min(sum(leave.get(name, 99) > step for name in values) for step in range(4)) < terms.enough:
        with pytest.raises(
            PartyFailed,
            match=r"party 'server' failed: SumAborted: secure aggregation was aborted, and no update was "
            r"opened\.",
        ):
            aggregate(terms, values, leave, protocol=lightsecagg)
        return
    outcome, clients = aggregate(terms, values, leave, protocol=lightsecagg)
    assert list(outcome.included) == [name for name in values if leave.get(name, 99) >= 3]
    assert torch.equal(outcome.total, ideal(values, outcome.included))
    assert outcome.dropped == {name: STEPS[at] for name, at in leave.items()}
    assert clients == {name: None if name in leave else True for name in values}


def test_it_is_a_protocol() -> None:
    terms = LightSecAggTerms("fed", 4, 9, 1000, threshold=0.75)
    testing.check_protocol(
        lambda seed: programs(terms, inputs(terms, seed), lightsecagg),
        lambda seed: {
            "server": SumOutcome(ideal(inputs(terms, seed)), tuple(names_of(4)), {}),
            **dict.fromkeys(names_of(4), True),
        },
        [0, 1],
    )


def test_worked_by_hand() -> None:
    """N = 3, U = 2, T = 1, d = 1: one piece z at 1 and one random r at 2, so f(x) = z + (r − z)(x − 1), and
    party j, at 3 + j, gets f(3 + j) = −(1 + j)·z + (2 + j)·r.
    """
    terms = LightSecAggTerms("fed", 3, 1, 10, threshold=0.6, colluding=0.4)
    assert (terms.enough, terms.private, terms.piece) == (2, 1, 1)
    assert lightsecagg._code(terms, 3) == [[field.Q - 1, 2], [field.Q - 2, 3], [field.Q - 3, 4]]


@pytest.mark.parametrize(("n", "threshold", "colluding"), [(4, 0.75, 0.5), (7, 0.8, 0.3), (10, 0.7, 0.5)])
def test_any_t_pieces_are_uniform_whatever_the_mask(n: int, threshold: float, colluding: float) -> None:
    """The T × T part of the code that multiplies the random pieces is invertible for every choice of T
    parties: T-privacy exactly, not statistically.
    """
    from itertools import combinations

    terms = LightSecAggTerms("fed", n, 10, 10, threshold, colluding)
    code = lightsecagg._code(terms, n)
    t = terms.private
    for some in combinations(range(n), t):
        rows = [[code[j][k] for k in range(terms.enough - t, terms.enough)] for j in some]
        assert determinant(rows) != 0


def determinant(rows: list[list[int]]) -> int:
    rows, value = [list(r) for r in rows], 1
    for i in range(len(rows)):
        pivot = next((j for j in range(i, len(rows)) if rows[j][i]), None)
        if pivot is None:
            return 0
        rows[i], rows[pivot] = rows[pivot], rows[i]
        value = value * rows[i][i] % field.Q
        inverse = pow(rows[i][i], -1, field.Q)
        for j in range(i + 1, len(rows)):
            factor = rows[j][i] * inverse % field.Q
            rows[j] = [(a - factor * b) % field.Q for a, b in zip(rows[j], rows[i])]
    return value


def test_a_masked_vector_looks_uniform() -> None:
    """χ² on the highest 8 bits of 30,000 equal numbers, 255 degrees of freedom."""
    terms, tap = LightSecAggTerms("fed", 3, 30_000, 10, threshold=0.7, colluding=0.4), Tap()
    aggregate(terms, {name: torch.full((30_000,), 10) for name in names_of(3)}, protocol=lightsecagg, tap=tap)
    for _, to, _, frame in tap.frames:
        message = decode(frame)
        if to == "server" and isinstance(message, lightsecagg.MaskedVector):
            assert (
                stats.chisquare(
                    np.bincount(message.packed.numpy().view(np.uint32) >> 24, minlength=256)
                ).pvalue
                > ALARM / 3
            )


def test_a_piece_is_a_share_of_the_vector() -> None:
    terms = LightSecAggTerms("fed", 10, 1000, 10)
    assert (terms.enough, terms.private) == (7, 5)
    assert terms.piece == 500 == math.ceil(1000 / 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"colluding": 0.8},
            "LightSecAgg: threshold is 0.7; .* more must stay than may collude: of 10 parties 7 must stay "
            "and 8 may collude",
        ),
        ({"bound": 2**28}, r"LightSecAgg: the range of a sum is '±2684354560'; it must be below 2\^31"),
        (
            {"threshold": 0.5},
            r"LightSecAggTerms: threshold is 0\.5; it must be a number above 0\.5 and at most 1",
        ),
    ],
)
def test_terms_that_cannot_work_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        check(LightSecAggTerms(**({"federation": "fed", "parties": 10, "length": 3, "bound": 10} | change)))


def test_every_message_survives_the_wire() -> None:
    message = SummedShares(torch.arange(3).to(torch.uint32))
    assert decode(encode(message)) == message
