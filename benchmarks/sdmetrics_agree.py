"""Our fidelity scores compared with those of SDMetrics, on the tables of test_fidelity.py.

Columns, pairs of numbers and pairs of categories agree to the last digit. Pairs of a number and a category
do not: SDMetrics bins the real and the synthetic column at different edges, so equal cells are different
intervals; we bin both at the edges of the real one. By default, SDMetrics 0.32 also leaves out pairs that
are nearly independent in the real table, where a generator could create a spurious dependence unnoticed; its
thresholds are set to 0 here.

Run this with a Python that has SDMetrics (it needs pandas < 3 and installs `copulas`, so tacit does not
depend on it):

    python benchmarks/sdmetrics_agree.py > sdmetrics.json            # prints theirs
    .venv/bin/python benchmarks/sdmetrics_agree.py sdmetrics.json    # prints ours and the differences
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd


def mixed(n: int = 600, seed: int = 0, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    c = rng.choice(list("abcde"), n, p=[0.3, 0.2, 0.4, 0.07, 0.03])
    return pd.DataFrame(
        {
            "x": x + shift,
            "y": 0.5 * x + np.sqrt(0.75) * rng.normal(size=n),
            "c": c,
            "d": np.where(rng.random(n) < 0.7, c, "f"),
        }
    )


def theirs(real: pd.DataFrame, synthetic: pd.DataFrame) -> dict:
    from sdmetrics.reports.single_table import QualityReport

    report = QualityReport()
    report.real_correlation_threshold = report.real_association_threshold = 0
    report._properties["Column Pair Trends"].real_correlation_threshold = report._properties[
        "Column Pair Trends"
    ].real_association_threshold = 0
    kinds = {"x": "numerical", "y": "numerical", "c": "categorical", "d": "categorical"}
    report.generate(real, synthetic, {"columns": {n: {"sdtype": k} for n, k in kinds.items()}}, verbose=False)
    shapes, pairs = report.get_details("Column Shapes"), report.get_details("Column Pair Trends")
    return {
        "score": report.get_score(),
        "columns": dict(zip(shapes["Column"], shapes["MetricScore"])),
        "pairs": {
            f"{a} × {b}": s for a, b, s in zip(pairs["Column 1"], pairs["Column 2"], pairs["MetricScore"])
        },
    }


def ours(real: pd.DataFrame, synthetic: pd.DataFrame) -> dict:
    from tacit.synth import fidelity
    from tacit.synth.views import Views

    views = Views(real, synthetic, None)
    score, (columns, numbers, joint) = fidelity.quality(views, views.synthetic)
    return {"score": score, "columns": columns, "pairs": numbers | joint}


def main() -> None:
    real, synthetic = mixed(), mixed(500, 1, 0.3)
    if len(sys.argv) < 2:
        print(json.dumps(theirs(real, synthetic), indent=1, ensure_ascii=False))
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        peer, here = json.load(file), ours(real, synthetic)
    worst = abs(peer["score"] - here["score"])
    print(f"{'score':12s} SDMetrics {peer['score']:.9f}  ours {here['score']:.9f}")
    for part in ("columns", "pairs"):
        for name, value in peer[part].items():
            print(f"{name:12s} SDMetrics {value:.9f}  ours {here[part][name]:.9f}")
            worst = max(worst, abs(value - here[part][name]))
    print(f"largest difference {worst:.2e}")


if __name__ == "__main__":
    main()
