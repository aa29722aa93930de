"""Circuit PSI before the circuit: equal words in a bin mean a shared id, and only there payloads add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadData, ProtocolError, QueryRefused
from tacit.parties import Ledger
from tacit.parties.conformance import Tap
from tacit.protocols import psi, psi_circuit
from tacit.protocols.psi_circuit import BinWords, CircuitLayout
from tacit.runtimes.inprocess import InProcess

from .test_psi import digests

SESSION = b"s" * 32


def programs(mine: np.ndarray, theirs: np.ndarray, payload: np.ndarray, **policy: Any) -> dict[str, Any]:
    async def receiver(me: Any) -> BinWords:
        return (await psi.receive_words(me, mine, other="sender", width=payload.shape[1]))[0]

    async def sender(me: Any) -> BinWords:
        return (await psi.send_words(me, theirs, payload, other="receiver", **policy))[0]

    return {"receiver": receiver, "sender": sender}


def payload_of(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 2**64 - 1, (count, width), dtype=np.uint64)


def combine(layout: CircuitLayout, mine: BinWords, theirs: BinWords) -> tuple[np.ndarray, np.ndarray]:
    """(whether a bin's first words are equal, the sum of the others where they are) in the clear."""
    mask = np.uint64((1 << layout.bits) - 1)
    match = ((mine.words[:, 0] ^ theirs.words[:, 0]) & mask) == 0
    return match.astype(np.int64), (mine.words[:, 1:] + theirs.words[:, 1:]) * match[:, None].astype(
        np.uint64
    )


@pytest.mark.parametrize(
    ("n", "m", "width"), [(0, 5, 1), (5, 0, 2), (1, 1, 0), (3, 40, 3), (40, 3, 4), (90, 90, 5)]
)
def test_words_are_equal_exactly_for_shared_ids_and_carry_their_payload(n: int, m: int, width: int) -> None:
    mine, theirs, payload = digests(range(n)), digests(range(n // 2, n // 2 + m)), payload_of(m, width)
    made = InProcess().run_sync(programs(mine, theirs, payload))
    layout = CircuitLayout(n, m, SESSION, width)
    rows = made["receiver"].rows
    assert sorted(rows[rows >= 0].tolist()) == list(range(n))
    assert made["sender"].rows is None
    assert len(rows) == layout.bins
    expected = psi_circuit.ideal(mine, theirs, payload, rows)
    for got, wanted in zip(combine(layout, made["receiver"], made["sender"]), expected):
        assert np.array_equal(got, wanted)
    assert expected[0].sum() == len(psi.ideal(list(mine), list(theirs)))


@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 60), third=st.integers(1, 25), seed=st.integers(0, 2**32 - 1))
def test_ids_get_bins_of_their_own_whenever_that_is_possible(n: int, third: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bins = (rng.integers(0, third, (n, 3)) + third * np.arange(3)).astype(np.int32)
    fits = len(largest_matching(bins.tolist())) == n
    try:
        chosen = psi_circuit.place(bins, 3 * third)
    except ProtocolError:
        assert not fits
        return
    assert fits
    assert len(set(chosen.tolist())) == n
    assert all(chosen[k] in bins[k] for k in range(n))


def largest_matching(bins: list[list[int]]) -> dict[int, int]:
    """Bins to ids by depth-first augmenting paths: the textbook's."""
    holder: dict[int, int] = {}

    def augment(key: int, seen: set[int]) -> bool:
        for bin in bins[key]:
            if bin not in seen:
                seen.add(bin)
                if bin not in holder or augment(holder[bin], seen):
                    holder[bin] = key
                    return True
        return False

    for key in range(len(bins)):
        augment(key, set())
    return holder


def test_few_ids_have_room_in_their_bins() -> None:
    """The number of bins is raised for small sets: four ids in the same three bins are below 2^-42."""
    for n in (0, 1, 3, 4, 10, 100, 1000, 10_000, 1 << 20):
        layout = CircuitLayout(n, n, SESSION)
        crowds = n * (n - 1) * (n - 2) * (n - 3) / 24
        assert crowds * float(layout.third) ** -9 <= 2.0**-42
        assert layout.bins >= psi_circuit.SPACE * n
        assert layout.bits <= 64
    assert CircuitLayout(10_000, 5, SESSION).bins == 12_702


def test_neither_view_depends_on_who_is_shared() -> None:
    """The same sizes: the same messages, as many bytes each, in both directions."""
    views = []
    for start in (0, 20, 40):
        tap, ledger = Tap(), Ledger()
        some = programs(digests(range(40)), digests(range(start, start + 30)), payload_of(30, 2))
        InProcess().run_sync(tap.on(some), ledger=ledger)
        views.append([(s, to, scope, len(f)) for s, to, scope, f in tap.frames])
        text = {line.kind: line.reveals for line in ledger.seen}
        assert "nothing of which" in text["Hint"]
    assert views[0] == views[1] == views[2]


def test_words_of_ids_that_are_not_shared_are_unrelated() -> None:
    """Against two different payloads the receiver's words have no bin in common, matched or not."""
    mine, theirs = digests(range(50)), digests(range(25, 75))
    one, two = (InProcess().run_sync(programs(mine, theirs, np.full((50, 1), v, np.uint64))) for v in (7, 8))
    for name in ("receiver", "sender"):
        assert not set(one[name].words.ravel().tolist()) & set(two[name].words.ravel().tolist())


def test_a_policy_without_shares_refuses_before_anything_is_compared() -> None:
    some = programs(
        digests(range(5)), digests(range(5)), payload_of(5, 0), policy={"reveal": ("both", "size")}
    )
    with pytest.raises(Exception, match=r"refused the query \(reveal\)") as caught:
        InProcess().run_sync(some)
    assert isinstance(getattr(caught.value, "error", caught.value), QueryRefused)


def test_more_ids_or_columns_than_one_store_takes_are_refused() -> None:
    with pytest.raises(BadData, match=r"at most 1,048,576 ids a party and 64 columns"):
        psi_circuit._check(CircuitLayout(psi_circuit.MOST_IDS + 1, 5, SESSION))
    with pytest.raises(BadData, match="and 65 columns"):
        psi_circuit._check(CircuitLayout(5, 5, SESSION, 65))
