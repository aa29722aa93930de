"""What may share a stack, and whether stacking pays: by rule and not by stopwatch, so that the same seed
gives the same bits on every run.
"""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..algorithms import Algorithm
from ..algorithms.types import Batch, LocalState, State
from ..data.federation import Rows
from .task import Task

CPU_STACK = (
    64e6  # bytes of one stack on a CPU: smaller ones cost more in Python, larger ones leave a core idle
)
# multiplications a client and step; above, on a CPU, one client fills a core and stacking only moves memory
STACK_BELOW = 4e6


def cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def differing(algorithms: list[Algorithm], device: torch.device) -> State:
    """The hyper-parameters that are not the same in every run, as one tensor each."""
    out = {}
    for f in fields(algorithms[0]):  # type: ignore[arg-type]
        values = [getattr(a, f.name) for a in algorithms]
        if any(v != values[0] for v in values):
            out[f.name] = torch.tensor(values, device=device)
    return out


def stackable(a: Algorithm, b: Algorithm) -> bool:
    """Whether two algorithms differ in plain numbers only, so that their runs can share a stack."""
    if type(a) is not type(b):
        return False
    return all(
        getattr(a, f.name) == getattr(b, f.name)
        or (isinstance(getattr(a, f.name), float) and f.metadata.get("kind") == "a number")
        for f in fields(a)  # type: ignore[arg-type]
    )


def work(task: Task, batch: int) -> float:
    """Multiplications of one forward pass over a batch: what decides whether one client can keep a core busy.

    A layer's weights are used once for every place of its output: once in a linear layer, once a pixel in a
    convolution.
    """
    total = 0.0

    def count(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal total
        out = out[0] if isinstance(out, tuple) else out
        if isinstance(module, nn.RNNBase):  # every gate's weights are used once a token
            total += sum(p.numel() for p in module.parameters() if p.dim() > 1) * task.x.shape[1]
            return
        total += sum(
            p.numel() * max(1.0, out.numel() / len(rows) / p.shape[0])
            for p in module.parameters(recurse=False)
            if p.dim() > 1
        )

    rows = task.x[:1]
    if len(rows) == 0:
        return 0.0
    module = copy.deepcopy(task.module).to(task.x.device).eval()
    for part in module.modules():
        part.register_forward_hook(count)
    with torch.no_grad():
        module(rows)
    return max(total, float(task.dim)) * batch


def cannot_stack(task: Task, w: Tensor, buffers: Tensor | None) -> str:
    """Try one step of two clients that start from w; torch's own words if that fails."""
    stacked, device = task.for_stacking(), w.device
    riding = {} if buffers is None else {"buffers": buffers.expand(2, -1)}

    def one(w: Tensor, riding: State, index: Tensor) -> Tensor:
        batch = Batch(index, torch.ones(2, device=device), torch.zeros((), dtype=torch.int64, device=device))
        return stacked.gradient(LocalState(w, riding, {}, w[0]), batch)[0]

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it would silently loop over the clients
            torch.vmap(one, in_dims=(0, {k: 0 for k in riding} or None, 0))(
                w.expand(2, -1), riding, torch.zeros(2, 2, dtype=torch.int64, device=device)
            )
    except torch.OutOfMemoryError:
        raise
    # whatever it is: one client after the other will meet it again if the model itself is at fault
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def of_like_size(sizes: np.ndarray) -> list[np.ndarray]:
    """Clients, the largest first, cut where one has less than half of the rows of the first beside it: where
    a step takes all rows, everyone's are padded to those of the largest.
    """
    parts = [np.argsort(-sizes, kind="stable")]
    while (small := np.flatnonzero(2 * sizes[parts[-1]] < sizes[parts[-1][0]])).size:
        parts[-1:] = np.split(parts[-1], small[:1])
    return parts


def one_table(tables: list[Rows], device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
    """The runs' rows in one table, and where each run's begin in it; runs that share theirs share it here
    too.
    """
    begins: dict[tuple[int, int], int] = {}
    parts, at, offset = [], 0, []
    for t in tables:
        name = (id(t.x), id(t.y))
        if name not in begins:
            begins[name] = at
            parts.append((t.x.to(device), t.y.to(device)))
            at += len(t.x)
        offset.append(begins[name])
    if len(parts) == 1:
        return *parts[0], offset
    xs, ys = zip(*parts)
    return torch.cat(xs), torch.cat(ys), offset
