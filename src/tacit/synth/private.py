"""What the private, marginal-based generators share: declared domains, one door to the data, a ledger with
what was spent.

What is fitted is a function of noisy marginals alone; sampling from it, saving it and asking it questions
cost nothing more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..accounting.discrete import rho_of
from ..errors import BadData, BadParameter
from ..parameters import bad, check, nearest, real, whole
from .columns import Column
from .conditions import Conditions
from .constraints import Combinations
from .encode import Layout
from .generator import Fitted, Generator, Learned, Watch
from .graphical import JunctionTree, Model
from .marginals import Curator, Grid, Support, ledger_of, secret_of
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame


def declared(table: Table | Mapping[str, Column] | None, frame: DataFrame, who: str) -> Table:
    """The table as the user wrote it down; nothing of it is read off the data."""
    import pandas as pd

    if table is None:
        raise BadData(
            f"{who} needs declared domains: table={{'age': tacit.synth.integer(0, 120), 'sex': "
            f"tacit.synth.categorical(['F', 'M'])}}, from what is "
            "publicly known. Domains read off the data would give away facts about single rows."
        )
    if not isinstance(
        frame, pd.DataFrame
    ):  # how many rows it has is no reason to refuse it: that would be a fact about them
        raise BadData(
            f"{who}: this is no table but {type(frame).__name__}. Give a pandas DataFrame (pandas.read_csv "
            "reads one)."
        )
    if not isinstance(table, Table):
        if not isinstance(table, Mapping) or not all(isinstance(c, Column) for c in table.values()):
            raise bad(
                who,
                "table",
                table,
                "a Table, or a dictionary of declared columns",
                "Write {'age': tacit.synth.integer(0, 120), 'sex': tacit.synth.categorical(['F', 'M'])}.",
            )
        table = Table.declare(table)
    if not table.modelled:
        raise BadData(
            f"{who}: no column is declared but identifiers, so there is nothing to learn. Declare at least "
            "one."
        )
    for constraint in table.constraints:
        if isinstance(constraint, Combinations):
            raise BadParameter(
                f"{who}: {constraint!r} cannot be held under differential privacy here. Make one column of "
                "the combinations, "
                "and declare its values."
            )
    names = [str(n) for n in frame.columns]
    for column in table.columns:
        if column.name not in names:
            raise BadData(f"the table has no column {column.name!r}. {nearest(column.name, names)}")
    return replace(table, columns=tuple(replace(c, dtype=_dtype(c)) for c in table.columns))


def _dtype(column: Column) -> str:
    """Of a synthetic column, by what it was declared as: `Table.infer` reads it off the rows, where one
    missing age makes all ages fractions.
    """
    if column.dtype == "category" or column.dtype.startswith("datetime64"):
        return column.dtype  # no row changes that
    if column.kind in ("categorical", "ordinal"):
        import pandas as pd

        return str(pd.Series(list(column.values)).dtype)  # what pandas makes of the declared values
    return "" if column.missing else {"integer": "int64", "boolean": "bool"}.get(column.kind, "")


@dataclass(frozen=True)
class MarginalGenerator(Generator):
    """ε and δ for one record, added or removed. Without a seed the noise comes from the operating system;
    with one it can be replayed, and the ledger is stamped NOT PRIVATE.
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
    seed: int | None = whole(
        None,
        least=0,
        none=True,
        doc="None: noise from the operating system; a number: replayable, and stamped NOT PRIVATE",
    )  # type: ignore[assignment]

    private = True

    @abstractmethod
    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        """The model, and which cells were merged before it was made."""

    def fit(
        self, frame: DataFrame, table: Table | Mapping[str, Column] | None = None, watch: Watch | None = None
    ) -> Fitted:  # type: ignore[override]
        """Learn from a data frame whose columns' domains are declared. Columns that are not declared are left
        out of the synthetic table.
        """
        check(self)
        who = type(self).__name__
        table = declared(table, frame, who)
        grid = Grid(table.modelled, self.bins)
        frame = frame.set_axis([str(n) for n in frame.columns], axis=1)
        curator = Curator(
            grid.codes(frame), grid.sizes, rho_of(self.epsilon, self.delta), secret_of(self.seed)
        )
        model, support = self.estimate(curator, watch or (lambda event: None))
        learned = packed(model, support)
        learned.ledger = ledger_of(
            f"{who} (discrete Gaussian marginals, exponential choice)", self.epsilon, self.delta, curator
        )
        return Fitted(self, table, learned)

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        raise BadParameter(
            f"{type(self).__name__}.learn: numbers without declared domains cannot be learnt from "
            "privately. Call fit(frame, table=…)."
        )

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        model, support = unpacked(learned)
        codes = model.sample(n, rng)
        if support is not None:
            codes = support.spread(codes, rng)
        return layout.forward(Grid(layout.table.modelled, self.bins).numbers(codes, rng))


def packed(model: Model, support: Support | None) -> Learned:
    """A model as tensors and plain facts: each clique given its separator, and the tree."""
    tensors = {
        f"clique {k}": torch.from_numpy(np.ascontiguousarray(c)) for k, c in enumerate(model.conditionals)
    }
    facts: dict[str, Any] = {
        "sizes": list(model.sizes),
        "total": model.total,
        "cliques": [list(c) for c in model.tree.cliques],
        "parent": model.tree.parent,
        "separator": [list(s) for s in model.tree.separator],
    }
    if support is not None:
        facts["place"] = [p.tolist() for p in support.place]
        facts["rare"] = [r.tolist() for r in support.rare]
    return Learned(tensors, facts)


def unpacked(learned: Learned) -> tuple[Model, Support | None]:
    facts = learned.facts
    tree = JunctionTree(
        [tuple(c) for c in facts["cliques"]], list(facts["parent"]), [tuple(s) for s in facts["separator"]]
    )
    conditionals = [learned.tensors[f"clique {k}"].numpy() for k in range(len(tree.cliques))]
    support = None
    if "place" in facts:
        support = Support(
            tuple(np.array(p, np.int64) for p in facts["place"]),
            tuple(np.array(r, np.int64) for r in facts["rare"]),
        )
    return Model.of_conditionals(tuple(facts["sizes"]), tree, facts["total"], conditionals), support
