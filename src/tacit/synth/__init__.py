"""Synthetic tables: fit a generator, sample rows, evaluate their utility and privacy.

    table = synth.Table.infer(
        frame,
        constraints=[synth.Ordered("admitted", "discharged")],
        name=synth.identifier("name"),
    )
    generator = synth.Cart(seed=0).fit(frame, table)
    generator.sample(1000, conditions={"sex": "F"}, seed=1)

Nothing here needs a package that is not free software. SDMetrics itself is free, but it installs `copulas`,
which is under the Business Source License; so the quality score is computed here, from its definition.
"""

from __future__ import annotations

from .aim import AIM
from .argn import ARGN
from .bayes import Bayes
from .cart import Cart
from .columns import Column, boolean, categorical, continuous, identifier, integer, ordinal, timestamp
from .constraints import Combinations, Ordered, Range, Unique
from .copula import GaussianCopula
from .ctgan import CTGAN
from .diffusion import TabDDPM
from .domains import Domains, EstimatedDomains
from .dpargn import DPARGN
from .dpctgan import DPCTGAN
from .dpgan import DPGAN
from .evaluate import Evaluation, evaluate, rank
from .gan import GAN, WGAN
from .generator import Generator, GeneratorState, IdentifierWarning, load
from .independent import Independent
from .linked import (
    ForeignKey,
    LinkedEvaluation,
    LinkedTables,
    PrimaryKey,
    Sequences,
    Total,
    evaluate_linked,
    evaluate_sequences,
    load_linked,
    load_sequences,
    split_linked,
)
from .mst import MST
from .pategan import PATEGAN
from .private_sequences import PrivateSequences
from .reading import describe
from .release import ReleaseLimits, SyntheticRelease, release
from .saved_sequences import load_private_sequences
from .shadows import attack_with_shadows
from .statistics import Statistics
from .table import Table
from .vae import TVAE

ALL: dict[str, type[Generator]] = {
    "Independent": Independent,
    "GaussianCopula": GaussianCopula,
    "Bayes": Bayes,
    "Cart": Cart,
    "TVAE": TVAE,
    "GAN": GAN,
    "WGAN": WGAN,
    "CTGAN": CTGAN,
    "TabDDPM": TabDDPM,
    "ARGN": ARGN,
    "MST": MST,
    "AIM": AIM,
    "DPGAN": DPGAN,
    "DPARGN": DPARGN,
    "DPCTGAN": DPCTGAN,
    "PATEGAN": PATEGAN,
}

__all__ = [
    "AIM",
    "ALL",
    "ARGN",
    "CTGAN",
    "DPARGN",
    "DPCTGAN",
    "DPGAN",
    "GAN",
    "MST",
    "PATEGAN",
    "TVAE",
    "WGAN",
    "Bayes",
    "Cart",
    "Column",
    "Combinations",
    "Domains",
    "EstimatedDomains",
    "Evaluation",
    "ForeignKey",
    "GaussianCopula",
    "Generator",
    "GeneratorState",
    "IdentifierWarning",
    "Independent",
    "LinkedEvaluation",
    "LinkedTables",
    "Ordered",
    "PrimaryKey",
    "PrivateSequences",
    "Range",
    "ReleaseLimits",
    "Sequences",
    "Statistics",
    "SyntheticRelease",
    "TabDDPM",
    "Table",
    "Total",
    "Unique",
    "attack_with_shadows",
    "boolean",
    "categorical",
    "continuous",
    "describe",
    "evaluate",
    "evaluate_linked",
    "evaluate_sequences",
    "identifier",
    "integer",
    "load",
    "load_linked",
    "load_private_sequences",
    "load_sequences",
    "ordinal",
    "rank",
    "release",
    "split_linked",
    "timestamp",
]
