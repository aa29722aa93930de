"""Model extraction: a copy of a model from its answers to queries.

F. Tramèr, F. Zhang, A. Juels, M. Reiter, T. Ristenpart: "Stealing Machine Learning Models via Prediction
APIs", USENIX Security 2016: `solve_linear`, their equation-solving attack on logistic models. M. Jagielski,
N. Carlini, D. Berthelot, A. Kurakin, N. Papernot: "High Accuracy and High Fidelity Extraction of Neural
Networks", USENIX Security 2020: `train_copy`, their learning-based attack, and agreement as its measure.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EXACT = (
    1e-3  # root mean squared error of log ratios, below which answers are taken for those of a linear model
)
SPARE = 5  # equations that are left to check a solution with
TINY = 1e-30  # probabilities below are too inexact for a logarithm


def solve_linear(x: Tensor, answers: Tensor) -> nn.Module | None:
    """The logistic model with exactly these probabilities [n, C]; None if there is none, or too few rows.

    log p_c − log p_0 is linear in the row. The last rows check what the others solve.
    """
    flat = x.double().reshape(len(x), -1)
    keep = (answers > TINY).all(1)
    design = torch.cat([flat[keep], flat.new_ones(int(keep.sum()), 1)], 1)
    if len(design) < design.shape[1] + SPARE:
        return None
    log = answers[keep].double().log()
    ratios = log - log[:, :1]
    solution = torch.linalg.lstsq(design[:-SPARE], ratios[:-SPARE], driver="gelsd").solution
    error = (design[-SPARE:] @ solution - ratios[-SPARE:]).square().mean().sqrt()
    if not error <= EXACT * (1 + ratios.abs().mean()):
        return None
    layer = nn.Linear(flat.shape[1], answers.shape[1])
    with torch.no_grad():
        layer.weight.copy_(solution[:-1].T)
        layer.bias.copy_(solution[-1])
    return nn.Sequential(nn.Flatten(), layer)


def train_copy(
    model: nn.Module,
    x: Tensor,
    answers: Tensor,
    *,
    steps: int = 500,
    lr: float = 3e-3,
    batch_size: int = 64,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> nn.Module:
    """Train `model` on the answers: probabilities [n, C] or labels [n] by cross-entropy, numbers by squares.

    Adam, whose rate falls to 0 by a cosine. `watch(done, all)` may return True to stop.
    """
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    falls = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for step in range(steps):
        at = torch.randint(0, len(x), (min(batch_size, len(x)),), generator=rng)
        out = model(x[at])
        loss = (
            F.mse_loss(out.reshape(-1), answers[at])
            if answers.is_floating_point() and answers.dim() == 1
            else F.cross_entropy(out, answers[at])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falls.step()
        if watch is not None and watch(step + 1, steps):
            break
    return model.eval()
