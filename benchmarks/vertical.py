"""Regression with standard errors over columns of two parties, and figures over matched people: CPU seconds of
all parties and the helper together, MB sent, rounds, and the distance to statsmodels in standard errors.

    python benchmarks/vertical.py [--rows 1000 10000] [--columns 10]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
import statsmodels.api as sm

import tacit

FAMILIES = ("gaussian", "binomial", "poisson", "multinomial", "cox")


def make(family: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns, and a label of moderate signal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)) + 0.5 * rng.normal(size=(rows, 1))
    z = x @ np.linspace(-0.3, 0.3, columns)
    if family == "gaussian":
        return x, z + rng.normal(size=rows)
    if family == "binomial":
        return x, (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(float)
    if family == "poisson":
        return x, rng.poisson(np.exp(z)).astype(float)
    if family == "multinomial":
        return x, np.argmax(np.stack([0 * z, z, -z], 1) + rng.gumbel(size=(rows, 3)), 1).astype(float)
    time_ = np.ceil(rng.exponential(np.exp(-z)) * 50)
    return x, np.stack([time_, (rng.random(rows) < 0.7).astype(float)], 1)


def pooled(family: str, x: np.ndarray, y: np.ndarray):
    c = sm.add_constant(x)
    fits = {
        "gaussian": lambda: sm.OLS(y, c).fit(),
        "binomial": lambda: sm.Logit(y, c).fit(disp=0, tol=1e-12),
        "poisson": lambda: sm.Poisson(y, c).fit(disp=0, tol=1e-12),
        "multinomial": lambda: sm.MNLogit(y, c).fit(disp=0, tol=1e-12),
        "cox": lambda: sm.PHReg(y[:, 0], x, status=y[:, 1], ties="efron").fit(disp=0),
    }
    return fits[family]()


def count(result) -> tuple[float, int]:
    """(MB, messages from one party to the other) of a result."""
    seen = result.ledger.seen
    rounds = sum(line.count for line in seen if (line.sender, line.party) == ("a", "b"))
    return sum(line.bytes for line in seen) / 1e6, rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--columns", type=int, default=10)
    args = parser.parse_args()
    x, y = make("gaussian", 100, 2)
    tacit.regress({"a": x[:, :1], "b": x[:, 1:]}, {"a": y})  # the imports
    print(f"{'':24}{'rows':>8}{'CPU s':>9}{'MB':>9}{'rounds':>9}{'distance':>11}")
    for rows in args.rows:
        for family in FAMILIES:
            x, y = make(family, rows, args.columns)
            half = args.columns // 2
            begin = time.process_time()
            fitted = tacit.regress({"a": x[:, :half], "b": x[:, half:]}, {"a": y}, family=family)
            seconds = time.process_time() - begin
            size, rounds = count(fitted)
            theirs, table = pooled(family, x, y), fitted.summary()
            if family == "multinomial":
                params, errors = np.asarray(theirs.params), np.asarray(theirs.bse)
                own = np.concatenate(
                    [
                        fitted.intercept.numpy()[None],
                        fitted.weights["a"].numpy().T,
                        fitted.weights["b"].numpy().T,
                    ]
                )
                distance = np.abs((own - params) / errors).max()
            else:
                distance = np.abs((table["coef"] - theirs.params) / theirs.bse).max()
            print(f"regress, {family:15}{rows:>8}{seconds:>9.2f}{size:>9.1f}{rounds:>9}{distance:>11.1e}")
        rng = np.random.default_rng(0)
        ids = [f"c{k}" for k in range(rows)]
        tables = {who: pd.DataFrame({"id": ids, "cash": rng.normal(0, 1e5, rows).round(2)}) for who in "abc"}
        joined = tacit.join(tables, on="id")
        before = sum(line.bytes for line in joined.ledger.seen)
        begin = time.process_time()
        joined.count_above("cash", [0, 1e5, 2e5])
        seconds = time.process_time() - begin
        size = (sum(line.bytes for line in joined.ledger.seen) - before) / 1e6
        print(f"{'join, three thresholds':24}{rows:>8}{seconds:>9.2f}{size:>9.1f}")


if __name__ == "__main__":
    main()
