"""The autoregressive network of `ARGN`: each column's cells given any of the other columns.

P. Tiwald, I. Krchova, A. Sidorenko, M. Vargas Vieyra, M. Scriminaci, M. Platzer, *TabularARGN: A Flexible and
Efficient Auto-Regressive Framework for Generating High-Fidelity Synthetic Data*, 2025: one embedding for each
cell, one small regressor for each column, which sees the embeddings of the columns before it.

Differences from the paper: the order. A query fixes some columns S and samples the others, so the columns of
S come first, and both parts keep the order of the table (A. Shih, D. Sadigh, S. Ermon, *Training and
Inference on Any-Order Autoregressive Models the Right Way*, NeurIPS 2022). Half of every batch is trained in
the order of the table, which plain sampling uses, the other half with a random S.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .encode import uniforms_within

WEIGHTS = 2_000_000  # of all first layers together: beyond, wide tables get narrower layers
LEAST_WIDTH = 16
BLOCK = 16_384  # rows computed at a time
WAVES = 12  # smooth functions of the rank in the logits of a number
ORDERS = 4  # random orders in which held-out rows are evaluated
STRATUM = 64  # rows of similar distributions that share stratified random numbers


class ColumnNetwork(nn.Module):
    """Logits of every column's cells, given the visible columns."""

    offsets: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        embedding: int,
        width: int,
        dropout: float = 0.0,
        ordered: Sequence[int] | None = None,
    ):
        """Build the layers; `ordered` is how many of a column's cells, the first ones, have an order."""
        super().__init__()
        d = len(sizes)
        width = max(LEAST_WIDTH, min(width, WEIGHTS // (d * d * embedding)))
        self.sizes, self.dropout = list(sizes), dropout
        self.register_buffer("offsets", torch.tensor(np.r_[0, np.cumsum(sizes)[:-1]]), persistent=False)
        self.embedding = nn.Embedding(sum(sizes), embedding)
        self.first = nn.ModuleList(nn.Linear(d * embedding, width) for _ in sizes)
        outputs = [nn.Linear(width, size) for size in sizes]
        for layer in outputs:  # a new network predicts its bias: the frequencies of each column
            nn.init.normal_(layer.weight, std=0.01)
        self.last = nn.ModuleList(outputs)
        # neighboring cells of a number are alike: their embeddings start as smooth functions of the rank, and
        # a part of their logits is one
        self.smooth = nn.ModuleDict()
        for i, cells in enumerate(ordered or [0] * d):
            if cells > 2:
                waves = torch.from_numpy(cosines(cells, embedding)).float()
                with torch.no_grad():
                    self.embedding.weight[self.offsets[i] : self.offsets[i] + cells] = waves
                self.smooth[str(i)] = layer = nn.Linear(width, min(WAVES, cells - 1), bias=False)
                nn.init.normal_(layer.weight, std=0.01)
                basis = torch.zeros(layer.out_features, sizes[i])
                basis[:, :cells] = torch.from_numpy(cosines(cells, layer.out_features)).T
                self.register_buffer(f"basis_{i}", basis, persistent=False)

    def set_frequencies(self, counts: Sequence[np.ndarray]) -> None:
        """Start from independent columns with these counts of cells."""
        with torch.no_grad():
            for layer, count in zip(self.last, counts):
                share = (np.asarray(count, dtype=np.float64) + 0.5) / (np.sum(count) + 0.5 * len(count))
                cast(nn.Linear, layer).bias.copy_(torch.from_numpy(np.log(share)))

    def embed(self, codes: Tensor) -> Tensor:
        """Embed cells [rows, columns] as [rows, columns, embedding]."""
        return cast(Tensor, self.embedding(codes + self.offsets))

    def logits(self, embedded: Tensor, i: int) -> Tensor:
        """Return the logits of column `i` from embeddings that are 0 where a column is not visible."""
        return self._outputs(self._activate(self.first[i](embedded.flatten(1))), i)

    def _activate(self, hidden: Tensor) -> Tensor:
        hidden = functional.relu(hidden)
        return functional.dropout(hidden, self.dropout, self.training) if self.dropout else hidden

    def _outputs(self, hidden: Tensor, i: int) -> Tensor:
        out = cast(Tensor, self.last[i](hidden))
        if str(i) in self.smooth:
            out = out + self.smooth[str(i)](hidden) @ self.get_buffer(f"basis_{i}")
        return out

    def forward(self, codes: Tensor, visible: Tensor) -> Tensor:
        """Return −log p of each row's cells; `visible` [columns, columns]: what each column sees."""
        embedded = self.embed(codes)
        mask = visible.to(embedded.dtype)[:, :, None]
        losses = [
            functional.cross_entropy(self.logits(embedded * mask[i], i), codes[:, i], reduction="none")
            for i in range(len(self.sizes))
        ]
        return torch.stack(losses, dim=1).sum(dim=1)

    def forward_parts(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return `forward` of several (codes, visible) together, in fewer and larger products.

        All first layers are one matrix, with zeros where a column does not see another: what the mask does in
        `forward`, but to the weights. (DP-SGD needs the layers one by one, for the gradients of single rows.)
        """
        d = len(self.sizes)
        first = [cast(nn.Linear, layer) for layer in self.first]
        weight = torch.stack([layer.weight for layer in first])
        bias = torch.cat([layer.bias for layer in first])
        width = self.embedding.embedding_dim
        hidden = torch.cat(
            [
                functional.linear(
                    self.embed(codes).flatten(1),
                    (weight * visible.to(weight.dtype).repeat_interleave(width, 1)[:, None]).flatten(0, 1),
                    bias,
                )
                for codes, visible in parts
            ]
        )
        targets = torch.cat([codes for codes, _ in parts]).unbind(1)
        losses = [
            functional.cross_entropy(self._outputs(h, i), targets[i], reduction="none")
            for i, h in enumerate(self._activate(hidden).unflatten(1, (d, -1)).unbind(1))
        ]
        return torch.stack(losses).sum(dim=0)


def cosines(cells: int, number: int) -> np.ndarray:
    """Return √2 cos(π k u) at the ranks u of cells, for k = 1 … `number`; [cells, number]."""
    rank = (np.arange(cells) + 0.5) / cells
    return np.asarray(np.sqrt(2) * np.cos(np.pi * rank[:, None] * np.arange(1, number + 1)))


def visible_columns(first: np.ndarray) -> np.ndarray:
    """Return which columns each column sees if those in `first` (booleans) come first; [columns, columns]."""
    d = len(first)
    rank = np.empty(d, dtype=np.int64)
    rank[np.r_[np.flatnonzero(first), np.flatnonzero(~first)]] = np.arange(d)
    return np.asarray(rank[None, :] < rank[:, None])


def draw_first(columns: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the columns that come first: a uniform number of them."""
    first = np.zeros(columns, dtype=bool)
    first[rng.permutation(columns)[: rng.integers(1, max(columns, 2))]] = True
    return first


def split_network_rows(rows: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Split row numbers into (training, held out); at least one row is in each part."""
    order = rng.permutation(rows)
    held_out = min(max(1, round(share * rows)), rows - 1)
    return order[held_out:], order[:held_out]


class NetworkTrainer:
    """Trains a network on rows of cells; the caller decides on the epochs."""

    def __init__(
        self,
        network: ColumnNetwork,
        codes: Tensor,
        lr: float,
        decay: float,
        batch: int,
        rng: np.random.Generator,
    ):
        self.network, self.codes, self.batch, self.rng = network, codes, batch, rng
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=decay, fused=True)
        d = codes.shape[1]
        self.table_order = self._visible(np.zeros(d, dtype=bool))
        fixed = np.random.default_rng(0)  # the same orders for every evaluation
        self.other_orders = [self._visible(draw_first(d, fixed)) for _ in range(ORDERS)]

    def _visible(self, first: np.ndarray) -> Tensor:
        return torch.from_numpy(visible_columns(first)).to(self.codes.device)

    def epoch(self) -> float:
        """Train on every row once; return the mean loss."""
        self.network.train()
        total = self.codes.new_zeros((), dtype=torch.float32)
        order = torch.from_numpy(self.rng.permutation(len(self.codes))).to(self.codes.device)
        for index in torch.split(order, self.batch):
            half = len(index) // 2
            parts = [(self.codes[index[half:]], self.table_order)]
            if half:
                visible = self._visible(draw_first(self.codes.shape[1], self.rng))
                parts.append((self.codes[index[:half]], visible))
            loss = self.network.forward_parts(parts).sum()
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss / len(index))
            self.optimizer.step()
            total += loss.detach()
        return float(total) / len(self.codes)

    @torch.no_grad()
    def evaluate(self, codes: Tensor) -> float:
        """Return the mean −log p of rows: half in the order of the table, half in a few other orders."""
        self.network.eval()
        total = 0.0
        for part in codes.split(BLOCK // (1 + ORDERS)):
            orders = [self.table_order, *self.other_orders]
            losses = self.network.forward_parts([(part, order) for order in orders])
            sums = losses.unflatten(0, (len(orders), -1)).sum(dim=1)
            total += float(sums[0] + sums[1:].mean())
        return total / (2 * len(codes))

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] *= factor


class CellSampler:
    """Rows of cells that are filled in column by column."""

    def __init__(self, network: ColumnNetwork, codes: np.ndarray, known: np.ndarray):
        self.network, self.codes, self.known = network, codes.copy(), known.copy()
        self.device = network.embedding.weight.device
        with torch.no_grad():
            given = torch.from_numpy(self.known).to(self.device)[:, :, None]
            self.embedded = network.embed(torch.from_numpy(self.codes).to(self.device)) * given

    def log_shares(self, i: int, rows: np.ndarray) -> np.ndarray:
        """Return log p of the cells of column `i` in these rows, given what is known there."""
        with torch.no_grad():
            part = self.embedded[torch.from_numpy(rows).to(self.device)]
            return functional.log_softmax(self.network.logits(part, i), dim=1).double().cpu().numpy()

    def set_cells(self, i: int, rows: np.ndarray, cells: np.ndarray) -> None:
        """Set column `i` of these rows."""
        self.codes[rows, i], self.known[rows, i] = cells, True
        with torch.no_grad():
            index = torch.from_numpy(cells).to(self.device) + self.network.offsets[i]
            self.embedded[torch.from_numpy(rows).to(self.device), i] = self.network.embedding(index)

    def fill(
        self, i: int, rng: np.random.Generator, even: bool, allowed: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw column `i` where it is unknown; return log p(allowed) of these rows.

        `allowed` are booleans [cells], or [rows, cells] for the unknown rows.
        """
        rows = np.flatnonzero(~self.known[:, i])
        log_p = self.log_shares(i, rows)
        log_weight = np.zeros(len(rows))
        if allowed is not None and not allowed.all():
            log_p = np.where(allowed, log_p, -np.inf)
            log_weight = np.logaddexp.reduce(log_p, axis=1)
        self.set_cells(i, rows, pick(log_p, rng, even))
        return log_weight

    def take(self, rows: np.ndarray) -> None:
        """Keep these rows, which may repeat."""
        self.codes, self.known = self.codes[rows], self.known[rows]
        self.embedded = self.embedded[torch.from_numpy(rows).to(self.device)]


def pick(log_p: np.ndarray, rng: np.random.Generator, even: bool) -> np.ndarray:
    """Draw a cell for each row by its distribution.

    `even`: random numbers are stratified among rows of similar distributions.
    """
    p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
    total = np.cumsum(p, axis=1)
    u = rng.random(len(p))
    if even and len(p) > 1:
        similar = np.lexsort((rng.random(len(p)), _principal_scores(p / total[:, -1:])))
        u[similar] = uniforms_within(np.arange(len(p)) // STRATUM, rng, True)
    cells = (total <= (u * total[:, -1])[:, None]).sum(axis=1)
    last = p.shape[1] - 1 - np.argmax(p[:, ::-1] > 0, axis=1)
    return np.asarray(np.minimum(cells, last))


def _principal_scores(p: np.ndarray) -> np.ndarray:
    """Return each row's place along the first principal axis, rounded so that equal rows stay equal."""
    centered = p - p.mean(axis=0)
    axis = np.linalg.eigh(centered.T @ centered)[1][:, -1]
    return np.asarray(np.round(centered @ axis, 9))


def resample(log_weight: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `n` row numbers by weight (systematic resampling)."""
    weight = np.exp(log_weight - log_weight.max())
    total = np.cumsum(weight)
    at = np.searchsorted(total, (np.arange(n) + rng.random()) / n * total[-1])
    return np.asarray(np.minimum(at, len(total) - 1))


def equalize(log_p: np.ndarray, groups: np.ndarray, steps: int = 200) -> np.ndarray:
    """Shift the logits of each group of rows so that all groups have the same mean distribution.

    Iterative proportional fitting: within a group the odds of the rows relative to each other stay.
    """
    log_goal = _log_mean(log_p)
    out = log_p.copy()
    for g in np.unique(groups):
        rows = groups == g
        for _ in range(steps):
            gap = np.nan_to_num(log_goal - _log_mean(out[rows]), posinf=0.0, neginf=0.0)
            out[rows] += gap
            out[rows] -= np.logaddexp.reduce(out[rows], axis=1, keepdims=True)
            if np.abs(gap).max() < 1e-6:
                break
    return out


def _log_mean(log_p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(log_p).mean(axis=0)))
