"""Our singling-out risks compared with those of Anonymeter 1.1.0, on the tables of test_singling.py.

Anonymeter (Clear BSD) asks for numpy < 1.27, so it is no dependency of tacit, not even of its tests. Its
singling-out attack runs with newer versions. Install it beside our packages, without its dependencies:

    pip install --no-deps --target peer anonymeter==1.1.0 polars polars-runtime-32 numba llvmlite
    PYTHONPATH=src:.:peer python benchmarks/anonymeter_agree.py      # prints theirs and ours
    PYTHONPATH=src:.:peer python benchmarks/anonymeter_agree.py --json  # what test_singling.py records

Training and control table have the same number of different rows, because version 1.1.0 cannot correct for
different sizes: `_measure_queries_success` counts the queries instead of those that succeed, so its correction
is arbitrary. It also divides by the number of requested queries, not by that of queries found; here it is asked
for as many as it finds.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pandas as pd
from tests.synth.leaks import TABLES, load

SEEDS = range(5)


def theirs(real: pd.DataFrame, synthetic: pd.DataFrame, control: pd.DataFrame, mode: str) -> list[float]:
    """The risk and its 95% interval, each the mean over seeds of the queries."""
    from anonymeter.evaluators.singling_out_evaluator import (
        SinglingOutEvaluator,
        univariate_singling_out_queries,
    )

    found = []
    for seed in SEEDS:
        attacks = 500
        if mode == "univariate":
            import polars

            rng = np.random.default_rng(seed)
            table = polars.DataFrame(synthetic).unique(maintain_order=True)
            attacks = len(univariate_singling_out_queries(table, 500, rng))
        evaluator = SinglingOutEvaluator(real, synthetic, attacks, control=control, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "attack is as good or worse as baseline", where nothing leaks
            risk = evaluator.evaluate(mode).risk()
        found.append([risk.value, *risk.ci])
    return np.mean(found, axis=0).round(4).tolist()


def ours(real: pd.DataFrame, synthetic: pd.DataFrame, control: pd.DataFrame) -> dict[str, list[float]]:
    from tacit.synth import singling
    from tacit.synth.views import Views

    views = Views(real, synthetic, control)
    scores = [singling.measure(views, np.random.default_rng(seed)) for seed in SEEDS]
    return {
        mode: np.mean([[s[k].value, *(s[k].interval or ())] for s in scores], axis=0).round(4).tolist()
        for k, mode in enumerate(("multivariate", "univariate"))
    }


def main() -> None:
    recorded = {}
    for name in TABLES:
        tables = load(name)
        mine = ours(*tables)
        recorded[name] = {mode: theirs(*tables, mode) for mode in ("multivariate", "univariate")}
        if "--json" not in sys.argv:
            for mode, (risk, low, high) in recorded[name].items():
                value = mine[mode][0]
                verdict = "agrees" if low <= value <= high else "DIFFERS"
                print(
                    f"{name:12} {mode:13} theirs {risk:.3f} ({low:.3f} to {high:.3f})  ours {value:.3f}  {verdict}"
                )
    if "--json" in sys.argv:
        print(json.dumps(recorded, indent=4))


if __name__ == "__main__":
    main()
