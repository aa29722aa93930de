"""A comparison on a Ray cluster: every cell (a row, a column, a seed) is one piece of work.

    driver → worker    the plans of all runs, once; which of them form the cell
    worker → driver    ("event", event) for `watch`, and at last ("files", {path: bytes}): the runs'
                       directories, and the saved state of the cell

The machines need not share a directory. This process writes what it receives, and reads the results from
there as those of a comparison that is resumed, so it checks that they are those of its own job and rows.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import BadRun
from ..files import write_atomic
from ..report.records import CENTRAL
from ..results import Result
from ..runs import Event
from .ray_cluster import Emit, RayCluster
from .train.plan import Plan
from .train.train import train_side_by_side

Files = dict[str, bytes]


def group_into_cells(plans: Sequence[Plan]) -> list[list[int]]:
    """Return the indices of the runs of each cell; the parties alone are one."""
    cells: dict[tuple[str, str, int], list[int]] = {}
    for i, p in enumerate(plans):
        cells.setdefault((p.label, p.skew, p.seed), []).append(i)
    return list(cells.values())


def state_of(directory: Path, n: int) -> Path:
    return directory / "state" / f"cell-{n:04d}.safetensors"


def has_cells(directory: Path | None) -> bool:
    """Whether a comparison was begun cell by cell, so that it is resumed so."""
    return directory is not None and any((directory / "state").glob("cell-*.safetensors"))


def train(
    plans: list[Plan],
    folders: Sequence[str | None],
    directory: Path | None,
    cluster: RayCluster,
    data_job: dict[str, Any] | None,
    watch: Callable[[Event], None] | None,
) -> list[Result]:
    """Train the cells that are not done; `folders` are the names of runs that keep a directory."""
    cells = group_into_cells(plans)
    data_jobs = [None if p.label == CENTRAL else data_job for p in plans]
    with ExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tacit-")))
        left = [n for n in range(len(cells)) if not state_of(place, n).exists()]
        if left:
            with cluster:
                share = cluster.share(plans)

                def prepare(n: int) -> tuple[Any, ...]:
                    cell = cells[n]
                    return compute, share, cell, [folders[i] for i in cell], [data_jobs[i] for i in cell]

                def receive(n: int, value: tuple[str, Any]) -> None:
                    kind, content = value
                    if kind == "files":
                        _keep(place, n, {folders[i] for i in cells[n]} - {None}, content)
                    elif watch is not None:
                        watch(content)

                cluster.run(left, prepare, receive, lambda text: _tell(watch, text))
        results: dict[int, Result] = {}
        for n, cell in enumerate(cells):
            found = train_side_by_side(
                [plans[i] for i in cell],
                [_out(place, folders[i]) for i in cell],
                resume=True,
                together=state_of(place, n),
                data_jobs=[data_jobs[i] for i in cell],
            )
            if directory is None:
                found = [dataclasses.replace(r, directory=None) for r in found]
            results |= dict(zip(cell, found))
    return [results[i] for i in range(len(plans))]


def _out(place: Path, folder: str | None) -> Path | None:
    return None if folder is None else place / "runs" / folder


def _tell(watch: Callable[[Event], None] | None, text: str) -> None:
    if watch is not None:
        watch({"kind": "note", "text": text})


def _keep(place: Path, n: int, expected: set[str | None], files: Files) -> None:
    """Write what a cell left: its runs, each as a whole, and at last its state, which marks it as done."""
    state = state_of(place, n)
    parts = state.with_suffix(".parts")
    if parts.exists():
        shutil.rmtree(parts)
    for name, content in files.items():
        path = PurePosixPath(name)
        is_state = name == "state"
        if not is_state and (path.parts[0] not in expected or len(path.parts) < 2 or ".." in path.parts):
            raise BadRun(f"a worker sent the file {name!r}, which belongs to no run of its cell.")
        target = parts / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for folder in sorted(expected, key=str):
        out = _out(place, folder)
        assert out is not None
        assert folder is not None
        if out.exists():  # of an attempt that ended before the state was written
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        (parts / folder).replace(out)
    write_atomic(state, (parts / "state").read_bytes())
    shutil.rmtree(parts)


def compute(
    plans: list[Plan],
    cell: list[int],
    folders: list[str | None],
    data_jobs: list[dict[str, Any] | None],
    emit: Emit,
) -> None:
    """Train the runs of a cell in a worker, and send the files that they left."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as name:
        place = Path(name)
        runs = place / "runs"
        train_side_by_side(
            [plans[i] for i in cell],
            [_out(place, folder) for folder in folders],
            together=place / "state",
            data_jobs=data_jobs,
            watch=lambda event: emit(("event", event)),
        )
        files = {
            path.relative_to(runs).as_posix(): path.read_bytes()
            for path in sorted(runs.rglob("*"))
            if path.is_file()
        }
        emit(("files", files | {"state": (place / "state").read_bytes()}))
