"""Every kind of training keeps the contract of `Trainer` (jobs/train/trainer.py).

Records come in order and once each; they are all that the journal needs; their bytes are those of the ledger;
a run that is stopped in the middle leaves nothing behind, and resumed it ends with the same model.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch

import tacit
from tacit import algorithms, data, graphs, pace, speeds
from tacit.errors import BudgetSpent, PartyFailed
from tacit.jobs.train import member as members
from tacit.jobs.train import networked, party_rows
from tacit.jobs.train.plan import Plan, make_plan, make_task
from tacit.jobs.train.train import train_side_by_side
from tacit.jobs.train.trainer import PENDING, RoundRecord, RunContext, Trainer
from tacit.jobs.train.trainer_kinds import trainer_class
from tacit.jobs.train.training import DETAILS
from tacit.topologies import Gossip

from ..runtimes.net import Net

ROUNDS = 4
STOP = 2  # the round after which the run is stopped
PACED = {"pace": pace.FedBuff(buffer=2), "speed": speeds.Lognormal(), "per_round": 3}
WAITING = {"pace": pace.SAFA(fraction=1.0)}  # waits for all, so that real clocks leave nothing to chance
CLUSTERED = {"algorithm": algorithms.CFL(lr=0.3)}
LAYERED = {"topology": tacit.Hierarchy(edges=2, period=2)}
RING = {"topology": Gossip(graphs.ring(4))}
KINDS: dict[str, dict[str, Any]] = {
    "simulated": {},
    "messages": {"runtime": "inprocess"},
    "processes": {"runtime": "processes"},
    "deployed": {},
    "paced": PACED,
    "paced messages": {**PACED, "runtime": "inprocess"},
    "paced processes": {**WAITING, "runtime": "processes"},
    "clustered": CLUSTERED,
    "clustered messages": {**CLUSTERED, "runtime": "inprocess"},
    "clustered processes": {**CLUSTERED, "runtime": "processes"},
    "hierarchical": LAYERED,
    "hierarchical messages": {**LAYERED, "runtime": "inprocess"},
    "gossip": RING,
    "gossip messages": {**RING, "runtime": "inprocess"},
}
UP, DOWN = {"Upload", "Answer", "Model"}, {"Down", "Order"}

each_kind = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def fed() -> data.Federation:
    return data.gaussian_blobs(rows=240, classes=3, features=4, seed=3).split(4, held_fraction=0.25, seed=1)


@contextmanager
def plan_of(kind: str, folder: Path) -> Iterator[Plan]:
    """The plan of a run of this kind; of a deployed one, while its parties wait for the server."""
    options = {"model": "logistic", "rounds": ROUNDS, "evaluate_every": 2, **KINDS[kind]}
    if kind != "deployed":
        yield make_plan(fed(), **options)
        return
    for k in range(len(fed())):
        party_rows.save_rows(fed(), k, folder / f"rows-{k}")
    kits: Queue[Any] = Queue()
    over = threading.Event()

    async def parties() -> None:
        async with Net.of("server", *fed().parties) as net:
            tasks = [
                asyncio.create_task(
                    net.party(
                        name,
                        functools.partial(
                            members.member,
                            data={"folder": str(folder / f"rows-{k}")},
                            state=str(folder / f"state-{k}"),
                        ),
                    )
                )
                for k, name in enumerate(fed().parties)
            ]
            kits.put(net.kits["server"])
            while not over.is_set():
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(parties(),))
    thread.start()
    try:
        yield make_plan(fed(), **options, runtime=networked.Deployed(kits.get(timeout=300), {}))
    finally:
        over.set()
        thread.join()


def make_trainer(p: Plan, **context: Any) -> Trainer:
    task = make_task(p)
    return trainer_class(p)(task, [task.initial()], [p], RunContext(**context))


@functools.cache
def whole(kind: str) -> tuple[list[RoundRecord], tacit.Result, bool]:
    """A run from its first round to its last: (what its trainer yielded, its result, whether it is
    durable).
    """
    yielded: list[RoundRecord] = []
    with tempfile.TemporaryDirectory() as folder, plan_of(kind, Path(folder)) as p:
        trainer = trainer_class(p)
        original = trainer.run

        def run(self: Trainer, rounds: range) -> Any:
            with closing(original(self, rounds)) as stream:
                for records in stream:
                    assert len(records) == 1
                    yielded.extend(records)
                    yield records

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "run", run)
            (result,) = train_side_by_side([p], [None])
    return yielded, result, trainer.saves_every_round


def vector(weights: torch.Tensor) -> torch.Tensor:
    return weights.detach().reshape(-1).double()


@each_kind
def test_records_come_in_order_and_once_each(kind: str) -> None:
    records, _, is_durable = whole(kind)
    assert [r.round for r in records if r.is_complete] == list(range(ROUNDS + 1))
    early = [r for r in records if not r.is_complete]
    assert [r.round for r in early] == ([2, 4] if is_durable else [])
    for record in early:  # its evaluation comes next
        after = records[records.index(record) + 1]
        assert (after.round, after.participants) == (record.round, record.participants)
        assert not record.metrics
    for record in records:
        assert set(record.participants) <= set(fed().parties)
        assert len(set(record.participants)) == len(record.participants) == record.sampled
        assert bool(record.participants) == bool(record.round)
        assert bool(record.metrics) == (record.is_complete and record.round % 2 == 0)
        assert not record.dropped
        assert RoundRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@each_kind
def test_records_are_all_that_the_journal_needs(kind: str) -> None:
    records, result, _ = whole(kind)
    events = [{k: v for k, v in e.items() if k not in ("kind", "seconds")} for e in result.history]
    last = max(r.round for r in records)
    assert events == [
        {k: v for k, v in r.event().items() if k not in DETAILS or r.round == last}
        for r in records
        if r.is_complete and r.round
    ]
    assert any("accuracy" in e for e in events)


@each_kind
def test_the_bytes_of_the_records_are_those_of_the_ledger(kind: str) -> None:
    records, result, _ = whole(kind)
    complete = [r for r in records if r.is_complete]
    assert all(r.bytes_up >= 0 and r.bytes_down >= 0 for r in complete)
    assert all(r.bytes_up > 0 for r in complete if r.round)
    seen = result.ledger.seen
    assert sum(r.bytes_up for r in complete) == sum(s.bytes for s in seen if s.kind in UP)
    if kind != "deployed":  # what the parties saw is in their own ledgers
        assert sum(r.bytes_down for r in complete) == sum(s.bytes for s in seen if s.kind in DOWN)


def children() -> set[int]:
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread ended meanwhile; its children are another's now
            pids |= {int(pid) for pid in (task / "children").read_text().split()}
    return pids


def open_files() -> set[str]:
    """Files and sockets of this process; those of gRPC's own polling, which outlive every channel, apart."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # of the listing itself
        if target.startswith(("/", "socket:", "pipe:")):
            found.add(f"{fd} {target}")
    return found


@each_kind
def test_a_run_that_is_stopped_leaves_nothing_behind_and_resumed_ends_with_the_same_model(
    kind: str, tmp_path: Path
) -> None:
    """Where parties evaluate a model that has to be on disk first, it is stopped before that evaluation."""
    records, result, is_durable = whole(kind)
    is_remote = is_durable
    before = children(), threading.active_count(), open_files() if not is_remote else set()
    with plan_of(kind, tmp_path) as p:
        trainer = make_trainer(p, directory=tmp_path)
        with closing(trainer.run(range(ROUNDS))) as stream:
            for (record,) in stream:
                if record.round == STOP:
                    break
            state, metadata = trainer.save(0), {"round": STOP, **trainer.checkpoint_metadata()}
        if not record.is_complete:
            metadata[PENDING] = record.to_dict()
        assert record.is_complete != is_durable
    after = children(), threading.active_count(), open_files() if not is_remote else set()
    assert after[0] == before[0]
    assert after[1] <= before[1] + is_remote  # gRPC keeps one of its own
    assert after[2] <= before[2]

    if kind == "hierarchical messages":  # what edges and their clients keep ends with them
        return
    with plan_of(kind, tmp_path) as p:
        resumed = make_trainer(
            p, directory=tmp_path, states=[state], metadata=json.loads(json.dumps(metadata))
        )
        rest = [record for (record,) in resumed.run(range(STOP, ROUNDS))]
    torch.testing.assert_close(
        resumed.task.module_at(resumed.weights[0], None).state_dict(),
        result.model.state_dict(),
        atol=0,
        rtol=0,
    )
    expected = [r for r in records if r.round > STOP or (r.round == STOP and r.is_complete and is_durable)]
    timeless = ("clock",) if is_remote else ()
    assert [{k: v for k, v in r.to_dict().items() if k not in timeless} for r in rest] == [
        {k: v for k, v in r.to_dict().items() if k not in timeless} for r in expected
    ]


@pytest.mark.parametrize("kind", [k for k in KINDS if "processes" not in k and k != "deployed"])
def test_an_error_of_the_consumer_is_raised_unchanged(kind: str, tmp_path: Path) -> None:
    def watch(event: dict[str, Any]) -> None:
        if event["kind"] == "round":
            raise RuntimeError("the disk is full")

    with plan_of(kind, tmp_path) as p, pytest.raises(RuntimeError, match="the disk is full"):
        train_side_by_side([p], [None], watch=watch)


@pytest.mark.parametrize("kind", ["simulated", "messages", "clustered", "clustered messages", "hierarchical"])
def test_a_round_is_paid_for_before_it_is_computed(kind: str, tmp_path: Path) -> None:
    """The third round is refused: the model is that of the second."""
    paid: list[int] = []

    def spend(r: int) -> None:
        if r == STOP:
            raise BudgetSpent("no more")
        paid.append(r)

    with plan_of(kind, tmp_path) as p:
        trainer = make_trainer(p, spend=spend)
        after: list[torch.Tensor] = []
        stream = trainer.run(range(ROUNDS))
        for _ in range(STOP + 1):
            next(stream)
            after.append(vector(trainer.weights).clone())
        with pytest.raises((BudgetSpent, PartyFailed), match="no more"):
            next(stream)
    assert paid == [0, 1]
    assert torch.equal(vector(trainer.weights), after[-1])


def test_a_budget_may_refuse_an_evaluation(tmp_path: Path) -> None:
    asked: list[int] = []

    def refuse(r: int) -> bool:
        asked.append(r)
        return r != STOP

    with plan_of("messages", tmp_path) as p:
        records = [record for (record,) in make_trainer(p, spend_evaluation=refuse).run(range(ROUNDS))]
    assert asked == [0, 2, 4]
    assert [r.round for r in records] == list(range(ROUNDS + 1))
    assert [r.round for r in records if r.metrics] == [0, 4]


def test_runs_side_by_side_have_a_record_each() -> None:
    plans = [make_plan(fed(), model="logistic", rounds=2, seed=s) for s in (0, 1, 2)]
    tasks = [make_task(p) for p in plans]
    trainer = trainer_class(plans[0])(tasks[0], [t.initial() for t in tasks], plans, RunContext())
    for r, records in enumerate(trainer.run(range(2))):
        assert [record.round for record in records] == [r] * 3
