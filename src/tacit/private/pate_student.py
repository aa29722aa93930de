"""The student: what is published. It learns from the answered questions, and from the public rows that nobody
labelled.

T. Miyato, S. Maeda, M. Koyama, S. Ishii: "Virtual Adversarial Training: A Regularization Method for
Supervised and Semi-Supervised Learning", TPAMI 2019, Algorithm 1 and Equation 8, with the entropy of Equation
15 (VAT+EntMin). The papers on PATE train a GAN instead (Salimans and others 2016); a smooth decision near
every public row does as much for these students, needs one network, and knows nothing of images.

Labels and public rows are all it sees: whatever it does with them costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..parameters import choice, real, whole

XI = 1e-2  # ξ, in radii: how far the direction is probed; the page's 10⁻⁶ drowns in float32
ABOUND = 4  # unlabelled rows for each label, above which `auto` uses them
NEIGHBOURS = 1000  # public rows whose nearest neighbour says how far apart rows lie


@dataclass(frozen=True)
class Lessons:
    """How each teacher learns from its own rows: Adam, from a start of its own."""

    epochs: int = whole(50, least=1, doc="passes over a teacher's rows")
    lr: float = real(1e-3, above=0, doc="learning rate")
    batch_size: int = whole(32, least=1, doc="rows a step")


@dataclass(frozen=True)
class Student:
    """How the student learns. `vat` asks that the prediction at a public row stays the same in the worst
    direction around it.
    """

    method: str = choice(
        "auto",
        ("auto", "vat", "supervised"),
        doc="auto: vat where there are four unlabelled rows or more for each label, else supervised",
    )
    steps: int = whole(2000, least=1, doc="steps of Adam")
    lr: float = real(
        1e-3, above=0, doc="learning rate; over the second half it falls to nothing along a line"
    )
    batch_size: int = whole(64, least=1, doc="labelled rows a step")
    unlabelled: int = whole(256, least=1, doc="unlabelled rows a step")
    radius: float = real(
        0.5, above=0, doc="ε of VAT, in distances from a public row to its nearest neighbour (the median)"
    )
    ramp: float = real(
        0.4,
        least=0,
        most=1,
        doc="the share of the steps over which the unlabelled rows gain their full weight",
    )
    shift: int | None = whole(
        None,
        least=0,
        none=True,
        doc="pixels by which images are moved at random; None: a fourteenth of their side, 0: not at all",
    )

    def semi(self, labelled: int, public: int) -> bool:
        return self.method == "vat" or (self.method == "auto" and public >= ABOUND * labelled)

    def teach(self, module: nn.Module, x: Tensor, y: Tensor, public: Tensor, seed: int) -> nn.Module:
        """The module trained on (x, y) and the rows `public`, on the device they are on. The caller's random
        state is left as it was.
        """
        device = x.device
        draw = torch.Generator(device).manual_seed(seed)
        module = module.to(device).train()
        optimizer = torch.optim.Adam(module.parameters(), lr=self.lr)
        semi = self.semi(len(x), len(public)) and public.is_floating_point()
        radius = self.radius * nearest(public, seed) if semi else 0.0
        side = min(x.shape[2:]) if x.dim() == 4 else 0
        shift = 0 if x.dim() != 4 else side // 14 if self.shift is None else self.shift
        for step in range(self.steps):
            for group in optimizer.param_groups:
                group["lr"] = self.lr * min(1.0, 2 * (1 - step / self.steps))
            rows = torch.randint(len(x), (min(self.batch_size, len(x)),), device=device, generator=draw)
            loss = nn.functional.cross_entropy(module(moved(x[rows], shift, draw)), y[rows])
            if semi:
                seen = public[
                    torch.randint(
                        len(public), (min(self.unlabelled, len(public)),), device=device, generator=draw
                    )
                ]
                # a network that knows nothing yet would only be told to stay sure of it
                weight = min(1.0, step / max(self.ramp * self.steps, 1.0)) if self.ramp else 1.0
                loss = loss + weight * smoothness(module, moved(seen, shift, draw), radius, draw)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return module.eval()


def moved(x: Tensor, shift: int, draw: torch.Generator) -> Tensor:
    """Each image moved by up to `shift` pixels in each direction, its edge repeated."""
    if not shift:
        return x
    n, _, height, width = x.shape
    wide = nn.functional.pad(x, (shift,) * 4, mode="replicate")
    down, right = (torch.randint(2 * shift + 1, (n, 1), device=x.device, generator=draw) for _ in range(2))
    rows = (torch.arange(height, device=x.device) + down)[:, :, None]
    columns = (torch.arange(width, device=x.device) + right)[:, None, :]
    return wide.permute(0, 2, 3, 1)[torch.arange(n, device=x.device)[:, None, None], rows, columns].permute(
        0, 3, 1, 2
    )


def smoothness(module: nn.Module, x: Tensor, radius: float, draw: torch.Generator) -> Tensor:
    """LDS(x) + H(x): how much the prediction changes in its worst direction, and how undecided it is."""
    plain = module(x)
    target = plain.detach().log_softmax(1)
    d = torch.randn(x.shape, device=x.device, generator=draw, dtype=x.dtype)
    d = (XI * radius * _unit(d)).requires_grad_()
    (g,) = torch.autograd.grad(_divergence(target, module(x + d)), d)  # Algorithm 1, line 3
    r = radius * _unit(g)
    entropy = -(plain.softmax(1) * plain.log_softmax(1)).sum(1).mean()
    return _divergence(target, module(x + r)) + entropy


def _unit(d: Tensor) -> Tensor:
    flat = d.flatten(1)
    return (flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)).view_as(d)


def _divergence(target: Tensor, out: Tensor) -> Tensor:
    return nn.functional.kl_div(out.log_softmax(1), target, log_target=True, reduction="batchmean")


def nearest(public: Tensor, seed: int) -> float:
    """The median distance from a public row to the one nearest to it."""
    order = torch.randperm(len(public), generator=torch.Generator().manual_seed(seed))[:NEIGHBOURS].to(
        public.device
    )
    flat = public.flatten(1)
    apart: Any = torch.cdist(flat[order], flat)
    apart[torch.arange(len(order), device=public.device), order] = float("inf")
    found = apart.min(1).values
    return float(found[found.isfinite()].median()) if len(public) > 1 else 1.0
