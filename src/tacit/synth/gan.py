"""GAN: I. Goodfellow et al., *Generative Adversarial Nets*, 2014, Algorithm 1.

The generator's loss is −log D(G(z)), which Section 3 of the paper recommends. WGAN-GP: I. Gulrajani, F.
Ahmed, M. Arjovsky, V. Dumoulin, A. Courville, *Improved Training of Wasserstein GANs*, NeurIPS 2017,
Algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..parameters import bad, choice, real, whole
from .adversarial import (
    CPU,
    Critic,
    EncodedRows,
    GeneratorNet,
    activate,
    choose_device,
    generate_rows,
    get_weights,
    gradient_penalty,
    torch_seed,
)
from .encode import Conditions, Layout
from .generator import Generator, GeneratorState, Watch, run_epochs
from .modes import Encoding

NORM_BATCHES = 50  # batches from which the batch-norm statistics of averaged weights are recomputed


@dataclass(frozen=True)
class GAN(Generator):
    """A generator network trained against a discriminator."""

    epochs: int = whole(300, least=1, doc="epochs of training")
    batch: int = whole(
        500, least=2, doc="batch size; about a fortieth of the rows of a small table is better"
    )
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
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return self.width, self.width

    def build_networks(
        self, encoding: Encoding, condition_width: int, device: torch.device = CPU
    ) -> tuple[GeneratorNet, Critic]:
        """Build the generator network and the critic on a device."""
        return (
            GeneratorNet(self.noise + condition_width, self.hidden, encoding.width).to(device),
            Critic(encoding.width + condition_width, self.hidden, self.pac, self.dropout).to(device),
        )

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        device = choose_device(self.device)
        encoding = Encoding.fit(layout, v, self.modes)
        encoded = encoding.encode(v, rng).to(device)
        checkpoint_epochs = {
            self.epochs - round(k * self.epochs / (2 * self.checkpoints)) for k in range(self.checkpoints)
        }  # over the second half
        states: list[dict[str, Tensor]] = []
        with torch_seed(self.seed, device):
            trainer = GANTrainer(self.rows_class(encoded, encoding), self)

            def train_epoch(epoch: int) -> dict[str, float]:
                generator_loss, critic_loss = trainer.epoch()
                if epoch in checkpoint_epochs:
                    states.append({name: t.cpu().clone() for name, t in trainer.averaged_weights().items()})
                return {"generator_loss": generator_loss, "critic_loss": critic_loss}

            history = run_epochs(self.epochs, train_epoch, watch)
        weights = {f"maker.{k}.{name}": t for k, state in enumerate(states) for name, t in state.items()}
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
        device = choose_device(self.device)
        encoding = Encoding.from_tensors(layout, state.tensors)
        sampler = self.condition_sampler(state, layout, encoding, conditions)
        with torch_seed(int(rng.integers(2**62)), device):
            return generate_rows(state.tensors, encoding, self.noise, self.hidden, n, sampler, device)


@dataclass(frozen=True)
class WGAN(GAN):
    """A GAN with the Wasserstein loss and a gradient penalty (λ = 10)."""

    critic_steps: int = whole(
        2, least=1, doc="n_critic: critic steps per generator step (5 in the paper, for images)"
    )

    wasserstein: ClassVar[bool] = True
    dropout: ClassVar[float] = 0.0  # the penalty applies to gradients at points, which dropout disturbs


class GANTrainer:
    """Generator network, critic and their optimizers; the caller decides on the epochs."""

    def __init__(self, rows: EncodedRows, settings: GAN):
        self.rows, self.settings, device = rows, settings, rows.encoded.device
        size = max(settings.pac, min(settings.batch, len(rows.encoded)) // settings.pac * settings.pac)
        self.size = size if size >= 2 else 2 * settings.pac  # batch norm needs two rows
        self.generator, self.critic = settings.build_networks(rows.encoding, rows.condition_width, device)
        self.optimizers = [
            torch.optim.Adam(
                net.parameters(), lr=settings.lr, betas=(0.5, 0.9), weight_decay=decay, fused=True
            )
            for net, decay in ((self.generator, settings.decay), (self.critic, 0.0))
        ]
        # averaging damps the oscillation of the two networks: Y. Yazıcı et al., *The Unusual Effectiveness of
        # Averaging in GAN Training*, ICLR 2019
        self.mean, self.steps = copy.deepcopy(self.generator) if settings.average else None, 0

    def averaged_weights(self) -> dict[str, Tensor]:
        """Return the generator weights to sample from: the current ones, or their moving average.

        The batch-norm statistics of an average are recomputed for it.
        """
        if self.mean is None:
            return get_weights(self.generator)
        norms = [module for module in self.mean.modules() if isinstance(module, nn.BatchNorm1d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a cumulative mean
        with torch_seed(self.steps, self.rows.encoded.device), torch.no_grad():  # does not affect training
            for _ in range(NORM_BATCHES):
                self.mean(self._with_noise(self.rows.batch(self.size)[0]))
        return get_weights(self.mean)

    def _with_noise(self, condition: Tensor) -> Tensor:
        noise = torch.randn(self.size, self.settings.noise, device=condition.device)
        return torch.cat([noise, condition], dim=1)

    def _generate(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        condition, real, real_condition, chosen = self.rows.batch(self.size)
        raw = self.generator(self._with_noise(condition))
        return raw, activate(raw, self.rows.encoding), condition, real, real_condition, chosen

    def epoch(self) -> tuple[float, float]:
        """Train for one epoch; return the last losses of generator and critic."""
        settings, critic = self.settings, self.critic
        for _ in range(max(1, len(self.rows.encoded) // self.size)):
            for _ in range(settings.critic_steps):
                with torch.no_grad():
                    _, fake, condition, real, real_condition, _ = self._generate()
                fake, real = torch.cat([fake, condition], dim=1), torch.cat([real, real_condition], dim=1)
                on_fake, on_real = critic(fake), critic(real)
                if settings.wasserstein:
                    loss = on_fake.mean() - on_real.mean()
                    total = loss + gradient_penalty(critic, real, fake)
                else:
                    total = loss = functional.softplus(on_fake).mean() + functional.softplus(-on_real).mean()
                self.optimizers[1].zero_grad(set_to_none=True)
                total.backward()
                self.optimizers[1].step()
            raw, fake, condition, _, _, chosen = self._generate()
            verdict = critic(torch.cat([fake, condition], dim=1))
            generator_loss = -verdict.mean() if settings.wasserstein else functional.softplus(-verdict).mean()
            condition_loss = self.rows.condition_loss(raw, chosen)
            self.optimizers[0].zero_grad(set_to_none=True)
            (generator_loss if condition_loss is None else generator_loss + condition_loss).backward()
            self.optimizers[0].step()
            if self.mean is not None:
                self.steps += 1
                # the average follows the weights closely at first: the initial weights carry no information
                keep = min(settings.average, self.steps / (self.steps + 9))
                with torch.no_grad():
                    torch._foreach_lerp_(
                        list(self.mean.parameters()), list(self.generator.parameters()), 1 - keep
                    )
        return float(generator_loss.detach()), float(loss.detach())
