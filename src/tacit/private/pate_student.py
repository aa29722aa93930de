"""The student of PATE, which is published.

T. Miyato, S. Maeda, M. Koyama, S. Ishii: *Virtual Adversarial Training: A Regularization Method for
Supervised and Semi-Supervised Learning*, TPAMI 2019, Algorithm 1 and Equation 8, with the entropy of Equation
15 (VAT+EntMin). The PATE papers train a GAN instead (Salimans et al. 2016); smooth predictions near every
public row work as well for these students, need one network, and are not specific to images.

The student learns from the answered queries and from unlabeled public rows only, so its training costs no
privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..parameters import choice, real, whole

XI = 1e-2  # ξ, relative to the radius; the paper's 10⁻⁶ is below float32 precision
MIN_UNLABELED = 4  # unlabeled rows per label from which `auto` uses them
NEIGHBORS = 1000  # public rows from which the typical distance is estimated


@dataclass(frozen=True)
class Lessons:
    """How each teacher is trained on its own rows: Adam, from its own initial weights."""

    epochs: int = whole(50, least=1, doc="epochs over a teacher's rows")
    lr: float = real(1e-3, above=0, doc="learning rate")
    batch_size: int = whole(32, least=1, doc="batch size")


@dataclass(frozen=True)
class Student:
    """How the student is trained.

    `vat` penalizes changes of the prediction at a public row in the worst direction around it.
    """

    method: str = choice(
        "auto",
        ("auto", "vat", "supervised"),
        doc="auto: vat if there are at least four unlabeled rows per label, else supervised",
    )
    steps: int = whole(2000, least=1, doc="training steps (Adam)")
    lr: float = real(1e-3, above=0, doc="learning rate; decreases linearly to 0 over the second half")
    batch_size: int = whole(64, least=1, doc="labeled rows per step")
    unlabeled: int = whole(256, least=1, doc="unlabeled rows per step")
    radius: float = real(
        0.5, above=0, doc="ε of VAT, relative to the median distance of a public row to its nearest neighbor"
    )
    ramp: float = real(
        0.4,
        least=0,
        most=1,
        doc="share of the steps over which the weight of unlabeled rows rises to 1",
    )
    shift: int | None = whole(
        None,
        least=0,
        none=True,
        doc="pixels by which images are shifted at random; None: a fourteenth of their side; 0: none",
    )

    def uses_unlabeled(self, labeled: int, public: int) -> bool:
        """Return whether the student also learns from unlabeled rows."""
        return self.method == "vat" or (self.method == "auto" and public >= MIN_UNLABELED * labeled)

    def teach(self, module: nn.Module, x: Tensor, y: Tensor, public: Tensor, seed: int) -> nn.Module:
        """Train the module on (x, y) and the rows `public`, on their device.

        The caller's random state is not changed.
        """
        device = x.device
        rng = torch.Generator(device).manual_seed(seed)
        module = module.to(device).train()
        optimizer = torch.optim.Adam(module.parameters(), lr=self.lr)
        use_unlabeled = self.uses_unlabeled(len(x), len(public)) and public.is_floating_point()
        radius = self.radius * median_distance(public, seed) if use_unlabeled else 0.0
        shift = 0 if x.dim() != 4 else min(x.shape[2:]) // 14 if self.shift is None else self.shift
        for step in range(self.steps):
            for group in optimizer.param_groups:
                group["lr"] = self.lr * min(1.0, 2 * (1 - step / self.steps))
            rows = torch.randint(len(x), (min(self.batch_size, len(x)),), device=device, generator=rng)
            loss = nn.functional.cross_entropy(module(shift_images(x[rows], shift, rng)), y[rows])
            if use_unlabeled:
                batch = public[
                    torch.randint(
                        len(public), (min(self.unlabeled, len(public)),), device=device, generator=rng
                    )
                ]
                # an untrained network's predictions are not worth smoothing
                weight = min(1.0, step / max(self.ramp * self.steps, 1.0)) if self.ramp else 1.0
                loss = loss + weight * smoothness_loss(module, shift_images(batch, shift, rng), radius, rng)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
        return module.eval()


def shift_images(x: Tensor, shift: int, rng: torch.Generator) -> Tensor:
    """Shift each image by up to `shift` pixels in each direction, repeating its edge."""
    if not shift:
        return x
    n, _, height, width = x.shape
    wide = nn.functional.pad(x, (shift,) * 4, mode="replicate")
    down, right = (torch.randint(2 * shift + 1, (n, 1), device=x.device, generator=rng) for _ in range(2))
    rows = (torch.arange(height, device=x.device) + down)[:, :, None]
    columns = (torch.arange(width, device=x.device) + right)[:, None, :]
    return wide.permute(0, 2, 3, 1)[torch.arange(n, device=x.device)[:, None, None], rows, columns].permute(
        0, 3, 1, 2
    )


def smoothness_loss(module: nn.Module, x: Tensor, radius: float, rng: torch.Generator) -> Tensor:
    """Return LDS(x) + H(x): the local change of the prediction, and its entropy."""
    plain: Tensor = module(x)
    target = plain.detach().log_softmax(1)
    d = torch.randn(x.shape, device=x.device, generator=rng, dtype=x.dtype)
    d = (XI * radius * _unit(d)).requires_grad_()
    (g,) = torch.autograd.grad(_divergence(target, module(x + d)), d)  # Algorithm 1, line 3
    r = radius * _unit(g)
    entropy = -(plain.softmax(1) * plain.log_softmax(1)).sum(1).mean()
    return _divergence(target, module(x + r)) + entropy


def _unit(d: Tensor) -> Tensor:
    return nn.functional.normalize(d.flatten(1)).view_as(d)


def _divergence(target: Tensor, out: Tensor) -> Tensor:
    return nn.functional.kl_div(out.log_softmax(1), target, log_target=True, reduction="batchmean")


def median_distance(public: Tensor, seed: int) -> float:
    """Return the median distance of a public row to its nearest neighbor."""
    order = torch.randperm(len(public), generator=torch.Generator().manual_seed(seed))[:NEIGHBORS].to(
        public.device
    )
    flat = public.flatten(1)
    distance: Any = torch.cdist(flat[order], flat)
    distance[torch.arange(len(order), device=public.device), order] = float("inf")
    least = distance.min(1).values
    return float(least[least.isfinite()].median()) if len(public) > 1 else 1.0
