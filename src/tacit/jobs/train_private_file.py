"""Job files of `tacit train-private`.

    [data]     name = "digits", or path = "patients.csv" and label = "ill"
    [model]    name = "mlp", hidden = [64]
    [private]  epsilon = 3.0, delta = 1e-5, epochs = 20, …      the arguments of `tacit.train_private`

The allowed keys are read off the signatures of the functions. TOML has no None: where None is allowed, write
"none".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import models
from ..config import job, toml
from ..errors import BadJob, BadParameter
from ..parameters import from_table
from ..runs import is_python_job

TABLES = ("data", "model", "private")
OURS = ("dataset", "model", "out", "data_job", "watch")


@dataclass(frozen=True)
class PrivateJob:
    """A checked job file."""

    data: dict[str, Any]
    model: Any
    settings: dict[str, Any]
    file: Path

    def dataset(self) -> Any:
        make, known = job.source(self.data, str(self.file))
        try:
            return partial(make, **{k: v for k, v in self.data.items() if k in known})()
        except BadParameter as error:
            raise BadJob(f"{self.file}, data: {error}") from None


def load(path: str | Path, changes: Sequence[str] = (), data_dir: str | None = None) -> PrivateJob:
    """Read and check a job file; `changes` like "private.epochs=5" are applied first."""
    file = Path(path)
    if not file.is_file():
        raise BadJob(f"there is no job file {file}. Check the path.")
    tables = toml.read(file)
    if is_python_job(tables):
        raise BadJob(
            f"{file} belongs to a run that was started from Python with its own data. Run that program "
            "again, or write a job file whose [data] has a `name` or a `path`."
        )
    for change in changes:
        toml.change(tables, change)
    where = str(file)
    toml.only_known(where, tables, TABLES)
    for name in ("data", "private"):
        if name not in tables:
            raise BadJob(
                f'{where}: there is no [{name}] table. A job for train-private has [data] name = "digits" '
                "and [private] epsilon = 3.0."
            )
    data = dict(toml.table(where, "data", tables["data"]))
    if data_dir is not None:
        data["data_dir"] = str(Path(data_dir).expanduser().resolve())
    for key in ("path", "data_dir"):  # relative to the job file
        if isinstance(data.get(key), str):
            data[key] = str((file.parent / Path(data[key]).expanduser()).resolve())
    _, known = job.source(data, where)
    keys = {**known, "name": str}
    toml.only_known(f"{where}, data", data, keys)
    data = {k: toml.held(f"{where}, data", k, v, keys[k]) for k, v in data.items()}
    from .train_private import train_private

    hints = {k: v for k, v in toml.hints(train_private).items() if k not in OURS}
    table = toml.table(where, "private", tables["private"])
    toml.only_known(f"{where}, private", table, hints)
    settings = {k: toml.held(f"{where}, private", k, v, hints[k]) for k, v in table.items()}
    return PrivateJob(
        data, from_table(tables.get("model", "mlp"), models.ALL, f"{where}, model"), settings, file
    )
