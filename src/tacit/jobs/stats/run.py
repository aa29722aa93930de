"""Run a program of sums over parties' tables, on any runtime.

`program` is a `SumProgram` (protocols/sum_program.py): a frozen dataclass whose fields are plain values
(numbers, texts, None, lists, tuples and dicts of these), so that another process can build the same program
from them. There, lists arrive as tuples.

    runtime="cohort"      simulation: the sums are computed in one place, and the ledger says "ideal"
    runtime="masked"      simulation: every party's vector is masked, as in a secure aggregation, and masked
                          vectors are added; the ledger says "executed" for masks, "ideal" for messages
    runtime="inprocess"   one program per party in this process; every sum is a real secure aggregation
    runtime="processes"   one process per party, or tacit.Processes(…); with restart=True a killed party
                          is started again, and the result is the same to the last bit

All give the same bits.
"""

from __future__ import annotations

import functools
import secrets
import tempfile
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch

from ...crypto.agree import Identity
from ...guard.secagg import SecAgg
from ...parameters import bad, check
from ...parties.codec import encode_parts
from ...parties.forms import ALIGN
from ...parties.ledger import How, Ledger
from ...parties.party import Party
from ...protocols import secagg, sum_of_all, sum_program
from ...protocols.checked_sums import OPENED, TAGS
from ...protocols.step_vectors import shorten
from ...protocols.sum_program import KeptAnswers, SumProgram, SumStep
from ...protocols.sum_steps import ByParty, count_words
from ...protocols.summing import MaskedVector
from ...runtimes.choose import allowed_runtimes, choose_runtime
from ...runtimes.inprocess import InProcess
from ...runtimes.processes import Processes
from ...stats.privacy import Private
from ...stats.tables import check_frames, to_plain
from ..threads import one_blas_thread
from .contract import SumContract, count_checked
from .masked import MaskedSums
from .parties import Departures, coordinator, member, party

R = TypeVar("R")
SERVER = "server"


def run_sums(
    program: SumProgram[pd.DataFrame, R],
    fed: Any,
    *,
    runtime: Any = "cohort",
    guard: Any = None,
    owner: str = "stats",
    pooled: pd.DataFrame | None = None,
) -> tuple[R, Ledger]:
    """Return what the program's coordinator returns, and who saw what.

    `guard`: `tacit.guard.SecAgg(…)`; its default here has threshold 1, so that every sum is over all parties.
    `owner` is the function named in error messages. `pooled` are the rows of all parties in one table, for a
    program whose sums do not depend on the partition: a simulation computes them in one pass.
    """
    with one_blas_thread():
        return _run_sums(program, fed, runtime, guard, owner, pooled)


def _run_sums(
    program: SumProgram[pd.DataFrame, R],
    fed: Any,
    runtime: Any,
    guard: Any,
    owner: str,
    pooled: pd.DataFrame | None,
) -> tuple[R, Ledger]:
    frames, ledger, stage = check_frames(fed, owner), Ledger(), check_guard(guard, owner)
    if isinstance(program, Private):
        ledger.spend(program.spend)
    if runtime == "cohort":
        return _simulate(program, frames, stage, ledger, pooled), ledger
    check_frames(fed, owner, least=2)
    if runtime == "masked":
        return _simulate_masked(program, frames, stage, ledger, owner), ledger
    if SERVER in frames:
        raise bad(owner, "the name of a party", SERVER, "another name: the coordinator has this name")
    if isinstance(runtime, str) and runtime not in ("inprocess", "processes"):
        raise bad(owner, "runtime", runtime, allowed_runtimes("cohort", "masked"))
    contract = SumContract.of(
        program, list(frames), threshold=stage.threshold, adversary=stage.adversary, server=SERVER
    )
    chosen = choose_runtime(owner, runtime)
    departures = Departures(contract, program, ledger)
    server = functools.partial(
        coordinator,
        contract=contract,
        program=program,
        within=stage.within,
        tries=stage.tries,
        opened=lambda step, total, included: departures.add(step, included),
    )
    if isinstance(chosen, Processes):
        with tempfile.TemporaryDirectory(prefix="tacit-stats-") as state:
            programs: dict[str, Any] = {
                name: functools.partial(member, contract=contract.text, table=to_plain(frame), state=state)
                for name, frame in frames.items()
            }
            leave = list(frames) if stage.threshold < 1 else []
            results = chosen.run_sync(
                {**programs, SERVER: server}, ledger=ledger, here=[SERVER], may_leave=leave
            )
        return results[SERVER], ledger
    active = stage.adversary == "active" and isinstance(chosen, InProcess)
    keys = Identity.provision(list(frames), secrets.token_bytes) if active else {}
    programs = {name: _local(contract, frame, keys.get(name)) for name, frame in frames.items()}
    return chosen.run_sync({**programs, SERVER: server}, ledger=ledger)[SERVER], ledger


def check_guard(guard: Any, owner: str) -> SecAgg:
    """Return the stage whose parameters the sums use."""
    stage = SecAgg(threshold=1.0) if guard is None else guard[0] if _is_single(guard) else guard
    if not isinstance(stage, SecAgg):
        raise bad(owner, "guard", guard, "tacit.guard.SecAgg(…), or None for secure sums over all parties")
    if stage.neighbors is not None:
        raise bad(owner, "guard.neighbors", stage.neighbors, "None: every party masks with all others")
    return check(stage)


def _is_single(guard: Any) -> bool:
    return isinstance(guard, Sequence) and len(guard) == 1


def _local(contract: SumContract, frame: pd.DataFrame, identity: Any) -> Any:
    """A party of this process, which holds its table as it is."""

    async def program(me: Party) -> Any:
        return await party(me, contract, lambda: frame, KeptAnswers(), identity=identity)

    return program


def _simulate(
    program: SumProgram[pd.DataFrame, R],
    frames: dict[str, pd.DataFrame],
    stage: SecAgg,
    ledger: Ledger,
    pooled: pd.DataFrame | None,
) -> R:
    """Compute the ideal function, and record the messages that parties would have exchanged."""
    counting = _Counting(program, len(frames), stage)
    value: R = sum_program.ideal(counting, frames, pooled)
    counting.record(ledger, "ideal")
    return value


def _simulate_masked(
    program: SumProgram[pd.DataFrame, R],
    frames: dict[str, pd.DataFrame],
    stage: SecAgg,
    ledger: Ledger,
    owner: str,
) -> R:
    """Compute the sums of masked vectors, and record the messages that parties would have exchanged."""
    for name, value, only in (("threshold", stage.threshold, 1.0), ("adversary", stage.adversary, "curious")):
        if value != only:
            why = "Use runtime='inprocess', which executes messages too."
            raise bad(owner, f"guard.{name}", value, f"{only!r} with runtime='masked'", why)
    contract = SumContract.of(program, list(frames), threshold=1.0, server=SERVER)
    counting, sums = _Counting(program, len(frames), stage), MaskedSums(program, frames, contract.digest)
    steps = counting.coordinate()
    down = next(steps)
    for step in range(program.max_steps):
        try:
            down = steps.send(sums.add(step, down))
        except StopIteration as end:
            counting.record(ledger, "executed")
            ledger.stamp(
                "Masks were executed: every party's vectors were masked with keys of each pair of parties, "
                "and only the sums of masked vectors were opened. Messages were counted, not sent."
            )
            return end.value  # type: ignore[no-any-return]
    raise AssertionError(f"the program has more than its {program.max_steps} steps")


def _digits(n: int) -> int:
    """The bytes of a whole number in msgpack."""
    return 1 if n < 1 << 7 else 2 if n < 1 << 8 else 3 if n < 1 << 16 else 5


class _Counting:
    """A program that counts the bytes its messages would have."""

    def __init__(self, program: SumProgram[Any, Any], parties: int, stage: SecAgg):
        self.program, self.parties, self.stage = program, parties, stage
        self.max_steps, self.bound, self.local = program.max_steps, program.bound, program.local
        self.length = program.length
        by_party = program.is_by_party if isinstance(program, ByParty) else None
        self.is_by_party: Callable[[int], bool] = by_party or (lambda step: False)
        self.steps = self.numbers = self.up = self.down = 0
        self.checked = count_checked(program, parties) if stage.threshold == 1 else 0
        self.last: sum_program.Down = {}  # what the last step was sent
        self.before = 0  # numbers in the last sum, which is sent with the next step
        # by the length of a vector, whether it is the first, and whether it is of words
        self.traffic: dict[tuple[int, bool, bool], tuple[int, int]] = {}
        self.heads: dict[tuple[Any, ...], int] = {}  # bytes of a message besides its vectors

    def coordinate(self) -> Generator[sum_program.Down, np.ndarray, Any]:
        steps = self.program.coordinate()
        down = next(steps)
        while True:
            total = yield down
            words = None if self.steps < self.checked else count_words(self.program, self.steps, down)
            self._count(down, len(total), words)
            try:
                down = steps.send(total)
            except StopIteration as end:
                return end.value

    def record(self, ledger: Ledger, masks: How) -> None:
        """Record what was counted; `masks`: whether masked vectors and their sums were computed."""
        everyone, count = f"each of {self.parties} parties", self.steps * self.parties
        ledger.record(SERVER, everyone, MaskedVector, count=count, bytes=self.up, how=masks)
        ledger.record(everyone, SERVER, SumStep, count=count, bytes=self.down, how="ideal")
        numbers = f"{self.numbers} numbers in {self.steps} sums over all {self.parties} parties"
        ledger.record(SERVER, "the sums", "opened sums", numbers, count=self.steps, how=masks)

    def _size(self, message: SumStep) -> int:
        """Return the bytes of a message; equal shapes, up to the width of their numbers, have equal heads."""
        vectors = message.vectors
        key = (
            _digits(message.step),
            *((name, v.dtype, tuple(map(_digits, v.shape))) for name, v in vectors.items()),
            *((name, _digits(count)) for name, count in message.kept.items()),
        )
        body = sum(-(-v.nbytes // ALIGN) * ALIGN for v in vectors.values())
        if key not in self.heads:
            self.heads[key] = sum(len(part) for part in encode_parts(message)) - body
        return self.heads[key] + body

    def _traffic(self, length: int, begins: bool, modular: bool) -> tuple[int, int]:
        terms = secagg.SecAggTerms(
            "",
            self.parties,
            length,
            self.bound,
            self.stage.threshold,
            adversary=self.stage.adversary,
            modular=modular,
        )
        names = [str(k) for k in range(self.parties)]
        if self.stage.threshold == 1:
            return sum_of_all.traffic(names, terms, begins=begins)
        return secagg.traffic(names, terms)

    def _count(self, down: sum_program.Down, length: int, words: int | None) -> None:
        session = bytes(sum_program.SESSION_BYTES)
        vectors = dict(down)
        if 0 < self.steps <= self.checked:
            vectors[OPENED] = torch.zeros(self.before, dtype=torch.int64)
        continues = self.steps and self.stage.threshold == 1
        shorter, kept = shorten(self.last, vectors) if continues else (vectors, {})
        self.last = vectors
        sent = self._size(SumStep(self.steps, session, session, shorter, kept))
        self.before = length + (TAGS if self.steps < self.checked else 0)
        sent_up = self.before if words is None else words
        self.steps += 1
        self.numbers += length
        self.down += sent * self.parties
        if self.parties >= 2 and length:
            begins = self.steps == 1
            key = sent_up, begins, words is not None
            if key not in self.traffic:
                self.traffic[key] = self._traffic(*key)
            up, received = self.traffic[key]
            self.up += up
            self.down += received
