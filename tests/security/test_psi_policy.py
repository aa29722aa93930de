"""Attacks on the sender of a set intersection: a receiver that asks about one person, that cheats in
counting, that asks often or declares what it has not.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.crypto import elgamal, group
from tacit.crypto.tags import compute_tags, tag_bytes
from tacit.errors import PartyFailed, QueryRefused
from tacit.jobs.vertical.query_log import QueryLog, read_policy
from tacit.parties.codec import decode, encode
from tacit.parties.message import Message
from tacit.parties.party import Party, Program, Transport
from tacit.protocols import psi, psi_many, psi_sum, psi_sum_parts
from tacit.protocols.id_buckets import ArrayIds
from tacit.protocols.psi_policy import MAX_IDS, PsiPolicy
from tacit.runtimes.inprocess import InProcess

CUSTOMERS = [f"customer {k}" for k in range(100)]
AMOUNTS = [1000 + k for k in range(100)]
TARGET = "customer 7"


def digests(ids: list[str]) -> np.ndarray:
    return np.frombuffer(b"".join(hashlib.sha256(i.encode()).digest()[:16] for i in ids), np.uint8).reshape(
        -1, 16
    )


# one person -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reveal", ["size", "sum"])
@pytest.mark.parametrize(
    ("mine", "rule"),
    [
        ([TARGET], "min_ids"),  # a one-row file
        ([TARGET, *(f"made up {k}" for k in range(500))], "min_overlap"),  # padded with ids that do not exist
        ([f"made up {k}" for k in range(500)], "min_overlap"),
    ],
)
def test_a_receiver_that_asks_about_one_person_gets_no_number(
    reveal: str, mine: list[str], rule: str
) -> None:
    """Before: the exact amount of customer 7, and a ledger that said "not which"."""
    with pytest.raises(QueryRefused, match=rf"the policy of 'sender' refused the query \({rule}\)"):
        tacit.psi(mine, CUSTOMERS, reveal=reveal, values=AMOUNTS if reveal == "sum" else None)


def test_what_a_refused_receiver_is_sent_does_not_depend_on_whether_the_person_is_there() -> None:
    """Kinds and lengths of all messages to the receiver are equal, with and without the person among the customers."""

    def seen(mine: list[str]) -> list[tuple[str, int]]:
        sent: list[tuple[str, int]] = []

        async def receiver(me: Party) -> None:
            with pytest.raises(QueryRefused):
                await psi.receiver(me, digests(mine), reveal="sum")
            sent.extend((line.kind, line.bytes) for line in me.ledger.seen)

        with pytest.raises(PartyFailed, match="min_overlap"):
            InProcess().run_sync(
                {
                    "receiver": receiver,
                    "sender": functools.partial(
                        psi.sender, digests=digests(CUSTOMERS), reveal="sum", values=AMOUNTS
                    ),
                }
            )
        return sorted(sent)

    others = [f"made up {k}" for k in range(19)]
    there = seen([TARGET, *others])
    assert any(kind == "RefusedQuery" for kind, _ in there)
    assert not any(kind == "OpenedCount" for kind, _ in there)
    assert there == seen(["nobody", *others])


def test_a_sum_over_enough_people_is_answered_and_the_ledger_says_what_it_tells() -> None:
    found = tacit.psi(CUSTOMERS[:30], CUSTOMERS, reveal="sum", values=AMOUNTS)
    assert (found.value, found.size) == (sum(AMOUNTS[:30]), 30)
    learned = {line.party: line.reveals for line in found.ledger.seen if line.kind == "Conclusion"}
    assert learned["receiver"].endswith(
        "how many ids are shared (30) and the sum of the other's values over them, and so which: all of its "
        "own"
    )
    assert learned["sender"].endswith("how many ids are shared (30), not which")
    one = tacit.psi(
        [TARGET], CUSTOMERS, reveal="sum", values=AMOUNTS, policy=PsiPolicy(min_ids=1, min_overlap=1)
    )
    assert "the other's value of this one person, and so which: all of its own" in str(one.ledger)


@pytest.mark.parametrize(
    ("policy", "more", "rule"),
    [
        (PsiPolicy(reveal=("size", "sum")), {"reveal": "both"}, "reveal"),
        (PsiPolicy(reveal=("sum",)), {"reveal": "receiver", "method": "oprf"}, "reveal"),
        (PsiPolicy(max_ids=29), {"reveal": "receiver"}, "max_ids"),
        (PsiPolicy(min_ids=31), {"reveal": "size"}, "min_ids"),
        (PsiPolicy(min_overlap=31), {"reveal": "size"}, "min_overlap"),
    ],
)
def test_each_rule_of_the_policy_is_kept(policy: PsiPolicy, more: dict[str, Any], rule: str) -> None:
    with pytest.raises(QueryRefused, match=rf"\({rule}\)"):
        tacit.psi(CUSTOMERS[:30], CUSTOMERS, policy=policy, **more)


@pytest.mark.parametrize(
    ("policy", "rule"), [({"reveal": ("size",)}, "reveal"), ({"max_ids": 99}, "max_ids")]
)
def test_a_party_of_three_keeps_its_own_policy(policy: dict[str, Any], rule: str) -> None:
    programs: dict[str, Any] = {
        "a": functools.partial(psi_many.leader, digests=digests(CUSTOMERS), others=["b", "c"])
    }
    programs |= {
        n: functools.partial(psi_many.member, digests=digests(CUSTOMERS), leader="a", others=["b", "c"])
        for n in "bc"
    }
    programs["c"] = functools.partial(programs["c"], policy=policy)
    with pytest.raises(PartyFailed, match=rf"QueryRefused: the policy of 'c' refused the query \({rule}\)"):
        InProcess().run_sync(programs)


# receivers that do not follow the program -------------------------------------------------------------------


class Lying:
    """Changes what a party sends: each message goes through `change`."""

    def __init__(self, inner: Transport, change: Callable[[Any], Message]):
        self.inner, self.change = inner, change

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        await self.inner.deliver(sender, to, scope, encode(self.change(decode(frame))))


def lying(program: Callable[..., Awaitable[Any]], change: Callable[[Any], Message]) -> Program:
    async def liar(me: Party) -> Any:
        return await program(replace(me, transport=Lying(me.transport, change)))

    return liar


def honest(reveal: str, **more: Any) -> Program:
    values = {"values": AMOUNTS} if reveal == "sum" else {}
    return functools.partial(psi.sender, digests=digests(CUSTOMERS), reveal=reveal, **values, **more)


async def many_keys(
    me: Party, ids: ArrayIds, other: str, theirs: int, session: bytes, limit: int | None
) -> Any:
    """One person under ten keys: an attacker that guesses this person's row and returns it under all ten, instead of nine
    others, makes it count ten times. Here the attacker even knows the row, which the protocol hides.
    """
    mine, total = ids.digests, theirs + psi_sum.decoys(theirs)
    size = tag_bytes(len(mine), total)
    keys = [group.scalar(os.urandom) for _ in range(10)]
    to, rows, _, checks = psi_sum._scopes(me)
    target = group.elements(mine[:1].tobytes(), 16, session)
    tags = [compute_tags(group.multiply(key, target), 32, session, size).tobytes() for key in keys] + [
        os.urandom(size) for _ in range(len(mine) - 10)
    ]
    await to.send(other, psi_sum.IdTags(0, b"".join(tags)))
    points = (await rows.recv(other, psi_sum.BlindedIds)).points
    back = [group.multiply(keys[0], points[32 * k : 32 * (k + 1)]) for k in range(total)]
    where = points.index(group.multiply(TOLD["key"], target)) // 32
    dropped = [k for k in range(total) if k != where][:9]
    for k, key in zip(dropped, keys[1:]):
        back[k] = group.multiply(key, points[32 * where : 32 * (where + 1)])
    await rows.send(other, psi_sum.ReturnedIds(0, b"".join(back)))
    seed = (await checks.recv(other, psi_sum.DecoySeed)).seed
    decoys = group.multiply(
        keys[0],
        group.elements(
            np.arange(psi_sum.decoys(theirs), dtype="<u8").tobytes(), 8, b"decoy" + session + seed
        ),
    )
    await checks.send(other, psi_sum.DecoyIds(0, TOLD["change"](decoys) if "change" in TOLD else decoys))
    return await checks.recv(other, psi_sum.OpenedCount, psi_sum.RefusedQuery)


TOLD: dict[str, Any] = {}  # the sender's key, by which the attacker is told the row; a change of its answers


def try_many_keys(monkeypatch: pytest.MonkeyPatch) -> str:
    """How one try ends: "opened 10", or the sender's error."""
    lift = psi_sum._lift_decoys

    def listening(shop: Any, numbers: np.ndarray, session: bytes, seed: bytes, key: bytes) -> bytes:
        TOLD["key"] = key
        return lift(shop, numbers, session, seed, key)

    async def attack(*given: Any) -> Any:
        answer = await many_keys(*given)
        return answer.count if isinstance(answer, psi_sum.OpenedCount) else answer.rule, None

    monkeypatch.setattr(psi_sum, "_lift_decoys", listening)
    monkeypatch.setattr(psi_sum, "receiver", attack)
    mine = digests([TARGET, *(f"made up {k}" for k in range(20))])
    try:
        made = InProcess().run_sync(
            {
                "receiver": functools.partial(psi.receiver, digests=mine, reveal="size"),
                "sender": honest("size"),
            }
        )
    except PartyFailed as failed:
        return f"{failed.party}: {type(failed.error).__name__}: {failed.error}"
    return f"opened {made['receiver']['size']}"


def test_one_person_made_to_count_ten_times_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine rows are replaced, and 100 of the 200 are decoys: none of the nine is one in less than 2^-9 of the
    tries, even though the attacker is told the person's row. Of ten tries at most three may succeed; four or
    more do with probability below C(10, 4) · 2^-36 < 4 · 10^-9.
    """
    ends = [try_many_keys(monkeypatch) for _ in range(10)]
    failed = [
        end for end in ends if end.startswith("sender: ProtocolError: party 'receiver' did not return ")
    ]
    assert len(failed) + ends.count("opened 10") == 10
    assert len(failed) >= 7


def test_one_decoy_does_not_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker replaces nine rows and does not know which were decoys. Before: it named one decoy for every
    number, which was among the rows with probability 191/200, and its person counted ten times. Now, never.
    """
    monkeypatch.setitem(TOLD, "change", lambda decoys: decoys[:32] * (len(decoys) // 32))
    for _ in range(3):
        end = try_many_keys(monkeypatch)
        assert end.startswith("sender: ProtocolError: party 'receiver' did not return ")


def test_the_same_attack_succeeds_where_decoys_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""
    monkeypatch.setattr(psi_sum_parts, "find_decoys", lambda points, answers: np.zeros(0, np.int64))
    assert try_many_keys(monkeypatch) == "opened 10"


def test_a_receiver_that_returns_one_row_many_times_is_noticed() -> None:
    def change(message: Message) -> Message:
        if isinstance(message, psi_sum.ReturnedIds):
            return replace(message, points=message.points[:32] * 12 + message.points[32 * 12 :])
        return message

    receiver = lying(functools.partial(psi.receiver, digests=digests(CUSTOMERS[:30]), reveal="size"), change)
    with pytest.raises(
        PartyFailed, match=r"returned 11 rows twice: it does not follow the protocol. Nothing was opened."
    ):
        InProcess().run_sync({"receiver": receiver, "sender": honest("size")})


def test_a_receiver_that_puts_one_customers_number_in_every_row_is_noticed() -> None:
    """Every row carries the number of the first: 30 times one customer's amount would come back. Each changed
    decoy is noticed but with probability 2^-250.
    """

    def change(message: Message) -> Message:
        if isinstance(message, psi_sum.ReturnedValues):
            each = 2 * elgamal.PAIR
            return replace(
                message, ciphertexts=message.ciphertexts[:each] * (len(message.ciphertexts) // each)
            )
        return message

    receiver = lying(functools.partial(psi.receiver, digests=digests(CUSTOMERS[:30]), reveal="sum"), change)
    with pytest.raises(
        PartyFailed,
        match=r"party 'sender' failed: ProtocolError: party 'receiver' changed the numbers of .* decoys",
    ):
        InProcess().run_sync({"receiver": receiver, "sender": honest("sum")})


def test_a_receiver_cannot_choose_over_whom_the_sum_goes() -> None:
    """The sender adds up the rows it has itself found to be shared; nothing the receiver sends afterwards
    selects among them.
    """
    found = InProcess().run_sync(
        {
            "receiver": functools.partial(psi.receiver, digests=digests(CUSTOMERS[:30]), reveal="sum"),
            "sender": honest("sum"),
        }
    )
    assert found["receiver"]["sum"] == sum(AMOUNTS[:30])
    after = [psi_sum.DecoyIds, psi_sum.DecoyMasks]  # all that the receiver sends once the rows are returned
    for kind in after:

        def change(message: Message, kind: type = kind) -> Message:
            if not isinstance(message, kind):
                return message
            return replace(
                message, **{name: getattr(message, name)[::-1] for name in message.forms if name != "first"}
            )

        with pytest.raises(PartyFailed, match="party 'sender' failed: ProtocolError"):
            InProcess().run_sync(
                {
                    "receiver": lying(
                        functools.partial(psi.receiver, digests=digests(CUSTOMERS[:30]), reveal="sum"), change
                    ),
                    "sender": honest("sum"),
                }
            )


def test_a_seed_of_decoys_can_stand_for_no_id() -> None:
    """A sender that could name an id as a decoy would have the receiver tag it, and learn whether the
    receiver holds it. Decoys are hashed apart from ids.
    """
    session = bytes(32)
    for count in (1, 100):
        decoys = group.elements(np.arange(count, dtype="<u8").tobytes(), 8, b"decoy" + session + bytes(32))
        ids = group.elements(digests(CUSTOMERS).tobytes(), 16, session)
        assert not {decoys[k : k + 32] for k in range(0, len(decoys), 32)} & {
            ids[k : k + 32] for k in range(0, len(ids), 32)
        }
    assert (
        len(b"decoy" + session + bytes(psi_sum.SEED)) + 8 != len(session) + psi.DIGEST
    )  # what is hashed differs in length: never equal


# how often --------------------------------------------------------------------------------------------------


def test_queries_are_counted_on_disk_for_each_receiver_and_a_day(tmp_path: Path) -> None:
    now = [1e9]
    log = QueryLog(tmp_path / "queries.jsonl", lambda: now[0])
    for _ in range(3):
        log.admit("a", 3)
    with pytest.raises(QueryRefused, match="'a' has made 3 queries within 24 hours; 3 are allowed"):
        QueryLog(tmp_path / "queries.jsonl", lambda: now[0]).admit("a", 3)  # another process, after a restart
    log.admit("b", 3)
    now[0] -= 1e6  # a clock that is set back refunds nothing
    with pytest.raises(QueryRefused):
        log.admit("a", 3)
    now[0] += 1e6 + 24 * 3600 + 1
    log.admit("a", 3)


def test_a_query_is_counted_before_it_is_answered_and_a_torn_line_counts(tmp_path: Path) -> None:
    """A process killed right after the sender's first message has left its line; half a line, from one killed
    while it wrote, counts for everybody.
    """
    path = tmp_path / "queries.jsonl"
    counted: list[int] = []

    def change(message: Message) -> Message:
        counted.append(len(path.read_text().splitlines()) if path.exists() else 0)
        return message

    InProcess().run_sync(
        {
            "receiver": functools.partial(psi.receiver, digests=digests(CUSTOMERS[:30]), reveal="size"),
            "sender": lying(honest("size", queries=QueryLog(path)), change),
        }
    )
    assert counted
    assert set(counted) == {1}
    with path.open("a") as file:
        file.write('{"time": 17')
    log = QueryLog(path)
    log.admit("somebody", 2)
    with pytest.raises(QueryRefused, match="made 2 queries"):
        log.admit("somebody", 2)
    assert len(path.read_text().splitlines()) == 3


def test_two_processes_at_once_do_not_share_a_query(tmp_path: Path) -> None:
    log, admitted = QueryLog(tmp_path / "q.jsonl"), []

    def ask() -> None:
        for _ in range(10):
            try:
                log.admit("a", 25)
                admitted.append(1)
            except QueryRefused:
                pass

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 25


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[psi]\nmin_overlaps = 3", "unknown key 'min_overlaps'. Did you mean 'min_overlap'?"),
        ("[psi]\nmin_overlap = -3", "min_overlap is -3; it must be"),
        ('[psi]\nreveal = ["all"]', "reveal is ('all',); it must be one or more of"),
        ("[train]\nx = 1", "has no [psi] table"),
        ("psi = 3", "a table, written as [psi]"),
    ],
)
def test_a_policy_file_with_a_mistake_is_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(tacit.TacitError) as refused:
        read_policy(tmp_path / "policy.toml")
    assert error in str(refused.value)


def test_a_policy_is_read_from_the_kit(tmp_path: Path) -> None:
    assert read_policy(None, tmp_path) == PsiPolicy()
    (tmp_path / "policy.toml").write_text('[psi]\nreveal = ["size"]\nmin_overlap = 50\n[train]\nrounds = 3\n')
    assert read_policy(None, tmp_path) == PsiPolicy(reveal=("size",), min_overlap=50)


# missing ids ------------------------------------------------------------------------------------------------


def test_rows_without_an_id_are_not_the_same_person() -> None:
    """Before: NULL met NULL, and NA met NA."""
    found = tacit.psi(
        ["NULL", "NA", "nan", "None", "n/a", "", "null ", "a"],
        ["null", "na", "NaN", "none", "N/A", None, "a"],
    )
    assert found.value == ["a"]
    assert found.notes[0] == (
        "the ids of 'receiver': 7 of 8 ids are missing (empty, 'n/a', 'na', 'nan', 'none', 'null'; rows 1, "
        "2, 3, 4, 5, …); these rows are "
        "left out."
    )
    assert "6 of 7 ids are missing" in found.notes[1]


# what is declared -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "method"), [("receiver", "oprf"), ("sender", "oprf"), ("receiver", "dh"), ("sender", "dh")]
)
def test_a_declared_count_sizes_nothing(who: str, method: str) -> None:
    """Before: 2^50 declared ids made an array of 2^30 numbers, before one id had come."""

    def change(message: Message) -> Message:
        return replace(message, count=1 << 50) if isinstance(message, psi.Opening) else message

    programs: dict[str, Any] = {
        "receiver": functools.partial(psi.receiver, digests=digests(CUSTOMERS), method=method),
        "sender": functools.partial(psi.sender, digests=digests(CUSTOMERS), method=method),
    }
    programs[who] = lying(programs[who], change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PartyFailed, match=f"max_ids|at most {MAX_IDS} are allowed"):
        InProcess().run_sync(programs)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("who", ["a", "b"])
def test_nor_does_it_among_three(who: str) -> None:
    def change(message: Message) -> Message:
        return (
            replace(message, count=1 << 50)
            if isinstance(message, psi.Opening | psi_many.Session)
            else message
        )

    programs: dict[str, Any] = {
        "a": functools.partial(psi_many.leader, digests=digests(CUSTOMERS), others=["b", "c"])
    }
    programs |= {
        n: functools.partial(psi_many.member, digests=digests(CUSTOMERS), leader="a", others=["b", "c"])
        for n in "bc"
    }
    programs[who] = lying(programs[who], change)
    with pytest.raises(
        PartyFailed, match=rf"declares 1125899906842624 ids; it must be between 0 and {MAX_IDS}"
    ):
        InProcess().run_sync(programs)


def test_the_most_that_may_be_declared_is_laid_out_in_little_memory() -> None:
    """In a process of its own with 1 GiB of address space on top of what the libraries take."""
    code = (
        "import resource, numpy as np\nfrom tacit.protocols.psi_oprf import OprfLayout\nfrom "
        "tacit.protocols.id_buckets import ArrayIds\nfrom tacit.protocols.psi_policy import MAX_IDS\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * "
        "4096\nresource.setrlimit(resource.RLIMIT_AS, (used + 2**30, -1))\n"
        "for lay in (OprfLayout(MAX_IDS, 10, b's' * 32), OprfLayout(10, MAX_IDS, b's' * 32)):\n"
        "    ids = ArrayIds(np.zeros((10, 16), np.uint8))\n"
        "    ids.deal(lay.buckets, lay.key('places'))\n"
        "    print(sum(len(ids.bucket(b)[1]) for b in range(lay.buckets)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(f"[{','.join(done.stdout.split())}]") == [10, 10]
