"""Do the exponential tails of protected numbers raise Anonymeter's risks?

    TACIT_DATA=…/data .venv/bin/python benchmarks/tails.py --seeds 6

Each generator learns the same rows twice with the same seed: with the tails that replace values beyond the ends of a
column, and with these values piled up at the ends. Both tables are attacked by Anonymeter as in
benchmarks/publish.py, with as many other rows as control. Figures are differences (with − without) of the risks in
excess of the control, which are not cut off at 0; means with 95% t-intervals over the draws of rows. Lines of
"all" are over all draws of all tables.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from publish import JUDGES, OURS, run, tables

from tacit.synth import protect

HEADS = ("quality", "singling", "linkability", "inference")


def draw(folder: Path, name: str, rows: int, seed: int, who: list[str]) -> str:
    """Write one draw of rows, and what each generator makes of it without and with tails; return the target."""
    frame, target = tables()[name]
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    rows = min(rows, len(frame) // 2)
    train = frame.iloc[:rows].reset_index(drop=True)
    train.to_parquet(folder / "train.parquet")
    frame.iloc[rows : 2 * rows].reset_index(drop=True).to_parquet(folder / "holdout.parquet")
    for k, generator in enumerate(replace(OURS[n], seed=seed) for n in who):  # type: ignore[type-var]
        with mock.patch.object(protect, "_draw_tails", lambda x, cut, column, *rest: (cut, column)):
            generator.fit(train).sample(rows, seed=1 + seed).to_parquet(folder / f"made-{2 * k}.parquet")
        generator.fit(train).sample(rows, seed=1 + seed).to_parquet(folder / f"made-{2 * k + 1}.parquet")
    return target


def main() -> None:
    from scipy.stats import t as student

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument(
        "--only", nargs="+", default=["elections", "heart disease", "breast cancer", "governments"]
    )
    parser.add_argument("--generators", nargs="+", default=["ARGN", "Bayes"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    count = len(args.generators)
    with tempfile.TemporaryDirectory() as place:
        words: list[str] = []
        for table in args.only:
            for seed in range(args.seeds):
                folder = Path(place) / f"{table}-{seed}"
                folder.mkdir()
                words += [str(folder), str(2 * count), draw(folder, table, args.rows, seed, args.generators)]
        judged = run(JUDGES, "judge_work.py", *words, "--signed")["figures"]
    figures = np.array(judged).reshape(len(args.only), args.seeds, count, 2, len(HEADS))
    print(f"| table | generator | draws | {' | '.join(HEADS)} |\n|---|---|---|" + "---|" * len(HEADS))
    for g, who in enumerate(args.generators):
        parts = dict(zip(args.only, figures[:, :, g]))
        for table, pairs in {**parts, "all": figures[:, :, g].reshape(-1, 2, len(HEADS))}.items():
            n, difference = len(pairs), pairs[:, 1] - pairs[:, 0]
            half = student.ppf(0.975, n - 1) * difference.std(axis=0, ddof=1) / np.sqrt(n)
            shown = [f"{m:+.3f} ± {h:.3f}" for m, h in zip(difference.mean(axis=0), half)]
            print(f"| {table} | {who} | {n} | {' | '.join(shown)} |")
        level = figures[:, :, g].mean(axis=(0, 1))
        for k, name in enumerate(("without tails", "with tails")):
            print(f"| all, {name} | {who} | | {' | '.join(f'{v:.3f}' for v in level[k])} |")


if __name__ == "__main__":
    main()
