"""Adversarial training, shared by GAN, WGAN and CTGAN.

The networks are those of Xu et al. 2019, Section 4.4.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadParameter
from .generator import Watch
from .modes import Encoding

TEMPERATURE = 0.2  # of the Gumbel softmax, as in the paper
NORM_BATCHES = 50  # batches from which the batch-norm statistics of averaged weights are recomputed


class GeneratorNet(nn.Module):
    """Maps noise (and a condition) to an encoded row.

    The output of each hidden layer is concatenated with its input.
    """

    def __init__(self, inputs: int, hidden: tuple[int, ...], outputs: int):
        super().__init__()
        self.linear, self.norm = nn.ModuleList(), nn.ModuleList()
        for width in hidden:
            self.linear.append(nn.Linear(inputs, width))
            self.norm.append(nn.BatchNorm1d(width))
            inputs += width
        self.last = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linear, self.norm):
            x = torch.cat([functional.relu(norm(linear(x))), x], dim=1)
        return self.last(x)


class Critic(nn.Module):
    """Scores `pac` rows at once, so that identical rows are detected.

    Z. Lin, A. Khetan, G. Fanti, S. Oh, *PacGAN*, 2018.
    """

    def __init__(self, inputs: int, hidden: tuple[int, ...], pac: int, dropout: float):
        super().__init__()
        self.pac, layers, inputs = pac, [], inputs * pac
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Dropout(dropout)]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, 1))

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows.reshape(len(rows) // self.pac, -1))


@dataclass
class EncodedRows:
    """The encoded table on its device; draws batches and their conditions (here: none)."""

    encoded: Tensor
    encoding: Encoding
    condition_width: int = 0

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (generator's condition, real rows, their condition, chosen column and level)."""
        index = torch.randint(len(self.encoded), (size,), device=self.encoded.device)
        nothing = self.encoded.new_zeros(size, 0)
        return nothing, self.encoded[index], nothing, nothing

    def condition_loss(self, raw: Tensor, condition: Tensor, chosen: Tensor) -> Tensor | None:
        """Return a loss that ties generated rows to their condition, or None."""
        return None


def activate(raw: Tensor, encoding: Encoding) -> Tensor:
    """Apply tanh to scalars and a Gumbel softmax to indicators."""
    noisy = (raw - torch.log(torch.empty_like(raw).exponential_().clamp_min(1e-20))) / TEMPERATURE
    parts = []
    for b in encoding.blocks:
        if b.scalar:
            parts.append(torch.tanh(raw[:, b.start : b.start + 1]))
        parts.append(functional.softmax(noisy[:, b.indicators], dim=1))
    return torch.cat(parts, dim=1)


def gradient_penalty(critic: Critic, real: Tensor, fake: Tensor, weight: float) -> Tensor:
    """Penalize critic gradients whose norm, between real and fake rows, differs from 1.

    I. Gulrajani et al., *Improved Training of Wasserstein GANs*, 2017, Algorithm 1.
    """
    t = torch.rand(len(real) // critic.pac, 1, 1, device=real.device)
    between = (
        (t * real.view(len(t), critic.pac, -1) + (1 - t) * fake.view(len(t), critic.pac, -1))
        .view_as(real)
        .requires_grad_(True)
    )
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return weight * ((slope.reshape(len(t), -1).norm(dim=1) - 1) ** 2).mean()


@dataclass(frozen=True)
class GANSettings:
    """How the two networks are trained.

    `wasserstein`: a critic with a gradient penalty; otherwise a discriminator with cross-entropy.
    """

    epochs: int
    batch: int
    noise: int
    hidden: tuple[int, ...]
    pac: int
    lr: float
    decay: float
    critic_steps: int
    wasserstein: bool
    dropout: float
    checkpoints: int
    average: float = 0.0
    slope_weight: float = 10.0


class GANTrainer:
    """Generator network, critic and their optimizers; the caller decides on the epochs."""

    def __init__(self, rows: EncodedRows, settings: GANSettings):
        self.rows, self.settings, device = rows, settings, rows.encoded.device
        size = max(settings.pac, min(settings.batch, len(rows.encoded)) // settings.pac * settings.pac)
        self.size = size if size >= 2 else 2 * settings.pac  # batch norm needs two rows
        self.generator, self.critic = build_networks(rows.encoding, settings, rows.condition_width, device)
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
                condition = self.rows.batch(self.size)[0]
                self.mean(
                    torch.cat(
                        [torch.randn(self.size, self.settings.noise, device=condition.device), condition],
                        dim=1,
                    )
                )
        return get_weights(self.mean)

    def _generate(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        condition, real, real_condition, chosen = self.rows.batch(self.size)
        raw = self.generator(
            torch.cat([torch.randn(self.size, self.settings.noise, device=real.device), condition], dim=1)
        )
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
                    total = loss + gradient_penalty(critic, real, fake, settings.slope_weight)
                else:
                    total = loss = functional.softplus(on_fake).mean() + functional.softplus(-on_real).mean()
                self.optimizers[1].zero_grad(set_to_none=True)
                total.backward()
                self.optimizers[1].step()
            raw, fake, condition, _, _, chosen = self._generate()
            verdict = critic(torch.cat([fake, condition], dim=1))
            generator_loss = -verdict.mean() if settings.wasserstein else functional.softplus(-verdict).mean()
            condition_loss = self.rows.condition_loss(raw, condition, chosen)
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


def build_networks(
    encoding: Encoding, settings: GANSettings, condition_width: int, device: torch.device | str = "cpu"
) -> tuple[GeneratorNet, Critic]:
    """Build the generator network and the critic on a device."""
    return (
        GeneratorNet(settings.noise + condition_width, settings.hidden, encoding.width).to(device),
        Critic(encoding.width + condition_width, settings.hidden, settings.pac, settings.dropout).to(device),
    )


def get_weights(net: nn.Module) -> dict[str, Tensor]:
    """Return weights and running statistics, without the batch counters."""
    return {
        name: t.detach() for name, t in net.state_dict().items() if not name.endswith("num_batches_tracked")
    }


def train_gan(
    rows: EncodedRows, settings: GANSettings, watch: Watch
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Train; return the generator weights of all checkpoints and one history row per epoch."""
    trainer = GANTrainer(rows, settings)
    states, history = {}, []
    checkpoint_epochs = {
        settings.epochs - round(k * settings.epochs / (2 * settings.checkpoints))
        for k in range(settings.checkpoints)
    }  # over the second half
    for epoch in range(1, settings.epochs + 1):
        started = time.monotonic()
        generator_loss, critic_loss = trainer.epoch()
        history.append(
            {
                "epoch": epoch,
                "generator_loss": generator_loss,
                "critic_loss": critic_loss,
                "seconds": time.monotonic() - started,
            }
        )
        watch({"kind": "epoch", "epochs": settings.epochs, **history[-1]})
        if epoch in checkpoint_epochs:
            states[epoch] = {name: t.cpu().clone() for name, t in trainer.averaged_weights().items()}
    return {
        f"maker.{k}.{name}": t for k, state in enumerate(states.values()) for name, t in state.items()
    }, history


def generate_rows(
    tensors: Mapping[str, Tensor],
    encoding: Encoding,
    noise: int,
    hidden: tuple[int, ...],
    n: int,
    condition: Callable[[int], Tensor],
    device: torch.device,
) -> np.ndarray:
    """Generate `n` rows, the same number from each checkpoint."""
    checkpoints = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("maker."))
    shares = np.diff(np.linspace(0, n, checkpoints + 1).round().astype(int))
    out = []
    for k, share in enumerate(shares):
        if not share:
            continue
        vectors = condition(int(share)).to(device)
        network = GeneratorNet(noise + vectors.shape[1], hidden, encoding.width).to(device).eval()
        prefix = f"maker.{k}."
        network.load_state_dict(
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)},
            strict=False,
        )
        with torch.no_grad():
            inputs = torch.cat([torch.randn(int(share), noise, device=device), vectors], dim=1)
            out.append(encoding.decode(activate(network(inputs), encoding).cpu().numpy()))
    return np.concatenate(out)


@contextmanager
def torch_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore it afterwards.

    Dropout and weight initialization accept no other source.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def choose_device(name: str) -> torch.device:
    """Return the torch device for 'auto', 'cpu' or 'cuda'."""
    if name == "cuda" and not torch.cuda.is_available():
        raise BadParameter("device is 'cuda', but torch finds no CUDA device. Use device='cpu' or 'auto'.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")
