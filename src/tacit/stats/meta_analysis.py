"""Meta-analysis of site estimates: every party fits the model to its own rows, and its estimates are opened.

R. DerSimonian and N. Laird, "Meta-analysis in clinical trials", 1986. This is what consortia do without
secure sums, for comparison: each site's coefficients and variances become known, and sites too small for the
model drop out. The sum has a place for every party.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..crypto import exact
from ..errors import BadData, TacitError
from ..protocols.sum_steps import Down, ideal
from .regression import GlmProgram

PARTY = "tacit party"  # the column with the party's own name


def add_name(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a party's table with its name, which is its place in a sum by site.

    A table without rows gets one without values: it has a name too.
    """
    return (frame if len(frame) else frame.reindex([0])).assign(**{PARTY: name})


@dataclass
class SiteEstimates:
    sites: list[str]  # those whose fit converged
    coefficients: np.ndarray  # site × term
    variances: np.ndarray
    left_out: list[str]


@dataclass(frozen=True)
class MetaProgram:
    formula: str
    family: str
    link: str | None
    levels: Mapping[str, Sequence[Any]]
    terms: Sequence[str]
    parties: Sequence[str]
    missing: str = "drop"

    @property
    def max_steps(self) -> int:
        return 1

    @property
    def bound(self) -> int:
        return exact.BOUND

    def length(self, step: int, down: Down) -> int:
        return exact.LIMBS * len(self.parties) * (1 + 2 * len(self.terms))

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        p = len(self.terms)
        out = np.zeros((len(self.parties), 1 + 2 * p))
        program = GlmProgram(
            self.formula, self.family, self.link, levels=self.levels, missing=self.missing, max_rounds=50
        )
        try:
            found = ideal(program, {"own": table})
        except TacitError:
            found = None  # too few rows, separated, or a level is missing here: no estimate of this site
        if found is not None and len(table):
            place = list(self.parties).index(str(table[PARTY].iloc[0]))
            out[place] = np.concatenate([[1.0], found.beta, np.diag(found.covariance)])
        return exact.encode(out.reshape(-1))

    def coordinate(self) -> Generator[Down, np.ndarray, SiteEstimates]:
        p = len(self.terms)
        total = exact.decode((yield {})).reshape(len(self.parties), 1 + 2 * p)
        fitted = total[:, 0] > 0
        if fitted.sum() < 2:
            raise BadData("meta: fewer than two sites could fit the model to their own rows. Use glm.")
        return SiteEstimates(
            [n for n, f in zip(self.parties, fitted) if f],
            total[fitted, 1 : 1 + p],
            total[fitted, 1 + p :],
            [n for n, f in zip(self.parties, fitted) if not f],
        )


def combine(
    effects: np.ndarray, variances: np.ndarray, is_random: bool
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return pooled effects, their variances, and heterogeneity (Q, I², τ²), each by term."""
    w = 1 / variances
    total = w.sum(axis=0)
    fixed = (w * effects).sum(axis=0) / total
    q = (w * (effects - fixed) ** 2).sum(axis=0)
    freedom = len(effects) - 1
    tau2 = np.maximum((q - freedom) / (total - (w**2).sum(axis=0) / total), 0.0)
    i2 = np.maximum(1 - freedom / np.maximum(q, 1e-300), 0.0)
    weights = 1 / (variances + tau2) if is_random else w
    pooled = (weights * effects).sum(axis=0) / weights.sum(axis=0)
    return pooled, 1 / weights.sum(axis=0), {"Q": q, "I2": i2, "tau2": tau2}
