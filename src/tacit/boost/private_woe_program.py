"""Binning by weight of evidence with (ε, δ)-differential privacy of each row, as a program of sums.

    step 0   counts of each number in equal cells of its declared bounds → quantile bins
    step 1   rows and events in every bin of every column, and over all rows

A row is in one cell of each column, and changes one count by 1. Parties add discrete Gaussian noise
(stats/noise_share.py); ρ of zCDP is shared by the columns. Cuts, levels and outcomes that are declared cost
nothing. Bins, WOE and IV follow from the noisy counts; those below 0 count as 0.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..accounting.compose import Release
from ..errors import BadData
from ..parties.ledger import Spend
from ..protocols.sum_steps import Down
from ..stats import noise_share
from ..stats.columns import text_of
from ..stats.noise_share import BOUND, SCALE, Block
from . import agreement
from .agreement import Agreed, Terms, Token
from .bins import Bins
from .bounded_cells import CELLS, choose_cuts, count_cells
from .woe_bins import WoeRules, bin_column
from .woe_program import Weighed

BIN_SHARE, TOTAL_SHARE = 0.15, 0.05  # of the budget


@dataclass(frozen=True)
class PrivateWoeProgram:
    """All options are plain values. `bounds` are those of each number without declared cuts."""

    terms: Mapping[str, Any]
    parties: int
    epsilon: float
    delta: float
    bounds: Mapping[str, Sequence[float]]
    event: str | None = None
    bins: int = 8
    monotone: bool = True
    min_share: float = 0.05
    min_rows: int = 20
    min_cell: int = 5

    @cached_property
    def about(self) -> Terms:
        return Terms(**agreement.plain(self.terms))

    @cached_property
    def token(self) -> Token:
        return Token()

    @property
    def max_steps(self) -> int:
        return 2 if self.searched else 1

    @property
    def bound(self) -> int:
        return BOUND

    @property
    def searched(self) -> tuple[str, ...]:
        return self.about.searched

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        what = f"rows and events in the bins of {len(self.about.columns)} columns"
        return noise_share.spend_of(self.epsilon, self.delta, self.parties, what)

    def _is_search(self, step: int) -> bool:
        return bool(self.searched) and step == 0

    def blocks(self, step: int, bins: Bins | None = None) -> list[Block]:
        """The numbers of a step, what one row changes in them, and their share of the budget."""
        if self._is_search(step):
            return [Block(CELLS, 1.0, BIN_SHARE / len(self.searched)) for _ in self.searched]
        assert bins is not None
        rest = 1.0 - TOTAL_SHARE - (BIN_SHARE if self.searched else 0.0)
        widths = (bins.widths + 1).tolist()
        each = [Block(2 * w, 1.0, rest / len(widths)) for w in widths]
        return [*each, Block(2, 1.0, TOTAL_SHARE)]

    # --- a party --------------------------------------------------------------------------------------------

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks(step, self._read(step, down)))

    def _read(self, step: int, down: Down) -> Bins | None:
        return None if self._is_search(step) else agreement.read_agreed(self, down).bins

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        blocks = self.blocks(step, self._read(step, down))
        return noise_share.add_noise(
            self.exact(step, table, down), blocks, self.epsilon, self.delta, self.parties
        )

    def exact(self, step: int, table: pd.DataFrame, down: Down) -> list[np.ndarray]:
        """Return a party's counts before the noise."""
        own = agreement.prepare_declared(self, table)
        if self._is_search(step):
            columns = zip(self.searched, own.values(self.searched))
            return [count_cells(values, self.bounds[name]) for name, values in columns]
        bins = agreement.read_agreed(self, down).bins
        y, codes = own.label(self.about.labels).astype(np.int64), bins.encode(own.table).astype(np.int64)
        widths = (bins.widths + 1).tolist()
        counts = [np.bincount(codes[:, k] * 2 + y, minlength=2 * w) for k, w in enumerate(widths)]
        return [*counts, np.bincount(y, minlength=2)]

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinate(self) -> Generator[Down, np.ndarray, Weighed]:
        terms, labels = self.about, self.about.labels
        event = labels[1] if self.event is None else text_of(self.event)
        if event not in labels:
            raise BadData(
                f"boost.woe: the event is {event!r}; the outcomes of {terms.label!r} are "
                f"{' and '.join(map(repr, labels))}."
            )
        cuts = {c: tuple(float(np.float32(v)) for v in values) for c, values in terms.cuts.items()}
        if self.searched:
            found = np.maximum((yield {}).astype(np.float64) / SCALE, 0.0).reshape(-1, CELLS)
            for name, cells in zip(self.searched, found):
                cuts[name] = choose_cuts(cells, self.bounds[name], self.about.bins)
        bins = Bins(
            tuple(
                terms.feature(c, terms.levels[c], None)
                if c in terms.categorical
                else terms.feature(c, None, cuts[c])
                for c in terms.columns
            )
        )
        agreed = Agreed(bins, labels, 0.0, (1.0, 1.0), (1.0,) * len(labels))
        total = np.maximum(np.rint((yield agreed.to_down()).astype(np.float64) / SCALE), 0.0)
        order = [1 - labels.index(event), labels.index(event)]
        counts, totals = total[:-2].reshape(-1, 2)[:, order].astype(np.int64), total[-2:][order]
        if totals.min() < self.min_cell:
            raise BadData(
                f"boost.woe: about {totals[1]:.0f} events ({event!r}) and {totals[0]:.0f} other rows were "
                f"counted with noise; at least {self.min_cell} of each are needed (min_cell)."
            )
        share = round(self.min_share * float(totals.sum()))
        rules = WoeRules(self.bins, self.monotone, share, self.min_rows, self.min_cell)
        ends = [*bins.offsets.tolist(), bins.cells]
        columns = [
            bin_column(feature, counts[a:b], totals, rules)
            for feature, a, b in zip(bins.features, ends, ends[1:])
        ]
        other = labels[1 - labels.index(event)]
        return Weighed(columns, (other, event), (int(totals[0]), int(totals[1])), self.max_steps)
