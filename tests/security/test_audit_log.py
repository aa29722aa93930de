"""A party's audit log: whatever is edited, removed, inserted, moved or cut shows, as far as a chain can show it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tacit.errors import BadRun
from tacit.jobs.audit_log import HEAD, NAME, AuditLog, canonical, hash_of
from tests import warm


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    log = AuditLog(tmp_path)
    for n in range(6):
        log.append("answer", job="ab" * 32, what=f"update of round {n}")
    return log


def lines(log: AuditLog) -> list[bytes]:
    return log.file.read_bytes().splitlines(keepends=True)


def rehash(line: bytes, **changes: object) -> bytes:
    entry = json.loads(line) | changes
    return canonical(entry | {"hash": hash_of(entry)}).encode() + b"\n"


def test_a_chain_is_complete_and_private(log: AuditLog, tmp_path: Path) -> None:
    found = log.verify()
    assert found.problems == ()
    assert [e["n"] for e in found.entries] == [1, 2, 3, 4, 5, 6]
    assert found.head == found.entries[-1]["hash"]
    assert log.verify(found.entries[2]["hash"]).problems == ()
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    assert AuditLog(tmp_path / "empty").verify().problems == ()


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("how", ["edited", "edited and hashed again", "removed", "repeated", "spaces"])
def test_a_changed_line_is_found_wherever_it_is(log: AuditLog, at: int, how: str) -> None:
    old = lines(log)
    new = {
        "edited": [old[at].replace(b"update", b"refuse")],
        "edited and hashed again": [rehash(old[at], what="nothing")],
        "removed": [],
        "repeated": [old[at], old[at]],
        "spaces": [old[at].replace(b":", b": ", 1)],
    }[how]
    log.file.write_bytes(b"".join([*old[:at], *new, *old[at + 1 :]]))
    assert log.verify().problems
    with pytest.raises(BadRun, match="was modified"):
        log.read()  # no decision is taken from it


def test_lines_that_change_places_are_found(log: AuditLog) -> None:
    old = lines(log)
    log.file.write_bytes(b"".join([old[0], old[2], old[1], *old[3:]]))
    assert "does not follow the line before it" in log.verify().problems[0]


def test_a_removed_end_is_found_by_the_head_file_and_nothing_is_added(log: AuditLog) -> None:
    log.file.write_bytes(b"".join(lines(log)[:4]))
    assert log.verify().problems == (f"Entries are missing at the end: there are 4, and {HEAD} says 6.",)
    with pytest.raises(BadRun, match="entries are missing at the end of"):
        log.append("answer")
    log.file.unlink()
    with pytest.raises(BadRun, match="its last is number 0"):
        log.append("answer")


def test_only_a_head_known_elsewhere_shows_an_end_removed_from_both_files_or_a_new_chain(
    log: AuditLog, tmp_path: Path
) -> None:
    head = log.verify().head
    kept = lines(log)[:4]
    log.file.write_bytes(b"".join(kept))
    last = json.loads(kept[-1])
    log.head_file.write_text(canonical({"n": 4, "hash": last["hash"]}))
    assert log.verify().problems == ()  # the limit of a chain, which the documentation states
    assert "No entry has the hash" in log.verify(head).problems[0]
    log.file.unlink()
    log.head_file.unlink()
    log.append("answer", what="an invented history")
    assert log.verify().problems == ()
    assert "No entry has the hash" in log.verify(head).problems[0]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"n": "x", "hash": 3}'])
def test_a_changed_head_file_is_found(log: AuditLog, content: str) -> None:
    log.head_file.write_text(content)
    assert "was modified" in log.verify().problems[0]
    with pytest.raises(BadRun, match="was modified"):
        log.append("answer")
    log.head_file.unlink()
    assert "is missing" in log.verify().problems[0]


@pytest.mark.parametrize("junk", [b"null\n", b"[]\n", b'{"n":7}\n', b"\xff\n", b"[" * 100_000 + b"\n"])
def test_a_foreign_line_at_the_end_is_no_entry_and_stops_the_party(log: AuditLog, junk: bytes) -> None:
    with log.file.open("ab") as file:
        file.write(junk)
    assert log.verify().problems
    with pytest.raises(BadRun):
        log.append("answer")


def test_a_line_cut_off_by_a_crash_is_reported_and_replaced_by_the_next_entry(log: AuditLog) -> None:
    with log.file.open("ab") as file:
        file.write(b'{"n":7,"kind":"ans')
    assert "The last line is incomplete" in log.verify().problems[0]
    log.append("answer")
    assert log.verify().problems == ()
    assert len(log.read()) == 7


def test_processes_that_append_together_make_one_chain_and_a_kill_leaves_it_complete(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tacit.jobs.audit_log import AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]))\n"
        "for n in range(int(sys.argv[2])): log.append('answer', what=str(n)); time.sleep(0.01)"
    )

    def start(count: int) -> warm.Popen:
        argv = [sys.executable, "-c", program, str(tmp_path), str(count)]
        return warm.Popen(argv)

    endless = start(10**9)
    while not (tmp_path / HEAD).exists():
        assert endless.poll() is None
        time.sleep(0.005)
    first, second = start(20), start(20)
    while first.poll() is None:
        assert AuditLog(tmp_path).verify().problems == ()
    assert [first.wait(300), second.wait(300)] == [0, 0]
    os.kill(endless.pid, signal.SIGKILL)
    endless.wait(300)
    log = AuditLog(tmp_path)
    log.append("answer")  # ends what the kill cut off, if it did
    assert log.verify().problems == ()
    whats = [e.get("what") for e in log.read()]
    assert all(whats.count(str(n)) >= 2 for n in range(20))


def test_nothing_is_appended_while_a_log_is_read(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: an entry that another process added between the reading of the log and that of its head made the
    log look cut, and a party that waited for its owner's decision ended.
    """
    read_head, looks = AuditLog._read_head, []

    def while_another_process_appends(self: AuditLog) -> object:
        with self.file.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        looks.append(1)
        return read_head(self)

    monkeypatch.setattr(AuditLog, "_read_head", while_another_process_appends)
    assert log.verify().problems == ()
    assert looks == [1]


def test_a_log_whose_file_is_gone_while_its_head_is_there_is_reported(log: AuditLog) -> None:
    log.file.unlink()
    assert "there are 0, and audit.head says 6" in log.verify().problems[0]


def test_a_log_that_is_begun_while_it_is_read_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes the first entry after this one has looked for the log."""
    log, exists = AuditLog(tmp_path), Path.exists

    def begun(self: Path) -> bool:
        if not exists(log.file):
            AuditLog(tmp_path).append("answer")
        return exists(self)

    monkeypatch.setattr(Path, "exists", begun)
    found = log.verify()
    assert (len(found.entries), found.problems) == (1, ())


def test_a_long_text_of_a_server_is_shortened(tmp_path: Path) -> None:
    entry = AuditLog(tmp_path).append("refused", reason="x" * 10**6)
    assert len(entry["reason"]) == 2000
    assert AuditLog(tmp_path).verify().problems == ()
