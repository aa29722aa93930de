"""smartnoise-synth's MST on the same rows: reads and writes CSV, prints its CPU seconds as JSON.

Run by benchmarks/private_synth.py --wide, in an environment of its own.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import pandas as pd
from snsynth.mst.mst import MSTSynthesizer

source, target = sys.argv[1:3]
frame = pd.read_csv(source)
start = time.process_time()
model = MSTSynthesizer(epsilon=1.0, delta=1e-9)
model.fit(frame, categorical_columns=list(frame.columns), preprocessor_eps=0.0)
made = model.sample(len(frame))
seconds = time.process_time() - start
pd.DataFrame(made, columns=list(frame.columns)).to_csv(target, index=False)
megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "megabytes": megabytes}))
