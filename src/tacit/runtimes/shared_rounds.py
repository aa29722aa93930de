"""The clients of a round, shared among ranks.

Rank 0 cuts a round into chunks exactly as one process would, deals the chunks to the ranks by cost, and takes
their uploads (or, where the rule is a sum, their sums) back in the order of the chunks. So it adds the same
numbers in the same order, and on CPUs the model has the same bits with any number of ranks. On GPUs each rank
has chunks of its own, and the model agrees to rounding.

What a client keeps between rounds stays with the rank that computed it last; rank 0 knows which. Dealing
prefers that rank. State moves with its client, through rank 0, and is collected there for a checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..algorithms.types import State
from .ranks import Frame, RankGroup

if TYPE_CHECKING:
    from .cohort import Cohort

FLUSH_BYTES = 4 << 20  # of uploads that a rank sends at once
FLUSH_SECONDS = 0.02  # after which it sends what it has: rank 0 adds in order, and waits for the next
AHEAD_BYTES = 256e6  # of finished uploads that wait in a rank until it is their turn
STAY = 1.1  # a rank that has a chunk's clients may have this much more than its share of the work
IDLE_RATE = 1e-9  # of a rank that takes no part in a round, beside 1 of the others
NOBODY = -1  # has a client's state: it has not taken part

# multiplications of one stacked step that fill a GPU: on an H200 a second rank made rounds with 2e9 slower
# (100 clients of a CNN: 0.64 of the speed) and those with 3e7 faster (10,000 small clients: 1.33)
FULL_GPU = 2.5e8

Upload = tuple[Tensor, State, np.ndarray]  # weights [S], vectors [S, …], indices of the round's clients


@dataclass(frozen=True)
class RoundWork:
    """The clients of a round and what they start from; arrays have one entry per client."""

    number: int
    run_of: np.ndarray
    who: np.ndarray
    works: np.ndarray  # the count that each client's batches follow: the round, or its own count of work
    whose: np.ndarray  # the row of `down` that each client starts from
    down: State  # what the servers send, [R, …] each


def choose_ranks(group: RankGroup, device: str, step: float) -> list[int]:
    """Return the ranks that share a round; `step` is the number of multiplications of one stacked step.

    Ranks that share a GPU take turns on it. If one fills it, the others would only be in its way. The choice
    depends on no measured time, because the sums of a GPU depend on it.
    """
    if device != "cpu" and group.on_gpu > 1 and step >= FULL_GPU:
        return group.first_on_gpu
    return list(range(group.size))


def deal(
    costs: Sequence[float], rates: Sequence[float] | np.ndarray, homes: Sequence[int] | None = None
) -> np.ndarray:
    """Return the rank of each chunk, so that all ranks end at about the same time.

    The most expensive chunk first, to the rank that would finish it earliest (Graham's rule). `rates` is the
    cost each rank computes in a second; `homes` the rank that has a chunk's client state, or −1.
    """
    loads, owner = np.zeros(len(rates)), np.zeros(len(costs), dtype=np.int64)
    speed = np.asarray(rates, dtype=float)
    fair = float(np.sum(costs)) / float(speed.sum())  # seconds, if work could be divided at will
    for j in np.argsort(-np.asarray(costs, dtype=float), kind="stable"):
        ends = (loads + costs[j]) / speed
        home = NOBODY if homes is None else homes[j]
        owner[j] = home if home != NOBODY and ends[home] <= STAY * fair else int(np.argmin(ends))
        loads[owner[j]] += costs[j]
    return owner


def pack(work: RoundWork, chunks: Sequence[np.ndarray]) -> State:
    """Return a round's order as tensors, for `unpack`."""
    arrays = {"run_of": work.run_of, "who": work.who, "works": work.works, "whose": work.whose}
    arrays |= {
        "rows": np.concatenate([*chunks, np.zeros(0, dtype=np.int64)]),
        "cuts": np.cumsum([0, *map(len, chunks)]),
    }
    return {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.int64)) for k, v in arrays.items()} | {
        f"down.{k}": v for k, v in work.down.items()
    }


def unpack(number: int, tensors: State, device: torch.device) -> tuple[RoundWork, list[np.ndarray]]:
    arrays = {k: tensors[k].numpy() for k in ("run_of", "who", "works", "whose", "rows", "cuts")}
    down = {k[5:]: v.to(device) for k, v in tensors.items() if k.startswith("down.")}
    work = RoundWork(number, arrays["run_of"], arrays["who"], arrays["works"], arrays["whose"], down)
    return work, np.split(arrays["rows"], arrays["cuts"][1:-1]) if len(arrays["cuts"]) > 1 else []


def ahead(cohort: Cohort, chunks: Sequence[np.ndarray]) -> int:
    """How many finished chunks may wait in a rank."""
    largest = max((len(c) for c in chunks), default=1)
    return max(2 * cohort.cores, min(256, int(AHEAD_BYTES // (4 * cohort.task.dim * largest))))


class SharedRounds:
    """Rank 0's side."""

    def __init__(self, cohort: Cohort, group: RankGroup):
        self.cohort, self.group = cohort, group
        self.rates = np.array(group.shares, dtype=float)  # of work in a second; at first, by cores
        self.is_measured = False
        # by run: which rank has each client's state, and whether rank 0's copy of it is out of date
        self.holder = [np.full(len(r.fed), NOBODY) for r in cohort.runs]
        self.is_stale = [np.zeros(len(r.fed), dtype=bool) for r in cohort.runs]

    # rounds -------------------------------------------------------------------------------------------------

    def uploads(self, work: RoundWork, chunks: list[np.ndarray]) -> Iterator[Upload]:
        """Yield every upload, chunk by chunk in order: for rules that see each."""
        for rows, part in self._parts(work, chunks, "each"):
            yield part.pop(""), part, rows

    def total(self, work: RoundWork, chunks: list[np.ndarray]) -> State:
        """Return the sums over all uploads, added chunk by chunk in order."""
        total: State = {}
        # a GPU's sums have no fixed order, so a rank may add all of its own first
        for _, part in self._parts(work, chunks, "sums" if self.cohort.device.type == "cpu" else "total"):
            total = {k: total[k] + v for k, v in part.items()} if total else part
        return total

    def _parts(
        self, work: RoundWork, chunks: list[np.ndarray], form: str
    ) -> Iterator[tuple[np.ndarray, State]]:
        cohort, group = self.cohort, self.group
        costs = self._costs(work, chunks)
        # fixed on a GPU, where the sums depend on it
        rates = self.rates if cohort.device.type == "cpu" else np.full(group.size, IDLE_RATE)
        if cohort.device.type != "cpu":
            rates[cohort.sharing(work)] = 1.0
        owner = deal(costs, rates, self._homes(work, chunks))
        mine = [[j for j in range(len(chunks)) if owner[j] == q] for q in range(group.size)]
        states = self._move_states(work, chunks, mine)
        for q in group.peers:
            if mine[q]:
                order = pack(work, [chunks[j] for j in mine[q]]) | states[q]
                group.send(q, "round", {"number": work.number, "form": form}, order)
        local = answers(cohort, work, [chunks[j] for j in mine[0]], form)
        waiting: list[deque[State]] = [deque() for _ in range(group.size)]
        seconds = np.zeros(group.size)
        one_each = form == "total"
        for j in [m[-1] for m in mine if m] if one_each else range(len(chunks)):
            q = int(owner[j])
            if q == 0:
                yield chunks[j], next(local)
                continue
            while not waiting[q]:
                frame = group.receive(q)
                seconds[q] += frame.values["seconds"]
                waiting[q] += split_part(frame, cohort.device)
            yield chunks[j], waiting[q].popleft()
        seconds[0] = sum(cohort.chunk_seconds)
        self._measure(np.array([sum(costs[j] for j in m) for m in mine]), seconds)

    def _costs(self, work: RoundWork, chunks: list[np.ndarray]) -> list[float]:
        """The rows that each chunk's clients go over."""
        sizes, _, steps = self.cohort.lengths(work)
        batch = self.cohort.runs[0].batch_size
        rows = steps * (sizes if batch is None else np.minimum(sizes, batch))
        return [float(rows[chunk].sum()) for chunk in chunks]

    def _measure(self, costs: np.ndarray, seconds: np.ndarray) -> None:
        """Learn how fast each rank is, from the seconds its cores were busy; the mean of this and before."""
        if not (costs > 0).all() or not (seconds > 0).all():
            return
        now = costs / seconds * np.array(self.group.shares)
        self.rates = (self.rates + now) / 2 if self.is_measured else now
        self.is_measured = True

    # clients' state -----------------------------------------------------------------------------------------

    def _homes(self, work: RoundWork, chunks: list[np.ndarray]) -> list[int] | None:
        """The rank that has the state of most of a chunk's clients."""
        if not self.cohort.fresh:
            return None
        homes = []
        for chunk in chunks:
            held = np.array([self.holder[i][k] for i, k in zip(work.run_of[chunk], work.who[chunk])])
            held = held[held != NOBODY]
            homes.append(int(np.bincount(held).argmax()) if len(held) else NOBODY)
        return homes

    def _move_states(self, work: RoundWork, chunks: list[np.ndarray], mine: list[list[int]]) -> list[State]:
        """Bring the states of clients to the ranks that compute them; return what to send to each."""
        sent: list[State] = [{} for _ in mine]
        if not self.cohort.fresh:
            return sent
        rows = [np.concatenate([chunks[j] for j in m] or [np.zeros(0, dtype=np.int64)]) for m in mine]
        for i in np.unique(work.run_of):
            clients = [work.who[r[work.run_of[r] == i]] for r in rows]
            elsewhere = [k[self.holder[i][k] != q] for q, k in enumerate(clients)]
            self._fetch(int(i), np.concatenate(elsewhere))
            for q, k in enumerate(elsewhere):
                k = k[self.holder[i][k] != NOBODY]
                if q and len(k):
                    kept = self.cohort.states[i].get(k, self.cohort.initial[i])
                    sent[q] |= {f"kept.{i}.{name}": v for name, v in kept.items()}
                    sent[q][f"kept.{i}."] = torch.from_numpy(k)
            for q, k in enumerate(clients):
                self.holder[i][k] = q
                self.is_stale[i][k] = q > 0
        return sent

    def _fetch(self, i: int, clients: np.ndarray) -> None:
        """Update rank 0's copy of these clients' states."""
        stale = clients[self.is_stale[i][clients]]
        asked = {q: k for q in self.group.peers if len(k := stale[self.holder[i][stale] == q])}
        for q, k in asked.items():
            self.group.send(q, "fetch", {"run": i}, {"who": torch.from_numpy(k)})
        for q, k in asked.items():
            put_states(self.cohort, i, k, self.group.receive(q).tensors)
            self.is_stale[i][k] = False

    def collect(self, i: int) -> None:
        """Bring the states of all clients of run i to rank 0; they also stay where they are."""
        if self.cohort.fresh:
            self._fetch(i, np.flatnonzero(self.is_stale[i]))

    def take_all(self) -> None:
        """Note that rank 0 has the state of every client: a checkpoint was loaded."""
        for i, states in enumerate(self.cohort.states):
            self.holder[i] = np.where(states.slot >= 0, 0, NOBODY)
            self.is_stale[i][:] = False


def put_states(cohort: Cohort, i: int, clients: np.ndarray, values: State) -> None:
    cohort.states[i].get(clients, cohort.initial[i])  # makes room for them
    cohort.states[i].put(clients, {k: v.to(cohort.device) for k, v in values.items()})


def answers(cohort: Cohort, work: RoundWork, chunks: list[np.ndarray], form: str) -> Iterator[State]:
    """Compute chunks and yield what rank 0 needs of each: uploads ("each"), or their sums.

    With the form "total", one sum over all of them.
    """
    total: State = {}
    for weights, vectors, _ in cohort.compute(work, chunks, ahead(cohort, chunks)):
        if form == "each":
            yield {"": weights, **vectors}
            continue
        sums = cohort.add_up(weights, vectors)
        if form == "sums":
            yield sums
        else:
            total = {k: total[k] + v for k, v in sums.items()} if total else sums
    if total:
        yield total


def join_part(parts: list[State]) -> State:
    """Return the answers for several chunks as one set of tensors, for `split_part`."""
    joined = {k: torch.cat([p[k] for p in parts]) for k in parts[0]}
    return {f"part.{k}": v for k, v in joined.items()}


def split_part(frame: Frame, device: torch.device) -> list[State]:
    lengths = frame.values["lengths"]
    tensors = {k[5:]: v.to(device).split(lengths) for k, v in frame.tensors.items()}
    return [{k: v[n] for k, v in tensors.items()} for n in range(len(lengths))]


def follow(cohort: Cohort, group: RankGroup) -> Frame:
    """Compute what rank 0 asks for, until it sends the result of the job; return that frame."""
    while True:
        frame = group.receive(0)
        if frame.kind == "end":
            return frame
        if frame.kind == "fetch":
            i, clients = frame.values["run"], frame.tensors["who"].numpy()
            group.send(0, "states", {}, cohort.states[i].get(clients, cohort.initial[i]))
        else:
            _answer_round(cohort, group, frame)


def _answer_round(cohort: Cohort, group: RankGroup, frame: Frame) -> None:
    kept: dict[int, State] = {}
    for name, value in frame.tensors.items():
        if name.startswith("kept."):
            _, run, key = name.split(".", 2)
            kept.setdefault(int(run), {})[key] = value
    for i, values in kept.items():
        put_states(cohort, i, values.pop("").numpy(), values)
    number = frame.values["number"]
    work, chunks = unpack(number, frame.tensors, cohort.device)
    cohort.bind(number + 1)  # drifting data counts rounds from 1
    parts: list[State] = []
    size, since, reported = 0, time.monotonic(), 0

    def flush() -> None:
        nonlocal parts, size, since, reported
        seconds = cohort.chunk_seconds[reported:]
        reported += len(seconds)
        values: dict[str, Any] = {
            "lengths": [len(next(iter(p.values()))) for p in parts],
            "seconds": sum(seconds),
        }
        group.send(0, "part", values, join_part(parts))
        parts, size, since = [], 0, time.monotonic()

    for part in answers(cohort, work, chunks, frame.values["form"]):
        parts.append(part)
        size += sum(v.numel() * v.element_size() for v in part.values())
        if size >= FLUSH_BYTES or time.monotonic() - since >= FLUSH_SECONDS:
            flush()
    if parts:
        flush()
