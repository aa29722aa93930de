"""A generator that a participant trains against the shared model, to draw a class that it does not have.

B. Hitaj, G. Ateniese, F. Perez-Cruz: "Deep Models Under the GAN: Information Leakage from Collaborative Deep
Learning", CCS 2017. The shared model is the discriminator: it improves every round with the victim's rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .inversion import total_variation
from .reconstruction import picture_shape

NOISE = 16  # dimensions of the generator's input, beside the class
WIDTH = 16  # channels of its last layers
FLAT = 0.01  # weight of the squared logits of values: without it, early models drive all values to their ends


class Generator(nn.Module):
    """Random numbers and a class → a row, between `low` and `high`."""

    def __init__(self, shape: Sequence[int], classes: Sequence[int], low: Tensor, high: Tensor):
        super().__init__()
        self.shape, self.classes, self.low, self.width = tuple(shape), tuple(classes), low, high - low
        flat = picture_shape(torch.empty(self.shape))
        self.image = (1, *flat) if flat else self.shape if len(self.shape) == 3 else None
        inputs = NOISE + len(self.classes)
        if self.image is None:
            self.layers = nn.Sequential(
                nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, math.prod(self.shape))
            )
            return
        channels, *sides = self.image
        a, b = (-(-side // 4) for side in sides)
        self.layers = nn.Sequential(
            nn.Linear(inputs, 2 * WIDTH * a * b),
            nn.Unflatten(1, (2 * WIDTH, a, b)),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(WIDTH, channels, 3, padding=1),
        )

    def forward(self, which: Tensor, noise: Tensor) -> Tensor:
        """Rows of the classes `self.classes[which]`."""
        rows: Tensor = self.low + self.logits(which, noise).sigmoid().reshape(-1, *self.shape) * self.width
        return rows

    def logits(self, which: Tensor, noise: Tensor) -> Tensor:
        """The rows before they are brought between `low` and `high`; images [n, C, H, W]."""
        made: Tensor = self.layers(torch.cat([noise, F.one_hot(which, len(self.classes)).float()], 1))
        if self.image is not None:
            made = made[..., : self.image[1], : self.image[2]]
        return made

    def draw(self, each: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """`each` rows of every class, and their classes."""
        which = torch.arange(len(self.classes)).repeat_interleave(each)
        with torch.no_grad():
            rows = self(which, torch.randn(len(which), NOISE, generator=rng))
        return rows, torch.tensor(self.classes)[which]


def train_generator(
    generator: Generator,
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    rng: torch.Generator,
    *,
    steps: int = 20,
    batch_size: int = 32,
    tv: float = 0.0,
) -> float:
    """Train the generator so that the model takes its rows for those of their class; the last loss."""
    module.eval()
    loss = torch.zeros(())
    for _ in range(steps):
        which = torch.randint(0, len(generator.classes), (batch_size,), generator=rng)
        logits = generator.logits(which, torch.randn(batch_size, NOISE, generator=rng))
        values = logits.sigmoid()
        rows = generator.low + values.reshape(-1, *generator.shape) * generator.width
        loss = F.cross_entropy(module(rows), torch.tensor(generator.classes)[which])
        optimizer.zero_grad()
        smooth = tv * total_variation(values) if generator.image is not None else 0.0
        (loss + FLAT * logits.square().mean() + smooth).backward(inputs=list(generator.parameters()))
        optimizer.step()
    return float(loss.detach())


def nearest_classes(drawn: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each drawn row, the nearest of the rows x: its class, and its index."""
    distance = torch.cdist(drawn.flatten(1), x.flatten(1))
    at = distance.argmin(1)
    return y[at], at
