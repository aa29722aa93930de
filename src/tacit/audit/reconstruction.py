"""Model inversion: reconstruct rows from their activations.

Z. He, T. Zhang, R. Lee: Model Inversion Attacks Against Collaborative Inference, ACSAC 2019.
`train_decoder`: the attacker can evaluate the model part on its own rows, and trains a network that maps
activations to rows. `optimize_rows`: it has the weights of the part, and searches for rows with the
observed activations (rMLE in the paper). Both are scored on rows that the attacker does not have: by the
share of variance that is reconstructed, and by how often a reconstructed row is nearest to its own
original.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadData
from ..parameters import bad

Part = Callable[[Tensor], Tensor]


@dataclass
class Reconstruction:
    """Original rows and their reconstructions.

    `variance` is 1 − mean squared error / variance: 1 is exact, 0 no better than the mean row. `recognized`
    is how often a reconstructed row is nearest to its own original; by chance, one in `rows`.
    """

    original: Tensor = field(repr=False)
    rebuilt: Tensor = field(repr=False)
    attack: str
    variance: float
    recognized: float

    @property
    def rows(self) -> int:
        return len(self.original)


def _score(original: Tensor, rebuilt: Tensor, mean: Tensor, attack: str) -> Reconstruction:
    flat, guess = original.reshape(len(original), -1).double(), rebuilt.reshape(len(rebuilt), -1).double()
    spread = float(((flat - mean.reshape(1, -1).double()) ** 2).mean())
    error = float(((flat - guess) ** 2).mean())
    nearest = torch.cdist(guess, flat).argmin(1)
    return Reconstruction(
        original,
        rebuilt.reshape(original.shape),
        attack,
        1 - error / spread if spread else 0.0,
        float((nearest == torch.arange(len(flat))).double().mean()),
    )


def _rows(name: str, x: Any) -> Tensor:
    rows = torch.as_tensor(x).float()
    if rows.dim() < 2 or len(rows) < 2:
        raise BadData(
            f"reconstruction: {name} has shape {tuple(rows.shape)}; it must have at least two rows."
        )
    return rows


def train_decoder(
    part: Part,
    own: Any,
    victims: Any,
    *,
    epochs: int = 30,
    width: int = 256,
    lr: float = 1e-3,
    batch: int = 64,
    seed: int = 0,
) -> Reconstruction:
    """Train a decoder on (part(own), own), and apply it to part(victims).

    `part` computes what crosses the cut layer, including guards.
    """
    mine, theirs = _rows("own", own), _rows("victims", victims)
    if mine.shape[1:] != theirs.shape[1:]:
        raise BadData(
            f"reconstruction: own rows have shape {tuple(mine.shape[1:])} and the victims' rows "
            f"{tuple(theirs.shape[1:])}; the shapes must be equal."
        )
    with torch.no_grad():
        z, target = part(mine).reshape(len(mine), -1), mine.reshape(len(mine), -1)
        observed = part(theirs).reshape(len(theirs), -1)
    std, mean = torch.std_mean(z, 0)
    # a unit that is almost constant on the own rows must not be amplified on others
    std = std.clamp(min=float(0.05 * std.mean()) or 1.0)
    center, low, high = target.mean(0), target.min(0).values, target.max(0).values
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        decoder = nn.Sequential(
            nn.Linear(z.shape[1], width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, target.shape[1]),
        )
        step = torch.optim.Adam(decoder.parameters(), lr=lr)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(z)), batch):
                step.zero_grad()
                ((decoder((z[rows] - mean) / std) + center - target[rows]) ** 2).mean().backward()
                step.step()
    with torch.no_grad():
        return _score(theirs, (decoder((observed - mean) / std) + center).clamp(low, high), center, "learned")


def optimize_rows(
    part: Part,
    activations: Any,
    victims: Any,
    mean: Any,
    *,
    steps: int = 300,
    lr: float = 0.05,
    smooth: float = 0.0,
) -> Reconstruction:
    """Minimize ‖part(x) − activations‖² from the mean row, plus `smooth` times the total variation of
    images.
    """
    theirs, z = _rows("victims", victims), torch.as_tensor(activations).float()
    if len(z) != len(theirs):
        raise bad(
            "reconstruction",
            "activations",
            len(z),
            f"as many as victims, {len(theirs)}, with which the attack is scored",
        )
    center = torch.as_tensor(mean).float()
    x = center.expand_as(theirs).clone().requires_grad_()
    step = torch.optim.Adam([x], lr=lr)
    for _ in range(steps):
        step.zero_grad()
        loss = ((part(x) - z) ** 2).reshape(len(z), -1).sum(1).mean()
        if smooth and x.dim() > 2:
            loss = loss + smooth * ((x.diff(dim=-1) ** 2).sum() + (x.diff(dim=-2) ** 2).sum()) / len(x)
        torch.autograd.backward(loss)
        step.step()
    return _score(theirs, x.detach(), center, "fitted")


def picture_shape(row: Tensor) -> tuple[int, int] | None:
    """(height, width) of a row that is a grayscale image: two-dimensional, or a flat square from 8×8."""
    shape = tuple(row.shape)
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    side = math.isqrt(row.numel())
    return (side, side) if len(shape) == 1 and side * side == row.numel() and side >= 8 else None
