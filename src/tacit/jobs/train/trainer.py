"""What every kind of training implements, and what the training loop reads.

A trainer computes rounds and yields a `RoundRecord` of each. The loop (training.py) writes records into the
journal, saves the trainer's state, and returns the result. It knows nothing else about the trainer.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...algorithms.types import State
from ...engine.task import Task
from ...guard import Guard
from ...parties.ledger import Ledger
from ...runs import Event
from ...runtimes.ranks import RankGroup
from . import guards
from .plan import Plan
from .traffic import MessageSizes, count_bytes

if TYPE_CHECKING:
    from ...data.pipeline import Pipeline


@dataclass(frozen=True)
class RoundRecord:
    """One round of one run: all that the journal needs to know of it."""

    round: int  # counted from 1; 0 is the model before training
    participants: tuple[str, ...]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    bytes_up: int = 0  # of all parties together
    bytes_down: int = 0
    bytes_evaluation: int = 0  # of the messages by which the model was evaluated, both ways
    dropped: Mapping[str, str] = field(default_factory=dict)  # {party: why the round continued without it}
    clock: float | None = None  # seconds on the virtual clock, or on the real one where training is paced
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else the round's event carries
    sampled: int = 0  # participants, as may be published: the expected number where the real one is secret
    tested: int = 0  # parties that evaluate the model
    is_complete: bool = True  # False: the model is merged, and about to be evaluated
    is_kept: bool = False  # no round: the kept weights of several rounds, evaluated as one model at the end

    def event(self) -> Event:
        """Return the entries of the round's event in the journal."""
        return {
            "round": self.round,
            **self.metrics,
            **({"dropped": dict(self.dropped)} if self.dropped else {}),
            **({} if self.clock is None else {"clock": self.clock}),
            **self.facts,
            "sampled": self.sampled,
            "tested": self.tested,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            **({"bytes_evaluation": self.bytes_evaluation} if self.bytes_evaluation else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> RoundRecord:
        return cls(**{**entries, "participants": tuple(entries["participants"])})


Records = Generator[list[RoundRecord], None, None]  # after each round, one record for each run


def _ignore(_: Any) -> None:
    pass


@dataclass(frozen=True)
class RunContext:
    """What a trainer gets from the run it belongs to: accounts, a journal for notes, and where to resume."""

    # charge the accounts for round r (counted from 0), before anything of it is computed
    spend: Callable[[int], None] = _ignore
    # charge the evaluation of the model after round r (counted from 1); False: the budget refuses it
    spend_evaluation: Callable[[int], bool] = lambda r: True
    # write a note into the journal
    note: Callable[[str], None] = _ignore
    directory: Path | None = None  # of the run; None: it is in memory
    states: Sequence[State] = ()  # what `save` returned for each run; empty: from the beginning
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what was saved with them
    # the model that the run will return, and its metrics: known after the last round
    result: Callable[[], tuple[State, Mapping[str, float]]] | None = None
    # the models that the runs will return, if no round had them: `run` evaluates them after its last round
    kept: Callable[[], Sequence[State] | None] = lambda: None
    ranks: RankGroup | None = None  # the processes that share the clients of every round

    @property
    def ledger(self) -> Ledger:
        """What was seen before this process took over."""
        return Ledger.from_dict(self.metadata["ledger"]) if "ledger" in self.metadata else Ledger()

    @property
    def clock(self) -> float:
        """Where the run's clock stood."""
        return float(self.metadata.get("clock", 0.0))

    @property
    def pending(self) -> RoundRecord | None:
        """The round whose model was merged and not yet evaluated when an earlier process was stopped."""
        saved = self.metadata.get(PENDING)
        return None if saved is None else RoundRecord.from_dict(saved)


PENDING = "unevaluated"  # the key of such a round in a run's state.json


class Trainer(ABC):
    """One kind of training. Several runs that share a model and an algorithm may be computed side by side."""

    name: str  # of the runtime, for the journal
    task: Task
    guards: Sequence[Guard] = ()  # one for each run, or none
    notes: Sequence[str] = ()  # for the journal, at the start of the run
    start_events: Mapping[str, Mapping[str, Any]] = {}  # by kind: further events at the start of the run
    pipeline: Pipeline | None = None  # that real parties fitted together; a simulation has the federation's
    saves_every_round: bool = False  # whether a round must be on disk before anybody sees its model
    is_stopped: bool = False  # whether `run` ends before its last round

    @abstractmethod
    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext): ...

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """The model of each run: [runs, parameters]."""

    @property
    @abstractmethod
    def buffers(self) -> Tensor | None:
        """The buffers of each run's model: [runs, buffers]; None where it has none."""

    @abstractmethod
    def run(self, rounds: range) -> Records:
        """Compute these rounds (counted from 0); yield one record for each run after each of them.

        The model before training comes first, where it is evaluated. A trainer with `saves_every_round`
        yields a round twice where parties evaluate its model: before (`is_complete` is False) and after.
        Nothing happens between two records until the next is requested, so a consumer may `save` there. Where
        the context has models to evaluate at the end, their figures come last (`is_kept`).
        """

    def stop(self) -> None:
        """End `run` after the record it yielded last; parties are told as after the last round."""
        self.is_stopped = True

    def until_stopped(self, rounds: range) -> Iterator[int]:
        """Yield these rounds as long as nobody calls `stop`."""
        for r in rounds:
            if self.is_stopped:
                return
            yield r

    @abstractmethod
    def save(self, i: int) -> State:
        """Return what run i needs to resume from here."""

    def checkpoint_metadata(self) -> dict[str, Any]:
        """Return what is saved with the states and is not a tensor, as JSON values."""
        return {}

    @abstractmethod
    def ledger(self, i: int, events: list[Event]) -> Ledger:
        """Return the messages of run i so far, given the events of its rounds."""

    @abstractmethod
    def personal(self, i: int) -> list[State]:
        """Return the model that each party of run i uses for itself."""

    @abstractmethod
    def landscape(self, i: int) -> dict[str, Any]:
        """Return the loss around the model of run i, with where each party would move it alone."""


def evaluates(p: Plan, r: int, last: int) -> bool:
    """Whether the model after round r (counted from 1) is evaluated, in a run that ends after round `last`.

    A budget may end a run before its planned last round; what ε covers follows the contract all the same.
    """
    can = p.reports if p.client is None else len(p.fed.test.y) > 0
    return can and (p.evaluates(r) or (r == last and not p.noisy_figures))


def make_record(
    p: Plan,
    guard: Guard | None,
    r: int,
    last: int,
    participants: Sequence[str],
    sizes: MessageSizes,
    *,
    metrics: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    orders: int | None = None,
    clock: float | None = None,
    dropped: Mapping[str, str] | None = None,
) -> RoundRecord:
    """Make the record of round r (counted from 1), with its bytes counted.

    `orders` are the models sent out for training, where they are not one for each participant: without
    rounds, a party may get an order now and answer for a later version.
    """
    is_secret = guard is not None and guard.noise is not None and p.sampling == "poisson"
    n = p.per_round if is_secret and r else len(participants)
    of_guard = guards.guard_facts(guard) if guard is not None and r else {}
    facts = facts or {}
    up, down = count_bytes(
        r,
        sizes,
        downs=n if orders is None else orders,
        uploads=facts.get("uploaded", n),
        skipped=of_guard.get("skipped", 0),
        looked=facts.get("looked", 0),
        scored=facts.get("scored", 0),
    )
    return RoundRecord(
        r,
        tuple(participants),
        metrics or {},
        up * p.talks,
        down * p.talks,
        sizes.evaluation * p.talks,
        dict(dropped or {}),
        clock,
        {**of_guard, **facts},
        sampled=n * p.talks,
        tested=len(p.fed) if p.talks and p.client is None and evaluates(p, r, last) else 0,
    )


def kept_record(p: Plan, r: int, metrics: Mapping[str, Any], size: int) -> RoundRecord:
    """Make the record of an evaluation of the kept weights, after round r was the last one."""
    tested = len(p.fed) if p.talks else 0
    return RoundRecord(r, (), metrics, bytes_evaluation=size * p.talks, tested=tested, is_kept=True)
