"""Real processes for tests, without the seconds that importing torch costs each of them.

One process a worker has imported everything and forks what tests start: `Popen` is `subprocess.Popen` for a
Python program. What it starts has a process id, a directory, an environment and streams of its own, and dies
by a signal as any other. It is not a new interpreter: a test of what starting one does, or imports, uses
`subprocess`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[1]
MODULES = (
    "hypothesis",
    "pandas",
    "pytest",
    "sklearn.linear_model",
    "torch._dynamo",  # the first optimizer of a process imports it, which takes seconds
    "torch.utils.flop_counter",
)
NUMBER = struct.Struct("i")


class Popen:
    """The part of `subprocess.Popen` that tests use. `argv` is `[sys.executable, "-m" or "-c" or a file, …]`."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
    ):
        self.args, self.returncode = list(argv), None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        ours: list[int] = []  # ends that only the new process keeps

        def pipe(mode: str) -> tuple[int, IO[Any]]:
            read, write = os.pipe()
            theirs, mine = (read, write) if mode == "w" else (write, read)
            ours.append(theirs)
            return theirs, open(
                mine, mode if text else mode + "b", buffering=-1 if text or mode == "r" else 0
            )

        def stream(given: int | IO[Any] | None, number: int) -> int:
            if given is None:
                return number
            if given == DEVNULL:
                ours.append(os.open(os.devnull, os.O_RDWR))
                return ours[-1]
            return given if isinstance(given, int) else given.fileno()

        if stdin == PIPE:
            into, self.stdin = pipe("w")
        else:
            into = stream(stdin, 0)
        if stdout == PIPE:
            out, self.stdout = pipe("r")
        else:
            out = stream(stdout, 1)
        if stderr == PIPE:
            err, self.stderr = pipe("r")
        else:
            err = out if stderr == STDOUT else stream(stderr, 2)
        self._status, status = os.pipe()
        ours.append(status)
        sys.stdout.flush()
        sys.stderr.flush()
        request = {
            "argv": self.args[1:],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "numbers": [0, 1, 2, *pass_fds],
        }
        _send(process.connect(), request, [status, into, out, err, *pass_fds])
        for number in ours:
            os.close(number)
        self.pid = self._read_number()
        self._readers: list[threading.Thread] = []
        started.append(self)

    def _read_number(self) -> int:
        data = os.read(self._status, NUMBER.size)
        if not data:
            raise RuntimeError("the warm process has ended; its error is in the output of this test session")
        return int(NUMBER.unpack(data)[0])

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self.returncode = self._read_number()
        os.close(self._status)

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[Any, Any]:
        assert input is None
        if self.stdin is not None:
            self.stdin.close()
        read: dict[int, Any] = {}
        streams = [s for s in (self.stdout, self.stderr) if s is not None]
        threads = [
            threading.Thread(target=lambda s=s: read.__setitem__(id(s), s.read()), daemon=True)
            for s in streams
        ]
        self._readers = threads
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join()
        for s in streams:
            s.close()
        return read.get(id(self.stdout)), read.get(id(self.stderr))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill it if it runs, and close its streams."""
        self.kill()
        self.wait()
        for thread in self._readers:  # of a `communicate` that waited in vain
            thread.join()
        for s in (self.stdin, self.stdout, self.stderr):
            if s is not None:
                with contextlib.suppress(BrokenPipeError):
                    s.close()

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, *error: object) -> None:
        for s in (self.stdin, self.stdout, self.stderr):
            if s is not None:
                s.close()
        self.wait()


def run(argv: Sequence[str], *, timeout: float | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(…, capture_output=True, text=True)`."""
    process = Popen(argv, stdout=PIPE, stderr=PIPE, stdin=DEVNULL, text=True, **how)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


NEW = subprocess.Popen
started: list[Popen] = []  # those that no test has ended yet, and those that ended by themselves


def end_since(number: int) -> None:
    """End the processes started after the first `number`, which a test that failed has left."""
    for left in started[number:]:
        left.end()
    del started[number:]


def start(argv: Any, *more: Any, **how: Any) -> Any:
    """In the place of `subprocess.Popen`: Python programs come from the warm process."""
    if not more and isinstance(argv, list) and argv[0] == sys.executable:
        return Popen(argv, **how)
    return NEW(argv, *more, **how)


class Nursery:
    """The part of `asyncio.subprocess.Process` that `Processes` uses."""

    def __init__(self, process: Popen, stdin: asyncio.WriteTransport):
        self.process, self.stdin = process, stdin

    async def wait(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self.process.returncode is None:
            loop.add_reader(self.process._status, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self.process._status)
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()


start_anew = asyncio.create_subprocess_exec


async def create_subprocess_exec(*command: str, pass_fds: Sequence[int] = (), **how: Any) -> Any:
    """In the place of `asyncio.create_subprocess_exec`: what `Processes` starts comes from the warm process."""
    if command[1:3] != ("-m", "tacit.runtimes.nursery"):
        return await start_anew(*command, pass_fds=pass_fds, **how)
    process = Popen(command, stdin=PIPE, pass_fds=pass_fds)
    assert process.stdin is not None
    stdin, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, process.stdin)
    return Nursery(process, stdin)


def skip_sync(fd: int) -> None:
    """In the place of `os.fsync`: tests kill processes, which loses nothing that was written."""


class _WarmProcess:
    """The process that forks, started when it is first needed."""

    connection: socket.socket | None = None

    def connect(self) -> socket.socket:
        with sending:
            if self.connection is None:
                self.connection, theirs = socket.socketpair()
                with theirs:
                    self.process = NEW(
                        [sys.executable, "-m", "tests.warm", str(theirs.fileno()), json.dumps(sys.path)],
                        pass_fds=[theirs.fileno()],
                        cwd=ROOT,
                        stdin=DEVNULL,
                        start_new_session=True,
                    )
            return self.connection

    def stop(self) -> None:
        if self.connection is not None:
            self.connection.close()  # it kills what it started, and ends
            self.connection = None
            self.process.wait()


# a module that runs the command line, and one that needs Triton, which torch's builds for the CPU do not have
NOT_IMPORTED = ("__main__", "triton_kernels")

process = _WarmProcess()
sending = threading.Lock()  # parties in threads start processes at the same moment


def _send(to: socket.socket, request: dict[str, Any], fds: list[int]) -> None:
    data = json.dumps(request).encode()
    with sending:
        socket.send_fds(to, [NUMBER.pack(len(data))], fds)
        to.sendall(data)


# --- in the warm process ------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    import tacit

    rooms = (module.name for module in pkgutil.walk_packages(tacit.__path__, "tacit."))
    for name in (*MODULES, *(room for room in rooms if not room.endswith(NOT_IMPORTED))):
        importlib.import_module(name)
    os.fsync = skip_sync
    gc.freeze()  # otherwise the garbage collector of every process visits, and so copies, all of this
    processes: dict[int, int] = {}  # id -> where its status is awaited
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([connection, wake], [], [])
        if connection in readable:
            head, fds, _, _ = socket.recv_fds(connection, NUMBER.size, 16)
            if not head:
                break
            left, data = NUMBER.unpack(head)[0], b""
            while len(data) < left:
                data += connection.recv(left - len(data))
            pid = os.fork()
            if pid == 0:
                connection.close()
                for number in (wake, woken, *processes.values(), fds[0]):
                    os.close(number)
                _become(json.loads(data), fds[1:])
            processes[pid] = fds[0]
            os.write(fds[0], NUMBER.pack(pid))
            for number in fds[1:]:
                os.close(number)
        else:
            os.read(wake, 1 << 10)
        _reap(processes)
    for pid in processes:
        os.kill(pid, signal.SIGKILL)


def _reap(processes: dict[int, int]) -> None:
    for pid in list(processes):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            reader = processes.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                os.write(reader, NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(reader)


def _become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Be the program of the request."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        least = (
            max(100, *request["numbers"]) + 1
        )  # above every target: none replaces one that is still needed
        high = [_above(number, least) for number in fds]
        for number, target in zip(high, request["numbers"]):
            os.dup2(number, target, inheritable=True)
            os.close(number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, buffering, closefd=False)
            for number, mode, buffering in ((0, "r", -1), (1, "w", 1), (2, "w", 1))
        )
        sys.path[0] = request["cwd"]
        code = _play(request["argv"])
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter does
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _above(number: int, least: int) -> int:
    copy = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(number)
    return copy


def _play(argv: list[str]) -> int:
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            sys.modules.pop(argv[1], None)
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        elif argv[0] == "-c":
            sys.argv = ["-c", *argv[2:]]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(argv[1], "<string>", "exec", dont_inherit=True), main.__dict__)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.path[:] = ["", *json.loads(sys.argv[2])]
    serve(socket.socket(fileno=int(sys.argv[1])))
