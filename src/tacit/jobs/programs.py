"""`tacit.run_programs`: run any programs, one per party, on any runtime; or one's own with one's kit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
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
    kit: str | Path | None = None,
    peers: Iterable[str] | None = None,
    patience: float = 300.0,
) -> ProgramResult:
    """Run one program per party and return what each returned, by party.

    `runtime` is "inprocess" (the default), "processes", `tacit.InProcess(…)` or `tacit.Processes(…)`. What
    each party saw is in the result's ledger, which is `ledger` if one is passed. If a party fails, the run
    ends with a PartyFailed that names it.

    With `kit`, the folder of a start kit, `programs` has the program of the kit's party alone. It connects to
    the other parties over the kit's hub, and each of them runs its own program with its own kit. `peers` are
    the parties of the run (None: all of the federation): if one fails, all of them stop. A party that nobody
    hears of for `patience` seconds ends the run.
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
    if kit is not None:
        return _run_own(programs, Path(kit), peers, patience, ledger, runtime)
    return ProgramResult(choose_runtime("run_programs", runtime).run_sync(programs, ledger=ledger), ledger)


def _run_own(
    programs: Mapping[str, Program],
    directory: Path,
    peers: Iterable[str] | None,
    patience: float,
    ledger: Ledger,
    runtime: SyncRuntime | str | None,
) -> ProgramResult:
    """Run this party's program with its kit."""
    from ..runtimes.kits import load
    from .kit_run import run_program

    kit = load(directory)
    if runtime is not None:
        raise bad("run_programs", "runtime", runtime, "None", "With a kit, parties meet at the kit's hub.")
    if list(programs) != [kit.name]:
        raise bad(
            "run_programs",
            "the parties of programs",
            sorted(programs),
            f"[{kit.name!r}], the party of the kit {directory}",
            "Each party runs its own program with its own kit.",
        )
    known = set(kit.parties)
    together = known if peers is None else {kit.name, *peers}
    if not together <= known:
        raise bad("run_programs", "peers", sorted(together - known), f"parties of the kit: {sorted(known)}")
    value = run_program("run_programs", kit, programs[kit.name], patience, together, ledger)
    return ProgramResult({kit.name: value}, ledger)
