"""Vertical trees that are killed and resumed: at every moment, at every party, with every back-end, the trees are those
of a run that was never stopped, and no party answers in two versions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadData, BadParameter, BadRun, PartyFailed, QueryRefused, TacitError
from tacit.jobs import durable_run
from tacit.jobs.durable_run import MESSAGES
from tacit.jobs.vertical import boost_deployed
from tacit.jobs.vertical.boost_result import VerticalBoostResult
from tacit.parties import Party, decode
from tacit.parties.message_log import MessageLog
from tacit.runtimes import InProcess
from tests.security.test_regression_attacks import Recorder

JOB = """
[boost]
trees = 2
depth = 2
bins = 6
min_rows = 5
{extra}
[parties.bank]
file = "bank.csv"
id = "id"
label = "y"
[parties.shop]
file = "shop.csv"
id = "id"
"""
HELPED = JOB + "[parties.notary]\nhelper = true\n"
JOBS = {
    "sums": HELPED.format(extra='backend = "shares"'),
    "splits": HELPED.format(extra='reveal = "splits"'),
    "he": JOB.format(extra=""),
}


class Killed(Exception):
    """Stands for a kill: what was not on disk yet is lost."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    n = 120
    frame = pd.DataFrame(
        {"id": [f"p{k}" for k in range(n)], "a": rng.normal(size=n), "b": rng.normal(size=n)}
    )
    frame["c"] = rng.normal(size=n)
    frame["y"] = (frame.a + 2 * frame.b + rng.logistic(size=n) > 0).astype(int)
    frame[["id", "a", "y"]].to_csv("bank.csv", index=False)
    frame[["id", "b", "c"]].sample(frac=1, random_state=0).to_csv("shop.csv", index=False)
    return tmp_path


class Axe:
    """Counts the records of a party's log, and kills it at one of them; keeps what each party has fsynced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.victim, self.moment, self.count = "", -1, Counter[str]()
        self.durable: dict[Path, int] = {}
        add, flush = MessageLog.add, MessageLog.flush
        axe = self

        def counted(log: MessageLog, *args: Any) -> None:
            who = log.file.parts[-3]
            axe.count[who] += 1
            if who == axe.victim and axe.count[who] == axe.moment:
                raise Killed
            add(log, *args)

        def flushed(log: MessageLog) -> None:
            flush(log)
            axe.durable[log.file] = log.file.stat().st_size

        monkeypatch.setattr(MessageLog, "add", counted)
        monkeypatch.setattr(MessageLog, "flush", flushed)
        monkeypatch.setattr(MessageLog, "close", lambda log: log._out.close())

    def kill(self, victim: str, moment: int) -> None:
        self.victim, self.moment, self.count = victim, moment, Counter()

    def lose_what_was_not_on_disk(self) -> None:
        for file in Path().glob(f"*/*/state/{MESSAGES}"):
            os.truncate(file, self.durable.get(file, 0))
        self.victim = ""


def train(out: str, runtime: Any = None, change: Any = None) -> None:
    """All parties of job.toml, each with its own folders."""
    job = boost_deployed.read("job.toml")
    programs = {}
    for name, entry in job["parties"].items():
        program = functools.partial(
            boost_deployed.run_party, job=job, file=str(entry.get("file", "")), out=f"{out}/{name}"
        )
        programs[name] = change(program) if change is not None and name == "bank" else program
    (runtime or InProcess()).run_sync(programs)


def parts(out: str) -> dict[str, Any]:
    return {f.parent.name: without_mask(json.loads(f.read_text())) for f in Path(out).glob("*/part.json")}


def without_mask(part: dict[str, Any]) -> dict[str, Any]:
    """All but the random mask of the leaves, which differs in every run, and the digest of masked leaves."""
    return {k: v for k, v in part.items() if k not in ("leaf_key", "masked", "mark")}


def kill_and_resume(kind: str, monkeypatch: pytest.MonkeyPatch, step: int, start: int = 0) -> None:
    """Kill each party at every `step`-th record of its log, and resume."""
    Path("job.toml").write_text(JOBS[kind])
    axe = Axe(monkeypatch)
    train("whole")
    twin, records = parts("whole"), dict(axe.count)
    assert min(records.values()) > (6 if kind == "he" else 10)
    moments = [(who, k) for who, most in records.items() for k in range(1, most + 1)]
    for number, (who, moment) in enumerate(moments[start::step]):
        axe.kill(who, moment)
        with pytest.raises(PartyFailed):
            train(f"run{number}")
        axe.lose_what_was_not_on_disk()
        train(f"run{number}")
        assert parts(f"run{number}") == twin, (who, moment)
        assert not list(Path(f"run{number}").glob(f"*/state/{MESSAGES}"))  # keys and messages are removed


@pytest.mark.parametrize(("kind", "step"), [("sums", 17), ("splits", 23), ("he", 29)])
def test_a_kill_at_some_moments_of_each_party_changes_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: int
) -> None:
    kill_and_resume(kind, monkeypatch, step, step - 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", JOBS)
def test_a_kill_at_any_moment_of_any_party_changes_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kill_and_resume(kind, monkeypatch, 1)


def stop_in_the_middle(monkeypatch: pytest.MonkeyPatch, recorder: Any = None) -> Axe:
    axe = Axe(monkeypatch)
    axe.kill("bank", 18)
    with pytest.raises(PartyFailed):
        train("run", recorder)
    axe.lose_what_was_not_on_disk()
    return axe


def answers(recorder: Recorder) -> list[bytes]:
    """What the shop told the bank about its columns, in order."""
    sent = [
        (decode(frame), frame) for by, to, _, frame in recorder.tap.frames if (by, to) == ("shop", "bank")
    ]
    return [bytes(frame) for message, frame in sent if message.kind in ("SumShares", "SplitSides")]


def test_a_label_holder_that_forgets_its_record_is_not_answered_from_the_start_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would choose other numbers for the same nodes, and get a second sum over the same cells."""
    Path("job.toml").write_text(JOBS["sums"])
    stop_in_the_middle(monkeypatch)
    shutil.rmtree("run/bank")
    recorder = Recorder()
    with pytest.raises(PartyFailed) as caught:
        train("run", recorder)
    assert isinstance(caught.value.__cause__, QueryRefused)
    assert "does not answer the same job from the start again" in str(caught.value)
    assert answers(recorder) == []
    assert not list(Path("run").glob("*/part.json"))


@pytest.mark.parametrize("kind", JOBS)
def test_a_holder_that_forgets_its_record_is_not_told_splits_of_other_columns(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It would get the label holder's choices for as many sets of columns as it likes, with one agreed job."""
    Path("job.toml").write_text(JOBS[kind])
    axe, first = Axe(monkeypatch), Recorder()
    axe.kill("shop", {"sums": 12, "splits": 12, "he": 8}[kind])
    with pytest.raises(PartyFailed):
        train("run", first)
    axe.lose_what_was_not_on_disk()
    assert told(first)
    shutil.rmtree("run/shop")
    shop = pd.read_csv("shop.csv")
    shop.assign(b=np.random.default_rng(9).normal(size=len(shop))).to_csv("shop.csv", index=False)
    second = Recorder()
    with pytest.raises(PartyFailed) as caught:
        train("run", second)
    assert isinstance(caught.value.__cause__, QueryRefused)
    assert caught.value.party == "bank"
    assert told(second) == []


def told(recorder: Recorder) -> list[str]:
    """What the bank told the shop about its label, by the splits that it chose."""
    sent = [decode(frame).kind for by, to, _, frame in recorder.tap.frames if (by, to) == ("bank", "shop")]
    return [kind for kind in sent if kind in ("SplitRequest", "ChosenSplits", "TreeShapes")]


def test_a_label_holder_that_claims_an_earlier_point_gets_the_same_bytes_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rewinds its own record, and asks again with other labels: the shop answers from its own record."""
    Path("job.toml").write_text(JOBS["sums"])
    first = Recorder()
    stop_in_the_middle(monkeypatch, first)
    before = answers(first)
    assert len(before) >= 2
    os.truncate(f"run/bank/state/{MESSAGES}", 0)
    bank = pd.read_csv("bank.csv")
    bank.assign(y=1 - bank.y).to_csv("bank.csv", index=False)
    known = {
        n: json.loads(Path(f"run/{n}/state/run.json").read_text())["begun"]["inputs"]
        for n in ("bank", "shop")
    }
    monkeypatch.setattr(
        boost_deployed._Inputs, "digest", lambda self: known["shop" if self.y is None else "bank"]
    )
    second = Recorder()
    with pytest.raises((PartyFailed, TacitError)):
        train("run", second)
    after = answers(second)
    assert after[: len(before)] == before[: len(after)]
    # what is more is an answer to a new request, and counts as one of the agreed trees' questions
    assert len(after) <= len(before) + 1


def test_a_party_that_restarts_for_ever_does_not_compare_ids_for_ever(tmp_path: Path) -> None:
    """Each beginning aligns: with other ids each time, it would learn of as many people as it likes."""
    aligned = []

    async def begin(me: Party) -> dict[str, Any]:
        await me.send("shop", durable_run.RunBegun())  # stands for the answer to its ids
        await me.recv("shop", durable_run.RunDone)
        return {}

    async def unused(*args: Any) -> Any:
        raise AssertionError

    job = durable_run.DurableJob("job", ("bank", "shop"), tmp_path, begin, unused, dict, frozenset())

    async def restart(me: Party) -> None:
        hello = me.scope("hello")
        for _ in range(3 * durable_run.MOST_BEGINS):
            nonce = os.urandom(durable_run.NONCE)
            await hello.send("bank", durable_run.RunHello("job", nonce))
            theirs = (await hello.recv("bank", durable_run.RunHello)).nonce
            names = [["bank", theirs.hex()], ["shop", nonce.hex()]]
            epoch = hashlib.sha256(json.dumps(names).encode()).hexdigest()
            with me.scope(f"run-{epoch[:16]}") as scope:
                await scope.send("bank", durable_run.RunStatus("", 0))
                await scope.recv("bank", durable_run.RunStatus)
                await scope.recv("bank", durable_run.RunBegun)
            aligned.append(nonce)
        raise AssertionError("it was answered every time")

    programs = {"bank": functools.partial(durable_run.run_durable, job=job), "shop": restart}
    with pytest.raises(PartyFailed, match="Every beginning compares ids once more") as caught:
        InProcess().run_sync(programs)
    assert caught.value.party == "bank"
    assert isinstance(caught.value.error, QueryRefused)
    assert len(aligned) <= durable_run.MOST_BEGINS


def test_a_claim_of_messages_that_were_never_sent_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.toml").write_text(JOBS["sums"])
    stop_in_the_middle(monkeypatch)
    monkeypatch.setattr(durable_run, "RECEIVED", "sent")  # counts what was sent as received
    with pytest.raises(PartyFailed, match=r"claims to have \d+ messages of"):
        train("run")


def test_a_changed_table_is_not_masked_with_the_old_keys(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.toml").write_text(JOBS["sums"])
    stop_in_the_middle(monkeypatch)
    shop = pd.read_csv("shop.csv")
    shop.assign(b=-shop.b).to_csv("shop.csv", index=False)
    recorder = Recorder()
    with pytest.raises(PartyFailed) as caught:
        train("run", recorder)
    assert isinstance(caught.value.__cause__, BadData)
    assert "shop.csv was changed since the run began" in str(caught.value)
    assert answers(recorder) == []


def test_a_record_without_its_messages_is_not_taken_for_a_new_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party whose folder was restored in part would answer the same questions a second time."""
    Path("job.toml").write_text(JOBS["sums"])
    stop_in_the_middle(monkeypatch)
    shutil.rmtree("run/bank")
    Path("run/shop/state", MESSAGES).unlink()
    recorder = Recorder()
    with pytest.raises(PartyFailed, match="has what this party answered in a stopped run"):
        train("run", recorder)
    assert answers(recorder) == []


def test_a_finished_job_is_not_answered_again(place: Path) -> None:
    Path("job.toml").write_text(JOBS["sums"])
    train("run")
    for file in Path("run").glob("*/part.json"):
        file.unlink()
    with pytest.raises(PartyFailed) as caught:
        train("run")
    assert isinstance(caught.value.__cause__, BadRun)
    assert "has finished this job, and does not answer its questions again" in str(caught.value)


def test_a_torn_record_is_cut_off_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / MESSAGES
    log = MessageLog(file)
    for k in range(3):
        log.add("received", "a", "Kind", bytes([k]) * 100)
    log.close()
    whole = file.read_bytes()
    for cut in range(1, len(whole) // 3, 11):
        file.write_bytes(whole[:-cut])
        again = MessageLog(file)
        assert again.count("received", "a") == 2
        assert again.read("received", "a", 1) == b"\x01" * 100
        again.add("received", "a", "Kind", b"new")
        assert again.read("received", "a", 2) == b"new"
        again.close()
        again = MessageLog(file)
        assert again.count("received", "a") == 3
        again.close()
    file.write_bytes(whole[:60] + b"x" + whole[61:])
    damaged = MessageLog(file)
    with pytest.raises(BadRun, match="is damaged"):
        damaged.read("received", "a", 0)
    damaged.close()
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(BadRun, match="is damaged at byte 0"):
        MessageLog(file)


def test_the_python_call_resumes_in_its_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = {n: pd.read_csv(f"{n}.csv") for n in ("bank", "shop")}
    options: dict[str, Any] = {"on": "id", "label": "y", "trees": 2, "depth": 2, "bins": 6, "min_rows": 5}
    whole = tacit.boost.train(frames, **options)
    axe = Axe(monkeypatch)
    axe.kill("shop", 20)
    with pytest.raises(PartyFailed):
        tacit.boost.train(frames, **options, directory="py/run")
    axe.lose_what_was_not_on_disk()
    changed = {**frames, "shop": frames["shop"].assign(b=-frames["shop"].b)}
    with pytest.raises(PartyFailed, match="the table of 'shop' was changed since the run began"):
        tacit.boost.train(changed, **options, directory="py/run")
    resumed = tacit.boost.train(frames, **options, directory="py/run")
    assert isinstance(resumed, VerticalBoostResult)
    loaded = tacit.boost.load("py/run")
    assert isinstance(loaded, VerticalBoostResult)
    for found in (resumed, loaded):
        assert {n: without_mask(p.to_dict()) for n, p in found.parts.items()} == {
            n: without_mask(p.to_dict()) for n, p in whole.parts.items()
        }
    with pytest.raises(BadRun, match="already contains a party's part"):
        tacit.boost.train(frames, **options, directory="py/run")
    with pytest.raises(
        BadParameter, match="directory is 'x'; it must be None for parties with the same columns"
    ):
        tacit.boost.train({"a": frames["bank"], "b": frames["bank"]}, label="y", directory="x")
