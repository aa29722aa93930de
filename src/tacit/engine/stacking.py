"""Which runs can share a stack, and whether stacking is faster.

The decision follows from fixed rules, not from measured times, so that the same seed gives the same bits.
"""

from __future__ import annotations

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
from ..data.inputs import Features, concatenate
from .calling import call
from .task import Task

CPU_STACK = (
    64e6  # bytes of one stack on a CPU: smaller stacks have more Python overhead, larger ones idle cores
)
# multiplications of a client's step; above, on a CPU, one client keeps a core busy and stacking only moves
# memory
STACK_BELOW = 4e6
# multiplications of a client's step; above, on a GPU, torch's own kernels for each client, several clients
# side by side, are faster than products for a stack, which copies patches and scores of attention
STREAMS_ABOVE = 5e9
STREAMS = 5  # of a GPU, for clients whose steps are recorded side by side


def cores() -> int:
    """The number of cores this process may use; in a container there may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def differing(algorithms: list[Algorithm], device: torch.device) -> State:
    """The hyperparameters that differ between runs, as one tensor each."""
    out = {}
    for f in fields(algorithms[0]):  # type: ignore[arg-type]
        values = [getattr(a, f.name) for a in algorithms]
        if any(v != values[0] for v in values):
            out[f.name] = torch.tensor(values, device=device)
    return out


def can_share_stack(a: Algorithm, b: Algorithm) -> bool:
    """Whether two algorithms differ only in real-valued parameters, so that their runs can share a stack."""
    if type(a) is not type(b):
        return False
    return all(
        getattr(a, f.name) == getattr(b, f.name)
        or (isinstance(getattr(a, f.name), float) and f.metadata.get("kind") == "a number")
        for f in fields(a)  # type: ignore[arg-type]
    )


def work(task: Task, batch: int) -> float:
    """The number of multiplications of a forward pass over a batch.

    A layer's weights are used once for every position of its output: once in a linear layer, once for each
    pixel in a convolution.
    """
    total = 0.0

    def count(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal total
        out = out[0] if isinstance(out, tuple) else out
        if not isinstance(out, Tensor):  # of the whole model, such as an object with `logits`
            return
        if isinstance(module, nn.RNNBase):  # every gate's weights are used once a token
            steps = out.numel() / len(rows) / out.shape[-1] if out.dim() > 2 else 1.0
            total += sum(p.numel() for p in module.parameters() if p.dim() > 1) * steps
            return
        total += sum(
            p.numel() * max(1.0, out.numel() / len(rows) / p.shape[0])
            for p in module.parameters(recurse=False)
            if p.dim() > 1
        )

    rows = task.x[:1]
    if len(rows) == 0:
        return 0.0
    module = task.copy().eval()
    for part in module.modules():
        part.register_forward_hook(count)
    with torch.no_grad():
        call(module, rows, task.part)
    return max(total, float(task.dim)) * batch


def cannot_stack(task: Task, w: Tensor, buffers: Tensor | None) -> str:
    """Try one step of two stacked clients that start from w; return torch's error message if that fails."""
    stacked, device = task.for_stacking(), w.device
    stacked_buffers = {} if buffers is None else {"buffers": buffers.expand(2, -1)}

    def one(w: Tensor, stacked_buffers: State, index: Tensor) -> Tensor:
        batch = Batch(index, torch.ones(2, device=device), torch.zeros((), dtype=torch.int64, device=device))
        return stacked.gradient(LocalState(w, stacked_buffers, {}, w[0]), batch)[0]

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns if it loops over the clients
            torch.vmap(one, in_dims=(0, {k: 0 for k in stacked_buffers} or None, 0))(
                w.expand(2, -1), stacked_buffers, torch.zeros(2, 2, dtype=torch.int64, device=device)
            )
    except torch.OutOfMemoryError:
        raise
    # if the model itself is at fault, running the clients one by one will raise the error again
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def cannot_record(task: Task, w: Tensor, buffers: Tensor | None, compiles: bool = False) -> str:
    """Record one client's step as a CUDA graph; return torch's error message if that fails."""
    recorded, device = task.for_recording(compiles), w.device
    batch = Batch(
        torch.zeros(2, dtype=torch.int64, device=device),
        torch.ones(2, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )
    state = LocalState(w[0], {} if buffers is None else {"buffers": buffers[0]}, {}, w[0, 0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.no_grad():
            with torch.cuda.stream(stream):  # libraries allocate workspaces before recording
                recorded.gradient(state, batch)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
                recorded.gradient(state, batch)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def group_by_size(sizes: np.ndarray) -> list[np.ndarray]:
    """Groups of clients, largest first; no client has less than half the rows of the largest in its group.

    If a step uses all rows of a client, all clients of a stack are padded to the largest.
    """
    parts = [np.argsort(-sizes, kind="stable")]
    while (small := np.flatnonzero(2 * sizes[parts[-1]] < sizes[parts[-1][0]])).size:
        parts[-1:] = np.split(parts[-1], small[:1])
    return parts


def join_tables(tables: list[Rows], device: torch.device) -> tuple[Features, Tensor, list[int]]:
    """The rows of all runs in one table, without duplicates, and the offset of each run's rows."""
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
    return concatenate(xs), torch.cat(ys), offset
