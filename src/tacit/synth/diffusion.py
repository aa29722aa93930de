"""TabDDPM: a diffusion model for tables.

A. Kotelnikov, D. Baranchuk, I. Rubachev, A. Babenko, *TabDDPM: Modelling Tabular Data with Diffusion Models*,
ICML 2023. Numbers receive Gaussian noise (J. Ho, A. Jain, P. Abbeel, *Denoising Diffusion Probabilistic
Models*, NeurIPS 2020), categories uniform noise (E. Hoogeboom, D. Nielsen, P. Jaini, P. Forré, M. Welling,
*Argmax Flows and Multinomial Diffusion*, NeurIPS 2021), over `steps` steps. One network learns to reverse a
step for all columns at once; rows are sampled by reversing all steps from noise.

    forward    number    x_t = √ᾱ_t x + √(1 − ᾱ_t) ε
               category  q(x_t | x) = ᾱ_t x + (1 − ᾱ_t)/K
    training   number    ‖ε − ε̂(x_t, t)‖²
               category  KL of the true and the predicted q(x_{t−1} | x_t, x), averaged over columns
    backward   number    mean (x_t − β_t/√(1 − ᾱ_t) ε̂)/√α_t, variance β̃_t
               category  q(x_{t−1} | x_t, x̂) with the network's prediction x̂

Numbers are first transformed to normal by their quantiles, as in the paper. A value that many rows share, and
a missing one, are categories: a number with such values becomes a code and a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..parameters import choice, real, whole
from .adversarial import choose_device, torch_seed
from .encode import Conditions, Layout
from .generator import Generator, GeneratorState, Watch, run_epochs

KNOTS = 513  # of a column's quantile function
MIN_ROWS_PER_KNOT = 5  # rows between two knots, so that no single value is stored
SPIKE = 0.03  # a value shared by at least this share of the rows is a category, as for the GANs
EMBEDDING = 128  # width of the step's embedding and of the rows' projection
OFFSET = 0.008  # s of the cosine schedule (Nichol, Dhariwal, ICML 2021)


@dataclass(frozen=True)
class TabDDPM(Generator):
    """A diffusion model with an MLP denoiser."""

    epochs: int = whole(300, least=1, doc="epochs of training")
    batch: int = whole(1024, least=1, doc="batch size")
    lr: float = real(2e-3, above=0, doc="initial learning rate (AdamW), decreasing linearly to 0")
    decay: float = real(1e-4, least=0, doc="weight decay")
    steps: int = whole(100, least=2, doc="T: diffusion steps")
    width: int = whole(256, least=1, doc="width of the hidden layers")
    layers: int = whole(3, least=1, doc="number of hidden layers")
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="device for training and sampling")
    seed: int = whole(0, least=0, doc="random seed of the fit")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        device = choose_device(self.device)
        columns = DiffusionColumns.from_data(layout, v)
        places, codes = columns.encode(v)
        x, c = torch.from_numpy(places).float().to(device), torch.from_numpy(codes).to(device)
        with torch_seed(self.seed, device):
            noise = DiffusionSchedule(self.steps, columns.sizes, device)
            network = Denoiser(columns, self.width, self.layers).to(device)
            optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=self.decay)
            total = self.epochs * math.ceil(len(v) / self.batch)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

            def train_epoch(epoch: int) -> dict[str, float]:
                total_loss = x.new_zeros(())
                for index in torch.split(torch.randperm(len(v), device=device), self.batch):
                    loss = noise.loss(network, x[index], c[index])
                    optimizer.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss)
                    optimizer.step()
                    schedule.step()
                    total_loss += loss.detach() * len(index)
                return {"loss": float(total_loss) / len(v)}

            history = run_epochs(self.epochs, train_epoch, watch)
        return GeneratorState(
            {
                **columns.tensors(),
                **{f"network.{name}": t.detach().cpu() for name, t in network.state_dict().items()},
            },
            history=history,
        )

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        device = choose_device(self.device)
        columns = DiffusionColumns.from_tensors(layout, state.tensors)
        with torch_seed(int(rng.integers(2**62)), device), torch.no_grad():
            network = Denoiser(columns, self.width, self.layers).to(device)
            network.load_state_dict(
                {
                    name.removeprefix("network."): t
                    for name, t in state.tensors.items()
                    if name.startswith("network.")
                }
            )
            x, c = DiffusionSchedule(self.steps, columns.sizes, device).sample(network.eval(), n)
        return columns.decode(x.double().cpu().numpy(), c.cpu().numpy())


class DiffusionColumns:
    """Encodes variables as normal scalars and codes.

    A number is a code (which shared value, or 0 for none of them; missing last) and, for code 0, a scalar.
    """

    def __init__(self, layout: Layout, shared: Mapping[int, np.ndarray], knots: Mapping[int, np.ndarray]):
        self.layout, self.shared, self.knots = layout, dict(shared), dict(knots)
        self.numbers = [i for i, v in enumerate(layout.variables) if not v.levels]
        self.sizes = [v.levels or 1 + len(self.shared[i]) + v.missing for i, v in enumerate(layout.variables)]

    @classmethod
    def from_data(cls, layout: Layout, v: np.ndarray) -> DiffusionColumns:
        shared, knots = {}, {}
        for i, var in enumerate(layout.variables):
            if var.levels:
                continue
            present = v[~np.isnan(v[:, i]), i]
            values, counts = np.unique(present, return_counts=True)
            shared[i] = values[counts >= max(SPIKE * len(v), 2)]
            rest = present[~np.isin(present, shared[i])]
            m = int(np.clip(len(rest) // MIN_ROWS_PER_KNOT, 2, KNOTS))
            knots[i] = np.quantile(rest, np.linspace(0, 1, m)) if len(rest) else np.zeros(2)
        return cls(layout, shared, knots)

    def encode(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert variables to (scalars, codes)."""
        places, codes = np.zeros((len(v), len(self.numbers))), np.empty(v.shape, dtype=np.int64)
        for i, var in enumerate(self.layout.variables):
            if var.levels:
                codes[:, i] = v[:, i]
                continue
            x, shared, knots = v[:, i], self.shared[i], self.knots[i]
            codes[:, i] = 0
            for k, value in enumerate(shared):
                codes[x == value, i] = 1 + k
            codes[np.isnan(x), i] = self.sizes[i] - 1 if var.missing else 0
            free = codes[:, i] == 0
            grid = np.linspace(0, 1, len(knots))
            low, high = (
                np.interp(x[free], knots, grid) if side == 0 else 1 - np.interp(-x[free], -knots[::-1], grid)
                for side in (0, 1)
            )
            # a value that several knots share is mapped to their middle
            u = np.clip((low + high) / 2, 0.5 / len(v), 1 - 0.5 / len(v))
            places[free, self.numbers.index(i)] = torch.special.ndtri(torch.from_numpy(u)).numpy()
        return places, codes

    def decode(self, places: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Convert scalars and codes to variables."""
        v = codes.astype(np.float64)
        for j, i in enumerate(self.numbers):
            u = torch.special.ndtr(torch.from_numpy(places[:, j].copy())).numpy()
            value = np.interp(u, np.linspace(0, 1, len(self.knots[i])), self.knots[i])
            pool = np.concatenate([[np.nan], self.shared[i], [np.nan]])
            v[:, i] = np.where(codes[:, i] == 0, value, pool[np.minimum(codes[:, i], len(pool) - 1)])
        return v

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"columns.{what}.{i}": torch.from_numpy(np.array(a, dtype=np.float64))
            for what, parts in (("shared", self.shared), ("knots", self.knots))
            for i, a in parts.items()
        }

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> DiffusionColumns:
        numbers = [i for i, v in enumerate(layout.variables) if not v.levels]
        return cls(
            layout,
            *({i: tensors[f"columns.{what}.{i}"].numpy() for i in numbers} for what in ("shared", "knots")),
        )


class DiffusionSchedule:
    """The noise schedule, and both kinds of diffusion.

    Steps count from 0; ᾱ before the first step is 1.
    """

    def __init__(self, steps: int, sizes: list[int], device: torch.device):
        t = torch.arange(steps + 1, dtype=torch.float64) / steps
        alpha_bar = torch.cos((t + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2
        alpha_bar = (alpha_bar / alpha_bar[0]).clamp_min(1e-5)
        beta = (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp_max(0.999)
        self.steps, self.sizes, self.device = steps, sizes, device
        self.beta, self.alpha = beta.float().to(device), (1 - beta).float().to(device)
        self.total = torch.cumprod(1 - beta, 0).float().to(device)  # ᾱ_t
        self.before = torch.cat([torch.ones(1, device=device), self.total[:-1]])  # ᾱ_{t−1}
        self.levels = torch.tensor(sizes, device=device)

    def loss(self, network: Denoiser, x: Tensor, c: Tensor) -> Tensor:
        """Return the training loss of a batch at random steps."""
        t = torch.randint(self.steps, (len(c),), device=self.device)
        noise = torch.randn_like(x)
        noisy = self.total[t, None].sqrt() * x + (1 - self.total[t, None]).sqrt() * noise
        hot = [functional.one_hot(c[:, i], size).float() for i, size in enumerate(self.sizes)]
        codes_t = [
            self._draw_one_hot(self.total[t, None] * h + (1 - self.total[t, None]) / size)
            for h, size in zip(hot, self.sizes)
        ]
        guess, logits = network(noisy, codes_t, t)
        places: Tensor = ((noise - guess) ** 2).sum() / max(x.shape[1], 1)
        codes = x.new_zeros(())
        for h, m, raw in zip(hot, codes_t, logits):
            true, predicted = self._posterior(m, h, t), self._posterior(m, functional.softmax(raw, dim=1), t)
            # KL of the two posteriors; at t = 0 it is the negative log-likelihood
            codes = codes + (true * (true.clamp_min(1e-30).log() - predicted.clamp_min(1e-30).log())).sum()
        return (places + codes / len(self.sizes)) / len(c)

    def _posterior(self, now: Tensor, first: Tensor, t: Tensor) -> Tensor:
        """q(x_{t−1} | x_t, x_0) ∝ (α_t x_t + (1 − α_t)/K) ⊙ (ᾱ_{t−1} x_0 + (1 − ᾱ_{t−1})/K)."""
        k = now.shape[1]
        a, b = self.alpha[t, None], self.before[t, None]
        p = (a * now + (1 - a) / k) * (b * first + (1 - b) / k)
        return p / p.sum(dim=1, keepdim=True)

    @staticmethod
    def _draw_one_hot(p: Tensor) -> Tensor:
        return functional.one_hot(torch.multinomial(p, 1).ravel(), p.shape[1]).float()

    def sample(self, network: Denoiser, n: int) -> tuple[Tensor, Tensor]:
        """Sample `n` rows of scalars and codes by reversing all steps."""
        x = torch.randn(n, network.numbers, device=self.device)
        codes_t = [
            functional.one_hot(torch.randint(size, (n,), device=self.device), size).float()
            for size in self.sizes
        ]
        for step in reversed(range(self.steps)):
            t = torch.full((n,), step, device=self.device)
            guess, logits = network(x, codes_t, t)
            alpha, total, before = self.alpha[step], self.total[step], self.before[step]
            # scalars are within five standard deviations
            clean = ((x - (1 - total).sqrt() * guess) / total.sqrt()).clamp(-5, 5)
            mean = (before.sqrt() * self.beta[step] * clean + alpha.sqrt() * (1 - before) * x) / (1 - total)
            spread = (self.beta[step] * (1 - before) / (1 - total)).sqrt()
            x = mean + spread * torch.randn_like(x) if step else mean
            codes_t = [
                self._draw_one_hot(self._posterior(m, functional.softmax(raw, dim=1), t))
                for m, raw in zip(codes_t, logits)
            ]
        return x, torch.stack([m.argmax(dim=1) for m in codes_t], dim=1)


class Denoiser(nn.Module):
    """Predicts the noise of the scalars and the logits of the clean codes.

    Inputs are scalars, one-hot codes and the step.
    """

    def __init__(self, columns: DiffusionColumns, width: int, layers: int):
        super().__init__()
        self.numbers, self.sizes = len(columns.numbers), columns.sizes
        inputs = self.numbers + sum(self.sizes)
        self.rows = nn.Linear(inputs, EMBEDDING)
        self.step_embedding = nn.Sequential(
            nn.Linear(EMBEDDING, EMBEDDING), nn.SiLU(), nn.Linear(EMBEDDING, EMBEDDING)
        )
        parts: list[nn.Module] = []
        for i in range(layers):
            parts += [nn.Linear(EMBEDDING if i == 0 else width, width), nn.ReLU()]
        self.body = nn.Sequential(*parts, nn.Linear(width, inputs))

    def forward(self, x: Tensor, codes_t: list[Tensor], t: Tensor) -> tuple[Tensor, list[Tensor]]:
        frequency = torch.exp(
            -math.log(10_000.0) * torch.arange(EMBEDDING // 2, device=x.device) / (EMBEDDING // 2)
        )
        angle = t[:, None].float() * frequency
        out = self.body(
            self.rows(torch.cat([x, *codes_t], dim=1))
            + self.step_embedding(torch.cat([angle.cos(), angle.sin()], dim=1))
        )
        return out[:, : self.numbers], list(out[:, self.numbers :].split(self.sizes, dim=1))
