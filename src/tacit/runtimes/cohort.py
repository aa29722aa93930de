"""Simulation of all clients of a round as one tensor program.

Several runs are simulated together as more clients: runs that share a model and an algorithm (seeds, skews,
a learning rate, a μ) form one stack, and each has the same result as alone. On a CPU, stacking convolutions
gains nothing, so their clients run one by one, one on each core.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..aggregate import Mean, Rule
from ..algorithms import Algorithm
from ..algorithms.plan import Plans, count_steps, identify, plan, sample
from ..algorithms.types import State, fresh
from ..data.federation import Federation, Rows
from ..data.inputs import Stored, tensors_of
from ..engine.stacking import (
    CPU_STACK,
    STACK_BELOW,
    STREAMS,
    STREAMS_ABOVE,
    cannot_record,
    cannot_stack,
    cores,
    differing,
    group_by_size,
    join_tables,
)
from ..engine.stacking import work as multiplications
from ..engine.task import Task
from ..guard import Clients, Guard
from .client_states import ClientStates
from .fold import FoldEngine, Recorded, Stacked
from .ranks import RankGroup
from .shared_rounds import RoundWork, SharedRounds, choose_ranks

STACKED = ("stack", "streams")  # the engines that run several clients at once
MANNERS = {"stack": "stacked", "streams": "side by side", "graph": "one by one", "each": "one by one"}


@dataclass(frozen=True)
class Run:
    """The settings of one training run."""

    fed: Federation
    algorithm: Algorithm
    seed: int
    per_round: int
    local_epochs: np.ndarray  # [parties]
    batch_size: int | None
    local_steps: int | None = None
    members: np.ndarray | None = None  # the parties of the run; None: all
    choose: Callable[[int], np.ndarray] | None = None  # who takes part in a round, if not a uniform draw
    # (round, parties, their vectors, down) → what they send if some are malicious
    corrupt: Callable[[int, np.ndarray, State, State], State] | None = None
    public_sizes: np.ndarray | None = None  # [parties]; None: the rows that each trains on

    @property
    def sizes(self) -> np.ndarray:
        """The number of rows of each party, for its steps and its weight."""
        return self.fed.train.sizes.numpy() if self.public_sizes is None else self.public_sizes


class _Thread(threading.local):
    """A thread's own task and fold engine: `functional_call` swaps values inside the module of a task."""

    tools: tuple[Task, FoldEngine] | None = None


class Cohort:
    """R runs, simulated together. `round(r)` runs one round of each."""

    def __init__(
        self,
        task: Task,
        starts: list[State],
        runs: list[Run],
        engine: str = "auto",
        memory: float | None = None,
        guards: list[Guard] | None = None,
        rule: Rule | None = None,
        ranks: RankGroup | None = None,
    ):
        """`ranks`: the processes that share the clients of every round; rank 0 has the servers."""
        self.runs, self.device, self.ranks = runs, task.x.device, ranks
        self.guards = guards or []  # one for each run, or none
        self.guard_states = [ClientStates(len(r.fed)) for r in runs]
        self.task, self.algorithm = task, runs[0].algorithm
        self.tables: list[Rows] = []
        self.offset: list[int] = []
        self.hyper = differing([r.algorithm for r in runs], self.device)
        self.w = torch.stack([s["w"] for s in starts]).to(self.device)
        self.buffers = (
            torch.stack([s["buffers"] for s in starts]).to(self.device) if "buffers" in starts[0] else None
        )
        states = [r.algorithm.server_state(w) for r, w in zip(runs, self.w)]
        self.state: State = {k: torch.stack([s[k] for s in states]) for k in states[0]}
        # the state of a new client of each run
        self.initial = [
            {k: v.to(self.device) for k, v in fresh(r.algorithm, s).items()} for r, s in zip(runs, starts)
        ]
        self.fresh = self.initial[0]
        self.states = [ClientStates(len(r.fed)) for r in runs]
        state_bytes = sum(v.numel() * v.element_size() for v in self.fresh.values()) * sum(
            len(r.fed) for r in runs
        )
        self.ids = [identify(r.fed.parties) for r in runs]
        self.rule = Mean() if rule is None else rule
        self.memories: list[State] = [{} for _ in runs]  # the memory of the aggregation rule
        self.notes: list[str] = []
        # called with every upload: (parties, weights, vectors)
        self.on_upload: Callable[[np.ndarray, Tensor, State], None] | None = None
        self.upload_shapes: dict[str, torch.Size] = {}  # of one client's upload, to count bytes
        self.chunk_seconds: list[float] = []  # that cores were busy with, by chunk, in the order they ended
        if state_bytes > 2e9:
            self.notes.append(
                f"clients of {type(self.algorithm).__name__} keep state between rounds: when all have taken "
                f"part, it takes {state_bytes / 1e9:.1f} GB"
            )
        self.memory = memory
        self.threads = _Thread()
        self.row_work: float | None = None  # multiplications of a row's forward pass
        self.per_row: int | None = None  # bytes that a row keeps for the backward pass
        # one core if the model draws random numbers, whose order matters
        self.cores = 1
        if self.device.type == "cpu" and not task.draws:
            self.cores = cores() if ranks is None else ranks.cores
        if task.kind.draws:  # not the noise of DP-SGD, which is drawn anew in any case
            self.notes.append(
                "this model draws random numbers other than dropout's, so stacking, resuming or a deployment "
                "changes its result"
            )
        self.pool = ThreadPoolExecutor(self.cores, thread_name_prefix="tacit-cohort")
        self.bind(0)
        self.compiles = False  # whether recorded steps are compiled
        self.engine = self._choose_engine(engine)
        self.shared = SharedRounds(self, ranks) if ranks is not None and ranks.leads else None

    @property
    def manner(self) -> str:
        """How clients run, for people."""
        return MANNERS[self.engine]

    # rounds -------------------------------------------------------------------------------------------------

    def round(self, number: int) -> list[np.ndarray]:
        """One round of every run, counted from 0; returns the parties that took part in each."""
        self.bind(number + 1)  # drifting data counts rounds from 1
        chosen = [self._select(i, number) for i in range(len(self.runs))]
        run_of = np.concatenate([np.full(len(c), i) for i, c in enumerate(chosen)])
        who = np.concatenate(chosen)
        if not len(who) and not any(guard.noise for guard in self.guards):
            # Poisson sampling may select no party; with noise this must not be visible, so the round goes on
            return chosen
        uploads = self._uploads(number, run_of, who) if len(who) else iter(())
        if any(run.corrupt is not None for run in self.runs) and len(who):
            uploads = self._corrupt(number, run_of, who, uploads)
        if self.on_upload is not None:
            uploads = self._observe(who, uploads, self.on_upload)
        if self.guards:
            mean = self._guarded_mean(number, run_of, who, uploads)
        elif self.shared is not None and len(who) and self._is_sum():
            mean = self._shared_mean(self.shared, number, run_of, who)
        else:
            mean = self._mean(number, run_of, who, uploads)
        self.upload_shapes = {k: v.shape[1:] for k, v in mean.items()}
        # runs without a participant do not change
        idle = torch.tensor(
            [not len(c) and not (self.guards and self.guards[i].noise) for i, c in enumerate(chosen)]
        )
        if self.buffers is not None:
            self.buffers = _keep_idle(idle, self.buffers, mean.pop("buffers"))
        counted = [guard.expected if guard.noise else len(c) for guard, c in zip(self.guards, chosen)] or [
            len(c) for c in chosen
        ]
        self.step(
            mean,
            [n / len(r.fed if r.members is None else r.members) for r, n in zip(self.runs, counted)],
            idle,
        )
        return chosen

    def step(self, mean: State, fraction: list[float], idle: Tensor | None = None) -> None:
        """The servers' step with the mean uploads, [R, …] each; `idle` runs do not change."""
        before, state = self.w, self.state
        self.w, self.state = self._merge(mean, self._to_device(torch.tensor(fraction)))
        if idle is not None and idle.any():
            self.w, self.state = (
                _keep_idle(idle, before, self.w),
                {k: _keep_idle(idle, v, self.state[k]) for k, v in state.items()},
            )
        for i, guard in enumerate(self.guards):
            guard.after_step(before[i], self.w[i])

    def _observe(
        self, who: np.ndarray, uploads: Iterator[Any], observer: Callable[[np.ndarray, Tensor, State], None]
    ) -> Iterator[Any]:
        for weights, vectors, rows in uploads:
            observer(who[rows], weights, vectors)
            yield weights, vectors, rows

    def _corrupt(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        uploads: Iterator[tuple[Tensor, State, np.ndarray]],
    ) -> Iterator[Any]:
        """The uploads, with those of malicious parties replaced; all at once, because these may collude."""
        weights, vectors, rows = zip(*uploads)
        at, down = np.concatenate(rows), self.down(float(number))
        sent = {k: torch.cat([v[k] for v in vectors]) for k in vectors[0]}
        for i, run in enumerate(self.runs):
            if run.corrupt is not None:
                here = np.flatnonzero(run_of[at] == i)
                there = torch.from_numpy(here).to(self.device)
                changed = run.corrupt(
                    number,
                    who[at[here]],
                    {k: v[there] for k, v in sent.items()},
                    {k: v[i] for k, v in down.items()},
                )
                for k, v in changed.items():
                    sent[k][there] = v
        yield torch.cat(weights), sent, at

    def _mean(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        uploads: Iterator[tuple[Tensor, State, np.ndarray]],
    ) -> State:
        """The result of the aggregation rule for each run's uploads, [R, …] each."""
        down = self.down(float(number))
        rule = self.rule.at_round(down)
        total, order = rule.start(), []
        for weights, vectors, rows in uploads if len(self.runs) == 1 else self._collect(uploads):
            whose = torch.from_numpy(
                (run_of[rows] == np.arange(len(self.runs))[:, None]).astype(np.float32)
            )  # [R, S]
            total = rule.add(total, self._to_device(whose) * weights, vectors)
            order.append(who[rows])
        parties = self._to_device(torch.from_numpy(np.concatenate(order)))
        mean, after = rule.result_with_memory(total, parties, self.memories, down)
        self.memories = [
            m if i in run_of else before for i, (before, m) in enumerate(zip(self.memories, after))
        ]
        return mean

    def _is_sum(self) -> bool:
        """Whether nothing but sums of a round's uploads is needed, so that ranks may add theirs first.

        Several runs are added in larger chunks (`_collect`), which only rank 0 can form.
        """
        return (
            len(self.runs) == 1
            and not self.rule.sees_each
            and self.on_upload is None
            and self.runs[0].corrupt is None
        )

    def _shared_mean(self, shared: SharedRounds, number: int, run_of: np.ndarray, who: np.ndarray) -> State:
        """`_mean` where every rank adds the uploads of its own clients."""
        work = self._work(number, run_of, who)
        return self.rule.result(shared.total(work, self.cut(work)))

    def add_up(self, weights: Tensor, vectors: State) -> State:
        """The sums of one chunk of uploads of a single run, as `_mean` adds them."""
        return self.rule.add(self.rule.start(), weights[None], vectors)

    def _collect(
        self, uploads: Iterator[tuple[Tensor, State, np.ndarray]]
    ) -> Iterator[tuple[Tensor, State, np.ndarray]]:
        """The uploads in larger chunks: adding one costs as much as all runs have parameters."""
        parts: list[tuple[Tensor, State, np.ndarray]] = []
        size = 0
        for upload in uploads:
            parts.append(upload)
            size += sum(v.numel() * v.element_size() for v in upload[1].values())
            if size >= CPU_STACK:
                yield _join(parts)
                parts, size = [], 0
        if parts:
            yield _join(parts)

    def _guarded_mean(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        uploads: Iterator[tuple[Tensor, State, np.ndarray]],
    ) -> State:
        """The mean of each run's uploads through its guard, [R, …] each."""
        sent = self.down(float(number))
        downs = [{k: v[i] for k, v in sent.items()} for i in range(len(self.runs))]
        sums: list[Any] = [(0, 0.0) for _ in self.runs]
        for weights, vectors, rows in uploads:
            for i in np.unique(run_of[rows]):
                guard, here = self.guards[i], np.flatnonzero(run_of[rows] == i)
                at, k = torch.from_numpy(here).to(weights.device), who[rows[here]]
                fresh = guard.client_state()
                me = Clients(
                    tuple(self.runs[i].fed.parties[j] for j in k),
                    number,
                    self.guard_states[i].get(k, fresh) if fresh else {},
                    guard.state,
                    guard.insecure_seed,
                )
                total, n = guard.total(
                    *guard.out(weights[at], {key: v[at] for key, v in vectors.items()}, downs[i], me), number
                )
                if fresh:
                    self.guard_states[i].put(k, me.memory)
                sums[i] = total + sums[i][0], n + sums[i][1]
        means = [
            guard.back(total if isinstance(total, Tensor) else guard.empty_sum(number), n, downs[i], number)
            if n or guard.noise
            # nobody took part: the run does not change, nor do the states of its stages
            else guard.layout.cut(torch.zeros(guard.layout.dimension, dtype=torch.float64), downs[i])
            for i, (guard, (total, n)) in enumerate(zip(self.guards, sums))
        ]
        return {k: torch.stack([m[k] for m in means]) for k in means[0]}

    def _select(self, i: int, number: int) -> np.ndarray:
        run = self.runs[i]
        if run.choose is not None:
            return run.choose(number)
        members: np.ndarray = np.arange(len(run.fed)) if run.members is None else run.members
        chosen: np.ndarray = members[sample(run.seed, number, self.ids[i][members], run.per_round)]
        return chosen

    def _merge(self, mean: State, fraction: Tensor) -> tuple[Tensor, State]:
        if len(self.runs) == 1:
            w, state = self.algorithm.merge(
                self.w[0],
                {k: v[0] for k, v in self.state.items()},
                {k: v[0] for k, v in mean.items()},
                fraction[0],
            )
            return w[None], {k: v[None] for k, v in state.items()}

        def one(hyper: State, w: Tensor, state: State, mean: State, fraction: Tensor) -> tuple[Tensor, State]:
            return replace(self.algorithm, **hyper).merge(w, state, mean, fraction)  # type: ignore[type-var]

        return (
            torch.vmap(one)(self.hyper, self.w, self.state, mean, fraction)
            if self.hyper or self.state
            else (
                torch.vmap(lambda w, mean, fraction: self.algorithm.merge(w, {}, mean, fraction)[0])(
                    self.w, mean, fraction
                ),
                {},
            )
        )

    # clients ------------------------------------------------------------------------------------------------

    def train_from(
        self, number: int, who: np.ndarray, works: np.ndarray, down: State
    ) -> Iterator[tuple[int, float, State]]:
        """(index in `who`, weight, vectors) of clients that train from an older model, for asynchronous runs.

        `works` are the clients' own counts of work, which replace the round in their plans.
        """
        self.bind(number + 1)
        started = {k: v[None] for k, v in down.items()}
        for weights, vectors, rows in self._uploads(number, np.zeros_like(who), who, works, started):
            for s, row in enumerate(rows):
                yield int(row), float(weights[s]), {k: v[s] for k, v in vectors.items()}

    def train_separately(self, number: int, who: np.ndarray, works: np.ndarray, down: State) -> State:
        """The vectors [S, …] of clients that train from their own models [S, …], for gossip."""
        self.bind(number + 1)
        out = State()
        for _, vectors, rows in self._uploads(
            number, np.zeros_like(who), who, works, down, np.arange(len(who))
        ):
            there = torch.from_numpy(rows).to(self.device)
            for k, v in vectors.items():
                out.setdefault(k, v.new_empty(len(who), *v.shape[1:]))[there] = v
        return out

    def personal(self, i: int) -> list[State]:
        """The model that each party of run i uses, including parties that have not taken part yet."""
        down, n = {k: v[i] for k, v in self.down(0.0).items()}, len(self.runs[i].fed)
        if self.shared is not None:
            self.shared.collect(i)
        states = self.states[i]
        mine = [
            {k: states.values[k][int(s)] for k in self.fresh} if s >= 0 else self.initial[i]
            for s in states.slot[:n]
        ]
        return [self.runs[i].algorithm.personal(self.task, down, m) for m in mine]

    def _uploads(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        works: np.ndarray | None = None,
        down: State | None = None,
        whose: np.ndarray | None = None,
    ) -> Iterator[tuple[Tensor, State, np.ndarray]]:
        """(weights [S], vectors [S, …], indices of `who`) of one chunk of clients after the other.

        `whose` is the row of `down` from which each client starts; by default its run's.
        """
        work = self._work(number, run_of, who, works, down, whose)
        chunks = self.cut(work)
        yield from self.compute(work, chunks) if self.shared is None else self.shared.uploads(work, chunks)

    def _work(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        works: np.ndarray | None = None,
        down: State | None = None,
        whose: np.ndarray | None = None,
    ) -> RoundWork:
        return RoundWork(
            number,
            run_of,
            who,
            np.full(len(who), number) if works is None else works,
            run_of if whose is None else whose,
            self.down(float(number)) if down is None else down,
        )

    def lengths(self, work: RoundWork) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, epochs, local steps) of the clients of a round."""
        members = [work.who[work.run_of == i] for i in range(len(self.runs))]
        sizes = np.concatenate([r.sizes[k] for r, k in zip(self.runs, members)])
        epochs = np.concatenate([r.local_epochs[k] for r, k in zip(self.runs, members)])
        first = self.runs[0]
        return sizes, epochs, count_steps(sizes, epochs, first.batch_size, first.local_steps)

    def cut(self, work: RoundWork) -> list[np.ndarray]:
        """The chunks of a round: the indices of the clients that run as one stack.

        On a CPU they do not depend on the number of ranks, and so neither do the bits of their sums. On a
        GPU a chunk may hold all clients, so each rank gets its own.
        """
        sizes, _, steps = self.lengths(work)
        groups = (
            group_by_size(sizes)
            if self.runs[0].batch_size is None and self.engine in STACKED
            else [np.arange(len(work.who))]
        )
        # longest first, so that finished clients are at the end of the stack
        parts = [part[np.argsort(-steps[part], kind="stable")] for part in groups]
        if self.ranks is not None and self.device.type != "cpu":
            n = len(self.sharing(work))
            parts = [part[q::n] for part in parts for q in range(n)]
        return [
            chunk
            for part in parts
            if len(part)
            for chunk in np.array_split(part, -(-len(part) // self._chunk(sizes[part], steps[part])))
        ]

    def sharing(self, work: RoundWork) -> list[int]:
        """The ranks that share a round. They follow from this round alone: a resumed run chooses the same."""
        assert self.ranks is not None
        if self.row_work is None:
            self.row_work = multiplications(self.task, 1)
        sizes, _, _ = self.lengths(work)
        rows = self.runs[0].batch_size or int(sizes.max(initial=1))
        side_by_side = len(work.who) if self.engine in STACKED else 1
        return choose_ranks(self.ranks, self.device.type, self.row_work * rows * side_by_side)

    def compute(
        self, work: RoundWork, chunks: list[np.ndarray], ahead: int = 0
    ) -> Iterator[tuple[Tensor, State, np.ndarray]]:
        """Run these chunks in this process and yield their uploads, in order.

        `ahead`: how many chunks may be finished before they are taken; 0: two for each core.
        """
        first, run_of, who = self.runs[0], work.run_of, work.who
        seconds = self.chunk_seconds = []
        sizes, epochs, _ = self.lengths(work)
        seeds = np.array([r.seed for r in self.runs], dtype=np.uint64)[run_of]
        ids = np.concatenate([ids[who[run_of == i]] for i, ids in enumerate(self.ids)])

        def run_chunk(rows: np.ndarray, mine: State) -> tuple[Tensor, State, State]:
            began = time.perf_counter()
            plans = plan(
                seeds[rows],
                0 if self.algorithm.repeats_batches else work.works[rows],
                ids[rows],
                sizes[rows],
                epochs[rows],
                first.batch_size,
                first.local_steps,
            )
            plans = self.task.redraw(
                plans, self.runs[run_of[rows[0]]].fed.parties[who[rows[0]]], int(epochs[rows[0]])
            )
            plans = plans._replace(
                index=self._to_device(self._global_rows(plans.index, run_of[rows], who[rows])),
                live=self._to_device(plans.live),
                key=self._to_device(plans.key),
                size=self._to_device(plans.size),
            )
            with torch.no_grad():
                out = (self._stacked if self.engine in STACKED else self._one_by_one)(
                    plans, run_of[rows], work.whose[rows], work.down, mine
                )
            seconds.append(time.perf_counter() - began)
            return out

        for rows, (weights, vectors, after) in self._run_chunks(run_chunk, chunks, run_of, who, ahead):
            for i in np.unique(run_of[rows]) if after else ():
                of_run = run_of[rows] == i
                self.states[i].put(
                    who[rows][of_run], {k: v[torch.from_numpy(of_run).to(v.device)] for k, v in after.items()}
                )
            yield weights, vectors, rows

    def _run_chunks(
        self, run_chunk: Any, chunks: list[np.ndarray], run_of: np.ndarray, who: np.ndarray, ahead: int = 0
    ) -> Iterator[Any]:
        """Run the chunks, on a CPU one on each core, and yield them in order; only a few wait at a time."""
        if self.device.type != "cpu":
            for rows in chunks:
                yield rows, run_chunk(rows, self._client_states(run_of[rows], who[rows]))
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # one chunk on each core: more threads inside would compete for the cores
        try:
            if (
                len(chunks) == 1
            ):  # on this thread: on others glibc returns memory to the system after every step
                yield chunks[0], run_chunk(chunks[0], self._client_states(run_of[chunks[0]], who[chunks[0]]))
                return
            waiting: deque[Any] = deque()
            for rows in chunks:
                waiting.append(
                    (rows, self.pool.submit(run_chunk, rows, self._client_states(run_of[rows], who[rows])))
                )
                if len(waiting) > (ahead or 2 * self.cores):
                    rows, done = waiting.popleft()
                    yield rows, done.result()
            while waiting:
                rows, done = waiting.popleft()
                yield rows, done.result()
        finally:
            torch.set_num_threads(before)

    def _client_states(self, run_of: np.ndarray, who: np.ndarray) -> State:
        if not self.fresh:
            return {}
        parts = [
            (np.flatnonzero(run_of == i), self.states[i].get(who[run_of == i], self.initial[i]))
            for i in np.unique(run_of)
        ]
        back = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")).to(
            self.device
        )
        return {k: torch.cat([state[k] for _, state in parts])[back] for k in self.fresh}

    def down(self, number: float) -> State:
        """What the server of each run sends, [R, …] each."""
        sent = {
            "w": self.w,
            "round": torch.full((len(self.runs),), number, device=self.device),
            **{k: self.state[k] for k in self.algorithm.sends},
        }
        return sent if self.buffers is None else sent | {"buffers": self.buffers}

    def _stacked(
        self, plans: Plans, run_of: np.ndarray, whose: np.ndarray, down: State, mine: State
    ) -> tuple[Tensor, State, State]:
        shared = len(down["w"]) == 1
        at, start = self._to_device(torch.from_numpy(run_of)), self._to_device(torch.from_numpy(whose))
        down = {k: v[0] if shared else v[start] for k, v in down.items()}
        if self.threads.tools is None:
            self.threads.tools = (
                (self.task.for_recording(self.compiles), FoldEngine(graphs=True, streams=STREAMS))
                if self.engine == "streams"
                else (self.task.for_stacking(), FoldEngine(graphs=self.device.type == "cuda"))
            )
        task, folds = self.threads.tools
        self._use_rows(task, folds)
        folds.lengths = plans.steps.tolist()

        def one(
            index: Tensor, live: Tensor, key: Tensor, size: Tensor, hyper: State, down: State, mine: State
        ) -> Any:
            batches = Stacked(index, live, key, size)
            batches.engine = folds
            algorithm = replace(self.algorithm, **hyper) if hyper else self.algorithm  # type: ignore[type-var]
            upload, after = algorithm.local(task, down, mine, batches)
            return upload.weight, upload.vectors, after if mine else {}

        hyper = {k: v[at] for k, v in self.hyper.items()}
        dims = (
            *(0, 0, 0, 0),
            {k: 0 for k in hyper} or None,
            {k: None if shared else 0 for k in down},
            {k: 0 for k in mine} or None,
        )
        out: tuple[Tensor, State, State] = torch.vmap(one, in_dims=dims)(*plans[:4], hyper, down, mine)
        return out

    def _one_by_one(
        self, plans: Plans, run_of: np.ndarray, whose: np.ndarray, down: State, mine: State
    ) -> tuple[Tensor, State, State]:
        task, batches_of = self._recording(plans) if self.engine == "graph" else (self.task, plans.of)
        done = [
            self.runs[i].algorithm.local(
                task, {k: v[j] for k, v in down.items()}, {k: v[s] for k, v in mine.items()}, batches_of(s)
            )
            for s, (i, j) in enumerate(zip(run_of, whose))
        ]
        return (
            torch.stack([upload.weight for upload, _ in done]),
            {k: torch.stack([upload.vectors[k] for upload, _ in done]) for k in done[0][0].vectors},
            {k: torch.stack([state[k] for _, state in done]) for k in mine},
        )

    def _recording(self, plans: Plans) -> tuple[Task, Callable[[int], Recorded]]:
        """A task whose steps are recorded, and each client's plan."""
        if self.threads.tools is None:
            self.threads.tools = self.task.for_recording(), FoldEngine(graphs=True, streams=1)
        task, folds = self.threads.tools
        self._use_rows(task, folds)

        def batches_of(s: int) -> Recorded:
            batches = Recorded(*plans.of(s))
            batches.engine = folds
            # padding comes after the live rows
            batches.counts = plans.live[s].sum(-1).long().tolist() if self.task.mixes else []
            return batches

        return task, batches_of

    def _use_rows(self, task: Task, folds: FoldEngine) -> None:
        task.x, task.y = self.task.x, self.task.y
        rows = [*tensors_of(task.x), task.y]  # rows of files are not stacked
        folds.use_rows(tuple((t.data_ptr(), t.shape) for t in rows))

    def _global_rows(self, index: Tensor, run_of: np.ndarray, who: np.ndarray) -> Tensor:
        """Indices of a client's own rows → rows of the common table."""
        own = index.numpy()
        out = np.empty_like(own)
        for i in np.unique(run_of):
            here, train = np.flatnonzero(run_of == i), self.runs[i].fed.train
            first = train.start.numpy()[who[here]]
            out[here] = train.index.numpy()[first[:, None, None] + own[here]] + self.offset[i]
        return torch.from_numpy(out)

    def _to_device(self, t: Tensor) -> Tensor:
        """Copy to the device asynchronously: the next round is planned while a GPU computes this one."""
        return t if self.device.type == "cpu" else t.pin_memory().to(self.device, non_blocking=True)

    # data, engine and memory --------------------------------------------------------------------------------

    def bind(self, number: int) -> None:
        """Give the task the rows of all runs in this round; nothing is done unless the rows have changed."""
        tables = [r.fed.at(number) for r in self.runs]
        if self.tables and all(a.x is b.x and a.y is b.y for a, b in zip(tables, self.tables)):
            return
        first = not self.tables
        self.tables = tables
        x, y, self.offset = join_tables(tables, self.device)
        if first:
            self.task = self.task.on(x, y)
        self.task.x, self.task.y = x, y

    def _choose_engine(self, engine: str) -> str:
        """Choose how clients run by fixed rules, so that the same seed gives the same bits.

        "stack": all as one program. On a GPU, also "streams": each client's step is recorded, and the graph
        runs them side by side, and "graph": one client at a time, recorded. "each": one by one.
        """
        solvers = [r.algorithm.solver for r in self.runs if r.algorithm.solver is not None]
        if not all(solver.stacks for solver in solvers):
            self.notes.append(
                "this optimizer is torch's own, whose steps are not stacked, so clients run one by one"
            )
            return "each"
        if self.task.is_batch_loss:
            self.notes.append(
                "the loss is one number for a batch, so short batches are not padded and clients run one by "
                "one"
            )
            return "each"
        if isinstance(self.task.x, Stored):
            self.notes.append("rows are read while training, batch by batch, so clients run one by one")
            return "each"
        gpu = self.device.type == "cuda" and engine != "each"
        w, buffers = self.w[:1], None if self.buffers is None else self.buffers[:1]
        if self.task.mixes:
            self.notes.append(
                "the model's output for one row depends on the other rows in the batch, so short batches are "
                "not padded and clients run one by one"
            )
            return "graph" if gpu and not cannot_record(self.task, w, buffers) else "each"
        if engine == "each":
            return engine
        step = multiplications(self.task, self.runs[0].batch_size or 64) if engine != "stack" else 0.0
        step /= self._members_in_turn
        if not gpu and step > STACK_BELOW:
            return "each"
        why = cannot_stack(self.task, w, buffers)
        if why:
            self.notes.append(f"this model cannot be stacked, so clients run one by one: {why}")
            return "graph" if gpu and not cannot_record(self.task, w, buffers) else "each"
        if engine == "compile":
            why = self._cannot_compile(w, buffers)
            if not why:
                self.compiles = True
                return "streams"
            self.notes.append(f"the model was not compiled: {why}")
        large = gpu and step > STREAMS_ABOVE
        return "streams" if large and not cannot_record(self.task, w, buffers) else "stack"

    @property
    def _members_in_turn(self) -> int:
        """How many networks a model has that a stack on a CPU computes one after the other."""
        return self.task.members if self.device.type == "cpu" and self.task.dense else 1

    def _cannot_compile(self, w: Tensor, buffers: Tensor | None) -> str:
        if self.device.type != "cuda":
            return "compiled steps need a GPU (device='cuda')"
        if self.task.special:
            return "dropout and batch norm must give the same result in every engine"
        return cannot_record(self.task, w, buffers, compiles=True)

    def _chunk(self, sizes: np.ndarray, steps: np.ndarray) -> int:
        """How many clients fit a stack, by the memory of their weights, gradients and activations."""
        if self.engine not in STACKED:
            return 1
        batch = min(self.runs[0].batch_size or int(sizes.max()), int(sizes.max()))
        if self.per_row is None:
            self.per_row = self.task.bytes_kept() // self._members_in_turn
        # ×2: the gradients of the activations
        each = 4 * self.task.dim * (8 + 2 * len(self.fresh)) + 2 * batch * self.per_row
        each += 16 * batch * int(steps.max())  # the plan: index, mark and key for every row of a batch
        room = self.memory or (
            0.6 * torch.cuda.mem_get_info(self.device)[1] / (1 if self.ranks is None else self.ranks.on_gpu)
            if self.device.type == "cuda"
            else CPU_STACK
        )
        return max(1, int(room // each))

    # state --------------------------------------------------------------------------------------------------

    def save(self, i: int = 0) -> State:
        """The state of run i, from which it can be resumed, also alone."""
        out = {"w": self.w[i], **{f"server.{k}": v[i] for k, v in self.state.items()}}
        if self.buffers is not None:
            out["buffers"] = self.buffers[i]
        out |= {f"rule.{k}": v for k, v in self.memories[i].items()}
        if self.fresh:
            if self.shared is not None:
                self.shared.collect(i)
            out |= {f"kept.{k}": v for k, v in self.states[i].save().items()}
        if self.guards:
            out |= {f"guard.{k}": v for k, v in self.guards[i].state.items()} | {
                f"guarded.{k}": v for k, v in self.guard_states[i].save().items()
            }
        # clone, because safetensors does not accept shared memory
        return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in out.items()}

    def load(self, saved: list[State]) -> None:
        """Load a state for each run."""
        self.w = torch.stack([s["w"] for s in saved]).to(self.device)
        self.buffers = (
            torch.stack([s["buffers"] for s in saved]).to(self.device) if "buffers" in saved[0] else None
        )
        self.state = {k: torch.stack([s[f"server.{k}"] for s in saved]).to(self.device) for k in self.state}
        self.memories = [
            {k[5:]: v.to(self.device) for k, v in s.items() if k.startswith("rule.")} for s in saved
        ]
        for states, s in zip(self.states, saved):
            if self.fresh:
                states.load(
                    {
                        k[5:]: v if k == "kept.slot" else v.to(self.device)
                        for k, v in s.items()
                        if k.startswith("kept.")
                    }
                )
        for guard, states, s in zip(self.guards, self.guard_states, saved):
            guard.state = {k[6:]: v for k, v in s.items() if k.startswith("guard.")}
            states.load({k[8:]: v for k, v in s.items() if k.startswith("guarded.")})
        if self.shared is not None:
            self.shared.take_all()


def _join(parts: list[tuple[Tensor, State, np.ndarray]]) -> tuple[Tensor, State, np.ndarray]:
    """Chunks of uploads as one."""
    if len(parts) == 1:
        return parts[0]
    weights, vectors, rows = zip(*parts)
    return (
        torch.cat(weights),
        {k: torch.cat([v[k] for v in vectors]) for k in vectors[0]},
        np.concatenate(rows),
    )


def _keep_idle(idle: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """[R, …]: the old values in idle runs."""
    return (
        torch.where(idle.view(-1, *[1] * (after.dim() - 1)).to(after.device), before, after)
        if idle.any()
        else after
    )
