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

from ... import algorithms
from ...data.federation import Dataset, Federation, Holdings, Rows
from ...engine.evaluation import reported_rows
from ...engine.stacking import can_share_stack
from ...errors import BadJob, BadParameter
from ...parameters import bad
from ...runs import load_stack, save_stack
from ...runtimes.cohort import Cohort
from ..compare import _central
from ..train.plan import Plan, make_plan, make_task
from ..train.train import _numbers
from .file import Cell, Study
from .store import Store
from .table import DIGITS, figures, finished

SAVE_EVERY = 20.0  # seconds between two saved states: going on costs at most that much again
LOOK_EVERY = (
    10  # rounds between two looks at who has reached the target: looking makes the CPU wait for the GPU
)
LEAVE = 0.25  # of a stack's runs must be done before the rest is stacked anew, which takes a second


def study(
    asked: Study, out: str | Path, *, only: str = "", say: Callable[[str], None] = lambda text: None
) -> Store:
    """Run what is not done yet. `only` is a regular expression, and keeps to cells in whose name it is
    found.
    """
    try:
        left = [c for c in asked.cells if re.search(only, c.id)]
    except re.error as error:
        raise BadJob(
            str(bad("study", "only", only, "a regular expression", f"It is none: {error}."))
        ) from None
    if not left:
        raise BadJob(f"no cell of {asked.name} has {only!r} in its name. The first is {asked.cells[0].id!r}.")
    store = Store(out, asked)
    done = store.done()
    left = [c for c in left if c.id not in done]
    say(f"{asked.name}: {len(asked.cells)} runs, {len(done)} of them done")
    rows = _Data()
    plans = [(c, _plan(c, rows)) for c in left]
    for group in _stacks(plans):
        for part, state in _begun(group, store):
            _run([c for c, _ in part], [p for _, p in part], state, store, _Race(asked, store.lines()), say)
    lines = store.lines()  # a part of a study may run beside other parts, so only the whole is timed
    if (
        not only
        and torch.cuda.is_available()
        and any(x.get("on") == "cuda" for x in lines)
        and not any(x.get("kind") == "loop" for x in lines)
    ):
        walking = next(
            (
                p
                for c in asked.cells
                if (p := _plan(c, rows)).batch_size is not None and p.algorithm.takes_steps
            ),
            None,
        )
        if walking is not None:
            store.add(loop(walking))
    return store


class _Data:
    """Data sets and federations, each made once."""

    def __init__(self) -> None:
        self.sets: dict[str, Dataset] = {}
        self.feds: dict[str, Federation] = {}

    def of(self, cell: Cell) -> Federation:
        fed = self._of(cell.job, cell)
        if cell.tested_as is None:
            return fed
        name = json.dumps([id(fed), cell.tested_as.data], sort_keys=True)
        if name not in self.feds:
            self.feds[name] = dataclasses.replace(fed, test=self._of(cell.tested_as, cell).test)
        return self.feds[name]

    def _of(self, job: Any, cell: Cell) -> Federation:
        import inspect

        from ... import data

        make = data.ALL.get(job.data.get("name"))
        takes = inspect.signature(make).parameters if make is not None else job.data
        own = json.dumps(
            [
                {k: v for k, v in job.data.items() if k in takes or k in ("name", "path")},
                cell.rows,
                cell.test_rows,
            ],
            sort_keys=True,
        )
        if own not in self.sets:
            self.sets[own] = _part(job.dataset(), cell.rows, cell.test_rows)
        name = own + json.dumps([job.data, [repr(s) for s in job.skews]], sort_keys=True)
        if name not in self.feds:
            (self.feds[name],) = job.federations(self.sets[own])
        return self.feds[name]


def _part(whole: Dataset, rows: int | None, test_rows: int | None) -> Dataset:
    """Only so many rows, chosen at random but always the same ones."""

    def some(
        r: Rows, groups: dict[str, np.ndarray], n: int | None, stream: int
    ) -> tuple[Rows, dict[str, np.ndarray]]:
        if n is None or n >= len(r.y):
            return r, groups
        index = np.sort(np.random.default_rng([0, stream]).permutation(len(r.y))[:n])
        return Rows(*(t[torch.from_numpy(index)] for t in r)), {k: v[index] for k, v in groups.items()}

    if rows is None and test_rows is None:
        return whole
    if whole.table is not None:
        raise BadJob(
            f"data: rows and test_rows keep a part of a data set of arrays; {whole.name} is a table. Leave "
            "them out."
        )
    (kept, groups), (tested, test_groups) = (
        some(whole.rows, whole.groups, rows, 11),
        some(whole.test, whole.test_groups, test_rows, 12),
    )
    return dataclasses.replace(whole, rows=kept, test=tested, groups=groups, test_groups=test_groups)


def _plan(cell: Cell, rows: _Data) -> Plan:
    told = {k: v for k, v in cell.job.train().items() if k != "data_job"}
    told.setdefault("device", "auto")
    fed, where = rows.of(cell), f"{cell.job.file}, row {cell.row!r}"
    if fed.classes is None:
        raise BadJob(
            f"{where}: a study shows accuracies, and {fed.name} has numbers to predict. Use `tacit compare`."
        )
    try:
        p = make_plan(fed, **told, label=cell.row, skew=cell.column)
    except BadParameter as error:
        raise BadJob(f"{where}: {error}") from None
    if not cell.baseline:
        return p
    kind, _, which = cell.baseline.partition(" ")
    if kind == "central" and not which:
        return _central(p, p.algorithm)
    if kind == "alone" and which.isdigit() and int(which) < len(p.fed):
        k = int(which)  # by itself it has nobody else's rows to pick a round by
        own = dataclasses.replace(
            fed, held=Holdings.from_lists([fed.held.of(j)[: None if j == k else 0] for j in range(len(fed))])
        )
        return dataclasses.replace(p, fed=own, per_round=1, members=(k,))
    raise BadJob(
        str(bad(where, "baseline", cell.baseline, f"'central', or 'alone 0' to 'alone {len(p.fed) - 1}'"))
    )


def _stacks(plans: list[tuple[Cell, Plan]]) -> list[list[tuple[Cell, Plan]]]:
    """Runs that share a model, a length and batches, and whose algorithms differ in plain numbers only.

    FedAvg is FedProx with μ = 0, to the bit; where there is FedProx to be stacked with, it runs as that.
    """

    def shape(p: Plan) -> Any:
        return (
            repr(p.model),
            tuple(p.fed.rows.x.shape[1:]),
            p.fed.classes,
            p.rounds,
            p.batch_size,
            p.local_steps,
            p.evaluate_every,
            p.device,
            p.precision,
            p.engine,
        )

    def leashed(a: Any) -> Any:
        plain = type(a) is algorithms.FedAvg and a.option == "II" and a.server_lr == 1
        return algorithms.FedProx(lr=a.lr, mu=0.0, weighted=a.weighted, solver=a.solver) if plain else a

    groups: list[list[tuple[Cell, Plan]]] = []
    for cell, p in plans:
        for group in groups:
            q = group[0][1]
            if shape(p) == shape(q) and can_share_stack(leashed(p.algorithm), leashed(q.algorithm)):
                group.append((cell, p))
                break
        else:
            groups.append([(cell, p)])
    return [
        [(c, dataclasses.replace(p, algorithm=leashed(p.algorithm))) for c, p in group]
        if any(type(p.algorithm) is algorithms.FedProx for _, p in group)
        else group
        for group in groups
    ]


def _begun(
    group: list[tuple[Cell, Plan]], store: Store
) -> Iterator[tuple[list[tuple[Cell, Plan]], Path | None]]:
    """Runs that were under way go on together, whoever has left their stack since or was in it besides; the
    others begin.
    """
    for state, names in store.saved():
        if part := [(c, p) for c, p in group if c.id in names]:
            group = [(c, p) for c, p in group if c.id not in names]
            yield part, state
    if group:
        yield group, None


class _Stack:
    """Runs side by side, and what is known of them so far."""

    def __init__(self, cells: list[Cell], plans: list[Plan]):
        self.cells, self.plans = cells, plans
        task = make_task(plans[0])
        starts = {
            p.seed: task.initial() if p.seed == plans[0].seed else make_task(p).initial()
            for p in {q.seed: q for q in plans}.values()
        }
        self.cohort = Cohort(task, [starts[p.seed] for p in plans], [p.run() for p in plans], plans[0].engine)
        self.rounds: list[int] = []
        self.right: list[
            Tensor
            # [2, R] for each tested round: how many of the test rows and of the held-out rows a run gets
            # right;
            # −1: it diverged
        ] = []
        self.samples = np.zeros(len(plans), dtype=np.int64)
        self.held = {(id(p.fed), p.min_rows): reported_rows(p.fed, p.min_rows) for p in plans}
        asked = {
            (id(p.fed), p.min_rows): [
                int((y >= 0).sum()) for y in (p.fed.test.y, p.fed.rows.y[self.held[id(p.fed), p.min_rows]])
            ]
            for p in plans
        }  # every label counts, and a row of tokens has many
        self.asked = np.array([asked[id(p.fed), p.min_rows] for p in plans], dtype=float).T
        device = self.cohort.device
        self.tests: dict[int, tuple[Tensor, Tensor]] = {}
        for p in plans:
            if id(p.fed.test.x) not in self.tests:
                self.tests[id(p.fed.test.x)] = p.fed.test.x.to(device), p.fed.test.y.to(device)

    def play(self, r: int, test: bool) -> None:
        chosen = self.cohort.round(r)
        for i, (p, who) in enumerate(zip(self.plans, chosen)):
            sizes = p.fed.train.sizes.numpy()[who]
            if p.local_steps is None:
                self.samples[i] += (
                    int((sizes * np.array(p.local_epochs)[who]).sum())
                    if p.algorithm.takes_steps
                    else int(sizes.sum())
                )
            else:
                self.samples[i] += int(p.local_steps * np.minimum(sizes, p.batch_size or sizes).sum())
        if test:
            self.rounds.append(r + 1)
            right = torch.stack([self._right(self._tests(r + 1)), self._right(self._held())])
            self.right.append(torch.where(torch.isfinite(self.cohort.w).all(dim=1), right, -1))

    def _tests(self, number: int) -> list[tuple[Tensor, Tensor]]:
        """Each run's test rows as they are in this round; their labels may have drifted, by the run's own
        seed.
        """
        now = [p.fed.test_at(number) for p in self.plans]
        made: dict[int, tuple[Tensor, Tensor]] = {}
        for p, rows in zip(self.plans, now):
            if id(rows) not in made:
                x, y = self.tests[id(p.fed.test.x)]
                made[id(rows)] = (x, y) if rows.y is p.fed.test.y else (x, rows.y.to(self.cohort.device))
        return [made[id(rows)] for rows in now]

    def _held(self) -> list[tuple[Tensor, Tensor]]:
        """Each run's held-out rows, of parties with at least `min_rows` of them, gathered once for the runs
        that share a federation.
        """
        task, made = self.cohort.task, {}
        for p, at in zip(self.plans, self.cohort.offset):
            if (key := (id(p.fed), p.min_rows)) not in made:
                index = (self.held[key] + at).to(self.cohort.device)
                made[key] = task.x[index], task.y[index]
        return [made[id(p.fed), p.min_rows] for p in self.plans]

    def _right(self, rows: list[tuple[Tensor, Tensor]]) -> Tensor:
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
            else:
                out[at] = torch.stack(
                    [
                        (
                            cohort.task.predict(
                                cohort.w[i], x, None if cohort.buffers is None else cohort.buffers[i]
                            ).argmax(-1)
                            == y
                        ).sum()
                        for i in group
                    ]
                )
        return out

    def curves(self) -> np.ndarray:
        """[2, R, tested rounds]: accuracy on the test rows and on the held-out rows; NaN where there are
        none, or the model is no longer finite.
        """
        right = (
            torch.stack(self.right, -1).cpu().numpy().astype(float)
            if self.right
            else np.zeros((2, len(self.plans), 0))
        )
        return np.where(right < 0, np.nan, right) / np.where(self.asked > 0, self.asked, np.nan)[:, :, None]

    def keep(self, which: list[int]) -> _Stack:
        """The same, with these runs alone."""
        made = _Stack([self.cells[i] for i in which], [self.plans[i] for i in which])
        made.cohort.load([self.cohort.save(i) for i in which])
        at = torch.tensor(which, device=self.cohort.device)
        made.rounds, made.right, made.samples = (
            list(self.rounds),
            [r[:, at] for r in self.right],
            self.samples[which],
        )
        return made

    def save(self, path: Path, began: int) -> None:
        save_stack(
            path,
            [self.cohort.save(i) for i in range(len(self.plans))],
            {"round": began, "rounds": self.rounds, "cells": [c.id for c in self.cells]},
            right=torch.stack(self.right).cpu() if self.right else torch.zeros(0),
            samples=torch.from_numpy(self.samples),
        )


def _restored(state: Path | None, cells: list[Cell], plans: list[Plan]) -> tuple[_Stack, int]:
    """These runs as they were saved, or from their beginning, and the round that comes next."""
    stack = _Stack(cells, plans)
    if state is None:
        return stack, 0
    states, note, counted = load_stack(state)
    at = [note["cells"].index(c.id) for c in cells]
    stack.cohort.load([states[i] for i in at])
    stack.rounds, stack.samples = note["rounds"], counted["samples"].numpy()[at]
    stack.right = list(counted["right"][..., at].to(stack.cohort.device)) if stack.rounds else []
    return stack, note["round"]


class _Race:
    """Who has reached the target of its table. Of several values tried for one cell only the first to arrive
    is shown, so the others may stop there; with several seeds they go on, because the mean over the seeds
    decides.
    """

    def __init__(self, asked: Study, lines: Sequence[dict[str, Any]]):
        self.targets = {
            t.name: t.target for t in asked.tables if t.figure == "rounds" and t.target is not None
        }
        self.tried_once = asked.single
        self.fewest: dict[tuple[str, str, str], int] = {}
        for line in finished(asked, lines):
            self._arrived(
                (line["table"], line["row"], line["column"]),
                figures(line, self.targets.get(line["table"]))["rounds"],
            )

    def _arrived(self, place: tuple[str, str, str], first: int | None) -> bool:
        if first is not None:
            self.fewest[place] = min(first, self.fewest.get(place, first))
        return first is not None

    def over(self, cells: list[Cell], rounds: list[int], test: np.ndarray) -> list[int]:
        """Which of these runs need not go on, by what they have reached in the rounds tested so far, [runs,
        tested rounds].
        """
        first = [
            next((r for r, t in zip(rounds, mine) if t >= self.targets.get(c.table, np.inf)), None)
            for c, mine in zip(cells, test)
        ]
        there = [self._arrived(c.place, r) for c, r in zip(cells, first)]
        return [
            i
            for i, c in enumerate(cells)
            if there[i]
            or (c.place in self.tried_once and rounds and self.fewest.get(c.place, np.inf) <= rounds[-1])
        ]


def _run(
    cells: list[Cell],
    plans: list[Plan],
    state: Path | None,
    store: Store,
    race: _Race,
    say: Callable[[str], None],
) -> None:
    path, first = store.state(cells), plans[0]
    with _numbers(first):
        clock, begun = time.monotonic(), time.monotonic()
        stack, start = _restored(state, cells, plans)
        store.begin()
        say(
            first.label
            + (f" and {len(cells) - 1} more" if len(cells) > 1 else "")
            + f", {first.rounds} rounds, clients "
            + ("stacked" if stack.cohort.engine == "stack" else "one by one")
            + (f", from round {start}" if start else "")
        )
        for r in range(start, first.rounds):
            stack.play(
                r,
                r + 1 == first.rounds or (bool(first.evaluate_every) and (r + 1) % first.evaluate_every == 0),
            )
            if race.targets and (r + 1) % LOOK_EVERY == 0 and r + 1 < first.rounds:
                stack, written = _leave(stack, race, store)
                if written and not stack.cells:
                    break
            if time.monotonic() - clock > SAVE_EVERY and r + 1 < first.rounds:
                with store.writing():
                    stack.save(path, r + 1)
                _spent(store, stack, cells, time.monotonic() - begun, first)
                clock = begun = time.monotonic()
        if stack.cells:
            _write(stack, range(len(stack.cells)), store)
        _spent(store, stack, cells, time.monotonic() - begun, first)
    store.forget()


def _leave(stack: _Stack, race: _Race, store: Store) -> tuple[_Stack, int]:
    """Runs that are over leave, once enough are to be worth it."""
    there = race.over(stack.cells, stack.rounds, stack.curves()[0])
    if len(there) < LEAVE * len(stack.cells):
        return stack, 0
    _write(stack, there, store)
    rest = [i for i in range(len(stack.cells)) if i not in there]
    if rest:
        return stack.keep(rest), len(there)
    stack.cells = []
    return stack, len(there)


def _write(stack: _Stack, which: Sequence[int], store: Store) -> None:
    test, held = stack.curves()
    whole = torch.isfinite(stack.cohort.w).all(dim=1).cpu()
    for i in which:
        c, p = stack.cells[i], stack.plans[i]
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
                "diverged": not bool(whole[i]),
                "notes": list(p.fed.notes),
            }
        )


def _spent(store: Store, stack: _Stack, cells: list[Cell], seconds: float, p: Plan) -> None:
    store.add(
        {
            "kind": "stack",
            "on": p.device.partition(":")[0],
            "cells": len(cells),
            "label": p.label,
            "seconds": round(seconds, 2),
            "engine": stack.cohort.engine,
            "device": machine(p.device),
            "precision": "float32" if p.device == "cpu" and p.precision == "tf32" else p.precision,
            "clients": sum(r.per_round for r in stack.cohort.runs),
        }
    )


def loop(p: Plan, steps: int = 60) -> dict[str, Any]:
    """How fast one client at a time goes on this device: a piece of two rounds of `steps` steps a client, the
    first to warm up.
    """
    piece = dataclasses.replace(p, local_steps=steps, engine="each")

    def idle() -> float:
        if p.device != "cpu":
            torch.cuda.synchronize(p.device)
        return time.monotonic()

    with _numbers(p):
        task = make_task(piece)
        cohort = Cohort(task, [task.initial()], [piece.run()], "each")
        cohort.round(0)
        began = idle()
        (chosen,) = cohort.round(1)
        seconds = idle() - began
    sizes = p.fed.train.sizes.numpy()[chosen]
    rows = np.minimum(sizes, p.batch_size or sizes.max())
    return {
        "kind": "loop",
        "samples": int(steps * rows.sum()),
        "seconds": seconds,
        "device": machine(p.device),
    }


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return f"one {torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, torch {torch.__version__}"
