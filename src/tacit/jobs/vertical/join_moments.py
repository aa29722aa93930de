"""Moments of a join that stays shared, and regressions that begin with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QueryRefused
from ...mpc import shared_logistic
from ...parameters import bad, nearest
from ...stats.families import load_scipy
from ...stats.inference import wald_table

if TYPE_CHECKING:
    import pandas as pd

COLLINEAR = 1e-9  # smallest eigenvalue of a correlation matrix: below, coefficients are rounding errors


@dataclass(frozen=True)
class Moments:
    """Sums of products of columns over the people of a join.

    `gram`: of the columns in units of their scales, then "is matched" and, in a left join, 1 for each person.
    `scales`: (center, unit) of each column.
    """

    names: tuple[str, ...]
    gram: np.ndarray
    scales: tuple[tuple[float, float], ...]
    second: str  # the party whose columns are 0 for people whom it does not have
    how: str

    @classmethod
    def of(
        cls,
        gram: np.ndarray,
        scales: Sequence[Sequence[float]],
        labels: tuple[Sequence[str], Sequence[str]],
        second: str,
        how: str,
    ) -> Moments:
        units = tuple((float(c), 2.0 ** int(e)) for c, e in scales)
        return cls((*labels[0], *labels[1]), gram, units, second, how)

    @property
    def people(self) -> int:
        """How many people the moments are about."""
        return round(float(self.gram[-1, -1]))

    @property
    def matched(self) -> int:
        return round(float(self.gram[len(self.names), len(self.names)]))

    def is_of_second(self, name: str) -> bool:
        return name.startswith(f"{self.second}.")

    def describe(self) -> pd.DataFrame:
        """Return count, mean and standard deviation by column; of the second party over matched people."""
        import pandas as pd

        rows = []
        for k, name in enumerate(self.names):
            one = len(self.names) if self.is_of_second(name) else -1
            count, (center, unit) = round(float(self.gram[one, one])), self.scales[k]
            mean = self.gram[k, one] / count
            variance = (self.gram[k, k] - count * mean**2) / (count - 1)
            rows.append((count, center + unit * mean, unit * np.sqrt(max(variance, 0.0))))
        index = pd.Index(self.names, name="column")
        return pd.DataFrame(rows, index=index, columns=["count", "mean", "std"])

    def correlations(self) -> pd.DataFrame:
        """Return Pearson's correlations of the columns, over matched people."""
        import pandas as pd

        if self.how == "left":
            raise bad(
                "join", "how", "left", "'inner' for correlations", "A left join has them over all people."
            )
        spread = self._centered()
        scale = np.sqrt(np.diag(spread))
        with np.errstate(invalid="ignore", divide="ignore"):
            return pd.DataFrame(spread / np.outer(scale, scale), index=self.names, columns=self.names)

    def regress(self, label: str) -> JoinRegression:
        """Return the linear regression of one column on all others, with an intercept.

        The standard errors are those of ordinary least squares.
        """
        import pandas as pd

        if label not in self.names:
            raise bad("join", "label", label, "one of the columns", nearest(label, list(self.names)))
        names = list(self.names) + ([f"{self.second}.matched"] if self.how == "left" else [])
        spread, at = self._centered(), names.index(label)
        others = [k for k in range(len(names)) if k != at]
        if not others:
            raise bad("join", "columns", [], "at least one column besides the label")
        a, b = spread[np.ix_(others, others)], spread[others, at]
        _check_collinear(a, [names[k] for k in others])
        inverse = np.linalg.inv(a)
        slopes = inverse @ b
        freedom = self.people - len(names)
        left = max(float(spread[at, at] - slopes @ b), 0.0)
        means = self.gram[-1, : len(names)] / self.people
        # in the columns' own units: x = center·(1 or "is matched") + unit·z
        units = [*self.scales, (0.0, 1.0)][: len(names)]
        unit, center = np.array([u for _, u in units]), np.array([c for c, _ in units])
        to_raw = np.diag(unit[at] / unit[others])
        offset = -np.array([center[k] / unit[k] if not self._is_masked(names[k]) else 0.0 for k in others])
        if (
            self.how == "left" and others[-1] == len(names) - 1
        ):  # the center of a column that is 0 without match
            for j, k in enumerate(others[:-1]):
                if self._is_masked(names[k]):
                    to_raw[-1, j] = -unit[at] * center[k] / unit[k]
        constant = -means[others] + offset
        gradient = np.concatenate(
            [np.eye(len(others)), constant[None]]
        )  # slopes, then what the intercept adds
        start = np.zeros(len(others) + 1)
        start[-1] = means[at] + (0.0 if self._is_masked(label) else center[at] / unit[at])
        inner = gradient @ slopes + start
        spread_of = gradient @ inverse @ gradient.T
        spread_of[-1, -1] += 1 / self.people
        full = np.zeros((len(others) + 1, len(others) + 1))
        full[:-1, :-1], full[-1, -1] = to_raw, unit[at]
        beta, covariance = full @ inner, full @ spread_of @ full.T * (left / freedom)
        se = np.sqrt(np.clip(np.diag(covariance), 0, None))
        special = load_scipy()
        with np.errstate(divide="ignore", invalid="ignore"):
            t = beta / se
        half = float(special.stdtrit(freedom, 0.975)) * se
        table = pd.DataFrame(
            {
                "coef": beta,
                "se": se,
                "t": t,
                "p": 2 * special.stdtr(freedom, -np.abs(t)),
                "low": beta - half,
                "high": beta + half,
            },
            index=pd.Index([*(names[k] for k in others), "Intercept"], name="term"),
        )
        total = float(spread[at, at])
        return JoinRegression(label, table, self.people, 1 - left / total if total else float("nan"))

    def start_logistic(self, label: str) -> tuple[int, int, int, np.ndarray]:
        """(people, how many have the label, its place, A) for `shared_logistic`: A makes the others white."""
        at, people = self.names.index(label), self.people
        if self.scales[at] != (0.0, 1.0):
            raise bad("join", "label", label, "a column of 0 and 1 with family='binomial'")
        labeled = round(float(self.gram[at, -1]))
        fewer = min(labeled, people - labeled)
        if fewer < shared_logistic.FEWEST:
            raise QueryRefused(
                f"join: {fewer} people have one of the labels; {shared_logistic.FEWEST} are required of each."
            )
        size = len(self.names) + (self.how == "left")
        others = [k for k in range(size) if k != at]
        spread = self._centered()[np.ix_(others, others)] / people
        _check_collinear(spread, self._labels(others))
        mix = np.linalg.inv(np.linalg.cholesky(spread)).T
        if np.abs(mix).max() >= shared_logistic.STEEPEST:
            raise bad("join", "columns", self._labels(others), "columns that are not collinear")
        means = self.gram[-1, others] / people
        if np.abs(means @ mix).max() >= shared_logistic.STEEPEST:
            raise bad(
                "join", "columns", self._labels(others), "columns that vary over the people of the join"
            )
        transform = np.vstack([mix, -means @ mix])
        return people, labeled, at, np.round(transform * 2**shared_logistic.TRANSFORM).astype(np.int64)

    def finish_logistic(self, label: str, result: Mapping[str, Any]) -> JoinRegression:
        """The fit in the columns' own units."""
        at = self.names.index(label)
        size = len(self.names) + (self.how == "left")
        others = [k for k in range(size) if k != at]
        white = np.asarray(result["transform"], np.float64) / 2.0**shared_logistic.TRANSFORM
        to_white = np.column_stack([white, np.eye(len(others) + 1)[:, -1]])  # [z, 1] → [white z, 1]
        units = [*self.scales, (0.0, 1.0)]
        to_z = np.eye(len(others) + 1)  # [x, 1] → [z, 1]
        for j, k in enumerate(others):
            center, unit = units[k]
            to_z[j, j] = 1 / unit
            masked = k < len(self.names) and self._is_masked(self.names[k])
            to_z[-2 if masked else -1, j] -= center / unit
        back = to_z @ to_white
        beta = back @ np.asarray(result["coef"])
        covariance = back @ np.asarray(result["covariance"]) @ back.T
        table = wald_table([*self._labels(others), "Intercept"], beta, covariance)
        return JoinRegression(
            label, table, self.people, float("nan"), float(result["loglik"]), bool(result["converged"])
        )

    def _labels(self, which: Sequence[int]) -> list[str]:
        names = [*self.names, f"{self.second}.matched"]
        return [names[k] for k in which]

    def to_dict(self) -> dict[str, Any]:
        return {"what": "moments", "people": self.people, "columns": self.describe().to_dict("index")}

    def _is_masked(self, name: str) -> bool:
        return self.how == "left" and self.is_of_second(name)

    def _centered(self) -> np.ndarray:
        """Sums of products of deviations from the means; a left join's last column is "is matched"."""
        size = len(self.names) + (self.how == "left")
        sums = self.gram[-1, :size]
        return np.asarray(self.gram[:size, :size] - np.outer(sums, sums) / self.people)


def _check_collinear(spread: np.ndarray, names: Sequence[str]) -> None:
    root = np.sqrt(np.clip(np.diag(spread), 0, None))
    if not (root > 0).all() or np.linalg.eigvalsh(spread / np.outer(root, root))[0] < COLLINEAR:
        raise bad("join", "columns", list(names), "columns that are not collinear")


@dataclass(frozen=True)
class JoinRegression:
    """A regression over the people of a join: `table` has `coef se t p low high` by term (logistic: z).

    `r2` is that of a linear one, `loglik` and `converged` of a logistic one.
    """

    label: str
    table: pd.DataFrame
    people: int
    r2: float
    loglik: float = float("nan")
    converged: bool = True
