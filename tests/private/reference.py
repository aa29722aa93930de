"""DP-SGD one example at a time, as Abadi et al. write it: the plain reference that the fast way is held
to.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def each_gradient(model, x, y, loss=F.cross_entropy):
    """A list of gradients for each example, parameter by parameter."""
    learn = [p for p in model.parameters() if p.requires_grad]
    return [
        [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(
                torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), learn, allow_unused=True), learn
            )
        ]
        for i in range(len(x))
    ]


def clipped_sum(gradients, clip=None, kind="flat", gamma=0.01, groups=None):
    """Σ of each example's gradient under its own factor. `groups` are lists of parameters that are clipped
    together, for kind="per-layer".
    """
    total = [torch.zeros_like(g) for g in gradients[0]]
    parts = groups if kind == "per-layer" else [list(range(len(total)))]
    for each in gradients:
        for part in parts:
            norm = math.sqrt(sum(float(each[k].double().square().sum()) for k in part))
            bound = None if clip is None else clip / math.sqrt(len(parts))
            c = (
                1.0
                if bound is None
                else bound / (norm + gamma)
                if kind == "automatic"
                else min(1.0, bound / max(norm, 1e-30))
            )
            for k in part:
                total[k] += c * each[k]
    return total


def close(got, want, tolerance=1e-5):
    """‖got − want‖ ≤ tolerance · ‖want‖ over all parameters together."""
    off = math.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in zip(got, want)))
    size = math.sqrt(sum(float(b.double().square().sum()) for b in want))
    return off <= tolerance * max(size, 1e-12)
