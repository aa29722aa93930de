"""SDV's Gaussian copula on the same rows: reads and writes Parquet, prints its CPU seconds as JSON.

Run by benchmarks/publish.py if `.venv-peers/sdv` exists. SDV is under the Business Source License, so install.sh does not
install it.
"""

from __future__ import annotations

import json
import sys
import time

import pandas as pd
from sdv.metadata import Metadata
from sdv.single_table import GaussianCopulaSynthesizer

source, target, rows = sys.argv[1:4]
frame = pd.read_parquet(source)
start = time.process_time()
model = GaussianCopulaSynthesizer(Metadata.detect_from_dataframe(frame))
model.fit(frame)
made = model.sample(int(rows))
seconds = time.process_time() - start
made[list(frame.columns)].to_parquet(target)
print(json.dumps({"seconds": seconds}))
