"""Linked tables at a million rows: seconds of processor time to fit and to sample, and what is kept.

    PYTHONPATH=src python benchmarks/linked.py [--entities 180000]

Three tables: customers, their accounts, and the transactions of each account over time. SDV's HMA, the usual
synthesizer of linked tables, cannot be installed beside tacit (Business Source License); its users report
about three days for tables of this size.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import pandas as pd

from tacit.synth import ForeignKey, LinkedTables, PrimaryKey, evaluate_linked

KEYS = [
    PrimaryKey("customers", "customer"),
    PrimaryKey("accounts", "account"),
    ForeignKey("accounts", "customer", "customers"),
    ForeignKey("transactions", "account", "accounts"),
]


def make_tables(n: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    """About 1.5 accounts per customer and 2.8 transactions per account, with dependence across tables."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 95, n)
    customers = pd.DataFrame(
        {
            "customer": np.arange(n),
            "age": age,
            "segment": rng.choice(["retail", "private", "business"], n, p=[0.7, 0.2, 0.1]),
            "region": rng.integers(0, 20, n).astype(str),
            "income": np.round(np.exp(rng.normal(10 + age / 100, 0.5)), 2),
        }
    )
    owner = np.repeat(np.arange(n), 1 + rng.poisson(0.5, n))
    m = len(owner)
    accounts = pd.DataFrame(
        {
            "account": np.arange(m) + 10**6,
            "customer": owner,
            "kind": rng.choice(["current", "savings", "card"], m),
            "opened": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, m), "D"),
        }
    )
    number = rng.poisson(np.where(accounts.kind == "savings", 1.5, 3.5))
    at = np.repeat(np.arange(m), number)
    level = np.log(customers.income.to_numpy())[owner[at]] - 6
    start = accounts.opened.to_numpy()[at]
    transactions = pd.DataFrame(
        {
            "account": accounts.account.to_numpy()[at],
            "when": start + (rng.exponential(400, len(at)) * 86_400).astype("timedelta64[s]"),
            "amount": np.round(np.exp(level + rng.normal(0, 0.8, len(at))), 2),
            "channel": rng.choice(["web", "shop", "atm", "transfer"], len(at), p=[0.4, 0.3, 0.2, 0.1]),
            "refused": rng.random(len(at)) < 0.03,
        }
    )
    return {"customers": customers, "accounts": accounts, "transactions": transactions}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entities", type=int, default=180_000)
    real = make_tables(parser.parse_args().entities)
    rows = sum(map(len, real.values()))
    started, clock = time.process_time(), time.monotonic()
    model = LinkedTables().fit(real, KEYS, {"transactions": "when"})
    fitted = time.process_time()
    print(f"{rows:,} rows   fit {fitted - started:.0f} CPU s", flush=True)
    synthetic = model.sample(len(real["customers"]), seed=1)
    drawn = time.process_time()
    total = sum(map(len, synthetic.values()))
    print(f"{total:,} rows   sample {drawn - fitted:.0f} CPU s")
    print(f"together {time.monotonic() - clock:.0f} s on the clock, {drawn - started:.0f} CPU s")
    print(f"memory at the peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")
    print(evaluate_linked(real, synthetic, KEYS, {"transactions": "when"}))


if __name__ == "__main__":
    main()
