"""recordlinkage's expectation-conditional-maximization classifier on given candidate pairs; pairs as JSON.

Run by benchmarks/link.py.
"""

from __future__ import annotations

import json
import sys

import pandas
import recordlinkage

work = json.load(sys.stdin)
left, right = (pandas.DataFrame(work[side]).replace("", None) for side in ("left", "right"))
compare = recordlinkage.Compare()
for name, kind in work["fields"].items():
    if kind in ("name", "text"):
        compare.string(name, name, method="jarowinkler", threshold=0.85, label=name)
    else:
        compare.exact(name, name, label=name)
index = pandas.MultiIndex.from_tuples([tuple(pair) for pair in work["pairs"]])
vectors = compare.compute(index, left, right)
classifier = recordlinkage.ECMClassifier(binarize=0.5)
classifier.fit(vectors)
chance = classifier.prob(vectors).sort_values(ascending=False, kind="stable")
taken: tuple[set[int], set[int]] = (set(), set())
found = []
for (i, j), p in chance.items():
    if p >= 0.5 and i not in taken[0] and j not in taken[1]:
        taken[0].add(i)
        taken[1].add(j)
        found.append([int(i), int(j)])
print(json.dumps(found))
