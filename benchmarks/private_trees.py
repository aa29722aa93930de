"""Boosted trees on secret shares: CPU seconds, megabytes and rounds for 1,000 rows of Adult.

    python benchmarks/private_trees.py                  100 trees of depth 6, owner, client and helper
    python benchmarks/private_trees.py --active         parties that deviate are caught (100 rows)
    python benchmarks/private_trees.py --alone          without a helper (10 rows)

The model is `tacit.boost`'s, trained on the training rows of Adult (13 columns, 8 of them categories). All
parties run in one process on one thread, so CPU seconds are those of all of them together. Beside it: the
time of the plain prediction, and the largest difference from it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from boost import adult

import tacit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--active", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--rows", type=int)
    chosen = parser.parse_args()
    rows = chosen.rows or (10 if chosen.alone else 100 if chosen.active else 1000)
    torch.set_num_threads(1)
    train, test, label = adult()
    model = tacit.boost.train({"all": train}, label=label, trees=chosen.trees, depth=chosen.depth)
    frame = test.head(rows)
    options = {"adversary": "active"} if chosen.active else {"helper": None} if chosen.alone else {}
    tacit.infer(model, frame.head(1), **options)  # imports
    cpu, wall = time.process_time(), time.perf_counter()
    out = tacit.infer(model, frame, **options)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    start = time.process_time()
    plain = model.predict(frame, margin=True)
    plain_cpu = time.process_time() - start
    print(f"{chosen.trees} trees of depth {chosen.depth}, {rows} rows")
    print(f"CPU {cpu:.2f} s, wall {wall:.2f} s, plain {plain_cpu:.4f} s")
    print(f"{out.bytes / 1e6:.1f} MB, of these {out.offline_bytes / 1e6:.1f} offline; {out.rounds} rounds")
    print(f"largest difference from the plain margin {np.abs(out.value.numpy() - plain).max():.1e}")
    print(out.table().to_string(index=False))


if __name__ == "__main__":
    main()
