"""anjana on the same table: prints its seconds and the loss of its table, with levels inferred from its values.

Run by benchmarks/anonymize.py.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path

import pandas
from anjana.anonymity import k_anonymity

job = json.loads(sys.argv[1])
root, quasi = Path(job["root"]), job["quasi"]
frame = pandas.read_csv(root / "adult.csv.gz", sep=";", dtype=str, keep_default_na=False)
rows = {c: list(csv.reader((root / f"adult_hierarchy_{c}.csv").open(), delimiter=";")) for c in quasi}
hierarchies = {c: {level: [r[level] for r in rows[c]] for level in range(len(rows[c][0]))} for c in quasi}
frame = frame[quasi]
start = time.perf_counter()
anonymized = k_anonymity(frame.copy(), [], list(quasi), job["k"], 100 * job["limit"], hierarchies)
seconds = time.perf_counter() - start
total = 0.0
for c in quasi:
    share: dict[str, float] = {}
    for level in range(len(rows[c][0])):
        words = [r[level] for r in rows[c]]
        for w in set(words):
            share.setdefault(w, (words.count(w) - 1) / (len(words) - 1))
    total += sum(share[str(v)] for v in anonymized[c])
suppressed = len(frame) - len(anonymized)
print(
    json.dumps(
        {
            "seconds": seconds,
            "loss": (total + suppressed * len(quasi)) / (len(frame) * len(quasi)),
            "suppressed": suppressed,
        }
    )
)
