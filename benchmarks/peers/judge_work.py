"""SDMetrics' quality and Anonymeter's risks of synthetic tables; prints them as JSON.

    judge_work.py FOLDER NUMBER TARGET [FOLDER NUMBER TARGET …] [--signed | --no-attacks]

Run by benchmarks/publish.py, in an environment of its own: each FOLDER has train.parquet, holdout.parquet and
NUMBER tables made-0.parquet, made-1.parquet, … Several folders share the seconds that Anonymeter takes to compile.

Risks are in excess of those of the held-out rows, Anonymeter's main figure, in [0, 1]: singling out by predicates on
three columns; linking two halves of the columns of the same row through their nearest synthetic row; inferring the
target from all other columns. With --signed, they are not cut off at 0: (attack − control) / (1 −
control), whose mean over many tables is unbiased where nothing leaks. With --no-attacks they are NaN.
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
from sdmetrics.reports.single_table import QualityReport  # noqa: E402


def judge_quality(train: pd.DataFrame, made: pd.DataFrame) -> float:
    kinds = {
        c: {"sdtype": "numerical" if pd.api.types.is_numeric_dtype(train[c]) else "categorical"}
        for c in train
    }
    report = QualityReport()
    report.generate(train, made, {"columns": kinds}, verbose=False)
    return float(report.get_score())


def attack(
    train: pd.DataFrame, made: pd.DataFrame, holdout: pd.DataFrame, target: str, signed: bool
) -> list[float]:
    from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator

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
    out = []
    for k, evaluator in enumerate(evaluators):
        try:
            done = evaluator.evaluate("multivariate") if k == 0 else evaluator.evaluate(n_jobs=1)
            risk = done.risk().value
            if signed:
                success, chance = (
                    getattr(done.results(), f"{who}_rate").value for who in ("attack", "control")
                )
                risk = (success - chance) / (1 - chance)
        except RuntimeError:  # no predicate was found in the synthetic table: nothing to attack with
            risk = 0.0
        out.append(float(risk))
    return out


def main() -> None:
    option = sys.argv[-1] if sys.argv[-1].startswith("--") else ""
    words = sys.argv[1 : len(sys.argv) - bool(option)]
    figures = []
    for place, number, target in zip(words[::3], words[1::3], words[2::3]):
        train, holdout = (pd.read_parquet(Path(place) / f"{part}.parquet") for part in ("train", "holdout"))
        for i in range(int(number)):
            made = pd.read_parquet(Path(place) / f"made-{i}.parquet")
            risks = [float("nan")] * 3
            if option != "--no-attacks":
                risks = attack(train, made, holdout, target, option == "--signed")
            figures.append([judge_quality(train, made), *risks])
    print(json.dumps({"figures": figures}))


if __name__ == "__main__":
    main()
