"""Base class of the private networks (DPGAN, DP-CTGAN, PATE-GAN).

Rows are one-hot indicators of the declared cells, as for MST; no modes, quantiles or frequencies are read off
the data. What leaves training is the generator network, which only receives what the mechanism releases, so
drawing from it spends no more privacy.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..parameters import real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import TEMPERATURE, GeneratorNet, get_weights, torch_seed
from .conditions import Conditions
from .encode import Layout
from .generator import GeneratorState, Watch
from .marginals import Grid
from .private import PrivateGenerator
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

CPU = torch.device("cpu")
History = list[dict[str, Any]]


@dataclass(frozen=True)
class NetworkGenerator(PrivateGenerator):
    """A generator network trained under differential privacy."""

    lr: float = real(1e-3, above=0, doc="learning rate of the networks (Adam)")
    noise: int = whole(64, least=1, doc="width of the noise")
    width: int = whole(128, least=1, doc="width of both hidden layers of the generator network")

    @abstractmethod
    def train_network(
        self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch
    ) -> tuple[GeneratorNet, Spend, History]:
        """Train on indicators [rows, cells]; return the network, the spend and the history."""

    def learn_private(
        self, frame: DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        codes = torch.from_numpy(grid.codes(frame))
        rows = [functional.one_hot(codes[:, j], size) for j, size in enumerate(grid.sizes)]
        # initial weights and the network's noise are not secret, but must not come from the process's state
        with torch_seed(int.from_bytes(secret.bytes(8), "big") >> 2, CPU):
            network, spend, history = self.train_network(
                torch.cat(rows, dim=1).float(), grid.sizes, secret, watch
            )
        tensors = {f"maker.{name}": t.clone() for name, t in get_weights(network).items()}
        return GeneratorState(tensors, history=history), spend

    def build_network(self, sizes: tuple[int, ...]) -> GeneratorNet:
        return GeneratorNet(self.noise, (self.width, self.width), sum(sizes))

    def generate(self, network: GeneratorNet, n: int, sizes: tuple[int, ...]) -> Tensor:
        """Generate `n` soft rows: one Gumbel softmax per column."""
        raw = network(torch.randn(n, self.noise))
        noisy = (raw - torch.log(torch.empty_like(raw).exponential_().clamp_min(1e-20))) / TEMPERATURE
        return torch.cat([functional.softmax(part, dim=1) for part in noisy.split(list(sizes), dim=1)], dim=1)

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        grid = Grid(layout.table.modeled, self.bins)
        with torch_seed(int(rng.integers(2**62)), CPU), torch.no_grad():
            network = self.build_network(grid.sizes).eval()
            network.load_state_dict(
                {name.removeprefix("maker."): t for name, t in state.tensors.items()}, strict=False
            )
            rows = self.generate(network, n, grid.sizes)
        codes = np.column_stack([part.argmax(dim=1).numpy() for part in rows.split(list(grid.sizes), dim=1)])
        return layout.encode(grid.to_numbers(codes, rng))


def network_spend(mechanism: str, epsilon: float, delta: float, sampling: str, note: str) -> Spend:
    return Spend(
        mechanism,
        epsilon,
        delta,
        unit="record (one row added or removed)",
        adversary="whoever sees the model and every sample, with any background knowledge",
        sampling=sampling,
        note=note,
    )
