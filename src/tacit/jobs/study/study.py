"""tacit.study: the tables of a study, run or resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadParameter
from ...parameters import bad
from ...parties.ledger import Ledger
from ...report import study as page
from ...results import JobResult
from ...runs import check_empty, encode_nonfinite, write_atomic
from ..ray_cluster import RayCluster
from . import file, on_cluster, table
from . import workers as parallel
from .shards import WHOLE, Shard
from .store import Store

if TYPE_CHECKING:
    import pandas


@dataclass
class StudyResult(JobResult):
    """The tables of a study: our results next to the published ones."""

    summary: dict[str, Any] = field(repr=False)
    directory: Path = Path()
    files: list[Path] = field(default_factory=list, repr=False)
    ledger: Ledger = field(default_factory=Ledger, repr=False)  # simulations: nobody else saw anything

    @property
    def tables(self) -> dict[str, pandas.DataFrame]:
        """The tables by name, as text: ours, (published), [replicated]."""
        import pandas

        found = {}
        for one in self.summary["tables"]:
            head, rows = table.text_table(one)
            found[one["name"]] = pandas.DataFrame(rows, columns=head).set_index(head[0])
        return found

    @property
    def value(self) -> dict[str, pandas.DataFrame]:
        return self.tables

    def to_dict(self) -> dict[str, Any]:
        """Return the summary and the ledger as plain values."""
        return {**encode_nonfinite(self.summary), "ledger": self.ledger.to_dict()}

    def report(self, path: str | Path | None = None) -> Path:
        """Return the path of the report; with `path`, copy it there."""
        own = self.directory / "report.html"
        return own if path is None else Path(shutil.copyfile(own, path))

    def save(self, path: str | Path) -> Path:
        """Copy the tables, the curves and the report to a new directory."""
        directory = check_empty(path)
        directory.mkdir(parents=True, exist_ok=True)
        for source in self.files:
            shutil.copyfile(source, directory / source.name)
        write_atomic(directory / "summary.json", json.dumps(encode_nonfinite(self.summary), indent=1))
        return directory

    def _summary(self) -> str:
        return "\n\n".join(f"{name}\n{frame.to_string()}" for name, frame in self.tables.items())


def study(
    name: str,
    *,
    out: str | Path | None = None,
    quick: bool = False,
    seeds: int | None = None,
    rounds: int | None = None,
    rows: int | None = None,
    only: str = "",
    shard: str | None = None,
    workers: int | None = None,
    on: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    device: str | None = None,
    data_dir: str | None = None,
    watch: Callable[[str], None] = lambda text: None,
) -> StudyResult:
    """Run a study, or what is left of it in `out`, and return its tables.

    `name` is one of tacit's studies (`tacit study list`) or a TOML file. `quick` runs a few rows and rounds,
    to try it out. `seeds`, `rounds` and `rows` reduce it, `only` (a regular expression) selects runs.
    `workers` processes share the runs. `on="ray"` or `on="ray://HOST:10001"` shares them among the workers
    of a Ray cluster, as many as fit (or `workers`), with `cpus` cores (default: 1) and `gpus` GPUs each
    (default: one if the cluster has any; 0.25 runs four on one). `shard="2/8"` is the second of eight parts,
    which may run at the same time on other machines in the same `out`, or in directories of their own.
    `watch` is called with lines of progress.
    """
    spec = file.load(
        name, quick=quick, data_dir=data_dir, device=device, seeds=seeds, rows=rows, rounds=rounds
    )
    directory = default_directory(spec) if out is None else Path(out)
    part = WHOLE if shard is None else Shard.parse(shard)
    share = Sharing(workers, on, cpus, gpus)
    return write_result(spec, share.run(spec, directory, only=only, shard=part, say=watch), directory)


@dataclass(frozen=True)
class Sharing:
    """Who computes a study: this process, several processes of this machine, or the workers of a cluster."""

    workers: int | None = None
    on: str | None = None
    cpus: float | None = None  # of each worker of a cluster
    gpus: float | None = None

    def run(
        self,
        spec: file.Study,
        directory: Path,
        *,
        only: str,
        shard: Shard,
        say: Callable[[str], None],
    ) -> Store:
        """Run what is not done yet."""
        if self.on is not None:
            gpus = 0 if self.gpus is None and spec.loaded_with["device"] == "cpu" else self.gpus
            cpus = 1 if self.cpus is None else self.cpus
            cluster = RayCluster(self.on, cpus=cpus, gpus=gpus, workers=self.workers)
            return on_cluster.study(spec, directory, cluster, only=only, shard=shard, say=say)
        for name in ("cpus", "gpus"):
            if getattr(self, name) is not None:
                must_be = "left out without on, because only a cluster divides cores and GPUs"
                raise BadParameter(str(bad("study", name, getattr(self, name), must_be)))
        count = 1 if self.workers is None else self.workers
        return parallel.study(spec, directory, only=only, shard=shard, workers=count, say=say)


def default_directory(spec: file.Study) -> Path:
    """Return the default directory of a study."""
    return Path("runs") / f"study-{spec.name}{'-quick' if spec.quick else ''}"


def write_result(spec: file.Study, store: Store, directory: Path) -> StudyResult:
    """Write the tables and the report of what is done."""
    lines = store.lines()
    summary = table.summary(spec, lines)
    with store.writing():
        files = table.write_files(directory, spec, lines)
        report = page.write(directory / "report.html", summary, table.finished(spec, lines))
    return StudyResult(summary, directory, [*files, report])
