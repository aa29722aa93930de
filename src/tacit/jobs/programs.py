"""`tacit.run_programs`: run any programs, one per party, on any runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..parameters import bad
from ..parties.ledger import Ledger
from ..results import JobResult

if TYPE_CHECKING:
    from ..parties.party import Program
    from ..runtimes.choose import SyncRuntime


class ProgramResult(dict[str, Any], JobResult):
    """What each party's program returned, by party."""

    title = "Programs of parties"
    facts = ("value",)

    ledger: Ledger

    def __init__(self, value: Mapping[str, Any], ledger: Ledger):
        super().__init__(value)
        self.ledger = ledger

    @property
    def value(self) -> dict[str, Any]:
        return dict(self)


def run_programs(
    programs: Mapping[str, Program],
    *,
    runtime: SyncRuntime | str | None = None,
    ledger: Ledger | None = None,
) -> ProgramResult:
    """Run one program per party and return what each returned, by party.

    `runtime` is "inprocess" (the default), "processes", `tacit.InProcess(…)` or `tacit.Processes(…)`. What
    each party saw is in the result's ledger, which is `ledger` if one is passed. If a party fails, the run
    ends with a PartyFailed that names it.
    """
    from ..runtimes.choose import choose_runtime

    if not isinstance(programs, Mapping) or not all(callable(p) for p in programs.values()):
        raise bad(
            "run_programs",
            "programs",
            programs,
            'a program for each party by its name, like {"alice": program, "bob": program}',
        )
    ledger = Ledger() if ledger is None else ledger
    return ProgramResult(choose_runtime("run_programs", runtime).run_sync(programs, ledger=ledger), ledger)
