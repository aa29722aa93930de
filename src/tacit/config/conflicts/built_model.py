"""What only the built model shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import nn

from ...aggregate import Mean
from ...algorithms import FedPer
from ...algorithms.types import State
from ...engine.losses import classes_last
from ...engine.task import Task
from ...guard.guard import Layout
from ...topologies import Gossip
from .entry import Conflict, has_noise, name_of

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan


def _other_vectors(layout: Layout) -> list[str]:
    """Return what clients send in addition to the update of the model."""
    return [name for name in layout.shapes if name not in layout.known and name != "delta"]


def batch_loss(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    if p.private is not None and task.is_batch_loss:
        yield Conflict(
            "loss",
            "it returns one number for a batch, and DP-SGD clips the gradient of each row",
            "Return a loss per row, or leave out private.",
        )
    if p.objective.is_own and p.fed.classes is not None and p.runtime != "cohort" and len(task.x):
        y, out = task.y[:2], task.predict(start["w"], task.x[:2], start.get("buffers"))
        if p.objective.outputs.columns or tuple(classes_last(out, y).shape) != (*y.shape, p.fed.classes):
            yield Conflict(
                "loss",
                f"parties report counts by class, and the model returns {tuple(out.shape[1:])} numbers for "
                f"{p.fed.classes} classes",
                "Use runtime='cohort', or give the targets as numbers (regression=True).",
            )


def members(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    """What takes a model of several members for one network."""
    if task.members > 1 and p.private is not None:
        yield Conflict(
            "model",
            f"its {task.members} members would share the norm to which DP-SGD clips the gradient of a row",
            "Use models.MLP(members=1).",
        )
    if task.members > 1 and isinstance(p.algorithm, FedPer):
        yield Conflict(
            "model",
            f"the last layers of its {task.members} members are not the last layers of the model, which "
            f"{name_of(p.algorithm)} keeps at each party",
            "Use models.MLP(members=1).",
        )


def paced_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    """A pace that mixes models needs an algorithm whose clients send models."""
    if p.pace is not None and p.pace.sends_models and (others := _other_vectors(layout())):
        yield Conflict(
            "pace",
            f"{name_of(p.pace)} mixes models, and clients of {name_of(p.algorithm)} send {others[0]!r}",
            "Use FedAvg or FedProx with it, or FedBuff, which works on updates.",
        )


def aggregated_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    """A rule that cannot combine what the clients send, or does not know such a model: it raises itself."""
    if p.aggregate != Mean():
        p.aggregate.with_task(task, [p.fed.test.x])
        p.aggregate.check_uploads(layout().shapes, tuple(start["w"].shape))
    yield from ()


def gossip_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    state = p.algorithm.server_state(start["w"]) or p.algorithm.client_state(start["w"])
    if isinstance(p.topology, Gossip) and (state or _other_vectors(layout())):
        yield Conflict(
            "gossip",
            f"{name_of(p.algorithm)} needs a server, and here there is none",
            "Use FedAvg, LocalSGD or FedProx: they need local steps only.",
        )


def running_statistics(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    norms = [m for m in task.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if any(m.track_running_stats and m.momentum is None for m in norms):
        yield Conflict(
            "model",
            "a batch norm with momentum=None averages over all batches so far, which parties do not count",
            "Give it a momentum, like the default of 0.1.",
        )
    if "buffers" in start and has_noise(p):
        yield Conflict(
            "model",
            "it has running statistics, and noise would make a variance negative",
            "Use GroupNorm or LayerNorm.",
        )
