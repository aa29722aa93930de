"""The result of `tacit.regress`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadData, BadRun
from ...files import write_atomic
from ...parameters import bad
from ...parties.ledger import Ledger
from ...results import JobResult, check_absent
from .regress_parts import INTERCEPT, NOT_CONVERGED, RegressionPart

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Regression(JobResult):
    """The result of `tacit.regress`.

    `weights`: each party's own coefficients, in the order and the units of its columns (multinomial: a row
    for each class but the first); the intercept and the metrics belong to the label holder. They are in one
    object only because this is one process: a deployed party has its own part.
    """

    title = "Regression over columns of several parties"
    facts = ("table", "family", "rows", "weights", "intercept", "columns", "metrics", "converged", "notes")

    weights: dict[str, Tensor]
    intercept: float | Tensor
    metrics: dict[str, float]
    ledger: Ledger
    notes: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = field(repr=False, default_factory=dict)
    converged: bool | None = None  # None: not checked
    family: str = "binomial"
    parts: dict[str, RegressionPart] = field(repr=False, default_factory=dict)  # with standard errors

    @property
    def value(self) -> dict[str, Tensor]:
        return self.weights

    @property
    def rows(self) -> int | None:
        """How many rows were fitted; None if the solver gives no standard errors."""
        return next((p.rows for p in self.parts.values()), None)

    @property
    def table(self) -> pd.DataFrame | None:
        """The summary, or None if there is none."""
        return self.summary() if self.parts and self.converged else None

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Return `coef se z p low high`, indexed by term; low and high are the interval of this level.

        For a gaussian model z is the t statistic with n − p degrees of freedom, as in statsmodels' OLS, and p
        and the interval are those of t; `.attrs["statistic"]` says which it is. Otherwise they are those of
        the normal distribution. A multinomial model has `class: term`.
        """
        import pandas as pd

        if not self.parts:
            raise BadRun(
                "regress: this solver gives no standard errors. Leave out l2, epochs, momentum, lr, "
                "batch_size "
                "and test rows, so that the solver is 'irls'."
            )
        if not 0 < level < 1:
            raise bad("summary", "level", level, "a number between 0 and 1")
        if not self.converged:
            raise BadRun(f"regress: there is no summary. {NOT_CONVERGED}")
        tables = [part.table(level) for part in self.parts.values()]
        names = [term for table in tables for term in table.index]
        if len(set(names)) < len(names):  # the same name at two parties
            tables = [
                table.rename(index=lambda term, who=who: term if term == INTERCEPT else f"{who}.{term}")
                for who, table in zip(self.parts, tables)
            ]
        table = pd.concat(tables)
        first = [term for term in table.index if str(term).endswith(INTERCEPT)]
        table = table.loc[[*first, *(t for t in table.index if t not in first)]]
        table.attrs = tables[0].attrs
        return table

    def predict(self, columns: Mapping[str, Any]) -> Any:
        """Return the prediction for rows of all parties' columns, {party: data frame, array or tensor}.

        That is the probability of class 1 (multinomial: of each class), the number, the expected count, or
        for Cox the hazard relative to columns that are 0. Rows must be in the same order at all parties. This
        adds the parties' scores in one place: the label holder of a real federation learns the sum of the
        others' scores of each row.
        """
        if not isinstance(columns, Mapping) or set(columns) != set(self.weights):
            names = list(columns) if isinstance(columns, Mapping) else type(columns).__name__
            raise bad("predict", "columns", names, f"the columns of {list(self.weights)} by party")
        if self.parts:
            scores = {name: self.parts[name].score(columns[name]) for name in self.weights}
        else:
            scores = {
                name: (self._read(name, columns[name]) @ w)[:, None] for name, w in self.weights.items()
            }
        if len({len(x) for x in scores.values()}) > 1:
            sizes = {name: len(x) for name, x in scores.items()}
            raise bad("predict", "the number of rows", sizes, "the same at all parties")
        return to_mean(self.family, sum(scores.values()) + torch.as_tensor(self.intercept))

    def _read(self, name: str, x: Any) -> Tensor:
        known = getattr(x, "columns", None)
        if known is not None:
            missing = [c for c in self.columns.get(name, ()) if c not in known]
            if missing or name not in self.columns:
                raise BadData(
                    f"predict: the table of {name!r} has no column {', '.join(map(repr, missing))}."
                )
            x = x[list(self.columns[name])].to_numpy(dtype="float64")
        x = torch.as_tensor(x).double()
        x = x.reshape(len(x), -1)
        if x.shape[1] != len(self.weights[name]):
            raise bad(
                "predict",
                f"the columns of {name!r}",
                x.shape[1],
                f"{len(self.weights[name])}, as in training",
            )
        return x

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON to a new file; `tacit.Regression.load` reads it."""
        if not self.parts:
            return super().save(path)
        file = check_absent(path)
        content = {
            "kind": "regressions",
            "parts": {name: part.to_dict() for name, part in self.parts.items()},
            "notes": list(self.notes),
            "ledger": self.ledger.to_dict(),
        }
        write_atomic(file, json.dumps(content, ensure_ascii=False, indent=1))
        return file

    @classmethod
    def load(cls, path: str | Path) -> Regression:
        """Read a result that `save` wrote."""
        file = Path(path)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["kind"] != "regressions" or not content["parts"]:
                raise ValueError(content["kind"])
            parts = {str(n): RegressionPart.from_dict(t, str(file)) for n, t in content["parts"].items()}
            return from_parts(parts, Ledger.from_dict(content["ledger"]), list(map(str, content["notes"])))
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadData(
                f"{file} is no result of tacit.regress with standard errors: {error!r:.200}."
            ) from None


def from_parts(parts: Mapping[str, RegressionPart], ledger: Ledger, notes: Sequence[str]) -> Regression:
    """Combine all parties' parts, where one process has them."""
    holder = parts[next(iter(parts.values())).label_at]
    converged = holder.converged
    notes = [n for n in notes if n != NOT_CONVERGED] + ([] if converged else [NOT_CONVERGED])
    several = holder.family == "multinomial"
    ends = np.zeros(len(holder.coef)) if holder.intercept is None else holder.intercept
    return Regression(
        {n: torch.from_numpy(p.coef if several else p.coef[0]) for n, p in parts.items() if p.design.terms},
        torch.from_numpy(ends) if several else float(ends[0]),
        dict(holder.metrics),
        ledger,
        tuple(notes),
        {n: p.design.terms for n, p in parts.items() if p.design.terms},
        converged,
        holder.family,
        dict(parts),
    )


def to_mean(family: str, score: Tensor) -> Tensor:
    """The mean of rows × outcomes scores: one number for each row, or a probability for each class."""
    if family == "multinomial":
        return torch.cat([torch.zeros_like(score[:, :1]), score], 1).softmax(1)
    score = score[:, 0]
    if family == "binomial":
        return torch.sigmoid(score)
    return score if family == "gaussian" else torch.exp(score)
