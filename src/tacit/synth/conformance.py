"""What every generator must hold to. A member of `synth.ALL` is checked by our own tests; yours can be
checked too.

from tacit.synth.conformance import check_generator
check_generator(MyGenerator(seed=0))
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..parameters import check, from_table, to_table
from .columns import boolean, categorical, continuous, identifier, integer, moment, ordinal
from .constraints import Combinations, Constraint, Ordered, Range
from .generator import Fitted, Generator
from .saved import load
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

ROWS = 397  # a prime, so that no batch, pack or cell divides it, and no tensor has this length by chance
CITIES = {"Bern": "CH", "Basel": "CH", "Lyon": "FR", "Lille": "FR"}


def example(rows: int = ROWS, seed: int = 0) -> tuple[DataFrame, Table]:
    """A table with every kind of column, missing values, a spike, a constant column, constraints, and a
    secret in every row.
    """
    import pandas as pd

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
            "admitted": moment("2019-01-01", "2025-12-31", days=True),
            "discharged": moment("2019-01-01", "2025-12-31", days=True),
        },
    )
    return frame, table


def check_generator(generator: Generator) -> None:
    """Raise AssertionError, saying what is wrong, unless

    1. it is a frozen dataclass of declared parameters, with `seed`, and comes back from its own table of parameters;
    2. fitting and drawing leave the process's random states alone, and follow the seeds (a private one is random in fitting);
    3. rows have the table's columns in order, its dtypes, its domains; missing values only where they may be; new identifiers;
    4. constraints and conditions hold in every row;
    5. chunks are the sample, and a saved generator draws what it drew;
    6. what it saves holds no training row, no identifier, and nothing that is as long as the table;
    7. its ledger says what was spent, or that it is not private.
    """
    name = type(generator).__name__
    _demand(
        dataclasses.is_dataclass(generator) and "seed" in {f.name for f in dataclasses.fields(generator)},
        f"{name} is no dataclass with a seed.",
    )
    check(generator)
    _demand(
        from_table(to_table(generator), {name: type(generator)}, "check") == generator,
        f"{name} does not come back from its own table.",
    )
    frame, table = example()
    if generator.private:  # they model declared columns one by one
        table = dataclasses.replace(
            table, constraints=tuple(c for c in table.constraints if not isinstance(c, Combinations))
        )
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    fitted = generator.fit(frame, table)
    rows = fitted.sample(500, seed=1)
    after = torch.random.get_rng_state(), np.random.get_state()[1]  # type: ignore[index]
    _demand(
        torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1]),
        f"{name} touches the process's random state.",
    )
    if not generator.private:
        _demand(
            generator.fit(frame, table).sample(50, seed=1).equals(fitted.sample(50, seed=1)),
            f"{name}: the same seed gives other rows.",
        )
    _demand(rows.equals(fitted.sample(500, seed=1)), f"{name}: the same seed draws other rows.")
    _demand(not rows.equals(fitted.sample(500, seed=2)), f"{name}: another seed draws the same rows.")
    _fits(name, rows, frame, fitted.table, generator.private)
    _holds(name, rows, fitted.table)
    women = fitted.sample(40, given={"sex": "F", "age": (30, 60)}, seed=3)
    _demand(
        (women["sex"] == "F").all() and women["age"].between(30, 60).all(),
        f"{name}: rows that were not asked for.",
    )
    _holds(name, women, fitted.table)
    _saved(name, fitted, frame)
    _demand(
        bool(fitted.ledger.spent) if generator.private else bool(fitted.ledger.stamps),
        f"{name}: its ledger is silent about privacy.",
    )


def _fits(name: str, rows: DataFrame, frame: DataFrame, table: Table, private: bool = False) -> None:
    _demand(
        list(rows.columns) == list(frame.columns),
        f"{name}: columns {list(rows.columns)} instead of {list(frame.columns)}.",
    )
    for c in table.columns:
        made, real = rows[c.name].dtype, frame[c.name].dtype
        text = private and {str(made), str(real)} <= {
            "str",
            "object",
        }  # which of the two is read off the rows, so a private one goes by what was declared
        _demand(c.kind == "id" or made == real or text, f"{name}: {c.name} is {made}, the table's is {real}.")
    table.numbers(rows)  # refuses what is outside a domain, or missing where it may not be
    _demand(not set(rows["name"]) & set(frame["name"]), f"{name}: a real identifier comes out.")
    _demand(rows["name"].is_unique, f"{name}: an identifier comes twice.")


def _holds(name: str, rows: DataFrame, table: Table) -> None:
    _demand((rows["admitted"] <= rows["discharged"]).all(), f"{name}: admitted ≤ discharged is broken.")
    combined = any(isinstance(c, Combinations) for c in table.constraints)
    _demand(
        not combined or all(CITIES[city] == country for city, country in zip(rows["city"], rows["country"])),
        f"{name}: a combination that is not allowed.",
    )
    _demand(rows["age"].between(18, 90).all(), f"{name}: an age outside its range.")


def _saved(name: str, fitted: Fitted, frame: DataFrame) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = fitted.save(Path(folder) / "generator")
        again, data = load(path, also=[type(fitted.generator)]), path.read_bytes()
    _demand(
        again.sample(300, seed=5).equals(fitted.sample(300, seed=5)),
        f"{name}: saved and loaded, it draws other rows.",
    )
    _demand(
        again.generator == fitted.generator and again.table == fitted.table and again.ledger == fitted.ledger,
        f"{name}: it does not come back as it was.",
    )
    found = [what for what, pattern in secrets_of(frame) if pattern in data]
    _demand(not found, f"{name}: its file holds {', '.join(found[:5])}.")
    long = [key for key, t in fitted.learned.tensors.items() if len(frame) in t.shape]
    _demand(not long, f"{name}: {', '.join(long)} is as long as the training table.")


def secrets_of(frame: DataFrame) -> list[tuple[str, bytes]]:
    """Byte patterns that no saved generator may hold: identifiers, runs of a column in the order of its rows,
    whole rows of numbers.
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
            # eight rows in order, five of them different at least: no such run is there by chance, as one of
            # zeros would be
            patterns += [
                (f"{column} of rows {i} to {i + 7}", run.tobytes())
                for i, run in runs
                if len(np.unique(run)) >= 5
            ]
    numbers = frame[["income", "score"]].to_numpy(dtype=np.float64)
    patterns += [
        (f"row {i}", row.tobytes()) for i, row in enumerate(numbers) if row[0] > 0 and not np.isnan(row[1])
    ]
    return patterns


def _demand(fine: Any, words: str) -> None:
    if not bool(fine):
        raise AssertionError(words)
