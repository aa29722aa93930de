"""Multiplications in ristretto255 on all cores, in worker processes.

Python threads do not help here. The workers are started as programs: not forked (a forked gRPC connection
hangs) and not by `multiprocessing` (which runs a user's script again). They read a scalar and points on
standard input, answer on standard output, and end when input is closed. No secret is pickled, or in a command
line that another user could read.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ProtocolError
from . import group

WORTH = 4096  # points before workers are started: starting takes as long as about 2,000 multiplications
_LIFT, _MULTIPLY = b"L", b"M"


def cores() -> int:
    """The cores that this process may use: in a container, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PointPool:
    """A context manager that multiplies many points.

    It uses the calling thread or, if more than WORTH points are expected, worker processes.
    """

    def __init__(self, expected: int, helpers: int | None = None):
        group.ready()  # here, so that this process reports a missing package
        count = cores() if helpers is None else helpers
        self._count = count if expected > WORTH and count > 1 else 0
        self._helpers: list[_Helper] = []
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> PointPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for helper in self._helpers:
            helper.close(at_once=kind is not None)
        if self._pool is not None:
            self._pool.shutdown()

    def multiply(self, scalar: bytes, points: bytes) -> bytes:
        if len(points) % group.POINT:
            raise ProtocolError(
                f"{len(points)} bytes are not a multiple of the {group.POINT} of a ristretto255 element."
            )
        return self._spread(_MULTIPLY, scalar, points, group.POINT, lambda part: group.multiply(scalar, part))

    def lift(self, digests: bytes, width: int, about: bytes, scalar: bytes) -> bytes:
        """Each digest mapped to the group and multiplied."""
        head = scalar + width.to_bytes(2, "big") + about
        return self._spread(
            _LIFT,
            head,
            digests,
            width,
            lambda part: group.multiply(scalar, group.elements(part, width, about)),
        )

    def _spread(
        self, job: bytes, head: bytes, data: bytes, each: int, here: Callable[[bytes], bytes]
    ) -> bytes:
        count = len(data) // each
        if not self._count or count < 2 * self._count:
            return here(data)
        pool = self._open()
        cuts = [each * (count * k // self._count) for k in range(self._count + 1)]
        parts = [data[a:b] for a, b in itertools.pairwise(cuts)]
        done = list(pool.map(lambda pair: pair[0].ask(job, head, pair[1]), zip(self._helpers, parts)))
        if any(part is None for part in done):
            return here(data)  # raises for the invalid point
        return b"".join(part for part in done if part is not None)

    def _open(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._helpers = [_Helper() for _ in range(self._count)]
                self._pool = ThreadPoolExecutor(self._count, "tacit points")
            return self._pool


class _Helper:
    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])  # of this package, installed or not
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tacit.crypto.manycore"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.lock = threading.Lock()  # one request at a time: several tasks of a party may send one

    def ask(self, job: bytes, head: bytes, data: bytes) -> bytes | None:
        with self.lock:
            into, out = self.process.stdin, self.process.stdout
            assert into is not None
            assert out is not None
            try:
                _write(into, job, head, data)
                answer = _read(out)
            except (BrokenPipeError, EOFError):
                raise ProtocolError(
                    "a worker process that multiplies points ended before it answered. Check the available "
                    "memory."
                ) from None
        return answer[0] if answer[1] == b"ok" else None

    def close(self, at_once: bool) -> None:
        if at_once:  # the run has failed: no answer is needed
            self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def _write(to: BinaryIO | Any, *parts: bytes) -> None:
    for part in parts:
        to.write(len(part).to_bytes(8, "big") + part)
    to.write(bytes(8))
    to.flush()


def _read(source: BinaryIO | Any) -> list[bytes]:
    """Parts up to an empty one; EOFError at the end."""
    parts: list[bytes] = []
    while True:
        head = source.read(8)
        if len(head) < 8:
            raise EOFError
        size = int.from_bytes(head, "big")
        if not size:
            return parts
        parts.append(source.read(size))


def _serve() -> None:
    source, to = sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            job, head, data = _read(source)
            try:
                if job == _LIFT:
                    scalar, width, about = (
                        head[: group.SCALAR],
                        int.from_bytes(head[group.SCALAR : group.SCALAR + 2], "big"),
                        head[group.SCALAR + 2 :],
                    )
                    done = group.multiply(scalar, group.elements(data, width, about))
                else:
                    done = group.multiply(head, data)
                _write(to, done, b"ok")
            except ProtocolError:
                _write(to, b"no", b"refused")


if __name__ == "__main__":
    _serve()
