"""What a party of set intersection can learn from its messages: set sizes and its intended result, and nothing else.

A view is every byte a party received. A distinguisher gets the views of runs with two different sender sets of
equal size and equal overlap with the receiver; the same distinguisher is shown to work if secrets are replayed.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy import stats

import tacit
from tacit.crypto import group
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.parties.message import Message
from tacit.parties.party import Program
from tacit.protocols import psi, psi_dh, psi_many, psi_oprf, psi_sum_parts
from tacit.runtimes.inprocess import InProcess

ALARM = 1e-9  # probability of a false alarm of each statistical test that draws from the operating system
RUNS = 16  # of each kind
OPEN = psi.PsiPolicy(min_ids=0, min_overlap=0)
MINE = [f"mine {i}" for i in range(12)] + [f"shared {i}" for i in range(6)]
SETS = [
    [f"one {i}" for i in range(14)] + [f"shared {i}" for i in range(6)],
    [f"two {i}" for i in range(14)] + [f"shared {i}" for i in range(6)],
]


def digests(ids: list[str]) -> np.ndarray:
    return np.frombuffer(b"".join(hashlib.sha256(i.encode()).digest()[:16] for i in ids), np.uint8).reshape(
        -1, 16
    )


def two(theirs: list[str], **more: Any) -> dict[str, Program]:
    return {
        "receiver": functools.partial(psi.receiver, digests=digests(MINE), **more),
        "sender": functools.partial(psi.sender, digests=digests(theirs), policy=OPEN, **more),
    }


def turned(theirs: list[str], **more: Any) -> dict[str, Program]:
    """The same with the sender looking: it is the receiver whose set is of one kind or the other."""
    return {
        "receiver": functools.partial(psi.receiver, digests=digests(theirs), **more),
        "sender": functools.partial(psi.sender, digests=digests(MINE), policy=OPEN, **more),
    }


def three(theirs: list[str], **more: Any) -> dict[str, Program]:
    """A third that holds what the first kind of sender holds: so the two kinds differ in how far the others
    overlap with each other, and in nothing else.
    """
    others = ["sender", "third"]
    return {
        "receiver": functools.partial(psi_many.leader, digests=digests(MINE), others=others, **more),
        "sender": functools.partial(
            psi_many.member, digests=digests(theirs), leader="receiver", others=others, **more
        ),
        "third": functools.partial(
            psi_many.member, digests=digests(SETS[0]), leader="receiver", others=others, **more
        ),
    }


def view(programs: Mapping[str, Program], party: str, seed: int | None = None) -> tuple[list[Message], bytes]:
    """(the messages, what they carry as bytes, kind after kind: threads decide which of two comes first, and
    a bit must be in one place to be learned).
    """
    tap = Tap()
    InProcess(insecure_seed=seed).run_sync(tap.on(programs))
    messages = [decode(frame) for frame in tap.view(party)]
    fields = (getattr(m, name) for m in sorted(messages, key=lambda m: m.kind) for name in m.forms)
    return messages, b"".join(value for value in fields if isinstance(value, bytes))


def told_apart(views: list[list[np.ndarray]]) -> float:
    """How often a distinguisher that has learned from the first half of the runs names the kind of one of the
    second half: nearest mean over all bits.
    """
    learned = [np.mean(kind[: len(kind) // 2], 0) for kind in views]
    right = [
        np.argmin([np.abs(v - mean).sum() for mean in learned]) == k
        for k, kind in enumerate(views)
        for v in kind[len(kind) // 2 :]
    ]
    return float(np.mean(right))


VARIANTS: list[tuple[Callable[..., dict[str, Program]], str, dict[str, str]]] = [
    (two, "receiver", {"method": "dh"}),
    (two, "receiver", {"method": "dh", "reveal": "size"}),
    (two, "receiver", {"method": "oprf"}),
    (turned, "sender", {"method": "dh"}),
    (turned, "sender", {"method": "dh", "reveal": "size"}),
    (turned, "sender", {"method": "oprf"}),
    (three, "receiver", {"reveal": "leader"}),
    (three, "receiver", {"reveal": "leader", "method": "oprf"}),
]


@pytest.mark.parametrize(
    ("programs", "party", "more"),
    VARIANTS,
    ids=[
        "dh",
        "dh size",
        "oprf",
        "sender dh",
        "sender dh size",
        "sender oprf",
        "three",
        "three oprf",
    ],
)
def test_two_sets_with_the_same_intersection_and_size_look_the_same(
    programs: Callable[..., dict[str, Program]], party: str, more: dict[str, str]
) -> None:
    """Two tests: how often each byte occurs (χ² of a 2 × 256 table), and a distinguisher that learns (right in
    half of the cases). The secrets of each run come from a seed of its own, so the outcome never changes.
    """
    views: list[list[np.ndarray]] = [[], []]
    counts, lengths, kinds = np.zeros((2, 256)), set(), set()
    for run in range(RUNS):
        for k, theirs in enumerate(SETS):
            messages, raw = view(programs(theirs, **more), party, seed=2 * run + k)
            lengths.add(len(raw))
            kinds.add(tuple(sorted(m.kind for m in messages)))
            counts[k] += np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
            views[k].append(np.unpackbits(np.frombuffer(raw, np.uint8)))
    assert len(lengths) == 1
    assert len(kinds) == 1
    assert stats.chi2_contingency(counts).pvalue > 1e-4
    right, trials = told_apart(views), RUNS  # half of 2 × RUNS
    assert stats.binomtest(round(right * trials), trials, 0.5).pvalue > 1e-4


@pytest.mark.parametrize("more", [{"method": "dh"}, {"method": "oprf"}])
def test_the_distinguisher_works_where_secrets_are_replayed(more: dict[str, str]) -> None:
    """This shows that the test above can fail: with the same secrets in each run the kinds are distinguished every time."""
    views = [
        [
            np.unpackbits(np.frombuffer(view(two(theirs, **more), "receiver", seed=1)[1], np.uint8))
            for _ in range(6)
        ]
        for theirs in SETS
    ]
    assert told_apart(views) == 1.0


def test_with_size_alone_the_sender_cannot_tell_a_match_from_its_place() -> None:
    """The sender counts what the receiver returns: the places of the six shared rows are uniform among those
    that are no decoys (χ² over 20 places, 60 runs). With "receiver" the receiver's matches are in the places
    of its own ids: so the measurement can tell.
    """

    def places(module: Any, reveal: str) -> list[int]:
        found: list[np.ndarray] = []
        before = module.match

        def listening(mine: np.ndarray, yours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found.append(before(mine, yours)[0])
            return before(mine, yours)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "match", listening)
            InProcess().run_sync(two(SETS[0], method="dh", reveal=reveal))
        return found[-1].tolist()  # before, a sender of psi_sum looks for the decoys

    assert places(psi_dh, "receiver") == list(range(12, 18))
    rows = [
        p for _ in range(60) for p in places(psi_sum_parts, "size")
    ]  # among the 20 rows that are no decoys, in the order they came back in
    counts = np.bincount(rows, minlength=20)
    assert counts.sum() == 360
    assert stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize("method", ["dh", "oprf"])
def test_what_is_told_to_both_depends_on_the_shared_ids_alone(method: str) -> None:
    """The same secrets, the receiver's rows in another order and its other ids other ones: what the sender is
    told is the same, byte for byte. (Places in what was compared would not be: an id's bin depends on the ids
    it had to give way to.)
    """

    def told(mine: list[str]) -> bytes:
        programs = {
            **two(SETS[0], method=method, reveal="both"),
            "receiver": functools.partial(psi.receiver, digests=digests(mine), method=method, reveal="both"),
        }
        (message,) = (m for m in view(programs, "sender", seed=3)[0] if isinstance(m, psi.SharedIds))
        return message.tags

    first = told(MINE)
    assert len(first) == 6 * 8
    assert told(MINE[::-1]) == told([f"other {i}" for i in range(12)] + MINE[12:]) == first


def test_the_order_of_the_senders_ids_is_not_that_of_its_rows() -> None:
    """The place at which the sender's first row arrives is uniform over 20 places (200 runs, χ²)."""
    where = []
    for _ in range(200):
        offered: list[bytes] = []
        offer = psi_dh.send_blinded

        async def listening(
            me: Any,
            other: str,
            ids: np.ndarray,
            *rest: Any,
            offered: list[bytes] = offered,
            offer: Any = offer,
        ) -> None:
            if me.name == "sender":
                offered.append(ids.tobytes())
            await offer(me, other, ids, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psi_dh, "send_blinded", listening)
            InProcess().run_sync(two(SETS[0], method="dh"))
        where.append(offered[0].index(digests(SETS[0])[0].tobytes()) // 16)
    assert stats.chisquare(np.bincount(where, minlength=20)).pvalue > ALARM


def test_two_sessions_of_the_same_sets_cannot_be_linked() -> None:
    """Keys and hashes are a session's own: no element or output comes twice."""
    for kind, name in ((psi_dh.BlindedIds, "points"), (psi_oprf.Outputs, "outputs")):
        method = "dh" if kind is psi_dh.BlindedIds else "oprf"
        seen: list[bytes] = []
        for _ in range(3):
            for m in view(two(SETS[0], method=method), "receiver")[0]:
                if isinstance(m, kind):
                    raw = getattr(m, name)
                    seen += [raw[at : at + 8] for at in range(0, len(raw), 32 if method == "dh" else 8)]
        assert len(set(seen)) == len(seen)


P25519, A = 2**255 - 19, 486662


def on_curve(u: bytes) -> bool:
    """Whether u is a coordinate of Curve25519, or of its twist."""
    x = int.from_bytes(u, "little") & ((1 << 255) - 1)
    return pow(x * (x * x + A * x + 1) % P25519, (P25519 - 1) // 2, P25519) == 1


def test_a_hash_used_as_a_coordinate_leaks_a_bit_of_each_id_and_ours_does_not() -> None:
    """X25519 multiplies curve points to curve points and twist points to twist points, so the blinded id
    still says which kind its hash was: 64 of 64 ids. In ristretto255 the character of an encoding before and
    after blinding agrees in half of 400 cases (binomial, ALARM).
    """
    ids = [f"id {i}".encode() for i in range(64)]
    key = X25519PrivateKey.generate()
    before = [on_curve(hashlib.sha256(i).digest()) for i in ids]
    after = [
        on_curve(key.exchange(X25519PublicKey.from_public_bytes(hashlib.sha256(i).digest()))) for i in ids
    ]
    assert before == after
    assert 10 < sum(before) < 54  # and about half are of either kind: a bit of information each
    a = group.scalar(os.urandom)
    agree = 0
    for k in range(400):
        point = group.element(f"id {k}".encode(), b"test")
        agree += on_curve(point) == on_curve(group.times(a, point))
    assert stats.binomtest(agree, 400, 0.5).pvalue > ALARM


def test_the_ledger_says_what_each_side_learned() -> None:
    for reveal, receiver, sender in (
        ("receiver", "which of its own ids are shared (6 of 18)", "nothing about which are shared"),
        ("both", "which of its own ids are shared (6 of 18)", "which of its own ids are shared (6 of 20)"),
        ("size", "how many ids are shared (6), not which", "how many ids are shared (6), not which"),
    ):
        found = tacit.psi(MINE, SETS[0], reveal=reveal, policy=OPEN)
        said = {line.party: line.reveals for line in found.ledger.seen if line.kind == "Conclusion"}
        assert said == {
            "receiver": f"that 'sender' holds 20 ids, and {receiver}",
            "sender": f"that 'receiver' holds 18 ids, and {sender}",
        }
        assert found.ledger.stamps == [psi.ASSUMES]
    sent = {(line.party, line.kind) for line in tacit.psi(MINE, SETS[0]).ledger.seen}
    assert ("sender", "Tags") not in sent
    assert ("sender", "SharedIds") not in sent


def test_bytes_do_not_depend_on_what_is_shared() -> None:
    """With result to the receiver the traffic says sizes alone: none, some or all of the ids shared, it is
    the same.
    """
    for method in ("dh", "oprf"):
        totals = set()
        for start in (0, 10, 20):
            found = tacit.psi(
                [str(i) for i in range(20)], [str(i) for i in range(start, start + 20)], method=method
            )
            assert found.size == 20 - start
            totals.add(sum(line.bytes for line in found.ledger.seen))
        assert len(totals) == 1


def test_diffie_hellman_sends_no_more_than_its_page_says() -> None:
    """A point and a tag for each of the receiver's ids, a point for each of the sender's, and a few hundred
    bytes of heads.
    """
    n = 200
    found = tacit.psi([str(i) for i in range(n)], [str(i) for i in range(n)], method="dh")
    body = n * (32 + psi_dh.tag_bytes(n, n) + 32)
    assert body < sum(line.bytes for line in found.ledger.seen) < body + 600
