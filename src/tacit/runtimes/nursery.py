"""Where the processes of a run come from: one small process that has loaded what all of them need, and forks
each of them.

Started by `Processes` as a program. It reads a JSON line for each process to start, and writes one when it
has started or ended. When whoever started it goes away, it ends all of them. It opens no connection and
starts no thread itself, so that forking is safe.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any


def main(reply: int, modules: list[str]) -> None:
    import importlib

    import torch  # noqa: F401  # loaded once, here, for all of them

    from .. import parties  # noqa: F401
    from . import channel, kits, values  # noqa: F401

    for name in modules:
        importlib.import_module(name)
    names: dict[int, str] = {}
    waiting = b""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us: it ends us in order

    def say(**what: Any) -> None:
        os.write(reply, json.dumps(what).encode() + b"\n")

    while True:
        readable, _, _ = select.select([0], [], [], 0.02 if names else None)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    os.close(reply)
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                    _live(order)
                names[pid] = order["name"]
                say(started=order["name"], pid=pid)
        for pid in list(names):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                say(ended=names.pop(pid), pid=pid, status=os.waitstatus_to_exitcode(status))
    for pid in names:
        os.kill(pid, signal.SIGKILL)


def _live(order: dict[str, Any]) -> None:
    """A process of its own, to its end."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        import torch

        torch.set_num_threads(1)  # parties share this machine's cores
        code = asyncio.run(_orphans(_hub(order) if order["role"] == "hub" else _party(order)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


async def _orphans(work: Any) -> int:
    """Do the work, but not for longer than the nursery lives."""
    parent, task = os.getppid(), asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=1.0)
        if os.getppid() != parent:
            os._exit(1)
    return int(task.result())


async def _hub(order: dict[str, Any]) -> int:
    from . import hub, kits

    folder = Path(order["folder"])
    await hub.serve(kits.load(folder / "kit"), lambda port: _write(folder / "port", str(port).encode()))
    return 0


def _write(path: Path, content: bytes) -> None:
    from ..files import write_atomic

    write_atomic(path, content)


async def _party(order: dict[str, Any]) -> int:
    from . import kits
    from .link import Link
    from .values import pack

    folder = Path(order["folder"])
    kit = kits.load(folder / "kit")
    ledger: Any = None
    try:
        program = found(order["program"])
        async with Link(
            kit,
            seed=order["seed"],
            max_bytes=order["max_bytes"],
            patience=order["patience"],
            linger=order["linger"],
            away=order["away"],
        ) as link:
            ledger = link.mailbox.ledger
            said = {"result": pack(await link.run(program), f"what the program of {kit.name!r} returned")}
    except Exception as error:
        traceback_text = (
            "" if type(error).__module__ == "tacit.errors" else "".join(traceback.format_exception(error))
        )
        said = {
            "error": pack(
                [type(error).__module__, type(error).__name__, str(error), traceback_text], "an error"
            )
        }
    _write(
        folder / "result",
        pack({**said, "ledger": json.dumps(ledger.to_dict()) if ledger is not None else ""}, "a result"),
    )
    return 0


def found(spec: dict[str, Any]) -> Any:
    """The program a specification names, with the arguments it brings."""
    import importlib
    import importlib.util

    from .values import unpack

    if spec["file"]:
        sys.path.insert(0, str(Path(spec["file"]).parent))
        made = importlib.util.spec_from_file_location("__tacit_main__", spec["file"])
        assert made is not None
        assert made.loader is not None
        module = importlib.util.module_from_spec(made)
        sys.modules["__tacit_main__"] = module
        made.loader.exec_module(module)
    else:
        module = importlib.import_module(spec["module"])
    thing: Any = module
    for part in spec["qualname"].split("."):
        thing = getattr(thing, part)
    args, kwargs = unpack(bytes.fromhex(spec["given"]))
    return partial(thing, *args, **kwargs) if args or kwargs else thing


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[2])
    main(int(sys.argv[1]), json.loads(sys.argv[3]))
