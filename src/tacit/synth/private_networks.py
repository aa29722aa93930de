"""What the private networks share: rows as indicators of declared cells, a maker of such rows, and a ledger
with what was spent.

Nothing of how rows are written down is read off the data (no modes, no quantiles, no frequencies): every
column is cut into the cells of its declared domain, as for MST. What leaves the training is the maker, which
has only ever seen what the mechanism let through; drawing from it costs nothing more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..errors import BadParameter
from ..parameters import check, real, whole
from ..parties.ledger import Ledger, Spend
from ..parties.secret import NOT_PRIVATE, Secret
from .adversarial import TEMPERATURE, Maker, seeded, state_of
from .columns import Column
from .conditions import Conditions
from .encode import Layout
from .generator import Fitted, Generator, Learned, Watch
from .marginals import Grid, secret_of
from .private import declared
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

CPU = torch.device("cpu")


@dataclass(frozen=True)
class NetworkGenerator(Generator):
    """ε and δ for one record, added or removed. Without a seed all that privacy rests on comes from the
    operating system; with one it can be replayed, and the ledger is stamped NOT PRIVATE.
    """

    epsilon: float = real(1.0, above=0, doc="ε: how much one record may change what is released")
    delta: float = real(
        1e-9,
        above=0,
        below=1,
        doc="δ: the probability that ε does not hold; far below one in the number of rows",
    )
    bins: int = whole(
        32, least=2, most=1024, doc="cells of a column of numbers, of equal width between its declared bounds"
    )
    lr: float = real(1e-3, above=0, doc="learning rate of the networks (Adam)")
    noise: int = whole(64, least=1, doc="width of the noise")
    width: int = whole(128, least=1, doc="of both hidden layers of the maker")
    seed: int | None = whole(
        None,
        least=0,
        none=True,
        doc="None: secrets from the operating system; a number: replayable, and stamped NOT PRIVATE",
    )  # type: ignore[assignment]

    private = True

    @abstractmethod
    def contest(
        self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch
    ) -> tuple[Maker, Spend, list[dict[str, Any]]]:
        """A maker trained on indicators [rows, cells], what that spent, and a history row now and then."""

    def fit(
        self, frame: DataFrame, table: Table | Mapping[str, Column] | None = None, watch: Watch | None = None
    ) -> Fitted:  # type: ignore[override]
        """Learn from a data frame whose columns' domains are declared. Columns that are not declared are left
        out of the synthetic table.
        """
        check(self)
        table = declared(table, frame, type(self).__name__)
        grid = Grid(table.modelled, self.bins)
        codes = grid.codes(frame.set_axis([str(n) for n in frame.columns], axis=1))
        rows = torch.cat(
            [functional.one_hot(torch.from_numpy(codes[:, j]), size) for j, size in enumerate(grid.sizes)],
            dim=1,
        ).float()
        secret = secret_of(self.seed)
        with seeded(
            int.from_bytes(secret.bytes(8), "big") >> 2, CPU
        ):  # first weights and the maker's noise: nobody's secret, but never the process's state
            maker, spend, history = self.contest(rows, grid.sizes, secret, watch or (lambda event: None))
        learned = Learned(
            {f"maker.{name}": t.clone() for name, t in state_of(maker).items()},
            history=history,
            ledger=Ledger(),
        )
        assert learned.ledger is not None
        learned.ledger.spend(spend)
        if secret.replayable:
            learned.ledger.stamp(NOT_PRIVATE)
        return Fitted(self, table, learned)

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        raise BadParameter(
            f"{type(self).__name__}.learn: numbers without declared domains cannot be learnt from "
            "privately. Call fit(frame, table=…)."
        )

    def maker(self, sizes: tuple[int, ...]) -> Maker:
        return Maker(self.noise, (self.width, self.width), sum(sizes))

    def made(self, maker: Maker, n: int, sizes: tuple[int, ...]) -> Tensor:
        """`n` soft rows: a Gumbel softmax a column."""
        return soft(maker(torch.randn(n, self.noise)), sizes)

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        grid = Grid(layout.table.modelled, self.bins)
        with seeded(int(rng.integers(2**62)), CPU), torch.no_grad():
            maker = self.maker(grid.sizes).eval()
            maker.load_state_dict(
                {name.removeprefix("maker."): t for name, t in learned.tensors.items()}, strict=False
            )
            rows = self.made(maker, n, grid.sizes)
        codes = np.column_stack([part.argmax(dim=1).numpy() for part in rows.split(list(grid.sizes), dim=1)])
        return layout.forward(grid.numbers(codes, rng))


def soft(raw: Tensor, sizes: tuple[int, ...]) -> Tensor:
    noisy = (raw - torch.log(torch.empty_like(raw).exponential_().clamp_min(1e-20))) / TEMPERATURE
    return torch.cat([functional.softmax(part, dim=1) for part in noisy.split(list(sizes), dim=1)], dim=1)


def spend_of(mechanism: str, epsilon: float, delta: float, sampling: str, note: str) -> Spend:
    return Spend(
        mechanism,
        epsilon,
        delta,
        unit="record (one row added or removed)",
        adversary="whoever sees the model and every sample, whatever else they know",
        sampling=sampling,
        note=note,
    )
