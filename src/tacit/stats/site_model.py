"""A model of sites after a model without them: GEE, a random intercept, or a meta-analysis, as one program.

    first    the sums of a regression (regression.py): levels, columns and coefficients to start from
    second   the sums of the site model, with "agreed" and "start" sent down in every step

A party builds the second program from what the contract says and from these two. Levels and coefficients are
the coordinator's to choose in `glm` too, and the same rules limit them: `check_concentration` in every step
and the number of steps in the contract.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..errors import ProtocolError
from ..protocols.sum_steps import BEGIN_AGAIN, Down, SumProgram
from . import design
from .clustered import FINAL, GeeProgram, MixedProgram
from .disclosure import LEAST
from .level_sketch import LEVEL_ROWS
from .meta_analysis import MetaProgram
from .regression import GlmEstimate, GlmProgram

KINDS = ("gee", "mixed", "meta")


@dataclass(frozen=True)
class SiteModelProgram:
    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    kind: str
    formula: str
    family: str
    link: str | None
    levels: Mapping[str, Sequence[Any]]
    missing: str
    glm_rounds: int
    max_rounds: int
    parties: Sequence[str] = ()  # meta: who has which place
    min_count: int = LEAST
    min_level_rows: int = LEVEL_ROWS  # of one party, for a level that is found

    @cached_property
    def first(self) -> GlmProgram:
        return GlmProgram(
            self.formula,
            self.family,
            self.link,
            levels=self.levels,
            missing=self.missing,
            max_rounds=self.glm_rounds,
            min_count=self.min_count,
            owner=self.kind,
            min_level_rows=self.min_level_rows,
        )

    def second(
        self, agreement: design.Agreement, start: Sequence[float], names: Sequence[str]
    ) -> SumProgram[pd.DataFrame, Any]:
        levels = dict(agreement.levels)
        if self.kind == "meta":
            return MetaProgram(
                self.formula, self.family, self.link, levels, tuple(names), tuple(self.parties), self.missing
            )
        kind = GeeProgram if self.kind == "gee" else MixedProgram
        return kind(self.formula, self.family, self.link, levels, tuple(start), self.missing, self.max_rounds)

    @property
    def max_steps(self) -> int:
        return self.first.max_steps + (1 if self.kind == "meta" else self.max_rounds + 1)

    @property
    def bound(self) -> int:
        return self.first.bound

    def _of(self, down: Down) -> SumProgram[pd.DataFrame, Any]:
        """The program that a request belongs to: one with "agreed" is of the second."""
        if "agreed" not in down:
            return self.first
        agreement = design.Agreement.from_tensor(down["agreed"])
        names = design.term_names(self.formula, self.first.columns, agreement)
        start = down["start"]
        if start.dtype != torch.float64 or tuple(start.shape) != (len(names),) or not start.isfinite().all():
            raise ProtocolError("the coordinator sends coefficients of another form than the model has.")
        return self.second(agreement, start.tolist(), names)

    def length(self, step: int, down: Down) -> int:
        return self._of(down).length(step, down)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if "agreed" in down:
            self.first.check_levels(table, design.Agreement.from_tensor(down["agreed"]))
        return self._of(down).local(step, table, down)

    def once(self, down: Down) -> str | None:
        if "agreed" in down and self.kind == "meta":
            return "meta"
        if "agreed" in down and self.kind == "gee":
            return "final" if int(down["phase"]) == FINAL else None
        return None if "agreed" in down else self.first.once(down)

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        return self.first.row_sets(table)

    def parameters(self, table: pd.DataFrame) -> tuple[int, int]:
        return self.first.parameters(table)

    def coordinate(self) -> Generator[Down, np.ndarray, tuple[GlmEstimate, Any]]:
        first = yield from self.first.coordinate()
        steps = self.second(first.agreement, first.beta.tolist(), first.names).coordinate()
        base = {"agreed": first.agreement.to_tensor(), "start": torch.from_numpy(first.beta.copy())}
        down = next(steps)
        while True:
            total = yield {**base, **down}
            try:
                down = steps.send(total)
            except StopIteration as end:
                return first, end.value
