"""Federated models on real tables, next to scikit-learn on the pooled rows.

Each table is read as a user would read it, with parties by a column, and trained with default options:

    tacit.train(data.from_csv(path, label="y").by("site"), model="logistic")

Beside it, on the same training rows and the same test rows: scikit-learn on the pooled rows (standardized by the
pooled statistics; tails are not clipped), tacit with all rows at one party, and each party alone. scikit-learn is
tuned for each table and split: L2 of linear models by five-fold cross-validation; of networks (Adam, the same
layers) by the loss on validation rows among α = 0.0001 with early stopping, α = 1 and α = 10, then trained on all
rows. tacit tunes nothing. Figures are AUC, or R² for a regression, on test rows that nobody trains on or stops by.

Networks on small tables depend on the split and on the initial weights more than on anything else. So those of
tables with fewer than 25,000 rows are trained on ten random splits (`--splits`), with new initial weights on both
sides, and figures are means with 95% intervals by the corrected resampled t-test (C. Nadeau, Y. Bengio:
"Inference for the Generalization Error", 2003), which accounts for the overlap of the training sets. Other
intervals are from 500 bootstrap samples of the test rows of one split; the interval of a difference resamples
both models together. No table here was used to choose the defaults (docs/how-to-learn-from-tables.md).

    pip install pandas scikit-learn statsmodels lifelines
    python benchmarks/tables.py [NAME …] [--only network] [--splits 3] [--write]
    # --write updates docs/results/tables.md
    python benchmarks/tables.py star98 … kidney --only linear --splits 20  # SMALL_TABLES, on the same page
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import tacit
from tacit import data
from tacit.data.heart_disease import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "docs" / "results" / "tables.md"
WRITTEN_BY_HAND = "## How the penalty of linear models"  # --write keeps what follows this heading
LINEAR_AIM, NETWORK_AIM = 0.005, 0.01
HIDDEN = (64, 32)
LOCAL = 12  # parties that are trained alone: the largest
SMALL, SPLITS = 25_000, 10  # networks of tables with fewer rows than SMALL are trained on so many splits
ALPHAS: tuple[dict[str, Any], ...] = (
    {"alpha": 1e-4, "early_stopping": True},  # scikit-learn's own α
    {"alpha": 1.0},
    {"alpha": 10.0},
)
SAMPLES = 500  # of the bootstrap: the ends of a 95% interval are its 13th smallest and largest


@dataclass(frozen=True)
class Source:
    """A table: its rows, what to predict, and the column that says who holds a row."""

    load: Callable[[], pd.DataFrame]
    label: str
    by: str
    where: str
    regression: bool = False


def _adult() -> pd.DataFrame:
    names = [
        "age",
        "workclass",
        "fnlwgt",
        "education",
        "education_num",
        "marital",
        "occupation",
        "relationship",
        "race",
        "sex",
        "capital_gain",
        "capital_loss",
        "hours",
        "country",
        "income",
    ]
    with gzip.open(SHARED / "adult" / "adult.data.gz", "rt") as file:
        frame = pd.read_csv(file, names=names, skipinitialspace=True, na_values="?")
    return frame.dropna(subset=["occupation", "country"]).drop(columns="fnlwgt")


def _heart() -> pd.DataFrame:
    hospitals = []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        path = SHARED / "heart_disease" / f"processed.{hospital}.data"
        hospitals.append(pd.read_csv(path, names=COLUMNS, na_values="?").assign(hospital=hospital))
    frame = pd.concat(hospitals, ignore_index=True)
    for column in ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal"):
        frame[column] = frame[column].map(lambda v: None if pd.isna(v) else f"c{v:g}")
    frame["ill"] = np.where(frame.pop("num") > 0, "yes", "no")
    return frame.drop(columns=["ca"])  # missing in two thirds of the rows


def _credit() -> pd.DataFrame:
    frame = pd.read_csv(SHARED / "fate_vfl" / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    frame["default"] = np.where(frame.pop("default.payment.next.month") == 1, "yes", "no")
    for column in ("SEX", "EDUCATION", "MARRIAGE"):
        frame[column] = "c" + frame[column].astype(str)
    frame["age_band"] = pd.cut(frame["AGE"], [0, 25, 30, 35, 40, 45, 50, 55, 99]).astype(str)
    return frame


def _credit_unequal() -> pd.DataFrame:
    """The same rows at 174 parties with sizes from one row to thousands, like intensive care units."""
    frame, rng = _credit().drop(columns="age_band"), np.random.default_rng(0)
    shares = rng.pareto(1.0, 174) + 0.2
    party = rng.choice(len(shares), len(frame), p=shares / shares.sum())
    return frame.assign(party=[f"unit {k}" for k in party])


def _breast() -> pd.DataFrame:
    frames = [
        pd.read_csv(SHARED / "fate_vfl" / f"breast_homo_{party}.csv").assign(site=party)
        for party in ("guest", "host", "test")
    ]
    frame = pd.concat(frames, ignore_index=True).drop(columns="id")
    frame["y"] = np.where(frame["y"] == 1, "malignant", "benign")
    return frame


def _fair() -> pd.DataFrame:
    import statsmodels.api as sm

    frame = sm.datasets.fair.load_pandas().data
    frame["affair"] = np.where(frame.pop("affairs") > 0, "yes", "no")
    frame["occupation"] = "o" + frame["occupation"].astype(int).astype(str)
    frame["occupation_husb"] = "o" + frame["occupation_husb"].astype(int).astype(str)
    return frame


def _randhie() -> pd.DataFrame:
    import statsmodels.api as sm

    frame = sm.datasets.randhie.load_pandas().data
    frame["visits"] = np.log1p(frame.pop("mdvis"))
    frame["plan"] = "plan " + frame["lncoins"].round(1).astype(str)
    return frame


def _democracy() -> pd.DataFrame:
    from lifelines.datasets import load_dd

    frame = load_dd().dropna(subset=["duration", "regime", "un_region_name"])
    keep = ["un_region_name", "un_continent_name", "regime", "start_year", "observed", "democracy"]
    frame = frame.assign(years=np.log1p(frame["duration"]), observed="o" + frame["observed"].astype(str))
    return frame[[*keep, "years"]]


TABLES = {
    "adult by occupation": Source(_adult, "income", "occupation", "shared/data/adult"),
    "adult by country": Source(_adult, "income", "country", "shared/data/adult"),
    "heart disease by hospital": Source(_heart, "ill", "hospital", "shared/data/heart_disease"),
    "credit default by age band": Source(_credit, "default", "age_band", "shared/data/fate_vfl"),
    "credit default by 174 unequal parties": Source(
        _credit_unequal, "default", "party", "shared/data/fate_vfl"
    ),
    "breast cancer by site": Source(_breast, "y", "site", "shared/data/fate_vfl"),
    "affairs by occupation": Source(_fair, "affair", "occupation", "statsmodels fair"),
    "doctor visits by plan": Source(_randhie, "visits", "plan", "statsmodels randhie", regression=True),
    "regimes by region": Source(_democracy, "years", "un_region_name", "lifelines dd", regression=True),
}


def _draw(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows at three parties, drawn at random."""
    rng = np.random.default_rng(0)
    return frame.assign(party=[f"party {k}" for k in rng.integers(3, size=len(frame))])


def _statsmodels(name: str) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        import statsmodels.api as sm

        return _draw(getattr(sm.datasets, name).load_pandas().data.reset_index(drop=True))

    return load


def _lifelines(name: str, label: str = "", drop: tuple[str, ...] = ()) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        import lifelines.datasets

        frame = getattr(lifelines.datasets, f"load_{name}")().drop(columns=list(drop))
        if label:  # the larger of two values is the event
            frame[label] = np.where(frame[label] == frame[label].max(), "yes", "no")
        return _draw(frame)

    return load


SMALL_TABLES = {
    name: Source(load, label, "party", f"{package} {name.split()[0]}", regression)
    for name, load, label, package, regression in (
        ("star98", _statsmodels("star98"), "NABOVE", "statsmodels", True),
        ("statecrime", _statsmodels("statecrime"), "murder", "statsmodels", True),
        ("ccard", _statsmodels("ccard"), "AVGEXP", "statsmodels", True),
        ("engel", _statsmodels("engel"), "foodexp", "statsmodels", True),
        ("gbsg2 time", _lifelines("gbsg2"), "time", "lifelines", True),
        ("gbsg2 estrec", _lifelines("gbsg2"), "estrec", "lifelines", True),
        ("lung", _lifelines("lung", "status", ("time", "inst")), "status", "lifelines", False),
        ("kidney", _lifelines("kidney_transplant", "death", ("time",)), "death", "lifelines", False),
    )
}


def score(y: np.ndarray, out: np.ndarray, is_regression: bool) -> float:
    """R², or the AUC of the second class; out are predictions, or log odds."""
    if is_regression:
        return 1 - float(((y - out) ** 2).mean() / y.var())
    order = np.argsort(out, kind="stable")
    _, group = np.unique(out[order], return_inverse=True)
    ranks = np.empty(len(out))
    places = np.arange(1, len(out) + 1)
    ranks[order] = (np.bincount(group, places) / np.bincount(group))[group]  # ties share their mean rank
    positive = int(y.sum())
    if not 0 < positive < len(y):
        return float("nan")
    return float((ranks[y == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(y) - positive)))


def interval(y: np.ndarray, outs: list[np.ndarray], is_regression: bool) -> tuple[float, float]:
    """95% of the bootstrap's scores of one model, or of the differences of two."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(SAMPLES):
        i = rng.integers(len(y), size=len(y))
        each = [score(y[i], out[i], is_regression) for out in outs]
        values.append(each[0] - each[1] if len(each) == 2 else each[0])
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


def outputs(model: Any, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        out = model(x).double().numpy()
    return out[:, 1] - out[:, 0] if out.shape[-1] == 2 else out.ravel()


def pooled_network(x: Any, y: Any, test: Any, is_regression: bool, seed: int) -> np.ndarray:
    """The outputs of scikit-learn's network on pooled rows, with α chosen by the loss on validation rows."""
    from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPRegressor if is_regression else MLPClassifier
    # one split is enough for many rows, and costs a third
    folds = KFold(3, shuffle=True, random_state=seed) if len(y) < 2000 else ShuffleSplit(1, random_state=seed)
    search = GridSearchCV(
        kind(hidden_layer_sizes=HIDDEN, random_state=seed),
        [{name: [value] for name, value in settings.items()} for settings in ALPHAS],
        scoring="neg_mean_squared_error" if is_regression else "neg_log_loss",
        cv=folds,
    ).fit(x, y)
    if is_regression:
        return np.asarray(search.predict(test))
    p = search.predict_proba(test)[:, 1]
    return np.asarray(np.log(np.clip(p, 1e-12, 1)) - np.log(np.clip(1 - p, 1e-12, 1)))


def pooled_linear(x: Any, y: Any, test: Any, is_regression: bool) -> np.ndarray:
    """The outputs of scikit-learn's linear model on pooled rows, with cross-validated L2."""
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV

    if is_regression:
        return np.asarray(RidgeCV(alphas=np.logspace(-3, 4, 8)).fit(x, y).predict(test))
    model = LogisticRegressionCV(
        Cs=np.logspace(-4, 3, 8),
        cv=5,
        scoring="neg_log_loss",
        max_iter=500,
        l1_ratios=(0,),
        use_legacy_attributes=False,
    )
    return np.asarray(model.fit(x, y).decision_function(test))


class Split(NamedTuple):
    """The outputs of one split's models for its test rows."""

    target: np.ndarray
    pooled: np.ndarray
    central: np.ndarray
    federated: np.ndarray
    alone: list[float]  # scores
    rounds: int
    seconds: float
    fed: data.Federation


def train_split(source: Source, frame: pd.DataFrame, network: bool, seed: int) -> Split:
    """Train all models on one split; parties alone on the first one only."""
    is_regression = source.regression
    fed, plain = (
        data.from_frame(
            frame,
            label=source.label,
            groups=[source.by],
            regression=is_regression,
            test_fraction=0.25,
            seed=seed,
            winsorize=winsorize,
        ).by(source.by, seed=seed, held_fraction=0.1)
        for winsorize in ("auto", "none")
    )
    model: Any = tacit.models.MLP(HIDDEN) if network else "linear" if is_regression else "logistic"
    started = time.perf_counter()
    run = tacit.train(fed, model=model, seed=seed)
    seconds = time.perf_counter() - started
    index = torch.cat([fed.train.index, fed.held.index]) if network else fed.train.index
    x, y = plain.rows.x[index].numpy(), fed.rows.y[index].numpy()
    test, target = fed.test.x, fed.test.y.numpy()
    assert np.array_equal(plain.test.y, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if network:
            reference = pooled_network(x, y, plain.test.x.numpy(), is_regression, seed)
        else:
            reference = pooled_linear(x, y, plain.test.x.numpy(), is_regression)
    one = data.Holdings(fed.train.index, fed.train.start[[0, -1]])
    held = data.Holdings(fed.held.index, fed.held.start[[0, -1]])
    everyone = replace(fed, train=one, held=held, parties=("everyone",))
    central = tacit.train(everyone, model=model, seed=seed)
    alone = []
    for k in [] if seed else fed.train.sizes.argsort(descending=True)[:LOCAL].tolist():
        mine = fed.party(k)
        if not is_regression and len(mine.rows.y[mine.train.index].unique()) < 2:
            continue
        alone.append(score(target, outputs(tacit.train(mine, model=model).model, test), is_regression))
    rounds = max(e["round"] for e in run.events if e["kind"] == "round")
    return Split(
        target,
        reference,
        outputs(central.model, test),
        outputs(run.model, test),
        alone,
        rounds,
        seconds,
        fed,
    )


def measure(name: str, network: bool, splits: int | None = None) -> dict[str, Any]:
    """All figures of one table with one kind of model."""
    source = {**TABLES, **SMALL_TABLES}[name]
    frame = source.load()
    if splits is None:
        splits = SPLITS if network and len(frame) < SMALL else 1
    found = [train_split(source, frame, network, seed) for seed in range(splits)]
    first, is_regression = found[0], source.regression
    scores = {
        kind: np.array([score(s.target, getattr(s, kind), is_regression) for s in found])
        for kind in ("pooled", "central", "federated")
    }
    sizes = first.fed.train.sizes
    if splits == 1:
        bounds = [
            interval(first.target, outs, is_regression)
            for outs in ([first.pooled], [first.federated], [first.federated, first.pooled])
        ]
    else:
        ratio = len(first.target) / (int(sizes.sum()) + len(first.fed.held.index))
        differences = scores["federated"] - scores["pooled"]
        bounds = [interval_of_splits(v, ratio) for v in (scores["pooled"], scores["federated"], differences)]
    majority = accuracy = float("nan")
    if not is_regression:
        majority = float(np.mean([np.bincount(s.target.astype(int)).max() / len(s.target) for s in found]))
        accuracy = float(np.mean([((s.federated > 0) == (s.target == 1)).mean() for s in found]))
    return {
        "table": name,
        "source": source.where,
        "rows": int(sizes.sum()),
        "parties": len(first.fed),
        "features": int(first.fed.rows.x.shape[1]),
        "splits": splits,
        "sklearn": float(scores["pooled"].mean()),
        "sklearn_interval": bounds[0],
        "central": float(scores["central"].mean()),
        "federated": float(scores["federated"].mean()),
        "federated_interval": bounds[1],
        "difference_interval": bounds[2],
        "alone": float(np.median(first.alone)) if first.alone else float("nan"),
        "majority": majority,
        "accuracy": accuracy,
        "seconds": float(np.mean([s.seconds for s in found])),
        "rounds": round(float(np.mean([s.rounds for s in found]))),
    }


def interval_of_splits(values: np.ndarray, ratio: float) -> tuple[float, float]:
    """The 95% interval of a mean over random splits; `ratio` is test rows to training rows.

    Training sets of two splits share most of their rows, so variances are multiplied by 1/J + ratio, not 1/J.
    """
    from scipy import stats

    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) * np.sqrt(1 / len(values) + ratio)
    return float(values.mean() - half), float(values.mean() + half)


def to_markdown(rows: list[dict[str, Any]], aim: float) -> str:
    head = (
        "| table | rows, parties, features, splits | scikit-learn, pooled | tacit, one party | tacit, federated | "
        "difference | to tacit, one party | one party alone | accuracy (majority) | rounds, s |\n|"
        + "---|"
        * 10
    )
    lines = [head]
    for r in rows:
        low, high = r["difference_interval"]
        difference = r["federated"] - r["sklearn"]
        a, b = r["federated_interval"]
        c, d = r["sklearn_interval"]
        accuracy = "" if np.isnan(r["accuracy"]) else f"{r['accuracy']:.3f} ({r['majority']:.3f})"
        mark = "" if difference >= -aim else " (below the aim)"
        lines.append(
            f"| {r['table']} | {r['rows']:,}, {r['parties']}, {r['features']}, {r['splits']} | "
            f"{r['sklearn']:.4f} [{c:.3f}, {d:.3f}] | {r['central']:.4f} | {r['federated']:.4f} "
            f"[{a:.3f}, {b:.3f}] | {difference:+.4f} [{low:+.4f}, {high:+.4f}]{mark} | "
            f"{r['federated'] - r['central']:+.4f} | {r['alone']:.4f} | "
            f"{accuracy} | {r['rounds']}, {r['seconds']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"tables, of: {', '.join((*TABLES, *SMALL_TABLES))}")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--only", choices=("linear", "network"), help="one kind of model, printed")
    parser.add_argument("--splits", type=int, help=f"{SPLITS} for networks on small tables, else 1")
    options = parser.parse_args()
    if options.only and options.write:
        sys.exit("--write is for both kinds of models: leave --only out.")
    known = (*TABLES, *SMALL_TABLES)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        sys.exit(f"unknown tables: {', '.join(unknown)}. Known: {', '.join(known)}.")
    sections = []
    for network, title, aim in (
        (False, "Linear models", LINEAR_AIM),
        (True, "Networks (64 and 32 units)", NETWORK_AIM),
    ):
        if options.only and network != (options.only == "network"):
            continue
        rows = []
        for name in options.names or TABLES:
            rows.append(measure(name, network, options.splits))
            print(to_markdown(rows[-1:], aim).splitlines()[-1], flush=True)
        sections.append(f"## {title}\n\n{to_markdown(rows, aim)}\n")
    text = "\n".join(sections)
    if options.write:
        intro = (
            "# Tables: federated next to pooled\n\n"
            "Printed by `benchmarks/tables.py --write`, which says how. AUC, or R² for *doctor visits* and "
            "*regimes*, on rows that no model was trained on or stopped by, with 95% intervals: over random "
            "splits, or for one split from the bootstrap. *One party alone* is the median over the "
            f"{LOCAL} largest parties of the first split. *To tacit, one party* is the difference to the "
            "same model and options with all rows at one party. All tacit runs have default options.\n\n"
        )
        old = RESULTS.read_text()
        RESULTS.write_text(intro + text + "\n" + old[old.index(WRITTEN_BY_HAND) :])
    else:
        print(text)


if __name__ == "__main__":
    main()
