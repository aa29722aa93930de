"""Linked tables for tests: a shop with four tables, real panels split in two, and a check of all keys."""

from __future__ import annotations

import numpy as np
import pandas as pd
from lifelines.datasets import load_recur

from tacit.synth import ForeignKey, PrimaryKey

SHOP_KEYS = [
    PrimaryKey("customers", "customer"),
    PrimaryKey("products", "product"),
    PrimaryKey("orders", "order"),
    PrimaryKey("lines", "order", "product"),
    ForeignKey("orders", "customer", "customers"),
    ForeignKey("lines", "order", "orders"),
    ForeignKey("lines", "product", "products"),
]
RECUR_KEYS = [PrimaryKey("patients", "ID"), ForeignKey("events", "ID", "patients")]


def shop(n: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Customers order products: an order is not before its customer joined, its amount is that of its lines.

    Customers of the region "north" order twice as often; expensive products are ordered by old customers.
    """
    rng = np.random.default_rng(seed)
    customers = pd.DataFrame(
        {
            "customer": [f"C{i:05d}" for i in rng.permutation(n)],
            "region": rng.choice(["north", "south"], n),
            "age": rng.integers(18, 90, n),
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, n), "D"),
        }
    )
    products = pd.DataFrame({"product": np.arange(60) + 500, "price": np.round(rng.gamma(2, 20, 60) + 1, 2)})
    number = rng.poisson(np.where(customers.region == "north", 4, 2))
    owner = np.repeat(np.arange(n), number)
    date = customers.joined.to_numpy()[owner] + (rng.exponential(60, len(owner)) // 1).astype(
        "timedelta64[D]"
    )
    orders = pd.DataFrame(
        {"order": np.arange(len(owner)) + 1, "customer": customers.customer.to_numpy()[owner], "date": date}
    )
    dear = np.argsort(products.price.to_numpy())
    lines = []
    for i, o in enumerate(owner):
        half = dear[30:] if rng.random() < (0.85 if customers.age[o] > 55 else 0.15) else dear[:30]
        lines += [
            (i + 1, 500 + p, q) for p, q in zip(rng.permutation(half)[: 1 + i % 3], rng.integers(1, 5, 3))
        ]
    line_table = pd.DataFrame(lines, columns=["order", "product", "quantity"])
    line_table["paid"] = np.round(
        line_table.quantity * products.price.to_numpy()[line_table["product"] - 500], 2
    )
    orders["amount"] = orders.order.map(line_table.groupby("order").paid.sum()).round(2)
    return {"customers": customers, "products": products, "orders": orders, "lines": line_table}


def recurrences() -> dict[str, pd.DataFrame]:
    """Recurrent events of 400 patients (lifelines), split into patients and events."""
    table = load_recur()
    patients = table[["ID", "AGE", "TREAT"]].drop_duplicates("ID").reset_index(drop=True)
    return {"patients": patients, "events": table[["ID", "TIME0", "TIME1", "EVENT"]]}


def find_broken_keys(frames: dict[str, pd.DataFrame], keys: list) -> list[str]:
    """Every key that does not hold, by plain Python sets."""
    problems = []
    primary = {k.table: k.columns for k in keys if isinstance(k, PrimaryKey)}

    def rows(table: str, columns: tuple[str, ...]) -> list[tuple]:
        return list(frames[table][list(columns)].itertuples(index=False, name=None))

    for k in keys:
        own = rows(k.table, k.columns)
        if isinstance(k, PrimaryKey):
            if len(set(own)) < len(own):
                problems.append(f"{k} repeats")
        elif not {r for r in own if not any(v != v or v is None for v in r)} <= set(
            rows(k.references, primary[k.references])
        ):
            problems.append(f"{k} has orphans")
    return problems
