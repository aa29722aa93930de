"""A party that trains with a loop of its owner's code: what the loop is given, and what it may answer.

    party's program (its own thread)                the owner's loop
      contract, round, record, accounts
      LoopMember.local ── LoopTask ───────────────▶  for task in client: …
                       ◀── weights, rows, metrics ─  client.send(…)
      update = weights − the server's
      clip, noise, masks ─▶ server

The loop decides what is learned from the party's rows. Everything that protects them stays in the party's
program: what is asked, how often, and what leaves.
"""

from __future__ import annotations

import asyncio
import math
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...algorithms.types import State
from ...errors import BadParameter, TacitError
from ...parameter_shapes import ParameterShapes, to_tensor
from ...parameters import bad
from ...script import Script
from .local import Member
from .plan import Plan

METRICS = "metrics"  # the vector in which a party sends them


def own_names(script: Script) -> list[str]:
    """Return the names of parties' own metrics in the records of a run."""
    return [f"client_{name}" for name in script.metrics]


class Sent(NamedTuple):
    """What a loop sent, checked."""

    vectors: State  # `w`, and `buffers` if the model has any
    rows: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class LoopTask:
    """One round of training, as `for task in client` gives it."""

    round: int  # counted from 1
    rounds: int  # of the whole run
    weights: dict[str, Tensor]  # trainable parameters and buffers, for load_state_dict
    lr: float  # what the job says about local training, for loops that follow it
    local_epochs: int
    batch_size: int | None
    seed: int
    accept: Callable[[Any, Any, Any], Sent] = field(repr=False)  # checks what the loop sends

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The weights as numpy arrays."""
        return {name: value.numpy() for name, value in self.weights.items()}


class Exchange:
    """Takes tasks from a party's program to its owner's loop, and answers back; each is in its own thread."""

    def __init__(self, party: str):
        self.party = party
        self.open: LoopTask | None = None  # the loop has it, and has not answered
        self.last: LoopTask | None = None  # the last one that was answered
        self.is_over = False
        self.error: BaseException | None = None  # with which the program ended
        self._tasks: queue.SimpleQueue[LoopTask | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Sent | TacitError] = queue.SimpleQueue()
        self._failure: TacitError | None = None
        self._failed: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    # for the program ----------------------------------------------------------------------------------------

    def train(self, task: LoopTask) -> Sent:
        """Give a task to the loop and wait for its answer."""
        self._tasks.put(task)
        answer = self._answers.get()
        if isinstance(answer, TacitError):
            raise answer
        return answer

    async def fail(self) -> None:
        """Raise the error with which the loop ended, when it does."""
        failed = asyncio.Event()
        self._failed = asyncio.get_running_loop(), failed
        if self._failure is None:
            await failed.wait()
        assert self._failure is not None
        raise self._failure

    def close(self, error: BaseException | None) -> None:
        """Say that the program has ended, and wake whoever waits for it."""
        self.error, self.is_over = error, True
        self._tasks.put(None)
        self._answers.put(TacitError("the run has ended"))

    # for the loop -------------------------------------------------------------------------------------------

    def next(self) -> LoopTask | None:
        """Wait for the next task; None when the run has ended."""
        if self.open is not None:
            raise BadParameter(
                f"client: round {self.open.round} was not answered. Call send(weights, rows=n) once for "
                "every task, before the next one."
            )
        task = None if self.is_over else self._tasks.get()
        if task is None:
            if self.error is not None:
                raise self.error
            return None
        self.open = task
        return task

    def send(self, weights: Any, rows: Any, metrics: Any) -> None:
        if self.error is not None:
            raise self.error
        if self.open is None:
            last = "no task was received yet" if self.last is None else f"round {self.last.round} is answered"
            raise BadParameter(f"client: {last}. Call send once for every task of the loop.")
        sent = self.open.accept(weights, rows, metrics)
        self.last, self.open = self.open, None
        self._answers.put(sent)

    def abort(self, error: TacitError) -> None:
        """End the program: the loop failed, or left early."""
        self._failure = error
        self._answers.put(error)
        if self._failed is not None:
            loop, failed = self._failed
            if not loop.is_closed():
                loop.call_soon_threadsafe(failed.set)


class LoopMember(Member):
    """A party whose rows only its own loop reads."""

    def __init__(self, exchange: Exchange, p: Plan, *settings: Any):
        super().__init__(*settings)
        assert p.client is not None
        self.exchange, self.script, self.rounds = exchange, p.client, p.rounds
        self.shapes = (
            p.model if isinstance(p.model, ParameterShapes) else ParameterShapes.of(self.task.module)
        )

    def local(self, r: int, down: State, mine: State, work: int | None = None) -> tuple[float, State, State]:
        values = self.task.values_at(down["w"], down.get("buffers"))
        shown = {k: v.clone() for k, v in values.items() if k not in self.shapes.transient}
        shown |= {again: shown[name] for again, name in self.shapes.aliases.items()}
        shown |= {name: torch.zeros((), dtype=torch.int64) for name in self.shapes.counters}
        sent = self.exchange.train(
            LoopTask(
                r + 1,
                self.rounds,
                shown,
                self.algorithm.lr,
                self.epochs,
                self.batch_size,
                self.seed,
                partial(self._check, values),
            )
        )
        vectors = {"delta": sent.vectors["w"] - down["w"]}
        if "buffers" in down:
            vectors["buffers"] = sent.vectors["buffers"]
        if self.script.metrics:
            vectors[METRICS] = torch.tensor(
                [sent.metrics[name] for name in self.script.metrics], dtype=torch.float64
            )
        weight = float(sent.rows) if self.algorithm.weighted else 1.0
        if self.guard is None:
            return weight, vectors, mine
        return self.guard.encode_upload(self.name, r, weight, vectors, down, mine)

    def _check(self, before: Mapping[str, Tensor], weights: Any, rows: Any, metrics: Any) -> Sent:
        """Check what a loop sends; if this raises, nothing has left the party, and the loop may try again."""
        if not isinstance(weights, Mapping):
            raise bad("client", "weights", type(weights).__name__, "a dict of arrays, such as a state_dict")
        values = {}
        for name, old in before.items():
            if name not in weights and name in self.shapes.of_parameters:
                known = ", ".join(map(repr, list(weights)[:5]))
                raise BadParameter(
                    f"client: the weights have no {name!r}, which is trained in this job. They have {known}"
                    f"{', …' if len(weights) > 5 else ''}. Send model.state_dict()."
                )
            values[name] = to_tensor(weights[name], f"{name!r}") if name in weights else old
            if values[name].shape != old.shape:
                raise BadParameter(
                    f"client: {name!r} has the shape {tuple(values[name].shape)}; in this job it is "
                    f"{tuple(old.shape)}. Send the model that task.weights was loaded into."
                )
            if not torch.isfinite(values[name]).all():
                raise BadParameter(
                    f"client: {name!r} contains NaN or infinity, so it was not sent. Use a smaller learning "
                    "rate, or look for such values in the rows."
                )
        most = self.script.max_rows
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= most:
            raise bad(
                "client",
                "rows",
                rows,
                f"a whole number of at least 1 and at most {most:,} (max_rows of the job)",
            )
        return Sent(self.task.vectors_of(values), int(rows), self._check_metrics(metrics))

    def _check_metrics(self, metrics: Any) -> dict[str, float]:
        given = {} if metrics is None else metrics
        if not isinstance(given, Mapping):
            raise bad("client", "metrics", metrics, "a dict of names and numbers")
        missing = [name for name in self.script.metrics if name not in given]
        if missing:
            raise BadParameter(
                f"client: the metrics have no {missing[0]!r}, which the parties of this job send. Give "
                f"metrics={{{', '.join(f'{name!r}: …' for name in self.script.metrics)}}}."
            )
        found = {}
        for name in self.script.metrics:  # others stay with the party
            try:
                found[name] = float(given[name])
            except (TypeError, ValueError):
                raise bad("client", f"the metric {name!r}", given[name], "a number") from None
            if not math.isfinite(found[name]):
                raise bad("client", f"the metric {name!r}", found[name], "a finite number")
        return found

    def test(self, r: int, down: State, mine: State | None = None, summed: bool = False) -> State:
        """Return nothing: the party's rows are known to its own loop only, which sends its own metrics."""
        return {}
