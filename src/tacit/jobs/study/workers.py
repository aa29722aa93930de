"""A study by several processes of this machine, which take stacks until none is left.

    parent → worker    {"study": arguments, "out": directory, "digest": …, "device": …}, then for each stack
                       {"cells": [ids]}
    worker → parent    {"say": text}, and {"done": true} or {"error": text} after each stack

Messages are lines of JSON over pipes. Finished cells reach the directory of the study from the worker itself,
so a worker that is killed loses at most what it had not saved; another one resumes its stack.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from ...errors import BadParameter, BadRun, TacitError
from ...parameters import bad
from . import run
from .file import Study, load
from .shards import WHOLE, Shard, split
from .store import Store

TRIES = 3  # a stack that kills its worker three times will kill the next one, too
MODULE = "tacit.jobs.study.workers"


def study(
    spec: Study,
    out: str | Path,
    *,
    only: str = "",
    shard: Shard = WHOLE,
    workers: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Store:
    """Run what is not done yet, as `run.study`, in so many processes."""
    if workers < 1:
        raise BadParameter(str(bad("study", "workers", workers, "at least 1")))
    if workers == 1:
        return run.study(spec, out, only=only, shard=shard, say=say)
    store, stacks = run.unfinished(spec, out, only=only, shard=shard, say=say)
    # long stacks first, so that no worker begins one when the others are done
    stacks.sort(key=lambda stack: -sum(p.rounds * len(p.fed.train.index) for _, p in stack))
    pieces = [[cell.id for cell, _ in piece] for stack in stacks for piece in split(stack, workers)]
    if pieces:
        store.begin()
        _Pool(store, min(workers, len(pieces)), say).run(pieces)
    if not only and shard == WHOLE:
        run.add_loop_time(spec, store)
    return store


class _Worker:
    """A process, and the thread that reads its answers."""

    def __init__(self, number: int, count: int, store: Store, answers: Answers):
        self.number = number
        self.piece: list[str] | None = None  # the ids of what it computes
        threads = max(1, (os.cpu_count() or 1) // count)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        spec = store.study
        gpus = torch.cuda.device_count()
        device = f"cuda:{number % gpus}" if gpus and spec.loaded_with["device"] != "cpu" else None
        self._send(
            {
                "study": {**spec.loaded_with, **({"device": device} if device else {})},
                "out": str(store.path),
                "digest": spec.digest,
            }
        )
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def take(self, piece: list[str]) -> None:
        self.piece = piece
        self._send({"cells": piece})

    def stop(self) -> int:
        """End the process, whatever it computes, and return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait()
        self._reader.join()  # the output ended with the process
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # what was not read, will not be
                stream.close()
        return status

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the end of its output says that it stopped
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _read(self, answers: Answers) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a kill cut the line short
                answers.put((self, json.loads(line)))
        answers.put((self, None))


Answers = queue.Queue[tuple[_Worker, dict[str, Any] | None]]  # None: its output ended


class _Pool:
    def __init__(self, store: Store, count: int, say: Callable[[str], None]):
        self.store, self.count, self.say = store, count, say
        self.answers: Answers = queue.Queue()
        self.workers: dict[int, _Worker] = {}

    def run(self, pieces: Sequence[list[str]]) -> None:
        left, tries = deque(pieces), dict.fromkeys(map(tuple, pieces), 0)
        try:
            for number in range(self.count):
                self._start(number, left)
            while self.workers:
                worker, answer = self.answers.get()
                if self.workers.get(worker.number) is not worker:
                    continue  # it was stopped
                if answer is None:
                    del self.workers[worker.number]
                    self._replace(worker, left, tries)
                elif "say" in answer:
                    self.say(answer["say"])
                elif "error" in answer:
                    raise BadRun(answer["error"])
                else:
                    worker.piece = None
                    self._give(worker, left)
        finally:
            for worker in self.workers.values():
                worker.stop()

    def _start(self, number: int, left: deque[list[str]]) -> None:
        self.workers[number] = _Worker(number, self.count, self.store, self.answers)
        self._give(self.workers[number], left)

    def _give(self, worker: _Worker, left: deque[list[str]]) -> None:
        if left:
            worker.take(left.popleft())
        else:
            worker.stop()
            del self.workers[worker.number]

    def _replace(self, worker: _Worker, left: deque[list[str]], tries: dict[tuple[str, ...], int]) -> None:
        """Start another worker for what one had that ended without an answer."""
        worker.process.wait()  # by itself: its output has ended
        status, piece = worker.stop(), worker.piece
        if piece is None:
            return
        tries[tuple(piece)] += 1
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        if tries[tuple(piece)] == TRIES:
            raise BadRun(
                f"a worker ended {TRIES} times ({how}) while it ran {piece[0]!r} and {len(piece) - 1} more. "
                "Signal 9 often means too little memory: use fewer workers. Finished runs are kept; the same "
                "command resumes."
            )
        self.say(f"worker {worker.number + 1} ended ({how}); its stack is resumed by another one")
        left.appendleft(piece)
        self._start(worker.number, left)


def serve(source: IO[str], sink: IO[str]) -> None:
    """Run stacks as they are asked for, until the input ends; then end at once, whatever is running."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in source:
            requests.put(json.loads(line))
        os._exit(0)  # the parent is gone or done: what is not saved is computed again by whoever resumes

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=sink, flush=True)

    threading.Thread(target=read, daemon=True).start()
    try:
        first = requests.get()
        spec = load(**first["study"])
        if spec.digest != first["digest"]:
            raise BadRun(f"{first['study']['name']} was changed while its workers started. Start again.")
        runner = run.StackRunner(Store(first["out"], spec), lambda text: answer({"say": text}))
        while True:
            runner.run(requests.get()["cells"])
            answer({"done": True})
    except TacitError as error:
        answer({"error": str(error)})


if __name__ == "__main__":
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not an answer
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the parent, too, and it says what is left
        serve(sys.stdin, own)
