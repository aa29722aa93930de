"""A matching of several buckets that is stopped resumes at a bucket, and answers no bucket twice."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data.identifiers import first_of_each
from tacit.errors import BadRun, PartyFailed, ProtocolError, QueryRefused
from tacit.jobs.vertical.psi_restart import run_with_restarts
from tacit.jobs.vertical.query_log import QueryLog
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap
from tacit.parties.party import Party, Program, Transport
from tacit.protocols import psi, psi_oprf, psi_resume
from tacit.protocols.id_buckets import ArrayIds, StoredIds
from tacit.protocols.psi_policy import PsiPolicy
from tacit.protocols.psi_resume import Checkpoint, ResumeOffer
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

TERMS = {"participants": ["a", "b"], "method": "oprf"}
MINE, THEIRS = digests(range(400)), digests(range(200, 700))


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_oprf, "BUCKET", 100)  # five buckets
    monkeypatch.setattr(psi_oprf, "CHUNK", 1 << 12)  # a store is one message


def party(name: str, ids: Any, folder: Path, reveal: str = "both", **more: Any) -> Program:
    """A party; each start has nothing but its ids and its folder."""
    other = "b" if name == "a" else "a"

    async def program(me: Party) -> Any:
        record = Checkpoint(folder / name, TERMS)
        inner = functools.partial(
            psi.receiver if name == "a" else psi.sender,
            digests=ids,
            other=other,
            method="oprf",
            reveal=reveal,
            checkpoint=record,
            **more,
        )
        return await run_with_restarts(
            me.scope("psi"), [other], TERMS, inner, None, lambda: bool(record.state)
        )

    return program


class Ending:
    """A transport that ends its party where it would send a message of a kind about a bucket."""

    def __init__(self, inner: Transport, kind: type, bucket: int, event: asyncio.Event):
        self.inner, self.kind, self.bucket, self.event = inner, kind, bucket, event

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        message = decode(frame)
        if isinstance(message, self.kind) and message.bucket == self.bucket and not self.event.is_set():
            self.event.set()
            await asyncio.Event().wait()
        await self.inner.deliver(sender, to, scope, frame)


def killed(
    program: Program,
    kind: type,
    bucket: int,
    again: Program | None = None,
    meanwhile: Callable[[], Any] = lambda: None,
) -> Program:
    """Killed before it sends this message, and started again as `again`."""

    async def restarted(me: Party) -> Any:
        event = asyncio.Event()
        task = asyncio.ensure_future(
            program(replace(me, transport=Ending(me.transport, kind, bucket, event)))
        )
        await asyncio.wait([task, asyncio.ensure_future(event.wait())], return_when="FIRST_COMPLETED")
        assert event.is_set(), await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        meanwhile()
        return await (again or program)(me)

    return restarted


def answers(tap: Tap) -> dict[int, set[bytes]]:
    """The different answers to each bucket."""
    found: dict[int, set[bytes]] = defaultdict(set)
    for _, _, _, frame in tap.frames:
        if kind_of(frame) == "Outputs":
            message: Any = decode(frame)
            found[message.bucket].add(message.outputs)
    return found


def count(tap: Tap, kind: str) -> int:
    return sum(kind_of(frame) == kind for _, _, _, frame in tap.frames)


@pytest.mark.parametrize(
    ("who", "kind", "bucket"),
    [
        ("a", psi_oprf.Noise, 2),
        ("a", psi_oprf.Store, 3),
        ("a", psi.SharedIds, 1),
        ("b", psi_oprf.Trees, 3),
        ("b", psi_oprf.Outputs, 2),
        ("b", psi_oprf.Outputs, 4),
        ("b", psi.SharedRead, 1),
    ],
)
@pytest.mark.parametrize("where", ["memory", "files"])
def test_a_matching_resumes_at_the_bucket_where_a_party_was_killed(
    who: str, kind: type, bucket: int, where: str, tmp_path: Path
) -> None:
    """The same result as without the kill; one query, one session, one answer to each bucket."""
    sets: dict[str, Any] = {"a": MINE, "b": THEIRS}
    if where == "files":
        for name, ids in list(sets.items()):
            (tmp_path / f"{name}-ids").mkdir()
            sets[name] = StoredIds(tmp_path / f"{name}-ids", 6)
            sets[name].add(ids, np.arange(len(ids)))
            sets[name].finish(first_of_each)
    log = QueryLog(tmp_path / "queries.jsonl")
    programs = {"a": party("a", sets["a"], tmp_path), "b": party("b", sets["b"], tmp_path, queries=log)}
    programs[who] = killed(programs[who], kind, bucket)
    tap = Tap()
    result = InProcess().run_sync(tap.on(programs))
    rows = {n: np.concatenate(list(r["rows"])) if where == "files" else r["rows"] for n, r in result.items()}
    assert sorted(rows["a"].tolist()) == list(range(200, 400))
    assert np.array_equal(MINE[rows["a"]], THEIRS[rows["b"]])
    assert count(tap, "Opening") == 2
    assert len(log.path.read_text().splitlines()) == 1
    assert {b: len(each) for b, each in answers(tap).items()} == dict.fromkeys(range(5), 1)
    assert count(tap, "BaseOffer") == 2  # keys of the vector OLE are new


def test_both_parties_may_be_killed_one_after_the_other(tmp_path: Path) -> None:
    programs = {
        "a": killed(party("a", MINE, tmp_path), psi_oprf.Store, 1),
        "b": killed(party("b", THEIRS, tmp_path), psi_oprf.Outputs, 3),
    }
    tap = Tap()
    result = InProcess().run_sync(tap.on(programs))
    assert np.array_equal(MINE[result["a"]["rows"]], THEIRS[result["b"]["rows"]])
    assert result["a"]["size"] == 200
    assert count(tap, "Opening") == 2
    assert {len(each) for each in answers(tap).values()} == {1}


# attacks ----------------------------------------------------------------------------------------------------


def test_a_receiver_that_comes_back_with_other_ids_gets_no_answer(tmp_path: Path) -> None:
    """Its own program notices that the ids are others, and the sender refuses a new matching."""
    again = party("a", digests(range(300, 700)), tmp_path)
    programs = {
        "a": killed(party("a", MINE, tmp_path), psi_oprf.Store, 3, again),
        "b": party("b", THEIRS, tmp_path),
    }
    tap = Tap()
    with pytest.raises(
        PartyFailed, match="'a' was restarted after 'b' had answered, and has no record"
    ) as failed:
        InProcess().run_sync(tap.on(programs))
    assert isinstance(failed.value.error, QueryRefused)
    assert {b: len(each) for b, each in answers(tap).items()} == dict.fromkeys(range(3), 1)


def test_a_receiver_that_lies_about_its_ids_gets_no_second_answer_to_a_bucket(tmp_path: Path) -> None:
    """It forges its record for other ids. Buckets that were answered stay answered for the first ones, so it
    evaluates the function at no more ids than it declared.
    """
    other = digests(range(300, 700))

    def forge() -> None:
        file = tmp_path / "a" / "state.json"
        state = json.loads(file.read_text())
        ids = ArrayIds(other)
        layout = psi_oprf.OprfLayout(400, 500, bytes.fromhex(state["session"]))
        ids.deal(layout.buckets, layout.key("places"))
        file.write_text(json.dumps({**state, "ids": ids.fingerprint}))
        for b in range(5):  # and what it says it asked before
            (tmp_path / "a" / f"own-{b}").write_bytes(bytes(layout.output * len(ids.bucket(b)[1])))

    honest = party("a", MINE, tmp_path, "receiver")
    lying = party("a", other, tmp_path, "receiver")
    tap = Tap()
    result = InProcess().run_sync(
        tap.on(
            {
                "a": killed(honest, psi_oprf.Noise, 3, lying, forge),
                "b": party("b", THEIRS, tmp_path, "receiver"),
            }
        )
    )
    assert {b: len(each) for b, each in answers(tap).items()} == dict.fromkeys(range(5), 1)
    assert count(tap, "Opening") == 2
    assert 0 < result["a"]["size"] < 300  # of its 400 other ids, all of which the sender has: of two buckets


@pytest.mark.parametrize(
    ("who", "change", "text"),
    [
        (
            "a",
            lambda m: replace(m, done=0),
            r"claims to have 0 of 5 buckets, and 'b' has [34]; the sender is ahead",
        ),
        ("a", lambda m: replace(m, done=5), r"claims to have 5 of 5 buckets"),
        ("b", lambda m: replace(m, done=9), r"claims to have 9 of 5 buckets"),
        ("b", lambda m: replace(m, done=0), r"claims to have 0 of 5 buckets"),
        ("a", lambda m: replace(m, done=-1), "an offer to resume that cannot be read"),
        ("a", lambda m: replace(m, nonce=b""), "an offer to resume that cannot be read"),
        ("b", lambda m: replace(m, mark=m.mark + b"x"), "an offer to resume that cannot be read"),
        ("a", lambda m: replace(m, mark=bytes(16)), "has no record of that matching"),
        ("a", lambda m: replace(m, mark=b""), "has no record of that matching"),
    ],
)
def test_a_false_record_is_refused(who: str, change: Any, text: str, tmp_path: Path) -> None:
    """After the kill of `a`, one party lies about how far it is, or about which matching."""

    def lie(held: list[Any], message: ResumeOffer) -> list[Any]:
        return [change(message) if message.mark else message]

    programs = {"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)}
    programs["a"] = killed(programs["a"], psi_oprf.Store, 3)
    programs[who] = meddled(programs[who], ResumeOffer, lie)
    tap = Tap()
    with pytest.raises(PartyFailed, match=text) as failed:
        InProcess().run_sync(tap.on(programs))
    assert isinstance(failed.value.error, ProtocolError | QueryRefused)
    assert set(answers(tap)) == {0, 1, 2}


def test_an_owner_who_changed_the_policy_in_the_meantime_answers_no_more(tmp_path: Path) -> None:
    again = party("b", THEIRS, tmp_path, policy=PsiPolicy(reveal=("size",)))
    programs = {
        "a": party("a", MINE, tmp_path),
        "b": killed(party("b", THEIRS, tmp_path), psi_oprf.Trees, 3, again),
    }
    tap = Tap()
    with pytest.raises(PartyFailed, match=r"the policy of 'b' refused the query \(reveal\)"):
        InProcess().run_sync(tap.on(programs))
    assert set(answers(tap)) == {0, 1, 2}


# records ----------------------------------------------------------------------------------------------------


def test_a_record_shows_no_digest_and_is_private(tmp_path: Path) -> None:
    programs = {
        "a": killed(party("a", MINE, tmp_path), psi_oprf.Store, 3, party("a", MINE[:-1], tmp_path)),
        "b": party("b", THEIRS, tmp_path),
    }
    with pytest.raises(PartyFailed):
        InProcess().run_sync(programs)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert {folder.stat().st_mode & 0o777 for folder in (tmp_path / "a", tmp_path / "b")} == {0o700}
    assert {file.name for file in files} >= {
        "state.json",
        "found-0",
        "found-1",
        "own-3",
        "answer-1",
        "answer-2",
    }
    assert not (tmp_path / "b" / "answer-0").exists()  # the receiver has it
    content = b"\n".join(file.read_bytes() for file in files)
    windows = {content[k : k + 6] for k in range(len(content))}
    assert not windows & {bytes(d)[at : at + 6] for d in (*MINE, *THEIRS) for at in (0, 6)}


def test_a_damaged_record_is_refused_and_not_forgotten(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"format": 1}', '{"format": 2, "mine": 1, "theirs": 1, "ids": 1, "done": 0}'):
        (tmp_path / "state.json").write_text(content)
        with pytest.raises(BadRun, match=r"state\.json cannot be read: .* Remove .* to begin a new one"):
            Checkpoint(tmp_path, TERMS).read()
    record = Checkpoint(tmp_path, TERMS)
    with pytest.raises(BadRun, match="own-1 cannot be read: No such file"):
        record.own(1, 3, 8)
    (tmp_path / "answer-1").write_bytes(b"short")
    with pytest.raises(BadRun, match="answer-1 has 5 bytes; expected 80"):
        record.answer(1, 80)


def test_the_same_ids_in_other_rows_or_other_terms_are_another_matching(tmp_path: Path) -> None:
    ids, moved = ArrayIds(MINE), ArrayIds(MINE[::-1].copy())
    for one in (ids, moved):
        one.deal(5, b"k" * 32)
    assert ids.fingerprint != moved.fingerprint  # found rows would be those of other people
    Checkpoint(tmp_path / "x", TERMS).begin(b"s" * 32, 5, ids)
    record = Checkpoint(tmp_path / "x", {**TERMS, "method": "auto"})
    record.read()
    assert record.mark() == b""
    record = Checkpoint(tmp_path / "x", TERMS)
    record.read()
    assert len(record.mark()) == psi_resume.MARK
    assert psi_resume.KEPT == psi_oprf.AHEAD
