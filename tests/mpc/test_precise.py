"""Functions with 24 correct bits, a permutation that one party knows, and scores that add up under masks."""

from __future__ import annotations

import functools

import pytest
import torch

from tacit.errors import BadData, PartyFailed
from tacit.mpc import hazards, precise, shuffle
from tacit.mpc.joint_score import add_scores
from tacit.mpc.share import reconstruct
from tacit.parties import decode
from tacit.parties.conformance import Tap
from tacit.runtimes import InProcess

from .at_table import play, value


def words(x: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.round(x * 2.0**bits).long()


def test_exponential_is_clamped_and_unbiased():
    """Rounding errors are unbiased: their mean over 2,000 values is six deviations below 1/5 of a unit."""
    x = torch.linspace(-20, 9, 2000).double()
    got = value(precise.exponential, words(x, precise.ARG)).double() / 2.0**precise.MEAN
    error = (got - x.clamp(-16, 8).exp()) / (2.0**-24 + 2.0**-22 * x.clamp(-16, 8).exp())
    assert float(error.abs().max()) < 3
    assert abs(float(error.mean())) < 0.2


def test_sigmoid_and_its_slope():
    x = torch.linspace(-25, 25, 2000).double()
    mean, slope = (
        reconstruct([party[k] for party in play(precise.sigmoid, words(x, precise.ARG))]).double() / 2.0**24
        for k in range(2)
    )
    true = torch.sigmoid(x)
    assert float((mean - true).abs().max()) < 2.0**-21
    assert float((slope - true * (1 - true)).abs().max()) < 2.0**-21
    assert abs(float((mean - true).mean())) < 2.0**-25


def test_softmax_and_reciprocal():
    x = torch.randn(500, 5, generator=torch.Generator().manual_seed(0)).double() * 4
    got = value(precise.softmax, words(x, precise.ARG)).double() / 2.0**precise.MEAN
    assert float((got - x.softmax(-1)).abs().max()) < 2.0**-20
    x = torch.exp2(torch.linspace(-6, 21.9, 1000).double())
    got = value(precise.reciprocal, words(x, precise.MEAN)).double() / 2.0**precise.OVER
    rounded = words(x, precise.MEAN).double() / 2.0**precise.MEAN
    assert float(((got - 1 / rounded).abs() / (2.0**-29 + 2.0**-22 / rounded)).max()) < 1


def test_logarithms():
    x = torch.exp2(torch.linspace(-6, 21.9, 1000).double())
    got = value(precise.logarithm, words(x, precise.MEAN)).double() / 2.0**precise.MEAN
    error = got - (words(x, precise.MEAN).double() / 2.0**precise.MEAN).log()
    assert float(error.abs().max()) < 2.0**-20
    assert abs(float(error.mean())) < 2.0**-23
    x = torch.linspace(-25, 25, 1000).double()
    got = value(precise.softplus, words(x, precise.ARG)).double() / 2.0**precise.MEAN
    assert float((got - torch.nn.functional.softplus(x)).abs().max()) < 2.0**-20
    x = torch.randn(500, 5, generator=torch.Generator().manual_seed(0)).double() * 4
    got = value(precise.log_sum, words(x, precise.ARG)).double() / 2.0**precise.MEAN
    assert float((got - x.logsumexp(-1)).abs().max()) < 2.0**-20


@pytest.mark.parametrize("owner", [0, 2])
def test_rows_are_permuted_by_an_order_that_one_party_knows(owner):
    x = torch.arange(60).reshape(20, 3) * 1000
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))

    async def step(ctx, x):
        return await shuffle.permute(ctx, "keys", x, order if ctx.rank == owner else None, owner)

    assert torch.equal(value(step, x, parties=3), x[order])


def test_times_are_encoded_with_ties_and_censored_rows_last():
    """Times 5 (a death), 3 (two deaths, one censored), 1 (censored), worked by hand."""
    time = torch.tensor([5.0, 3, 3, 1, 3], dtype=torch.float64)
    event = torch.tensor([1.0, 1, 0, 0, 1], dtype=torch.float64)
    one = torch.ones_like(time)
    rows, order, ties, _ = hazards.encode_times(time, event, True, one)
    assert ties == 1  # two deaths at one time: one bit
    assert order.tolist() == [3, 1, 4, 2, 0]
    assert rows[1].tolist() == [0, 1, 1, 0, 1]
    assert (rows[2].double() / 2.0**20).tolist() == [0, 0, 0.5, 0, 0]  # l/d
    assert rows[3].tolist() == [0, 0, 1, 0, 0]  # l
    assert rows[4].tolist() == [0, 1, 0, 0, 0]  # d − 1 − l
    rows, _, ties, _ = hazards.encode_times(time, event, False, one)
    assert ties == hazards.BRESLOW
    assert rows[1].tolist() == [0, 2, 0, 0, 1]  # deaths, at the first row of each time


def test_scores_add_up_and_the_receiver_sees_masks_only():
    scores = {
        name: torch.randn(30, 2, generator=torch.Generator().manual_seed(k)).double()
        for k, name in enumerate("abc")
    }

    async def party(me, own):
        return await add_scores(me, ["a", "b", "c"], "a", own)

    tap = Tap()
    got = InProcess().run_sync(tap.on({n: functools.partial(party, own=s) for n, s in scores.items()}))
    assert torch.allclose(got["a"], sum(scores.values()), atol=1e-8)
    assert got["b"] is None
    seen = {by: decode(frame).values for by, to, _, frame in tap.frames if to == "a"}
    assert sorted(seen) == ["b", "c"]
    # each masked word is uniform: all 60 of one party within 2^40 of its score never happens
    for name, masked in seen.items():
        assert (masked - words(scores[name], 32)).abs().max() > 2**40


def test_scores_of_another_shape_or_out_of_range_are_refused():
    async def party(me, own):
        return await add_scores(me, ["a", "b"], "a", own)

    with pytest.raises(PartyFailed, match=r"'b' sent scores of shape \(4, 1\); expected \(5, 1\)"):
        InProcess().run_sync(
            {
                "a": functools.partial(party, own=torch.zeros(5, 1)),
                "b": functools.partial(party, own=torch.zeros(4, 1)),
            }
        )
    with pytest.raises((PartyFailed, BadData), match="a score of 'b' is not a number below"):
        InProcess().run_sync(
            {
                "a": functools.partial(party, own=torch.zeros(1, 1)),
                "b": functools.partial(party, own=torch.full((1, 1), torch.nan)),
            }
        )
