"""Early stopping: end a run when its metric on held-out rows no longer improves, and keep the best model.

Only figures of the journal are read, which under secure aggregation come from summed counts. So no party
sends anything for it, and a resumed run makes the same decisions from the events it kept. L. Prechelt: "Early
Stopping — But When?", 1998, the criterion UP with a strip of one evaluation.

With `stop_by`, as in the defaults of tables, the test set never chooses. Where no party may report its
held-out rows (each has fewer than `min_rows`), such a run ends after a fixed number of rounds, with its last
model.

A model of several members, stopped by the loss, keeps the weights of every member's own best round, by the
losses of the members on the held-out rows. The run ends when no member has improved for `patience`
evaluations. One network is the special case of one member, which is the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...algorithms.types import State
from ...engine.evaluation import MEMBERS
from ...engine.metrics import is_better, judged_by
from ...runs import Event
from .plan import Plan
from .table_defaults import BLIND_ROUNDS

BEST = "best."  # prefix of the best model's tensors in a saved state


class EarlyStopping:
    """The best evaluated model of a run, or of each of its members, and whether the run should end."""

    def __init__(self, p: Plan, parts: Sequence[slice] = (slice(None),)):
        """`parts`: the part of the vector of each member that stops by its own loss."""
        self.plan, self.patience, self.parts = p, p.patience, list(parts)
        self.metric, self.waited = "", 0
        # of each member: its best round, and its metric there
        self.rounds, self.values = [0] * len(self.parts), [math.nan] * len(self.parts)
        self.state: State = {}  # the best weights: w, and buffers if there are any
        self.is_chosen_by_test = False  # as there were no other figures
        self.is_blind = False  # no figures: the run ended after a fixed number of rounds

    @property
    def is_over(self) -> bool:
        return self.is_blind or (self.patience is not None and self.waited >= self.patience)

    @property
    def round(self) -> int:
        """The last round from which weights are kept; 0: there is none."""
        return max(self.rounds)

    @property
    def value(self) -> float:
        """The metric by which they were chosen, in the mean over members."""
        return math.fsum(self.values) / len(self.values)

    @property
    def is_combined(self) -> bool:
        """Whether the kept weights are of several rounds: together they are a model that no round had."""
        return len(set(self.rounds)) > 1

    def restore(self, events: Sequence[Event], saved: State) -> None:
        """Take up the events of a run that was stopped, and the best model saved with its state."""
        self.state = {k.removeprefix(BEST): v for k, v in saved.items() if k.startswith(BEST)}
        state = self.state
        for event in events:
            if event["kind"] == "round":
                self.observe(event, lambda: state)

    def saved(self) -> State:
        """Return the best model as entries of a saved state."""
        return {f"{BEST}{k}": v.cpu() for k, v in self.state.items()}

    def observe(self, event: Mapping[str, Any], model: Callable[[], State]) -> bool:
        """Read the figures of a round; return whether its model is the best so far, and then keep it."""
        if self.patience is None or not event["round"]:
            return False
        # with a global test set, the held-out rows choose, and the test set judges
        has_test, figures = bool(len(self.plan.fed.test.y)), event.get("validation")
        if figures is None and not (has_test and self.plan.stop_by):
            figures = event
        if figures is None or "loss" not in figures:
            self.is_blind = bool(self.plan.stop_by) and not self.round and event["round"] >= BLIND_ROUNDS
            return False
        self.is_chosen_by_test = has_test and "validation" not in event
        self.metric = self.metric or judged_by(event, self.plan.stop_by or self.plan.metric)
        values = figures[MEMBERS] if len(self.parts) > 1 else [figures.get(self.metric, math.nan)]
        better = [k for k, value in enumerate(values) if self._is_better(k, value)]
        if not better:
            self.waited += 1
            return False
        self.waited = 0
        for k in better:
            self.rounds[k], self.values[k] = int(event["round"]), float(values[k])
        self._keep(better, model())
        return True

    def _is_better(self, k: int, value: float) -> bool:
        return math.isfinite(value) and (not self.rounds[k] or is_better(self.metric, value, self.values[k]))

    def _keep(self, better: Sequence[int], model: State) -> None:
        """Take these members' weights from a model, into new tensors: those before may be being saved."""
        now = {k: torch.clone(v) for k, v in model.items()}
        if self.state:
            kept, w = self.state["w"].to(now["w"].device), now["w"]
            for k in set(range(len(self.parts))) - set(better):
                w[self.parts[k]] = kept[self.parts[k]]
        self.state = now

    def explain(self, r: int) -> str:
        """Return the note of a run that ends after round r."""
        if not self.round:
            return (
                f"nothing to stop by: no party reports held-out rows (each has fewer than min_rows="
                f"{self.plan.min_rows}), so training ended after round {r} with its last model. Hold back "
                "more rows (held_fraction), lower min_rows, or hide updates (guard=SecAgg()): then the "
                "held-out rows of all parties are summed."
            )
        best = f"the model is that of round {self.round}, with the best {self.metric} ({self.value:.4f})"
        if len(self.parts) > 1:
            best = (
                f"the model's {len(self.parts)} networks are those of rounds "
                f"{', '.join(map(str, self.rounds))}, each with its own best {self.metric} "
                f"({self.value:.4f} in the mean)"
            )
        rows = "test" if self.is_chosen_by_test else "held-out"
        chosen = f"on the {rows} rows that chose it, so expect slightly less on new rows"
        of_any = " of any network" if len(self.parts) > 1 else ""
        if self.is_over:
            return (
                f"early stopping: no better {self.metric}{of_any} in {self.patience} evaluations after round "
                f"{self.round}, so training ended after round {r}; {best} {chosen}."
            )
        return f"early stopping: all {r} rounds were run; {best} {chosen}."


def without_best(saved: State) -> State:
    """Return a saved state without the best model in it."""
    return {k: v for k, v in saved.items() if not k.startswith(BEST)}
