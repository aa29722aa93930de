"""Diffusion for tables, after A. Kotelnikov, D. Baranchuk, I. Rubachev, A. Babenko, *TabDDPM: Modelling
Tabular Data with Diffusion Models*, ICML 2023.

Numbers are blurred by Gaussian noise (J. Ho, A. Jain, P. Abbeel, *Denoising Diffusion Probabilistic
Models*, NeurIPS 2020), categories by uniform ones (E. Hoogeboom, D. Nielsen, P. Jaini, P. Forré, M.
Welling, *Argmax Flows and Multinomial Diffusion*, NeurIPS 2021), over `steps` steps; one network learns to
undo a step for all columns at once, and rows are made by undoing them all, from noise.

    forward     number     x_t = √ᾱ_t x + √(1 − ᾱ_t) ε             category   q(x_t | x) = ᾱ_t x + (1 − ᾱ_t)/K
    training    ‖ε − ε̂(x_t, t)‖²                                    KL of the true and the predicted q(x_{t−1} | x_t, x), over columns
    backward    mean (x_t − β_t/√(1 − ᾱ_t) ε̂)/√α_t, variance β̃_t   q(x_{t−1} | x_t, x̂), x̂ the network's guess

A number is first made normal by its quantiles (as in the paper). A value that many rows share, and a
missing one, are categories beside it: a number with such values is a pair, which of them it is, and where
it lies else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..parameters import choice, real, whole
from .adversarial import device_of, seeded
from .conditions import Conditions
from .encode import Layout
from .generator import Generator, Learned, Watch

KNOTS = 513  # of a column's quantile function; with five rows or more between two, no row's own value is kept
ROWS_A_KNOT = 5
SPIKE = 0.03  # a value this part of the rows share is a category of its own, as for the GANs
EMBEDDING = 128  # width of the step's embedding and of the rows' projection
OFFSET = 0.008  # s of the cosine schedule (Nichol, Dhariwal, ICML 2021)


@dataclass(frozen=True)
class TabDDPM(Generator):
    """A network that undoes noise, step by step."""

    epochs: int = whole(300, least=1, doc="passes over the table")
    batch: int = whole(1024, least=1, doc="rows a step of training")
    lr: float = real(2e-3, above=0, doc="learning rate (AdamW), falling linearly to 0")
    decay: float = real(1e-4, least=0, doc="weight decay")
    steps: int = whole(100, least=2, doc="T: steps of noise")
    width: int = whole(256, least=1, doc="of the hidden layers")
    layers: int = whole(3, least=1, doc="hidden layers")
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="where it trains and draws")
    seed: int = whole(0, least=0, doc="of all that is random in fitting")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        device = device_of(self.device)
        columns = Columns.of_data(layout, v)
        places, codes = columns.forward(v)
        x, c = torch.from_numpy(places).float().to(device), torch.from_numpy(codes).to(device)
        history: list[dict[str, Any]] = []
        with seeded(self.seed, device):
            noise = Noise(self.steps, columns.sizes, device)
            network = Denoiser(columns, self.width, self.layers).to(device)
            optimiser = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=self.decay)
            total = self.epochs * math.ceil(len(v) / self.batch)
            falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / total))
            for epoch in range(1, self.epochs + 1):
                began, summed = time.monotonic(), x.new_zeros(())
                for index in torch.randperm(len(v), device=device).split(self.batch):
                    loss = noise.loss(network, x[index], c[index])
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    falling.step()
                    summed += loss.detach() * len(index)
                history.append(
                    {"epoch": epoch, "loss": float(summed) / len(v), "seconds": time.monotonic() - began}
                )
                watch({"kind": "epoch", "epochs": self.epochs, **history[-1]})
        state = {f"network.{name}": t.detach().cpu() for name, t in network.state_dict().items()}
        return Learned({**columns.tensors(), **state}, history=history)

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        device = device_of(self.device)
        columns = Columns.from_tensors(layout, learned.tensors)
        with seeded(int(rng.integers(2**62)), device), torch.no_grad():
            network = Denoiser(columns, self.width, self.layers).to(device)
            network.load_state_dict(
                {
                    name.removeprefix("network."): t
                    for name, t in learned.tensors.items()
                    if name.startswith("network.")
                }
            )
            x, c = Noise(self.steps, columns.sizes, device).undone(network.eval(), n)
        return columns.back(x.double().cpu().numpy(), c.cpu().numpy())


class Columns:
    """Variables as normal places and codes. A number is a code (which shared value, or 0: none of them;
    missing last) and, for code 0, a place.
    """

    def __init__(self, layout: Layout, shared: Mapping[int, np.ndarray], knots: Mapping[int, np.ndarray]):
        self.layout, self.shared, self.knots = layout, dict(shared), dict(knots)
        self.numbers = [i for i, v in enumerate(layout.variables) if not v.levels]
        self.sizes = [v.levels or 1 + len(self.shared[i]) + v.missing for i, v in enumerate(layout.variables)]

    @classmethod
    def of_data(cls, layout: Layout, v: np.ndarray) -> Columns:
        shared, knots = {}, {}
        for i, var in enumerate(layout.variables):
            if var.levels:
                continue
            there = v[~np.isnan(v[:, i]), i]
            values, counts = np.unique(there, return_counts=True)
            shared[i] = values[counts >= max(SPIKE * len(v), 2)]
            rest = there[~np.isin(there, shared[i])]
            m = int(np.clip(len(rest) // ROWS_A_KNOT, 2, KNOTS))
            knots[i] = np.quantile(rest, np.linspace(0, 1, m)) if len(rest) else np.zeros(2)
        return cls(layout, shared, knots)

    def forward(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
            u = np.clip(
                (low + high) / 2, 0.5 / len(v), 1 - 0.5 / len(v)
            )  # a value that several knots share lies in their middle
            places[free, self.numbers.index(i)] = torch.special.ndtri(torch.from_numpy(u)).numpy()
        return places, codes

    def back(self, places: np.ndarray, codes: np.ndarray) -> np.ndarray:
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
    def from_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> Columns:
        numbers = [i for i, v in enumerate(layout.variables) if not v.levels]
        return cls(
            layout,
            *({i: tensors[f"columns.{what}.{i}"].numpy() for i in numbers} for what in ("shared", "knots")),
        )


class Noise:
    """The schedule, and both kinds of diffusion under it. Steps count from 0; ᾱ before the first is 1."""

    def __init__(self, steps: int, sizes: list[int], device: torch.device):
        t = torch.arange(steps + 1, dtype=torch.float64) / steps
        kept = torch.cos((t + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2
        kept = (kept / kept[0]).clamp_min(1e-5)
        beta = (1 - kept[1:] / kept[:-1]).clamp_max(0.999)
        self.steps, self.sizes, self.device = steps, sizes, device
        self.beta, self.alpha = beta.float().to(device), (1 - beta).float().to(device)
        self.total = torch.cumprod(1 - beta, 0).float().to(device)  # ᾱ_t
        self.before = torch.cat([torch.ones(1, device=device), self.total[:-1]])  # ᾱ_{t−1}
        self.levels = torch.tensor(sizes, device=device)

    def loss(self, network: Denoiser, x: Tensor, c: Tensor) -> Tensor:
        t = torch.randint(self.steps, (len(c),), device=self.device)
        noise = torch.randn_like(x)
        blurred = self.total[t, None].sqrt() * x + (1 - self.total[t, None]).sqrt() * noise
        hot = [functional.one_hot(c[:, i], size).float() for i, size in enumerate(self.sizes)]
        mixed = [
            self._drawn(self.total[t, None] * h + (1 - self.total[t, None]) / size)
            for h, size in zip(hot, self.sizes)
        ]
        guess, logits = network(blurred, mixed, t)
        places = ((noise - guess) ** 2).sum() / max(x.shape[1], 1)
        codes = x.new_zeros(())
        for h, m, raw in zip(hot, mixed, logits):
            true, made = self._posterior(m, h, t), self._posterior(m, functional.softmax(raw, dim=1), t)
            # KL of the two posteriors; at t = 0 the true one is the row itself, and this is its
            # log-likelihood
            codes = codes + (true * (true.clamp_min(1e-30).log() - made.clamp_min(1e-30).log())).sum()
        return (places + codes / len(self.sizes)) / len(c)

    def _posterior(self, now: Tensor, first: Tensor, t: Tensor) -> Tensor:
        """q(x_{t−1} | x_t, x_0) ∝ (α_t x_t + (1 − α_t)/K) ⊙ (ᾱ_{t−1} x_0 + (1 − ᾱ_{t−1})/K)."""
        k = now.shape[1]
        a, b = self.alpha[t, None], self.before[t, None]
        p = (a * now + (1 - a) / k) * (b * first + (1 - b) / k)
        return p / p.sum(dim=1, keepdim=True)

    @staticmethod
    def _drawn(p: Tensor) -> Tensor:
        return functional.one_hot(torch.multinomial(p, 1).ravel(), p.shape[1]).float()

    def undone(self, network: Denoiser, n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, network.numbers, device=self.device)
        mixed = [
            functional.one_hot(torch.randint(size, (n,), device=self.device), size).float()
            for size in self.sizes
        ]
        for step in reversed(range(self.steps)):
            t = torch.full((n,), step, device=self.device)
            guess, logits = network(x, mixed, t)
            alpha, total, before = self.alpha[step], self.total[step], self.before[step]
            clean = ((x - (1 - total).sqrt() * guess) / total.sqrt()).clamp(
                -5, 5
            )  # no place of a table's row is beyond five deviations
            mean = (before.sqrt() * self.beta[step] * clean + alpha.sqrt() * (1 - before) * x) / (1 - total)
            spread = (self.beta[step] * (1 - before) / (1 - total)).sqrt()
            x = mean + spread * torch.randn_like(x) if step else mean
            mixed = [
                self._drawn(self._posterior(m, functional.softmax(raw, dim=1), t))
                for m, raw in zip(mixed, logits)
            ]
        return x, torch.stack([m.argmax(dim=1) for m in mixed], dim=1)


class Denoiser(nn.Module):
    """Places, indicators and the step in; the noise of the places and logits of the clean codes out."""

    def __init__(self, columns: Columns, width: int, layers: int):
        super().__init__()
        self.numbers, self.sizes = len(columns.numbers), columns.sizes
        inputs = self.numbers + sum(self.sizes)
        self.rows = nn.Linear(inputs, EMBEDDING)
        self.when = nn.Sequential(nn.Linear(EMBEDDING, EMBEDDING), nn.SiLU(), nn.Linear(EMBEDDING, EMBEDDING))
        parts: list[nn.Module] = []
        for i in range(layers):
            parts += [nn.Linear(EMBEDDING if i == 0 else width, width), nn.ReLU()]
        self.body = nn.Sequential(*parts, nn.Linear(width, inputs))

    def forward(self, x: Tensor, mixed: list[Tensor], t: Tensor) -> tuple[Tensor, list[Tensor]]:
        frequency = torch.exp(
            -math.log(10_000.0) * torch.arange(EMBEDDING // 2, device=x.device) / (EMBEDDING // 2)
        )
        angle = t[:, None].float() * frequency
        out = self.body(
            self.rows(torch.cat([x, *mixed], dim=1)) + self.when(torch.cat([angle.cos(), angle.sin()], dim=1))
        )
        return out[:, : self.numbers], list(out[:, self.numbers :].split(self.sizes, dim=1))
