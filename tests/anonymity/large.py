"""Large tables in bounded memory; a program of its own, so that its peak is its own. Prints a line a job:
what, and the peak in GiB.
"""

from __future__ import annotations

import resource

import numpy as np
import pandas

import tacit


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def people(rows: int) -> pandas.DataFrame:
    """Nine columns like Adult's, drawn independently: the worst case, since real columns depend on each other
    and combine less.
    """
    rng = np.random.default_rng(0)
    sizes = {
        "sex": 2,
        "age": 74,
        "race": 5,
        "marital": 7,
        "education": 16,
        "country": 41,
        "work": 8,
        "occupation": 14,
        "salary": 2,
    }
    columns = {}
    for name, size in sizes.items():
        p = 1 / np.arange(1, size + 1) ** 1.5  # few frequent values and many rare ones
        columns[name] = pandas.Categorical.from_codes(
            rng.choice(size, rows, p=p / p.sum()).astype(np.int8), [f"{name}{i:02d}" for i in range(size)]
        )
    return pandas.DataFrame(columns)


def main() -> None:
    frame = people(10_000_000)
    quasi = list(frame.columns)
    hierarchies = {
        c: [[w, f"{c}, part {i // 4}", "*"] for i, w in enumerate(frame[c].cat.categories)] for c in quasi
    }
    fly = tacit.anonymize(
        frame, quasi=quasi, k=5, hierarchies=hierarchies, method="datafly", max_suppressed=0.02
    )
    assert len(fly.table) >= 9_800_000
    print(f"datafly, 10 million rows {peak():.2f}", flush=True)
    del fly
    best = tacit.anonymize(
        frame, quasi=quasi, k=5, hierarchies=hierarchies, method="optimal", max_suppressed=0.02
    )
    assert len(best.table) >= 9_800_000
    print(f"optimal, 10 million rows {peak():.2f}", flush=True)
    del best, frame
    rows, columns = 34_000_000, 64
    assert rows * columns > 2**31
    codes = (np.arange(rows) % 3).astype(np.int8)
    one = pandas.Categorical.from_codes(codes, list("abc"))
    wide = pandas.DataFrame({f"c{i:02d}": pandas.Series(one, copy=False) for i in range(columns)}, copy=False)
    made = tacit.anonymize(
        wide,
        quasi=list(wide.columns),
        k=5,
        method="datafly",
        hierarchies={c: tacit.anonymity.Flat() for c in wide},
    )
    assert made.levels == dict.fromkeys(wide.columns, 0)
    assert made.classes == 3
    assert not made.suppressed
    print(f"2^31 cells {peak():.2f}", flush=True)


if __name__ == "__main__":
    main()
