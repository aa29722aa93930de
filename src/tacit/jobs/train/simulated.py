"""Training with all clients in one tensor program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import algorithms, selection
from ...algorithms.fedlbfgscv import FEWEST_ROWS
from ...algorithms.types import Algorithm, State
from ...engine import evaluation
from ...engine.task import Task
from ...guard import Guard, Noise
from ...parties.ledger import Ledger
from ...protocols.picking import Pick, Score
from ...protocols.rounds import Down, Look, Loss, Test, Tested, Upload
from ...runs import Event
from ...runtimes.cohort import Cohort
from ...selection import PartyInfo
from ..devices import placed
from .guards import fit, reveals
from .plan import Plan, seconds_of
from .traffic import MessageSizes, evaluation_sizes, guarded_sizes, look_sizes, score_bytes
from .trainer import Records, RoundRecord, RunContext, Trainer, evaluates, kept_record, make_record

# under private.DPSGD
NOISY = (
    "one party's model update, from clipped gradients with that party's own noise; every party "
    "weighs the same"
)
# where clusters are formed
SORTED = (
    "one party's model update and its weight (its number of rows), in the clear; with the others', "
    "which parties are similar"
)
# under FedLBFGSCV
FOLDED = (
    "one party's gradients over its rows and over all but a fold of them (at least "
    f"{FEWEST_ROWS} rows), losses on each fold, and its number of rows, in the clear"
)


class SimulatedTrainer(Trainer):
    """Clients as one tensor program; several runs side by side."""

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        self.plans, self.context = plans, context
        self.guards = [guard for p, start in zip(plans, starts) if (guard := fit(p, task, start)) is not None]
        self.cohort = Cohort(
            task,
            starts,
            [p.run() for p in plans],
            plans[0].engine,
            guards=self.guards,
            rule=rule_for(plans, task),
            ranks=context.ranks,
        )
        for i, p in enumerate(plans):
            if p.select is not None:
                self.cohort.runs[i] = dataclasses.replace(
                    self.cohort.runs[i], choose=partial(self._choose, i)
                )
        if context.states:
            self.cohort.load(list(context.states))
        self.task, self.notes = self.cohort.task, self.cohort.notes
        self.name = f"cohort, clients {self.cohort.manner}"
        if context.ranks is not None:
            self.notes.append(_describe_ranks(context.ranks.size, self.cohort))
        self._blank: tuple[State, State] | None = None  # messages of the real shapes, for counting bytes
        self.seconds = [seconds_of(p) for p in plans]
        self.clocks = [context.clock] * len(plans)  # virtual clocks, where there is a speed
        self.last = plans[0].rounds  # the last round of `run`
        self.facts: list[dict[str, Any]] = [{} for _ in plans]  # of the current round
        self._evaluation_sizes: dict[Any, tuple[int, int]] = {}
        self.look_sizes = 0, 0  # of one Look and one Loss, where losses decide who takes part

    @property
    def weights(self) -> Tensor:
        return self.cohort.w

    @property
    def buffers(self) -> Tensor | None:
        return self.cohort.buffers

    def run(self, rounds: range) -> Records:
        self.last = rounds.stop
        if rounds.start == 0 and evaluates(self.plans[0], 0, rounds.stop):
            yield self.records(0, rounds.stop, [np.arange(0)] * len(self.plans))
        for r in self.until_stopped(rounds):
            self.context.spend(r)
            self.facts = [{} for _ in self.plans]
            yield self.records(r + 1, rounds.stop, self._round(r))
        if (kept := self.context.kept()) is not None:
            yield self._kept_records(kept)

    def _kept_records(self, kept: Sequence[State]) -> list[RoundRecord]:
        r = self.plans[0].rounds + 1  # as real parties number this evaluation
        there = [placed(self.weights.device, state) for state in kept]
        buffers = torch.stack([s["buffers"] for s in there]) if "buffers" in there[0] else None
        metrics = self._evaluate(r, torch.stack([s["w"] for s in there]), buffers)
        return [
            kept_record(p, r, metrics[i], sum(self.evaluation_sizes(i))) for i, p in enumerate(self.plans)
        ]

    def _round(self, r: int) -> list[np.ndarray]:
        for i, p in enumerate(self.plans):
            if p.picks:
                self.cohort.memories[i] = {}  # the best party is remembered for one round
        chosen = self.step(r)
        for i, (p, takes, who) in enumerate(zip(self.plans, self.seconds, chosen)):
            if p.picks and p.talks and len(who):
                best = {k: p.fed.parties[int(v)] for k, v in self.cohort.memories[i].items()}
                self.facts[i] |= {"scored": len(who), "uploaded": 1, **best}
            if takes is not None:  # a synchronous round takes as long as its slowest party
                self.clocks[i] += float(takes(who, np.full(len(who), r)).max(initial=0.0))
        return chosen

    def step(self, r: int) -> list[np.ndarray]:
        """Compute round r of every run; return who took part in each."""
        return self.cohort.round(r)

    def records(self, r: int, last: int, chosen: Sequence[np.ndarray]) -> list[RoundRecord]:
        """Return the records of round r (counted from 1) for these participants, evaluated if that is due."""
        metrics: Sequence[dict[str, Any]] = [{}] * len(self.plans)
        if evaluates(self.plans[0], r, last):
            metrics = self.evaluate(r)
        sizes = self.sizes(r)
        is_due = evaluates(self.plans[0], r, last)
        return [
            make_record(
                p,
                self.guards[i] if self.guards else None,
                r,
                last,
                [p.fed.parties[k] for k in chosen[i]],
                sizes._replace(evaluation=sum(self.evaluation_sizes(i)) if is_due else 0),
                metrics=metrics[i],
                facts=self.facts[i],
                clock=self.clocks[i] if r and self.seconds[i] is not None else None,
            )
            for i, p in enumerate(self.plans)
        ]

    def personal(self, i: int) -> list[State]:
        shared = {} if self.buffers is None else {"buffers": self.buffers[i]}
        return [shared | own for own in self.cohort.personal(i)]

    def _model(self, i: int) -> State:
        return {k: v[i] for k, v in self.cohort.down(0.0).items() if k in ("w", "buffers")}

    def _choose(self, i: int, number: int) -> np.ndarray:
        """Choose who takes part in a round, by the plan's rule and the current model."""
        p, takes = self.plans[i], self.seconds[i]
        members = np.arange(len(p.fed)) if p.members is None else np.array(p.members)
        known = PartyInfo(
            p.sizes[members],
            lambda who: self._losses(i, members[who], number),
            None if takes is None else takes(members, np.full(len(members), number)),
        )
        return members[selection.select(p.select, p.seed, number, known, p.per_round)]

    def _losses(self, i: int, who: np.ndarray, number: int) -> np.ndarray:
        self.facts[i]["looked"] = self.facts[i].get("looked", 0) + len(who)
        self.look_sizes = look_sizes(self._model(i))
        rows, fed = self.plans[i].fed.at(number + 1), self.plans[i].fed
        held = [fed.train.of(int(k)) for k in who]
        index = torch.cat(held)
        w = self.weights[i]
        chunks = self.task.predict_in_chunks(
            w, rows.x[index].to(w.device), None if self.buffers is None else self.buffers[i]
        )
        y = rows.y[index]
        losses = torch.cat([self.task.row_losses(out, y[part]) for part, out in chunks])
        return np.array([float(part.mean()) for part in losses.split([len(h) for h in held])])

    def evaluate(self, r: int) -> list[dict[str, Any]]:
        """Return the metrics of every run's model after round r (counted from 1)."""
        return self._evaluate(r, self.weights, self.buffers)

    def _evaluate(self, r: int, weights: Tensor, buffers: Tensor | None) -> list[dict[str, Any]]:
        tests = [p.fed.test_at(r) for p in self.plans]
        # once for the runs that share a federation
        parties = {(id(p.fed), p.rules): p for p in self.plans}
        held_by = {key: evaluation.held_out(p.fed, p.fed.at(r), p.rules) for key, p in parties.items()}
        held = [held_by[id(p.fed), p.rules] for p in self.plans]
        metrics = evaluation.evaluate(
            self.task,
            weights,
            buffers,
            tests,
            held,
            stacked=self.cohort.engine == "stack" and weights.device.type == "cuda",
            test_subgroups=[p.fed.subgroups for p in self.plans],
        )
        for i, p in enumerate(self.plans):
            if p.patience is not None and len(tests[i].y) and len(held[i].rows.y):
                own = None if buffers is None else buffers[i]
                if found := evaluation.validate(self.task, weights[i], own, held[i]):
                    metrics[i]["validation"] = found
            if p.algorithm.personalizes and len(held[i].rows.y):
                metrics[i] |= self._personal_metrics(i, held[i])
            if p.adversaries is not None and (targets := p.adversaries.target_rows(tests[i])) is not None:
                x = targets.x.to(weights.device)
                out = self.task.predict(weights[i], x, None if buffers is None else buffers[i])
                metrics[i]["attack_success"] = float((out.argmax(-1).cpu() == targets.y).double().mean())
        return metrics

    def _personal_metrics(self, i: int, held: evaluation.Held) -> dict[str, Any]:
        """Evaluate each party's own model on its own held-out rows, in the place of the server's."""

        def chunks() -> Iterator[tuple[slice, torch.Tensor]]:
            start = 0  # rows are ordered by owner
            for k, model in enumerate(self.personal(i)):
                x = held.rows.x[held.owner == k].to(self.weights.device)
                for part, out in self.task.predict_in_chunks(model["w"], x, model.get("buffers")):
                    yield slice(start + part.start, start + part.stop), out
                start += len(x)

        return evaluation.measure_own_models(chunks(), held)

    def save(self, i: int) -> State:
        return self.cohort.save(i)

    def checkpoint_metadata(self) -> dict[str, Any]:
        return {} if self.seconds[0] is None else {"clock": self.clocks[0]}

    def sizes(self, r: int) -> MessageSizes:
        """Return the sizes of the messages of round r, as they would be on the wire."""
        if not self.cohort.upload_shapes:
            return MessageSizes()
        guard = self.guards[0] if self.guards else None
        if self._blank is None:
            down = {k: torch.zeros(v.shape[1:]) for k, v in self.cohort.down(0.0).items()}
            up = {k: torch.zeros(s) for k, s in self.cohort.upload_shapes.items()}
            # a guard sends in as many bits as it needs
            self._blank = (
                (down, up) if guard is None else (down | guard.server_message(), guard.blank_upload())
            )
        look, loss = self.look_sizes
        return guarded_sizes(self.message_plan, guard, r, *self._blank)._replace(look=look, loss=loss)

    def evaluation_sizes(self, i: int) -> tuple[int, int]:
        """Return the bytes of all Test and all Tested of one evaluation of run i."""
        p = self.plans[i]
        if not p.talks:
            return 0, 0
        key = id(p.fed), p.rules  # once for the runs that share a federation
        if key not in self._evaluation_sizes:
            guard = self.guards[i] if self.guards else None
            self._evaluation_sizes[key] = evaluation_sizes(p, guard, self._model(i))
        return self._evaluation_sizes[key]

    @property
    def message_plan(self) -> Plan:
        """The plan that says who exchanges messages in a round."""
        return self.plans[0]

    def landscape(self, i: int) -> dict[str, Any]:
        from ...engine.landscape import PARTIES, landscape

        p, w = self.plans[i], self.weights[i]
        start = {"w": w} | ({} if self.buffers is None else {"buffers": self.buffers[i]})
        by_itself = dataclasses.replace(
            p, per_round=1, algorithm=plain(p.algorithm), guard=(), sampling="fixed"
        )
        alone = [dataclasses.replace(by_itself, members=(k,)) for k in range(min(len(p.fed), 3 * PARTIES))]
        more = Cohort(self.task, [start] * len(alone), [a.run() for a in alone], p.engine)
        more.round(p.rounds)
        test = p.fed.test_at(p.rounds) if len(p.fed.test.y) else p.fed.at(p.rounds)
        some = slice(None, None, -(-len(test.y) // 512))  # enough rows for a picture, from the whole test set
        optima = dict(zip(p.fed.parties, more.w))
        x, y = test.x[some].to(w.device), test.y[some].to(w.device)
        return landscape(self.task, w, optima, x, y, start.get("buffers"))

    def ledger(self, i: int, events: list[Event]) -> Ledger:
        """Return the messages that real parties would have exchanged, one line per kind."""
        ledger, p = Ledger(), self.plans[i]
        if p.pooled:
            ledger.record(
                "whoever trains the central model",
                "every party",
                "Rows",
                "every row of every party, in the clear",
                how="ideal",
            )
        if not p.talks:
            return ledger
        everyone = all_parties(p)
        downs, tests = sum(e["sampled"] for e in events), sum(e["tested"] for e in events)
        test, tested = self.evaluation_sizes(i)
        evaluations = sum(bool(e["tested"]) for e in events)
        looked, (look, loss) = sum(e.get("looked", 0) for e in events), look_sizes(self._model(i))
        scored, picks, scores = score_bytes(events)
        models = sum(e["uploaded"] if "uploaded" in e else e["sampled"] for e in events)
        up = sum(e["bytes_up"] for e in events) - looked * loss - scores
        down = sum(e["bytes_down"] for e in events) - looked * look - picks
        lines = [
            (Upload, upload_reveals(p, self.guards[i] if self.guards else None), models, up),
            (Score, None, scored, scores),
            (Loss, None, looked, looked * loss),
            (Tested, tested_reveals(p), tests, evaluations * tested),
            (Down, None, downs, down),
            (Pick, None, scored, picks),
            (Look, None, looked, looked * look),
            (Test, None, tests, evaluations * test),
        ]
        for kind, what, count, size in lines:
            if count or kind in (Upload, Tested, Down, Test):
                ends = ("server", everyone) if kind in (Upload, Score, Loss, Tested) else (everyone, "server")
                ledger.record(*ends, kind, what, count=count, bytes=size, how="ideal")
        return ledger


def _describe_ranks(size: int, cohort: Cohort) -> str:
    """Say how many processes share a run, and what that does to its result."""
    if cohort.task.draws:
        same = "the model differs with their number, because it draws random numbers of its own"
    elif cohort.device.type == "cpu":
        same = "the model has the same bits with any number of them"
    else:
        same = "with another number of them the model differs by rounding, because a GPU's sums have no order"
    return f"{size} ranks share the clients of every round; {same}"


def all_parties(p: Plan) -> str:
    """Return the name, in a ledger, of all parties together."""
    return f"{len(p.fed)} parties, together" if len(p.fed) > 1 else p.fed.parties[0]


def upload_reveals(p: Plan, guard: Guard | None) -> str | None:
    """Return what the server learns from one upload, for the ledger; None: as the message declares."""
    if guard is not None:
        return reveals(guard, weighted=p.private is None)
    if p.client is not None and p.client.metrics:
        names = ", ".join(p.client.metrics)
        return f"one party's model update, its number of rows and its metrics ({names}), in the clear"
    if p.private is not None and p.private.private:
        return NOISY
    if isinstance(p.algorithm, algorithms.FedLBFGSCV):
        return FOLDED
    return SORTED if p.algorithm.sees_each else None


def rule_for(plans: list[Plan], task: Task) -> Any:
    """Return the aggregation rule of runs side by side, with the layers or the task where it needs them."""
    rule = plans[0].aggregate
    rule = rule.with_layers(tuple(s.stop - s.start for s in task.parameters))
    return rule.with_task(task, [p.fed.test.x for p in plans])


def plain(algorithm: Algorithm) -> Algorithm:
    """Return what a party does alone: FedAvg with this algorithm's learning rate and solver, or itself."""
    if algorithm.is_own_baseline:
        return algorithm
    return algorithms.FedAvg(lr=algorithm.lr, solver=algorithm.solver or algorithms.SGD())


def counts_subgroups(p: Plan) -> bool:
    """Whether parties count their held-out rows by subgroup."""
    return bool(p.subgroups) and not len(p.fed.test.y) and not p.noisy_figures


def unmerged(p: Plan) -> str:
    """Return what a hidden sum shows of small subgroups: no party knows which ones are small in all."""
    few = f"; of those with fewer than {p.min_rows} rows, too, which are merged only after the sum"
    return few if p.sums_only else ""


def tested_reveals(p: Plan) -> str:
    """Return what the server learns of the parties' held-out rows, for the ledger."""
    if p.noisy_figures:
        noise = next(s for s in p.guard if isinstance(s, Noise))
        whose = "the sum of all parties' figures" if p.sums_only else "one party's figures"
        how = {
            "central": "to which it adds noise",
            "local": "with noise of the party's own",
            "distributed": "with noise of the parties' own",
        }
        return (
            f"{whose} on held-out rows, {how[noise.placement]}: accuracy, clipped mean loss, whether "
            f"there are at least {p.min_rows} rows"
        )
    whose = (
        "the sum of all parties' counts on their held-out rows"
        if p.sums_only
        else f"one party's counts on at least {p.min_rows} held-out rows"
    )
    by = f", and the same by {', '.join(p.subgroups)}{unmerged(p)}" if counts_subgroups(p) else ""
    if p.party_rules.own is not None:
        by += f", and sums of the job's own metrics ({', '.join(p.party_rules.own.names)})"
    if p.rules.members > 1:
        by += f", and the summed loss of each of the model's {p.rules.members} members"
    if p.fed.classes is None:
        return f"{whose}: sums of errors, targets and their powers{by}"
    return f"{whose}: confusion matrix, summed loss and Brier score, score histograms{by}"
