"""Statistics across parties: CPU seconds and bytes of a regression, of a description, and of a Cox model.

    .venv/bin/python benchmarks/stats.py             # 100 parties × 10,000 rows × 30 columns; about 3 minutes, 3 GB
    .venv/bin/python benchmarks/stats.py --quick     # a tenth of the parties and of the rows

The regression runs as programs: every party computes its part, and each sum is a real secure aggregation in
this process. CPU seconds are those of all clients and the server together, divided by the number of rounds.
The pooled fit of statsmodels on the same rows stands beside it. The description and the Cox model are
simulated, as a study would be; lifelines fits the same Cox model on the same rows with --peers.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import tacit


def measure(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, CPU seconds and seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    value = call()
    return value, time.process_time() - cpu, time.perf_counter() - wall


def make_rows(parties: int, rows: int, columns: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    beta = rng.normal(0, 0.2, columns)
    fed = {}
    for k in range(parties):
        x = rng.normal(size=(rows, columns))
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(columns)])
        frame["y"] = (rng.random(rows) < 1 / (1 + np.exp(-(x @ beta) + 0.5))).astype(float)
        fed[f"p{k:03d}"] = frame
    return fed


def regression(parties: int, rows: int, columns: int) -> None:
    fed = make_rows(parties, rows, columns)
    formula = "y ~ " + " + ".join(f"x{j}" for j in range(columns))
    print(f"glm, {parties} parties × {rows:,} rows × {columns} columns, SecAgg")
    for runtime in ("cohort", "inprocess"):
        fit, cpu, wall = measure(lambda r=runtime: tacit.stats.glm(fed, formula, runtime=r))
        up = sum(line.bytes for line in fit.ledger.seen if line.kind == "MaskedVector")
        print(
            f"  {runtime:10} {cpu:7.2f} CPU s, {cpu / fit.rounds:6.2f} a round ({fit.rounds} rounds), {wall:6.1f} s; "
            f"{up / parties / fit.rounds / 1e3:.1f} kB up per party and round"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import statsmodels.api as sm

        pooled = pd.concat(fed.values(), ignore_index=True)
        x = sm.add_constant(pooled.drop(columns="y"))
        peer, cpu, _ = measure(lambda: sm.GLM(pooled["y"], x, family=sm.families.Binomial()).fit())
    own = fit.params[[f"x{j}" for j in range(columns)]].to_numpy()
    print(
        f"  statsmodels on pooled rows: {cpu:.2f} CPU s; largest difference {np.abs(own - peer.params[1:]).max():.1e}"
    )


def description(parties: int, rows: int, columns: int) -> None:
    fed = {k: v.drop(columns="y") for k, v in make_rows(parties, rows, columns).items()}
    _, cpu, wall = measure(lambda: tacit.stats.describe(fed))
    print(f"describe, {parties} parties × {rows:,} rows × {columns} columns: {cpu:.2f} CPU s, {wall:.1f} s")


def hazards(rows: int, columns: int, peers: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    life = np.ceil(rng.exponential(np.exp(-x @ np.linspace(-0.3, 0.3, columns))) * 300)
    left = rng.integers(1, 1000, rows)
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(columns)])
    frame["time"], frame["event"] = np.minimum(life, left), (life <= left).astype(int)
    fed = {f"p{k}": frame.iloc[k::10].reset_index(drop=True) for k in range(10)}
    formula = " + ".join(f"x{j}" for j in range(columns))
    fit, cpu, wall = measure(lambda: tacit.stats.cox(fed, formula, time="time", event="event"))
    print(
        f"cox, 10 parties, {rows:,} rows × {columns} columns, {fit.found.opened} times: {cpu:.1f} CPU s, {wall:.1f} s, "
        f"{fit.rounds} rounds"
    )
    if peers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from lifelines import CoxPHFitter

            peer, cpu, _ = measure(lambda: CoxPHFitter().fit(frame, "time", "event"))
        gap = np.abs(fit.params[peer.params_.index] - peer.params_).max()
        print(f"  lifelines on pooled rows: {cpu:.1f} CPU s; largest difference {gap:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the parties and of the rows")
    parser.add_argument("--peers", action="store_true", help="fit the Cox model with lifelines too")
    args = parser.parse_args()
    part = 10 if args.quick else 1
    regression(100 // part, 10_000 // part, 30)
    description(100 // part, 10_000 // part, 100)
    hazards(1_000_000 // part, 10, args.peers)


if __name__ == "__main__":
    main()
