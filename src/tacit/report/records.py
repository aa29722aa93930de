"""Read run directories, and comparisons with one run directory per row.

A run may still be running, or may have been killed while it wrote a line: an incomplete last line is left out
and the report says so. Anything else that cannot be read raises BadRun with the file and the line.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BadRun
from ..numbers import is_better, judged_by
from .numbers import is_finite, mean_error

CENTRAL, ALONE = BASELINES = (
    "central",
    "local only",
)  # what a comparison calls them, in its runs and in compare.json
HIDING = ("SecAgg", "LightSecAgg", "Encrypt")  # stages that open sums of updates only
SCORES = (  # how the names of metrics begin
    "loss",
    "accuracy",
    "precision",
    "recall",
    "f1",
    "auc",
    "average_precision",
    "brier",
    "majority",
    "mae",
    "r2",
    "rmse",
    "confusion",
    "calibration",
    "curve",
    "subgroups",
)
AUDIT = "audit.json"  # what `tacit audit` found about a run
INCOMPLETE = (
    "The last line of events.jsonl (line {}) is incomplete, as after a run that was killed while writing; "
    "it was left out."
)


@dataclass(frozen=True)
class RunRecord:
    """One run, read from its directory or kept in memory.

    `ledger` is None until there is one; `name` is that of the directory.
    """

    job: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    ledger: Mapping[str, Any] | None = None
    name: str = ""
    job_text: str = ""
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, Any] | None = None  # what `tacit audit` found

    @cached_property
    def toml(self) -> str:
        """The text of job.toml, as it was written or would be written."""
        if self.job_text or not self.job:
            return self.job_text
        import tomli_w

        return tomli_w.dumps(self.job)

    def last(self, kind: str) -> Mapping[str, Any]:
        """Return the newest event of a kind (a resumed run starts twice), or an empty one."""
        return next((e for e in reversed(self.events) if e["kind"] == kind), {})

    @property
    def start(self) -> Mapping[str, Any]:
        return self.last("start")

    @cached_property
    def rounds(self) -> list[Mapping[str, Any]]:
        """The rounds by number; if a resumed run repeated a round, the later event counts."""
        by_number = {e["round"]: e for e in self.events if e["kind"] == "round"}
        return [by_number[r] for r in sorted(by_number)]

    @property
    def label(self) -> str:
        return str(self.start.get("label") or self.name or "run")

    @property
    def skew(self) -> str:
        return str(self.start.get("skew") or "as given")

    @property
    def seed(self) -> Any:
        return self.start.get("seed")

    @property
    def federation(self) -> Mapping[str, Any]:
        return self.start.get("federation") or {}

    @property
    def stages(self) -> list[str]:
        """The names of the stages that updates pass before they leave a party."""
        guard = self.job.get("guard")
        return (
            [str(g.get("name")) for g in guard if isinstance(g, Mapping)] if isinstance(guard, list) else []
        )

    @property
    def hides_updates(self) -> bool:
        """Whether the server saw sums of updates only."""
        return any(name in HIDING for name in self.stages)

    @property
    def is_finished(self) -> bool:
        return bool(self.last("end"))

    @property
    def planned(self) -> int:
        return int(self.start.get("rounds") or 0)

    @property
    def done(self) -> int:
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def notes(self) -> list[str]:
        return [str(e.get("text", "")) for e in self.events if e["kind"] == "note"]

    @property
    def diverged(self) -> int | None:
        """The first round whose loss is not finite.

        JSON has no NaN, so the text "nan" and null count, too.
        """
        return next(
            (
                e["round"]
                for e in self.rounds
                for k in ("loss", "train_loss")
                if k in e and not is_finite(e[k])
            ),
            None,
        )

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """Last and best metrics, from the end event or, during the run, from the rounds so far."""
        if self.last("end").get("metrics"):
            return dict(self.last("end")["metrics"])
        measured = [e for e in self.rounds if "loss" in e or "accuracy" in e]
        if not measured:
            return {}
        metrics = {k: v for k, v in measured[-1].items() if k.startswith(SCORES) or k in self.own_metrics}
        metric = judged_by(metrics, self.asked_metric)
        scored = [
            e for e in measured if is_finite(e.get(metric)) and "accuracy_error" not in e
        ]  # the best of several noisy values is the luckiest
        if scored:
            best = scored[0]
            for e in scored[1:]:
                best = e if is_better(metric, e[metric], best[metric]) else best
            metrics |= {f"best_{metric}": best[metric], "best_round": best["round"]}
        return metrics

    @cached_property
    def own_metrics(self) -> tuple[str, ...]:
        """The names of the user's own metrics."""
        return tuple(map(str, self.last("start").get("own_metrics") or ()))

    @property
    def asked_metric(self) -> str | None:
        """The metric that the job asks for."""
        train = self.job.get("train")
        asked = train.get("metric") if isinstance(train, Mapping) else None
        return asked if isinstance(asked, str) else None

    @property
    def metric(self) -> str:
        """The metric that the run is judged by."""
        return judged_by(self.metrics, self.asked_metric)

    @cached_property
    def by_party(self) -> Mapping[str, Any]:
        """The last evaluation with metrics on the parties' own held-out rows, or an empty one."""
        some = (self.last("kept"), *reversed(self.rounds))  # first that of weights of several rounds
        return next((e for e in some if (e.get("parties") or {}).get("accuracy")), {})

    @property
    def party_accuracy(self) -> list[Any]:
        """Each party's accuracy on its own held-out rows, None if it is not shown.

        Taken from the last round that measured it.
        """
        return list(self.by_party["parties"]["accuracy"]) if self.by_party else []

    @property
    def untested(self) -> int:
        """The number of parties with too few held-out rows to be shown."""
        return int(self.by_party.get("untested") or 0)

    def total(self, key: str) -> float:
        return math.fsum(e[key] for e in (*self.rounds, self.last("kept")) if is_finite(e.get(key)))


def read_run(directory: str | Path) -> RunRecord:
    """Read a run directory, finished or not."""
    directory = Path(directory)
    file = directory / "events.jsonl"
    if not file.is_file():
        raise BadRun(
            f"{directory} is not a run directory: it has no events.jsonl. "
            "Give a directory written by tacit.train(out=…) or `tacit run`."
        )
    events, warnings = _events(file)
    if not any(e["kind"] == "start" for e in events):
        raise BadRun(
            f"{file} has no start event: the run was stopped before it began. Start it again with `tacit "
            "run`."
        )
    job_file, ledger_file = directory / "job.toml", directory / "ledger.json"
    job_text = _text(job_file) if job_file.is_file() else ""
    try:
        job = tomllib.loads(job_text)
    except tomllib.TOMLDecodeError as error:
        raise BadRun(f"{job_file} is not TOML: {error}. Put back the file the run wrote.") from None
    ledger = _check_ledger(_json(ledger_file), ledger_file) if ledger_file.is_file() else None
    name = directory.resolve().name
    return RunRecord(job, tuple(events), ledger, name, job_text, tuple(warnings), read_audit(directory))


def read_audit(directory: Path) -> Mapping[str, Any] | None:
    """Return what `tacit audit` found about a run, or None."""
    file = directory / AUDIT
    if not file.is_file():
        return None
    again = f"Repeat `tacit audit {directory}`."
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadRun(f"{file} cannot be read: {error}. {again}") from None
    findings = found.get("findings") if isinstance(found, dict) else None
    if not isinstance(findings, list) or not all(isinstance(f, dict) for f in findings):
        raise BadRun(f"{file} is not an audit: it has no list of findings. {again}")
    kept: Mapping[str, Any] = found
    return kept


def read(directory: str | Path) -> tuple[list[RunRecord], dict[str, Any] | None]:
    """Read the runs in a directory and, for a comparison, its compare.json.

    Use it as `write(path, *read(directory))`.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise BadRun(
            f"there is no directory {directory}. Give a directory written by tacit.train(out=…) or "
            "tacit.compare(out=…)."
        )
    if not (directory / "compare.json").is_file() and not (directory / "runs").is_dir():
        return [read_run(directory)], None
    notes, runs = [], []
    for path in sorted(p for p in (directory / "runs").glob("*") if p.is_dir()):
        try:
            runs.append(read_run(path))
        except BadRun:
            # A row that has not started yet must not hide the rows that have; a file that is there and broken
            # is another matter.
            if (path / "events.jsonl").is_file() and _events(path / "events.jsonl")[0]:
                raise
            notes.append(f"{path.name} has not started and was left out.")
    if (directory / "compare.json").is_file():
        comparison = _check_comparison(_json(directory / "compare.json"), directory / "compare.json")
    elif runs:
        comparison = tabulate(runs)
        notes.append("The comparison is not finished: this table contains the runs so far.")
    else:
        raise BadRun(
            f"{directory} contains neither compare.json nor a run that has started. "
            "Wait for the first round, or run `tacit compare` again."
        )
    comparison["notes"] = [*comparison.get("notes", []), *notes]
    if (directory / "job.toml").is_file():
        comparison["job_text"] = _text(directory / "job.toml")
    comparison.setdefault("name", directory.resolve().name)
    return runs, comparison


def tabulate(runs: Iterable[RunRecord], metric: str | None = None) -> dict[str, Any]:
    """Make the rows and the table of a comparison from its runs alone, by `metric` or their own."""
    runs = list(runs)
    metric = metric or next((run.metric for run in runs if run.metrics), "loss")
    rows = [
        {
            "label": r.label,
            "skew": r.skew,
            "seed": r.seed,
            "run": f"runs/{r.name}",
            "metrics": dict(r.metrics),
        }
        for r in runs
    ]
    index, columns = list(dict.fromkeys(r.label for r in runs)), list(dict.fromkeys(r.skew for r in runs))
    cells = [
        [
            mean_error(r.metrics.get(metric) for r in runs if (r.label, r.skew) == (label, skew))
            for skew in columns
        ]
        for label in index
    ]
    table = {
        "columns": columns,
        "index": index,
        "mean": [[m for m, _ in row] for row in cells],
        "error": [[e for _, e in row] for row in cells],
    }
    return {"rows": rows, "table": table, "metric": metric, "baselines": [b for b in BASELINES if b in index]}


def _events(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    lines = _text(file).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    events: list[dict[str, Any]] = []
    for at, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            if at == len(lines):
                return events, [INCOMPLETE.format(at)]
            raise BadRun(
                f"{file}, line {at} is not JSON. Only the last line may be incomplete; restore the file or "
                "run the job again."
            ) from None
        if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
            raise BadRun(
                f"{file}, line {at} is not an event: an event is a JSON object with a kind. Restore the file "
                "or run the job again."
            )
        if event["kind"] == "round" and (
            isinstance(event.get("round"), bool) or not isinstance(event.get("round"), int)
        ):
            raise BadRun(
                f"{file}, line {at} is a round without its number. Restore the file or run the job again."
            )
        events.append(event)
    return events, []


def _check_ledger(ledger: dict[str, Any], file: Path) -> dict[str, Any]:
    seen, spent, stamps = (ledger.get(k) or [] for k in ("seen", "spent", "stamps"))
    if not (
        all(isinstance(lines, list) for lines in (seen, spent, stamps))
        and all(isinstance(s, dict) for s in (*seen, *spent))
        and all(is_finite(s.get(k, 0)) for s in seen for k in ("count", "bytes"))
        and all(isinstance(text, str) for text in stamps)
    ):
        raise BadRun(
            f"{file} is not a ledger: `seen` and `spent` are lists of objects with numbers of messages and "
            "bytes, `stamps` is a list of texts. Restore the file or run the job again."
        )
    return ledger


def _check_comparison(comparison: Any, file: Path) -> dict[str, Any]:
    table = comparison.get("table") or {}
    columns, index, mean = (table.get(k) for k in ("columns", "index", "mean"))
    if not (
        isinstance(columns, list)
        and isinstance(index, list)
        and isinstance(mean, list)
        and len(mean) == len(index)
        and all(isinstance(row, list) and len(row) == len(columns) for row in mean)
    ):
        raise BadRun(
            f"{file} has no table with one mean per row of index and column. Run `tacit compare` again to "
            "write it."
        )
    return dict(comparison)


def _text(file: Path) -> str:
    # A line torn inside a multi-byte letter is still only a torn line, hence no decoding error here.
    return file.read_text(encoding="utf-8", errors="replace")


def _json(file: Path) -> Any:
    try:
        value = json.loads(_text(file))
    except json.JSONDecodeError as error:
        raise BadRun(f"{file} is not JSON: {error}. Restore the file or run the job again.") from None
    if not isinstance(value, dict):
        raise BadRun(
            f"{file} must contain a JSON object, not a {type(value).__name__}. Restore the file or run the "
            "job again."
        )
    return value
