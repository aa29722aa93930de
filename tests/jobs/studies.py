"""A small study, as the tests of studies have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.jobs.study import file as study_file
from tacit.jobs.study import run

SMALL = """
title = "A small study"
figure = "{figure}"
{top}

[data]
name = "gaussian_blobs"
parties = 4
held_fraction = 0.2

[model]
name = "logistic"

[train]
rounds = {rounds}
seeds = 2

[quick.train]
rounds = 1
seeds = 1

[[tables]]
name = "t"
columns = [{{ label = "IID", data = {{ skew = {{ name = "IID" }} }} }}, {{ label = "Dir", data = {{ skew = {{ name = "Dirichlet", alpha = 0.5 }} }} }}]

[[tables.rows]]
label = "FedAvg"
algorithm = {{ name = "FedAvg", lr = 0.3 }}

[[tables.rows]]
label = "FedProx {{mu}}"
algorithm = {{ name = "FedProx", lr = 0.3 }}
grid = {{ "algorithm.mu" = [0.1, 1.0] }}

[[tables.rows]]
label = "SCAFFOLD"
algorithm = {{ name = "Scaffold" }}
tune = {{ "algorithm.lr" = [0.01, 0.3] }}

[[tables.rows]]
label = "central"
baseline = "central"
algorithm = {{ name = "FedAvg", lr = 0.3 }}
columns = ["IID"]

[tables.published.FedAvg]
"IID" = 0.5
{more}
"""


def small(path: Path, figure: str = "best", rounds: int = 4, top: str = "", more: str = "") -> str:
    file = path / "small.toml"
    file.write_text(SMALL.format(figure=figure, rounds=rounds, top=top, more=more))
    return str(file)


def cells(store: run.Store) -> dict[str, Any]:
    return {line["id"]: line for line in store.lines() if line["kind"] == "cell"}


def written(cell: study_file.Cell, test: list[Any]) -> dict[str, Any]:
    """What is written of a run whose accuracies were these."""
    return {
        "kind": "cell",
        "id": cell.id,
        "table": cell.table,
        "row": cell.row,
        "column": cell.column,
        "seed": cell.seed,
        "choice": cell.choice,
        "rounds": list(range(1, len(test) + 1)),
        "test": test,
        "held": test,
        "samples": 1,
        "parties": 4,
        "sizes": [1, 2],
        "diverged": "nan" in test,
    }
