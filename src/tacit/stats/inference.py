"""Wald tables: coefficients with standard errors, tests and intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .families import load_scipy


def normal_quantile(level: float) -> float:
    """Return z with P(|Z| < z) = level."""
    return float(load_scipy().ndtri(0.5 + level / 2))


def normal_p(z: np.ndarray) -> np.ndarray:
    """Return two-sided p values."""
    return 2 * load_scipy().ndtr(-np.abs(z))  # type: ignore[no-any-return]


def chi2_p(statistic: float, freedom: float) -> float:
    """Return the upper tail of χ²."""
    return float(load_scipy().chdtrc(freedom, statistic))


def wald_table(
    names: Sequence[str], beta: np.ndarray, covariance: np.ndarray, level: float = 0.95
) -> pd.DataFrame:
    """Return `coef se z p low high` by term."""
    with np.errstate(invalid="ignore", divide="ignore"):
        se = np.sqrt(np.diag(covariance))
        z = beta / se
    half = normal_quantile(level) * se
    columns = {"coef": beta, "se": se, "z": z, "p": normal_p(z), "low": beta - half, "high": beta + half}
    return pd.DataFrame(columns, index=pd.Index(list(names), name="term"))


def ratio_table(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return exp(coefficient) with its interval: odds, rate or hazard ratios."""
    rows = table.drop(index="Intercept", errors="ignore")
    with np.errstate(over="ignore"):
        values = {name: np.exp(rows["coef"]), "low": np.exp(rows["low"]), "high": np.exp(rows["high"])}
    return pd.DataFrame({**values, "p": rows["p"]})


def format_table(table: pd.DataFrame) -> str:
    """Return a table as statsmodels prints one."""
    header = ("coef", "std err", "z", "P>|z|", "[0.025", "0.975]")
    wide = max([len(str(n)) for n in table.index] + [10])
    rule = "-" * (wide + 11 * len(header))
    lines = [" " * wide + "".join(f"{h:>11}" for h in header), rule]
    for term, row in zip(table.index, table[["coef", "se", "z", "p", "low", "high"]].to_numpy()):
        forms = ("11.4f", "11.3f", "11.3f", "11.3f", "11.3f", "11.3f")
        lines.append(f"{term!s:<{wide}}" + "".join(f"{v:{f}}" for v, f in zip(row, forms)))
    return "\n".join([*lines, rule])
