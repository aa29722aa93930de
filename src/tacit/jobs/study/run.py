"""Run a study: its cells are grouped into stacks, each stack is one tensor program, and it can be resumed.

    study.json     which study this is, and its digest
    cells.jsonl    a line for every finished run (its accuracy in every round) and for every stack (its
                   seconds)
    state/         the last state of a stack that is not finished
    results.csv, results.parquet, curves.csv, report.html       derived from the lines above

Up to cells.jsonl it needs torch and numpy only (and safetensors to resume inside a stack), so that a bare GPU
machine can run it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import algorithms, data
from ...data.federation import Dataset, Federation, Holdings, Rows
from ...data.inputs import Features
from ...engine.evaluation import reported_rows
from ...errors import BadJob, BadParameter
from ...parameters import bad
from ...runs import load_stack, save_stack
from ...runtimes.cohort import Cohort
from ..stacks import central_baseline, group_into_stacks
from ..train.plan import Plan, make_plan, make_task, prepare_stack
from ..train.simulated import SimulatedTrainer
from ..train.table_defaults import for_one_party
from ..train.train import torch_settings
from ..train.trainer import RunContext
from .file import Cell, Study
from .shards import WHOLE, Shard
from .store import Store
from .table import DIGITS, figures, finished

SAVE_EVERY = 20.0  # seconds between two saved states: resuming repeats at most that much work
# rounds between two looks at who has reached the target: looking makes the CPU wait for the GPU
LOOK_EVERY = 10
LEAVE = 0.25  # of a stack's runs must be done before the rest is stacked again, which takes a second

Labeled = tuple[Features, Tensor]  # rows and labels, on the device
Runs = list[tuple[Cell, Plan]]


def study(
    spec: Study,
    out: str | Path,
    *,
    only: str = "",
    shard: Shard = WHOLE,
    say: Callable[[str], None] = lambda text: None,
) -> Store:
    """Run what is not done yet.

    `only` is a regular expression that selects cells by their id, `shard` a part of the selected cells that
    no other shard computes.
    """
    store, stacks = unfinished(spec, out, only=only, shard=shard, say=say)
    for stack in stacks:
        run_stack(stack, store, say)
    if not only and shard == WHOLE:  # parts of a study may run at the same time, so only a whole one is timed
        add_loop_time(spec, store)
    return store


def unfinished(
    spec: Study, out: str | Path, *, only: str, shard: Shard, say: Callable[[str], None]
) -> tuple[Store, list[Runs]]:
    """Return the store of a study and the stacks of its selected cells that are not done."""
    try:
        cells = [c for c in spec.cells if re.search(only, c.id)]
    except re.error as error:
        raise BadJob(str(bad("study", "only", only, f"a regular expression ({error})"))) from None
    if not cells:
        raise BadJob(f"no cell of {spec.name} has {only!r} in its name. The first is {spec.cells[0].id!r}.")
    store = Store(out, spec)
    done = store.done()
    say(f"{spec.name}: {len(spec.cells)} runs, {len(done)} of them done")
    if shard == WHOLE:  # else the stacks of all cells decide who computes which, whatever is done already
        cells = [c for c in cells if c.id not in done]
    datasets = _Data()
    stacks = shard.of(_stacks([(c, _plan(c, datasets)) for c in cells]))
    left = ([(c, p) for c, p in stack if c.id not in done] for stack in stacks)
    return store, [stack for stack in left if stack]


class StackRunner:
    """Runs cells by their ids, as a worker of a study is asked to; data sets are loaded once."""

    def __init__(self, store: Store, say: Callable[[str], None]):
        self.store, self.say = store, say
        self._cells, self._datasets = {c.id: c for c in store.study.cells}, _Data()

    def run(self, ids: Sequence[str]) -> None:
        """Run those of these cells that are not done."""
        done = self.store.done()
        cells = [self._cells[i] for i in ids if i not in done]
        for stack in _stacks([(c, _plan(c, self._datasets)) for c in cells]):
            run_stack(stack, self.store, self.say)


def run_stack(stack: Runs, store: Store, say: Callable[[str], None]) -> None:
    """Compute the runs of a stack; those with a saved state resume."""
    for runs, state in _resumable(stack, store):
        _run(runs, state, store, _Race(store.study, store.lines()), say)


def add_loop_time(spec: Study, store: Store) -> None:
    """Time a loop over clients on this GPU, once for a study that ran on one."""
    lines, datasets = store.lines(), _Data()
    if (
        torch.cuda.is_available()
        and any(x.get("on") == "cuda" for x in lines)
        and not any(x.get("kind") == "loop" for x in lines)
    ):
        plans = (_plan(c, datasets) for c in spec.cells)
        with_steps = next((p for p in plans if p.batch_size is not None and p.algorithm.takes_steps), None)
        if with_steps is not None:
            store.add(time_loop(with_steps))


class _Data:
    """Data sets and federations, each loaded once."""

    def __init__(self) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.federations: dict[str, Federation] = {}

    def of(self, cell: Cell) -> Federation:
        """Return the federation of a cell, with the test rows that the cell asks for."""
        fed = self._of(cell.job, cell)
        if cell.tested_as is None:
            return fed
        key = json.dumps([id(fed), cell.tested_as.data], sort_keys=True)
        if key not in self.federations:
            self.federations[key] = dataclasses.replace(fed, test=self._of(cell.tested_as, cell).test)
        return self.federations[key]

    def _of(self, job: Any, cell: Cell) -> Federation:
        make = data.ALL.get(job.data.get("name"))
        takes = inspect.signature(make).parameters if make is not None else job.data
        own = {k: v for k, v in job.data.items() if k in takes or k in ("name", "path")}
        of_set = json.dumps([own, cell.rows, cell.test_rows], sort_keys=True)
        if of_set not in self.datasets:
            self.datasets[of_set] = _sample(job.dataset(), cell.rows, cell.test_rows)
        key = of_set + json.dumps([job.data, [repr(s) for s in job.skews]], sort_keys=True)
        if key not in self.federations:
            (self.federations[key],) = job.federations(self.datasets[of_set])
        return self.federations[key]


def _sample(whole: Dataset, rows: int | None, test_rows: int | None) -> Dataset:
    """Return only so many rows, chosen at random but always the same ones."""

    def sample(
        r: Rows, groups: dict[str, np.ndarray], n: int | None, stream: int
    ) -> tuple[Rows, dict[str, np.ndarray]]:
        if n is None or n >= len(r.y):
            return r, groups
        index = np.sort(np.random.default_rng([0, stream]).permutation(len(r.y))[:n])
        return r.take(torch.from_numpy(index)), {k: v[index] for k, v in groups.items()}

    if rows is None and test_rows is None:
        return whole
    if whole.table is not None:
        raise BadJob(
            f"data: rows and test_rows sample a data set of arrays; {whole.name} is a table. Leave them out."
        )
    train, groups = sample(whole.rows, whole.groups, rows, 11)
    test, test_groups = sample(whole.test, whole.test_groups, test_rows, 12)
    return dataclasses.replace(whole, rows=train, test=test, groups=groups, test_groups=test_groups)


def _plan(cell: Cell, datasets: _Data) -> Plan:
    options = {"device": "auto", **cell.job.train()}
    del options["data_job"]
    fed, where = datasets.of(cell), f"{cell.job.file}, row {cell.row!r}"
    if fed.classes is None:
        raise BadJob(
            f"{where}: a study shows accuracies, and {fed.name} is a regression. Use `tacit compare`."
        )
    try:
        p = make_plan(fed, **options, label=cell.row, skew=cell.column)
    except BadParameter as error:
        raise BadJob(f"{where}: {error}") from None
    if p.metric not in (None, "accuracy") or p.threshold is not None or p.subgroups:
        raise BadJob(
            f"{where}: a study shows accuracies of the more probable class, of all test rows. Leave out "
            "metric, threshold and subgroups, or use `tacit compare`."
        )
    if not cell.baseline:
        return p
    kind, _, which = cell.baseline.partition(" ")
    if kind == "central" and not which:
        return central_baseline(p, p.algorithm)
    if kind == "alone" and which.isdigit() and int(which) < len(p.fed):
        k = int(which)  # alone it has no other party's rows to choose a round by
        held = [fed.held.of(j)[: None if j == k else 0] for j in range(len(fed))]
        own = dataclasses.replace(fed, held=Holdings.from_lists(held))
        alone = for_one_party(p, p.algorithm, int(fed.train.sizes[k]))
        return dataclasses.replace(p, fed=own, per_round=1, members=(k,), **alone)
    must_be = f"'central', or 'alone 0' to 'alone {len(p.fed) - 1}'"
    raise BadJob(str(bad(where, "baseline", cell.baseline, must_be)))


def _stacks(runs: Runs) -> list[Runs]:
    """Group runs into stacks.

    FedAvg is FedProx with μ = 0, to the bit; where there is FedProx to be stacked with, it runs as that.
    """

    def as_fedprox(p: Plan) -> Any:
        a = p.algorithm
        if type(a) is algorithms.FedAvg and a.option == "II" and a.server_lr == 1:
            return algorithms.FedProx(lr=a.lr, mu=0.0, weighted=a.weighted, solver=a.solver)
        return a

    stacks = []
    for group in group_into_stacks([p for _, p in runs], as_fedprox):
        stack = [runs[i] for i in group]
        if any(type(p.algorithm) is algorithms.FedProx for _, p in stack):
            stack = [(c, dataclasses.replace(p, algorithm=as_fedprox(p))) for c, p in stack]
        stacks.append(stack)
    return stacks


def _resumable(stack: Runs, store: Store) -> Iterator[tuple[Runs, Path | None]]:
    """Yield the runs that were saved together with their saved state, then those that have none."""
    for state, names in store.saved():
        if part := [(c, p) for c, p in stack if c.id in names]:
            stack = [(c, p) for c, p in stack if c.id not in names]
            yield part, state
    if stack:
        yield stack, None


class _Stack:
    """Runs side by side, and how many rows each has classified correctly so far.

    Counts stay on the device, and are read when they are needed: reading makes the CPU wait for the GPU.
    """

    def __init__(self, runs: Runs):
        self.runs, self.plans = runs, [p for _, p in runs]
        self.trainer = SimulatedTrainer(*prepare_stack(self.plans), self.plans, RunContext())
        self.rounds: list[int] = []  # those with an evaluation
        self.correct: list[
            Tensor
        ] = []  # [2, R] for each: of the test rows and the held-out rows; −1: diverged
        self.samples = np.zeros(len(runs), dtype=np.int64)
        self.held = {(id(p.fed), p.min_rows): reported_rows(p.fed, p.min_rows) for p in self.plans}
        device = self.cohort.device
        self.tests: dict[int, Labeled] = {}
        labels = {}  # every label counts, and a row of tokens has many
        for p in self.plans:
            if id(p.fed.test.x) not in self.tests:
                self.tests[id(p.fed.test.x)] = p.fed.test.x.to(device), p.fed.test.y.to(device)
            both = p.fed.test.y, p.fed.rows.y[self.held[id(p.fed), p.min_rows]]
            labels[id(p.fed), p.min_rows] = [int((y >= 0).sum()) for y in both]
        self.labels = np.array([labels[id(p.fed), p.min_rows] for p in self.plans], dtype=float).T

    @property
    def cohort(self) -> Cohort:
        return self.trainer.cohort

    def compute(self, r: int, evaluates: bool) -> None:
        """Compute round r (counted from 0) of every run."""
        for i, (p, who) in enumerate(zip(self.plans, self.trainer.step(r))):
            sizes = p.fed.train.sizes.numpy()[who]
            rows = sizes * np.array(p.local_epochs)[who] if p.algorithm.takes_steps else sizes
            if p.local_steps is not None:
                rows = p.local_steps * np.minimum(sizes, p.batch_size or sizes)
            self.samples[i] += int(rows.sum())
        if evaluates:
            self.rounds.append(r + 1)
            correct = torch.stack([self._count(self._test_rows(r + 1)), self._count(self._held_rows())])
            self.correct.append(torch.where(torch.isfinite(self.cohort.w).all(dim=1), correct, -1))

    def _test_rows(self, r: int) -> list[Labeled]:
        """Return each run's test rows in round r; their labels may have drifted, by the run's own seed."""
        now = [p.fed.test_at(r) for p in self.plans]
        placed: dict[int, Labeled] = {}
        for p, rows in zip(self.plans, now):
            if id(rows) not in placed:
                x, y = self.tests[id(p.fed.test.x)]
                placed[id(rows)] = (x, y) if rows.y is p.fed.test.y else (x, rows.y.to(self.cohort.device))
        return [placed[id(rows)] for rows in now]

    def _held_rows(self) -> list[Labeled]:
        """Return each run's held-out rows, of parties with at least `min_rows` of them."""
        task = self.cohort.task
        rows: dict[tuple[int, int], Labeled] = {}  # gathered once for the runs that share a federation
        for p, offset in zip(self.plans, self.cohort.offset):
            if (key := (id(p.fed), p.min_rows)) not in rows:
                index = (self.held[key] + offset).to(self.cohort.device)
                rows[key] = task.x[index], task.y[index]
        return [rows[id(p.fed), p.min_rows] for p in self.plans]

    def _count(self, rows: list[Labeled]) -> Tensor:
        """Return how many of its rows each run classifies correctly: [runs]."""
        cohort, out = self.cohort, torch.zeros(len(rows), dtype=torch.int64, device=self.cohort.device)
        same: dict[tuple[int, int], list[int]] = {}
        for i, (x, y) in enumerate(rows):
            same.setdefault((id(x), id(y)), []).append(i)
        for group in same.values():
            x, y = rows[group[0]]
            if not len(y):
                continue
            at = torch.tensor(group, device=cohort.device)
            buffers = None if cohort.buffers is None else cohort.buffers[at]
            if cohort.engine == "stack" and cohort.device.type == "cuda":
                out[at] = cohort.task.count_correct(cohort.w[at], x, y, buffers)
                continue
            for j, i in enumerate(group):
                logits = cohort.task.predict(cohort.w[i], x, None if buffers is None else buffers[j])
                out[i] = (logits.argmax(-1) == y).sum()
        return out

    def curves(self) -> np.ndarray:
        """Return the accuracy on test rows and on held-out rows: [2, runs, evaluated rounds].

        It is NaN where there are none, or the model is no longer finite.
        """
        correct = np.zeros((2, len(self.plans), 0))
        if self.correct:
            correct = torch.stack(self.correct, -1).cpu().numpy().astype(float)
        labels = np.where(self.labels > 0, self.labels, np.nan)
        return np.where(correct < 0, np.nan, correct) / labels[:, :, None]

    def keep(self, which: list[int]) -> _Stack:
        """Return a stack of these runs alone."""
        stack = _Stack([self.runs[i] for i in which])
        stack.cohort.load([self.cohort.save(i) for i in which])
        at = torch.tensor(which, device=self.cohort.device)
        stack.rounds, stack.samples = list(self.rounds), self.samples[which]
        stack.correct = [counts[:, at] for counts in self.correct]
        return stack

    def save(self, path: Path, r: int) -> None:
        save_stack(
            path,
            [self.cohort.save(i) for i in range(len(self.runs))],
            {"round": r, "rounds": self.rounds, "cells": [c.id for c, _ in self.runs]},
            right=torch.stack(self.correct).cpu() if self.correct else torch.zeros(0),
            samples=torch.from_numpy(self.samples),
        )

    @classmethod
    def load(cls, state: Path | None, runs: Runs) -> tuple[_Stack, int]:
        """Return runs as they were saved, or from their beginning, and the next round."""
        stack = cls(runs)
        if state is None:
            return stack, 0
        states, metadata, counts = load_stack(state)
        at = [metadata["cells"].index(c.id) for c, _ in runs]
        stack.cohort.load([states[i] for i in at])
        stack.rounds, stack.samples = metadata["rounds"], counts["samples"].numpy()[at]
        stack.correct = list(counts["right"][..., at].to(stack.cohort.device)) if stack.rounds else []
        return stack, metadata["round"]


class _Race:
    """Which runs have reached the target of their table.

    Of several values tried for one cell only the first to reach it is shown, so the others may stop there.
    With several seeds they continue, because the mean over the seeds decides.
    """

    def __init__(self, spec: Study, lines: Sequence[dict[str, Any]]):
        self.targets = {
            t.name: t.target for t in spec.tables if t.figure == "rounds" and t.target is not None
        }
        self.has_one_seed = spec.single
        self.fewest: dict[tuple[str, str, str], int] = {}
        for line in finished(spec, lines):
            rounds = figures(line, self.targets.get(line["table"]))["rounds"]
            self._arrive((line["table"], line["row"], line["column"]), rounds)

    def _arrive(self, place: tuple[str, str, str], first: int | None) -> bool:
        if first is not None:
            self.fewest[place] = min(first, self.fewest.get(place, first))
        return first is not None

    def over(self, cells: list[Cell], rounds: list[int], test: np.ndarray) -> list[int]:
        """Return which runs may stop, by their test accuracy so far: [runs, evaluated rounds]."""
        first = [
            next((r for r, t in zip(rounds, own) if t >= self.targets.get(c.table, np.inf)), None)
            for c, own in zip(cells, test)
        ]
        has_arrived = [self._arrive(c.place, r) for c, r in zip(cells, first)]
        return [
            i
            for i, c in enumerate(cells)
            if has_arrived[i]
            or (c.place in self.has_one_seed and rounds and self.fewest.get(c.place, np.inf) <= rounds[-1])
        ]


def _run(runs: Runs, state: Path | None, store: Store, race: _Race, say: Callable[[str], None]) -> None:
    """Compute one stack, and write a line for every run when it is done."""
    path, first = store.state([c for c, _ in runs]), runs[0][1]
    with torch_settings(first):
        saved = started = time.monotonic()
        stack, start = _Stack.load(state, runs)
        store.begin()
        store.add({"kind": "begun", "cells": [c.id for c, _ in runs]})
        say(
            first.label
            + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
            + f", {first.rounds} rounds, clients "
            + stack.cohort.manner
            + (f", from round {start}" if start else "")
        )
        for r in range(start, first.rounds):
            stack.compute(r, first.evaluates(r + 1))
            if r + 1 == first.rounds:
                _write(stack, range(len(stack.runs)), store)
                break
            if race.targets and (r + 1) % LOOK_EVERY == 0:
                done = race.over([c for c, _ in stack.runs], stack.rounds, stack.curves()[0])
                if len(done) >= LEAVE * len(stack.runs):  # enough to be worth a new stack
                    _write(stack, done, store)
                    rest = [i for i in range(len(stack.runs)) if i not in done]
                    if not rest:
                        break
                    stack = stack.keep(rest)
            if time.monotonic() - saved > SAVE_EVERY:
                with store.writing():
                    stack.save(path, r + 1)
                _write_time(store, stack, first, len(runs), time.monotonic() - started)
                saved = started = time.monotonic()
        _write_time(store, stack, first, len(runs), time.monotonic() - started)
    store.forget()


def _write(stack: _Stack, which: Sequence[int], store: Store) -> None:
    """Write the lines of finished runs."""
    test, held = stack.curves()
    is_finite = torch.isfinite(stack.cohort.w).all(dim=1).cpu()
    for i in which:
        c, p = stack.runs[i]
        sizes = p.fed.sizes if p.members is None else p.fed.sizes[list(p.members)]
        store.add(
            {
                "kind": "cell",
                "id": c.id,
                "table": c.table,
                "row": c.row,
                "column": c.column,
                "seed": c.seed,
                "choice": c.choice,
                "rounds": stack.rounds,
                "test": [round(float(v), DIGITS) for v in test[i]],
                "held": [round(float(v), DIGITS) for v in held[i]],
                "samples": int(stack.samples[i]),
                "parties": len(sizes),
                "sizes": [int(min(sizes)), int(max(sizes))],
                "diverged": not bool(is_finite[i]),
                "notes": list(p.fed.notes),
            }
        )


def _write_time(store: Store, stack: _Stack, p: Plan, cells: int, seconds: float) -> None:
    store.add(
        {
            "kind": "stack",
            "on": p.device.partition(":")[0],
            "cells": cells,
            "label": p.label,
            "seconds": round(seconds, 2),
            "engine": stack.cohort.engine,
            "device": describe_device(p.device),
            "precision": "float32" if p.device == "cpu" and p.precision == "tf32" else p.precision,
            "clients": sum(r.per_round for r in stack.cohort.runs),
        }
    )


def time_loop(p: Plan, steps: int = 60) -> dict[str, Any]:
    """Time one client after the other on this device: the second of two rounds of `steps` steps."""
    piece = dataclasses.replace(p, local_steps=steps, engine="each")

    def now() -> float:
        if p.device != "cpu":
            torch.cuda.synchronize(p.device)
        return time.monotonic()

    with torch_settings(p):
        task = make_task(piece)
        cohort = Cohort(task, [task.initial()], [piece.run()], "each")
        cohort.round(0)
        started = now()
        (chosen,) = cohort.round(1)
        seconds = now() - started
    sizes = p.fed.train.sizes.numpy()[chosen]
    rows = np.minimum(sizes, p.batch_size or sizes.max())
    return {
        "kind": "loop",
        "samples": int(steps * rows.sum()),
        "seconds": seconds,
        "device": describe_device(p.device),
    }


def describe_device(device: str) -> str:
    if device.startswith("cuda"):
        return f"one {torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, torch {torch.__version__}"
