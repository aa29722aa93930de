"""tacit hub: accept parties' connections and relay their encrypted messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .verbs import Answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "hub",
        _hub,
        "Run the hub of a federation, until stopped.",
        arg("--kit", required=True, metavar="DIR", help="the hub's start kit"),
        arg(
            "--listen", metavar="ADDRESS:PORT", help="where to accept connections (default: as in party.toml)"
        ),
    )


def _hub(args: Any) -> Answer:
    from ..runtimes.processes import need_net

    need_net("tacit hub")
    import asyncio
    from dataclasses import replace

    from ..runtimes import hub, kits
    from .party import logs

    logs()
    kit = kits.load(args.kit)
    asyncio.run(hub.serve(kit if args.listen is None else replace(kit, listen=args.listen)))
    return {}, lambda console: None
