"""Attacks on a matching that resumes: a partner that claims a record it has not, or to have lost it; a disk that
is full; a record that is old, changed or another party's; two processes with one record.

The first run of each test ends with a party that is killed; what is left is what is on the disks. The second
run has new processes: they know nothing but their ids and their folders.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import BadRun, PartyFailed, ProtocolError, QueryRefused
from tacit.jobs.vertical import psi_deployed
from tacit.jobs.vertical.query_log import QueryLog
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.parties.party import Party, Program, Transport
from tacit.protocols import psi, psi_oprf, psi_resume
from tacit.protocols.psi_policy import PsiPolicy
from tacit.protocols.psi_resume import Checkpoint, ResumeOffer
from tacit.runtimes.inprocess import InProcess
from tests.jobs.test_psi_resume import MINE, TERMS, THEIRS, answers, count, killed, party
from tests.protocols.test_psi import digests, meddled

OTHER = digests(range(300, 700))  # as many as MINE


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_oprf, "BUCKET", 100)  # five buckets
    monkeypatch.setattr(psi_oprf, "CHUNK", 1 << 12)  # a store is one message


async def gone(me: Party) -> Any:
    raise RuntimeError("not started again")


def stop(folder: Path, who: str, kind: type, bucket: int, reveal: str = "both") -> Tap:
    """Run until `who` is killed before it sends this message; the other ends, too. Both records stay."""
    programs = {"a": party("a", MINE, folder, reveal), "b": party("b", THEIRS, folder, reveal)}
    programs[who] = killed(programs[who], kind, bucket, gone)
    tap = Tap()
    with pytest.raises(PartyFailed, match="not started again"):
        InProcess().run_sync(tap.on(programs))
    return tap


def resume(programs: dict[str, Program]) -> tuple[dict[str, Any], Tap]:
    tap = Tap()
    return InProcess().run_sync(tap.on(programs)), tap


def different_answers(*taps: Tap) -> dict[int, int]:
    """The number of different answers to each bucket, in all runs."""
    found: dict[int, set[bytes]] = {}
    for tap in taps:
        for b, each in answers(tap).items():
            found.setdefault(b, set()).update(each)
    return {b: len(each) for b, each in found.items()}


# a partner that lies about its record -----------------------------------------------------------------------


def test_a_sender_that_lost_its_record_learns_nothing_about_a_second_set(tmp_path: Path) -> None:
    """Before: after it had been told what is shared, it brought another set, and was told about that, too. The
    receiver counts no queries, so nothing else would have stopped it.
    """
    first = stop(tmp_path, "a", psi.SharedIds, 1)
    assert count(first, "SharedIds") == 1
    shutil.rmtree(tmp_path / "b")
    tap = Tap()
    with pytest.raises(
        PartyFailed, match=r"'b' has no record of the matching that 'a' has in .*/a, in which"
    ):
        InProcess().run_sync(tap.on({"a": party("a", MINE, tmp_path), "b": party("b", OTHER, tmp_path)}))
    assert count(tap, "SharedIds") == count(tap, "Opening") == 0
    shutil.rmtree(tmp_path / "a")  # the owner of a agrees to a new one
    result, _ = resume({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)})
    assert result["a"]["size"] == 200


def test_a_sender_that_lost_its_record_before_anything_was_shown_begins_a_new_query(tmp_path: Path) -> None:
    stop(tmp_path, "a", psi_oprf.Store, 3)
    shutil.rmtree(tmp_path / "b")
    log = QueryLog(tmp_path / "q.jsonl")
    result, tap = resume({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path, queries=log)})
    assert result["a"]["size"] == 200
    assert count(tap, "Opening") == 2
    assert len(log.path.read_text().splitlines()) == 1


def test_a_sender_that_claims_a_bucket_it_was_not_asked_for_is_named(tmp_path: Path) -> None:
    stop(tmp_path, "a", psi_oprf.Noise, 2)
    assert not (tmp_path / "a" / "own-2").exists()
    lying = meddled(
        party("b", THEIRS, tmp_path), ResumeOffer, lambda _, m: [replace(m, done=3)] if m.mark else [m]
    )
    why = "'b' claims to have answered bucket 3 of 5, which 'a' has not asked for. Nothing was sent"
    with pytest.raises(PartyFailed, match=why) as failed:
        InProcess().run_sync({"a": party("a", MINE, tmp_path), "b": lying})
    assert isinstance(failed.value.error, ProtocolError)


def test_answers_that_are_sent_again_count_as_answers(tmp_path: Path) -> None:
    """The receiver takes the last answers from the sender's new process, and then claims to have no record: it
    would get a second matching in the same start.
    """
    first = stop(tmp_path, "b", psi_oprf.Outputs, 3)  # it is on the sender's disk, and was not sent
    again = party("a", OTHER, tmp_path)
    programs = {
        "a": killed(
            party("a", MINE, tmp_path), psi_oprf.Noise, 4, again, lambda: shutil.rmtree(tmp_path / "a")
        ),
        "b": party("b", THEIRS, tmp_path),
    }
    tap = Tap()
    with pytest.raises(PartyFailed, match="restarted after 'b' had answered, and has no record") as failed:
        InProcess().run_sync(tap.on(programs))
    assert isinstance(failed.value.error, QueryRefused)
    assert different_answers(first, tap) == dict.fromkeys(range(4), 1)


@pytest.mark.parametrize("bucket", [0, 2, 4])
def test_a_bucket_cannot_be_asked_for_again_or_out_of_turn_after_a_stop(bucket: int, tmp_path: Path) -> None:
    first = stop(tmp_path, "a", psi_oprf.Store, 3)
    asking = meddled(party("a", OTHER, tmp_path), psi_oprf.Noise, lambda _, m: [replace(m, bucket=bucket)])
    forge(tmp_path / "a", OTHER)
    tap = Tap()
    with pytest.raises(PartyFailed, match=rf"received a message for \({bucket},\), expected \(3,\)"):
        InProcess().run_sync(tap.on({"a": asking, "b": party("b", THEIRS, tmp_path)}))
    assert different_answers(first, tap) == dict.fromkeys(range(3), 1)


def forge(folder: Path, ids: np.ndarray) -> None:
    """A receiver's record for other ids than those of the first run."""
    state = json.loads((folder / "state.json").read_text())
    held = psi.ArrayIds(ids)
    layout = psi_oprf.OprfLayout(len(ids), len(THEIRS), bytes.fromhex(state["session"]))
    held.deal(layout.buckets, layout.key("places"))
    (folder / "state.json").write_text(json.dumps({**state, "ids": held.fingerprint}))
    for b in range(5):
        (folder / f"own-{b}").write_bytes(bytes(layout.output * len(held.bucket(b)[1])))


def test_many_stops_with_other_ids_each_time_evaluate_one_set(tmp_path: Path) -> None:
    """The receiver resumes five times, each time with a record for ids of its choice: five buckets, five answers."""
    taps = [stop(tmp_path, "a", psi_oprf.Store, 1, "receiver")]
    for k in range(2, 5):
        mine = digests(range(100 * k, 100 * k + 400))
        forge(tmp_path / "a", mine)
        tap = Tap()
        programs = {
            "a": killed(party("a", mine, tmp_path, "receiver"), psi_oprf.Store, k, gone),
            "b": party("b", THEIRS, tmp_path, "receiver"),
        }
        with pytest.raises(PartyFailed, match="not started again"):
            InProcess().run_sync(tap.on(programs))
        taps.append(tap)
    forge(tmp_path / "a", OTHER)
    _, last = resume(
        {
            "a": party("a", OTHER, tmp_path, "receiver"),
            "b": party("b", THEIRS, tmp_path, "receiver", policy=PsiPolicy(queries_per_day=1)),
        }
    )
    assert different_answers(*taps, last) == dict.fromkeys(range(5), 1)
    assert sum(count(tap, "Opening") for tap in (*taps, last)) == 2


def test_a_third_party_with_the_record_of_another_gets_a_new_query(tmp_path: Path) -> None:
    """It was given the receiver's folder, changes the names in it, and asks the same sender in its own name."""
    first = stop(tmp_path, "a", psi_oprf.Store, 3)
    terms = {**TERMS, "participants": ["b", "c"]}
    state = json.loads((tmp_path / "a" / "state.json").read_text())
    (tmp_path / "a" / "state.json").write_text(json.dumps({**state, "terms": terms}))
    record = Checkpoint(tmp_path / "b", terms)  # even where the sender looked into the same folder
    record.read()
    assert record.mark() == b""
    assert psi_deployed._record_folder(tmp_path, terms) != psi_deployed._record_folder(tmp_path, TERMS)
    log = QueryLog(tmp_path / "q.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.jobs.test_psi_resume.TERMS", terms)
        _, tap = resume({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path, queries=log)})
    assert count(tap, "Opening") == 2
    assert len(log.path.read_text().splitlines()) == 1
    assert not {m for each in answers(first).values() for m in each} & {
        m for each in answers(tap).values() for m in each
    }


def test_an_owner_who_allows_no_more_queries_does_not_resume(tmp_path: Path) -> None:
    first = stop(tmp_path, "a", psi_oprf.Store, 3)
    log, rules = QueryLog(tmp_path / "q.jsonl"), PsiPolicy(queries_per_day=0)
    tap = Tap()
    with pytest.raises(PartyFailed, match=r"the policy of 'b' refused the query \(queries_per_day\)"):
        InProcess().run_sync(
            tap.on(
                {
                    "a": party("a", MINE, tmp_path),
                    "b": party("b", THEIRS, tmp_path, queries=log, policy=rules),
                }
            )
        )
    assert different_answers(first, tap) == dict.fromkeys(range(3), 1)


# disks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("who", "name"), [("b", "answer-2"), ("a", "own-2"), ("a", "found-2")])
def test_a_full_disk_ends_the_matching_with_its_reason_and_it_resumes(
    who: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that cannot be kept is not sent."""
    write = psi_resume.write_atomic

    def full(path: Path, *content: Any, **more: Any) -> None:
        if path.name == name and path.parent.name == who:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *content, **more)

    first = Tap()
    with monkeypatch.context() as patch:
        patch.setattr(psi_resume, "write_atomic", full)
        with pytest.raises(PartyFailed, match=rf"{who}/{name} cannot be written: No space left") as failed:
            InProcess().run_sync(
                first.on({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)})
            )
    assert isinstance(failed.value.error, BadRun)
    assert "it resumes" in str(failed.value.error)
    result, tap = resume({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)})
    assert result["a"]["size"] == result["b"]["size"] == 200
    assert count(tap, "Opening") == 0
    assert different_answers(first, tap) == dict.fromkeys(range(5), 1)


def test_an_answer_is_on_the_disk_with_its_name_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the folder, a power failure would take the new name away, and the bucket would be answered again."""
    events: list[str] = []
    flush = psi_resume.flush_folder

    def flushed(folder: Path) -> None:
        flush(folder)
        if folder.name == "b":
            events.append(json.loads((folder / "state.json").read_text())["done"])

    class Watching:
        def __init__(self, inner: Transport):
            self.inner = inner

        async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
            message = decode(frame)
            if isinstance(message, psi_oprf.Outputs):
                assert events[-1] == message.bucket + 1
                assert (tmp_path / "b" / f"answer-{message.bucket}").read_bytes() == message.outputs
            await self.inner.deliver(sender, to, scope, frame)

    monkeypatch.setattr(psi_resume, "flush_folder", flushed)
    sender = party("b", THEIRS, tmp_path)

    async def watched(me: Party) -> Any:
        return await sender(replace(me, transport=Watching(me.transport)))

    InProcess().run_sync({"a": party("a", MINE, tmp_path), "b": watched})
    assert max(events) == 5


def test_old_answers_are_matched_before_the_next_store_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a receiver that is stopped twice falls further behind than the answers the sender keeps, and
    honest parties refuse each other.
    """
    stop(tmp_path, "b", psi_oprf.Outputs, 3)
    events: list[str] = []
    keep, request = Checkpoint.keep_found, psi_oprf.make_store

    def kept(self: Checkpoint, b: int, places: np.ndarray) -> None:
        events.append(f"found {b}")
        keep(self, b, places)

    async def asked(me: Party, other: str, layout: Any, vole: Any, b: int, keys: np.ndarray) -> Any:
        events.append(f"ask {b}")
        return await request(me, other, layout, vole, b, keys)

    monkeypatch.setattr(Checkpoint, "keep_found", kept)
    monkeypatch.setattr(psi_oprf, "make_store", asked)
    resume({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)})
    assert events == ["found 3", "ask 4", "found 4"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"done": 6}, "records 6 of 5 buckets: it was changed"),
        ({"done": -1}, "a number is out of range"),
        ({"theirs": 10**30}, "a number is out of range"),
        ({"mine": True}, "it has another format"),
        ({"session": "00"}, "it has another format"),
        ({"session": "xy"}, "state.json cannot be read"),
        ({"shown": 0}, "it has another format"),
        ({"format": 1}, "it has another format"),
    ],
)
def test_a_record_that_was_changed_is_refused(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    stop(tmp_path, "a", psi_oprf.Store, 3)
    file = tmp_path / "b" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(PartyFailed, match=text) as failed:
        InProcess().run_sync({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)})
    assert isinstance(failed.value.error, BadRun)
    assert failed.value.party == "b"


def test_files_of_a_record_that_were_changed_are_refused(tmp_path: Path) -> None:
    stop(tmp_path, "a", psi_oprf.Store, 3)
    (tmp_path / "a" / "found-0").write_bytes(b"seven b")
    with pytest.raises(PartyFailed, match=r"found-0 has 7 bytes, not rows of 8\. Remove the folder"):
        InProcess().run_sync({"a": party("a", MINE, tmp_path), "b": party("b", THEIRS, tmp_path)})
    (tmp_path / "a" / "state.json").write_text("[" * 100_000)
    with pytest.raises(BadRun, match=r"state\.json cannot be read"):
        Checkpoint(tmp_path / "a", TERMS).read()


def test_a_kill_while_a_record_is_removed_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: the state could outlive the files it refers to."""
    stop(tmp_path, "a", psi_oprf.Store, 3)

    def die(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    record = Checkpoint(tmp_path / "a", TERMS)
    with pytest.raises(KeyboardInterrupt):
        record.clear()
    record.read()
    assert record.mark() == b""


def test_two_processes_cannot_use_one_record(tmp_path: Path) -> None:
    """Their answers would be mixed, and a party would get answers to another's ids."""

    def hold() -> Iterator[Callable[[], None]]:
        with Checkpoint(tmp_path / "x", TERMS).held():
            yield lambda: None

    holding = hold()
    next(holding)
    with (
        pytest.raises(BadRun, match=r"another process of this party is in the same matching .* End it first"),
        Checkpoint(tmp_path / "x", TERMS).held(),
    ):
        pass
    with Checkpoint(tmp_path / "y", TERMS).held():  # another matching
        pass
    holding.close()
    with Checkpoint(tmp_path / "x", TERMS).held():
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BadRun, match=r"x\.lock cannot be written: (Not a directory|File exists)"),
        Checkpoint(tmp_path / "file" / "x", TERMS).held(),
    ):
        pass
    with pytest.raises(
        PartyFailed, match=r"cannot be written: Not a directory\. A matching that can"
    ) as failed:
        InProcess().run_sync(
            {"a": party("a", MINE, tmp_path / "file"), "b": party("b", THEIRS, tmp_path / "b")}
        )
    assert isinstance(failed.value.error, BadRun)
