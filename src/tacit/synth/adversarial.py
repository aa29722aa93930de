"""Networks and batches of adversarial training, those of Xu et al. 2019, Section 4.4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadParameter
from .modes import Encoding

CPU = torch.device("cpu")
TEMPERATURE = 0.2  # of the Gumbel softmax, as in the paper


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
        return cast(Tensor, self.last(x))


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
        return cast(Tensor, self.layers(rows.reshape(len(rows) // self.pac, -1)))


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

    def condition_loss(self, raw: Tensor, chosen: Tensor) -> Tensor | None:
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


def gradient_penalty(critic: Critic, real: Tensor, fake: Tensor, weight: float = 10.0) -> Tensor:
    """Penalize critic gradients whose norm, between real and fake rows, differs from 1.

    I. Gulrajani et al., *Improved Training of Wasserstein GANs*, 2017, Algorithm 1; `weight` is λ.
    """
    t = torch.rand(len(real) // critic.pac, 1, 1, device=real.device)
    between = (
        (t * real.view(len(t), critic.pac, -1) + (1 - t) * fake.view(len(t), critic.pac, -1))
        .view_as(real)
        .requires_grad_(True)
    )
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    norm: Tensor = slope.reshape(len(t), -1).norm(dim=1)
    return weight * ((norm - 1) ** 2).mean()


def get_weights(net: nn.Module) -> dict[str, Tensor]:
    """Return weights and running statistics, without the batch counters."""
    return {
        name: t.detach() for name, t in net.state_dict().items() if not name.endswith("num_batches_tracked")
    }


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
