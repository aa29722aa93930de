"""tacit.run: any programs, one per party, on any runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..parameters import bad

if TYPE_CHECKING:
    from ..parties.ledger import Ledger
    from ..parties.party import Program


def run(
    programs: Mapping[str, Program], *, runtime: Any = None, ledger: Ledger | None = None
) -> dict[str, Any]:
    """What each party's program returned. `runtime` is `tacit.InProcess(…)` (the default) or
    `tacit.Processes(…)`; who saw what is added to `ledger`.

    A failed party ends the run, and PartyFailed names it.
    """
    runtime = chosen("run", runtime)
    if not isinstance(programs, Mapping) or not all(callable(p) for p in programs.values()):
        raise bad(
            "run",
            "programs",
            programs,
            'a program for each party by its name, like {"alice": program, "bob": program}',
        )
    return dict(runtime.run_sync(programs, ledger=ledger))


def chosen(what: str, runtime: Any) -> Any:
    """The runtime that was given, or this process."""
    if runtime is None:
        from ..runtimes.inprocess import InProcess

        return InProcess()
    if not hasattr(runtime, "run_sync"):
        raise bad(what, "runtime", runtime, "tacit.InProcess(…) or tacit.Processes(…)")
    return runtime


def to_the_end(what: str, runtime: Any) -> Any:
    """The same for a protocol that takes everybody from its beginning to its end: whoever is killed ends it,
    and the error names them.
    """
    for name, least in (("deadline", None), ("restart", False)):
        if (value := getattr(runtime, name, least)) != least:
            raise bad(
                what,
                f"{name} of the runtime",
                value,
                str(least),
                "Nobody can leave this protocol, or begin anew in the middle of it; training can "
                "go on without a party.",
            )
    return chosen(what, runtime)
