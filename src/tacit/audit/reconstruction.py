"""Rows rebuilt from the activations made of them. Z. He, T. Zhang, R. Lee: Model Inversion Attacks Against
Collaborative Inference, ACSAC 2019.

`learned`: the attacker can put rows of its own through the part (or has a copy of it), and trains a network
that goes back from activations to rows. `fitted`: it has the part's weights, and searches the row whose
activations are those it saw (their rMLE). Both are scored on rows the attacker never had: the share of their
variance that is rebuilt, and how often a rebuilt row is nearest to its own original among all.
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
    """`rebuilt` beside `original`, in the attacker's best guess. `variance`: 1 − mean squared error /
    variance, 1 is all, 0 no better than the mean row; `recognised`: how often a rebuilt row is nearest to its
    own original; by chance one in `rows`.
    """

    original: Tensor = field(repr=False)
    rebuilt: Tensor = field(repr=False)
    attack: str
    variance: float
    recognised: float

    @property
    def rows(self) -> int:
        return len(self.original)


def _scored(original: Tensor, rebuilt: Tensor, mean: Tensor, attack: str) -> Reconstruction:
    flat, made = original.reshape(len(original), -1).double(), rebuilt.reshape(len(rebuilt), -1).double()
    spread = float(((flat - mean.reshape(1, -1).double()) ** 2).mean())
    error = float(((flat - made) ** 2).mean())
    nearest = torch.cdist(made, flat).argmin(1)
    return Reconstruction(
        original,
        rebuilt.reshape(original.shape),
        attack,
        1 - error / spread if spread else 0.0,
        float((nearest == torch.arange(len(flat))).double().mean()),
    )


def _rows(name: str, x: Any) -> Tensor:
    made = torch.as_tensor(x).float()
    if made.dim() < 2 or len(made) < 2:
        raise BadData(f"reconstruction: {name} has shape {tuple(made.shape)}; give at least two rows.")
    return made


def learned(
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
    """Train a decoder on (part(own), own), and use it on part(victims). `part` is what leaves the cut, guards
    included.
    """
    mine, theirs = _rows("own", own), _rows("victims", victims)
    if mine.shape[1:] != theirs.shape[1:]:
        raise BadData(
            f"reconstruction: own rows have shape {tuple(mine.shape[1:])}, the victims' "
            f"{tuple(theirs.shape[1:])}; they must be alike."
        )
    with torch.no_grad():
        z, target = part(mine).reshape(len(mine), -1), mine.reshape(len(mine), -1)
        seen = part(theirs).reshape(len(theirs), -1)
    std, mean = torch.std_mean(z, 0)
    std = std.clamp(
        min=float(0.05 * std.mean()) or 1.0
    )  # a unit that hardly moves on own rows says nothing, and must not shout on others
    centre, low, high = target.mean(0), target.min(0).values, target.max(0).values
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
            for rows in torch.randperm(len(z)).split(batch):
                step.zero_grad()
                ((decoder((z[rows] - mean) / std) + centre - target[rows]) ** 2).mean().backward()
                step.step()
    with torch.no_grad():
        return _scored(theirs, (decoder((seen - mean) / std) + centre).clamp(low, high), centre, "learned")


def fitted(
    part: Part,
    activations: Any,
    victims: Any,
    mean: Any,
    *,
    steps: int = 300,
    lr: float = 0.05,
    smooth: float = 0.0,
) -> Reconstruction:
    """With the part's weights: from the mean row, descend on ‖part(x) − activations‖² (+ `smooth` times the
    total variation of pictures).
    """
    theirs, z = _rows("victims", victims), torch.as_tensor(activations).float()
    if len(z) != len(theirs):
        raise bad(
            "reconstruction",
            "activations",
            len(z),
            f"as many as victims, {len(theirs)}: they are only there to score the attack",
        )
    centre = torch.as_tensor(mean).float()
    x = centre.expand_as(theirs).clone().requires_grad_()
    step = torch.optim.Adam([x], lr=lr)
    for _ in range(steps):
        step.zero_grad()
        loss = ((part(x) - z) ** 2).reshape(len(z), -1).sum(1).mean()
        if smooth and x.dim() > 2:
            loss = loss + smooth * ((x.diff(dim=-1) ** 2).sum() + (x.diff(dim=-2) ** 2).sum()) / len(x)
        loss.backward()
        step.step()
    return _scored(theirs, x.detach(), centre, "fitted")


def picture_shape(row: Tensor) -> tuple[int, int] | None:
    """(height, width) of a row that is a grey picture: two-dimensional, or a flat square of at least 8×8;
    else None.
    """
    shape = tuple(row.shape)
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 2:
        return int(shape[0]), int(shape[1])
    side = math.isqrt(row.numel())
    return (side, side) if len(shape) == 1 and side * side == row.numel() and side >= 8 else None
