"""tacit ui: a live page over runs and, with a kit, over a federation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .verbs import Answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "ui",
        _ui,
        "Show runs live in a browser, until stopped; with a kit the federation, too.",
        arg("runs", nargs="?", default="runs", help="directory of runs (default: runs)"),
        arg("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)"),
        arg("--port", type=int, help="port (default: 8642, or a free one)"),
        arg("--kit", metavar="DIR", help="your start kit: show its federation, too"),
        arg(
            "--control",
            action="store_true",
            help="allow changes from the page: a party approves and denies jobs; a coordinator (or, without "
            "a kit, you) starts, pauses and resumes job files of this directory",
        ),
        epilog="The printed address contains a token: whoever has it sees the pages. The connection is not "
        "encrypted; to watch from another machine, forward the port: ssh -L 8642:127.0.0.1:8642 HOST. "
        "Needs the extra ui: pip install 'tacit[ui]'.",
    )


def _ui(args: Any) -> Answer:
    from ..errors import BadParameter
    from ..ui.serve import serve

    runs = Path(args.runs)
    if runs.exists() and not runs.is_dir():
        raise BadParameter(f"ui: {runs} is a file. Give a directory of runs.")
    if not runs.exists() and args.runs != "runs":
        raise BadParameter(
            f"ui: there is no directory {runs}. Give one with runs, as `tacit run` writes them."
        )
    if args.port is not None and not 0 <= args.port <= 65535:
        raise BadParameter(f"ui: --port is {args.port}; it must be 0 (any free port) to 65535.")

    if args.kit is not None:
        from ..runtimes import kits
        from ..runtimes.processes import need_net

        need_net("tacit ui --kit")
        if kits.load(args.kit).role == "hub":
            raise BadParameter(
                "ui: --kit is the hub's, which is no party. Give a party's or the server's kit."
            )
    kit = None if args.kit is None else Path(args.kit)

    def ready(address: str) -> None:
        print(json.dumps({"address": address}) if args.json else address, flush=True)
        args.json = False  # that was the one document
        print("open it in a browser; Ctrl-C ends it", file=sys.stderr, flush=True)
        if args.host not in ("127.0.0.1", "localhost", "::1"):
            print(
                "warning: other machines can reach this address, and the connection is not encrypted",
                file=sys.stderr,
                flush=True,
            )

    serve(runs, args.host, args.port, kit, args.control, debug=args.debug, ready=ready)
    return {}, lambda console: None
