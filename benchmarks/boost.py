"""Boosted trees over parties beside pooled XGBoost (hist) and bagging-style federated XGBoost.

    python benchmarks/boost.py                  AUC on seven tables, IID and label-skewed parties
    python benchmarks/boost.py --speed          CPU seconds of 100 trees of depth 6, Adult over 10 parties
    python benchmarks/boost.py --private        AUC by ε on Adult
    python benchmarks/boost.py --kernels        histograms: numba and numpy
    python benchmarks/boost.py --paired         AUC beside XGBoost on the same and on its own bins, 60 splits
    python benchmarks/boost.py --vertical       default_credit, columns of two parties: AUC, CPU seconds, MB
    python benchmarks/boost.py --joined         the same columns, overlapping people, membership stays shared
    python benchmarks/boost.py --apart          AUC on seven tables, columns of two and of three parties

Adult, default_credit and heart_disease are read from TACIT_DATA (default: ../shared/data); breast_cancer comes
with scikit-learn, fair and randhie with statsmodels, regimes and gbsg2 with lifelines. All methods have the same rows; AUC is on test rows that
no party has. Bagging is what Flower's example with XGBoost does (FedXgbBagging): in each round every party
grows one tree on its own rows from the shared model, and all of these trees join it, each with its learning
rate divided by the number of parties.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xgboost
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import tacit
from tacit.data.heart_disease import COLUMNS as HEART_COLUMNS

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[2] / "shared" / "data")
TREES, DEPTH, PARTIES = 100, 6, 10
Table = tuple[pd.DataFrame, pd.DataFrame, str]  # training rows, test rows, label


# --- tables ------------------------------------------------------------------------------------------------


def adult(seed: int = 0) -> Table:
    table = tacit.data.adult(data_dir=ROOT).table
    label = table.label
    test = table.test.assign(**{label: table.test[label].str.rstrip(".")})
    return table.frame.drop(columns="fnlwgt"), test.drop(columns="fnlwgt"), label


def default_credit(seed: int = 0) -> Table:
    frame = pd.read_csv(ROOT / "fate_vfl" / "UCI_Credit_Card.csv.gz")
    label = next(c for c in frame.columns if "default" in c.lower())
    frame = frame.drop(columns=[c for c in frame.columns if c.lower() == "id"])
    return _split(frame, label, seed)


def breast(seed: int = 0) -> Table:
    from sklearn.datasets import load_breast_cancer

    return _split(load_breast_cancer(as_frame=True).frame, "target", seed)


def heart_disease(seed: int = 0) -> Table:
    parts = [
        pd.read_csv(ROOT / "heart_disease" / f"processed.{site}.data", names=HEART_COLUMNS, na_values="?")
        for site in ("cleveland", "hungarian", "switzerland", "va")
    ]
    frame = pd.concat(parts, ignore_index=True)
    return _split(frame.assign(num=(frame["num"] > 0).astype(int)), "num", seed)


def fair(seed: int = 0) -> Table:
    """R. Fair 1978, a survey of 6,366 women (statsmodels): whether there was an affair."""
    import statsmodels.api as sm

    frame = sm.datasets.fair.load_pandas().data
    return _split(frame.assign(affairs=(frame["affairs"] > 0).astype(int)), "affairs", seed)


def rand_hie(seed: int = 0) -> Table:
    """The RAND health insurance experiment, 20,190 rows (statsmodels): whether there was any visit."""
    import statsmodels.api as sm

    frame = sm.datasets.randhie.load_pandas().data
    return _split(frame.assign(mdvis=(frame["mdvis"] > 0).astype(int)), "mdvis", seed)


def regimes(seed: int = 0) -> Table:
    """Political regimes, 1,808 rows (lifelines): whether the end was observed. Up to 1,800 levels in a column."""
    from lifelines.datasets import load_dd

    return _split(load_dd(), "observed", seed)


def gbsg2(seed: int = 0) -> Table:
    """The German breast cancer study, 686 rows (lifelines): whether there was a recurrence or a death."""
    from lifelines.datasets import load_gbsg2

    return _split(load_gbsg2(), "cens", seed)


TABLES = {
    "adult": adult,
    "default_credit": default_credit,
    "breast": breast,
    "heart_disease": heart_disease,
    "fair": fair,
    "randhie": rand_hie,
    "regimes": regimes,
    "gbsg2": gbsg2,
}


ONE_SPLIT = ("adult",)  # has test rows of its own; of others, one split decides more than the method


def _split(frame: pd.DataFrame, label: str, seed: int) -> Table:
    train, test = train_test_split(frame, test_size=0.3, stratify=frame[label], random_state=seed)
    return train.reset_index(drop=True), test.reset_index(drop=True), label


def partition(frame: pd.DataFrame, label: str, skew: str, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Return ten parties: IID, or with shares of the classes drawn from a Dirichlet(0.5) distribution."""
    rng = np.random.default_rng(seed)
    owner = np.zeros(len(frame), dtype=int)
    if skew == "iid":
        owner = rng.permutation(np.arange(len(frame)) % PARTIES)
    else:
        for value in frame[label].unique():
            rows = np.flatnonzero(frame[label] == value)
            owner[rows] = rng.choice(PARTIES, len(rows), p=rng.dirichlet([0.5] * PARTIES))
    parts = {f"p{k}": frame[owner == k].reset_index(drop=True) for k in range(PARTIES)}
    return {name: part for name, part in parts.items() if len(part)}


# --- methods -----------------------------------------------------------------------------------------------


def matrices(train: pd.DataFrame, test: pd.DataFrame, label: str) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    both = pd.concat([train, test], ignore_index=True)
    top = sorted(both[label].astype(str).unique())[-1]
    y = (both[label].astype(str) == top).to_numpy(float)
    x = both.drop(columns=label)
    for c in x.columns:
        if not pd.api.types.is_numeric_dtype(x[c]):
            x[c] = x[c].astype("category")
    n = len(train)
    return x[:n], x[n:], y[:n], y[n:]


PARAMETERS = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": DEPTH, "eta": 0.3}


def pooled(train: pd.DataFrame, test: pd.DataFrame, label: str) -> float:
    x, xt, y, yt = matrices(train, test, label)
    model = xgboost.train(PARAMETERS, xgboost.DMatrix(x, y, enable_categorical=True), TREES)
    return float(roc_auc_score(yt, model.predict(xgboost.DMatrix(xt, enable_categorical=True))))


def bagging(parts: dict[str, pd.DataFrame], test: pd.DataFrame, label: str, rounds: int) -> float:
    """Flower's FedXgbBagging: each round every party adds a tree to the model of the round before."""
    train = pd.concat(parts.values(), ignore_index=True)
    x, xt, y, yt = matrices(train, test, label)
    ends = np.cumsum([0, *(len(p) for p in parts.values())])
    slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
    local = [xgboost.DMatrix(x[part], y[part], enable_categorical=True) for part in slices]
    rows = [xgboost.DMatrix(part, enable_categorical=True) for part in (x, xt)]
    parameters = {**PARAMETERS, "eta": 0.3 / len(local), "base_score": 0.5}
    margins = [np.zeros(len(y)), np.zeros(len(yt))]
    for _ in range(rounds):
        steps = [np.zeros(len(y)), np.zeros(len(yt))]
        for part, own in zip(slices, local):
            own.set_base_margin(margins[0][part])
            tree = xgboost.train(parameters, own, 1)
            for step, matrix in zip(steps, rows):
                step += tree.predict(matrix, output_margin=True)
        for margin, step in zip(margins, steps):
            margin += step
    return float(roc_auc_score(yt, margins[1]))


def ours(parts: dict[str, pd.DataFrame], test: pd.DataFrame, label: str, **options: Any) -> float:
    model = tacit.boost.train(parts, label=label, trees=TREES, depth=DEPTH, **options)
    top = sorted(test[label].astype(str).unique())[-1]
    return float(roc_auc_score(test[label].astype(str) == top, model.predict(test)))


# --- what is measured --------------------------------------------------------------------------------------


def accuracy(names: list[str], rounds: int) -> None:
    """Print mean AUCs over splits into training and test rows: five, one of Adult."""
    print(f"{'table':16} {'parties':8} {'pooled':>8} {'tacit':>8} {'diff':>8} {'bagging':>8}")
    for name in names:
        for skew in ("iid", "skewed"):
            found = []
            for seed in range(1 if name in ONE_SPLIT else 5):
                train, test, label = TABLES[name](seed)
                parts = partition(train, label, skew, seed)
                found.append(
                    (
                        pooled(train, test, label),
                        ours(parts, test, label),
                        bagging(parts, test, label, rounds),
                    )
                )
            whole, federated, bagged = np.mean(found, axis=0)
            print(
                f"{name:16} {skew:8} {whole:8.4f} {federated:8.4f} {federated - whole:+8.4f} {bagged:8.4f}",
                flush=True,
            )


def paired(names: list[str], splits: int = 60) -> None:
    """Print differences of AUC within splits, with 95% intervals: XGBoost on cells of tacit's bins, and XGBoost
    with another number of bins, beside XGBoost on its own 256 bins. Parties are IID: trees are those of pooled rows.
    """
    for name in names:
        found = []
        for seed in range(splits):
            train, test, label = TABLES[name](seed)
            x, xt, y, yt = matrices(train, test, label)
            model = tacit.boost.train(
                partition(train, label, "iid", seed), label=label, trees=TREES, depth=DEPTH
            )
            bins, base = model.booster.bins, float(1 / (1 + np.exp(-model.booster.base)))
            kinds = ["c" if k else "q" for k in bins.is_category]
            cells = [np.where((c := bins.encode(t)) == bins.widths, np.nan, c) for t in (train, test)]
            same = [xgboost.DMatrix(c, feature_types=kinds, enable_categorical=True) for c in cells]
            own = [xgboost.DMatrix(c, enable_categorical=True) for c in (x, xt)]
            same[0].set_label(y)
            own[0].set_label(y)
            settings = {**PARAMETERS, "nthread": 1}
            alike = {**settings, "max_cat_to_onehot": 1, "base_score": base}
            predictions = [
                model.predict(test),
                xgboost.train(alike, same[0], TREES).predict(same[1]),
                *(
                    xgboost.train({**settings, "max_bin": b}, own[0], TREES).predict(own[1])
                    for b in (240, 255, 256)
                ),
            ]
            found.append([roc_auc_score(yt, p) for p in predictions])
        auc = np.array(found)
        difference = auc - auc[:, -1:]
        half = 1.96 * difference.std(axis=0, ddof=1) / np.sqrt(splits)
        print(f"{name}: XGBoost on its own 256 bins {auc[:, -1].mean():.4f}, means of {splits} splits")
        methods = ("tacit", "XGBoost, tacit's bins", "XGBoost, 240 bins", "XGBoost, 255 bins")
        for method, mean, d, h in zip(methods, auc.mean(axis=0), difference.mean(axis=0), half):
            print(f"    {method:22} {mean:.4f}  {d:+.4f} ± {h:.4f}", flush=True)


def speed(repeats: int = 5) -> None:
    """CPU seconds (of all threads) and wall seconds, medians; the first call compiles and is not counted.

    Methods run in turn, so that on a shared machine all have the same minutes, and ratios are medians of those
    within a turn.
    """
    train, test, label = adult()
    parts = partition(train, label, "iid")
    x, _, y, _ = matrices(train, test, label)
    options: dict[str, Any] = {"label": label, "trees": TREES, "depth": DEPTH}
    for runtime in ("cohort", "masked", "inprocess"):
        tacit.boost.train(parts, label=label, trees=2, depth=DEPTH, runtime=runtime)
    methods = {
        "xgboost, pooled, one thread": lambda: xgboost.train(
            {**PARAMETERS, "nthread": 1}, xgboost.DMatrix(x, y, enable_categorical=True), TREES
        ),
        "tacit, simulation": lambda: tacit.boost.train(parts, **options),
        "tacit, simulation, masks executed": lambda: tacit.boost.train(parts, runtime="masked", **options),
        "tacit, secure sums executed": lambda: tacit.boost.train(parts, runtime="inprocess", **options),
    }
    seconds = np.array([[_seconds(run) for run in methods.values()] for _ in range(repeats)])
    ratios = seconds / seconds[:, :1]  # to pooled XGBoost
    for name, found, ratio in zip(methods, np.median(seconds, axis=0), np.median(ratios, axis=0)):
        print(
            f"{name:34} {found[0]:6.2f} CPU s {ratio[0]:5.2f} ×  {found[1]:7.2f} wall s {ratio[1]:5.2f} ×",
            flush=True,
        )


def _seconds(run: Any) -> tuple[float, float]:
    """Return the CPU seconds of all threads, and wall seconds."""
    start = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - start[0], time.perf_counter() - start[1]


def private() -> None:
    train, test, label = adult()
    parts = partition(train, label, "iid")
    numbers = [c for c in train.columns if c != label and pd.api.types.is_numeric_dtype(train[c])]
    declared = {
        "age": (17, 90), "education-num": (0, 16), "capital-gain": (0, 20_000), "capital-loss": (0, 5_000),
        "hours-per-week": (0, 100),
    }  # fmt: skip
    levels = {c: sorted(train[c].dropna().unique()) for c in train.columns if c not in (*numbers, label)}
    labels = sorted(train[label].unique())
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
        found = [
            ours(
                parts,
                test,
                label,
                epsilon=epsilon,
                bounds=declared,
                categories=levels,
                labels=labels,
                learning_rate=0.5,
            )
            for _ in range(3)
        ]
        print(f"ε = {epsilon:3}  AUC {np.mean(found):.4f} ± {np.std(found):.4f}", flush=True)


def kernels() -> None:
    from tacit.boost import kernels as k

    rng, n, features = np.random.default_rng(0), 100_000, 14
    codes = rng.integers(0, 64, (n, features)).astype(np.uint8)
    offsets = np.arange(features) * 65
    g, h = rng.integers(-(2**25), 2**25, n), rng.integers(0, 2**24, n)
    node, slots, used = (
        rng.integers(0, 16, n).astype(np.int32),
        np.arange(16, dtype=np.int32),
        np.ones(n, bool),
    )
    arguments = (codes, node, slots, used, g, h, offsets)
    out = np.zeros((16, features * 65, 3), np.int64)
    k.histograms(*arguments, (16, features * 65))
    for name, run in (
        ("numba", lambda: k.histograms(*arguments, (16, features * 65))),
        ("numpy", lambda: k.histograms_numpy(*arguments, out)),
    ):
        best = min(_seconds(run)[0] for _ in range(5))
        print(f"{name}: {best / (n * features) * 1e9:5.1f} ns for a row and column", flush=True)


# --- different columns of the same people ------------------------------------------------------------------


def vertical(splits: int = 5, trees: int = 20, depth: int = 4) -> None:
    """Columns of default_credit as FATE divides them (guest 13 with the label, host 10), all parties in one
    process, every message executed. XGBoost has the pooled columns: as cells of the same bins, and as they
    are. Ids are already aligned, so private set intersection is not in the seconds.
    """
    guest, host = (
        pd.read_csv(ROOT / "fate_vfl" / f"default_credit_hetero_{name}.csv.gz") for name in ("guest", "host")
    )
    host = host.set_index("id").loc[guest["id"]].reset_index()
    settings: dict[str, Any] = {"trees": trees, "depth": depth, "min_rows": 1}
    tables = {
        "guest": tacit.data.from_frame(guest, "y", id="id", test_fraction=0),
        "host": tacit.data.from_frame(host, id="id"),
    }
    small = {"guest": guest.head(500), "host": host.head(500)}
    for backend in ("shares", "he"):
        tacit.boost.train(small, on="id", label="y", trees=1, depth=2, backend=backend)  # compiles
    shapes = {}
    for backend, bins, reveal, size in (
        ("shares", 32, "sums", {}),
        ("shares", 32, "splits", {}),
        ("shares", 64, "sums", {}),
        ("he", 32, "sums", {}),
        ("he", 64, "sums", {}),
        ("shares", 255, "sums", {"trees": 10, "depth": 6}),
        ("he", 255, "sums", {"trees": 10, "depth": 6}),
    ):
        options = {**settings, **size, "bins": bins, "reveal": reveal}
        before = time.process_time()
        model = tacit.boost.train(tables, **options, backend=backend)
        spent = time.process_time() - before
        megabytes = sum(line.bytes for line in model.ledger.seen) / 1e6
        drawn = {"helper": "", "leaf_key": "", "masked": []}  # the mask of leaves is random
        trees_of = [{**p.to_dict(), **drawn} for p in model.parts.values()]
        same = shapes.setdefault((bins, reveal), trees_of) == trees_of
        print(f"30,000 rows, {options['trees']} trees of depth {options['depth']}, {bins} bins, "
              f"reveal={reveal!r}, backend={backend!r}: {spent:.1f} CPU s, "
              f"{megabytes:.0f} MB, the same trees: {same}", flush=True)  # fmt: skip
        for kind in sorted({line.kind for line in model.ledger.seen}):
            part = sum(line.bytes for line in model.ledger.seen if line.kind == kind) / 1e6
            if part > 1:
                print(f"    {kind}: {part:.0f} MB", flush=True)
    columns = np.column_stack([guest.drop(columns=["id", "y"]), host.drop(columns="id")])
    y = guest["y"].to_numpy()
    before = time.process_time()
    _xgboost(columns, y, trees, depth, 32)
    print(f"pooled XGBoost: {time.process_time() - before:.2f} CPU s", flush=True)
    found = []
    for seed in range(splits):
        train, test = train_test_split(np.arange(len(guest)), test_size=0.2, random_state=seed, stratify=y)
        parts = {"guest": guest.iloc[train], "host": host.iloc[train]}
        model = tacit.boost.train(
            {
                "guest": tacit.data.from_frame(parts["guest"], "y", id="id", test_fraction=0),
                "host": tacit.data.from_frame(parts["host"], id="id"),
            },
            **settings,
        )
        new = {"guest": guest.iloc[test], "host": host.iloc[test]}
        cells = [
            np.concatenate([model.parts[n].bins.encode(t[n]) for n in t], axis=1).astype(float)
            for t in (parts, new)
        ]
        same = _xgboost(cells[0], y[train], trees, depth, 256).predict_proba(cells[1])[:, 1]
        own = _xgboost(columns[train], y[train], trees, depth, 256).predict_proba(columns[test])[:, 1]
        found.append([roc_auc_score(y[test], p) for p in (model.predict(new), same, own)])
        print(f"split {seed}: tacit {found[-1][0]:.4f}, XGBoost with the same bins {found[-1][1]:.4f}, "
              f"with its own 256 bins {found[-1][2]:.4f}", flush=True)  # fmt: skip
    mean = np.mean(found, axis=0)
    print(f"mean: tacit {mean[0]:.4f}, same bins {mean[1]:.4f}, own bins {mean[2]:.4f}", flush=True)


def joined(trees: int = 20, splits: int = 2) -> None:
    """Columns of default_credit as FATE divides them, at two parties with 85% of the training people each: a
    join whose membership stays shared, all parties and the helper in one process, every message executed.
    Pooled: the merged table of those whom both have, with the same cuts. XGBoost has its cells; with Hessians
    of at least 5 a leaf has at least 20 rows, so that all follow the same rules.
    """
    guest, host = (
        pd.read_csv(ROOT / "fate_vfl" / f"default_credit_hetero_{name}.csv.gz") for name in ("guest", "host")
    )
    host = host.rename(columns={c: f"host {c}" for c in host.columns if c != "id"})
    small = {"guest": guest.head(500), "host": host.set_index("id").loc[guest["id"][:500]].reset_index()}
    options: dict[str, Any] = {"trees": trees, "min_rows": 20, "min_child_weight": 5}
    tacit.join(small, on="id", reveal="shares", decimals=6).boost("y", trees=1, depth=1)  # compiles
    for seed, depth in itertools.product(range(splits), (3, 4)):
        train, test = train_test_split(
            guest["id"].to_numpy(), test_size=0.2, random_state=seed, stratify=guest["y"]
        )
        part = len(train) * 15 // 100
        frames = {
            "guest": guest[guest["id"].isin(train[part:])],
            "host": host[host["id"].isin(train[:-part])],
        }
        table = tacit.join(frames, on="id", reveal="shares", decimals=6)
        before = time.process_time()
        model = table.boost("y", depth=depth, **options)
        spent = time.process_time() - before
        megabytes = sum(line.bytes for line in model.ledger.seen) / 1e6
        both, new = frames["guest"].merge(frames["host"], on="id"), guest[guest["id"].isin(test)].merge(host)
        y = new["y"].to_numpy()
        cuts = {f.name: list(f.cuts or ()) for p in model.parts.values() for f in p.bins.bins.features}
        pooled = tacit.boost.train(
            {"all": both[[*cuts, "y"]]}, label="y", cuts=cuts, depth=depth, **options
        )  # fmt: skip
        cells = [
            np.concatenate([p.bins.encode(t) for p in model.parts.values()], axis=1).astype(float)
            for t in (both, new)
        ]
        trained = xgboost.XGBClassifier(
            n_estimators=trees, max_depth=depth, learning_rate=0.3, min_child_weight=5, tree_method="exact",
            base_score=float(frames["guest"]["y"].mean()), n_jobs=1,
        ).fit(cells[0], both["y"])  # fmt: skip
        ours = model.predict({"guest": new, "host": new})
        found = [
            roc_auc_score(y, p) for p in (ours, pooled.predict(new), trained.predict_proba(cells[1])[:, 1])
        ]
        print(f"split {seed}, {len(frames['guest']):,} and {len(frames['host']):,} people, {len(both):,} matched, "
              f"{trees} trees of depth {depth}: {spent:.1f} CPU s, {megabytes:.0f} MB; AUC tacit {found[0]:.4f}, "
              f"pooled {found[1]:.4f}, XGBoost {found[2]:.4f}; largest difference of a prediction "
              f"{np.abs(ours - pooled.predict(new)).max():.4f}", flush=True)  # fmt: skip
        for kind in sorted({line.kind for line in model.ledger.seen}):
            of_kind = sum(line.bytes for line in model.ledger.seen if line.kind == kind) / 1e6
            if of_kind > 10 and seed == 0:
                print(f"    {kind}: {of_kind:.0f} MB", flush=True)


def apart(names: list[str], trees: int = 50, depth: int = 4) -> None:
    """Mean AUCs over splits, columns dealt to two and three parties, 255 bins. XGBoost has the pooled columns: as
    cells of the same bins (categories by sorted gradients, as tacit), and as they are.
    """
    print(
        f"{'table':16} {'parties':8} {'same bins':>10} {'own bins':>10} {'tacit':>8} {'- same':>8} {'- own':>8}"
    )
    for name in names:
        for parties in (2, 3):
            found = []
            for seed in range(1 if name in ONE_SPLIT else 5):
                train, test, label = TABLES[name](seed)
                columns = [c for c in train if c != label]
                own = {f"p{k}": columns[k::parties] for k in range(parties)}
                tables = {who: train[c].assign(row=range(len(train))) for who, c in own.items()}
                tables["p0"][label] = train[label]
                model = tacit.boost.train(
                    tables, on="row", label=label, trees=trees, depth=depth, bins=255, min_rows=1
                )
                ours = model.predict({who: test[c] for who, c in own.items()})
                x, xt, y, yt = matrices(train, test, label)
                same = [
                    np.concatenate([model.parts[who].bins.encode(t[c]) for who, c in own.items()], axis=1)
                    for t in (train, test)
                ]
                blank = np.concatenate([model.parts[who].bins.bins.widths for who in own])
                kinds = np.concatenate([model.parts[who].bins.bins.is_category for who in own])
                cells = [np.where(c == blank, np.nan, c.astype(float)) for c in same]
                settings = {**PARAMETERS, "max_depth": depth}
                types = ["c" if k else "q" for k in kinds]
                rows = [
                    xgboost.DMatrix(c, v, feature_types=types, enable_categorical=True)
                    for c, v in zip(cells, (y, yt))
                ]
                alike = xgboost.train({**settings, "max_cat_to_onehot": 1}, rows[0], trees).predict(rows[1])
                free = xgboost.train(settings, xgboost.DMatrix(x, y, enable_categorical=True), trees)
                free = free.predict(xgboost.DMatrix(xt, enable_categorical=True))
                found.append([roc_auc_score(yt, p) for p in (alike, free, ours)])
            alike, free, ours = np.mean(found, axis=0)
            print(
                f"{name:16} {parties:8} {alike:10.4f} {free:10.4f} {ours:8.4f} {ours - alike:+8.4f} "
                f"{ours - free:+8.4f}",
                flush=True,
            )


def _xgboost(x: np.ndarray, y: np.ndarray, trees: int, depth: int, bins: int) -> Any:
    model = xgboost.XGBClassifier(
        n_estimators=trees, max_depth=depth, learning_rate=0.3, tree_method="hist", max_bin=bins, n_jobs=1
    )
    return model.fit(x, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for flag in ("speed", "paired", "private", "kernels", "vertical", "joined", "apart"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--rounds", type=int, default=TREES, help="rounds of bagging")
    args = parser.parse_args()
    if args.speed:
        speed()
    elif args.paired:
        paired(args.tables)
    elif args.private:
        private()
    elif args.kernels:
        kernels()
    elif args.vertical:
        vertical()
    elif args.joined:
        joined()
    elif args.apart:
        apart(args.tables)
    else:
        accuracy(args.tables, args.rounds)
