"""Secure aggregation: the sum is exact for any dropouts, and below the threshold there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import testing
from tacit.errors import BadData, BadParameter, PartyFailed
from tacit.parameters import check
from tacit.parties.codec import decode, encode
from tacit.parties.ledger import Ledger
from tacit.protocols import secagg
from tacit.protocols.secagg import SecAggTerms, SumOutcome, ideal
from tacit.protocols.secagg_graph import degree
from tacit.protocols.summing import RoundOver
from tacit.runtimes.inprocess import InProcess

from .masked import aggregate, inputs, names_of, programs

STEPS = {
    "curious": ("key exchange", "sharing", "upload", "unmasking"),
    "active": ("key exchange", "sharing", "upload", "consistency check", "unmasking"),
}
UPLOAD = 3  # a client that has sent so many messages is in the sum


@pytest.mark.parametrize(
    ("adversary", "threshold", "neighbors"),
    [("curious", 0.6, None), ("active", 0.7, None), ("curious", 0.6, 4)],
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_sum_is_exact_in_the_ring_whichever_party_drops_at_any_step(
    adversary: str, threshold: float, neighbors: int | None, data: st.DataObject
) -> None:
    """A client leaves after any number of messages; up to the threshold the sum is that of those whose vector
    came, else there is none.
    """
    n = data.draw(st.integers(3, 9), label="parties")
    terms = SecAggTerms(
        "fed",
        n,
        data.draw(st.integers(1, 40)),
        data.draw(st.sampled_from([1, 100, 2**15, 2**27])),
        threshold,
        neighbors,
        adversary,
    )
    leave = data.draw(
        st.dictionaries(st.sampled_from(names_of(n)), st.integers(0, len(STEPS[adversary]) - 1)),
        label="leaves after",
    )
    values = inputs(terms, data.draw(st.integers(0, 1000)))
    steps = STEPS[adversary]
    stay = [sum(leave.get(name, 99) > step for name in values) for step in range(len(steps))]
    if min(stay) < terms.enough:
        # on a sparse graph a client whose neighborhood lost too many may leave before the server notices
        words = (
            r"party 'server' failed: SumAborted: secure aggregation was aborted, and no update was opened\."
        )
        words = words if neighbors is None else "party '(server|c.)' failed"
        with pytest.raises(PartyFailed, match=words):
            aggregate(terms, values, leave)
        return
    try:
        outcome, clients = aggregate(terms, values, leave)
    except (
        PartyFailed
    ) as failed:  # on a sparse graph one neighborhood may have lost too many although enough stayed in all
        if neighbors is None or not failed.error.args[0].startswith(
            ("secure aggregation was aborted", "party 'c")
        ):
            raise
        return
    included = [name for name in values if leave.get(name, 99) >= UPLOAD]
    assert list(outcome.included) == included
    assert torch.equal(outcome.total, ideal(values, included))
    assert outcome.dropped == {name: steps[at] for name, at in leave.items()}
    assert clients == {name: None if name in leave else True for name in values}


@pytest.mark.parametrize(("adversary", "threshold"), [("curious", 0.6), ("active", 0.75)])
def test_it_is_a_protocol(adversary: str, threshold: float) -> None:
    terms = SecAggTerms("fed", 4, 9, 1000, threshold, None, adversary)
    testing.check_protocol(
        lambda seed: programs(terms, inputs(terms, seed)),
        lambda seed: {
            "server": SumOutcome(ideal(inputs(terms, seed)), tuple(names_of(4)), {}),
            **dict.fromkeys(names_of(4), True),
        },
        [0, 1],
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_forty_clients_some_of_which_leave_one_after_the_other(sparse: bool) -> None:
    """On the sparse graph k is what Bell et al. ask for, so that a neighborhood loses too many with
    probability 2^-30 only.
    """
    k = degree(40, 0.6, corrupt=0.2, drop=0.1) if sparse else None
    assert k is None or k < 39
    terms = SecAggTerms("fed", 40, 1000, 2**20, 0.6, k)
    leave = {f"c{i}": i % 4 for i in range(4 if sparse else 12)}
    values = inputs(terms)
    outcome, _ = aggregate(terms, values, leave)
    assert torch.equal(outcome.total, ideal(values, outcome.included))
    assert set(outcome.dropped) == set(leave)


def test_a_late_client_learns_that_the_round_continued_without_it_and_nothing_else() -> None:
    """Its vector comes after the deadline: it is out of the sum, knows it, and may come back in the next
    round.
    """
    terms = SecAggTerms("fed", 4, 5, 10, threshold=0.75)
    values = inputs(terms)
    run = programs(terms, values, within=5.0)
    prompt = run["c3"]

    async def slow(me: Any) -> Any:
        await me.clock.sleep(7.0)
        return await prompt(me)

    run["c3"] = slow
    ledger = Ledger()
    out = InProcess().run_sync(run, ledger=ledger)
    assert out["c3"] is False
    assert out["server"].included == ("c0", "c1", "c2")
    assert {line.kind for line in ledger.seen if line.party == "c3"} == {"RoundOver"}


def test_a_vector_of_another_length_is_out_of_the_round_at_its_own_party() -> None:
    terms = SecAggTerms("fed", 3, 5, 10)
    values = inputs(terms) | {"c1": torch.zeros(6, dtype=torch.int64)}
    with pytest.raises(
        PartyFailed, match="party 'c1' failed: BadData: party 'c1' has 6 numbers to add; the terms require 5"
    ):
        aggregate(terms, values)


def test_numbers_outside_the_agreed_range_never_reach_the_server() -> None:
    terms = SecAggTerms("fed", 3, 5, 10)
    values = inputs(terms) | {"c1": torch.tensor([0, 11, -12, 0, 0])}
    with pytest.raises(PartyFailed, match="party 'c1' failed: BadData: 2 of 5 numbers are outside ±10"):
        aggregate(terms, values)


def test_packed_uploads_take_the_bits_of_the_ring() -> None:
    """100 parties: ±327 needs 16 bits, ±5242 needs 20, ±21,474,836 needs 32; here with 4 parties of which
    each has as much room.
    """
    for bound, width in ((8191, 16), (131_071, 20), (536_870_911, 32)):
        terms = SecAggTerms("fed", 4, 4000, bound)
        assert terms.width == width
        ledger = Ledger()
        aggregate(terms, inputs(terms), ledger=ledger)
        (size,) = {line.bytes for line in ledger.seen if line.kind == "MaskedVector"}
        assert 0 <= size - 4000 * width // 8 < 100


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"threshold": 0.5},
            r"SecAggTerms: threshold is 0\.5; it must be a number above 0\.5 and at most 1\.",
        ),
        ({"parties": 1}, r"SecAggTerms: parties is 1; it must be a whole number of at least 2\."),
        (
            {"adversary": "active"},
            r"SecAgg: threshold is 0\.6; it must be above 2/3 against an active server",
        ),
        (
            {"adversary": "active", "threshold": 0.7, "neighbors": 4},
            r"SecAgg: neighbors is 4; it must be None against an active server",
        ),
    ],
)
def test_terms_without_protection_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        check(SecAggTerms(**({"federation": "fed", "parties": 5, "length": 3, "bound": 10} | change)))


def test_an_active_server_needs_signing_clients() -> None:
    terms = SecAggTerms("fed", 3, 2, 10, threshold=0.7, adversary="active")
    run = {
        "c0": lambda me: secagg.client(me, torch.zeros(2, dtype=torch.int64), terms),
        "server": lambda me: me.clock.sleep(0),
    }
    with pytest.raises(
        PartyFailed, match="SecAgg: identity is None; it must be a signing key and all public keys"
    ):
        InProcess().run_sync(run)


def test_the_threshold_counts_the_parties_of_the_terms_not_those_that_came() -> None:
    assert SecAggTerms("fed", 10, 1, 1).enough == SecAggTerms("fed", 10, 1, 1).shares == 6
    assert SecAggTerms("fed", 1000, 1, 1, neighbors=76).shares == math.ceil(0.6 * 77)
    assert SecAggTerms("fed", 2, 1, 1).enough == 2


@pytest.mark.parametrize(
    "message",
    [
        RoundOver(True, "too few"),
        secagg.AdvertisedKeys(b"c", b"s", b""),
        secagg.RoundKeys({"a": (b"1", b"2", b"")}),
        secagg.SealedShares({"a": b"x"}),
        secagg.ForwardedShares({}),
        secagg.MaskedVector(torch.zeros(3, dtype=torch.uint8)),
        secagg.Survivors(["a"], []),
        secagg.AgreedSurvivors(b"s"),
        secagg.SurvivorSignatures({"a": b"s"}),
        secagg.RevealedShares({"a": b"1"}, {}),
    ],
    ids=lambda m: m.kind,
)
def test_every_message_survives_the_wire(message: Any) -> None:
    assert decode(encode(message)) == message


def test_real_numbers_are_refused() -> None:
    terms = SecAggTerms("fed", 3, 2, 10)
    with pytest.raises(PartyFailed, match="BadData: expected a vector of integers, got float32"):
        aggregate(terms, {name: torch.zeros(2) for name in names_of(3)})
    assert issubclass(BadData, ValueError)
