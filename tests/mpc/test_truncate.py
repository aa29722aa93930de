from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PartyFailed
from tacit.mpc.ring import unpack
from tacit.mpc.share import reconstruct, split
from tacit.mpc.tape import Tape
from tacit.mpc.truncate import truncate
from tacit.parties import Ledger, decode
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret

from .at_table import play, play_on, value
from .by_bits import truncate_locally


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=8),
    st.integers(1, 24),
    st.integers(2, 4),
)
def test_it_is_never_more_than_one_unit_off(values, bits, parties):
    v = torch.tensor(values)
    made = value(lambda ctx, x: truncate(ctx, x, bits), v, parties=parties)
    assert ((made - (v >> bits)) >= 0).all()
    assert ((made - (v >> bits)) <= 1).all()


def test_at_the_edge_of_the_range_it_never_fails():
    """Local truncation would be wrong for half of these: |v| / 2^64 = 1/4 each way."""
    v = torch.full((20_000,), 2**62 - 1)
    for sense in (1, -1):
        made = value(truncate, sense * v)
        assert ((made - (sense * v >> 16)).abs() <= 1).all()


def test_it_is_right_on_average():
    """v / 2^16 = 0.25: up with probability 1/4. False alarm below 1e-9 (six standard deviations of 200,000
    draws).
    """
    made = value(truncate, torch.full((200_000,), 2**14))
    assert abs(float(made.double().mean()) - 0.25) < 6 * (0.25 * 0.75 / 200_000) ** 0.5


@pytest.mark.parametrize(("parties", "sent", "dealt"), [(2, 125, 2000), (3, 2 * 8000, 10_000)])
def test_it_takes_one_round_and_for_two_parties_one_bit_a_value_and_party(parties, sent, dealt):
    contexts, ledger = [], Ledger()
    play(truncate, torch.arange(1000), contexts=contexts, parties=parties, ledger=ledger)
    assert [(c.rounds, c.bytes) for s in contexts for c in s.costs.values()] == [(1, sent)] * parties
    (corrections,) = [line.bytes for line in ledger.seen if line.kind == "Corrections"]
    assert 0 <= corrections - dealt < 200  # the frame


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(-(2**62), 2**62 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=9
    ),
    st.sampled_from([1, 8, 16, 17, 22, 32]),
)
def test_two_parties_are_within_a_unit_for_any_shares_and_exact_for_multiples(pairs, bits):
    """By hand, in integers without a limit: any first share, also 0 and the ends of the ring."""
    v, first = (torch.tensor(t) for t in zip(*pairs))
    for secret in (v, (v >> bits) << bits):
        got = reconstruct(play_on(lambda ctx, x: truncate(ctx, x, bits), [first, secret - first])).tolist()
        for mine, true in zip(got, secret.tolist()):
            assert abs(mine * 2**bits - true) < 2**bits
        if secret is not v:
            assert got == (secret >> bits).tolist()


def test_what_two_parties_send_to_truncate_is_a_bit_under_a_mask(monkeypatch):
    """Without masks party 1 is sent A = 1 − top bit of v_0 + 2^62, and party 0 the top bit of −v_1; with them
    the bits agree with that in half of 4,000 cases (six standard deviations: a false alarm below 1e-8).
    """
    shares = [torch.arange(4000) << 50, torch.arange(4000) << 49]
    plain = [shares[0] + (1 << 62) >= 0, -shares[1] < 0]
    for is_masked in (True, False):
        if not is_masked:
            monkeypatch.setattr(
                Tape, "draw", lambda self, shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype)
            )
        tap = Tap()
        play_on(truncate, shares, tap=tap)
        for sender, to, secret in ((0, 1, plain[0]), (1, 0, plain[1])):
            (sent,) = [
                m.values[0]
                for by, at, _, frame in tap.frames
                if (by, at) == (f"party {sender}", f"party {to}")
                and (m := decode(frame)).kind == "MaskedProducts"
            ]
            assert sent.dtype is torch.uint8
            agree = int((unpack(sent, 4000).bool() == secret).sum())
            assert abs(agree - 2000) < 6 * 1000**0.5 if is_masked else agree == 4000


def test_local_truncation_fails_with_the_stated_probability():
    """|v| / 2^64 for v = 2^58 is 1/64; 100,000 draws: 1,562 ± 39. False alarm below 1e-9 at six deviations.
    This is why nothing here uses it.
    """
    n, v = 100_000, 2**58
    shares = split(torch.full((n,), v), 2, Secret())
    made = truncate_locally(shares[0], 0, 16) + truncate_locally(shares[1], 1, 16)
    wrong = int(((made - (v >> 16)).abs() > 1).sum())
    assert abs(wrong - n / 64) < 6 * (n / 64) ** 0.5


def test_local_truncation_is_wrong_for_three_parties():
    shares = split(torch.full((1000,), 2**20), 3, Secret())
    made = (
        truncate_locally(shares[0], 0, 16)
        + truncate_locally(shares[1], 1, 16)
        + truncate_locally(shares[2], 1, 16)
    )
    assert (
        float(((made - 16).abs() > 1).double().mean()) > 0.1
    )  # 1/4 or so of 1,000: chance of fewer than 100 below 1e-20


def test_debug_mode_sees_a_value_that_would_wrap():
    with pytest.raises(PartyFailed, match=r"a truncation got values from .* its domain is"):
        play(truncate, torch.tensor([2**62 + 2**40]), debug=True)
