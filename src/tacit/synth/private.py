"""Base classes of the differentially private generators.

Domains are declared, never inferred from the data. What is released is a function of noisy statistics alone,
so sampling, saving and querying it spend no more privacy.

The private networks (DPGAN, DP-CTGAN, PATE-GAN) see rows as one-hot indicators of the declared cells, as MST
does; no modes, quantiles or frequencies are read off the data. What leaves training is the generator network,
which only receives what the mechanism releases.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from ..accounting import discrete
from ..accounting.discrete import rho_of
from ..errors import BadData, BadParameter
from ..parameters import bad, real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adaptive_cells import THRESHOLDS, estimate_cells
from .adversarial import CPU, TEMPERATURE, GeneratorNet, get_weights, torch_seed
from .columns import Column, check_known, declared_dtype
from .constraints import Combinations
from .domains import DomainEstimate, estimate_domains
from .encode import Conditions, Layout
from .generator import FitOptions, Generator, GeneratorState, Watch
from .graphical import JunctionTree, Model
from .marginals import DECLARED, Curator, Grid, Support, make_secret, marginal_spend, private_ledger
from .table import Table

History = list[dict[str, Any]]
CELLS = "cells"  # in the metadata of a state
INSECURE_SEED = (
    "for tests only: makes the secret randomness replayable, and the ledger is stamped NOT PRIVATE; "
    "None: randomness of the operating system"
)


def declared_table(
    table: Table | Mapping[str, Column] | None, frame: pd.DataFrame, who: str, estimates: bool = False
) -> Table:
    """Check a declared table against a frame and return it; nothing is inferred from the rows.

    `estimates`: columns without bounds or categories are allowed, because ε pays for their estimate.
    """
    if table is None:
        raise BadData(
            f"{who} needs declared domains: table={{'age': tacit.synth.integer(0, 120), 'sex': "
            "tacit.synth.categorical(['F', 'M'])}, from public knowledge. Domains inferred from the data "
            "would reveal facts about single rows."
        )
    # the number of rows is never a reason to refuse: that would be a fact about them
    if not isinstance(frame, pd.DataFrame):
        raise BadData(
            f"{who}: expected a pandas DataFrame, got {type(frame).__name__}. pandas.read_csv reads one."
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
    open_columns = table.open_columns
    inferred = [name for name in table.undeclared if name not in open_columns]
    if open_columns and not estimates:
        raise BadData(
            f"{who}: {', '.join(map(repr, open_columns))} of the table: bounds or categories are not "
            "declared. Declare them from public knowledge, or let a stated part of ε pay for a private "
            "estimate: domain_epsilon=0.3 of a private generator, or "
            "tacit.synth.Domains(epsilon=0.3).estimate(frame, table)."
        )
    if inferred:
        raise BadData(
            f"{who}: {', '.join(map(repr, inferred))} of the table: kind or domain was inferred from "
            "the data, which would reveal facts about single rows. Declare every column: "
            "Table.declare({'age': tacit.synth.integer(0, 120), …}), or leave it out."
        )
    if not table.modeled:
        raise BadData(
            f"{who}: only identifiers are declared, so there is nothing to learn. Declare at least one other "
            "column."
        )
    for constraint in table.constraints:
        if isinstance(constraint, Combinations):
            raise BadParameter(
                f"{who}: {constraint!r} is not supported under differential privacy. Combine the columns "
                "into one and declare its values."
            )
    check_known((c.name for c in table.columns), list(map(str, frame.columns)), "the table has no column")
    return replace(table, columns=tuple(replace(c, dtype=declared_dtype(c)) for c in table.columns))


@dataclass(frozen=True)
class PrivateGenerator(Generator):
    """A generator with an (ε, δ) guarantee for one record, added or removed.

    All secret randomness comes from the operating system. `insecure_seed` makes it replayable, which voids
    the guarantee: the ledger is then stamped NOT PRIVATE.
    """

    epsilon: float = real(1.0, above=0, doc="ε: how much one record may change what is released")
    delta: float = real(
        1e-9,
        above=0,
        below=1,
        doc="δ: the probability that ε does not hold; choose it far below 1 / number of rows",
    )
    bins: int = whole(
        32, least=2, most=1024, doc="cells of a numeric column, of equal width between its declared bounds"
    )
    insecure_seed: int | None = whole(None, least=0, none=True, doc=INSECURE_SEED)
    domain_epsilon: float | None = real(
        None,
        above=0,
        none=True,
        doc="part of ε that pays for bounds and categories of columns that are declared without them; None: "
        "such columns are refused",
    )

    private: ClassVar[bool] = True

    @abstractmethod
    def learn_private(
        self, frame: pd.DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        """Learn from declared columns; return what was learned and the privacy spent."""

    def _learn_frame(
        self,
        frame: pd.DataFrame,
        table: Table | Mapping[str, Column] | None,
        watch: Watch,
        options: FitOptions,
    ) -> tuple[Table, GeneratorState]:
        """Undeclared columns are left out of the synthetic table."""
        name, part = type(self).__name__, self.domain_epsilon
        if part is not None and part >= self.epsilon:
            raise bad(name, "domain_epsilon", part, f"below epsilon={self.epsilon:g}, of which it is a part")
        table = declared_table(table, frame, name, estimates=part is not None)
        secret = make_secret(self.insecure_seed)
        frame = frame.set_axis([str(n) for n in frame.columns], axis=1)
        trained: PrivateGenerator = self
        domains: DomainEstimate | None = None
        if part is not None and table.open_columns:
            domains = estimate_domains(frame, table, part, self.delta / 2, secret)
            table, trained = domains.table, self._with_rest(domains, part)
        state, spend = trained.learn_private(frame, table, Grid(table.modeled, self.bins), secret, watch)
        if domains is not None:
            spend = replace(
                spend,
                mechanism=f"{spend.mechanism}, after domains of {', '.join(domains.columns)}",
                epsilon=self.epsilon - trained.epsilon + spend.epsilon,
                delta=self.delta,
                note=f"{spend.note.removesuffix(DECLARED)}Domains were estimated with noise, which alone has "
                f"ε = {part:g}, δ = {self.delta / 2:g}.",
            )
        state.ledger = private_ledger(spend, secret)
        state.ledger.spent[:0] = table.spent
        return table, state

    def _with_rest(self, domains: DomainEstimate, part: float) -> Self:
        """Return this generator with the budget that the domains have left: ε and δ add up."""
        return replace(self, epsilon=self.epsilon - part, delta=self.delta / 2)

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        raise BadParameter(
            f"{type(self).__name__}.learn: numbers without declared domains cannot be learned from "
            "privately. Call fit(frame, table=…)."
        )


@dataclass(frozen=True)
class AdaptiveGenerator(PrivateGenerator):
    """A private generator whose numeric columns may have cells that follow their distribution."""

    cells: float = real(
        0.2,
        least=0,
        below=1,
        doc="part of the budget for cells of numeric columns: values that many rows share, and parts of "
        "equal mass; 0: cells of equal width",
    )

    def get_grid(self, state: GeneratorState, table: Table) -> Grid:
        """Return the cells that were learned."""
        knots = {int(j): np.array(k) for j, k in state.metadata.get(CELLS, {}).items()}
        return Grid(table.modeled, self.bins, knots)


@dataclass(frozen=True)
class MarginalGenerator(AdaptiveGenerator):
    """A graphical model fitted to noisy marginals."""

    @abstractmethod
    def estimate(self, curator: Curator, watch: Watch) -> tuple[Model, Support | None]:
        """Return the model, and which cells were merged before it was fitted."""

    def _with_rest(self, domains: DomainEstimate, part: float) -> Self:
        """ρ adds up, which leaves more than ε does; δ of the thresholds is subtracted first."""
        delta = self.delta - domains.delta
        # what `learn_private` has left after the thresholds of its cells: the same δ, or ρ would not add up
        left = delta * (1 - THRESHOLDS)
        rho = discrete.rho_of(self.epsilon, left) - float(domains.rho)
        # rounded down: the search for ρ must not return more than is left
        return replace(self, epsilon=discrete.epsilon_of(rho * (1 - 1e-9), left), delta=delta)

    def learn_private(
        self, frame: pd.DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        thresholds = self.delta * THRESHOLDS
        rho = rho_of(self.epsilon, self.delta * (1 - THRESHOLDS))
        # of counts that share the rest of the budget, one for each column
        noise = math.sqrt(len(grid.sizes) / (2 * (1 - self.cells) * rho))
        found = estimate_cells(frame, grid, self.cells * rho, thresholds, secret, noise)
        rho = rho_of(self.epsilon, self.delta - found.delta)
        curator = Curator(found.grid.codes(frame), found.grid.sizes, rho, secret, found.rho)
        model, support = self.estimate(curator, watch)
        state = pack_model(model, support)
        state.metadata[CELLS] = pack_cells(found.grid)
        spend = marginal_spend(
            f"{type(self).__name__} (discrete Gaussian marginals, exponential choice)",
            self.epsilon,
            self.delta,
            curator,
            found.delta,
        )
        return state, spend

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        model, support = unpack_model(state)
        codes = model.sample(n, rng)
        if support is not None:
            codes = support.expand(codes, rng)
        return layout.encode(self.get_grid(state, layout.table).to_numbers(codes, rng))


def pack_cells(grid: Grid) -> dict[str, list[list[float]]]:
    """Convert the cells of numeric columns to JSON; `AdaptiveGenerator.get_grid` reads them."""
    return {str(j): knots.tolist() for j, knots in grid.knots.items()}


def pack_model(model: Model, support: Support | None) -> GeneratorState:
    """Convert a model to tensors and metadata: each clique given its separator, and the tree."""
    tensors = {
        f"clique {k}": torch.from_numpy(np.ascontiguousarray(c)) for k, c in enumerate(model.conditionals)
    }
    metadata: dict[str, Any] = {
        "sizes": list(model.sizes),
        "total": model.total,
        "cliques": [list(c) for c in model.tree.cliques],
        "parent": model.tree.parent,
        "separator": [list(s) for s in model.tree.separator],
    }
    if support is not None:
        metadata["place"] = [p.tolist() for p in support.place]
        metadata["rare"] = [r.tolist() for r in support.rare]
    return GeneratorState(tensors, metadata)


def unpack_model(state: GeneratorState) -> tuple[Model, Support | None]:
    """Reverse `pack_model`."""
    metadata = state.metadata
    tree = JunctionTree(
        [tuple(c) for c in metadata["cliques"]],
        list(metadata["parent"]),
        [tuple(s) for s in metadata["separator"]],
    )
    conditionals = [state.tensors[f"clique {k}"].numpy() for k in range(len(tree.cliques))]
    support = None
    if "place" in metadata:
        support = Support(
            tuple(np.array(p, np.int64) for p in metadata["place"]),
            tuple(np.array(r, np.int64) for r in metadata["rare"]),
        )
    return Model.from_conditionals(tuple(metadata["sizes"]), tree, metadata["total"], conditionals), support


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
        self, frame: pd.DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        codes = torch.from_numpy(grid.codes(frame))
        rows = [functional.one_hot(codes[:, j], size) for j, size in enumerate(grid.sizes)]
        # initial weights and the network's noise are not secret, but must not come from the process's state
        with torch_seed(int.from_bytes(secret.bytes(8), "big") >> 2, CPU):
            network, spend, history = self.train_network(
                torch.cat(rows, dim=1).float(), grid.sizes, secret, watch
            )
        return GeneratorState(
            {f"maker.{name}": t.clone() for name, t in get_weights(network).items()}, history=history
        ), spend

    def build_network(self, sizes: tuple[int, ...]) -> GeneratorNet:
        return GeneratorNet(self.noise, (self.width, self.width), sum(sizes))

    def generate(self, network: GeneratorNet, n: int, sizes: tuple[int, ...]) -> Tensor:
        """Generate `n` soft rows: one Gumbel softmax per column."""
        raw = network(torch.randn(n, self.noise))
        noisy = (raw - torch.log(torch.empty_like(raw).exponential_().clamp_min(1e-20))) / TEMPERATURE
        parts = torch.split(noisy, list(sizes), dim=1)
        return torch.cat([functional.softmax(part, dim=1) for part in parts], dim=1)

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
        parts = torch.split(rows, list(grid.sizes), dim=1)
        codes = np.column_stack([part.argmax(dim=1).numpy() for part in parts])
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
