"""Shared trees for tests: programs of both parties and the helper on shares of given rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.mpc import shared_trees
from tacit.mpc.shared_trees import TreeTerms
from tacit.mpc.split_search import SUM, ColumnCells

Columns = list[list[ColumnCells]]


@dataclass
class Rows:
    """Rows by bin, in the clear: cells + 1 of all columns (0: missing), label, who is there and matched."""

    columns: Columns
    codes: Tensor
    y: Tensor
    present: Tensor
    match: Tensor

    def counted(self, terms: TreeTerms) -> tuple[Tensor, Tensor]:
        """(codes, labels) of the rows that count; in a left join the second party has no cells of others."""
        keep = (self.match if terms.how == "inner" else self.present).bool()
        first = len(self.columns[0])
        codes = torch.cat([self.codes[:, :first], self.codes[:, first:] * self.match[:, None]], 1)
        return codes[keep], self.y[keep]


def make_rows(n: int, seed: int = 0, how: str = "inner", objective: str = "binary") -> Rows:
    rng = np.random.default_rng(seed)
    widths = [[12, 8, 4], [12, 6, 7]]
    columns = [
        [ColumnCells(w, w == 4, w == 12 or (k == 1 and how == "left")) for w in own]
        for k, own in enumerate(widths)
    ]
    codes = np.stack(
        [rng.integers(0 if c.width == 12 else 1, c.width + 1, n) for own in columns for c in own], 1
    )
    present = (rng.random(n) < 0.8).astype(np.int64)
    match = present * (rng.random(n) < 0.7)
    score = 0.3 * (codes[:, 0] - 6) + 0.3 * (codes[:, 3] - 6) * (codes[:, 1] > 4) + (codes[:, 2] == 2)
    score = score + rng.normal(0, 1, n)
    y = (score > 0).astype(float) if objective == "binary" else score
    return Rows(columns, *(torch.from_numpy(np.array(v)) for v in (codes, y, present, match)))


def make_terms(rows: Rows, label_at: int = 1, **options: Any) -> TreeTerms:
    names: Any = tuple(tuple(f"{'ab'[k]}{i}" for i in range(len(c))) for k, c in enumerate(rows.columns))
    more = {"minimum": 10, "how": "inner", **options}
    return TreeTerms(("a", "b"), "h", len(rows.y), columns=names, label="y", label_at=label_at, **more)


def make_programs(terms: TreeTerms, rows: Rows, base: float = 0.0) -> dict[str, Any]:
    g = torch.Generator().manual_seed(1)

    def split(value: Tensor) -> list[Tensor]:
        mask = torch.randint(-(2**63), 2**63 - 1, value.shape, generator=g)
        return [mask, value - mask]

    first = len(rows.columns[0])
    label = torch.round(rows.y.double() * 2.0**SUM).long()
    words = rows.codes[:, first:] * rows.match[:, None]
    if terms.label_at:
        words = torch.cat([words, (label * rows.match)[:, None]], 1)
    match, shared = split(rows.match), split(words)
    programs: dict[str, Any] = {"h": functools.partial(shared_trees.helper, terms=terms.to_dict())}
    for k, name in enumerate(terms.names):
        programs[name] = functools.partial(
            shared_trees.holder,
            terms=terms.to_dict(),
            rows=[match[k], shared[k], torch.zeros_like(rows.present) if k else rows.present],
            layout=[(c.width, c.is_category, c.has_missing) for c in rows.columns[k]],
            own=rows.codes[:, :first] * rows.present[:, None],
            label=label * rows.present,
            base=round(base * 2**SUM),
            exponent=0,
        )
    return programs
