"""One party's program over the federation's hub, with its start kit; what the party saw is added to the
ledger in the kit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..parties.ledger import Ledger
from ..parties.party import Program
from .ledger_file import recorded

if TYPE_CHECKING:
    from ..runtimes.kits import Kit


def run_with_kit(verb: str, kit: Kit, program: Program, patience: float) -> tuple[dict[str, Any], Ledger]:
    """(what the program returns, what this party saw). The line in the ledger file is written whether the
    program ends well or not.
    """
    from ..runtimes.link import Link

    seen = Ledger()

    async def connected() -> dict[str, Any]:
        async with Link(kit, patience=patience, away=patience) as link:
            try:
                return dict(
                    await link.run(program)
                )  # also of a program that fails, what it has sent is delivered first
            finally:
                seen.merge(link.mailbox.ledger)

    with recorded(kit.directory, seen, verb, kit.name):
        return asyncio.run(connected()), seen
