"""GAN: I. Goodfellow et al., *Generative Adversarial Nets*, 2014, Algorithm 1, with the maker's loss −log
D(G(z)) that its Section 3 recommends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..parameters import bad, choice, real, whole
from .adversarial import Plan, Rows, device_of, make, seeded, train
from .conditions import Conditions
from .encode import Layout
from .generator import Generator, Learned, Watch
from .modes import Encoding


@dataclass(frozen=True)
class GAN(Generator):
    """Two networks; one makes rows, the other tells them from real ones."""

    epochs: int = whole(300, least=1, doc="passes over the table")
    batch: int = whole(500, least=2, doc="rows a step")
    pac: int = whole(1, least=1, doc="rows the critic sees at once (PacGAN)")
    lr: float = real(2e-4, above=0, doc="learning rate of both networks (Adam)")
    decay: float = real(0.0, least=0, doc="weight decay of the maker")
    critic_steps: int = whole(1, least=1, doc="steps of the critic for one of the maker")
    noise: int = whole(128, least=1, doc="width of the noise")
    width: int = whole(256, least=1, doc="of both hidden layers of both networks")
    modes: int = whole(10, least=1, doc="Gaussian modes a number has at most")
    checkpoints: int = whole(
        1,
        least=1,
        doc="rows come in equal parts from so many makers, kept over the second half of training; 1: the "
        "last",
    )
    average: float = real(
        0.99,
        least=0,
        below=1,
        doc="β: rows come from a moving mean of the maker's weights, of which a step keeps β; 0: from the "
        "last ones",
    )
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="where it trains and draws")
    seed: int = whole(0, least=0, doc="of all that is random in fitting")

    wasserstein: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.5
    table_of_rows: ClassVar[type[Rows]] = Rows  # how rows and conditions are drawn

    def check(self) -> None:
        if self.batch < self.pac:
            raise bad(type(self).__name__, "batch", self.batch, f"at least pac = {self.pac}")
        if self.checkpoints > self.epochs:
            raise bad(type(self).__name__, "checkpoints", self.checkpoints, f"at most epochs = {self.epochs}")

    @property
    def plan(self) -> Plan:
        return Plan(
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

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        device = device_of(self.device)
        encoding = Encoding.fit(layout, v, self.modes)
        encoded = encoding.forward(v, rng).to(device)
        with seeded(self.seed, device):
            makers, history = train(self.table_of_rows(encoded, encoding), self.plan, watch)
        return Learned({**encoding.tensors(), **self.frequencies(v, encoding), **makers}, history=history)

    def frequencies(self, v: np.ndarray, encoding: Encoding) -> dict[str, Tensor]:
        """What is kept of the levels' frequencies, for drawing conditions: nothing where there are none."""
        return {}

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        device = device_of(self.device)
        with seeded(int(rng.integers(2**62)), device):
            encoding, plan = Encoding.from_tensors(layout, learned.tensors), self.plan
            return make(
                learned.tensors,
                encoding,
                plan.noise,
                plan.hidden,
                n,
                lambda rows: torch.zeros(rows, 0),
                device,
            )
