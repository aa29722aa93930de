"""What cannot be combined in one training run: the one table that train, plan, compare, study and parties
read.

An entry is a function that yields a `Conflict` (which option, why, what to do instead) for a plan it does
not allow. `ENTRIES` run when a plan is built; `MODEL_ENTRIES` also need the model, and run before training
starts and in `plan`. A new option of `train` adds its entries here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...algorithms.types import State
from ...engine.task import Task
from ...errors import BadParameter
from ...guard.guard import Layout
from . import built_model, local_work, run, schedule, sums
from .entry import Conflict

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan

__all__ = ["ENTRIES", "MODEL_ENTRIES", "Conflict", "check", "check_model", "check_resume"]

ENTRIES: tuple[Callable[[Plan], Iterator[Conflict]], ...] = (
    sums.single_updates,
    sums.aggregation,
    sums.adversaries,
    sums.selection,
    sums.hidden_sums,
    sums.division,
    schedule.gossip,
    sums.sampling,
    schedule.pace,
    schedule.speed,
    schedule.hierarchy,
    local_work.private,
    run.preparation,
    local_work.objective,
    local_work.own_metrics,
    local_work.own_loop,
    local_work.own_optimizer,
    local_work.cross_validation,
    run.model_kind,
    run.judging,
    run.patience,
    run.runtime,
    sums.too_few_updates,
)
MODEL_ENTRIES: tuple[Callable[[Plan, Task, State, Callable[[], Layout]], Iterator[Conflict]], ...] = (
    built_model.batch_loss,
    built_model.members,
    built_model.aggregated_model,
    built_model.paced_model,
    built_model.gossip_model,
    built_model.running_statistics,
)


def check(p: Plan) -> None:
    """Raise BadParameter for the first conflict between the options of a plan."""
    for entry in ENTRIES:
        for conflict in entry(p):
            raise BadParameter(str(conflict))


def check_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> None:
    """Raise BadParameter for the first conflict between the options of a plan and its model."""
    for entry in MODEL_ENTRIES:
        for conflict in entry(p, task, start, layout):
            raise BadParameter(str(conflict))


def check_resume(p: Plan) -> None:
    """Raise BadParameter if a run of this plan cannot be resumed."""
    for conflict in run.resume(p):
        raise BadParameter(str(conflict))
