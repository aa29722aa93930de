"""Job files of `tacit pate`.

[data]         name = "mnist": its rows are divided among the teachers; with `parties` or `by`, those
               parties are the teachers
[model]        name = "cnn": of the teachers, and of the student without a [student_model]
[aggregator]   name = "ConfidentGNMax", threshold = 200, sigma1 = 150, sigma2 = 40
[lessons]      epochs = 50, …                   how a teacher is trained
[student]      method = "vat", steps = 2000, …  how the student is trained
[pate]         teachers = 250, queries = 640, epsilon = 3.0, …   the settings below;
               runtime = "processes" makes the teachers parties
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import models, private
from ..parameters import choice, component, flag, from_fields, from_table, real, whole
from ..private import pate as aggregators
from . import toml
from .private import of_one_holder, without_weights
from .train import keep

TABLES = ("data", "model", "student_model", "aggregator", "lessons", "student", "pate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PateSettings:
    """The arguments of `tacit.pate` that a job file may give in [pate]."""

    teachers: int | None = whole(None, least=1, none="one for each party", doc="teachers")
    queries: int = whole(100, least=1, doc="public rows that are asked about")
    epsilon: float | None = real(None, above=0, none="no budget", doc="queries stop before it is exceeded")
    delta: float = real(1e-5, above=0, below=1, doc="δ, well below one over the number of private rows")
    public: float = real(0.9, above=0, below=1, doc="share of the test set whose rows may be asked about")
    publish: bool = flag(False, doc="also release a data-dependent ε, with noise")
    noise: str = choice("server", ("server", "teachers"), doc="who adds the noise")
    threshold: float = real(0.6, above=0, most=1, doc="share of the teachers without whom there is no sum")
    within: float | None = real(None, above=0, none="for all", doc="seconds that a sum waits for teachers")
    seed: int = whole(0, least=0, doc="seed of the partition, the queries and the training, not of the noise")
    device: str = component("cpu", keep, doc="'cpu', 'cuda', 'cuda:0' or 'auto'")
    runtime: str = choice("inprocess", ("inprocess", "processes"), doc="makes each teacher a party")


def load(path: str | Path, changes: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:
    """Return the data set or federation of a job file, and the arguments of `tacit.pate`."""
    tables, file = toml.load(path, changes, TABLES), Path(path)
    data, table = (toml.table(str(file), name, tables.get(name, {})) for name in ("data", "pate"))
    settings = from_fields(table, PateSettings, f"{file}, pate", "it has no key")
    many = "parties" in data or "by" in data
    job = (
        without_weights({"data": data, "model": tables.get("model", "mlp")}, file)
        if many
        else of_one_holder(tables, file)
    )
    arguments = {
        "model": job.model,
        "data_job": job.resolved()["data"] if many else job.data,
        **{name: getattr(settings, name) for name in table},
    }
    for name, members in (("student_model", models.ALL), ("aggregator", aggregators.ALL)):
        if name in tables:
            arguments[name] = from_table(tables[name], members, f"{file}, {name}")
    for name, cls in (("lessons", private.Lessons), ("student", private.Student)):
        if name in tables:
            arguments[name] = from_fields(tables[name], cls, f"{file}, {name}", "it has no key")
    return job.federations()[0] if many else job.dataset(), arguments
