"""`ARGN` fitted by several holders: federated averaging of the network (`jobs/synthesize.py`).

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: *Communication-Efficient Learning of Deep
Networks from Decentralized Data*, AISTATS 2017.

Every holder leaves out some rows before anything is counted. Cells and the first biases follow from the
counts of the other rows of all holders together, so every holder derives the same network. (An untrained
network that knows the frequencies of held-out rows looks better than any trained one, if rows are few. Sums
of all rows and of training rows would differ by the held-out ones, perhaps by one row.)

In each round a holder says how likely its own held-out rows are under the common weights, trains from them on
its other rows, and adds both to the sum. The coordinator keeps the weights under which the held-out rows of
all holders are most likely. If they do not improve for `patience` rounds (twice as many with fewer than 1,000
rows), it goes back to those weights and the learning rate falls; the third time, training ends. The last
round only judges the last weights.

The state that holders receive is the weights and, as its last entry, how often the learning rate has fallen.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from .adversarial import CPU, torch_seed
from .argn import ARGN, FALL, FALLS, FEW_ROWS, LEAST_GAIN, pack_network
from .autoregressive import NetworkTrainer, split_network_rows
from .encode import Discretizer
from .federated import LARGEST, UNIT, Histograms, Pooled


def split_holder_rows(generator: ARGN, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Split a holder's row numbers into (training, held out), alike in every round.

    A single row is trained on.
    """
    if rows < 2:
        return np.arange(rows), np.arange(0)
    return split_network_rows(rows, generator.holdout, np.random.default_rng([generator.seed, rows]))


class PooledARGN(Pooled):
    """The common network, its best weights so far, and one holder's trainer."""

    bound = int(2 * LARGEST * UNIT)

    def __init__(self, generator: ARGN, histograms: Histograms, totals: np.ndarray):
        super().__init__(histograms.layout)
        self.generator = generator
        pooled = histograms.stand_in_rows(totals)
        self.rows = len(pooled)
        self.cells = Discretizer.from_data(
            self.layout.variables, pooled, generator.bins or min(max(self.rows // 50, 20), 100)
        )
        codes = self.cells.encode(pooled)
        with torch_seed(generator.seed, CPU):
            self.network = generator.build_network(
                self.cells, generator.layer_width(self.rows), generator.choose_dropout(self.rows)
            )
            self.network.set_frequencies(
                [np.bincount(codes[:, i], minlength=s) for i, s in enumerate(self.cells.sizes)]
            )
        # few held-out rows improve late, or seem to get worse for some rounds
        self.patience = generator.patience * (2 if self.rows < FEW_ROWS else 1)
        self.parameters = list(self.network.parameters())
        self.size = sum(p.numel() for p in self.parameters)
        self.best, self.best_weights = float("inf"), self._get_weights()
        self.waited = self.falls = 0
        self.trainer: NetworkTrainer | None = None
        self.held_out: Tensor | None = None

    @property
    def length(self) -> int:
        return self.size + 1  # the weights, and how likely held-out rows are

    @property
    def is_done(self) -> bool:
        return self.falls > FALLS

    def _get_weights(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def _set_weights(self, vector: Tensor) -> None:
        with torch.no_grad():
            for p, part in zip(self.parameters, vector.split([p.numel() for p in self.parameters])):
                p.copy_(part.view_as(p))

    def weights(self) -> Tensor:
        return torch.cat([self._get_weights(), torch.tensor([float(self.falls)])])

    def contribute(
        self, v: np.ndarray, weights: Tensor | None, epochs: int, seed: int
    ) -> tuple[np.ndarray, tuple[float, float]]:
        """Judge the common weights, train from them, and return both times the share of rows."""
        falls = self._receive(weights)
        loss = 0.0
        if len(v) >= 2:  # one row can be held out or trained on, not both
            with torch_seed(seed, CPU):
                loss = self._train(v, epochs, falls, seed)
        vector = self._get_weights().double().numpy()
        if not np.abs(vector).max() < LARGEST:
            raise BadData(
                f"a network weight has reached {np.abs(vector).max():g}; at most {LARGEST:g} can be summed. "
                "Training diverges: use a lower lr."
            )
        used, _ = split_holder_rows(self.generator, len(v))
        entries = np.append((vector + LARGEST) * len(used) / self.rows, loss)
        return np.rint(entries * UNIT).astype(np.int64), (loss, 0.0)

    def _receive(self, state: Tensor | None) -> int:
        """Check and use the state from the coordinator; return how often the learning rate has fallen."""
        if (
            state is None
            or state.shape != (self.size + 1,)
            or not torch.isfinite(state).all()
            or float(state[-1]) not in range(self.falls, FALLS + 1)
        ):
            raise ProtocolError(
                "the coordinator's state is not the weights of this network and a number of falls of the "
                "learning rate that only grows. Nothing was sent."
            )
        self._set_weights(state[:-1])
        return int(state[-1])

    def _train(self, v: np.ndarray, epochs: int, falls: int, seed: int) -> float:
        """Train on this holder's rows; return its held-out rows' loss before, as its part of the sum."""
        if self.trainer is None:  # the optimizer's state stays with the holder
            rng = np.random.default_rng([seed, 1])
            codes = torch.from_numpy(self.cells.encode(v))
            used, held_out = split_holder_rows(self.generator, len(v))
            self.held_out = codes[held_out]
            self.trainer = NetworkTrainer(
                self.network,
                codes[used],
                self.generator.lr,
                self.generator.decay,
                self.generator.batch_size(len(used)),
                rng,
            )
        while self.falls < falls:
            self.trainer.scale_rate(FALL)
            self.falls += 1
        assert self.held_out is not None
        # per column, so that a wide table does not exceed the bound of a sum
        loss = self.trainer.evaluate(self.held_out) / len(self.cells.sizes)
        for _ in range(epochs):
            self.trainer.epoch()
        return min(max(loss, 0.0), LARGEST) * len(self.held_out) / self.rows

    def merge(self, total: np.ndarray) -> None:
        """Keep the better weights, at the coordinator: `total` judges those sent, and has new ones."""
        loss, sent = float(total[-1]) / UNIT * len(self.cells.sizes), self._get_weights()
        self._set_weights(torch.from_numpy(total[:-1] / UNIT - LARGEST).float())
        self.waited += 1
        share = self.generator.holdout / (1 - self.generator.holdout)  # held-out rows per training row
        if loss < self.best - LEAST_GAIN * share:
            self.best, self.best_weights, self.waited = loss, sent, 0
        elif self.waited >= self.patience:
            self._set_weights(self.best_weights)
            self.waited, self.falls = 0, self.falls + 1

    def tensors(self) -> dict[str, Tensor]:
        self._set_weights(self.best_weights)
        return {**self.cells.tensors(), **pack_network(self.network)}
