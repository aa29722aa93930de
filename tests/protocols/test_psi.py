"""Private set intersection: every variant computes its ideal on sets of all sizes, in one process and between
processes, and refuses what does not fit.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import testing
from tacit.errors import BadData, BadParameter, PartyFailed
from tacit.parties.codec import decode, encode
from tacit.parties.conformance import Tap
from tacit.parties.party import Party, Program, Transport
from tacit.protocols import psi, psi_dh, psi_many, psi_oprf, psi_sum
from tacit.runtimes.inprocess import InProcess
from tacit.runtimes.processes import Processes

OPEN = {
    "min_ids": 0,
    "min_overlap": 0,
    # the protocol computes its ideal for small sets, too; what a policy refuses:
    # tests/security/test_psi_policy.py
}
SIZES = [(0, 0), (0, 5), (5, 0), (1, 1), (3, 40), (40, 3), (30, 30)]


def digests(ids: Any) -> np.ndarray:
    return (
        np.frombuffer(b"".join(hashlib.sha256(str(i).encode()).digest()[:16] for i in ids), np.uint8)
        .reshape(-1, 16)
        .copy()
    )


def two(mine: np.ndarray, theirs: np.ndarray, **more: Any) -> dict[str, Program]:
    values = {"values": more.pop("values")} if "values" in more else {}
    return {
        "receiver": functools.partial(psi.receiver, digests=mine, **more),
        "sender": functools.partial(psi.sender, digests=theirs, policy=OPEN, **more, **values),
    }


def run(programs: Mapping[str, Program]) -> dict[str, Any]:
    return InProcess().run_sync(programs)


@pytest.mark.parametrize("method", ["dh", "oprf"])
@pytest.mark.parametrize("reveal", ["receiver", "both"])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_what_is_shared_is_found_whatever_the_sizes(method: str, reveal: str, n: int, m: int) -> None:
    mine, theirs = digests(range(n)), digests(range(n // 2, n // 2 + m))
    made = run(two(mine, theirs, method=method, reveal=reveal))
    assert made["receiver"]["rows"].tolist() == psi.ideal(list(mine), list(theirs))
    assert (made["receiver"]["theirs"], made["sender"]["theirs"]) == (m, n)
    if reveal == "both":
        assert made["sender"]["rows"].tolist() == psi.ideal(list(theirs), list(mine))
        assert np.array_equal(mine[made["receiver"]["rows"]], theirs[made["sender"]["rows"]])
    else:
        assert made["sender"]["rows"] is None
        assert made["sender"]["size"] is None


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_with_size_the_receiver_gets_a_number_and_no_party_a_row(n: int, m: int) -> None:
    mine, theirs = digests(range(n)), digests(range(n // 2, n // 2 + m))
    made = run(two(mine, theirs, reveal="size"))
    assert made["receiver"]["size"] == len(psi.ideal(list(mine), list(theirs)))
    assert made["receiver"]["rows"] is None
    assert made["sender"]["rows"] is None
    assert made["sender"]["size"] == made["receiver"]["size"]  # the sender counts


@settings(max_examples=15, deadline=None)
@given(mine=st.sets(st.integers(0, 20)), theirs=st.dictionaries(st.integers(0, 20), st.integers(0, 10**6)))
def test_the_sum_is_over_the_shared_and_exact(mine: set[int], theirs: dict[int, int]) -> None:
    a, b = digests(mine), digests(theirs)
    made = run(two(a, b, reveal="sum", limit=10**6, values=list(theirs.values())))
    assert (made["receiver"]["size"], made["receiver"]["sum"]) == psi_sum.ideal(
        list(a), list(b), list(theirs.values())
    )
    assert made["receiver"]["rows"] is None
    assert made["sender"]["sum"] is None


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sets(st.integers(0, 12)), min_size=3, max_size=5), st.sampled_from(["all", "leader"]))
def test_many_parties_find_the_ids_they_all_share(sets: list[set[int]], reveal: str) -> None:
    held = {f"p{k}": digests(ids) for k, ids in enumerate(sets)}
    made = run(many(held, reveal))
    for name, rows in psi_many.ideal({name: list(d) for name, d in held.items()}).items():
        if reveal == "all" or name == "p0":
            assert made[name]["rows"].tolist() == rows
        else:
            assert made[name]["rows"] is None


def many(held: Mapping[str, np.ndarray], reveal: str = "all") -> dict[str, Program]:
    first, *others = held
    programs: dict[str, Program] = {
        n: functools.partial(psi_many.member, digests=held[n], leader=first, others=others, reveal=reveal)
        for n in others
    }
    return programs | {
        first: functools.partial(psi_many.leader, digests=held[first], others=others, reveal=reveal)
    }


@pytest.mark.parametrize(
    "more", [{"method": "dh"}, {"method": "oprf"}, {"reveal": "size"}, {"method": "oprf", "reveal": "both"}]
)
def test_it_is_a_protocol(more: dict[str, str]) -> None:
    def sets(k: int) -> tuple[np.ndarray, np.ndarray]:
        return digests(range(4 + k)), digests(range(2, 7))

    def ideal(k: int) -> dict[str, Any]:
        mine, theirs = sets(k)
        rows, size = psi.ideal(list(mine), list(theirs)), len(psi.ideal(list(mine), list(theirs)))
        back = psi.ideal(list(theirs), list(mine)) if more.get("reveal") == "both" else None
        chosen = "dh" if more.get("reveal") == "size" else more["method"]
        counted = size if more.get("reveal") in ("both", "size") else None
        return {
            "receiver": {
                "rows": None if more.get("reveal") == "size" else np.array(rows),
                "size": size,
                "sum": None,
                "theirs": 5,
                "method": chosen,
            },
            "sender": {
                "rows": None if back is None else np.array(back),
                "size": counted,
                "sum": None,
                "theirs": 4 + k,
                "method": chosen,
            },
        }

    testing.check_protocol(lambda k: two(*sets(k), **more), ideal, [0, 1])


def test_many_and_sum_are_protocols() -> None:
    sets = {"a": digests("abcd"), "b": digests("bcx"), "c": digests("dcb")}
    rows = psi_many.ideal({name: list(d) for name, d in sets.items()})
    testing.check_protocol(
        lambda _: many(sets),
        lambda _: {
            name: {
                "rows": np.array(rows[name]),
                "size": 2,
                "theirs": {"b": 3, "c": 3} if name == "a" else {"a": 4},
            }
            for name in sets
        },
        [0],
    )
    testing.check_protocol(
        lambda _: two(digests("abc"), digests("bcd"), reveal="sum", limit=100, values=[3, 4, 5]),
        lambda _: {"receiver": {"rows": None, "size": 2, "sum": 7, "theirs": 3, "method": "sum"}},
        [0],
    )


@pytest.mark.parametrize(
    ("n", "reveal", "chosen"),
    [
        (10_000, "receiver", "dh"),
        (10_001, "receiver", "oprf"),
        (10_001, "size", "dh"),
        (10_001, "sum", "sum"),
    ],
)
def test_auto_chooses_by_the_larger_set_and_by_what_is_revealed(n: int, reveal: str, chosen: str) -> None:
    assert psi.choose_method("auto", reveal, n, 5) == psi.choose_method("auto", reveal, 5, n) == chosen
    assert psi.choose_method("dh", "both", n, 5) == "dh"


# buckets and chunks -----------------------------------------------------------------------------------------


def test_sets_larger_than_a_bucket_go_through_in_several_and_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psi_oprf, "BUCKET", 300)
    monkeypatch.setattr(psi_oprf, "CHUNK", 64)
    mine, theirs = digests(range(1000)), digests(range(400, 1600))
    lay = psi_oprf.OprfLayout(1000, 1200, b"s" * 32)
    assert lay.buckets == 4
    made = run(two(mine, theirs, method="oprf", reveal="both"))
    assert sorted(made["receiver"]["rows"].tolist()) == sorted(psi.ideal(list(mine), list(theirs)))
    assert np.array_equal(mine[made["receiver"]["rows"]], theirs[made["sender"]["rows"]])


def test_the_receiver_never_sends_more_than_two_buckets_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what waits at the sender is bounded, however large the sets are."""
    monkeypatch.setattr(psi_oprf, "BUCKET", 200)
    monkeypatch.setattr(psi_oprf, "CHUNK", 32)
    tap = Tap()
    run(tap.on(two(digests(range(1000)), digests(range(400, 1300)), method="oprf")))
    begun, answered, most = set(), 0, 0
    for message in (decode(frame) for _, _, _, frame in tap.frames):
        if isinstance(message, psi_oprf.Noise):
            begun.add(message.bucket)
            most = max(most, len(begun) - answered)
        answered += isinstance(message, psi_oprf.Outputs)
    assert answered == len(begun) == 5
    assert most <= psi_oprf.AHEAD


def test_many_chunks_of_diffie_hellman_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_dh, "CHUNK", 7)
    mine, theirs = digests(range(50)), digests(range(20, 90))
    for reveal in ("both", "size"):
        made = run(two(mine, theirs, method="dh", reveal=reveal))
        assert made["receiver"]["size"] == 30
    assert run(two(mine, theirs, reveal="sum", values=range(70), limit=99))["receiver"]["sum"] == sum(
        range(30)
    )


def test_a_bucket_overflows_less_often_than_once_in_2_to_the_40_runs() -> None:
    """The exact binomial tail, summed from the capacity up, against the bound."""
    for n, buckets in ((1000, 4), (10**6, 2), (10**7, 10)):
        room = psi_oprf.capacity(n, buckets)
        p = 1 / buckets
        term = math.exp(
            math.lgamma(n + 1)
            - math.lgamma(room + 2)
            - math.lgamma(n - room)
            + (room + 1) * math.log(p)
            + (n - room - 1) * math.log(1 - p)
        )
        ratio = (n - room) / (room + 1) * p / (1 - p)
        assert ratio < 1
        assert buckets * term / (1 - ratio) <= 2.0**-40
        assert room < n / buckets + 12 * math.sqrt(n * p * (1 - p))  # and not much more than that takes
    assert psi_oprf.capacity(77, 1) == 77


# what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("receiver", "sender", "text"),
    [
        (
            {"method": "dh"},
            {"method": "oprf"},
            "has method='dh', reveal='receiver' and limit=0; party 'sender' has method='oprf'",
        ),
        (
            {"reveal": "both"},
            {"reveal": "receiver"},
            "Use the same options at both parties; nothing was compared",
        ),
        ({"reveal": "sum"}, {"reveal": "sum", "limit": 9}, "reveal='sum' and limit=9. Use the same"),
    ],
)
def test_parties_with_different_requests_compare_nothing(
    receiver: dict[str, Any], sender: dict[str, Any], text: str
) -> None:
    programs = {
        **two(digests("ab"), digests("bc"), **receiver),
        "sender": two(digests("ab"), digests("bc"), **sender)["sender"],
    }
    with pytest.raises(PartyFailed, match="nothing was compared") as failed:
        run(programs)
    assert text in str(failed.value)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"method": "rsa"}, "psi: method is 'rsa'; it must be one of 'auto', 'dh', 'oprf'"),
        ({"reveal": "all"}, "psi: reveal is 'all'; it must be one of 'receiver', 'both', 'size', 'sum'"),
        (
            {"method": "oprf", "reveal": "size"},
            "psi: method is 'oprf'; it must be 'dh' or 'auto' with reveal='size'",
        ),
        ({"limit": 0}, "psi: limit is 0; it must be a whole number from 1 to"),
    ],
)
def test_unsupported_requests_are_refused(more: dict[str, Any], text: str) -> None:
    with pytest.raises(BadParameter) as refused:
        psi.check_options(**{"method": "auto", "reveal": "receiver", **more})
    assert text in str(refused.value)
    with pytest.raises(PartyFailed, match="digests is 'float64 of shape"):
        run(two(np.zeros((2, 16)), digests("a")))


@pytest.mark.parametrize("values", [[1, 2], [1, 2, 300], [1, 2, -1]])
def test_values_that_do_not_fit_are_refused_before_they_are_sent(values: list[int]) -> None:
    with pytest.raises(
        PartyFailed,
        match=r"party 'sender' has . values for 3 ids.*there must be one for each id, from 0 to 255",
    ) as failed:
        run(two(digests("abc"), digests("abd"), reveal="sum", limit=255, values=values))
    assert isinstance(failed.value.error, BadData)


class Meddling:
    """A relay that changes what passes: each frame of a kind goes through `change`, which gives the frames to
    deliver instead.
    """

    def __init__(self, inner: Transport, kind: type, change: Any):
        self.inner, self.kind, self.change = inner, kind, change
        self.held: list[bytes] = []

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        message = decode(frame)
        for passed in self.change(self.held, message) if isinstance(message, self.kind) else [message]:
            await self.inner.deliver(sender, to, scope, encode(passed))


def meddled(program: Program, kind: type, change: Any) -> Program:
    async def listened(me: Party) -> Any:
        return await program(replace(me, transport=Meddling(me.transport, kind, change)))

    return listened


def swap(held: list[Any], message: Any) -> list[Any]:
    """The first two change places."""
    if len(held) == 0:
        held.append(message)
        return []
    if held[0] is not None:
        first, held[0] = held[0], None
        return [message, first]
    return [message]


def twice(held: list[Any], message: Any) -> list[Any]:
    return [message, message]


@pytest.mark.parametrize("change", [swap, twice])
@pytest.mark.parametrize(
    ("who", "kind", "method"),
    [
        ("receiver", psi_dh.BlindedIds, "dh"),
        ("sender", psi_dh.BlindedIds, "dh"),
        ("sender", psi_dh.Tags, "dh"),
        ("receiver", psi_oprf.Store, "oprf"),
        ("sender", psi_oprf.Outputs, "oprf"),
    ],
)
def test_a_relay_that_reorders_or_repeats_is_noticed(
    change: Any, who: str, kind: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encrypted channel between real parties preserves the order; the protocol does not depend on it."""
    monkeypatch.setattr(psi_dh, "CHUNK", 5)
    monkeypatch.setattr(psi_oprf, "CHUNK", 64)
    monkeypatch.setattr(psi_oprf, "BUCKET", 8)
    programs = two(digests(range(20)), digests(range(10, 30)), method=method)
    with pytest.raises(PartyFailed, match="reordered or repeated"):
        run({**programs, who: meddled(programs[who], kind, change)})


@pytest.mark.parametrize(
    ("who", "kind", "text"),
    [
        ("receiver", psi_oprf.Noise, "expected Store from 'receiver', got 'Noise'"),
        ("sender", psi_oprf.Trees, "reordered or repeated"),
    ],
)
def test_a_repeated_vector_is_noticed(
    who: str, kind: type, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psi_oprf, "BUCKET", 8)
    programs = two(digests(range(20)), digests(range(10, 30)), method="oprf")
    with pytest.raises(PartyFailed, match=text):
        run({**programs, who: meddled(programs[who], kind, twice)})


@pytest.mark.parametrize(
    "point",
    [
        bytes(32),
        b"\x01" + bytes(31),
        b"\xff" * 32,
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    ],
)
@pytest.mark.parametrize(
    ("who", "victim", "kind", "field", "method"),
    [
        ("receiver", "sender", psi_dh.BlindedIds, "points", "dh"),
        ("sender", "receiver", psi_dh.BlindedIds, "points", "dh"),
        ("receiver", "sender", psi_oprf.BaseOffer, "point", "oprf"),
        ("sender", "receiver", psi_oprf.BaseChoices, "points", "oprf"),
    ],
)
def test_malformed_and_small_order_points_are_refused_by_name(
    point: bytes, who: str, victim: str, kind: type, field: str, method: str
) -> None:
    def poison(held: list[Any], message: Any) -> list[Any]:
        return [replace(message, **{field: getattr(message, field)[:-32] + point})]

    programs = two(digests(range(20)), digests(range(10, 30)), method=method)
    with pytest.raises(
        PartyFailed, match=f"party '{victim}' failed: ProtocolError: .*is not an element of ristretto255"
    ):
        run({**programs, who: meddled(programs[who], kind, poison)})


@pytest.mark.parametrize(
    ("who", "kind", "change", "text"),
    [
        (
            "receiver",
            psi_dh.BlindedIds,
            lambda m: replace(m, points=m.points[:-1]),
            "bytes of ids; expected 1 to 20 times 32",
        ),
        (
            "receiver",
            psi_dh.BlindedIds,
            lambda m: replace(m, points=m.points * 2),
            "expected 1 to 20 times 32",
        ),
        ("sender", psi_dh.Tags, lambda m: replace(m, tags=b""), "0 bytes of tags"),
        (
            "receiver",
            psi.SharedIds,
            lambda m: replace(m, tags=m.tags + m.tags),
            "the other party sent 20 shared ids, of which we hold 10, or one twice",
        ),
        (
            "receiver",
            psi.SharedIds,
            lambda m: replace(m, tags=b"\xff" * 8),
            "the other party sent 1 shared ids, of which we hold 0",
        ),
        ("receiver", psi.SharedIds, lambda m: replace(m, tags=b"\xff"), "1 bytes are not a list of id tags"),
        ("receiver", psi.Opening, lambda m: replace(m, nonce=b""), "a nonce of 0 bytes"),
        ("receiver", psi.Opening, lambda m: replace(m, count=-3), "declares -3 ids"),
    ],
)
def test_messages_that_do_not_fit_are_refused(who: str, kind: type, change: Any, text: str) -> None:
    programs = two(digests(range(20)), digests(range(10, 30)), method="dh", reveal="both")
    with pytest.raises(PartyFailed) as failed:
        run({**programs, who: meddled(programs[who], kind, lambda held, m: [change(m)])})
    assert text in str(failed.value)


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        (
            psi_oprf.Outputs,
            lambda m: replace(m, outputs=m.outputs[:-1]),
            "expected (0, 160) (bucket, bytes)",
        ),
        (psi_oprf.Trees, lambda m: replace(m, sums=m.sums[:-16]), "bytes of sums for 400 trees"),
        (psi_oprf.Trees, lambda m: replace(m, sums=b""), "received 0 bytes of sums"),
        (
            psi_oprf.BaseChoices,
            lambda m: replace(m, points=m.points[:-32]),
            "oblivious transfers; expected",
        ),
    ],
)
def test_messages_of_the_oprf_that_do_not_fit_are_refused(kind: type, change: Any, text: str) -> None:
    programs = two(digests(range(20)), digests(range(10, 30)), method="oprf")
    with pytest.raises(PartyFailed) as failed:
        run({**programs, "sender": meddled(programs["sender"], kind, lambda held, m: [change(m)])})
    assert text in str(failed.value)


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        (psi_oprf.Noise, lambda m: replace(m, columns=m.columns[:-128]), "bytes for 28400 transfers"),
        (psi_oprf.Noise, lambda m: replace(m, columns=m.columns * 2), "bytes for 28400 transfers"),
        (psi_oprf.Noise, lambda m: replace(m, bucket=7), "received a message for (7,), expected (0,)"),
        (psi_oprf.Store, lambda m: replace(m, entries=m.entries + bytes(8)), "expected (0, 0, 1040)"),
        (psi_oprf.Store, lambda m: replace(m, entries=b""), "expected (0, 0, 1040)"),
        (psi_oprf.Store, lambda m: replace(m, first=8), "expected (0, 0, 1040)"),
    ],
)
def test_what_a_receiver_sends_to_the_oprf_must_have_the_declared_size(
    kind: type, change: Any, text: str
) -> None:
    """So a store has no more entries than the declared ids allow: a longer one could hold more ids."""
    programs = two(digests(range(20)), digests(range(10, 30)), method="oprf")
    with pytest.raises(PartyFailed) as failed:
        run({**programs, "receiver": meddled(programs["receiver"], kind, lambda held, m: [change(m)])})
    assert "party 'sender' failed: ProtocolError" in str(failed.value)
    assert text in str(failed.value)


def test_one_that_waits_for_another_who_does_not_come_says_so() -> None:
    async def silent(me: Party) -> None:
        return None

    with pytest.raises(
        PartyFailed,
        match="party 'receiver' waited 5 s for Opening or RefusedQuery from 'sender', which did not arrive",
    ):
        run(
            {"receiver": functools.partial(psi.receiver, digests=digests("ab"), within=5.0), "sender": silent}
        )


# between processes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dh", "oprf"])
def test_between_processes_over_real_sockets(method: str) -> None:
    mine, theirs = digests(range(600)), digests(range(200, 1000))
    made = Processes().run_sync(two(mine, theirs, method=method, reveal="both"))
    assert np.asarray(made["receiver"]["rows"]).tolist() == psi.ideal(list(mine), list(theirs))
    assert np.array_equal(
        mine[np.asarray(made["receiver"]["rows"])], theirs[np.asarray(made["sender"]["rows"])]
    )


def test_three_parties_between_processes() -> None:
    held = {"a": digests(range(60)), "b": digests(range(20, 90)), "c": digests(range(0, 90, 3))}
    made = Processes().run_sync(many(held))
    for name, rows in psi_many.ideal({name: list(d) for name, d in held.items()}).items():
        assert np.asarray(made[name]["rows"]).tolist() == rows
