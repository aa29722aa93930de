"""SDMetrics' quality and Anonymeter's risks of synthetic tables; prints them as JSON.

Run by benchmarks/publish.py, in an environment of its own: FOLDER has train.parquet, holdout.parquet and
made-0.parquet, made-1.parquet, …

Risks are in excess of those of the held-out rows, Anonymeter's main figure, in [0, 1]: singling out by predicates on
three columns; linking two halves of the columns of the same row through their nearest synthetic row; inferring the
target from all other columns. With --signed after the target, they are not cut off at 0: (attack − control) / (1 −
control), whose mean over many tables is unbiased where nothing leaks.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path

import pandas as pd

ATTACKS = 300  # of each kind; Anonymeter's own default is 500
TRIES = 3_000  # to find a predicate; its default, 10 million, never ends where few rows are unique

# SDMetrics (MIT) imports `copulas` (Business Source License) for metrics that are not used here, and cannot be
# loaded without it; an empty module takes its place.
for name in ("copulas", "copulas.univariate", "copulas.univariate.base"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].Univariate = object  # type: ignore[attr-defined]

warnings.simplefilter("ignore")  # "attack is as good or worse as baseline", where nothing leaks
from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator  # noqa: E402
from sdmetrics.reports.single_table import QualityReport  # noqa: E402


def judge(
    train: pd.DataFrame, made: pd.DataFrame, holdout: pd.DataFrame, target: str, signed: bool
) -> list[float]:
    kinds = {
        c: {"sdtype": "numerical" if pd.api.types.is_numeric_dtype(train[c]) else "categorical"}
        for c in train
    }
    report = QualityReport()
    report.generate(train, made, {"columns": kinds}, verbose=False)
    attacks = min(ATTACKS, len(holdout))
    columns = list(train)
    others = [c for c in columns if c != target]
    evaluators = [
        SinglingOutEvaluator(
            train,
            made,
            attacks,
            n_cols=min(3, len(columns)),
            control=holdout,
            seed=0,
            max_attempts=TRIES,
        ),
        LinkabilityEvaluator(
            train, made, (columns[::2], columns[1::2]), n_attacks=attacks, control=holdout, n_neighbors=1
        ),
        InferenceEvaluator(
            train, made, aux_cols=others, secret=target, n_attacks=attacks, control=holdout, regression=False
        ),
    ]
    out = [float(report.get_score())]
    for k, evaluator in enumerate(evaluators):
        try:
            done = evaluator.evaluate("multivariate") if k == 0 else evaluator.evaluate(n_jobs=1)
            risk = done.risk().value
            if signed:
                attack, control = (
                    getattr(done.results(), f"{who}_rate").value for who in ("attack", "control")
                )
                risk = (attack - control) / (1 - control)
        except RuntimeError:  # no predicate was found in the synthetic table: nothing to attack with
            risk = 0.0
        out.append(float(risk))
    return out


def main() -> None:
    folder, number, target = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    signed = sys.argv[4:] == ["--signed"]
    train, holdout = (pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "holdout"))
    figures = [
        judge(train, pd.read_parquet(folder / f"made-{i}.parquet"), holdout, target, signed)
        for i in range(number)
    ]
    print(json.dumps({"figures": figures}))


if __name__ == "__main__":
    main()
