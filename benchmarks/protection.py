"""What protection costs: generators with and without the floor and dependencies, on the same rows.

    .venv/bin/python benchmarks/protection.py            # Adult, 8,000 training and 8,000 held-out rows
    .venv/bin/python benchmarks/protection.py 2000       # fewer rows

quality is the score of `tacit.synth.evaluate` as SDMetrics defines it; TSTR the AUC of boosted trees trained on
synthetic and tested on held-out rows; C2ST the AUC of boosted trees that tell synthetic from held-out rows (.5 is
best). singling-out are the attacks of `synth/singling.py` by three columns and by one. impossible is the share of
rows with a pair of education and education-num that no real row has.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd
from publish import boosted_auc
from synth import adult

from tacit import synth
from tacit.synth import fidelity, singling
from tacit.synth.views import Views

SETTINGS = {
    "all values": {"floor": 1, "dependencies": False},
    "floor of 10": {"floor": 10, "dependencies": False},
    "floor and dependencies": {},
}
PAIR = ["education", "education-num"]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 8_000
    everything = pd.concat(adult(), ignore_index=True)
    train = everything.iloc[:rows].reset_index(drop=True)
    holdout = everything.iloc[rows : 2 * rows].reset_index(drop=True)
    target = "income" if "income" in train else str(train.columns[-1])
    possible = set(map(tuple, everything[PAIR].to_numpy()))
    heads = ("quality", "TSTR", "C2ST", "3 columns", "1 column", "impossible", "CPU s")
    print(f"{'':38}" + "".join(f"{h:>11}" for h in heads))
    for generator in (synth.Cart(), synth.Bayes(), synth.GaussianCopula()):
        for name, options in SETTINGS.items():
            start = time.process_time()
            made = generator.fit(train, **options).sample(rows, seed=1)  # type: ignore[arg-type]
            seconds = time.process_time() - start
            views = Views(train, made, holdout)
            scores = {s.name: s.value for s in fidelity.measure(views, np.random.default_rng(0))}
            risks = [s.value for s in singling.measure(views, np.random.default_rng(0))]
            positive = str(train[target].unique()[0])
            tstr = boosted_auc(
                made.drop(columns=target),
                made[target] == positive,
                holdout.drop(columns=target),
                holdout[target] == positive,
            )
            half = rows // 2
            both = [
                pd.concat([made[s], holdout[s]], ignore_index=True) for s in (slice(half), slice(half, rows))
            ]
            marks = [pd.Series(np.r_[np.ones(len(b) // 2), np.zeros(len(b) - len(b) // 2)]) for b in both]
            c2st = boosted_auc(both[0], marks[0], both[1], marks[1])
            wrong = np.mean([tuple(r) not in possible for r in made[PAIR].to_numpy()])
            figures = (scores[fidelity.QUALITY.name], tstr, c2st, *risks, wrong, seconds)
            print(
                f"{type(generator).__name__ + ', ' + name:38}" + "".join(f"{f:11.3f}" for f in figures),
                flush=True,
            )


if __name__ == "__main__":
    main()
