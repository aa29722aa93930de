"""smartnoise's MST on the same rows: reads and writes Parquet, prints its CPU seconds as JSON.

Run by benchmarks/publish.py, in an environment of its own. The bounds of numbers are given, as they are to our MST: its own
estimate of them fails on a few hundred rows ("could not find bounds").
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import pandas as pd
from snsynth import Synthesizer
from snsynth.transform import BinTransformer

source, target, rows = sys.argv[1:4]
warnings.simplefilter("ignore")
frame = pd.read_parquet(source)
BINS = 20  # of a number; one with fewer values keeps them
numbers = [c for c in frame if pd.api.types.is_numeric_dtype(frame[c]) and frame[c].nunique() > BINS]
bounds = {
    c: BinTransformer(
        bins=BINS,
        lower=float(frame[c].min()),
        upper=float(frame[c].max()),
        nullable=bool(frame[c].isna().any()),
    )
    for c in numbers
}
start = time.process_time()
model = Synthesizer.create("mst", epsilon=3.0, verbose=False)
model.fit(
    frame,
    transformer=bounds,
    continuous_columns=numbers,
    categorical_columns=[c for c in frame if c not in numbers],
    nullable=bool(frame.isna().any().any()),
)
made = model.sample(int(rows))
seconds = time.process_time() - start
made[list(frame.columns)].to_parquet(target)
print(json.dumps({"seconds": seconds}))
