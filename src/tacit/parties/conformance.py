"""Conformance checks for protocols: correct, recorded in the ledger, reproducible, failing as a whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PartyFailed
from .codec import kind_of
from .ledger import Ledger
from .message import KINDS
from .party import Party, Program, Runtime, Transport

# seconds of real time for one run: far above any protocol on test inputs, so that a hang is a failure
PATIENCE = 60.0


@dataclass(eq=False)
class Tap:
    """Records every frame sent, in order, as (sender, to, scope, frame).

    `crash=(party, n)` makes that party's n-th send fail.
    """

    frames: list[tuple[str, str, str, bytes]] = field(default_factory=list)
    crash: tuple[str, int] | None = None

    def on(self, programs: Mapping[str, Program]) -> dict[str, Program]:
        async def run_tapped(program: Program, me: Party) -> Any:
            return await program(replace(me, transport=_Tapped(me.transport, self)))

        return {name: partial(run_tapped, program) for name, program in programs.items()}

    def view(self, party: str) -> list[bytes]:
        """Return every frame this party received: the view of an attacker in its place."""
        return [frame for _, to, _, frame in self.frames if to == party]

    def counts(self) -> Counter[tuple[str, str, str]]:
        """Count frames by (receiver, sender, kind)."""
        return Counter((to, sender, kind_of(frame)) for sender, to, _, frame in self.frames)


@dataclass(frozen=True)
class _Tapped:
    inner: Transport
    tap: Tap

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if self.tap.crash is not None and self.tap.crash == (
            sender,
            sum(s == sender for s, _, _, _ in self.tap.frames),
        ):
            raise Crash(f"{sender} was made to crash")
        self.tap.frames.append((sender, to, scope, bytes(frame)))
        await self.inner.deliver(sender, to, scope, frame)


class Crash(Exception):
    """An injected crash of a party."""


def demand(condition: bool, message: str) -> None:
    """Assert `condition`, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def check_protocol(
    programs: Callable[[Any], Mapping[str, Program]],
    ideal: Callable[[Any], Mapping[str, Any]],
    inputs: Iterable[Any],
    runtime: Runtime | None = None,
    equal: Callable[[Any, Any], bool] | None = None,
) -> None:
    """Raise AssertionError with the reason unless the protocol passes all checks on every input.

    `programs(x)` returns one program per party, `ideal(x)` the expected results of (some of) the parties.
    `equal` compares a party's result with the ideal and with a second run; by default numbers may differ by a
    relative 1e-5.
    """
    if runtime is None:
        from ..runtimes.inprocess import InProcess  # only the default runtime needs it

        runtime = InProcess()
    equal = equal or alike
    count = 0
    for x in inputs:
        count += 1
        ledger, tap = Ledger(), Tap()
        first = run_within(runtime, tap.on(programs(x)), ledger, PATIENCE)
        for name, expected in ideal(x).items():
            demand(
                name in first,
                f"the ideal gives something to {name!r}, but the parties are {', '.join(map(repr, first))}.",
            )
            demand(
                equal(first[name], expected),
                f"on input {x!r:.200} party {name!r} got {first[name]!r:.200}, the ideal gives "
                f"{expected!r:.200}.",
            )
        _check_ledger(tap, ledger)
        again = run_within(runtime, programs(x), Ledger(), PATIENCE)
        for name, result in first.items():
            demand(
                equal(result, again[name]),
                f"two runs with the same seed differ at {name!r}: {result!r:.200} and {again[name]!r:.200}.",
            )
        if count == 1:  # crash behavior does not depend on the input
            _check_crashes(programs, x, runtime, Counter(sender for sender, _, _, _ in tap.frames))
    demand(count > 0, "check_protocol was given no inputs, so it has checked nothing.")


def run_within(
    runtime: Runtime, programs: Mapping[str, Program], ledger: Ledger, seconds: float
) -> dict[str, Any]:
    """Run the programs; a run that does not end in time is a failure."""

    async def run() -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            return await runtime.run(programs, ledger=ledger)

    try:
        return asyncio.run(run())
    except TimeoutError:
        raise AssertionError(
            f"{runtime!r}: the run of {', '.join(map(repr, programs))} did not end within {seconds:g} s."
        ) from None


def expect_failure(run: Callable[[], Any], otherwise: str) -> PartyFailed:
    """Return the failure of a run that must fail."""
    try:
        run()
    except PartyFailed as failed:
        return failed
    raise AssertionError(otherwise)


def _check_ledger(tap: Tap, ledger: Ledger) -> None:
    noted: Counter[tuple[str, str, str]] = Counter()
    for line in ledger.seen:
        if line.how == "executed":
            noted[line.party, line.sender, line.kind] += line.count
    for (party, sender, kind), count in tap.counts().items():
        demand(kind in KINDS and bool(KINDS[kind].reveals), f"{kind} does not say what it reveals.")
        demand(
            noted[party, sender, kind] == count,
            f"{sender!r} sent {count} {kind} to {party!r}, but the ledger has {noted[party, sender, kind]}: "
            "a message was not recorded.",
        )


def _check_crashes(
    programs: Callable[[Any], Mapping[str, Program]], x: Any, runtime: Runtime, sends: Counter[str]
) -> None:
    """Crash each sender at its first message and half way; the run must end with an error that names it."""
    for victim, n in sends.items():
        for at in sorted({0, n // 2}):
            crashing = Tap(crash=(victim, at)).on(programs(x))
            failed = expect_failure(
                partial(run_within, runtime, crashing, Ledger(), PATIENCE),
                f"{victim!r} crashed at its message {at}, and the run ended without an error.",
            )
            demand(
                failed.party == victim, f"{victim!r} crashed, but the error names {failed.party!r}: {failed}"
            )


def alike(a: Any, b: Any) -> bool:
    """Compare structure and numbers, with a relative tolerance of 1e-5."""
    if isinstance(a, Tensor | np.ndarray) or isinstance(b, Tensor | np.ndarray):
        x, y = torch.as_tensor(a), torch.as_tensor(b)
        if x.shape != y.shape:
            return False
        if not (x.is_floating_point() or y.is_floating_point()):
            return torch.equal(x, y)
        return torch.allclose(x.double(), y.double(), rtol=1e-5, atol=1e-8, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=True))
    return bool(a == b)
