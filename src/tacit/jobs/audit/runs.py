"""The run that is attacked: with its rows, from this process or from its directory, and what it claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ...data.federation import Rows
from ...errors import BadParameter, BadRun
from ...parameters import bad
from ...parties.ledger import Ledger, Spend
from ...results import Result
from ...runs import is_python_job
from ..train.plan import Plan, make_plan, prepare
from ..train.resuming import fingerprints

ROW_UNITS = ("row", "record", "person")


def open_run(run: Any, owner: str) -> Result:
    """Return a run with its rows (`origin`): a result of tacit.train, or its directory, read again.

    A directory's data are loaded as its job file says, and must be the ones that it was trained on.
    """
    if isinstance(run, Result):
        if isinstance(run.origin, Plan):
            return run
        if run.directory is None:
            raise BadParameter(
                f"{owner}: this run has no rows: it was not trained by tacit.train in this process, and has "
                "no directory. Give rows and train= yourself, or the directory of a run."
            )
        run = run.directory
    if not isinstance(run, str | Path):
        raise bad(owner, "run", type(run).__name__, "a result of tacit.train, or the directory of a run")
    from ...config import job as config
    from ...config import toml
    from ...release.load import load

    directory = Path(run)
    result = load(directory)
    tables = toml.read(directory / "job.toml")
    if not is_python_job(tables) and not {"name", "path"} & set(tables.get("data", ())):
        raise BadRun(
            f"{owner}: {directory} is a run between real parties, whose rows are not here. Run the same job "
            "on rows like theirs on one machine (`[data] path = …`, `by = …`), and audit that run."
        )
    job = config.of_run(directory)
    (fed,) = job.federations()
    p = make_plan(fed, **{k: v for k, v in job.train().items() if k != "data_job"})
    start = next((e for e in result.events if e["kind"] == "start"), {})
    before = (start.get("fingerprints") or {}).get("data")
    task, initial = prepare(p)
    if before is not None and fingerprints(p, initial, task)["data"] != before:
        raise BadRun(
            f"{owner}: the data changed since {directory} was trained, so its members are not known. Restore "
            "the files that its job names."
        )
    return dataclasses.replace(result, origin=p)


def plan_of(run: Result) -> Plan:
    """Return the plan of an opened run."""
    p = run.origin
    assert isinstance(p, Plan)
    return p


def rounds_of(run: Result) -> int:
    """Return how many rounds a run trained, which early stopping or its budget may have shortened."""
    return len(run.history) or plan_of(run).rounds


def claim_of(ledger: Ledger, unit: str) -> tuple[float, float] | None:
    """Return the (ε, δ) that a run claims for one row, or for one party; None if it claims nothing.

    Lines of different parties are about different rows, so that the largest counts; other lines are added. An
    ε for a party covers each of its rows, too.
    """
    if any(text.startswith("NOT PRIVATE") for text in ledger.stamps):
        return None
    rows = [s for s in ledger.spent if s.unit.startswith(ROW_UNITS)]
    parties = [s for s in ledger.spent if not s.unit.startswith(ROW_UNITS)]
    claims = [_compose(parties), _compose(rows) if unit == "row" else None]
    known = [c for c in claims if c is not None]
    return min(known) if known else None


def _compose(lines: Iterable[Spend]) -> tuple[float, float] | None:
    worst: dict[str, Spend] = {}
    for s in lines:
        # "row of clinic-3, present or not": one line for each party
        name = " of " in s.unit and f"each {s.unit.split(' of ')[0]}: {s.sampling.split(' ')[0]}"
        key = name or f"{s.unit} {s.mechanism}"
        if key not in worst or worst[key].epsilon < s.epsilon:
            worst[key] = s
    if not worst:
        return None
    return sum(s.epsilon for s in worst.values()), sum(s.delta for s in worst.values())


def rows_of(value: Any, p: Plan | None, name: str, owner: str) -> Rows:
    """Return rows that a user gave: Rows or (x, y), encoded as the run's own."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise bad(owner, name, type(value).__name__, "a pair (x, y) of encoded rows and their labels")
    x, y = (torch.as_tensor(part) for part in value)
    if len(x) != len(y) or not len(y):
        raise bad(owner, name, f"{len(x)} rows and {len(y)} labels", "as many labels as rows, at least one")
    if p is not None and x.shape[1:] != p.fed.rows.x.shape[1:]:
        raise bad(
            owner,
            name,
            f"rows of shape {tuple(x.shape[1:])}",
            f"rows of shape {tuple(p.fed.rows.x.shape[1:])}, encoded as those of the run",
        )
    kind = torch.float32 if x.is_floating_point() or p is None else p.fed.rows.matrix(owner).dtype
    return Rows(x.to(kind), y.long() if p is None or p.fed.classes is not None else y.float())
