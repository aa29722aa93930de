"""One process per party on this machine, with real sockets and certificates.

Messages go directly from process to process (local_streams.py), encrypted from end to end as between
organizations; with `through_hub`, over a hub. The hub runs in any case: parties that start late learn from it
that another one failed.

Another process must be able to import a program: a function of a module or of the running script, or
`functools.partial` of one with plain values. No code or object is sent; a program that cannot be imported is
refused before anything starts. Programs must return plain values (values.py).
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import inspect
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors
from ..errors import BadParameter, MissingExtra, PartyFailed, ProtocolError
from ..parameters import bad, check, flag, real, whole
from ..parties.codec import MAX_BYTES
from ..parties.ledger import Ledger
from ..parties.party import Program
from .streaming import Emitter, drain

if TYPE_CHECKING:
    from .kits import Kit

T = TypeVar("T")
log = logging.getLogger("tacit.party")
PATIENCE = 60.0  # seconds to retry when the hub, or an awaited party, has disconnected
LINGER = 5.0  # seconds a finished party waits for others to receive its messages
LONGEST_SOCKET = 100  # bytes of a Unix socket's path; Linux takes 107 and macOS 103


@dataclass(frozen=True)
class Processes:
    seed: int | None = whole(0, none=True, doc="every party's rng follows from it; None draws fresh ones")
    deadline: float | None = real(
        None,
        above=0,
        none=True,
        doc="in training: seconds a round waits for answers; None waits for everyone",
    )
    at_least: int | None = whole(
        None,
        least=1,
        none=True,
        doc="in training: answers with which a round goes on after the deadline; None: everyone's",
    )
    restart: bool = flag(
        False, doc="start a process again that was killed; one that ended with an error stays ended"
    )
    max_bytes: int = whole(MAX_BYTES, least=64, doc="the largest message a party sends or reads")
    through_hub: bool = flag(
        False, doc="send messages through the hub, as on several machines, instead of from process to process"
    )

    def check(self) -> None:
        if self.at_least is not None and self.deadline is None:
            raise bad(
                "Processes", "at_least", self.at_least, "None without a deadline", "Give deadline, too."
            )

    def run_sync(
        self,
        programs: Mapping[str, Program],
        *,
        ledger: Ledger | None = None,
        here: Collection[str] = (),
        may_leave: Collection[str] = (),
    ) -> dict[str, Any]:
        """Run the programs and return what each returned.

        Parties in `here` run in this process, and their programs may be any function. With a deadline, the
        run continues if a party in `may_leave` ends early; its result is then None.
        """
        return drain(self.stream(programs, Emitter(), ledger=ledger, here=here, may_leave=may_leave))

    def stream(
        self,
        programs: Mapping[str, Program],
        emitter: Emitter[T],
        *,
        ledger: Ledger | None = None,
        here: Collection[str] = (),
        may_leave: Collection[str] = (),
    ) -> Generator[T, None, dict[str, Any]]:
        """Run step by step: yield what a program in this process emits through `emitter`."""
        return emitter.stream(lambda: self.run(programs, ledger=ledger, here=here, may_leave=may_leave))

    async def run(
        self,
        programs: Mapping[str, Program],
        *,
        ledger: Ledger | None = None,
        here: Collection[str] = (),
        may_leave: Collection[str] = (),
    ) -> dict[str, Any]:
        check(self)
        need_net("Processes")
        for name in programs:
            if not isinstance(name, str) or not name or len(name) > 64 or name == "hub":
                raise bad(
                    "Processes.run",
                    "the name of a party",
                    name,
                    "a word of at most 64 characters, and not 'hub'",
                )
        if os.name != "posix":
            raise BadParameter(
                "Processes: this system cannot fork processes. Use Linux or macOS, or InProcess()."
            )
        specs = {
            name: specify_program(program.program if isinstance(program, MainProgram) else program, name)
            for name, program in programs.items()
            if name not in here
        }
        if not programs:
            return {}
        with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
            run = _ProcessRun(
                self, Path(folder), programs, specs, ledger if ledger is not None else Ledger(), may_leave
            )
            try:
                await run.open()
                return await run.play()
            finally:
                await run.close()


def need_net(what: str) -> None:
    """Raise MissingExtra unless the network packages are installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingExtra(what, "net", "cryptography") from None
    try:
        import grpc  # noqa: F401
    except ImportError:
        raise MissingExtra(what, "net", "grpcio") from None


def specify_program(program: Any, name: str) -> dict[str, Any]:
    """Describe how another process imports this program, or raise an error that says how to write it."""
    return _specify(
        program,
        inspect.isroutine,
        f"the program of {name!r}",
        "Give a function of a module or of the running script, or functools.partial of one with plain "
        "values. Functions defined inside functions or notebooks cannot be imported.",
    )


def specify_code(thing: Any, what: str) -> dict[str, Any]:
    """Describe how another process on this machine imports a class or a function; `what` it is."""
    return _specify(
        thing,
        lambda found: inspect.isroutine(found) or inspect.isclass(found),
        what,
        "Define it at the top level of a module or of the running script; what is defined inside a "
        "function or a notebook runs with runtime='cohort' or 'inprocess'.",
    )


def _specify(program: Any, fits: Callable[[Any], bool], what: str, advice: str) -> dict[str, Any]:
    from .values import pack

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(program, functools.partial):
        args, kwargs = (*program.args, *args), {**program.keywords, **kwargs}
        program = program.func
    module, qualname = getattr(program, "__module__", None), getattr(program, "__qualname__", "")
    home = sys.modules.get(module or "")
    file = ""
    if module == "__main__" and home is not None:
        file = str(Path(home.__file__).resolve()) if home.__file__ else ""
    thing: Any = home
    for part in qualname.split("."):
        thing = getattr(thing, part, None)
    if thing is not program or not fits(program) or (module == "__main__" and not file):
        raise BadParameter(f"{what} is {program!r:.120}, which another process cannot import. {advice}")
    return {
        "module": module,
        "file": file,
        "qualname": qualname,
        "arguments": pack((args, kwargs), f"an argument of {what}").hex(),
    }


@dataclass(frozen=True)
class MainProgram:
    """A program that is called in the main thread of its party's process, and has its own event loop.

    It is called as `program(kit, link_options, ledger)`.
    """

    program: Callable[..., Any]


class _ProcessRun:
    """One run: the nursery process, the hub and the parties."""

    def __init__(
        self,
        runtime: Processes,
        folder: Path,
        programs: Mapping[str, Program],
        specs: Mapping[str, Any],
        ledger: Ledger,
        may_leave: Collection[str],
    ):
        self.runtime, self.folder, self.programs, self.specs, self.ledger = (
            runtime,
            folder,
            programs,
            specs,
            ledger,
        )
        self.may_leave = may_leave if runtime.deadline is not None else ()
        self.link_options: dict[str, Any] = {
            "seed": runtime.seed,
            "max_bytes": runtime.max_bytes,
            "patience": PATIENCE,
            "linger": LINGER,
            # a killed party is reported at once; this limit is for a party that hangs
            "away": None if runtime.restart or self.may_leave else PATIENCE,
            # processes start at different speeds: a party that finishes early keeps its messages for slower
            # ones
            "start_wait": 0.0 if self.may_leave else PATIENCE,
            "local": self._sockets(),
        }
        self.results: dict[str, Any] = {}
        self.failed: PartyFailed | None = None
        self.pids: dict[str, int] = {}
        self.news = asyncio.Event()
        self.kits: dict[str, Kit] = {}
        self.tasks: list[asyncio.Task[Any]] = []

    async def open(self) -> None:
        from . import kits

        hub, self.kits = kits.temporary("run", tuple(self.programs))
        read, write = os.pipe()
        modules = {s["module"] for s in self.specs.values() if s["module"].startswith("tacit.")}
        self.nursery = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tacit.runtimes.nursery",
            str(write),
            json.dumps(sys.path),
            json.dumps(sorted(modules)),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(write,),
        )
        os.close(write)
        reader = asyncio.StreamReader()
        self.pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb")
        )
        self.tasks.append(asyncio.create_task(self._follow_nursery(reader)))
        kits.save(hub, self._folder("hub") / "kit")
        self.orders: dict[str, dict[str, Any]] = {
            "hub": {"name": "hub", "role": "hub", "folder": str(self._folder("hub"))}
        }
        self._start("hub")
        port = await self._port()
        kits.save(
            replace(hub, listen=f"127.0.0.1:{port}"), self._folder("hub") / "again"
        )  # a restarted hub must listen on the same port
        os.replace(self._folder("hub") / "again" / "party.toml", self._folder("hub") / "kit" / "party.toml")
        self.kits = {name: kit.at(f"127.0.0.1:{port}") for name, kit in self.kits.items()}
        for name, spec in self.specs.items():
            kits.save(self.kits[name], self._folder(name) / "kit")
            self.orders[name] = {
                "name": name,
                "role": "main" if isinstance(self.programs[name], MainProgram) else "party",
                "folder": str(self._folder(name)),
                "program": spec,
                "link": self.link_options,
            }

    def _sockets(self) -> dict[str, str] | None:
        """Return the socket of each party; None if messages go through the hub."""
        if self.runtime.through_hub:
            return None
        paths = {name: self._folder(name) / "socket" for name in self.programs}
        if any(len(os.fsencode(path)) > LONGEST_SOCKET for path in paths.values()):
            log.info("the folder %s is too long for sockets: messages go through the hub", self.folder)
            return None
        return {name: str(path) for name, path in paths.items()}

    def _folder(self, name: str) -> Path:
        """Return a party's folder; party names may contain characters that folder names cannot."""
        place = self.folder / ("hub" if name == "hub" else f"party-{list(self.programs).index(name)}")
        place.mkdir(exist_ok=True)
        return place

    def _start(self, name: str) -> None:
        assert self.nursery.stdin is not None
        self.nursery.stdin.write(json.dumps(self.orders[name]).encode() + b"\n")

    async def _port(self) -> int:
        for _ in range(6000):
            if (self._folder("hub") / "port").exists():
                return int((self._folder("hub") / "port").read_text())
            if self.failed is not None:
                raise self.failed
            await asyncio.sleep(0.01)
        raise ProtocolError("the hub's process did not start within a minute. Is the machine overloaded?")

    async def play(self) -> dict[str, Any]:
        for name in self.specs:
            self._start(name)
        self.tasks += [
            asyncio.create_task(self._run_here(name)) for name in self.programs if name not in self.specs
        ]
        while self.failed is None and len(self.results) < len(self.programs):
            self.news.clear()
            await self.news.wait()
        if self.failed is not None:
            raise self.failed
        return {name: self.results[name] for name in self.programs}

    async def _run_here(self, name: str) -> None:
        from .link import Link

        try:
            async with Link(self.kits[name], **self.link_options) as link:
                try:
                    self.results[name] = await link.run(self.programs[name])
                finally:
                    self.ledger.merge(link.mailbox.ledger)
        except Exception as error:
            failed = PartyFailed(name, error)
            failed.__cause__ = error
            self.failed = self.failed or failed
        finally:
            self.news.set()

    async def _follow_nursery(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "started" in message:
                self.pids[message["started"]] = message["pid"]
            elif self.pids.get(message["ended"]) == message["pid"]:
                self._on_exit(message["ended"], message["status"])
            self.news.set()
        if self.failed is None and len(self.results) < len(self.programs):
            self.failed = PartyFailed("hub", ProtocolError("the process that starts the parties was ended"))
            self.news.set()

    def _on_exit(self, name: str, status: int) -> None:
        del self.pids[name]
        file = self._folder(name) / "result"
        if file.exists():
            self._read_result(name, file.read_bytes())
        elif status < 0 and self.runtime.restart:
            self._start(name)
        elif name in self.may_leave:
            self.results[name] = None  # rounds continue without it, and the events name it
        else:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with code {status}"
            why = (
                " If nobody ended it on purpose, the machine may be out of memory."
                if status == -signal.SIGKILL
                else ""
            )
            self.failed = self.failed or PartyFailed(
                name,
                ProtocolError(
                    f"its process {how} before it returned a result.{why} Start again; the results of this "
                    "run are lost."
                ),
            )

    def _read_result(self, name: str, data: bytes) -> None:
        from .values import unpack

        outcome = unpack(data)
        if outcome["ledger"]:
            self.ledger.merge(Ledger.from_dict(json.loads(outcome["ledger"])))
        if "result" in outcome:
            self.results[name] = unpack(outcome["result"])
            return
        module, kind, text, trace = unpack(outcome["error"])
        if name in self.may_leave:
            self.results[name] = None  # in training: named in the events, and the others continue
            return
        if self.failed is None:
            self.failed = PartyFailed(name, _rebuild_error(module, kind, text))
            if trace:
                self.failed.add_note(f"where it happened, in the process of {name!r}:\n{trace}")

    async def close(self) -> None:
        for task in self.tasks[1:]:
            task.cancel()
        if hasattr(self, "nursery"):
            assert self.nursery.stdin is not None
            self.nursery.stdin.close()  # it ends them all, and then itself
            try:
                await asyncio.wait_for(self.nursery.wait(), 10)
            except TimeoutError:
                self.nursery.kill()
                await self.nursery.wait()
            self.pipe.close()
        # The hub has ended, so no message arrives any more: a task that cleans up and waits for a party that
        # never connected is cancelled again.
        while waiting := [task for task in self.tasks if not task.done()]:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting, timeout=1.0)
        await asyncio.gather(*self.tasks, return_exceptions=True)


def _rebuild_error(module: str, kind: str, text: str) -> BaseException:
    """Rebuild an error of another process: its class if it is tacit's or Python's, else RuntimeError."""
    known = (
        getattr(errors, kind, None)
        if module == "tacit.errors"
        else getattr(builtins, kind, None)
        if module == "builtins"
        else None
    )
    if isinstance(known, type) and issubclass(known, Exception) and known not in (PartyFailed, MissingExtra):
        with suppress(Exception):
            return known(text)
    return RuntimeError(f"{module}.{kind}: {text}")
