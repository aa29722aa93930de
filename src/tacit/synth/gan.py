"""GAN: I. Goodfellow et al., *Generative Adversarial Nets*, 2014, Algorithm 1, with the maker's loss −log D(G(z)) that its Section 3 recommends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    critic_steps: int = whole(1, least=1, doc="steps of the critic for one of the maker")
    noise: int = whole(128, least=1, doc="width of the noise")
    width: int = whole(256, least=1, doc="of both hidden layers of both networks")
    modes: int = whole(10, least=1, doc="Gaussian modes a number has at most")
    checkpoints: int = whole(1, least=1, doc="rows come in equal parts from so many makers, kept over the second half of training; 1: the last")
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="where it trains and draws")
    seed: int = whole(0, least=0, doc="of all that is random in fitting")

    def check(self) -> None:
        if self.batch < self.pac:
            raise bad(type(self).__name__, "batch", self.batch, f"at least pac = {self.pac}")
        if self.checkpoints > self.epochs:
            raise bad(type(self).__name__, "checkpoints", self.checkpoints, f"at most epochs = {self.epochs}")

    @property
    def plan(self) -> Plan:
        return Plan(self.epochs, self.batch, self.noise, (self.width, self.width), self.pac, self.lr, 0.0, self.critic_steps,
                    wasserstein=False, dropout=0.5, checkpoints=self.checkpoints)

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        device = device_of(self.device)
        encoding = Encoding.fit(layout, v, self.modes)
        with seeded(self.seed, device):
            makers, history = train(Rows(encoding.forward(v, rng).to(device), encoding), self.plan, watch)
        return Learned({**encoding.tensors(), **makers}, history=history)

    def draw(self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions) -> np.ndarray:
        import torch

        device = device_of(self.device)
        with seeded(int(rng.integers(2**62)), device):
            return make(learned.tensors, Encoding.from_tensors(layout, learned.tensors), self.plan, n, lambda rows: torch.zeros(rows, 0), device)
