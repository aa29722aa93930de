"""What may share a stack, and whether stacking pays: by rule and not by stopwatch, so that the same seed gives the same bits on every run."""

from __future__ import annotations

import copy
import os
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from ..algorithms import Algorithm
from ..algorithms.types import State
from ..task import Task

CPU_STACK = 64e6  # bytes of one stack on a CPU: smaller ones cost more in Python, larger ones leave a core idle
STACK_BELOW = 4e6  # multiplications a client and step; above, on a CPU, one client fills a core and stacking only moves memory


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
    return all(getattr(a, f.name) == getattr(b, f.name) or (isinstance(getattr(a, f.name), float) and f.metadata.get("kind") == "a number")
               for f in fields(a))  # type: ignore[arg-type]


def work(task: Task, batch: int) -> float:
    """Multiplications of one forward pass over a batch: what decides whether one client can keep a core busy.

    A layer's weights are used once for every place of its output: once in a linear layer, once a pixel in a convolution.
    """
    total = 0.0

    def count(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal total
        out = out[0] if isinstance(out, tuple) else out
        total += sum(p.numel() * max(1.0, out.numel() / len(rows) / p.shape[0]) for p in module.parameters(recurse=False) if p.dim() > 1)

    rows = task.x[:1]
    if len(rows) == 0:
        return 0.0
    module = copy.deepcopy(task.module).to(task.x.device).eval()
    for part in module.modules():
        part.register_forward_hook(count)
    with torch.no_grad():
        module(rows)
    return max(total, float(task.dim)) * batch
