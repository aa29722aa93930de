"""What a party has answered is on its disk before an answer leaves, and no crash, restart or second process
makes it answer twice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import BadRun, ProtocolError
from tacit.jobs.train.record import Record
from tacit.protocols.consent import OneSum
from tests import warm

A, B = ["a", "b", "c"], ["a", "b"]


def test_a_party_commits_to_its_participants_then_to_the_sum(tmp_path: Path) -> None:
    paid: list[int] = []
    record = Record(tmp_path, "p", "contract")
    assert record.commit("update", 0, lambda: paid.append(1)).upload(A)
    again = Record(tmp_path, "p", "contract")  # after a restart
    assert again.commit("update", 0, lambda: paid.append(1)).upload(A)
    assert not again.commit("update", 0).upload(B)
    assert not again.commit("update", 0).upload(None)
    assert again.commit("update", 0).reveal()
    assert not Record(tmp_path, "p", "contract").commit("update", 0).reveal()
    assert not Record(tmp_path, "p", "contract").commit("update", 0).upload(A)
    assert Record(tmp_path, "p", "contract").spent("update", 0)
    assert not again.spent("test", 0)
    assert paid == [1]  # one release a round: at most one of its tries is opened
    assert Record(tmp_path, "p", "another contract").commit("update", 0).upload(B)
    assert Record(tmp_path, "q", "contract").commit("update", 0).upload(B)


def test_if_one_party_can_open_a_sum_alone_the_upload_is_final(tmp_path: Path) -> None:
    assert Record(tmp_path, "p", "c").commit("update", 0).upload(None)
    assert not Record(tmp_path, "p", "c").commit("update", 0).upload(None)
    assert not Record(tmp_path, "p", "c").commit("update", 0).upload(A)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.sampled_from(["upload A", "upload B", "upload none", "reveal"]), max_size=8))
def test_memory_and_disk_decide_alike(steps: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, memory = tmp_path_factory.mktemp("record"), OneSum()
    for step in steps:
        mine = Record(folder, "p", "c").commit("update", 0)
        if step == "reveal":
            assert mine.reveal() == memory.reveal()
        else:
            among = {"upload A": A, "upload B": B, "upload none": None}[step]
            assert mine.upload(among) == memory.upload(among)


def test_one_value_is_bound_for_ever_unless_the_owner_allows_another_run(tmp_path: Path) -> None:
    record = Record(tmp_path, "p", "c")
    record.bind("model 3", b"one")
    record.commit("update", 3).reveal()
    Record(tmp_path, "p", "c").bind("model 3", b"one")
    with pytest.raises(
        ProtocolError, match=r"a different model 3 than before.* restart the party with --again"
    ):
        Record(tmp_path, "p", "c").bind("model 3", b"two")
    Record(tmp_path, "p", "c").allow_again()
    after = Record(tmp_path, "p", "c")
    after.bind("model 3", b"two")
    assert after.spent("update", 3)  # hidden sums stay spent


def test_a_line_cut_short_by_a_crash_is_as_if_it_had_not_been_and_a_damaged_one_is_refused(
    tmp_path: Path,
) -> None:
    record = Record(tmp_path, "p", "c")
    assert record.commit("update", 0).reveal()
    with open(record.file, "ab") as out:
        out.write(b'{"what": "reveal", "kind": "upd')
    again = Record(tmp_path, "p", "c")
    assert again.spent("update", 0)
    assert again.commit("update", 1).reveal()
    assert [json.loads(line)["round"] for line in record.file.read_text().splitlines()] == [0, 1]
    record.file.write_text(record.file.read_text().replace("reveal", "r3veal", 1))
    with pytest.raises(BadRun, match=r"It records what this party has answered\. Restore it from a copy"):
        Record(tmp_path, "p", "c")


PLAY = """
import sys
from contextlib import suppress
from pathlib import Path
from tacit.jobs.train.record import Record
record = Record(Path(sys.argv[1]), "p", "c")
for r in range(200):
    if record.commit("update", r).reveal():
        sys.stdout.write(f"{r}\\n")  # what stands for sending the shares
        sys.stdout.flush()
"""


def test_processes_of_one_party_that_are_killed_at_any_moment_reveal_no_round_twice(tmp_path: Path) -> None:
    """Two at a time, each killed after some of its lines have come; then one to the end."""
    sent: list[int] = []
    for kills in ((3, 5), (8, 2), (1, 9)):
        running = [
            warm.Popen([sys.executable, "-c", PLAY, str(tmp_path)], stdout=warm.PIPE, text=True)
            for _ in kills
        ]
        for process, after in zip(running, kills):
            assert process.stdout is not None
            for _ in range(after):
                line = process.stdout.readline()
                sent += [int(line)] if line.strip() else []
            with suppress(
                ProcessLookupError
            ):  # while it was slow, the other one took all rounds that were left
                os.kill(process.pid, signal.SIGKILL)
            sent += [int(line) for line in process.stdout.read().split()]
            process.wait()
            process.stdout.close()
    last = warm.run([sys.executable, "-c", PLAY, str(tmp_path)])
    assert last.returncode == 0, last.stderr
    sent += [int(line) for line in last.stdout.split()]
    assert len(sent) == len(
        set(sent)
    )  # each at most once; one that was recorded and not sent is not sent later
    assert sorted(
        {
            *sent,
            *(json.loads(line)["round"] for line in next(tmp_path.glob("record-*")).read_text().splitlines()),
        }
    ) == list(range(200))
