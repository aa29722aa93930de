"""100,000 simulated parties in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, time
import numpy as np, torch
import tacit
from tacit import algorithms, data

def peak():  # MB; ru_maxrss counts kB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

rng = np.random.default_rng(0)
x = rng.standard_normal((2_000_000, 20), dtype=np.float32)
y = (x @ rng.normal(size=(20, 10)).astype(np.float32)).argmax(1)
test = x[:1000].copy()
fed = data.from_arrays(x, y, classes=10, test=(test, y[:1000])).split(100_000, skew=data.IID(), seed=0)
del x, y
ready, begun = peak(), time.perf_counter()
out = {}
for name in ("FedAvg", "Scaffold"):
    result = tacit.train(fed, model="logistic", algorithm=algorithms.ALL[name](lr=0.1), rounds=10, per_round=1000, batch_size=10, evaluate_every=1)
    out[name] = {"accuracy": result.metrics["accuracy"], "sampled": [r["sampled"] for r in result.history], "peak": peak(),
                 "each": [len(r["parties"]["accuracy"]) if "parties" in r else 0 for r in result.history]}
print(json.dumps({"ready": ready, "seconds": time.perf_counter() - begun, **out}))
"""


@pytest.mark.slow
def test_a_hundred_thousand_parties_of_twenty_rows_run_in_bounded_memory() -> None:
    """1,000 a round, ten rounds, of an algorithm without and of one with client state. The rows themselves
    are 160 MB.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    print(figures)
    for name in ("FedAvg", "Scaffold"):
        assert figures[name]["sampled"] == [1000] * 10
        assert figures[name]["each"] == [0] * 9 + [100_000]
        assert figures[name]["accuracy"] > 0.3
        assert figures[name]["peak"] < 2500, figures  # MB, torch included
