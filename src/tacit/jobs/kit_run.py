"""Run one party's program over the federation's hub with its start kit, and record its ledger."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..parties.ledger import Ledger
from ..parties.party import Program
from .ledger_file import record_command

if TYPE_CHECKING:
    from ..runtimes.kits import Kit


def run_with_kit(verb: str, kit: Kit, program: Program, patience: float) -> tuple[dict[str, Any], Ledger]:
    """Run the program; return (its result, what this party saw).

    The line in the ledger file is written whether the program succeeds or fails.
    """
    from ..runtimes.link import Link

    ledger = Ledger()

    async def run_connected() -> dict[str, Any]:
        async with Link(kit, patience=patience, away=patience) as link:
            try:
                return dict(await link.run(program))  # its messages are delivered first, also if it fails
            finally:
                ledger.merge(link.mailbox.ledger)

    with record_command(kit.directory, ledger, verb, kit.name):
        return asyncio.run(run_connected()), ledger
