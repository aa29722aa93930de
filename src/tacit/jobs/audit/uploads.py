"""What the server of a run sees of a client's update: computed by the run's own engine and guard."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...algorithms.types import State
from ...audit.inversion import ClientSteps
from ...data.federation import Holdings, Rows
from ...engine.task import Task
from ...errors import BadParameter
from ...guard import Clients, Noise
from ...private import DPSGD
from ...runtimes.cohort import Cohort
from ..train.guards import fit
from ..train.local_dp import settings_of, terms
from ..train.plan import Plan, make_task

VICTIM = "victim"


class View(NamedTuple):
    """One update as the server has it, and what it knows of how it was made."""

    update: list[Tensor]  # (before − after) / η, for each trainable parameter
    client: ClientSteps
    parties: int  # how many parties' updates are in it
    words: str  # what the server sees, for people


def module_at_start(p: Plan) -> nn.Module:
    """The model that the server sends in the first round."""
    task = make_task(p)
    start = task.initial()
    return task.module_at(start["w"], start.get("buffers"))


def split_update(module: nn.Module, flat: Tensor, lr: float) -> list[Tensor]:
    """(before − after) / η of each parameter, from a flat difference after − before."""
    parameters = [q for q in module.parameters() if q.requires_grad]
    dimension = sum(q.numel() for q in parameters)
    if flat.dim() != 1 or len(flat) != dimension:
        raise BadParameter(
            f"invert: the update has shape {tuple(flat.shape)}, and the model has {dimension} trainable "
            "parameters. Give the difference after − before as one flat vector."
        )
    parts = torch.split(flat.detach().float().cpu() / -lr, [q.numel() for q in parameters])
    return [part.view_as(q) for part, q in zip(parts, parameters)]


def observe(p: Plan, module: nn.Module, rows: Rows) -> View:
    """Let a party with these rows take part in a round of the run; return what the server sees of it.

    Without secure aggregation it sees this party's update, with what the party's own guard did to it:
    clipped, rounded, and noisy if the noise is local. Noise that the server adds itself does not protect from
    the server. With it, the server sees the mean over all parties of the run.
    """
    lr, steps = _settings(p)
    alone = not any(s.hides for s in p.guard)
    plan = _with_victim(p, rows, alone)
    task = make_task(plan)
    start = start_at(task, module)
    caught: list[tuple[np.ndarray, Tensor, State]] = []
    cohort = Cohort(
        task,
        [start],
        [dataclasses.replace(plan.run(), choose=lambda _: np.arange(len(plan.fed)))],
        engine="auto" if p.private is None else "each",  # clients of DP-SGD are not stacked
    )
    cohort.on_upload = lambda who, weights, vectors: caught.append((who, weights, vectors))
    down = {k: v[0] for k, v in cohort.down(0.0).items()}
    cohort.round(0)
    who = np.concatenate([c[0] for c in caught])
    weights = torch.cat([c[1] for c in caught])
    vectors = {k: torch.cat([c[2][k] for c in caught]) for k in caught[0][2]}
    seen = {k: v[int(np.flatnonzero(who == 0)[0])] for k, v in vectors.items()}
    words = "this party's update" if p.private is None else "this party's update by DP-SGD"
    # noise that the server adds, it knows
    stages = tuple(s for s in plan.guard if not (isinstance(s, Noise) and s.placement == "central"))
    guard = fit(dataclasses.replace(plan, guard=stages), task, start) if stages else None
    if guard is not None:
        names = tuple(plan.fed.parties[k] for k in who)
        fresh = guard.client_state()
        memory = {k: v[None].expand(len(who), *v.shape).clone() for k, v in fresh.items()}
        me = Clients(names, 0, memory, guard.state, guard.insecure_seed)
        sent = guard.out(weights, vectors, down, me)
        if alone:
            sent = tuple(part[[int(np.flatnonzero(who == 0)[0])]] for part in sent)  # type: ignore[assignment]
        total, n = guard.total(*sent, 0)
        if guard.noise is not None:
            guard.expected = float(len(sent[0]))
        seen = guard.back(total, n, down, 0)
        words = (
            f"{words} after {' → '.join(type(s).__name__ for s in stages)}"
            if alone
            else f"the mean of {len(who)} parties' updates"
        )
    flat = seen["delta"] if "delta" in seen else seen["w"] - down["w"]
    count = len(plan.fed.train.index) if not alone else len(rows.y)
    batch = None if p.batch_size is None or not alone else min(p.batch_size, count)
    return View(
        split_update(module, flat, lr),
        ClientSteps(count, lr, batch, steps if alone else 1),
        len(who) if not alone else 1,
        words,
    )


def takes_gradient_steps(p: Plan) -> bool:
    """Whether clients send the result of gradient steps, of any optimizer."""
    return p.algorithm.solver is not None and p.algorithm.takes_steps


def sends_sgd_steps(p: Plan) -> bool:
    """Whether clients send the result of plain SGD steps, which can be turned into gradients."""
    return takes_gradient_steps(p) and type(p.algorithm.solver).__name__ == "SGD"


def _settings(p: Plan) -> tuple[float, int]:
    """The learning rate and the passes over the rows, of algorithms whose clients take plain SGD steps."""
    if not sends_sgd_steps(p):
        raise BadParameter(
            f"invert: clients of {type(p.algorithm).__name__} do not send the result of SGD steps. Give a "
            "model and an update instead."
        )
    return float(p.algorithm.lr), max(p.local_epochs)


def _with_victim(p: Plan, rows: Rows, alone: bool) -> Plan:
    fed = p.fed
    lists = [torch.arange(len(rows.y))]
    names: tuple[str, ...] = (VICTIM,)
    x, y = rows.matrix("invert"), rows.y
    if not alone:  # the other parties are those of the run; the victim takes the place of its first
        first = len(rows.y)
        x, y = torch.cat([x, fed.rows.matrix("invert")]), torch.cat([y, fed.rows.y])
        lists += [fed.train.of(k) + first for k in range(1, len(fed))]
        names = (VICTIM, *fed.parties[1:])
    made = dataclasses.replace(
        fed,
        rows=Rows(x, y),
        train=Holdings.from_lists(lists),
        held=Holdings.from_lists([[] for _ in lists]),
        parties=names,
        skew=None,
        persons=None,
        subgroups=None,
        source=None,
    )
    epochs = (max(p.local_epochs),) * len(names)
    sizes = None if p.public_sizes is None else (len(rows.y), *(() if alone else p.public_sizes[1:]))
    return dataclasses.replace(
        p,
        fed=made,
        per_round=len(names),
        local_epochs=epochs,
        members=None,
        adversaries=None,
        runtime="cohort",
        through=None,
        topology=None,
        pace=None,
        speed=None,
        select=None,
        sampling="fixed",
        public_sizes=sizes,
        private=None if p.private is None else _least_noise(p),
    )


def _least_noise(p: Plan) -> DPSGD:
    """DP-SGD with the noise of the party that adds the least of it.

    All rows of the victim are in each of its batches. Noise calibrated to that would exceed the run's.
    """
    s = settings_of(p)
    if not s.private:
        return s
    parties = zip(p.sizes.tolist(), p.local_epochs)
    releases = [terms(p, size, epochs).release for size, epochs in set(parties)]
    least = min(release.multiplier for release in releases if release is not None)
    return dataclasses.replace(s, epsilon=None, noise_multiplier=least)


def start_at(task: Task, module: nn.Module) -> State:
    """The server's state with the weights of a module."""
    start = task.initial()
    values = dict(module.named_parameters())
    start["w"] = torch.cat([values[s.name].detach().reshape(-1).float() for s in task.parameters]).to(
        start["w"].device
    )
    return start
