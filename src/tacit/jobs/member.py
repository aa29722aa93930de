"""A client of a training run on its own machine: its rows, its model, what it remembers from round to round. All of it stays here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__, algorithms, models
from .. import data as datasets
from ..accounting import Account
from ..accounting.account import FILE
from ..algorithms.types import State
from ..algorithms.types import fresh as fresh_state
from ..data import reading, tables
from ..data.federation import Federation, Holdings, Rows
from ..errors import BadData, BadJob, BadRun, ProtocolError
from ..files import write_whole
from ..guard import Guard
from ..parameters import from_table, nearest, to_table
from ..parties.party import Party
from ..protocols import buffered, joining, rounds
from ..task import Task
from . import guarding
from .hiding import HiddenSum
from .messages import Member

log = logging.getLogger("tacit.party")
# raises BadJob where a server's job is not what this party agreed to; gives the account of its own noise, if it adds any under an ε
Agreed = Callable[[dict[str, Any], Guard | None], Account | None]
HOLDING = 5  # the stream of random numbers that decides which rows a party holds back; 0 to 4 are used where data are dealt out


async def member(me: Party, data: Mapping[str, str], state: str, model: str = "", boss: str = "server", agreed: Agreed | None = None,
                 device: str = "cpu") -> None:
    """The program of a client. `data` is {"table": a file of its own} or {"dealt": a folder `deal` wrote}; `state` a folder for what it remembers; `agreed`
    looks at the server's job and guard before anything is sent; `device` is where it trains."""
    work = Work(me.name, data, Path(state), model, agreed, device)

    async def free() -> None:
        await me.scope(joining.SCOPE).send(boss, joining.Free())

    async def play() -> None:
        await work.prepared.wait()  # a round meant for this party's last process may lie before the job: it is answered after it, and does no harm
        if work.paced:
            await buffered.client(me, work.local_beside, work.test, boss, done=free)
        else:
            await rounds.client(me, work.local, work.test, boss, look=work.look, done=free, hidden=lambda: work.hidden,
                                scores=lambda: work.scores)

    await beside(play(), joining.attend(me, boss, __version__, work.prepare))


async def beside(main: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> Any:
    """`main` to its end, with `other` running as long; if `other` fails first, its error."""
    first, second = asyncio.ensure_future(main), asyncio.ensure_future(other)
    try:
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        if second.done() and not first.done():
            second.result()
        return await first
    finally:
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


class Work:
    """What a client does for whatever job the server names."""

    def __init__(self, name: str, data: Mapping[str, str], state: Path, model: str, agreed: Agreed | None = None, device: str = "cpu"):
        self.name, self.data, self.state, self.model, self.agreed, self.device = name, data, state, model, agreed, device
        self.job = ""
        self.prepared = asyncio.Event()
        self.mine: Member | None = None
        self.hidden: HiddenSum | None = None
        self.paced = self.scores = False
        self.account: Account | None = None
        self.paid = -1  # the last round that was
        self.aside = ThreadPoolExecutor(1, "tacit-work")  # one, so that work that is not wanted any more is over before the next begins

    def prepare(self, job: str) -> joining.Ready:
        if job != self.job or self.mine is None:
            self.mine, self.memory = self._made(job)
            self.job = job
            self.prepared.set()
        fed = self.mine.fed
        return joining.Ready(int(fed.train.sizes[0]), int(fed.held.sizes[0]), list(fed.rows.x.shape[1:]), fed.classes or 0, self.mine.task.dim)

    def _made(self, text: str) -> tuple[Member, Memory]:
        job = read_job(text)
        fed = dealt(Path(self.data["dealt"])) if "dealt" in self.data else own(self.name, self.data["table"], job["data"], job["seed"])
        shape = list(fed.rows.x.shape[1:])
        if shape != job["features"] or (fed.classes or 0) != job["classes"]:
            why = (f"the rows of {self.name!r} have the shape {shape} and {fed.classes or 0} classes; the job is for {job['features']} and "
                   f"{job['classes']}. Agree on the columns and labels with whoever runs the server.")
            raise BadData(why, outside=why)
        algorithm = from_table(job["algorithm"], algorithms.ALL, "the server's job, algorithm")
        def made() -> Task:
            built = models.build(_model(self.model, job["model"]), tuple(shape), fed.classes or 1, job["seed"]).to(self.device)
            x, y = (t.to(self.device) for t in fed.at(0))
            return Task(built, x, y, "mse" if fed.classes is None else "cross_entropy", job["precision"])

        task = made()
        guard = guarding.heard(job["guard"], task, algorithm, job["seed"])
        account = None if self.agreed is None else self.agreed(job, guard)
        if account is not None and self.account is None:  # one for as long as this process lives, whatever run the server says it is
            self.state.mkdir(parents=True, exist_ok=True)
            run = hashlib.sha256(job["run"].encode()).hexdigest()[:16]
            self.account = replace(account, file=self.state / f"{run}.{FILE}")
        self.hidden = None if guard is None or guard.hiding is None else HiddenSum(guard, str(job["guard"]["federation"]))
        fresh = fresh_state(algorithm, task.initial()) | ({} if guard is None else guard.client_state())
        self.paced, self.scores = job["paced"], job["scores"]
        told = (algorithm, job["seed"], job["epochs"], job["batch_size"], job["local_steps"], guard)
        mine = Member(self.name, fed, task, *told)
        self.tester = Member(self.name, fed, made(), *told) if self.paced else mine  # it tests while it trains: two threads must not share a module
        return mine, Memory(self.state, job["run"], fresh)

    async def local_beside(self, number: int, version: int, down: State) -> tuple[float, State]:
        """On a thread of its own: meanwhile the party can be asked to test a model, or to begin anew."""
        return await asyncio.get_running_loop().run_in_executor(self.aside, self.local, version, down, number)

    def local(self, r: int, down: State, work: int | None = None) -> tuple[float, State]:
        mine = self._ready()
        self._fits(r, down, mine)
        before = {} if self.paced else self.memory.before(r)
        self._pay(r)
        weight, vectors, after = mine.local(r, down, before, work)
        if mine.guard is not None and (lost := mine.guard.events.pop("out of range", 0)):  # once in 10²² draws; never silently
            log.warning("party %r: %d numbers of round %d did not fit the range agreed with their noise, and were cut off at its ends", self.name, lost, r + 1)
        for key, value in vectors.items():
            if not torch.isfinite(value).all():
                raise BadData(f"the update of {self.name!r} in round {r + 1} holds NaN or infinity ({key}), so it is not sent. The learning rate is too large "
                              "for these rows, or a number among them is out of all proportion.")
        if not self.paced:  # which goes with algorithms that remember nothing
            self.memory.keep(r, before, after)  # before it is sent: whoever has our update must be able to rely on what we remember
        return weight, vectors

    def _pay(self, r: int) -> None:
        """Before an answer is sent, each time: one asked for again has other noise, and is another release. A hidden sum that is given up is none."""
        if self.account is None or (self.hidden is not None and r == self.paid):
            return
        if not self.account.may_spend():
            raise BadJob(f"the server asks for round {r + 1}, and {self.name!r} has answered {self.account.spent} times: once more would cost "
                         f"ε = {self.account.epsilon(self.account.spent + 1):.4g}, and it agreed to {self.account.budget:g}. Nothing more was sent.")
        self.account.spend(r + 1)
        self.paid = r

    def look(self, r: int, down: State) -> float:
        mine = self._ready()
        self._fits(r, down, mine)
        if mine.guard is not None and mine.guard.noise is not None:  # no honest server asks: such a job is refused where it is planned
            raise ProtocolError(f"the server asks {self.name!r} for its loss, which no noise covers, in a job whose guard is to add noise. Nothing was sent.")
        return mine.loss(r, down)

    def test(self, r: int, down: State) -> State:
        mine = self._ready()
        self._fits(r, down, mine)
        return self.tester.test(r, down, None if self.paced else self.memory.now)

    def _ready(self) -> Member:
        if self.mine is None:
            raise ProtocolError("the server sends a round before a job. Is it the same version of tacit?")
        return self.mine

    @staticmethod
    def _fits(r: int, down: State, mine: Member) -> None:
        w = down.get("w")
        if w is None or w.shape != (mine.task.dim,) or w.dtype != torch.float32:
            what = "no model" if w is None else f"a model of shape {tuple(w.shape)} and {w.dtype}"
            raise ProtocolError(f"the server sends {what} in round {r + 1}; {mine.name!r} has one of {mine.task.dim} float32 numbers. "
                                "Do both run the same job?")


class Memory:
    """What a client keeps between rounds (SCAFFOLD's c_k), on its own disk: as it was before the last round it answered, and after it.

    A server that goes on after a crash may ask for that round again, and must get the same answer.
    """

    def __init__(self, folder: Path, run: str, fresh: State):
        self.file, self.run, self.fresh = folder / "memory.safetensors", run, fresh
        self.round, self._before, self._after = -1, fresh, fresh
        if fresh and self.file.exists():
            self._load()

    def _load(self) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file, "pt") as f:
                said = f.metadata() or {}
                tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  # it is no dict
            if said.get("run") != self.run:
                return  # of another run, which has nothing to do with this one
            self.round = int(said["round"])
            self._before, self._after = ({k: tensors[f"{when}.{k}"].to(v.device) for k, v in self.fresh.items()} for when in ("before", "after"))
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise BadRun(f"{self.file} cannot be read: {error}. Put it back from a copy; without it this party cannot go on in this run.") from None

    def before(self, r: int) -> State:
        if r < self.round:
            raise BadRun(f"the server asks for round {r + 1} and had an answer to round {self.round + 1} already: it was set back further than one round. "
                         "Start the run anew.")
        return self._before if r == self.round else self._after

    @property
    def now(self) -> State:
        return self._after

    def keep(self, r: int, before: State, after: State) -> None:
        self.round, self._before, self._after = r, before, after
        if self.fresh:
            from safetensors.torch import save

            self.file.parent.mkdir(parents=True, exist_ok=True)
            both = {f"{when}.{k}": v.detach().cpu().clone() for when, state in (("before", before), ("after", after)) for k, v in state.items()}
            write_whole(self.file, save(both, {"run": self.run, "round": str(r)}))


JOB: dict[str, Any] = {"run": str, "model": (dict, type(None)), "algorithm": dict, "seed": int, "epochs": int, "batch_size": (int, type(None)),
                       "local_steps": (int, type(None)), "precision": str, "paced": bool, "scores": bool, "features": list, "classes": int,
                       "data": (dict, type(None)), "guard": (dict, type(None))}


def read_job(text: str) -> dict[str, Any]:
    """The server's job, every entry of the kind it must be. A server is not believed more than a file would be."""
    try:
        job = json.loads(text)
        wrong = [k for k, kind in JOB.items() if not isinstance(job[k], kind)] + [k for k in job if k not in JOB]
    except (ValueError, KeyError, TypeError) as error:
        raise BadJob(f"the server's job cannot be read: {type(error).__name__}: {error}. Do both run the same version of tacit?") from None
    if wrong:
        raise BadJob(f"the server's job has {wrong[0]!r} as nothing this party can use. Do both run the same version of tacit?")
    return job


def specified(model: Any, who: str) -> str:
    """How a process on this machine finds a model that is code; empty for one of tacit's own, which the job's table names."""
    from ..runtimes.processes import specification

    return "" if isinstance(model, str) or type(model) in models.ALL.values() else json.dumps(specification(model, f"{who}, as its model,"))


def task_of(said: Mapping[str, Any], rows: Rows) -> Task:
    """The model a job names, on these rows; `spec` is what `specified` gave."""
    built = models.build(_model(said["spec"], said["model"]), tuple(said["features"]), said["classes"] or 1, said["seed"])
    return Task(built, *rows, "mse" if said["classes"] is None else "cross_entropy", said["precision"])


def _model(own_one: str, told: Any) -> Any:
    """A model of tacit's own, by its table. A function that makes one is taken from this machine's own configuration only, never from the server."""
    if own_one:
        from ..runtimes.nursery import found

        return found(json.loads(own_one))
    if told is None:
        raise BadJob("the job's model is code, which a server cannot send. Use one of tacit's own models.")
    return from_table(told, models.ALL, "the server's job, model")


# --- rows ------------------------------------------------------------------------------------------------------------------------------


def deal(fed: Federation, k: int, folder: Path) -> None:
    """Write party k's rows into a folder, for a process that may have these and no others."""
    from safetensors.torch import save

    mine = fed.party(k)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "rows.safetensors", save({"x": mine.rows.x.contiguous(), "y": mine.rows.y.contiguous(), "train": mine.train.index.contiguous(),
                                                   "held": mine.held.index.contiguous()}))
    write_whole(folder / "rows.json", json.dumps({"name": mine.name, "party": mine.parties[0], "classes": mine.classes, "seed": mine.seed,
                                                  "skew": None if mine.skew is None else to_table(mine.skew), "columns": mine.columns, "labels": mine.labels}))


def dealt(folder: Path) -> Federation:
    from safetensors.torch import load_file

    t, said = load_file(folder / "rows.safetensors"), json.loads((folder / "rows.json").read_text())
    skew = None if said["skew"] is None else from_table(said["skew"], datasets.SKEWS, "skew")
    rows = Rows(t["x"], t["y"])
    return Federation(said["name"], rows, Holdings.from_lists([t["train"]]), Holdings.from_lists([t["held"]]), Rows(rows.x[:0], rows.y[:0]), said["classes"],
                      (said["party"],), skew, said["seed"], tuple(said["columns"]), tuple(said["labels"]))


def own(name: str, path: str | os.PathLike[str], layout: Mapping[str, Any] | None, seed: int) -> Federation:
    """A party's own file, encoded as all parties agreed: columns, categories and labels are the job's, means and deviations its own."""
    if layout is None:
        raise BadJob("the job does not say which columns the parties' files have. Its [data] needs label, numbers and categories.")
    recipe, label, labels, fraction = read_layout(layout)
    file = Path(path)
    frame = reading.read_parquet(file) if file.suffix in (".parquet", ".pq") else reading.read_csv(file, ",")
    known = [str(c) for c in frame.columns]
    if label not in known:
        raise BadData(f"{file}: there is no column {label!r}, the label of this job. {nearest(label, known)}", outside=f"its file has no column {label!r}")
    if not len(frame):
        raise BadData(f"{file}: the table has no rows.")
    try:
        x = recipe.lay_out(frame)
    except BadData as error:
        absent = [c for c in (*recipe.numbers, *recipe.categories, *recipe.missing) if c not in known]
        raise BadData(f"{file}: {error}", outside=f"its file has no column {absent[0]!r}" if absent else error.outside) from None
    values = tables._target(str(file), label, frame[label], labels is None)
    if labels is None:
        y = torch.from_numpy(values.astype(np.float32))
    else:
        place = {text: i for i, text in enumerate(labels)}
        strange = sorted({str(v) for v in values.tolist()} - set(place))
        if strange:
            raise BadData(f"{file}: the label {label!r} has the value {strange[0]!r}, which this job does not know. Known: {', '.join(labels)}.",
                          outside=f"its label {label!r} has a value that this job does not know")
        y = torch.tensor([place[str(v)] for v in values.tolist()], dtype=torch.int64)
    order = torch.from_numpy(np.random.default_rng([seed, HOLDING]).permutation(len(y)))
    held = min(max(round(fraction * len(y)), 1 if fraction and len(y) > 1 else 0), len(y) - 1)
    train = order[held:]
    x = recipe.applied(x, *recipe.statistics(x[train], torch.zeros(len(train), dtype=torch.int64), 1), torch.zeros(len(y), dtype=torch.int64))
    return Federation(file.name, Rows(x, y), Holdings.from_lists([train]), Holdings.from_lists([order[:held]]), Rows(x[:0], y[:0]),
                      None if labels is None else len(labels), (name,), None, seed, recipe.columns, tuple(labels or ()))


LAYOUT = ("label", "labels", "numbers", "categories", "missing", "held_fraction")


def read_layout(table: Mapping[str, Any]) -> tuple[tables.Recipe, str, list[str] | None, float]:
    """(recipe, label, its values or None for a regression, the share held back) of a job's [data]."""
    for key in table:
        if key not in LAYOUT:
            raise BadJob(f"[data] of a job for real parties has no {key!r}: it says what columns each party's own file has. {nearest(key, list(LAYOUT))}")

    def texts(key: str) -> list[str]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value) or len(set(value)) < len(value):
            raise BadJob(f"[data]: {key} is {value!r}; it must be a list of different texts.")
        return value

    label, fraction = table.get("label"), table.get("held_fraction", 0.1)
    if not isinstance(label, str) or not label:
        raise BadJob(f"[data]: label is {label!r}; it must be the column to predict, in quotes.")
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise BadJob(f"[data]: held_fraction is {fraction!r}; it must be a number at least 0 and below 1.")
    kinds = table.get("categories", {})
    if not isinstance(kinds, dict) or not all(isinstance(v, list) and v and all(isinstance(t, str) for t in v) for v in kinds.values()):
        raise BadJob(f"[data]: categories is {kinds!r}; it must be a table: a column, and the list of its values.")
    recipe = tables.Recipe(tuple(texts("numbers")), {k: tuple(v) for k, v in kinds.items()}, tuple(texts("missing")))
    if not recipe.columns:
        raise BadJob("[data]: there are neither numbers nor categories, so there is nothing to learn from. Name the columns.")
    labels = texts("labels") if "labels" in table else None
    if labels is not None and len(labels) < 2:
        raise BadJob(f"[data]: labels is {labels!r}; it must name at least two, or be left out for a regression.")
    return recipe, label, labels, float(fraction)
