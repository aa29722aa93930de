"""Adversarial random forests by arfpy on the same rows: reads and writes Parquet, prints its CPU seconds as JSON.

Run by benchmarks/publish.py, in an environment of its own. synthcity's ARF plugin calls the same package. arfpy
takes no missing values: a missing category becomes one of its own, a missing number the median, with a column that
says so.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pandas as pd
from arfpy import arf

source, target, rows = sys.argv[1:4]
frame = pd.read_parquet(source)
gaps = [c for c in frame if frame[c].isna().any()]
numbers = [c for c in frame if pd.api.types.is_numeric_dtype(frame[c])]
filled = pd.DataFrame(
    {
        c: frame[c].fillna(frame[c].median()).astype(float) if c in numbers else frame[c].fillna("")
        for c in frame
    }
).astype({c: "category" for c in frame if c not in numbers})
for c in gaps:
    if c in numbers:
        filled[f"{c} missing"] = pd.Categorical(np.where(frame[c].isna(), "yes", "no"))
np.random.seed(0)
start = time.process_time()
forest = arf.arf(x=filled, random_state=0, verbose=False)
forest.forde()
made = forest.forge(n=int(rows))
seconds = time.process_time() - start
for c in gaps:
    is_gap = made[f"{c} missing"] == "yes" if c in numbers else made[c].astype(str) == ""
    made[c] = made[c].astype(float if c in numbers else object).mask(is_gap)
made = made[list(frame.columns)].astype({c: object for c in frame if c not in numbers})
made.to_parquet(target)
print(json.dumps({"seconds": seconds}))
