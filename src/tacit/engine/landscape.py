"""The loss landscape around the global model and the local optima, along lines and on a plane.

Directions are filter-normalized (H. Li et al.: "Visualizing the Loss Landscape of Neural Nets", NeurIPS
2018): each filter of a direction gets the norm of the model's filter, so that the scale of layers does not
distort the curvature.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data.inputs import Features
from .task import Task

PARTIES = 5  # the number of curves that a reader can distinguish
POINTS, SIDE = 21, 15  # points along a line, and along each side of the plane


def normalize_filters(task: Task, direction: Tensor, w: Tensor) -> Tensor:
    """Scale every filter (first axis of a weight) of `direction` to its norm in `w`; biases as a whole."""
    out = torch.empty_like(direction)
    for slot in task.parameters:
        d, v = direction[slot.start : slot.stop], w[slot.start : slot.stop]
        rows = slot.shape[0] if len(slot.shape) > 1 else 1
        d, v = d.reshape(rows, -1), v.reshape(rows, -1)
        out[slot.start : slot.stop] = (d * (v.norm(dim=1) / (d.norm(dim=1) + 1e-12))[:, None]).reshape(-1)
    return out


def losses(task: Task, models: Tensor, x: Features, y: Tensor, buffers: Tensor | None) -> list[float]:
    """The mean loss of each of the models [M, D] on the rows."""
    return [float(task._loss(task.predict(w, x, buffers), y).mean()) for w in models]


def landscape(
    task: Task, w: Tensor, optima: dict[str, Tensor], x: Features, y: Tensor, buffers: Tensor | None = None
) -> dict[str, Any]:
    """The event `landscape`: the loss along lines and on a plane.

    The lines lead from the global model (t = 0) through each party's optimum (t = 1) and through the mean
    of the optima; the plane is spanned by the first two principal directions of the optima.
    """
    names = list(optima)[:PARTIES]
    t = torch.linspace(-0.5, 1.5, POINTS).to(w)
    curves = [losses(task, w + t[:, None] * (optima[name] - w), x, y, buffers) for name in names]
    deltas = torch.stack([optima[name] - w for name in optima])
    if len(deltas) >= 2:
        basis = torch.linalg.svd(deltas, full_matrices=False).Vh[
            :2
        ]  # the directions in which the optima differ most
    else:
        basis = torch.randn(2, len(w), generator=torch.Generator().manual_seed(0)).to(w)
    a, b = (normalize_filters(task, d, w) for d in basis)
    # the optima, projected onto the plane
    solution = torch.linalg.lstsq(torch.stack([a, b], 1).double().cpu(), deltas.T.double().cpu()).solution.T
    reach = max(0.1, 1.5 * float(solution.abs().max()))
    steps = torch.linspace(-reach, reach, SIDE).to(w)
    # a row for each step along b
    plane = [losses(task, w + steps[:, None] * a + q * b, x, y, buffers) for q in steps]
    points = [{"name": "global", "a": 0.0, "b": 0.0}] + [
        {"name": n, "a": float(s[0]), "b": float(s[1])} for n, s in list(zip(optima, solution))[:PARTIES]
    ]
    mean_line = losses(task, w + t[:, None] * deltas.mean(0), x, y, buffers)
    return {
        "line": {"t": t.tolist(), "loss": curves, "global": mean_line, "names": names},
        "plane": {"a": steps.tolist(), "b": steps.tolist(), "loss": plane, "points": points},
    }
