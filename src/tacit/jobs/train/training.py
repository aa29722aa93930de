"""Runs side by side, from their plans to their results: what the records of a trainer become."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ... import __version__, models
from ...algorithms import FedLBFGSCV
from ...algorithms.types import State
from ...callbacks import Stop
from ...config.train import loss_name
from ...engine.metrics import is_better, judged_by
from ...errors import BadParameter, BudgetSpent
from ...files import write_atomic
from ...guard import Guard, Noise
from ...parties.ledger import Ledger, Spend
from ...parties.secret import NOT_PRIVATE
from ...release.release import Release, reading_of, write_release
from ...results import Result
from ...runs import (
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
from ...runtimes.ranks import RankGroup
from ...topologies import Gossip
from ..devices import placed
from . import guards, ranked
from .own_loop import own_names
from .plan import Plan, prepare_stack
from .preparing import (
    ENCODED,
    has_exact_statistics,
    record_label_counts,
    record_sums,
    simulated_program,
)
from .resuming import (
    check_extension,
    check_same_inputs,
    check_same_job,
    count_events_before_end,
    fingerprints,
)
from .simulated import all_parties
from .stopping import EarlyStopping, without_best
from .table_defaults import L2_ROWS, describe_penalty
from .trainer import PENDING, RoundRecord, RunContext
from .trainer_kinds import trainer_class

# with more parties than this, each party's accuracy is kept for the last round only, to save memory
EACH = 1000
KEPT = "kept"  # the kind of event with the evaluation of a model that has weights of several rounds
UNTESTED = (
    "the model has weights of several rounds, and was not evaluated as one model: too few parties answered "
    "after the last round. There are no metrics of it."
)
# entries of an evaluation that are kept for the model of the run only
DETAILS = ("confusion", "calibration", "curve", "subgroups")


class Training:
    """Runs side by side, from their plans to their results: reads a trainer's records, writes journals."""

    def __init__(
        self,
        plans: list[Plan],
        outs: Sequence[str | Path | None],
        jobs: list[dict[str, Any]],
        watch: Callable[[Event], None] | None,
        together: Path | None,
        group: RankGroup | None = None,
    ):
        self.plans, self.jobs, self.watch, self.together = plans, jobs, watch, together
        self.group = group  # the ranks that share the runs; this one is rank 0
        self.directories = [None if out is None else Path(out) for out in outs]
        self.first = plans[0]
        self.task, self.starts = prepare_stack(plans)
        self.journals: list[Journal] = []
        self.failure: Exception | None = None  # of `watch`: the run ends after the round in which it failed
        self.is_asked_to_stop = False  # by a callback
        self.timer = SaveTimer()
        self.stopping = [
            EarlyStopping(p, self.task.member_parts if p.stops_members else [slice(None)]) for p in plans
        ]
        self.ended: list[int | None] = [None] * len(plans)  # the round after which early stopping ended a run
        self.final: list[State] = [{}] * len(
            plans
        )  # the state of a run that ended before others of its stack

    def close(self) -> None:
        for journal in self.journals:
            journal.close()

    def _observe(self, event: Event) -> None:
        """Call `watch`; what it raises must not lose the model, so the run ends with what it has."""
        if self.watch is None or self.failure is not None:
            return
        try:
            self.watch(event)
        except Exception as error:
            self.failure = error

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
                _last_metrics(self.journals[0].events, self.first.metric, self.stopping[0]),
            ),
            self._kept,
            self.group,
        )
        self.trainer = trainer_class(self.first)(self.task, self.starts, self.plans, context)
        if self.group is not None:
            facts = ranked.facts_of(self.plans, self.starts, self.trainer.task, self.trainer)
            ranked.meet(self.group, facts)
        if not resume:
            for directory, job in zip(self.directories, self.jobs):
                self.journals.append(Journal.create(directory, job, self._observe))
            for i, journal in enumerate(self.journals):
                if journal.directory is not None:
                    write_release(journal.directory, self.release(i))
        self.start_round: int = metadata.get("round", 0)
        if not self.start_round:
            self._write_start()
        if self.failure is not None:  # nothing was trained
            raise self.failure
        for callback in self.first.callbacks:
            callback.on_start(self.jobs[0])
        self._open_accounts(context.pending is not None)

    def _reopen(self) -> tuple[list[State], dict[str, Any]]:
        """Reopen the journal of one run that was stopped; return its state, and what was saved with it."""
        (directory,), (job,) = self.directories, self.jobs
        assert directory is not None
        more = check_same_job(directory, job, may_extend=True)
        prints = fingerprints(self.first, self.starts[0], self.task)

        def agree(events: list[Event]) -> None:
            check_same_inputs(directory, events, prints)
            if more:
                check_extension(directory, self.first)

        if more:
            state, metadata = load_state(directory)
            journal = Journal.rewind(
                directory, count_events_before_end(directory, metadata), self._observe, agree
            )
            import tomli_w

            write_atomic(directory / "job.toml", tomli_w.dumps(job))
        else:
            journal, state, metadata = Journal.resume(directory, self._observe, agree)
        self.journals.append(journal)
        return [] if state is None else [state], metadata or {}

    def _rewind_stack(self, together: Path) -> tuple[list[State], dict[str, Any]]:
        """Reopen the journals of a stack that was stopped, at the moment at which it was saved as a whole."""
        for directory, job in zip(self.directories, self.jobs):
            if directory is not None and (directory / "job.toml").exists():
                check_same_job(directory, job)
        states: list[Any] = [None] * len(self.plans)
        metadata: dict[str, Any] = {}
        if together.exists():
            states, metadata, _ = load_stack(together)
        for i, (directory, job, p) in enumerate(zip(self.directories, self.jobs, self.plans)):
            events: Any = metadata["events"][i] if metadata else 0  # their number; in memory, they themselves
            if directory is None:
                self.journals.append(Journal(None, self._observe))
                self.journals[i].events = [decode_nonfinite(e) for e in (events if metadata else ())]
            elif not events and not (directory / "job.toml").exists():
                self.journals.append(Journal.create(directory, job, self._observe))
            else:
                check = partial(check_same_inputs, directory, now=fingerprints(p, self.starts[i], self.task))
                self.journals.append(Journal.rewind(directory, events, self._observe, check))
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
                **({"own_metrics": own} if (own := _own_names(p)) else {}),
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
                if records[0].is_kept:
                    self._write_kept(records)
                    continue
                running = [i for i, end in enumerate(self.ended) if end is None]
                seconds, clock = (time.perf_counter() - clock) / len(running), time.perf_counter()
                for i in running:
                    self._write_round(i, records[i], seconds)
                if self.failure is not None:
                    self._end(records[0].round)
                    self._save_stack(records[0].round)
                    break
                if self.is_asked_to_stop:
                    self._end(records[0].round)
                    for journal in self.journals:
                        text = f"a callback ended training after round {records[0].round}"
                        journal.event("note", text=text)
                    self._save(0, records[0].round, force=True)
                    if not self._can_stop():
                        break
                if None not in self.ended:
                    self.trainer.stop()
                self._save_stack(records[0].round)
        if self.last < self.first.rounds and self.failure is None and not self.is_asked_to_stop:
            for journal in self.journals:
                journal.event("note", text=guards.explain_stop(self.accounts, self.last, self.first.rounds))

    def _write_round(self, i: int, record: RoundRecord, seconds: float) -> None:
        p, journal, account, r = self.plans[i], self.journals[i], self.accounts[i], record.round
        event = record.event()
        if len(p.fed) > EACH and r != self.last:
            event.pop("parties", None)
        # with early stopping, any round may be the best, and with callbacks the last
        if r != self.last and p.patience is None and not p.callbacks:
            event = {k: v for k, v in event.items() if k not in DETAILS}
        if account is not None and r:
            event["epsilon"] = account.epsilon()
        model = self._callback_model(i) if p.callbacks and r else None
        if model is not None:
            event |= self._measure(event, model)
        journal.event("round", **event, seconds=seconds)
        if model is not None:
            self._call_back(journal.events[-1], model)
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

    def _kept(self) -> list[State] | None:
        """Return the runs' models, if one of them has weights of several rounds and was not evaluated yet."""
        if not any(stopping.is_combined for stopping in self.stopping) or self.failure is not None:
            return None
        if any(e["kind"] == KEPT for e in self.journals[0].events):  # before the run was resumed
            return None
        return [self._model(i) for i in range(len(self.plans))]

    def _write_kept(self, records: Sequence[RoundRecord]) -> None:
        for i, record in enumerate(records):
            self.journals[i].event(KEPT, **record.event() | {"round": self._last_round(i)})
        if self.together is None:
            self._save(0, self._last_round(0), force=True)  # parties may not evaluate it again

    def _callback_model(self, i: int) -> torch.nn.Module:
        now = self._trainer_model(i)
        return self.trainer.task.module_at(now["w"], now.get("buffers"))

    def _measure(self, event: Event, model: torch.nn.Module) -> dict[str, float]:
        """Return what callbacks add to the record of a round."""
        found: dict[str, float] = {}
        for callback in self.first.callbacks:
            try:
                measured = callback.measure(event, model)
            except Exception as error:
                self.failure = self.failure or error
                return found
            if other := set(measured) - set(callback.names):
                self.failure = self.failure or BadParameter(
                    f"callbacks: {type(callback).__name__}.measure returned {sorted(other)}, which are not "
                    "in its `names`."
                )
                return found
            found |= {name: float(value) for name, value in measured.items()}
        return found

    def _call_back(self, event: Event, model: torch.nn.Module) -> None:
        """Call all callbacks after a round; one that asks to stop does not keep the others from it."""
        for callback in self.first.callbacks:
            if self.failure is not None:
                return
            try:
                if callback.on_round_end(dict(event), model):
                    self.is_asked_to_stop = True
            except Stop:
                self.is_asked_to_stop = True
            except Exception as error:
                self.failure = error

    def _can_stop(self) -> bool:
        """Whether the trainer ends by itself when it is told to, and tells its parties."""
        p = self.first
        return p.pace is None and p.topology is None and not p.algorithm.sees_each

    def _end(self, r: int) -> None:
        """End all runs after round r, as they are."""
        for i, end in enumerate(self.ended):
            if end is None:
                self.ended[i], self.final[i] = r, self.trainer.save(i)

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
            if (
                p.landscape
                and not is_drawn
                and self.failure is None
                and torch.isfinite(self._model(i)["w"]).all()
            ):
                journal.event("landscape", **self.trainer.landscape(i))
        results = [self._finish_run(i) for i in range(len(self.plans))]
        if self.together is not None:  # a run with a directory has its last state there
            in_memory = [journal.directory is None for journal in self.journals]
            self._write_stack(self.last, [self._state(i) if m else {} for i, m in enumerate(in_memory)])
        return results

    def _finish_run(self, i: int) -> Result:
        trainer, p, journal = self.trainer, self.plans[i], self.journals[i]
        stopping, last = self.stopping[i], self._last_round(i)
        metrics, ledger = _last_metrics(journal.events, p.metric, stopping), self._ledger(i)
        # without an "end", a run that `watch` ended can be resumed
        if self.failure is None and not any(e["kind"] == "end" for e in journal.events):
            if stopping.round:
                journal.event(
                    "stop",
                    round=last,
                    best_round=stopping.round,
                    metric=stopping.metric,
                    value=stopping.value,
                    **({"member_rounds": stopping.rounds} if len(stopping.rounds) > 1 else {}),
                    early=stopping.is_over,
                )
            if stopping.round or stopping.is_blind:
                journal.event("note", text=stopping.explain(last))
            if stopping.is_combined and not metrics:
                journal.event("note", text=UNTESTED)
            if isinstance(p.algorithm, FedLBFGSCV):
                journal.event("note", text=describe_penalty(p.algorithm, trainer.save(i)))
            seconds = sum(e["seconds"] for e in journal.events if e["kind"] == "round")
            journal.event("end", metrics=metrics, seconds=seconds)
        final = self._model(i)
        model = trainer.task.module_at(final["w"], final.get("buffers"))
        self._save(i, last, force=True)
        release = self.release(i)
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

    def release(self, i: int) -> Release:
        """Return how the model of run i is used: what pipeline.json holds."""
        p = self.plans[i]
        pipeline = p.fed.pipeline if self.trainer.pipeline is None else self.trainer.pipeline
        if p.label_counts and pipeline is not None:  # as the preparation of real parties leaves them there
            pipeline = replace(pipeline, label_counts=p.label_counts)
        usual = p.loss in ("cross_entropy", "mse", "focal", "mae", "huber")
        loss = {} if usual else {"loss": loss_name(p.loss)}
        metadata = {"versions": versions(__version__), **reading_of(self.jobs[i].get("data")), **loss}
        return Release.of(p.model, p.fed, pipeline, p.threshold, **metadata)

    def _ledger(self, i: int) -> Ledger:
        """Return who saw what in run i, and what privacy it spent."""
        p, account = self.plans[i], self.accounts[i]
        rounds = [e for e in self.journals[i].events if e["kind"] in ("round", KEPT)]
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
        if ledger.spent and has_exact_statistics(p):
            ledger.stamp(ENCODED)
        if p.insecure_seed is not None:
            ledger.stamp(NOT_PRIVATE)
        return ledger


def _own_names(p: Plan) -> list[str]:
    """Return the names of the user's own metrics."""
    own = () if p.metrics is None else p.metrics.names
    of_clients = () if p.client is None else own_names(p.client)
    return [*own, *of_clients, *(name for callback in p.callbacks for name in callback.names)]


def _describe_preset(p: Plan) -> list[str]:
    """Say which options were chosen because the rows are from a table."""
    if not p.preset:
        return []
    values = ", ".join(f"{name}={getattr(p, name)!r}" for name in p.preset if name != "l2")
    l2 = f"{L2_ROWS:g}/(training rows of all parties)" if p.l2 is None else f"{p.l2:.3g}"
    if isinstance(p.algorithm, FedLBFGSCV):
        l2 = "cross-validated"
    return [f"chosen for this table (options you give replace them): {values}, l2={l2}"]


def _last_metrics(events: list[Event], asked: str | None, stopping: EarlyStopping) -> dict[str, Any]:
    """Return the metrics of the last model that was evaluated, and the best value of the run's metric.

    With early stopping the model is that of the best round. One with weights of several rounds has an
    evaluation of its own, or no metrics if that was lost.
    """
    best_round, kind = stopping.round, KEPT if stopping.is_combined else "round"
    tested = [e for e in events if e["kind"] == kind and e["round"] > 0 and "loss" in e]
    if stopping.is_combined:
        tested = [{**e, "round": best_round} for e in tested]
    if not tested:  # nobody held any rows back; parties with loops of their own may send metrics
        last = next((e for e in reversed(events) if e["kind"] == "round"), {})
        return {k: v for k, v in last.items() if k.startswith("client_")}
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
