"""tacit.train: one model across the parties of a federation."""

from __future__ import annotations

import hashlib
import math
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from ... import __version__, models
from ...algorithms.types import State
from ...config import conflicts
from ...config.signature import with_options
from ...config.train import OPTIONS
from ...data.federation import Federation
from ...engine.metrics import is_better, judged_by
from ...engine.task import Task
from ...errors import BadRun, BudgetSpent
from ...guard import Guard, Noise
from ...parameters import bad
from ...parties.ledger import Ledger, Spend
from ...parties.secret import NOT_PRIVATE
from ...release.release import Release, write_release
from ...results import Result
from ...runs import (
    RESTART_HINT,
    Event,
    Journal,
    SaveTimer,
    check_unused,
    decode_nonfinite,
    encode_nonfinite,
    load_stack,
    load_state,
    save_stack,
    versions,
)
from ...topologies import Gossip, Hierarchy
from ..devices import placed
from . import guards, paced
from .plan import Plan, make_plan, prepare_stack
from .preparing import record_label_counts, record_sums, simulated_program
from .simulated import SimulatedTrainer, all_parties
from .stopping import EarlyStopping, without_best
from .table_defaults import L2_ROWS
from .trainer import PENDING, RoundRecord, RunContext, Trainer

if TYPE_CHECKING:
    from ...config.types import TrainOptions

# with more parties than this, each party's accuracy is kept for the last round only, to save memory
EACH = 1000
ENCODED = (
    "ε does not cover the statistics by which the table was encoded, which are exact. Give fit_epsilon, "
    "declare mean and std (fit=data.Recipe(…)), or use fit='none' if that matters."
)
# entries of an evaluation that are kept for the model of the run only
DETAILS = ("confusion", "calibration", "curve", "subgroups")


@with_options(OPTIONS)
def train(
    fed: Federation,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    **options: Unpack[TrainOptions],
) -> Result:
    """Train one model across the parties of a federation.

    The run is kept in the directory `out`, or in memory; `resume` continues a run that was stopped.
    `watch` is called with every event of the run. `data_job` is the [data] table to keep in the run's job
    file.

    A guard that hides updates leaves only metrics of all parties together. With `pace`, a round is a new
    version of the model; with `speed`, every round has a time on a virtual clock.
    """
    p = make_plan(fed, **options)
    if out is not None and not isinstance(out, str | Path):
        raise bad("train", "out", out, "a directory for the run, or None (keep it in memory)")
    if resume and out is None:
        raise bad("train", "out", out, "the directory of the run to resume", "Or leave out resume.")
    if resume:
        conflicts.check_resume(p)
    return train_side_by_side([p], [out], resume=resume, data_jobs=[data_job], watch=watch)[0]


def train_side_by_side(
    plans: list[Plan],
    outs: Sequence[str | Path | None],
    *,
    resume: bool = False,
    data_jobs: Sequence[dict[str, Any] | None] | None = None,
    watch: Callable[[Event], None] | None = None,
    together: Path | None = None,
) -> list[Result]:
    """Train runs that share a model and an algorithm as one stack; each gets the result it would get alone.

    Several runs are resumed from the file `together`, in which the stack was saved as a whole.
    """
    jobs = [p.job(d) for p, d in zip(plans, data_jobs or [None] * len(plans))]
    with torch_settings(plans[0]), closing(_Training(plans, outs, jobs, watch, together)) as training:
        training.open(resume)
        training.run()
        return training.finish()


class _Training:
    """Runs side by side, from their plans to their results: reads a trainer's records, writes journals."""

    def __init__(
        self,
        plans: list[Plan],
        outs: Sequence[str | Path | None],
        jobs: list[dict[str, Any]],
        watch: Callable[[Event], None] | None,
        together: Path | None,
    ):
        self.plans, self.jobs, self.watch, self.together = plans, jobs, watch, together
        self.directories = [None if out is None else Path(out) for out in outs]
        self.first = plans[0]
        self.task, self.starts = prepare_stack(plans)
        self.journals: list[Journal] = []
        self.timer = SaveTimer()
        self.stopping = [EarlyStopping(p) for p in plans]
        self.ended: list[int | None] = [None] * len(plans)  # the round after which early stopping ended a run
        self.final: list[State] = [{}] * len(
            plans
        )  # the state of a run that ended before others of its stack

    def close(self) -> None:
        for journal in self.journals:
            journal.close()

    # before the first round ---------------------------------------------------------------------------------

    def open(self, resume: bool) -> None:
        """Make the trainer and the journals. What a trainer refuses leaves nothing behind."""
        states: list[State] = []
        metadata: dict[str, Any] = {}
        if resume:
            states, metadata = self._reopen() if self.together is None else self._rewind_stack(self.together)
        else:
            for out in filter(None, self.directories):  # all of them first: a refusal writes nothing
                check_unused(out)
        for stopping, journal, state in zip(self.stopping, self.journals, states):
            stopping.restore(journal.events, state)
        context = RunContext(
            self._spend,
            self._spend_evaluation,
            self._note,
            self.directories[0],
            [without_best(state) for state in states],
            metadata,
            lambda: (
                self._model(0),
                _last_metrics(self.journals[0].events, self.first.metric, self.stopping[0].round),
            ),
        )
        self.trainer = trainer_class(self.first)(self.task, self.starts, self.plans, context)
        if not resume:
            for directory, job in zip(self.directories, self.jobs):
                self.journals.append(Journal.create(directory, job, self.watch))
            for i, journal in enumerate(self.journals):
                if journal.directory is not None:
                    write_release(journal.directory, self._release(i))
        self.start_round: int = metadata.get("round", 0)
        if not self.start_round:
            self._write_start()
        self._open_accounts(context.pending is not None)

    def _reopen(self) -> tuple[list[State], dict[str, Any]]:
        """Reopen the journal of one run that was stopped; return its state, and what was saved with it."""
        (directory,), (job,) = self.directories, self.jobs
        assert directory is not None
        _check_same_job(directory, job)
        prints = fingerprints(self.first, self.starts[0], self.task)
        journal, state, metadata = Journal.resume(
            directory, self.watch, lambda events: _check_same_inputs(directory, events, prints)
        )
        self.journals.append(journal)
        return [] if state is None else [state], metadata or {}

    def _rewind_stack(self, together: Path) -> tuple[list[State], dict[str, Any]]:
        """Reopen the journals of a stack that was stopped, at the moment at which it was saved as a whole."""
        for directory, job in zip(self.directories, self.jobs):
            if directory is not None and (directory / "job.toml").exists():
                _check_same_job(directory, job)
        states: list[Any] = [None] * len(self.plans)
        metadata: dict[str, Any] = {}
        if together.exists():
            states, metadata, _ = load_stack(together)
        for i, (directory, job, p) in enumerate(zip(self.directories, self.jobs, self.plans)):
            events: Any = metadata["events"][i] if metadata else 0  # their number; in memory, they themselves
            if directory is None:
                self.journals.append(Journal(None, self.watch))
                self.journals[i].events = [decode_nonfinite(e) for e in (events if metadata else ())]
            elif not events and not (directory / "job.toml").exists():
                self.journals.append(Journal.create(directory, job, self.watch))
            else:
                check = partial(_check_same_inputs, directory, now=fingerprints(p, self.starts[i], self.task))
                self.journals.append(Journal.rewind(directory, events, self.watch, check))
                states[i] = states[i] or (load_state(directory)[0] if events else None)
        return states if all(s is not None for s in states) else [], metadata

    def _write_start(self) -> None:
        for i, (p, journal) in enumerate(zip(self.plans, self.journals)):
            spends = p.private is not None or any(isinstance(s, Noise) for s in p.guard)
            journal.event(
                "start",
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                tacit=__version__,
                versions=versions(__version__),
                label=p.label,
                skew=p.skew,
                seed=p.seed,
                runtime=self.trainer.name,
                device=p.device,
                rounds=p.rounds,
                **({} if p.metric is None else {"metric": p.metric}),
                effective_update=p.effective_update,
                fingerprints=fingerprints(p, self.starts[i], self.task)
                if self.directories[i] is not None and p.private is None
                else {},
                model={"name": models.name_of(p.model), "parameters": self.task.dim},
                federation=p.fed.outline() if spends else p.fed.summary(),  # ε does not cover exact counts
            )
            for kind, entries in self.trainer.start_events.items():
                journal.event(kind, **entries)
            for note in (*p.fed.notes, *self.trainer.notes, *_describe_preset(p)):
                journal.event("note", text=note)

    # privacy accounts ---------------------------------------------------------------------------------------

    def _open_accounts(self, is_pending: bool) -> None:
        """Open the accounts of runs with noise, which say after which round the budget ends them."""
        fitted: list[Guard | None] = [*self.trainer.guards] or [None] * len(self.plans)
        self.accounts = [
            guards.account(p, guard, journal.directory, p.rounds - self.start_round)
            for p, guard, journal in zip(self.plans, fitted, self.journals)
        ]
        self.last, self.evaluation_releases = self.first.rounds, []
        for p, guard, account in zip(self.plans, fitted, self.accounts):
            if account is not None and guard is not None:
                self.last = min(self.last, guards.last_round(p, guard, account, self.start_round, is_pending))
                self.evaluation_releases.append((account, guards.evaluation_release(p, guard)))

    def _spend(self, r: int) -> None:
        for account in self.accounts:
            if account is not None:
                account.spend(r + 1)

    def _spend_evaluation(self, r: int) -> bool:
        """Charge one more evaluation, if the budget has room. One that a crash lost is paid for twice."""
        try:
            for account, release in self.evaluation_releases:
                if release is not None:
                    account.spend(r, release)
        except BudgetSpent as error:
            self._note(f"the model of round {r} is not evaluated: {error}")
            return False
        return True

    # rounds -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the last round, unless the run that is resumed had ended."""
        for i, journal in enumerate(self.journals):
            if self.stopping[i].is_over:  # before the run was resumed
                self.ended[i] = max(e["round"] for e in journal.events if e["kind"] == "round")
                self.final[i] = self.trainer.save(i)
        if any(e["kind"] == "end" for e in self.journals[0].events):
            return
        if None not in self.ended:  # stopped early, and killed before the parties were told
            self.trainer.stop()
        clock = time.perf_counter()
        with closing(self.trainer.run(range(self.start_round, self.last))) as rounds:
            for records in rounds:
                if not records[0].is_complete:
                    self._save_pending(records[0])
                    continue
                running = [i for i, end in enumerate(self.ended) if end is None]
                seconds, clock = (time.perf_counter() - clock) / len(running), time.perf_counter()
                for i in running:
                    self._write_round(i, records[i], seconds)
                if None not in self.ended:
                    self.trainer.stop()
                self._save_stack(records[0].round)
        if self.last < self.first.rounds:
            for journal in self.journals:
                journal.event("note", text=guards.explain_stop(self.accounts, self.last, self.first.rounds))

    def _write_round(self, i: int, record: RoundRecord, seconds: float) -> None:
        p, journal, account, r = self.plans[i], self.journals[i], self.accounts[i], record.round
        event = record.event()
        if len(p.fed) > EACH and r != self.last:
            event.pop("parties", None)
        if r != self.last and p.patience is None:  # with early stopping, any round may be the best
            event = {k: v for k, v in event.items() if k not in DETAILS}
        if account is not None and r:
            event["epsilon"] = account.epsilon()
        journal.event("round", **event, seconds=seconds)
        # only where the model was evaluated: asking a GPU in every round would make it wait
        if not math.isfinite(event.get("loss", 0.0)):
            _note_divergence(journal, p, r)
        if "untested" in event and "loss" not in event:
            _note_no_test_rows(journal, p)
        self.stopping[i].observe(event, lambda: self._trainer_model(i))
        if self.stopping[i].is_over:
            self.ended[i], self.final[i] = r, self.trainer.save(i)
        if r and self.together is None:
            is_last = r == self.last or self.ended[i] is not None
            self._save(i, r, force=is_last or self.trainer.saves_every_round)

    def _trainer_model(self, i: int) -> State:
        buffers = self.trainer.buffers
        return {"w": self.trainer.weights[i]} | ({} if buffers is None else {"buffers": buffers[i]})

    def _model(self, i: int) -> State:
        """Return the model of run i: the trainer's, or with early stopping the best evaluated one."""
        return placed(self.trainer.weights.device, self.stopping[i].state) or self._trainer_model(i)

    def _last_round(self, i: int) -> int:
        end = self.ended[i]
        return self.last if end is None else end

    def _state(self, i: int) -> State:
        """Return what run i needs to resume: the trainer's state, and the best model so far."""
        state = self.trainer.save(i) if self.ended[i] is None else self.final[i]
        return {**state, **self.stopping[i].saved()} if state else state

    def _save(self, i: int, r: int, force: bool) -> None:
        self.journals[i].save(r, lambda: self._state(i), self.trainer.checkpoint_metadata, force=force)

    def _save_pending(self, record: RoundRecord) -> None:
        """Write a merged model to disk before parties see it: they evaluate it next."""
        self.journals[0].save(
            record.round,
            lambda: self._state(0),
            lambda: {**self.trainer.checkpoint_metadata(), PENDING: record.to_dict()},
            force=True,
        )

    def _save_stack(self, r: int) -> None:
        if not r or self.together is None or not (r == self.last or self.timer.is_due):
            return
        with self.timer.measure():
            self._write_stack(r, [self._state(i) for i in range(len(self.plans))])
            for i in range(len(self.plans)):  # after the stack: no run's own state is ahead of the others'
                self._save(i, r, force=True)

    def _write_stack(self, r: int, states: list[State]) -> None:
        assert self.together is not None
        for journal in self.journals:
            journal.sync()
        self.together.parent.mkdir(exist_ok=True)
        events = [encode_nonfinite(j.events) if j.directory is None else len(j.events) for j in self.journals]
        save_stack(
            self.together, states, {"round": r, "events": events, **self.trainer.checkpoint_metadata()}
        )

    def _note(self, text: str) -> None:
        self.journals[0].event("note", text=text)

    # after the last round -----------------------------------------------------------------------------------

    def finish(self) -> list[Result]:
        for i, (p, journal) in enumerate(zip(self.plans, self.journals)):
            is_drawn = any(e["kind"] == "landscape" for e in journal.events)
            if p.landscape and not is_drawn and torch.isfinite(self._model(i)["w"]).all():
                journal.event("landscape", **self.trainer.landscape(i))
        results = [self._finish_run(i) for i in range(len(self.plans))]
        if self.together is not None:  # a run with a directory has its last state there
            in_memory = [journal.directory is None for journal in self.journals]
            self._write_stack(self.last, [self._state(i) if m else {} for i, m in enumerate(in_memory)])
        return results

    def _finish_run(self, i: int) -> Result:
        trainer, p, journal = self.trainer, self.plans[i], self.journals[i]
        stopping, last = self.stopping[i], self._last_round(i)
        metrics, ledger = _last_metrics(journal.events, p.metric, stopping.round), self._ledger(i)
        if not any(e["kind"] == "end" for e in journal.events):
            if stopping.round:
                journal.event(
                    "stop",
                    round=last,
                    best_round=stopping.round,
                    metric=stopping.metric,
                    value=stopping.value,
                    early=stopping.is_over,
                )
            if stopping.round or stopping.is_blind:
                journal.event("note", text=stopping.explain(last))
            seconds = sum(e["seconds"] for e in journal.events if e["kind"] == "round")
            journal.event("end", metrics=metrics, seconds=seconds)
        final = self._model(i)
        model = trainer.task.module_at(final["w"], final.get("buffers"))
        self._save(i, last, force=True)
        release = self._release(i)
        if journal.directory is not None:
            write_release(journal.directory, release, model)
        journal.close(ledger.to_dict())

        def personal_models() -> dict[str, Any]:
            return {
                name: trainer.task.module_at(own["w"], own.get("buffers"))
                for name, own in zip(p.fed.parties, trainer.personal(i))
            }

        return Result(
            model,
            metrics,
            ledger,
            self.jobs[i],
            journal.events,
            journal.directory,
            p,
            personal_models if p.algorithm.personalizes and p.topology is None else None,
            release,
        )

    def _release(self, i: int) -> Release:
        """Return how the model of run i is used: what pipeline.json holds."""
        p = self.plans[i]
        pipeline = p.fed.pipeline if self.trainer.pipeline is None else self.trainer.pipeline
        if p.label_counts and pipeline is not None:  # as the preparation of real parties leaves them there
            pipeline = replace(pipeline, label_counts=p.label_counts)
        return Release.of(p.model, p.fed, pipeline, p.threshold, versions=versions(__version__))

    def _ledger(self, i: int) -> Ledger:
        """Return who saw what in run i, and what privacy it spent."""
        p, account = self.plans[i], self.accounts[i]
        rounds = [e for e in self.journals[i].events if e["kind"] == "round"]
        last = self._last_round(i)
        ledger = guards.hide_participation(p, self.trainer.ledger(i, rounds), last)
        if p.private is not None:
            from .local_dp import spent

            ledger.merge(spent(p, last))
        if (program := simulated_program(p)) is not None:
            record_sums(ledger, program, all_parties(p), None if isinstance(p.topology, Gossip) else "server")
        if p.label_counts is not None and p.talks:
            everyone, server = all_parties(p), "server"
            if p.runtime == "parties":  # a real party has the line in its own ledger
                record_label_counts(ledger, server, everyone)
            elif isinstance(p.topology, Gossip):
                record_label_counts(ledger, everyone, everyone, "ideal")
            else:
                record_label_counts(ledger, server, everyone, "ideal")
                record_label_counts(ledger, everyone, server, "ideal")
        if p.fed.spent is not None:  # the noisy statistics by which the table was encoded
            ledger.spend(Spend(**p.fed.spent))
        if account is not None and account.spent:
            ledger.spend(guards.spend(p, self.trainer.guards[i], account, last))
        if ledger.spent and _has_exact_statistics(p):
            ledger.stamp(ENCODED)
        if p.insecure_seed is not None:
            ledger.stamp(NOT_PRIVATE)
        return ledger


def _has_exact_statistics(p: Plan) -> bool:
    """Whether rows of a table were encoded by statistics of theirs that no ε of the ledger covers."""
    if p.fed.spent is not None:
        return False
    if p.fed.pipeline is not None and p.fed.pipeline.recipe.fill is not None:  # federated
        return True
    table = None if p.fed.source is None else p.fed.source.table
    if table is None or table.recipe.is_fitted:
        return False
    # noise that hides a whole party also hides what it computes for itself
    return table.recipe.fit == "pooled" or (table.recipe.fit == "party" and p.private is not None)


def _describe_preset(p: Plan) -> list[str]:
    """Say which options were chosen because the rows are from a table."""
    if not p.preset:
        return []
    values = ", ".join(f"{name}={getattr(p, name)!r}" for name in p.preset if name != "l2")
    l2 = f"{L2_ROWS:g}/(training rows of all parties)" if p.l2 is None else f"{p.l2:.3g}"
    return [f"chosen for this table (options you give replace them): {values}, l2={l2}"]


def _last_metrics(events: list[Event], asked: str | None, best_round: int = 0) -> dict[str, Any]:
    """Return the metrics of the last model that was evaluated, and the best value of the run's metric.

    With early stopping the model is that of `best_round`.
    """
    tested = [e for e in events if e["kind"] == "round" and e["round"] > 0 and "loss" in e]
    if not tested:
        return {}  # nobody held any rows back
    last = next(e for e in reversed(tested) if best_round in (0, e["round"]))
    metrics = {k: v for k, v in last.items() if isinstance(v, float) and k not in ("seconds", "clock")}
    metric = judged_by(metrics, asked)
    # a diverged model has no accuracy; the best of several noisy ones would be the luckiest
    scored = [e for e in tested if math.isfinite(e.get(metric, math.nan)) and "accuracy_error" not in e]
    if scored:
        best = scored[0]
        for e in scored[1:]:
            best = e if is_better(metric, e[metric], best[metric]) else best
        best = last if best_round else best
        metrics |= {f"best_{metric}": best[metric], "best_round": best["round"]}
    return metrics | {k: last[k] for k in DETAILS if k in last}


@contextmanager
def torch_settings(p: Plan) -> Iterator[None]:
    """Set torch's precision, threads and random state for a run, and restore them afterwards.

    On a CPU the engine gives each core its own work, so torch uses one thread: on a busy machine its threads
    would spend more time waiting for each other than they save.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    torch.set_float32_matmul_precision("high" if p.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = p.precision == "tf32"
    if p.device == "cpu":
        torch.set_num_threads(1)
    try:
        gpus = [] if p.device == "cpu" else [torch.device(p.device)]
        with torch.random.fork_rng(devices=gpus):  # the caller's random state stays as it was
            # torch.manual_seed would reset every GPU, also those not used here
            torch.default_generator.manual_seed(p.seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu.index or 0].manual_seed(p.seed)
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.set_num_threads(before[2])


def trainer_class(p: Plan) -> type[Trainer]:
    """Return the kind of trainer that a plan asks for.

    Modules are imported when needed: messages take msgpack, which a bare GPU machine may lack.
    """
    kinds: tuple[type[Trainer], type[Trainer], type[Trainer]]  # synchronous, paced, clustered
    is_remote = p.runtime not in ("cohort", "inprocess")
    if is_remote:
        from ...runtimes.processes import need_net

        what = {Hierarchy: "a hierarchy", Gossip: "gossip"}.get(type(p.topology), "training")
        need_net(f"{what} across processes")
    if isinstance(p.topology, Hierarchy):
        from .hierarchy import HierarchicalTrainer

        return HierarchicalTrainer
    if isinstance(p.topology, Gossip):
        from .gossip import GossipTrainer

        return GossipTrainer
    if p.runtime == "cohort":
        from .clustered import ClusteredTrainer

        kinds = SimulatedTrainer, paced.PacedTrainer, ClusteredTrainer
    else:
        from .clustered_parties import ClusteredMessageTrainer, ClusteredNetworkedTrainer
        from .messages import MessageTrainer
        from .networked import NetworkedTrainer
        from .paced_parties import PacedMessageTrainer, PacedNetworkedTrainer

        kinds = MessageTrainer, PacedMessageTrainer, ClusteredMessageTrainer
        if is_remote:
            kinds = NetworkedTrainer, PacedNetworkedTrainer, ClusteredNetworkedTrainer
    synchronous, asynchronous, clustered = kinds
    if p.algorithm.sees_each:
        return clustered
    return synchronous if p.pace is None else asynchronous


def _note_no_test_rows(journal: Journal, p: Plan) -> None:
    """Say once that no figure can be shown."""
    if not any(e["kind"] == "note" and e["text"].startswith("no loss or accuracy") for e in journal.events):
        journal.event(
            "note",
            text="no loss or accuracy: there are no test rows, and no party holds back at least "
            f"min_rows={p.min_rows} rows. Hold back more "
            "rows (held_fraction), or lower min_rows.",
        )


def _note_divergence(journal: Journal, p: Plan, r: int) -> None:
    if not any(e["kind"] == "note" and "diverged" in e["text"] for e in journal.events):
        scale = " Or scale the target: it is not standardized." if p.fed.classes is None else ""
        journal.event(
            "note",
            text=f"diverged: the model of {p.label} is no longer finite after round {r}. Use a smaller "
            "learning rate (lr is "
            f"{p.algorithm.lr:g}).{scale}",  # type: ignore[attr-defined]
        )


def fingerprints(p: Plan, start: State, task: Task) -> dict[str, str]:
    """Return digests of the rows, their partition and the initial model: a resumed run must have the same."""

    def digest(*tensors: torch.Tensor) -> str:
        h = hashlib.blake2b(digest_size=16)
        for t in tensors:
            h.update(f"{t.dtype} {tuple(t.shape)}".encode())
            h.update(
                t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data if t.numel() else b""
            )
        return h.hexdigest()

    return {
        "data": digest(*p.fed.rows, *p.fed.train, *p.fed.held, *p.fed.test),
        "model": digest(*start.values(), *task.constants().values()),
    }


def _check_same_inputs(out: Path, events: list[Event], now: dict[str, str]) -> None:
    before = next((e.get("fingerprints") for e in events if e["kind"] == "start"), None) or {}
    changed = [name for name in before if before[name] != now.get(name)]
    if changed:
        what = " and ".join(
            {"data": "the data (rows, or who holds them)", "model": "the model it starts from"}[name]
            for name in changed
        )
        raise BadRun(
            f"{out} cannot be resumed: {what} changed since it was started. Give the same as at its "
            "start, or start a new directory."
        )


def _check_same_job(out: Path, job: dict[str, Any]) -> None:
    import tomli_w

    if not (out / "job.toml").exists():
        raise BadRun(f"{out} holds no run to resume: there is no job.toml in it. Start it without resume.")
    try:
        before, now = tomllib.loads((out / "job.toml").read_text()), tomllib.loads(tomli_w.dumps(job))
    except ValueError as error:
        raise BadRun(f"{out / 'job.toml'} cannot be read: {error}. {RESTART_HINT}") from error
    if before != now:
        where = []
        for name in {*now, *before}:
            a, b = now.get(name, {}), before.get(name, {})
            if isinstance(a, dict) and isinstance(b, dict):
                where += [f"{name}.{k}" for k in {*a, *b} if a.get(k) != b.get(k)]
            elif a != b:  # a list of tables: [[guard]]
                where.append(name)
        raise BadRun(
            f"{out} holds another run: it differs in {', '.join(sorted(where))}. Resume with the same "
            "settings, or start a new directory."
        )
