"""Results of jobs: the value, how it was computed, and who saw what."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import BadParameter, ReleaseRefused
from .files import write_atomic
from .numbers import judged_by
from .parties.ledger import Ledger
from .runs import Event, Journal, check_empty, encode_model, encode_nonfinite, rounds_of

if TYPE_CHECKING:
    import pandas

    from .data.pipeline import Pipeline
    from .release.release import Release


class JobResult:
    """What every verb returns: `value` is what it computed, `ledger` is who saw what.

    Most results also have the value under a name of their own: `model`, `table`, `student`, …
    """

    directory: Path | None = None  # of the run, if it was written
    title: ClassVar[str]  # of the report
    facts: ClassVar[tuple[str, ...]] = ()  # attributes that `to_dict` returns and the report shows
    shows_index: ClassVar[bool] = True  # whether a notebook shows the row labels of a table

    if TYPE_CHECKING:  # fields of some results, computed by others

        @property
        def value(self) -> Any: ...

        @property
        def ledger(self) -> Ledger: ...

    def to_dict(self) -> dict[str, Any]:
        """Return a summary as plain values that JSON can hold; NaN and infinities as text."""
        values = {name: getattr(self, name) for name in self.facts}
        return encode_plain({**values, "ledger": self.ledger})

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one self-contained HTML file, and return its path.

        Without a path: report.html in the run's directory, or in the current one.
        """
        return self._write_page(path, self._page())

    def _page(self) -> str:
        from .report.result import render

        return render(self.title, self.to_dict())

    def _write_page(self, path: str | Path | None, text: str) -> Path:
        from .report.page import write_page

        return write_page((self.directory or Path()) / "report.html" if path is None else path, text)

    def save(self, path: str | Path) -> Path:
        """Write `value` to a new file and return its path.

        A table is written as CSV or Parquet, by the ending (.csv, .csv.gz, .parquet), a model as
        safetensors, anything else as the JSON of `to_dict`.
        """
        import pandas
        from torch import nn

        file, value = check_absent(path), self.value
        if isinstance(value, pandas.DataFrame):
            from .data.table_files import write_table

            return write_table(value, file)
        write_atomic(
            file,
            encode_model(value)
            if isinstance(value, nn.Module)
            else json.dumps(self.to_dict(), ensure_ascii=False, indent=1),
        )
        return file

    def _repr_html_(self) -> str:
        """Show the result in a notebook; all text is escaped."""
        import pandas

        frame, table = self.value, ""
        if isinstance(frame, pandas.DataFrame):
            table = (frame if self.shows_index else frame.reset_index(drop=True))._repr_html_()  # type: ignore[operator]
        elif isinstance(frame, list) and frame and all(isinstance(row, Mapping) for row in frame):
            table = pandas.DataFrame(frame)._repr_html_()  # type: ignore[operator]
        seen = self.ledger._repr_html_()
        ledger = f"<details><summary>Who saw what, and what was spent</summary>{seen}</details>"
        return f"{table}<pre>{html.escape(self._text())}</pre>{ledger}"

    def __str__(self) -> str:
        return self._text()

    def _text(self) -> str:
        """The summary and the ledger."""
        return "\n".join(filter(None, [self._summary(), str(self.ledger)]))

    def _summary(self) -> str:
        """Single values, metrics and notes."""
        values = self.to_dict()
        lines = [
            f"{name:16} {value:.6g}" if isinstance(value, int | float) else f"{name:16} {value}"
            for name, value in {**values, **values.get("metrics", {})}.items()
            if isinstance(value, str | int | float)
        ]
        return "\n".join([*lines, *values.get("notes", ())])


def check_absent(path: str | Path) -> Path:
    """Return the path of a file to save a result to; raise BadParameter if it exists."""
    file = Path(path)
    if file.exists():
        raise BadParameter(f"save: {file} already exists. Choose another name.")
    if not file.absolute().parent.is_dir():
        raise BadParameter(f"save: there is no directory {file.parent}. Create it first.")
    return file


def encode_plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON can hold them: arrays as lists, tables as rows, other objects as their repr."""
    return encode_nonfinite(  # type: ignore[no-any-return]
        json.loads(json.dumps(_encode_keys(value), default=_encode))
    )


def _encode_keys(value: Any) -> Any:
    """Return a value whose dictionaries have keys that JSON can hold."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str | int) else repr(k): _encode_keys(v) for k, v in value.items()}
    return [_encode_keys(v) for v in value] if type(value) in (list, tuple) else value


def _encode(value: Any) -> Any:
    import numpy
    import pandas
    import torch

    if isinstance(value, Ledger | JobResult):
        return value.to_dict()
    if isinstance(value, pandas.DataFrame):
        return value.reset_index().to_dict("records")
    if isinstance(value, numpy.ndarray | numpy.generic | torch.Tensor):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


@dataclass
class Result(JobResult):
    """One training run.

    `metrics` are those of the last round, `metric` is the one that the run is judged by. Its best value over
    the rounds, `best_accuracy` or `best_auc`, was selected on the test set: it is optimistic.
    """

    model: Any
    metrics: dict[str, Any]
    ledger: Ledger
    config: dict[str, Any]
    events: list[Event] = field(repr=False)
    directory: Path | None = None
    origin: Any = field(default=None, repr=False)  # the plan with its rows, if it ran in this process
    # returns `models`, if the algorithm personalizes
    own: Callable[[], dict[str, Any]] | None = field(default=None, repr=False, compare=False)
    # how to use the model: its architecture, and the pipeline of its table
    release: Release | None = field(default=None, repr=False, compare=False)
    # what tacit.train(release="audited") found: a ReleaseAudit
    audited: Any = field(default=None, repr=False, compare=False)

    @property
    def pipeline(self) -> Pipeline | None:
        """How rows of the table are prepared for the model; None if the data did not come from a table."""
        return None if self.release is None else self.release.pipeline

    def predict(self, rows: Any, *, threshold: float | None = None) -> pandas.DataFrame:
        """Score new rows, without labels: a DataFrame with the columns of the training table, of any length.

        Returns a DataFrame with the same index: one probability for each class, in a column `p(LABEL)`, and
        `prediction`; for a regression `prediction` alone, in the units of the table. With two classes,
        `threshold` is the probability from which the second is predicted (default: that of the pipeline, or
        else the more probable class). Other columns are ignored; `.attrs["notes"]` names them. A model that
        was not trained on a table takes an array of encoded rows.
        """
        from .release.score import score

        return score(self._release("predict"), self.model, rows, threshold)

    def export(self, path: str | Path, *, encoded: bool = False, force: bool = False) -> Path:
        """Write the model for other programs: ONNX (.onnx, the extra `onnx`) or torch.export (.pt2).

        An ONNX file contains the preparation, too: it has one input for each column of the table, and needs
        no tacit. `encoded` leaves the preparation out, so that the input is an encoded row; a .pt2 file is
        always like this, because torch has no text. A model that an audit refused is not written.
        """
        from .release.audited import check_released
        from .release.export import export

        if self.directory is not None:
            check_released(self.directory)
        if self.audited is not None and not self.audited.passed:
            raise ReleaseRefused(f"export: this model is not released. {self.audited.headline()}")
        return export(self._release("export"), self.model, path, encoded=encoded, force=force)

    def card(self, path: str | Path | None = None) -> str:
        """Return the model card, as Markdown; write it to `path`, or to card.md in the run's directory."""
        from .report.card import render_card
        from .report.records import RunRecord

        text = render_card(
            RunRecord(self.config, self.events, self.ledger.to_dict()),
            None if self.release is None else self.release.to_dict(),
        )
        if path is not None or self.directory is not None:
            write_atomic(Path(path) if path is not None else Path(self.directory or "") / "card.md", text)
        return text

    def _release(self, verb: str) -> Release:
        if self.release is None:
            raise BadParameter(
                f"{verb}: this result does not say how its model is used. Use a result of tacit.train or "
                "tacit.load."
            )
        return self.release

    @property
    def metric(self) -> str:
        """The metric that the run is judged by: the one asked for, or by the share of the largest class."""
        asked = self.config.get("train", {}).get("metric")
        return judged_by(self.metrics, asked if isinstance(asked, str) else None)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per round: loss, accuracy, each party's accuracy, bytes up and down, seconds.

        With more than 1,000 parties, their accuracies are in the last row only.
        """
        return [row for row in rounds_of(self.events) if row["round"] > 0]

    def models(self) -> dict[str, Any]:
        """Return each party's model by name: its own if the algorithm personalizes, else `model`.

        The models of real parties stay with them.
        """
        if self.own is not None:
            return self.own()
        if getattr(self.origin, "fed", None) is None:
            raise BadParameter(
                "models: this run was not trained by tacit.train in this process, so its parties are not "
                "known. Its model is `model`."
            )
        return dict.fromkeys(self.origin.fed.parties, self.model)

    def fairness(self) -> dict[str, float]:
        """Return statistics of the parties' accuracies on their held-out rows in the last evaluated round.

        The mean, the mean of the worst tenth, the variance, and Jain's index (1: all equal; 1/n: one party
        has all).
        """
        last: list[Any] = next(
            (e["parties"]["accuracy"] for e in reversed(self.history) if "parties" in e), []
        )
        known = sorted(a for a in last if a is not None)
        if not known:
            return {}
        n, worst = len(known), known[: max(1, len(known) // 10)]
        mean, squares = sum(known) / n, sum(a * a for a in known)
        return {
            "mean": mean,
            "worst_decile": sum(worst) / len(worst),
            "variance": sum((a - mean) ** 2 for a in known) / n,
            "jain": sum(known) ** 2 / (n * squares) if squares else 1.0,
        }

    @property
    def value(self) -> Any:
        return self.model

    def _page(self) -> str:
        from .report import page, records

        audit = None if self.audited is None else self.audited.to_dict()
        if audit is None and self.directory is not None:
            audit = records.read_audit(self.directory)
        return page.render([records.RunRecord(self.config, self.events, self.ledger.to_dict(), audit=audit)])

    def to_dict(self) -> dict[str, Any]:
        """Return metrics, history, ledger and job as plain values; the model is in `save`."""
        return {
            "metrics": encode_nonfinite(self.metrics),
            "history": encode_nonfinite(self.history),
            "ledger": self.ledger.to_dict(),
            "job": self.config,
        }

    def save(self, path: str | Path) -> Path:
        """Write a run directory (job, events, ledger, model), as `out` of `tacit.train` does."""
        journal = Journal.create(check_empty(path), self.config)
        try:
            for event in self.events:
                journal.event(**event)
            journal.save_model(self.model)
            if self.release is not None:
                from .release.release import write_release

                write_release(path, self.release, self.model)
        finally:
            journal.close(self.ledger.to_dict())
        return Path(path)


@dataclass
class Comparison(JobResult):
    """Several runs side by side with two baselines: one central model, and each party alone."""

    results: list[Result] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    directory: Path | None = None

    @property
    def verdict(self) -> list[str]:
        return list(self.summary["verdict"])

    @property
    def rows(self) -> pandas.DataFrame:
        """One row a run: label, skew, seed and the metrics."""
        import pandas

        return pandas.DataFrame(
            [{**{k: r[k] for k in ("label", "skew", "seed")}, **r["metrics"]} for r in self.summary["rows"]]
        )

    @property
    def metric(self) -> str:
        """The metric that rows are compared by."""
        return str(self.summary["metric"])

    def table(self, numbers: bool = False) -> pandas.DataFrame:
        """Return the last round's metric of algorithms and baselines × skews, mean ± standard error.

        The metric is `summary["metric"]`. With `numbers`, the means only, as numbers.
        """
        import pandas

        t = self.summary["table"]
        cells = [
            [_cell(m, e, numbers) for m, e in zip(means, errors)]
            for means, errors in zip(t["mean"], t["error"])
        ]
        return pandas.DataFrame(cells, index=t["index"], columns=t["columns"])

    def bytes_to(self, accuracy: float) -> pandas.DataFrame:
        """Return the cost of reaching this accuracy on the global test set, by label and skew.

        `rounds`, `bytes` up and down of all parties, and `up` alone, each a mean over the seeds that reached
        it, and the share of seeds that `reached` it. A row that never did has NaN.
        """
        import pandas

        from .parameters import bad

        if isinstance(accuracy, bool) or not isinstance(accuracy, int | float) or not 0 < accuracy <= 1:
            raise bad("bytes_to", "accuracy", accuracy, "a number above 0 and at most 1")
        costs: dict[tuple[str, str], list[tuple[int, int, int] | None]] = {}
        for run in self.results:
            start = next(e for e in run.events if e["kind"] == "start")
            if start["label"] not in self.summary["baselines"]:
                costs.setdefault((start["label"], start["skew"]), []).append(_until(run.history, accuracy))
        rows = []
        for (label, skew), runs in costs.items():
            reached = [r for r in runs if r is not None]
            means = [sum(r[k] for r in reached) / len(reached) if reached else math.nan for k in range(3)]
            row = {"label": label, "skew": skew, **dict(zip(("rounds", "bytes", "up"), means))}
            rows.append({**row, "reached": len(reached) / len(runs)})
        return pandas.DataFrame(rows).set_index("label")

    @property
    def value(self) -> pandas.DataFrame:
        return self.table()

    def _page(self) -> str:
        from .report import page, records

        runs = [records.RunRecord(r.config, r.events, r.ledger.to_dict()) for r in self.results]
        return page.render(runs, self.summary)

    @property
    def ledger(self) -> Ledger:
        """Who saw what in all runs together."""
        ledger = Ledger()
        for result in self.results:
            ledger.merge(result.ledger)
        return ledger

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger and what compare.json has: the table, who gained, the distance to central."""
        return {**encode_nonfinite(self.summary), "ledger": self.ledger.to_dict()}

    def save(self, path: str | Path) -> Path:
        """Write compare.json and a run directory for each run."""
        directory = check_empty(path)
        for i, result in enumerate(self.results):
            result.save(directory / "runs" / f"{i:02d}")
        write_atomic(directory / "compare.json", json.dumps(encode_nonfinite(self.summary), indent=1))
        return directory

    def _summary(self) -> str:
        return "\n".join(self.verdict)

    def __str__(self) -> str:
        return f"{self.table().to_string()}\n\n{self._text()}"


def _until(history: list[dict[str, Any]], accuracy: float) -> tuple[int, int, int] | None:
    """Return (rounds, bytes up and down, bytes up) until a round has this accuracy; None if none has."""
    up = down = 0
    for row in history:
        up, down = up + row["bytes_up"], down + row["bytes_down"]
        if row.get("accuracy", 0.0) >= accuracy:
            return row["round"], up + down, up
    return None


def _cell(mean: float | None, error: float | None, numbers: bool) -> Any:
    if mean is None:
        return float("nan") if numbers else "–"
    if numbers:
        return mean
    if not math.isfinite(mean):
        return "diverged"
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"
