"""All clients of a round as one tensor program; several runs beside each other are only more clients.

A study is one more axis: runs that share a model and an algorithm (seeds, skews, a learning rate, a μ) go
into one stack, and each comes out as if it had run alone. On a CPU a stack of convolutions gains nothing, so
there clients go one by one, one on each core.
"""

from __future__ import annotations

import threading
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
from ..engine.stacking import (
    CPU_STACK,
    STACK_BELOW,
    cannot_stack,
    cores,
    differing,
    of_like_size,
    one_table,
    work,
)
from ..engine.task import Task
from ..guard import Clients, Guard
from .fold import FoldEngine, Stacked
from .kept import Kept


@dataclass(frozen=True)
class Run:
    """One training run: who takes part, and how each round goes. `members` leaves out parties; None is
    everyone.
    """

    fed: Federation
    algorithm: Algorithm
    seed: int
    per_round: int
    local_epochs: np.ndarray  # [parties]
    batch_size: int | None
    local_steps: int | None = None
    members: np.ndarray | None = None
    choose: Callable[[int], np.ndarray] | None = None  # who takes part, where (seed, round) may not tell
    corrupt: Callable[[int, np.ndarray, State, State], State] | None = (
        None  # (round, who, their vectors, down) → what liars among them send
    )
    public_sizes: np.ndarray | None = None  # [parties]; None: as many rows as each trains on

    @property
    def sizes(self) -> np.ndarray:
        """The rows by which each party plans its steps and weighs."""
        return self.fed.train.sizes.numpy() if self.public_sizes is None else self.public_sizes


class _Thread(threading.local):
    """A thread's own task and fold engine: `functional_call` swaps values inside the module of a task."""

    tools: tuple[Task, FoldEngine] | None = None


class Cohort:
    """R runs side by side. `round(r)` takes each of them one round further."""

    def __init__(
        self,
        task: Task,
        starts: list[State],
        runs: list[Run],
        engine: str = "auto",
        memory: float | None = None,
        guards: list[Guard] | None = None,
        rule: Rule | None = None,
    ):
        self.runs, self.device = runs, task.x.device
        self.guards = guards or []  # one for each run, or none at all
        self.guarded = [Kept(len(r.fed)) for r in runs]  # what clients keep for their guard
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
        self.begins = [
            {k: v.to(self.device) for k, v in fresh(r.algorithm, s).items()} for r, s in zip(runs, starts)
        ]  # what a new client of each run keeps
        self.fresh = self.begins[0]
        self.kept = [Kept(len(r.fed)) for r in runs]
        keep = sum(v.numel() * v.element_size() for v in self.fresh.values()) * sum(len(r.fed) for r in runs)
        self.ids = [identify(r.fed.parties) for r in runs]
        self.rule = Mean() if rule is None else rule
        self.memories: list[State] = [{} for _ in runs]  # what a rule remembers of earlier rounds
        self.notes: list[str] = []
        self.hears: Callable[[np.ndarray, Tensor, State], None] | None = (
            None  # told of every upload: (who, weights, vectors)
        )
        self.upload_shapes: dict[str, torch.Size] = {}  # of one client: what it sends, for counting bytes
        if keep > 2e9:
            self.notes.append(
                f"clients of {type(self.algorithm).__name__} keep state between rounds: once all have taken "
                f"part, {keep / 1e9:.1f} GB"
            )
        self.memory = memory
        self.threads = _Thread()
        self.per_row: int | None = None  # bytes that a row keeps for the backward pass
        self.cores = (
            cores() if self.device.type == "cpu" and not task.draws else 1
        )  # in one order, if the order matters
        if task.draws:
            self.notes.append(
                "this model draws random numbers other than dropout's, so stacking, resuming or running "
                "real parties changes its result"
            )
        self.pool = ThreadPoolExecutor(self.cores, thread_name_prefix="tacit-cohort")
        self._bind(0)
        self.engine = self._choose(engine)

    # rounds -------------------------------------------------------------------------------------------------

    def round(self, number: int) -> list[np.ndarray]:
        """One round of every run; returns who took part in each. `number` counts from 0."""
        self._bind(number + 1)  # data that drifts counts its rounds from 1
        chosen = [self._chosen(i, number) for i in range(len(self.runs))]
        run_of = np.concatenate([np.full(len(c), i) for i, c in enumerate(chosen)])
        who = np.concatenate(chosen)
        sizes = np.concatenate([r.sizes[c] for r, c in zip(self.runs, chosen)])
        if not len(who) and not any(guard.noise for guard in self.guards):
            # Poisson sampling may choose nobody; under noise that must not show, so there the round goes on
            return chosen
        uploads = self._uploads(number, run_of, who, sizes) if len(who) else iter(())
        if any(run.corrupt is not None for run in self.runs) and len(who):
            uploads = self._corrupted(number, run_of, who, uploads)
        if self.hears is not None:
            uploads = self._overheard(who, uploads, self.hears)
        mean = (
            self._guarded(number, run_of, who, uploads)
            if self.guards
            else self._mean(number, run_of, who, uploads)
        )
        self.upload_shapes = {k: v.shape[1:] for k, v in mean.items()}
        idle = torch.tensor(
            [not len(c) and not (self.guards and self.guards[i].noise) for i, c in enumerate(chosen)]
        )  # they stand where they stood
        if self.buffers is not None:
            self.buffers = _where(idle, self.buffers, mean.pop("buffers"))
        counted = [guard.expected if guard.noise else len(c) for guard, c in zip(self.guards, chosen)] or [
            len(c) for c in chosen
        ]
        self.move(
            mean,
            [n / len(r.fed if r.members is None else r.members) for r, n in zip(self.runs, counted)],
            idle,
        )
        return chosen

    def move(self, mean: State, fraction: list[float], idle: Tensor | None = None) -> None:
        """The server's step from the mean of what came, [R, …] each; in `idle` runs nothing did."""
        before, state = self.w, self.state
        self.w, self.state = self._merge(mean, self._there(torch.tensor(fraction)))
        if idle is not None and idle.any():
            self.w, self.state = (
                _where(idle, before, self.w),
                {k: _where(idle, v, self.state[k]) for k, v in state.items()},
            )
        for i, guard in enumerate(self.guards):
            guard.after_step(before[i], self.w[i])

    def _overheard(
        self, who: np.ndarray, uploads: Iterator[Any], hears: Callable[[np.ndarray, Tensor, State], None]
    ) -> Iterator[Any]:
        for weights, vectors, rows in uploads:
            hears(who[rows], weights, vectors)
            yield weights, vectors, rows

    def _corrupted(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        uploads: Iterator[tuple[Tensor, State, np.ndarray]],
    ) -> Iterator[Any]:
        """The same uploads after liars have met over them: all at once, because they look at each other's."""
        weights, vectors, rows = zip(*uploads)
        at, sent, down = (
            np.concatenate(rows),
            {k: torch.cat([v[k] for v in vectors]) for k in vectors[0]},
            self.down(float(number)),
        )
        for i, run in enumerate(self.runs):
            if run.corrupt is not None:
                here = np.flatnonzero(run_of[at] == i)
                there = torch.from_numpy(here).to(self.device)
                lies = run.corrupt(
                    number,
                    who[at[here]],
                    {k: v[there] for k, v in sent.items()},
                    {k: v[i] for k, v in down.items()},
                )
                for k, v in lies.items():
                    sent[k][there] = v
        yield torch.cat(weights), sent, at

    def _mean(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        uploads: Iterator[tuple[Tensor, State, np.ndarray]],
    ) -> State:
        """The weighted mean of each run's uploads, [R, …] each, or what another rule makes of them."""
        down = self.down(float(number))
        rule = self.rule.at_round(down)
        total, order = rule.start(), []
        for weights, vectors, rows in uploads:
            whose = torch.from_numpy(
                (run_of[rows] == np.arange(len(self.runs))[:, None]).astype(np.float32)
            )  # [R, S]
            total = rule.add(total, self._there(whose) * weights, vectors)
            order.append(who[rows])
        parties = self._there(torch.from_numpy(np.concatenate(order)))
        mean, after = rule.result_with_memory(total, parties, self.memories, down)
        self.memories = [
            m if i in run_of else before for i, (before, m) in enumerate(zip(self.memories, after))
        ]
        return mean

    def _guarded(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        uploads: Iterator[tuple[Tensor, State, np.ndarray]],
    ) -> State:
        """The same through each run's guard: what leaves the clients, all at once, then what the server makes
        of the sum.
        """
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
                    self.guarded[i].get(k, fresh) if fresh else {},
                    guard.state,
                    guard.secret_seed,
                )
                total, n = guard.total(
                    *guard.out(weights[at], {key: v[at] for key, v in vectors.items()}, downs[i], me), number
                )
                if fresh:
                    self.guarded[i].put(k, me.memory)
                sums[i] = total + sums[i][0], n + sums[i][1]
        means = [
            guard.back(total if isinstance(total, Tensor) else guard.empty_sum(number), n, downs[i], number)
            for i, (guard, (total, n)) in enumerate(zip(self.guards, sums))
        ]
        return {k: torch.stack([m[k] for m in means]) for k in means[0]}

    def _chosen(self, i: int, number: int) -> np.ndarray:
        run = self.runs[i]
        if run.choose is not None:
            return run.choose(number)
        members = np.arange(len(run.fed)) if run.members is None else run.members
        return members[sample(run.seed, number, self.ids[i][members], run.per_round)]

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

    def answers(
        self, number: int, who: np.ndarray, works: np.ndarray, down: State
    ) -> Iterator[tuple[int, float, State]]:
        """What each of these clients sends from one older model, as (place in `who`, weight, vectors): for
        training that does not go by rounds. `works` are their own counts of work, which stand for the round
        in their plans.
        """
        self._bind(number + 1)
        sizes = self.runs[0].sizes[who]
        for weights, vectors, rows in self._uploads(
            number,
            np.zeros(len(who), dtype=np.int64),
            who,
            sizes,
            works,
            {k: v[None] for k, v in down.items()},
        ):
            for s, row in enumerate(rows):
                yield int(row), float(weights[s]), {k: v[s] for k, v in vectors.items()}

    def walks(self, number: int, who: np.ndarray, works: np.ndarray, down: State) -> State:
        """What each of these clients arrives at, [S, …], from a model of its own, [S, …]: for training
        without a server.
        """
        self._bind(number + 1)
        sizes, out = self.runs[0].sizes[who], State()
        for _, vectors, rows in self._uploads(
            number, np.zeros(len(who), dtype=np.int64), who, sizes, works, down, np.arange(len(who))
        ):
            there = torch.from_numpy(rows).to(self.device)
            for k, v in vectors.items():
                out.setdefault(k, v.new_empty(len(who), *v.shape[1:]))[there] = v
        return out

    def personal(self, i: int) -> list[State]:
        """The model each party of run i uses for itself, those that have not taken part yet included."""
        down, n = {k: v[i] for k, v in self.down(0.0).items()}, len(self.runs[i].fed)
        kept = self.kept[i]
        mine = [
            {k: kept.values[k][int(s)] for k in self.fresh} if s >= 0 else self.begins[i]
            for s in kept.slot[:n]
        ]
        return [self.runs[i].algorithm.personal(self.task, down, m) for m in mine]

    def _uploads(
        self,
        number: int,
        run_of: np.ndarray,
        who: np.ndarray,
        sizes: np.ndarray,
        works: np.ndarray | None = None,
        down: State | None = None,
        whose: np.ndarray | None = None,
    ) -> Iterator[tuple[Tensor, State, np.ndarray]]:
        """(weights [S], vectors [S, …], which rows of `who`) for one chunk of clients after the other.
        `whose` is which row of `down` each starts from: its run's, if not given.
        """
        first = self.runs[0]
        epochs = np.concatenate([r.local_epochs[who[run_of == i]] for i, r in enumerate(self.runs)])
        seeds = np.array([r.seed for r in self.runs], dtype=np.uint64)[run_of]
        ids = np.concatenate([self.ids[i][who[run_of == i]] for i in range(len(self.runs))])
        steps = count_steps(sizes, epochs, first.batch_size, first.local_steps)
        alike = (
            of_like_size(sizes)
            if first.batch_size is None and self.engine == "stack"
            else [np.arange(len(who))]
        )
        parts = [
            part[np.argsort(-steps[part], kind="stable")] for part in alike
        ]  # longest first, so that finished clients are at the end of the stack
        chunks = [
            chunk
            for part in parts
            for chunk in np.array_split(part, -(-len(part) // self._chunk(sizes[part], steps[part])))
        ]
        sent = self.down(float(number)) if down is None else down
        works = np.full(len(who), number) if works is None else works
        whose = run_of if whose is None else whose

        def play(rows: np.ndarray, mine: State) -> tuple[Tensor, State, State]:
            plans = plan(
                seeds[rows],
                works[rows],
                ids[rows],
                sizes[rows],
                epochs[rows],
                first.batch_size,
                first.local_steps,
            )
            plans = self.task.redraw(
                plans, self.runs[run_of[rows[0]]].fed.parties[who[rows[0]]], int(epochs[rows[0]])
            )
            index = self._global_rows(plans.index, run_of[rows], who[rows])
            plans = Plans(
                self._there(index),
                self._there(plans.live),
                self._there(plans.key),
                self._there(plans.size),
                plans.steps,
            )
            with torch.no_grad():
                return (self._stacked if self.engine == "stack" else self._one_by_one)(
                    plans, run_of[rows], whose[rows], sent, mine
                )

        for rows, (weights, vectors, after) in self._side_by_side(play, chunks, run_of, who):
            for i in np.unique(run_of[rows]) if after else ():
                of_run = run_of[rows] == i
                self.kept[i].put(
                    who[rows][of_run], {k: v[torch.from_numpy(of_run).to(v.device)] for k, v in after.items()}
                )
            yield weights, vectors, rows

    def _side_by_side(
        self, play: Any, chunks: list[np.ndarray], run_of: np.ndarray, who: np.ndarray
    ) -> Iterator[Any]:
        """Play the chunks, on a CPU one a core, and hand them out in order; no more than a few wait at a
        time.
        """
        if self.device.type != "cpu":
            for rows in chunks:
                yield rows, play(rows, self._mine(run_of[rows], who[rows]))
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # a chunk a core; more threads inside would only fight over the cores
        try:
            if (
                len(chunks) == 1
            ):  # on this thread: glibc gives memory back to the system after every step on the others
                yield chunks[0], play(chunks[0], self._mine(run_of[chunks[0]], who[chunks[0]]))
                return
            waiting: deque[Any] = deque()
            for rows in chunks:
                waiting.append((rows, self.pool.submit(play, rows, self._mine(run_of[rows], who[rows]))))
                if len(waiting) > 2 * self.cores:
                    rows, done = waiting.popleft()
                    yield rows, done.result()
            while waiting:
                rows, done = waiting.popleft()
                yield rows, done.result()
        finally:
            torch.set_num_threads(before)

    def _mine(self, run_of: np.ndarray, who: np.ndarray) -> State:
        if not self.fresh:
            return {}
        got = [
            (np.flatnonzero(run_of == i), self.kept[i].get(who[run_of == i], self.begins[i]))
            for i in np.unique(run_of)
        ]
        back = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in got]), kind="stable")).to(
            self.device
        )
        return {k: torch.cat([state[k] for _, state in got])[back] for k in self.fresh}

    def down(self, number: float) -> State:
        """What every run's server sends, [R, …] each."""
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
        at, start = self._there(torch.from_numpy(run_of)), self._there(torch.from_numpy(whose))
        down = {k: v[0] if shared else v[start] for k, v in down.items()}
        if self.threads.tools is None:
            self.threads.tools = self.task.for_stacking(), FoldEngine(graphs=self.device.type == "cuda")
        task, folds = self.threads.tools
        task.x, task.y = self.task.x, self.task.y
        folds.over((task.x.data_ptr(), task.y.data_ptr(), task.x.shape, task.y.shape))
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
            0,
            0,
            0,
            0,
            {k: 0 for k in hyper} or None,
            {k: None if shared else 0 for k in down},
            {k: 0 for k in mine} or None,
        )
        return torch.vmap(one, in_dims=dims)(*plans[:4], hyper, down, mine)

    def _one_by_one(
        self, plans: Plans, run_of: np.ndarray, whose: np.ndarray, down: State, mine: State
    ) -> tuple[Tensor, State, State]:
        done = [
            self.runs[i].algorithm.local(
                self.task, {k: v[j] for k, v in down.items()}, {k: v[s] for k, v in mine.items()}, plans.of(s)
            )
            for s, (i, j) in enumerate(zip(run_of, whose))
        ]
        vectors = {k: torch.stack([upload.vectors[k] for upload, _ in done]) for k in done[0][0].vectors}
        after = {k: torch.stack([state[k] for _, state in done]) for k in mine}
        return torch.stack([upload.weight for upload, _ in done]), vectors, after

    def _global_rows(self, index: Tensor, run_of: np.ndarray, who: np.ndarray) -> Tensor:
        """Positions in a client's own rows → rows of the stack's table."""
        place = index.numpy()
        out = np.empty_like(place)
        for i in np.unique(run_of):
            here = np.flatnonzero(run_of == i)
            held = self.runs[i].fed.train
            first = held.start.numpy()[who[here]]
            out[here] = held.index.numpy()[first[:, None, None] + place[here]] + self.offset[i]
        return torch.from_numpy(out)

    def _there(self, t: Tensor) -> Tensor:
        """Bring to the device without waiting for it: on a GPU the next round is planned while this one is
        still computed.
        """
        return t if self.device.type == "cpu" else t.pin_memory().to(self.device, non_blocking=True)

    # what it runs on ----------------------------------------------------------------------------------------

    def _bind(self, number: int) -> None:
        """Lay the runs' rows under the task; runs that share a table share it here too. Only drifting data is
        laid anew.
        """
        tables = [r.fed.at(number) for r in self.runs]
        if self.tables and all(a.x is b.x and a.y is b.y for a, b in zip(tables, self.tables)):
            return
        first = not self.tables
        self.tables = tables
        x, y, self.offset = one_table(tables, self.device)
        if first:
            self.task = self.task.on(x, y)
        self.task.x, self.task.y = x, y

    def _choose(self, engine: str) -> str:
        """Stack, or one by one: by rule and not by stopwatch, so that the same seed gives the same bits on
        every run.
        """
        if self.task.mixes:
            self.notes.append(
                "what this model gives for a row depends on the rows beside it, so short batches are not "
                "padded and clients run one by one"
            )
            return "each"
        if engine == "auto":
            engine = (
                "stack"
                if self.device.type == "cuda" or work(self.task, self.runs[0].batch_size or 64) <= STACK_BELOW
                else "each"
            )
        if engine == "stack":
            why = cannot_stack(self.task, self.w[:1], None if self.buffers is None else self.buffers[:1])
            if why:
                self.notes.append(f"this model cannot be stacked, so clients run one by one: {why}")
                engine = "each"
        return engine

    def _chunk(self, sizes: np.ndarray, steps: np.ndarray) -> int:
        """How many clients go side by side: as many as their weights, gradients and what a batch keeps for
        the backward pass allow.
        """
        if self.engine != "stack":
            return 1
        batch = min(self.runs[0].batch_size or int(sizes.max()), int(sizes.max()))
        if self.per_row is None:
            self.per_row = self.task.bytes_kept()
        each = (
            4 * self.task.dim * (8 + 2 * len(self.fresh)) + 2 * batch * self.per_row
        )  # ×2: gradients of what was kept
        each += (
            16 * batch * int(steps.max())
        )  # the plan: a row number, a mark and its share of keys for every place
        room = self.memory or (
            0.6 * torch.cuda.mem_get_info(self.device)[1] if self.device.type == "cuda" else CPU_STACK
        )
        return max(1, int(room // each))

    # state --------------------------------------------------------------------------------------------------

    def save(self, i: int = 0) -> State:
        """Everything the next round of run i depends on; a run that was one of several can go on alone."""
        out = {"w": self.w[i], **{f"server.{k}": v[i] for k, v in self.state.items()}}
        if self.buffers is not None:
            out["buffers"] = self.buffers[i]
        out |= {f"rule.{k}": v for k, v in self.memories[i].items()}
        if self.fresh:
            out |= {f"kept.{k}": v for k, v in self.kept[i].save().items()}
        if self.guards:
            out |= {f"guard.{k}": v for k, v in self.guards[i].state.items()} | {
                f"guarded.{k}": v for k, v in self.guarded[i].save().items()
            }
        return {
            k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in out.items()
        }  # clone: safetensors refuses shared memory

    def load(self, saved: list[State]) -> None:
        """The reverse, a state for each run."""
        self.w = torch.stack([s["w"] for s in saved]).to(self.device)
        self.buffers = (
            torch.stack([s["buffers"] for s in saved]).to(self.device) if "buffers" in saved[0] else None
        )
        self.state = {k: torch.stack([s[f"server.{k}"] for s in saved]).to(self.device) for k in self.state}
        self.memories = [
            {k[5:]: v.to(self.device) for k, v in s.items() if k.startswith("rule.")} for s in saved
        ]
        for kept, s in zip(self.kept, saved):
            if self.fresh:
                kept.load(
                    {
                        k[5:]: v if k == "kept.slot" else v.to(self.device)
                        for k, v in s.items()
                        if k.startswith("kept.")
                    }
                )
        for guard, kept, s in zip(self.guards, self.guarded, saved):
            guard.state = {k[6:]: v for k, v in s.items() if k.startswith("guard.")}
            kept.load({k[8:]: v for k, v in s.items() if k.startswith("guarded.")})


def _where(idle: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """[R, …]: as before in the runs that are idle."""
    return (
        torch.where(idle.view(-1, *[1] * (after.dim() - 1)).to(after.device), before, after)
        if idle.any()
        else after
    )
