"""Turn the `runtime` argument of a verb into a runtime: one rule and one error text for all verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ..parameters import bad, nearest
from ..parties.ledger import Ledger
from ..parties.party import Program
from .inprocess import InProcess
from .processes import Processes

NAMES: dict[str, type[InProcess] | type[Processes]] = {"inprocess": InProcess, "processes": Processes}


@runtime_checkable
class SyncRuntime(Protocol):
    """A runtime that blocks until all programs have returned."""

    def run_sync(
        self, programs: Mapping[str, Program], *, ledger: Ledger | None = None
    ) -> dict[str, Any]: ...


def choose_runtime(
    verb: str, runtime: SyncRuntime | str | None, *, all_stay: bool = False
) -> InProcess | Processes:
    """Return the runtime that `runtime` names; None: all parties in this process.

    `all_stay`: the protocol needs every party from start to end, so a deadline or a restart, which only
    training supports, is refused. `verb` is named in error messages.
    """
    if runtime is None:
        return InProcess()
    if isinstance(runtime, str) and runtime in NAMES:
        return NAMES[runtime]()
    if not isinstance(runtime, SyncRuntime):
        hint = nearest(runtime, list(NAMES)) if isinstance(runtime, str) else ""
        raise bad(verb, "runtime", runtime, allowed_runtimes(), hint)
    if all_stay:
        check_all_stay(verb, runtime)
    return runtime  # type: ignore[return-value]  # any object with `run_sync`, such as a test's recorder


def check_all_stay(verb: str, runtime: Any) -> None:
    """Refuse a runtime that would let a party leave, or restart in the middle of the protocol."""
    if not isinstance(runtime, Processes):
        return
    for name, value, allowed in (("deadline", runtime.deadline, None), ("restart", runtime.restart, False)):
        if value != allowed:
            raise bad(
                verb,
                f"{name} of the runtime",
                value,
                str(allowed),
                "No party can leave this protocol or restart in the middle of it. Only training continues "
                "without a party.",
            )


def allowed_runtimes(*more: str) -> str:
    """What `runtime` may be, for an error message; `more` are further names that a verb accepts."""
    names = ", ".join(map(repr, (*more, *NAMES)))
    return f"one of {names}, or tacit.InProcess(…) or tacit.Processes(…)"
