"""tacit hub: accept parties' connections and relay their encrypted messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .logs import LOG, MONITOR, start_logs
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
        MONITOR,
        LOG,
    )


def _hub(args: Any) -> Answer:
    from ..runtimes.processes import need_net

    need_net("tacit hub")
    import asyncio
    from dataclasses import replace

    from ..runtimes import hub, kits

    start_logs(args.log)
    kit = kits.load(args.kit)
    kit = kit if args.listen is None else replace(kit, listen=args.listen)
    asyncio.run(hub.serve(kit, monitor=args.monitor))
    return {}, lambda console: None
