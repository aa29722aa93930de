"""Two networks against each other: what GAN, WGAN and CTGAN share. The networks are those of Xu et al. 2019,
Section 4.4.
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
NORMS = 50  # batches of which an averaged maker takes its batch norm's means


class Maker(nn.Module):
    """Noise (and a condition) to an encoded row: each hidden layer is laid beside its input."""

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
    """`pac` rows at once, so that rows which are all alike are seen to be (Z. Lin, A. Khetan, G. Fanti, S.
    Oh, *PacGAN*, 2018).
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
class Rows:
    """The encoded table on its device, batches of it, and the conditions they come with (none here; CTGAN has
    its own).
    """

    encoded: Tensor
    encoding: Encoding
    condition_width: int = 0

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(condition for the maker, real rows, their condition, chosen level of the maker's condition)."""
        index = torch.randint(len(self.encoded), (size,), device=self.encoded.device)
        nothing = self.encoded.new_zeros(size, 0)
        return nothing, self.encoded[index], nothing, nothing

    def condition_loss(self, raw: Tensor, condition: Tensor, chosen: Tensor) -> Tensor | None:
        return None


def activated(raw: Tensor, encoding: Encoding) -> Tensor:
    """tanh for places, a Gumbel softmax for indicators: the noise is drawn at once for all of them."""
    noisy = (raw - torch.log(torch.empty_like(raw).exponential_().clamp_min(1e-20))) / TEMPERATURE
    parts = []
    for b in encoding.blocks:
        if b.scalar:
            parts.append(torch.tanh(raw[:, b.start : b.start + 1]))
        parts.append(functional.softmax(noisy[:, b.indicators], dim=1))
    return torch.cat(parts, dim=1)


def penalty(critic: Critic, real: Tensor, fake: Tensor, weight: float) -> Tensor:
    """How far the critic's slope between real and fake is from 1 (I. Gulrajani et al., *Improved Training of
    Wasserstein GANs*, 2017, Algorithm 1).
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
class Plan:
    """How the two are trained. `wasserstein`: by a critic with a slope penalty; otherwise by telling real
    from fake.
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


class Duel:
    """A maker and a critic, their optimisers, and a pass over the rows: the caller says how many passes, and
    what happens between them.
    """

    def __init__(self, rows: Rows, plan: Plan):
        self.rows, self.plan, device = rows, plan, rows.encoded.device
        size = max(plan.pac, min(plan.batch, len(rows.encoded)) // plan.pac * plan.pac)
        self.size = size if size >= 2 else 2 * plan.pac  # batch norm needs two rows
        self.maker, self.critic = networks(rows.encoding, plan, rows.condition_width, device)
        self.optimise = [
            torch.optim.Adam(net.parameters(), lr=plan.lr, betas=(0.5, 0.9), weight_decay=decay, fused=True)
            for net, decay in ((self.maker, plan.decay), (self.critic, 0.0))
        ]
        # Y. Yazıcı et al., *The Unusual Effectiveness of Averaging in GAN Training*, ICLR 2019: two networks
        # circle around where each is best against the other
        self.mean, self.steps = copy.deepcopy(self.maker) if plan.average else None, 0

    def kept(self) -> dict[str, Tensor]:
        """The maker to draw from: as it is, or as it was on average. Batch norm's means are those of the
        weights they were seen with, so an average has its own taken anew.
        """
        if self.mean is None:
            return state_of(self.maker)
        norms = [module for module in self.mean.modules() if isinstance(module, nn.BatchNorm1d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean of what comes
        with (
            seeded(self.steps, self.rows.encoded.device),
            torch.no_grad(),
        ):  # training goes on as if nobody had looked
            for _ in range(NORMS):
                condition = self.rows.batch(self.size)[0]
                self.mean(
                    torch.cat(
                        [torch.randn(self.size, self.plan.noise, device=condition.device), condition], dim=1
                    )
                )
        return state_of(self.mean)

    def _made(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        condition, real, real_condition, chosen = self.rows.batch(self.size)
        raw = self.maker(
            torch.cat([torch.randn(self.size, self.plan.noise, device=real.device), condition], dim=1)
        )
        return raw, activated(raw, self.rows.encoding), condition, real, real_condition, chosen

    def epoch(self) -> tuple[float, float]:
        """One pass; the last losses of maker and critic."""
        plan, critic = self.plan, self.critic
        for _ in range(max(1, len(self.rows.encoded) // self.size)):
            for _ in range(plan.critic_steps):
                with torch.no_grad():
                    _, fake, condition, real, real_condition, _ = self._made()
                fake, real = torch.cat([fake, condition], dim=1), torch.cat([real, real_condition], dim=1)
                on_fake, on_real = critic(fake), critic(real)
                if plan.wasserstein:
                    loss = on_fake.mean() - on_real.mean()
                    total = loss + penalty(critic, real, fake, plan.slope_weight)
                else:
                    total = loss = functional.softplus(on_fake).mean() + functional.softplus(-on_real).mean()
                self.optimise[1].zero_grad(set_to_none=True)
                total.backward()
                self.optimise[1].step()
            raw, fake, condition, _, _, chosen = self._made()
            verdict = critic(torch.cat([fake, condition], dim=1))
            maker_loss = -verdict.mean() if plan.wasserstein else functional.softplus(-verdict).mean()
            asked = self.rows.condition_loss(raw, condition, chosen)
            self.optimise[0].zero_grad(set_to_none=True)
            (maker_loss if asked is None else maker_loss + asked).backward()
            self.optimise[0].step()
            if self.mean is not None:
                self.steps += 1
                keep = min(
                    plan.average, self.steps / (self.steps + 9)
                )  # at first the mean follows: the maker's first weights are nothing to remember
                with torch.no_grad():
                    torch._foreach_lerp_(
                        list(self.mean.parameters()), list(self.maker.parameters()), 1 - keep
                    )
        return float(maker_loss.detach()), float(loss.detach())


def networks(
    encoding: Encoding, plan: Plan, condition_width: int, device: torch.device | str = "cpu"
) -> tuple[Maker, Critic]:
    return (
        Maker(plan.noise + condition_width, plan.hidden, encoding.width).to(device),
        Critic(encoding.width + condition_width, plan.hidden, plan.pac, plan.dropout).to(device),
    )


def state_of(net: nn.Module) -> dict[str, Tensor]:
    """Weights and running means; how many batches were seen is of no use to anyone."""
    return {
        name: t.detach() for name, t in net.state_dict().items() if not name.endswith("num_batches_tracked")
    }


def train(rows: Rows, plan: Plan, watch: Watch) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The makers of the checkpoints, as tensors, and a history row an epoch."""
    duel = Duel(rows, plan)
    kept, history = {}, []
    keep_at = {
        plan.epochs - round(k * plan.epochs / (2 * plan.checkpoints)) for k in range(plan.checkpoints)
    }  # over the second half
    for epoch in range(1, plan.epochs + 1):
        began = time.monotonic()
        maker_loss, critic_loss = duel.epoch()
        history.append(
            {
                "epoch": epoch,
                "maker_loss": maker_loss,
                "critic_loss": critic_loss,
                "seconds": time.monotonic() - began,
            }
        )
        watch({"kind": "epoch", "epochs": plan.epochs, **history[-1]})
        if epoch in keep_at:
            kept[epoch] = {name: t.cpu().clone() for name, t in duel.kept().items()}
    return {
        f"maker.{k}.{name}": t for k, state in enumerate(kept.values()) for name, t in state.items()
    }, history


def make(
    tensors: Mapping[str, Tensor],
    encoding: Encoding,
    noise: int,
    hidden: tuple[int, ...],
    n: int,
    condition: Callable[[int], Tensor],
    device: torch.device,
) -> np.ndarray:
    """`n` rows, the same number from each checkpoint."""
    checkpoints = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("maker."))
    shares = np.diff(np.linspace(0, n, checkpoints + 1).round().astype(int))
    out = []
    for k, share in enumerate(shares):
        if not share:
            continue
        given = condition(int(share)).to(device)
        maker = Maker(noise + given.shape[1], hidden, encoding.width).to(device).eval()
        prefix = f"maker.{k}."
        maker.load_state_dict(
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)},
            strict=False,
        )
        with torch.no_grad():
            drawn = torch.cat([torch.randn(int(share), noise, device=device), given], dim=1)
            out.append(encoding.back(activated(maker(drawn), encoding).cpu().numpy()))
    return np.concatenate(out)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's own randomness from this seed, and afterwards as it was: dropout and initial weights know no
    other.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def device_of(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise BadParameter("device is 'cuda', but torch finds no CUDA card here. Use device='cpu' or 'auto'.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")
