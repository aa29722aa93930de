"""MOSTLY AI's TabularARGN on the same rows: reads and writes Parquet, prints its CPU seconds as JSON.

Run by benchmarks/publish.py, in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time

import pandas as pd
import torch
from mostlyai.engine import TabularARGN

source, target, rows = sys.argv[1:4]
torch.set_num_threads(1)
frame = pd.read_parquet(source)
start = time.process_time()
model = TabularARGN(random_state=0, device="cpu", verbose=0)
model.fit(frame)
made = model.sample(int(rows))
seconds = time.process_time() - start
made[list(frame.columns)].to_parquet(target)
print(json.dumps({"seconds": seconds}))
