"""GAN: I. Goodfellow et al., *Generative Adversarial Nets*, 2014, Algorithm 1.

The generator's loss is −log D(G(z)), which Section 3 of the paper recommends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..parameters import bad, choice, real, whole
from .adversarial import EncodedRows, GANSettings, choose_device, generate_rows, torch_seed, train_gan
from .conditions import Conditions
from .encode import Layout
from .generator import Generator, GeneratorState, Watch
from .modes import Encoding


@dataclass(frozen=True)
class GAN(Generator):
    """A generator network trained against a discriminator."""

    epochs: int = whole(300, least=1, doc="epochs of training")
    batch: int = whole(500, least=2, doc="batch size")
    pac: int = whole(1, least=1, doc="rows per critic input (PacGAN)")
    lr: float = real(2e-4, above=0, doc="learning rate of both networks (Adam)")
    decay: float = real(0.0, least=0, doc="weight decay of the generator network")
    critic_steps: int = whole(1, least=1, doc="critic steps per generator step")
    noise: int = whole(128, least=1, doc="width of the noise")
    width: int = whole(256, least=1, doc="width of both hidden layers of both networks")
    modes: int = whole(10, least=1, doc="maximum number of Gaussian modes of a numeric column")
    checkpoints: int = whole(
        1,
        least=1,
        doc="how many generator networks of the second half of training rows are drawn from, in equal parts; "
        "1: the last one",
    )
    average: float = real(
        0.99,
        least=0,
        below=1,
        doc="β of the moving average of the generator's weights that rows are drawn from; 0: no averaging",
    )
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="device for training and sampling")
    seed: int = whole(0, least=0, doc="random seed of the fit")

    federated: ClassVar[bool] = True
    wasserstein: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.5
    rows_class: ClassVar[type[EncodedRows]] = EncodedRows  # how batches and conditions are drawn

    def check(self) -> None:
        if self.batch < self.pac:
            raise bad(type(self).__name__, "batch", self.batch, f"at least pac = {self.pac}")
        if self.checkpoints > self.epochs:
            raise bad(type(self).__name__, "checkpoints", self.checkpoints, f"at most epochs = {self.epochs}")

    @property
    def settings(self) -> GANSettings:
        return GANSettings(
            self.epochs,
            self.batch,
            self.noise,
            (self.width, self.width),
            self.pac,
            self.lr,
            self.decay,
            self.critic_steps,
            wasserstein=self.wasserstein,
            dropout=self.dropout,
            checkpoints=self.checkpoints,
            average=self.average,
        )

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        device = choose_device(self.device)
        encoding = Encoding.fit(layout, v, self.modes)
        encoded = encoding.encode(v, rng).to(device)
        with torch_seed(self.seed, device):
            weights, history = train_gan(self.rows_class(encoded, encoding), self.settings, watch)
        return GeneratorState(
            {**encoding.tensors(), **self.frequencies(v, encoding), **weights}, history=history
        )

    def frequencies(self, v: np.ndarray, encoding: Encoding) -> dict[str, Tensor]:
        """Return the level frequencies kept for drawing conditions (here: none)."""
        return {}

    def condition_sampler(
        self, state: GeneratorState, layout: Layout, encoding: Encoding, conditions: Conditions
    ) -> Callable[[int], Tensor]:
        """Return a function that draws `n` conditional vectors (here: of width 0)."""
        return lambda rows: torch.zeros(rows, 0)

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        device, hidden = choose_device(self.device), self.settings.hidden
        encoding = Encoding.from_tensors(layout, state.tensors)
        sampler = self.condition_sampler(state, layout, encoding, conditions)
        with torch_seed(int(rng.integers(2**62)), device):
            return generate_rows(state.tensors, encoding, self.noise, hidden, n, sampler, device)
