"""`tacit.contribution`: what each party added to the model of a run."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..algorithms import FedAvg, FedProx, LocalSGD, ParallelSGD
from ..audit import contribution as game
from ..config.train import METRICS
from ..data.federation import Rows
from ..engine import evaluation
from ..engine.metrics import LOWER_IS_BETTER, Counts, count, measure_all
from ..errors import BadParameter
from ..parameters import bad, refuse
from ..parties.ledger import Ledger
from ..results import JobResult, Result
from ..runs import Event
from ..runtimes.cohort import Cohort
from .train.plan import Plan, make_task
from .train.stopping import EarlyStopping
from .train.table_defaults import among_parties
from .train.train import train_side_by_side

if TYPE_CHECKING:
    import pandas

SIDE_BY_SIDE = 64  # coalitions in one stack
AT_ONCE = 4096  # rows that a model is evaluated on together
GROUPS = 50  # of test rows, left out one after the other: Student's t with 49 degrees is close to the normal
METHODS = ("auto", "leave_one_out", "shapley", "sampled", "reconstructed")


@dataclass(frozen=True)
class Contribution(JobResult):
    """What each party added to the model's `metric`, and how that was computed. The ledger is the run's."""

    title = "What each party contributed"
    facts = ("value", "metric", "method")

    parties: tuple[str, ...]
    metric: str
    method: str
    values: game.Values
    result: Result

    @property
    def value(self) -> dict[str, float]:
        return dict(zip(self.parties, self.values.value.tolist()))

    @property
    def ledger(self) -> Ledger:
        return self.result.ledger

    def table(self) -> pandas.DataFrame:
        """Return one row per party, the largest value first.

        `low` and `high` are the ends of its interval; `share` is its part of the sum of all significant
        values; `rows` is the number of its training rows.
        """
        import pandas

        v, fed = self.values, self.result.origin.fed
        columns = {
            "value": v.value,
            "low": v.low,
            "high": v.high,
            "share": game.payout(v.significant, 1.0),
            "rows": fed.train.sizes.numpy(),
        }
        return pandas.DataFrame(columns, index=list(self.parties)).sort_values("value", ascending=False)

    def payout(self, total: float) -> dict[str, float]:
        """Divide `total` in proportion to the contributions.

        Those that are not significantly above 0 (their interval contains it) are paid nothing.
        """
        return dict(zip(self.parties, game.payout(self.values.significant, total).tolist()))

    def free_riders(self, share: float = 0.1) -> list[str]:
        """Return the parties whose interval ends below `share` of an equal part of the total gain."""
        even = (self.values.whole - self.values.empty) / len(self.parties)
        return [name for name, high in zip(self.parties, self.values.high) if high < share * even]

    def models(self) -> dict[str, Any]:
        """Return a model for each party whose quality corresponds to its contribution.

        It is the initial model plus the largest coordinates of the total update, as large a share of them as
        the party's value is of the largest value. The party with the largest value gets the whole model.
        (X. Xu et al., "Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning",
        NeurIPS 2021: rewards by sparsified updates.)
        """
        p: Plan = self.result.origin
        task = make_task(p)
        start, end = task.initial()["w"], _flat(self.result.model, task)
        order = (end - start).abs().argsort(descending=True)
        gain = np.clip(self.values.value, 0, None)
        out = {}
        for name, g in zip(self.parties, gain / gain.max() if gain.max() > 0 else gain):
            w = start.clone()
            largest = order[: round(float(g) * len(order))]
            w[largest] = end[largest]
            model = copy.deepcopy(self.result.model)
            with torch.no_grad():
                for s in task.parameters:
                    model.get_parameter(s.name).copy_(w[s.start : s.stop].view(s.shape))
            out[name] = model
        return out


def contribution(
    run: Result,
    *,
    method: str = "auto",
    metric: str | None = None,
    permutations: int = 50,
    tolerance: float = 0.005,
    confidence: float = 0.95,
    seed: int = 0,
) -> Contribution:
    """Estimate what each party added to the test `metric` of a run's model, by default the run's own.

    "leave_one_out" trains without each party; "shapley" trains every coalition, up to 12 parties; "sampled"
    trains random orders of joining, with confidence intervals; "reconstructed" trains once and reconstructs
    the models of coalitions from the updates, which is fast but only possible for FedAvg and its variants.
    "auto" is "shapley" up to 6 parties, else "reconstructed" if possible, else "sampled". Coalitions train
    side by side, from the run's own seed.

    Values of "leave_one_out" and "shapley" have intervals for the choice of the test rows: 95% by default,
    from a jackknife over groups of the test rows that all models share. A value whose interval contains 0
    is not significant, and is paid nothing. With early stopping (`patience`), coalitions stop early, too.
    """
    p = getattr(run, "origin", None)
    if not isinstance(p, Plan):
        raise bad(
            "contribution",
            "run",
            type(run).__name__,
            "what tacit.train returned in this process",
            "A run that was read from disk has no rows.",
        )
    metric = run.metric if metric is None else metric
    refuse(
        (
            method not in METHODS,
            bad("contribution", "method", method, "one of " + ", ".join(map(repr, METHODS))),
        ),
        (
            metric not in run.metrics or metric not in METRICS,
            bad(
                "contribution",
                "metric",
                metric,
                "one of " + ", ".join(m for m in METRICS if m in run.metrics),
            ),
        ),
        (
            p.guard,
            "contribution: it looks at what single parties did, which the run's guard hides. Ask it of a "
            "run without a guard.",
        ),
        (
            p.pace is not None or p.topology is not None or p.runtime == "parties",
            "contribution: it is for synchronous rounds with one server, in a simulation. Train so to ask "
            "for contributions.",
        ),
        (
            p.algorithm.sees_each,
            f"contribution: it is for one model that all parties share, and {type(p.algorithm).__name__} "
            "has one for each cluster. "
            "Ask it of a run with another algorithm.",
        ),
    )
    if not isinstance(permutations, int) or permutations < 2:
        raise bad("contribution", "permutations", permutations, "a whole number of at least 2")
    n, simple = len(p.fed), _is_simple(p)
    if method == "auto":
        method = "shapley" if n <= 6 else "reconstructed" if simple else "sampled"
    if method == "reconstructed" and not simple:
        raise BadParameter(
            "contribution: models of coalitions are put together from the ways parties went, and "
            f"{type(p.algorithm).__name__} has more to it. "
            "Use method='sampled'."
        )
    if method == "reconstructed":
        utility: game.Utility = _Reconstructed(p, metric, run.events)
    else:
        utility = _Trained(p, metric)
    if method == "leave_one_out":
        values = game.leave_one_out(utility, n, confidence)
    elif method == "shapley" or (method == "reconstructed" and n <= game.EXACT):
        values = game.shapley(utility, n, confidence)
    else:
        values = game.sample_shapley(utility, n, permutations, tolerance, confidence, seed)
    return Contribution(p.fed.parties, metric, method, values, run)


def _is_simple(p: Plan) -> bool:
    if isinstance(p.algorithm, FedAvg):
        return type(p.algorithm) in (FedAvg, LocalSGD, ParallelSGD) and p.algorithm.option == "II"
    return type(p.algorithm) is FedProx


def _flat(model: Any, task: Any) -> torch.Tensor:
    values = [model.get_parameter(s.name).detach().reshape(-1).float() for s in task.parameters]
    return torch.cat(values).to(task.x.device)


class _Judge:
    """The utility of models: their metric on the test rows, and its jackknife replicates.

    A metric of which less is better counts negatively, so that a contribution above 0 is an improvement.
    """

    def __init__(self, p: Plan, metric: str):
        self.plan, self.metric, self.task = p, metric, make_task(p)
        test = p.fed.test_at(p.rounds)
        if len(test.y):
            self.rows = test
        else:
            rows, index = p.fed.at(p.rounds), evaluation.reported_rows(p.fed, p.min_rows, p.sums_only)
            self.rows = Rows(rows.x[index], rows.y[index])
        groups = min(GROUPS, len(self.rows.y))
        order = np.random.default_rng(p.seed).permutation(len(self.rows.y))
        self.parts = [torch.from_numpy(part) for part in np.array_split(order, groups)]

    def __call__(self, w: torch.Tensor, buffers: torch.Tensor | None) -> np.ndarray:
        return self.score(self.task.predict(w, self.rows.x.to(w.device), buffers).cpu())

    def score_module(self, model: torch.nn.Module) -> np.ndarray:
        """Return the utility of a trained model, which is on the CPU."""
        with torch.no_grad():
            return self.score(torch.cat([model(x) for x in self.rows.x.split(AT_ONCE)]))

    def score(self, out: torch.Tensor) -> np.ndarray:
        """Return the metric of these outputs, and without each group of rows."""
        rules = self.plan.rules
        counts = [
            count(out[part], self.rows.y[part], rules.classes, threshold=rules.threshold)
            for part in self.parts
        ]
        whole = functools.reduce(Counts.add, counts)
        rest = [Counts(*(a - b for a, b in zip(whole, part))) for part in counts]
        sign = -1.0 if self.metric in LOWER_IS_BETTER else 1.0
        values = [measure_all(c, rules.scale).get(self.metric, math.nan) for c in (whole, *rest)]
        return sign * np.array(values)


class _Trained:
    """The utility of coalitions, by training each."""

    def __init__(self, p: Plan, metric: str):
        # with early stopping, a coalition's model is that of its own best round
        every = p.evaluate_every if p.patience is not None else 0
        self.plan = dataclasses.replace(
            p, landscape=False, evaluate_every=every, runtime="cohort", through=None
        )
        self.judge = _Judge(self.plan, metric)

    def __call__(self, coalitions: Sequence[game.Coalition]) -> list[np.ndarray]:
        out: dict[game.Coalition, np.ndarray] = {s: self._untrained() for s in coalitions if not s}
        todo = [s for s in coalitions if s]
        for i in range(0, len(todo), SIDE_BY_SIDE):
            some = todo[i : i + SIDE_BY_SIDE]
            plans = [
                dataclasses.replace(
                    self.plan,
                    members=tuple(sorted(s)),
                    per_round=min(self.plan.per_round, len(s)),
                    algorithm=among_parties(self.plan.algorithm, len(s)),
                )
                for s in some
            ]
            for s, result in zip(some, train_side_by_side(plans, [None] * len(some))):
                out[s] = self.judge.score_module(result.model)
        return [out[s] for s in coalitions]

    def _untrained(self) -> np.ndarray:
        start = self.judge.task.initial()
        return self.judge(start["w"], start.get("buffers"))


class _Reconstructed:
    """The utility of coalitions, from one run: every round's mean is taken over the coalition's members.

    Up to the round whose model the run returned, by its `events`; of each member, if they stop by their own.
    """

    def __init__(self, p: Plan, metric: str, events: Sequence[Event]):
        self.plan = dataclasses.replace(p, runtime="cohort", through=None)
        self.judge = _Judge(self.plan, metric)
        task = self.judge.task
        stopping = EarlyStopping(p, task.member_parts if p.stops_members else [slice(None)])
        stopping.restore(events, {})
        self.kept = [(part, r or p.rounds) for part, r in zip(stopping.parts, stopping.rounds)]
        self.start = task.initial()
        cohort = Cohort(task, [self.start], [self.plan.run()], p.engine)
        self.rounds: list[tuple[int, np.ndarray, torch.Tensor, torch.Tensor]] = []
        # of one round: of a stack, or of one party at a time
        uploads: list[tuple[np.ndarray, torch.Tensor, torch.Tensor]] = []
        cohort.on_upload = lambda who, weights, vectors: uploads.append(
            (who, weights.clone(), vectors["delta"].clone())
        )
        for r in range(max(last for _, last in self.kept)):
            cohort.round(r)
            if uploads:
                who, weights, deltas = zip(*uploads)
                self.rounds.append((r, np.concatenate(who), torch.cat(weights), torch.cat(deltas)))
            uploads.clear()

    def __call__(self, coalitions: Sequence[game.Coalition]) -> list[np.ndarray]:
        return [self.judge(self._model(s), self.start.get("buffers")) for s in coalitions]

    def _model(self, s: game.Coalition) -> torch.Tensor:
        w, step = self.start["w"].clone(), self.plan.algorithm.server_lr
        for r, who, weights, deltas in self.rounds:
            mine = torch.from_numpy(np.isin(who, list(s))).to(weights.device)
            if mine.any():
                change = step * (weights * mine / (weights * mine).sum()) @ deltas
                for part, last in self.kept:
                    if r < last:
                        w[part] += change[part]
        return w
