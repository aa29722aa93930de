"""The conformance suite of generators, run on all of `synth.ALL`; run it on yours, too.

from tacit.synth.conformance import check_generator
check_generator(MyGenerator(seed=0))
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..parameters import check, from_table, to_table
from .columns import boolean, categorical, continuous, identifier, integer, ordinal, seconds, timestamp
from .constraints import Combinations, Constraint, Ordered, Range
from .generator import Generator, load
from .table import Table

ROWS = 397  # a prime, so that no batch or pack size divides it and no tensor has this length by chance
CITIES = {"Bern": "CH", "Basel": "CH", "Lyon": "FR", "Lille": "FR"}


def example(rows: int = ROWS, seed: int = 0) -> tuple[pd.DataFrame, Table]:
    """Return a table with every kind of column, constraints, and an identifier in every row.

    It has missing values, a column with a spike at one value, and a constant column.
    """
    rng = np.random.default_rng(seed)
    city = rng.choice(list(CITIES), rows)
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D")
    income = np.where(rng.random(rows) < 0.3, 0.0, rng.lognormal(10, 1, rows).round(2).clip(0, 1e6))
    frame = pd.DataFrame(
        {
            "name": [f"secret-{i:05d}-{rng.integers(10**9)}" for i in range(rows)],
            "age": rng.integers(18, 91, rows),
            "sex": rng.choice(["F", "M"], rows),
            "city": city,
            "country": [CITIES[c] for c in city],
            "grade": pd.Categorical(
                rng.choice(["low", "mid", "high"], rows, p=[0.5, 0.3, 0.2]),
                categories=["low", "mid", "high"],
                ordered=True,
            ),
            "income": income,
            "score": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
            "job": pd.Series(
                rng.choice(["cook", "nurse", ""], rows, p=[0.5, 0.4, 0.1]), dtype=object
            ).replace("", None),
            "smoker": rng.random(rows) < 0.2,
            "admitted": start,
            "discharged": start + pd.to_timedelta(rng.integers(0, 700, rows), unit="D"),
            "unit": "A",
        }
    )
    constraints: list[Constraint] = [
        Ordered("admitted", "discharged"),
        Combinations("city", "country", allowed=list(CITIES.items())),
        Range("age", 18, 90),
    ]
    table = Table.infer(
        frame,
        constraints=constraints,
        columns={
            "name": identifier(),
            "age": integer(0, 120),
            "sex": categorical(["F", "M"]),
            "city": categorical(list(CITIES)),
            "country": categorical(["CH", "FR"]),
            "grade": ordinal(["low", "mid", "high"]),
            "income": continuous(0, 1e6, step=0.01),
            "score": continuous(-6, 6, missing=True),
            "job": categorical(["cook", "nurse"], missing=True),
            "smoker": boolean(),
            "unit": categorical(["A"]),
            "admitted": timestamp("2019-01-01", "2025-12-31", days=True),
            "discharged": timestamp("2019-01-01", "2025-12-31", days=True),
        },
    )
    return frame, table


def check_generator(generator: Generator) -> None:
    """Raise AssertionError, naming the defect, unless all of these hold.

    1. The generator is a frozen dataclass of declared parameters with `seed` (`insecure_seed` if it is
       private), and is restored from its own table of parameters.
    2. `fit` returns the generator. Fitting and sampling leave the process's random states unchanged and
       follow the seeds (fitting a private generator is random).
    3. Rows have the table's columns in order, its dtypes and its domains; missing values only where allowed;
       new identifiers.
    4. Constraints and conditions hold in every row.
    5. The chunks are the sample, and a saved generator samples the same rows.
    6. The saved file contains no training row, no identifier, and no tensor as long as the table.
    7. The ledger states what was spent, or that the generator is not private.
    """
    name = type(generator).__name__
    seed = "insecure_seed" if generator.private else "seed"
    _require(
        dataclasses.is_dataclass(generator) and seed in {f.name for f in dataclasses.fields(generator)},
        f"{name} is not a dataclass with a field {seed!r}.",
    )
    check(generator)
    _require(
        from_table(to_table(generator), {name: type(generator)}, "check") == generator,
        f"{name} is not restored from its own table of parameters.",
    )
    frame, table = example()
    if generator.private:  # private generators do not support combinations
        table = dataclasses.replace(
            table, constraints=tuple(c for c in table.constraints if not isinstance(c, Combinations))
        )
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    _require(generator.fit(frame, table) is generator, f"{name}.fit does not return the generator itself.")
    rows = generator.sample(500, seed=1)
    after = torch.random.get_rng_state(), np.random.get_state()[1]  # type: ignore[index]
    _require(
        torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1]),
        f"{name} changes the process's random state.",
    )
    if not generator.private:
        _require(
            generator.sample(50, seed=1).equals(generator.fit(frame, table).sample(50, seed=1)),
            f"{name}: fitting again with the same seed gives different rows.",
        )
    _require(
        rows.equals(generator.sample(500, seed=1)),
        f"{name}: sampling again with the same seed gives different rows.",
    )
    _require(not rows.equals(generator.sample(500, seed=2)), f"{name}: another seed gives the same rows.")
    _check_columns(name, rows, frame, generator.table, generator.private)
    _check_constraints(name, rows, generator.table)
    women = generator.sample(40, conditions={"sex": "F", "age": (30, 60)}, seed=3)
    _require(
        (women["sex"] == "F").all() and women["age"].between(30, 60).all(),
        f"{name}: rows that do not match the conditions.",
    )
    _check_constraints(name, women, generator.table)
    _check_file(name, generator, frame)
    _require(
        bool(generator.ledger.spent) if generator.private else bool(generator.ledger.stamps),
        f"{name}: the ledger does not mention privacy.",
    )


def _check_columns(
    name: str, rows: pd.DataFrame, frame: pd.DataFrame, table: Table, private: bool = False
) -> None:
    _require(
        list(rows.columns) == list(frame.columns),
        f"{name}: columns {list(rows.columns)} instead of {list(frame.columns)}.",
    )
    for c in table.columns:
        ours, real = rows[c.name].dtype, frame[c.name].dtype
        # which of the two depends on the rows, so a private generator uses the declaration
        is_text = private and {str(ours), str(real)} <= {"str", "object"}
        _require(
            c.kind == "id" or ours == real or is_text,
            f"{name}: {c.name} is {ours}, in the table it is {real}.",
        )
    table.to_numbers(rows)  # raises for values outside a domain
    _require(not set(rows["name"]) & set(frame["name"]), f"{name}: a real identifier is sampled.")
    _require(rows["name"].is_unique, f"{name}: an identifier is sampled twice.")


def _check_constraints(name: str, rows: pd.DataFrame, table: Table) -> None:
    _require((rows["admitted"] <= rows["discharged"]).all(), f"{name}: admitted ≤ discharged is violated.")
    combined = any(isinstance(c, Combinations) for c in table.constraints)
    _require(
        not combined or all(CITIES[city] == country for city, country in zip(rows["city"], rows["country"])),
        f"{name}: a combination is not allowed.",
    )
    _require(rows["age"].between(18, 90).all(), f"{name}: an age outside its range.")


def _check_file(name: str, generator: Generator, frame: pd.DataFrame) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = generator.save(Path(folder) / "generator")
        again, data = load(path, also=[type(generator)]), path.read_bytes()
    _require(
        again.sample(300, seed=5).equals(generator.sample(300, seed=5)),
        f"{name}: after saving and loading, it gives different rows.",
    )
    _require(
        again == generator and again.table == generator.table and again.ledger == generator.ledger,
        f"{name}: parameters, table or ledger change by saving and loading.",
    )
    secrets = [what for what, pattern in secrets_of(frame) if pattern in data]
    _require(not secrets, f"{name}: its file contains {', '.join(secrets[:5])}.")
    long = [key for key, t in generator.state.tensors.items() if len(frame) in t.shape]
    _require(not long, f"{name}: {', '.join(long)} is as long as the training table.")


def secrets_of(frame: pd.DataFrame) -> list[tuple[str, bytes]]:
    """Return byte patterns that no saved generator may contain.

    Identifiers, runs of a column in row order, and whole rows of numbers.
    """
    patterns: list[tuple[str, bytes]] = [(f"the identifier {v}", str(v).encode()) for v in frame["name"]]
    kinds = {
        "age": (np.float64, np.float32, np.int64, np.int32, np.int16, np.uint8),
        "income": (np.float64, np.float32),
        "score": (np.float64, np.float32),
    }
    for column, types in kinds.items():
        x = frame[column].to_numpy(dtype=np.float64)
        for kind in types:
            runs = [(i, np.nan_to_num(x[i : i + 8]).astype(kind)) for i in range(0, len(x) - 8, 8)]
            # eight rows in order with at least five distinct values: such a run does not occur by chance
            patterns += [
                (f"{column} of rows {i} to {i + 7}", run.tobytes())
                for i, run in runs
                if len(np.unique(run)) >= 5
            ]
    numbers = frame[["income", "score"]].to_numpy(dtype=np.float64)
    patterns += [
        (f"row {i}", row.tobytes()) for i, row in enumerate(numbers) if row[0] > 0 and not np.isnan(row[1])
    ]
    # rare incomes and scores are drawn anew before anything is learned; ordered times are not
    times = frame[["admitted", "discharged"]].apply(lambda c: seconds(c, str(c.name)))
    return patterns + [(f"row {i}", row.tobytes()) for i, row in enumerate(times.to_numpy(np.float64))]


def _require(condition: Any, message: str) -> None:
    if not bool(condition):
        raise AssertionError(message)
