"""tacit.run: any programs, one per party, on any runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..parameters import bad
from ..parties.ledger import Ledger
from ..parties.party import Program


def run(programs: Mapping[str, Program], *, runtime: Any = None, ledger: Ledger | None = None) -> dict[str, Any]:
    """What each party's program returned. `runtime` is `tacit.InProcess(…)` (the default) or `tacit.Processes(…)`; who saw what is added to `ledger`.

    A failed party ends the run, and PartyFailed names it.
    """
    if runtime is None:
        from ..runtimes.inprocess import InProcess

        runtime = InProcess()
    if not hasattr(runtime, "run_sync"):
        raise bad("run", "runtime", runtime, "tacit.InProcess(…) or tacit.Processes(…)")
    if not isinstance(programs, Mapping) or not all(callable(p) for p in programs.values()):
        raise bad("run", "programs", programs, 'a program for each party by its name, like {"alice": program, "bob": program}')
    return dict(runtime.run_sync(programs, ledger=ledger))
