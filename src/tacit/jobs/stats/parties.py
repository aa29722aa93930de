"""The programs of a coordinator and of a party, for every runtime with messages."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ... import __version__
from ...errors import ProtocolError
from ...parties.ledger import Ledger
from ...parties.party import Identity, Party
from ...protocols import sum_program
from ...protocols.departures import begins_again
from ...protocols.joining import WITHHELD, Admission, Ready, Work, attend
from ...protocols.sum_program import Answers, KeptAnswers
from ...protocols.sum_steps import AboutOneSet
from ...protocols.together import together
from ...stats.tables import from_plain
from ..threads import one_blas_thread
from .answers import AnswerFile
from .contract import SumContract

log = logging.getLogger(__name__)


class _Over(Exception):
    """The program has ended: stop answering the door."""


class Departures:
    """Writes into the ledger which parties left, and what the result is about then (threshold below 1)."""

    def __init__(
        self,
        contract: SumContract,
        program: Any,
        ledger: Ledger,
        note: Callable[[str], None] = log.info,
    ) -> None:
        self.program, self.ledger, self.note = program, ledger, note
        self.remaining: list[str] = list(contract.tables["parties"])

    def add(self, step: int, included: Sequence[str]) -> None:
        left = [name for name in self.remaining if name not in included]
        self.remaining = [name for name in self.remaining if name in included]
        for name in left:
            text = f"party {name!r} left: sums from step {step + 1} on are without its rows."
            if step and begins_again(self.program):
                text += (
                    " The query began again, so all figures are about the rows of "
                    f"{', '.join(self.remaining)}. The sums of steps 1 to {step} were with {name!r}: who "
                    f"subtracts those after step {step + 1} has sums of its rows alone."
                )
            elif step and not isinstance(self.program, AboutOneSet):
                text += f" Those of steps 1 to {step} are with them."
            self.note(text)
            self.ledger.stamp(text)


async def coordinator(
    me: Party,
    contract: SumContract,
    program: Any,
    *,
    within: float | None = None,
    tries: int = 3,
    sums: Sequence[np.ndarray] = (),
    included: Sequence[Sequence[str]] = (),
    opened: Callable[[int, np.ndarray, Sequence[str]], None] = lambda step, total, included: None,
    note: Callable[[str], None] = log.info,
    share: Callable[[Any], Mapping[str, Tensor]] | None = None,
    absence: Callable[[str], float] = lambda name: 0.0,
    patience: float | None = None,
    wait: float | None = None,
) -> Any:
    """Offer the contract to all parties, run the program and return its result.

    `absence` and `patience`: how long parties are disconnected, and may be (`Admission`). `wait`: seconds
    until enough parties have started, or an error names the others; None: forever.
    """
    rules = contract.rules(within, tries)
    admission = Admission(
        me,
        rules.parties,
        __version__,
        lambda name: Work(contract.text, contract.digest[:16]),
        lambda name, ready: None,
        note,
        everyone=rules.threshold == 1,
        absence=absence,
        patience=patience,
    )
    result: list[Any] = []

    async def work() -> None:
        enough = max(2, math.ceil(rules.threshold * len(rules.parties)))
        await _wait_for_start(me, admission, rules.parties, min(enough, len(rules.parties)), wait)
        result.append(
            await sum_program.server(
                me,
                program,
                rules,
                admission=admission,
                sums=sums,
                included=included,
                opened=opened,
                aborted=lambda step, why: note(f"step {step + 1}: {why}"),
                share=share,
            )
        )
        raise _Over

    with suppress(_Over):
        await together(admission.run(), work())
    return result[0]


async def _wait_for_start(
    me: Party, admission: Admission, names: Sequence[str], enough: int, wait: float | None
) -> None:
    """Return when `enough` of these parties have joined; after `wait` seconds, raise with the others.

    Without `wait` the first sum waits for them.
    """
    end = None if wait is None else me.clock.now() + wait
    while end is not None:
        late = [n for n in names if n not in admission.processes]
        if len(names) - len(late) >= enough:
            return
        if me.clock.now() >= end:
            raise _not_started(me.name, late, wait)
        admission.changed.clear()
        timer = me.clock.at(end, admission.changed.set)
        try:
            await admission.changed.wait()
        finally:
            timer.cancel()


def _not_started(me: str, late: Sequence[str], wait: float | None) -> ProtocolError:
    return ProtocolError(
        f"{', '.join(map(repr, late))} did not start within {wait:g} s, so {me!r} stopped. Start all "
        "parties, or wait longer (--wait)."
    )


async def party(
    me: Party,
    contract: SumContract,
    read: Callable[[], Any],
    answers: Answers,
    *,
    server: str = "server",
    identity: Identity | None = None,
    within: float | None = None,
    allow: Callable[[int], None] = lambda step: None,
    answered: Callable[[int], None] = lambda step: None,
    wait: float | None = None,
) -> dict[str, Tensor]:
    """Join, compare the offered contract with the agreed one, `read` the table and answer.

    Nothing is read before the coordinator has offered the agreed contract. `wait`: seconds until it does, or
    an error says that it has not started; None: forever.
    """
    ready = asyncio.Event()
    table: list[Any] = []
    result: dict[str, Tensor] = {}

    def prepare(work: Work) -> Ready:
        contract.check_offer(work.contract)
        if not table:
            table.append(read())
        ready.set()
        return Ready(WITHHELD, WITHHELD, [], 0, 0, "")  # how many rows there are is a sum of its own

    async def work() -> None:
        timer = None if wait is None else me.clock.at(me.clock.now() + wait, ready.set)
        await ready.wait()
        if timer is not None:
            timer.cancel()
        if not table:
            raise _not_started(me.name, [server], wait)
        result.update(
            await sum_program.client(
                me,
                contract.program(),
                table[0],
                contract.rules(within),
                server=server,
                answers=answers,
                identity=identity,
                allow=allow,
                answered=answered,
            )
        )
        raise _Over

    with suppress(_Over), one_blas_thread():
        await together(attend(me, server, __version__, prepare), work())
    return result


async def member(
    me: Party, contract: str, table: Mapping[str, Any], state: str | None, server: str = "server"
) -> dict[str, Tensor]:
    """A party on this machine: its table is plain values, its contract the coordinator's own text."""
    agreed = SumContract.read(contract)
    answers = KeptAnswers() if state is None else AnswerFile(Path(state), me.name, agreed.digest)
    return await party(me, agreed, lambda: from_plain(table), answers, server=server)


def digest_of_table(table: pd.DataFrame) -> str:
    """A digest of a party's rows, which never leaves the party."""
    state = hashlib.sha256(repr([(str(c), str(table[c].dtype)) for c in table.columns]).encode())
    for column in table.columns:
        state.update(pd.util.hash_pandas_object(table[column], index=False).to_numpy().tobytes())
    return state.hexdigest()
