"""Start the processes of a run: one small process imports what all of them need and forks each of them.

`Processes` starts it as a program. It reads a JSON line for each process to start, and writes one when a
process has started or ended. When its parent exits, it ends all of them. It opens no connection and starts no
thread, so that forking is safe.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from ..files import write_atomic


def main(reply: int, modules: list[str]) -> None:
    import importlib

    import torch  # noqa: F401  # imported once, for all processes

    from .. import parties  # noqa: F401
    from . import channel, kits, values  # noqa: F401

    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # otherwise the garbage collector of every process visits, and so copies, all of torch
    names: dict[int, str] = {}
    waiting = b""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends us

    def report(**fields: Any) -> None:
        os.write(reply, json.dumps(fields).encode() + b"\n")

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
                report(started=order["name"], pid=pid)
        for pid in list(names):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                report(ended=names.pop(pid), pid=pid, status=os.waitstatus_to_exitcode(status))
    for pid in names:
        os.kill(pid, signal.SIGKILL)


def _live(order: dict[str, Any]) -> None:
    """Run one process to its end."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        import torch

        torch.set_num_threads(1)  # parties share this machine's cores
        if order["role"] == "main":
            code = _main(order)
        else:
            code = asyncio.run(_orphans(_hub(order) if order["role"] == "hub" else _party(order)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


async def _orphans(work: Any) -> int:
    """Run the work, and exit if the nursery process ends."""
    parent, task = os.getppid(), asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=1.0)
        if os.getppid() != parent:
            os._exit(1)
    return int(task.result())


async def _hub(order: dict[str, Any]) -> int:
    from . import hub, kits

    folder = Path(order["folder"])
    await hub.serve(kits.load(folder / "kit"), lambda port: write_atomic(folder / "port", str(port).encode()))
    return 0


async def _party(order: dict[str, Any]) -> int:
    from . import kits
    from .link import Link

    kit, ledger, error, result = kits.load(Path(order["folder"]) / "kit"), None, None, None
    try:
        program = find_program(order["program"])
        async with Link(kit, **order["link"]) as link:
            ledger = link.mailbox.ledger
            result = await link.run(program)
    except Exception as found:
        error = found
    return _write_result(order, kit.name, result, error, ledger)


def _main(order: dict[str, Any]) -> int:
    """Run a program in this thread, which is its process's main one; exit if the nursery process ends."""
    import threading

    from ..parties.ledger import Ledger
    from . import kits

    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    kit, ledger, error, result = kits.load(Path(order["folder"]) / "kit"), Ledger(), None, None
    try:
        result = find_program(order["program"])(kit, order["link"], ledger)
    except Exception as found:
        error = found
    return _write_result(order, kit.name, result, error, ledger)


def _write_result(order: dict[str, Any], name: str, result: Any, error: Exception | None, ledger: Any) -> int:
    """Write how a party's program ended into its folder."""
    from .values import pack

    try:
        outcome = {"result": pack(result, f"what the program of {name!r} returned")}
    except Exception as found:
        error = error or found
    if error is not None:
        traceback_text = (
            "" if type(error).__module__ == "tacit.errors" else "".join(traceback.format_exception(error))
        )
        outcome = {
            "error": pack(
                [type(error).__module__, type(error).__name__, str(error), traceback_text], "an error"
            )
        }
    write_atomic(
        Path(order["folder"]) / "result",
        pack({**outcome, "ledger": json.dumps(ledger.to_dict()) if ledger is not None else ""}, "a result"),
    )
    return 0


def find_program(spec: dict[str, Any]) -> Any:
    """Import the program of a specification, with its arguments."""
    import importlib
    import importlib.util

    from .values import unpack

    before = sys.modules.get("__tacit_main__")
    if spec["file"] and before is not None and before.__file__ == spec["file"]:
        module = before  # one script is executed once: its classes stay the same
    elif spec["file"]:
        sys.path.insert(0, str(Path(spec["file"]).parent))
        spec_of_file = importlib.util.spec_from_file_location("__tacit_main__", spec["file"])
        assert spec_of_file is not None
        assert spec_of_file.loader is not None
        module = importlib.util.module_from_spec(spec_of_file)
        sys.modules["__tacit_main__"] = module
        spec_of_file.loader.exec_module(module)
    else:
        module = importlib.import_module(spec["module"])
    target: Any = module
    for part in spec["qualname"].split("."):
        target = getattr(target, part)
    args, kwargs = unpack(bytes.fromhex(spec["arguments"]))
    return partial(target, *args, **kwargs) if args or kwargs else target


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[2])
    main(int(sys.argv[1]), json.loads(sys.argv[3]))
