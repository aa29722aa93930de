"""A task, an algorithm and a client of a job, built by a process that was sent the job as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import algorithms, models
from ...algorithms.types import Algorithm
from ...config.train import algorithm_from_table
from ...data.federation import Rows
from ...engine.losses import Objective
from ...engine.own_metrics import OwnMetrics
from ...engine.task import Task
from ...parameters import from_table
from ...runtimes.nursery import find_program
from . import guards
from .local import Member
from .party_rows import load_rows
from .plan import Plan

METRIC = "metric "  # before the name of a metric, in what `code_spec` returns


def model_spec(model: Any, who: str) -> str:
    """Return how a process on this machine imports a model that is code; empty for one of tacit's own."""
    from ...runtimes.processes import specify_program

    return (
        ""
        if isinstance(model, str) or type(model) in models.ALL.values()
        else json.dumps(specify_program(model, f"{who}, as its model,"))
    )


def code_spec(p: Plan, who: str) -> str:
    """Return how a process on this machine imports the code of a plan's options; empty if there is none."""
    from ...runtimes.processes import specify_code

    own: dict[str, Any] = (
        {} if type(p.algorithm) in algorithms.ALL.values() else {"algorithm": type(p.algorithm)}
    )
    if p.objective.is_own:
        own["loss"] = p.loss
    for name, metric in {} if p.party_rules.own is None else p.party_rules.own.metrics.items():
        own[f"{METRIC}{name}"] = metric
    specs = {name: specify_code(thing, f"the {name} of {who}") for name, thing in own.items()}
    return json.dumps(specs) if specs else ""


def read_code(text: str) -> dict[str, Any]:
    """Import the code of a plan's options, by what `code_spec` returned."""
    found = {name: find_program(spec) for name, spec in json.loads(text).items()} if text else {}
    metrics = {name.removeprefix(METRIC): found.pop(name) for name in list(found) if name.startswith(METRIC)}
    return {**found, **({"metrics": OwnMetrics(metrics)} if metrics else {})}


def task_from_job(job: Mapping[str, Any], rows: Rows) -> Task:
    """Build the task of a job on these rows.

    `spec` is what `model_spec` returned: code is taken from this machine's own configuration, never from a
    server.
    """
    model = (
        find_program(json.loads(job["spec"]))
        if job["spec"]
        else from_table(job["model"], models.ALL, "the job's model")
    )
    outputs = job["classes"] or math.prod(rows.y.shape[1:])
    module = models.build(model, tuple(job["features"]), outputs, job["seed"])
    objective = Objective.from_dict(job["objective"], read_code(job["code"]).get("loss"))
    return Task(module, *rows, objective, job["precision"])


def algorithm_from_job(job: Mapping[str, Any]) -> Algorithm:
    """Build the algorithm of a job; own code is taken from this machine's configuration, as with `spec`."""
    return algorithm_from_table(job["algorithm"], read_code(job["code"]).get("algorithm"), "algorithm")


def member_from_job(name: str, folder: str, job: Mapping[str, Any]) -> Member:
    """Build a party's side of a job: its rows, which are in `folder`, its model and its guard."""
    fed = load_rows(Path(folder))
    task = task_from_job(job, fed.at(0))
    algorithm = algorithm_from_job(job)
    guard = guards.from_message(job.get("guard"), task, algorithm, job["seed"])
    return Member(
        name,
        fed,
        task,
        algorithm,
        job["seed"],
        job["epochs"],
        job["batch_size"],
        job["local_steps"],
        guard,
    )
