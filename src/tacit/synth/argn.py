"""ARGN: an autoregressive network over discretized columns (`autoregressive.py`).

P. Tiwald, I. Krchova, A. Sidorenko, M. Vargas Vieyra, M. Scriminaci, M. Platzer, *TabularARGN: A Flexible and
Efficient Auto-Regressive Framework for Generating High-Fidelity Synthetic Data*, 2025.

The network predicts every column from any others, so one fitted model answers several questions:

    sample(n, conditions={"sex": "F"})              the conditioned columns come first; few rows are rejected
    sample(n, fair=("income", ["sex"]))             income independent of sex
    impute(frame)                                   missing values given the values of their row

Training stops when held-out rows no longer become more likely. In a table of few rows, a tenth of them cannot
tell: four networks that each leave out a quarter of the rows find the number of epochs, and a fifth one is
trained on all rows.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..parameters import bad, choice, flag, real, whole
from .adversarial import choose_device, torch_seed
from .autoregressive import (
    BLOCK,
    LEAST_WIDTH,
    CellSampler,
    ColumnNetwork,
    NetworkTrainer,
    equalize,
    pick,
    resample,
    split_network_rows,
)
from .columns import check_known
from .encode import EVEN, Conditions, Discretizer, Layout, cell_likelihoods
from .generator import Generator, GeneratorState, Watch, run_epochs
from .impute import impute_frame

CANDIDATES = 8  # rows drawn for each row of a sample whose conditions leave several values open
FALL = 0.3  # factor of the learning rate when held-out rows no longer become more likely
FALLS = 2  # times that it falls before training ends
LEAST_GAIN = 1e-4  # nats per row that count as an improvement
FEW_ROWS = 1_000  # with fewer, the number of epochs is cross-validated: 100 held-out rows or more are enough
FOLDS = 4
DROPOUT = 0.5, 0.1  # of tables with fewer rows than FEW_ROWS, and of others (docs/results/synth.md)
GROUPS = 10  # quantile groups of a number that a fair sample is independent of


class Autoregressive(Generator):
    """What a fitted network can be asked for, however it was trained."""

    embedding: int
    even: bool
    device: str

    @abstractmethod
    def get_cells(self, state: GeneratorState, layout: Layout) -> Discretizer:
        """Return the cells that the network predicts."""

    def sample(
        self,
        n: int,
        conditions: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        shares: Mapping[str, Mapping[Any, float]] | None = None,
        fair: tuple[str, str | Sequence[str]] | None = None,
    ) -> pd.DataFrame:
        """Return `n` synthetic rows.

        `conditions` and `shares` are as for all generators. `fair` is a column and those that it is sampled
        independently of, like ("income", ["sex", "race"]): every combination of their values has the same
        distribution of incomes (statistical parity). Within a group, who has the higher income stays as
        learned.
        """
        return pd.concat(list(self.chunks(n, conditions, seed, shares=shares, fair=fair)), ignore_index=True)

    def chunks(
        self,
        n: int,
        conditions: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        shares: Mapping[str, Mapping[Any, float]] | None = None,
        fair: tuple[str, str | Sequence[str]] | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Yield the rows of `sample` in data frames of at most 65,536 rows."""
        if fair is None:
            return super().chunks(n, conditions, seed, shares=shares)
        target, others = self._parse_fair(fair, {*(conditions or {}), *(shares or {})})
        parts = self.parse_parts(n, conditions, seed, shares)
        parts = [(share, replace(c, fair=(target, others))) for share, c in parts]
        return self._chunks(int(n), int(seed), Layout(self.table), parts)

    def _parse_fair(self, fair: Any, fixed: set[str]) -> tuple[int, tuple[int, ...]]:
        if not (isinstance(fair, tuple | list) and len(fair) == 2 and isinstance(fair[0], str)):
            raise bad("sample", "fair", fair, "a pair like ('income', ['sex'])")
        target, others = fair[0], [fair[1]] if isinstance(fair[1], str) else list(fair[1])
        names = [c.name for c in self.table.modeled]
        check_known([target, *others], names, "fair: there is no modeled column")
        if not others or target in others:
            raise bad("sample", "fair", fair, "a column and one or more other columns")
        if target in fixed:
            raise bad("sample", "fair", fair, f"a column without conditions and shares; {target!r} has some")
        layout = Layout(self.table)
        together = {_variable_of(layout, names.index(c)) for c in others}
        if _variable_of(layout, names.index(target)) in together:
            raise bad(
                "sample",
                "fair",
                fair,
                "columns that are not combined by a constraint or a dependency",
                "One of them determines the other, so they cannot be independent.",
            )
        return names.index(target), tuple(map(names.index, others))

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        cells, network = self.get_cells(state, layout), self.load_network(state, layout)
        allowed = [p > 0 for p in cell_likelihoods(layout, cells, conditions)]
        allowed = [
            a if a.any() else _nearest_cells(layout, cells, conditions, i) for i, a in enumerate(allowed)
        ]
        blocks = [
            _draw_cells(network, min(BLOCK, n - first), rng, self.even, allowed, layout, cells, conditions)
            for first in range(0, n, BLOCK)
        ]
        codes = np.concatenate(blocks)
        return _match_numbers(cells.decode(codes, rng), codes, layout, cells, conditions, rng)

    def impute(self, frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
        """Return the frame with its missing values replaced by draws given the other values of their row.

        Columns that were not learned stay as they are. Constraints hold in the completed rows where the
        values that were present allow it. Draw several times with different seeds for multiple imputation.
        """
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise bad("impute", "seed", seed, "a whole number of at least 0")
        layout = Layout(self.table)
        cells, network = self.get_cells(self.state, layout), self.load_network(self.state, layout)
        rng = np.random.default_rng([int(seed), 3])
        return impute_frame(frame, layout, cells, network, self.protection, rng, self.even)

    def build_network(self, cells: Discretizer, width: int, dropout: float = 0.0) -> ColumnNetwork:
        """Return a new network for these cells, with hidden layers of this width and dropout."""
        ordered = [
            size - var.missing if var.ordered else 0 for var, size in zip(cells.variables, cells.sizes)
        ]
        return ColumnNetwork(cells.sizes, self.embedding, width, dropout, ordered)

    def load_network(self, state: GeneratorState, layout: Layout) -> ColumnNetwork:
        """Return the fitted network, on its device."""
        device = choose_device(self.device)
        weights = {
            k.removeprefix("network."): t for k, t in state.tensors.items() if k.startswith("network.")
        }
        with torch_seed(0, device):
            network = self.build_network(self.get_cells(state, layout), len(weights["first.0.bias"]))
        network.load_state_dict(weights)
        return network.to(device).eval()


def pack_network(network: ColumnNetwork) -> dict[str, Tensor]:
    """Return the tensors that `load_network` reads."""
    return {f"network.{name}": t.detach().cpu().clone() for name, t in network.state_dict().items()}


@dataclass(frozen=True)
class ARGN(Autoregressive):
    """An autoregressive network: one small regressor for each column."""

    epochs: int = whole(100, least=1, doc="epochs of training at most; it ends earlier by itself")
    patience: int = whole(
        4,
        least=1,
        doc="epochs without improvement on held-out rows before the learning rate falls; the third time, "
        "training ends. With fewer than 1,000 rows: half of the epochs before it ends",
    )
    holdout: float = real(
        0.1,
        above=0,
        below=1,
        doc="share of the rows held out to decide when to stop; with fewer than 1,000 rows, four-fold "
        "cross-validation decides",
    )
    batch: int | None = whole(
        None, least=2, none=True, doc="batch size; None: a hundredth of the rows, from 32 to 256"
    )
    lr: float = real(2e-3, above=0, doc="initial learning rate (AdamW)")
    decay: float = real(1e-3, least=0, doc="weight decay")
    embedding: int = whole(16, least=1, doc="width of a cell's embedding")
    width: int | None = whole(
        None,
        least=1,
        none=True,
        doc="width of a column's hidden layer; None: one unit for 50 rows, from 16 to 64; less if the table "
        "is wide",
    )
    dropout: float | None = real(
        None,
        least=0,
        below=1,
        none=True,
        doc="dropout of the hidden layers; None: 0.5 with fewer than 1,000 rows, else 0.1",
    )
    bins: int | None = whole(
        None, least=2, none=True, doc="cells of a numeric column; None: one for 50 rows, from 20 to 100"
    )
    even: bool = flag(True, doc=EVEN)
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="device for training and sampling")
    seed: int = whole(0, least=0, doc="random seed of the fit")

    federated: ClassVar[bool] = True

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        device = choose_device(self.device)
        bins = self.bins or min(max(len(v) // 50, 20), 100)
        cells = Discretizer.from_data(layout.variables, v, bins)
        codes = torch.from_numpy(cells.encode(v)).to(device)

        def start(rows: np.ndarray) -> NetworkTrainer:
            """Return a new network that starts from the frequencies of these rows, and its trainer."""
            part = codes[torch.from_numpy(rows).to(device)]
            network = self.build_network(cells, self.layer_width(len(v)), self.choose_dropout(len(v)))
            # of no held-out row: an untrained network that knows their frequencies looks better than it is
            network.set_frequencies(
                [np.bincount(part[:, i].cpu().numpy(), minlength=s) for i, s in enumerate(cells.sizes)]
            )
            batch = self.batch_size(len(rows))
            return NetworkTrainer(network.to(device), part, self.lr, self.decay, batch, rng)

        with torch_seed(self.seed, device):
            if len(v) < FEW_ROWS:
                parts = np.array_split(rng.permutation(len(v)), min(FOLDS, len(v)))
                folds = [
                    (
                        start(np.concatenate(parts[:k] + parts[k + 1 :])),
                        codes[torch.from_numpy(part).to(device)],
                    )
                    for k, part in enumerate(parts)
                ]
                best, history = cross_validate(folds, self.epochs, 2 * self.patience, watch)
                trainer = start(np.arange(len(v)))
                for _ in range(best):
                    trainer.epoch()
            else:
                used, held_out = split_network_rows(len(v), self.holdout, rng)
                trainer = start(used)
                rest = codes[torch.from_numpy(held_out).to(device)]
                history = train_until_best(trainer, rest, self.epochs, self.patience, watch)
        return GeneratorState({**cells.tensors(), **pack_network(trainer.network)}, history=history)

    def layer_width(self, rows: int) -> int:
        """Return the width of hidden layers for this number of rows: large ones learn few rows by heart."""
        return self.width or min(max(rows // 50, LEAST_WIDTH), 64)

    def choose_dropout(self, rows: int) -> float:
        """Return the dropout for this number of rows."""
        return DROPOUT[rows >= FEW_ROWS] if self.dropout is None else self.dropout

    def batch_size(self, rows: int) -> int:
        """Return the batch size for this number of rows; small tables need small ones for enough steps."""
        return self.batch or min(max(rows // 100, 32), 256)

    def get_cells(self, state: GeneratorState, layout: Layout) -> Discretizer:
        return Discretizer.from_tensors(layout.variables, state.tensors)


def train_until_best(
    trainer: NetworkTrainer, held_out: Tensor, epochs: int, patience: int, watch: Watch
) -> list[dict[str, Any]]:
    """Train, and leave the network with the weights that make the held-out rows most likely."""
    best, weights = trainer.evaluate(held_out), copy.deepcopy(trainer.network.state_dict())
    waited = falls = 0

    def train_epoch(epoch: int) -> dict[str, float]:
        nonlocal best, weights, waited, falls
        loss, value = trainer.epoch(), trainer.evaluate(held_out)
        waited += 1
        if value < best - LEAST_GAIN:
            best, weights, waited = value, copy.deepcopy(trainer.network.state_dict()), 0
        elif waited >= patience:
            trainer.network.load_state_dict(weights)
            trainer.scale_rate(FALL)
            waited, falls = 0, falls + 1
        return {"loss": loss, "held_out": value}

    history = run_epochs(epochs, train_epoch, watch, until=lambda: falls > FALLS)
    trainer.network.load_state_dict(weights)
    return history


def cross_validate(
    folds: Sequence[tuple[NetworkTrainer, Tensor]], epochs: int, patience: int, watch: Watch
) -> tuple[int, list[dict[str, Any]]]:
    """Train networks that each leave rows out; return after how many epochs these are most likely.

    Ends `patience` epochs after the best one.
    """
    rows = sum(len(held_out) for _, held_out in folds)

    def judge() -> float:
        return sum(t.evaluate(held_out) * len(held_out) for t, held_out in folds) / rows

    values = [judge()]

    def best() -> int:
        return int(np.argmin(values))

    def train_epoch(epoch: int) -> dict[str, float]:
        loss = sum(trainer.epoch() for trainer, _ in folds) / len(folds)
        values.append(judge())
        return {"loss": loss, "held_out": values[-1]}

    history = run_epochs(epochs, train_epoch, watch, until=lambda: len(values) > best() + patience)
    return best(), history


def _draw_cells(
    network: ColumnNetwork,
    n: int,
    rng: np.random.Generator,
    even: bool,
    allowed: list[np.ndarray],
    layout: Layout,
    cells: Discretizer,
    conditions: Conditions,
) -> np.ndarray:
    """Draw rows of cells: restricted columns first, then the others, a fair one last."""
    d = len(allowed)
    restricted = [i for i, a in enumerate(allowed) if not a.all()]
    last = [] if conditions.fair is None else [_variable_of(layout, conditions.fair[0])]
    # if one restricted column has several allowed values, they differ in how likely the later conditions are
    weigh = len(restricted) > 1 and any(allowed[i].sum() > 1 for i in restricted)
    size = n * CANDIDATES if weigh else n
    sampler = CellSampler(network, np.zeros((size, d), dtype=np.int64), np.zeros((size, d), dtype=bool))
    log_weight = np.zeros(size)
    for i in restricted:
        log_weight += sampler.fill(i, rng, even, allowed[i])
    if weigh:
        sampler.take(resample(log_weight, n, rng))
    for i in range(d):
        if i not in restricted and i not in last:
            sampler.fill(i, rng, even)
    if conditions.fair is not None:
        rows = np.arange(n)
        groups = _group_rows(sampler.codes, layout, cells, conditions.fair[1])
        log_p = equalize(sampler.log_shares(last[0], rows), groups)
        for g in np.unique(groups):
            mine = rows[groups == g]
            sampler.set_cells(last[0], mine, pick(log_p[mine], rng, even))
    return sampler.codes


def _variable_of(layout: Layout, column: int) -> int:
    return next(i for i, v in enumerate(layout.variables) if column in v.columns)


def _group_rows(
    codes: np.ndarray, layout: Layout, cells: Discretizer, columns: tuple[int, ...]
) -> np.ndarray:
    """Number the combinations of values of these columns; numbers by quantile groups."""
    keys = []
    for j in columns:
        i = _variable_of(layout, j)
        code = codes[:, i]
        if i in layout.combinations:
            at = list(layout.variables[i].columns).index(j)
            code = np.unique(layout.combinations[i][:, at], return_inverse=True)[1].reshape(-1)[code]
        elif not layout.variables[i].levels and cells.sizes[i] > GROUPS:
            counts = np.bincount(code, minlength=cells.sizes[i])
            code = ((np.cumsum(counts) - counts / 2) / len(code) * GROUPS).astype(np.int64)[code]
        keys.append(code)
    return np.asarray(np.unique(np.column_stack(keys), axis=0, return_inverse=True)[1]).reshape(-1)


def _nearest_cells(layout: Layout, cells: Discretizer, conditions: Conditions, i: int) -> np.ndarray:
    """Return the cells of values that lie between those of the training table; all if none is possible."""
    out = np.zeros(cells.sizes[i], dtype=bool)
    var = layout.variables[i]
    if not var.levels:
        j = var.columns[0]
        wanted = np.array(conditions.intervals.get(j, conditions.values.get(j, ())))
        wanted = wanted[~np.isnan(wanted)]
        out[np.searchsorted(cells.edges[i], wanted, side="right")] = True
    return out if out.any() else np.ones_like(out)


def _match_numbers(
    v: np.ndarray,
    codes: np.ndarray,
    layout: Layout,
    cells: Discretizer,
    conditions: Conditions,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw conditioned numbers again within their cell and the condition."""
    for i, knots in cells.knots.items():
        j = layout.variables[i].columns[0]
        at = np.minimum(codes[:, i], len(knots) - 1)
        present = ~np.isnan(v[:, i])
        if j in conditions.intervals:
            low, high = conditions.intervals[j]
            a, b = (np.clip(knots[at, end], low, high) for end in (0, -1))
            outside = present & ((v[:, i] < low) | (v[:, i] > high))
            v[:, i] = np.where(outside, a + rng.random(len(v)) * (b - a), v[:, i])
        elif j in conditions.values:
            values = np.sort(conditions.values[j][~np.isnan(conditions.values[j])])
            if len(values):
                middles = (values[1:] + values[:-1]) / 2
                v[present, i] = values[np.searchsorted(middles, v[present, i])]
    return v
