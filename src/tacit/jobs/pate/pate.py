"""`tacit.pate`: a student trained on the noisy votes of teachers with disjoint data."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import models
from ...config.pate import PateSettings
from ...data.federation import Dataset, Federation, Rows, check_one_label
from ...engine.metrics import count, measure
from ...errors import BadData
from ...files import write_atomic
from ...parameters import bad, check, refuse, resolve, to_table
from ...parties.ledger import Ledger
from ...private.pate import AGGREGATOR, UNANSWERED, Aggregator, ConfidentGNMax, VoteCost
from ...private.pate_student import Lessons, Student
from ...results import JobResult
from ...runs import check_empty, check_unused, encode_model
from ...runtimes.choose import SyncRuntime, choose_runtime
from ..devices import device_for
from .budget import Budget
from .teachers import Ensemble, train

CONFIDENTIAL = "computed from the votes, which it reveals: do not publish it"


class SmallDelta(UserWarning):
    """δ is so large that the definition permits publishing one row."""


@dataclass
class PateResult(JobResult):
    """The result of `tacit.pate`.

    Everything except `confidential` and `teachers` may be published; those two contain what the noise
    protects.
    """

    student: nn.Module
    labels: np.ndarray  # of each query, −1 if unanswered
    questions: np.ndarray  # indices of the public rows that were queried
    answered: float  # share of the queries
    epsilon: float
    delta: float
    metrics: dict[str, Any]
    ledger: Ledger
    config: dict[str, Any]
    notes: list[str]
    price: float  # the data-independent cost divided by the order λ; summed over `before`
    history: list[dict[str, float]]  # ε and the student's accuracy after each run so far, this one last
    confidential: dict[str, Any] = field(repr=False, default_factory=dict)
    teachers: Ensemble | None = field(repr=False, default=None)
    directory: Path | None = None
    bound: float = 0.0  # upper bound on `price`, independent of the votes, from which `epsilon` is computed
    used: float = 0.0  # ε of the given answers, which depends on the votes: no guarantee

    @property
    def value(self) -> nn.Module:
        return self.student

    def _page(self) -> str:
        from ...private.pate_report import render

        return render(self)

    def save(self, path: str | Path) -> Path:
        """Write job, result, labels, student and report to a new directory; nothing confidential."""
        return self._write(check_empty(path))

    def _write(self, directory: Path) -> Path:
        import tomli_w

        directory.mkdir(parents=True, exist_ok=True)
        public = {k: v for k, v in self.to_dict().items() if k not in ("ledger", "job")}
        lines = [f"{r},{y}\n" for r, y in zip(self.questions, self.labels) if y != UNANSWERED]
        write_atomic(directory / "job.toml", tomli_w.dumps(self.config))
        write_atomic(directory / "result.json", json.dumps(public, indent=1))
        write_atomic(directory / "labels.csv", "row,label\n" + "".join(lines))
        write_atomic(directory / "student.safetensors", encode_model(self.student))
        self.report(directory / "report.html")
        return directory

    def to_dict(self) -> dict[str, Any]:
        """Return what may be published, as plain values."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "asked": len(self.labels),
            "answered": self.answered,
            "metrics": self.metrics,
            "notes": self.notes,
            "price": self.price,
            "bound": self.bound,
            "used": self.used,
            "history": self.history,
            "ledger": self.ledger.to_dict(),
            "job": self.config,
        }


def pate(
    dataset: Dataset | Federation,
    *,
    teachers: int | Ensemble | None = None,
    queries: int = 100,
    aggregator: Any = None,
    model: Any = "mlp",
    student_model: Any = None,
    public: Any = 0.9,
    lessons: Lessons | None = None,
    student: Student | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    publish: bool = False,
    before: Sequence[Any] = (),
    runtime: SyncRuntime | str | None = None,
    noise: str = "server",
    threshold: float = 0.6,
    within: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    data_job: dict[str, Any] | None = None,
) -> PateResult:
    """Train a student on the noisy votes of teachers, each of which has different rows.

    `dataset`: its rows are private and divided among `teachers` at random; or a Federation, whose parties are
    the teachers. `public`: the rows that may be queried, and from which the student learns without labels: a
    share of the test set (the rest is used to test the student), or an array of rows. `queries` of them,
    drawn at random, are asked.

    With `epsilon`, queries stop before the data-independent ε of this run and those listed in `before` would
    exceed it; queries of earlier runs are not repeated, and the student learns from their answers, too. The
    result's `epsilon` is fixed before the first query: the budget, or the cost if every query were answered.
    The cost of the given answers is `used`, which depends on the votes. `publish` also releases a
    data-dependent ε, with smooth-sensitivity noise.

    With `runtime` (as in `tacit.psi`) each teacher is a party that trains by itself, and votes are summed by
    secure aggregation. The noise is added by the "server", which then sees the counts, or by the "teachers"
    together, so that it does not.

    `seed` affects the partition, the queries and the training. The noise always comes from the operating
    system, so two runs with the same seed differ.
    """
    fed, x, known, tests = _split_rows(dataset, teachers, public, seed)
    lessons, student = check(lessons or Lessons()), check(student or Student())
    aggregator = make_aggregator(aggregator, len(fed))
    device = device_for("pate", device)
    if runtime is not None:
        runtime = choose_runtime("pate", runtime)
    settings = PateSettings(queries=queries, epsilon=epsilon, delta=delta, noise=noise, seed=seed)
    _check_settings(fed, aggregator, check(settings, "pate"), len(x), runtime, teachers)
    split = noise == "teachers"
    directory = None if out is None else check_unused(out, "ledger.json")
    notes = list(fed.notes)
    if isinstance(dataset, Dataset) and dataset.table is not None and dataset.table.reads_rows:
        notes.append(
            "columns were scaled and encoded with statistics of the private rows, which ε does not cover; "
            "use public statistics if that matters."
        )
    if delta >= 1 / int(fed.train.sizes.sum()):
        warnings.warn(
            f"δ = {delta:g} is not below 1/{int(fed.train.sizes.sum()):,}, one over the number of private "
            "rows: publishing one row would satisfy the definition. Use a smaller delta.",
            SmallDelta,
            stacklevel=2,
        )  # shown to the holder of the rows only; their number is in no file
    priced = _effective_aggregator(aggregator, fed, threshold) if split else aggregator
    earlier, earlier_bound = sum(run.price for run in before), sum(run.bound for run in before)
    budget = Budget(priced, epsilon, delta, earlier, earlier_bound, split)
    affordable = budget.affordable(queries)
    refuse(
        (
            publish and earlier,
            bad(
                "pate",
                "publish",
                publish,
                "False if `before` lists earlier runs",
                "Data-dependent costs of several runs are not added up.",
            ),
        ),
        (
            publish and split,
            bad(
                "pate",
                "publish",
                publish,
                "False if teachers add the noise",
                "No party has the counts from which a data-dependent ε is computed.",
            ),
        ),
        (
            publish and epsilon is not None,
            bad(
                "pate",
                "publish",
                publish,
                "False with a budget",
                "The budget does not cover the cost of publishing. Remove epsilon or publish.",
            ),
        ),
    )
    if affordable < queries:
        notes.append(
            f"the budget ε = {epsilon:g} allows {affordable:,} of {queries:,} queries if all are answered."
        )
    index = np.random.default_rng([seed, 7]).permutation(len(x))
    index = index[~np.isin(index, [i for run in before for i in run.questions])]
    if queries > len(index):
        raise bad(
            "pate",
            "queries",
            queries,
            f"at most {len(index):,}, the public rows that earlier runs did not ask about",
        )
    # If queries may stay unanswered, more can be asked than would be affordable if all were answered; but not
    # if the server sees every noisy count.
    index = index[: queries if isinstance(priced, ConfidentGNMax) and not split else affordable]
    rows, ledger = x[torch.from_numpy(index)], Ledger()
    bound, guaranteed = budget.guarantee(len(index))
    ensemble = None
    if runtime is None:
        ensemble = teachers if isinstance(teachers, Ensemble) else train(fed, model, lessons, seed, device)
        notes += ensemble.notes
        counts: np.ndarray | None = ensemble.counts(rows)
        labels = aggregator.decide(counts)  # type: ignore[arg-type]
        _record_simulation(ledger, fed, isinstance(dataset, Federation))
    else:
        from . import parties as voting  # imports the packages of real parties only here

        outcome = voting.collect_votes(
            fed, rows, aggregator, model, lessons, seed, runtime, ledger, split, threshold, within
        )
        labels, counts = outcome.labels, outcome.counts
        if len(outcome.included) < len(fed):
            notes.append(
                f"{len(fed) - len(outcome.included)} of {len(fed)} teachers dropped out before the count."
            )
    # With a budget, queries end where the next answer might exceed it; later labels are never released.
    covered = budget.covered(labels)
    index, labels, counts = index[:covered], labels[:covered], None if counts is None else counts[:covered]
    spent = (
        VoteCost(covered, int((labels != UNANSWERED).sum()), delta, 0.0)
        if counts is None
        else aggregator.spent(counts, labels, delta, publish)
    )
    price, used = budget.price(covered, spent.answers), budget.total(covered, spent.answers)
    reported = guaranteed if spent.released is None else spent.epsilon
    ledger.spend(budget.spend_line(aggregator, spent, reported, used, runtime is not None, len(before)))
    job = _job(
        fed,
        data_job,
        len(fed),
        queries,
        aggregator,
        model,
        student_model,
        lessons,
        student,
        epsilon,
        delta,
        noise,
        runtime,
        seed,
        device,
        public,
    )
    if directory is not None:  # the ledger is written before the result is used
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / "ledger.json", json.dumps(ledger.to_dict(), indent=1))
    if not spent.answers:
        raise BadData(
            f"none of the {covered} queries was answered, and asking cost ε = {reported:.4g}. Lower the "
            "threshold of ConfidentGNMax, or use fewer and better teachers."
        )
    all_index = np.concatenate([*(run.questions for run in before), index])
    all_labels = np.concatenate([*(run.labels for run in before), labels])
    module = _train_student(fed, all_index, all_labels, x, student, student_model or model, seed, device)
    metrics = {"answered": spent.answers / covered, **_measure(module, tests, fed.classes, device)}
    if known is not None:
        right = labels == known.numpy()[index]
        metrics["label_accuracy"] = float(right[labels != UNANSWERED].mean())
    confidential: dict[str, Any] = {"note": CONFIDENTIAL}
    if counts is not None:
        confidential |= {
            "epsilon": spent.dependent,
            "counts": counts,
            "consensus": float((counts.max(1) / counts.sum(1)).mean()),
        }
    history = [
        *(run.history[-1] for run in before),
        {"epsilon": reported, **({"accuracy": metrics["accuracy"]} if "accuracy" in metrics else {})},
    ]
    result = PateResult(
        module,
        labels,
        index,
        spent.answers / covered,
        reported,
        delta,
        metrics,
        ledger,
        job,
        notes,
        price,
        history,
        confidential,
        ensemble,
        directory,
        bound,
        used,
    )
    if directory is not None:
        result._write(directory)
    return result


# arguments --------------------------------------------------------------------------------------------------


def _split_rows(
    dataset: Any, teachers: Any, public: Any, seed: int
) -> tuple[Federation, Tensor, Tensor | None, Rows]:
    """Return the teachers' data, public rows, their labels if known, and test rows."""
    many = len(teachers) if isinstance(teachers, Ensemble) else teachers
    if (
        isinstance(many, bool)
        or not isinstance(many, int | np.integer | None)
        or (many is not None and many < 1)
    ):
        raise bad(
            "pate",
            "teachers",
            teachers,
            "a whole number of at least 1, or the teachers of an earlier run (run.teachers)",
        )
    if isinstance(dataset, Federation):
        fed = dataset
        if many not in (None, len(fed)):
            raise bad("pate", "teachers", many, f"{len(fed)}, the parties of the federation, or left out")
    elif isinstance(dataset, Dataset):
        if many is None:
            raise bad(
                "pate",
                "teachers",
                None,
                "a whole number: the teachers among which the rows are divided",
                "The papers use 250 for MNIST.",
            )
        need = max(2, dataset.classes or 2)
        if len(dataset) < many * need:
            raise BadData(
                f"pate: {many} teachers for {len(dataset):,} rows of {dataset.name} leave "
                f"{len(dataset) // many} rows each; with {need} classes a teacher needs at least {need}. Use "
                f"at most {len(dataset) // need} teachers."
            )
        fed = dataset.split(int(many), seed=seed, held_fraction=0.0)
    else:
        raise bad("pate", "dataset", type(dataset).__name__, "a Dataset (tacit.data.mnist()) or a Federation")
    check_one_label("pate", fed)
    if fed.classes is None:
        raise BadData(f"pate: the target of {fed.name} is numeric, and teachers can only vote on classes.")
    if isinstance(public, bool) or (isinstance(public, int | float) and not 0 < public < 1):
        raise bad(
            "pate", "public", public, "a share of the test set above 0 and below 1, or an array of rows"
        )
    if not isinstance(public, float):
        x = torch.as_tensor(public)
        if x.shape[1:] != fed.rows.x.shape[1:] or not len(x):
            raise BadData(
                f"pate: the public rows have shape {tuple(x.shape)}; each must have the shape of a private "
                f"one, {tuple(fed.rows.x.shape[1:])}."
            )
        return fed, x.to(fed.rows.matrix("pate").dtype), None, fed.test
    cut = int(len(fed.test.y) * public)
    if not 0 < cut < len(fed.test.y):
        raise BadData(
            f"pate: {fed.name} has {len(fed.test.y)} test rows, of which {cut} would be public; both parts "
            "need rows. Give public=rows."
        )
    return fed, fed.test.matrix("pate")[:cut], fed.test.y[:cut], fed.test.take(slice(cut, None))


def make_aggregator(aggregator: Any, teachers: int) -> Aggregator:
    """Return the aggregator that is given, or the default for so many teachers."""
    if aggregator is None:  # the ratios of ICLR 2018 for 250 teachers: T = 200, σ₁ = 150, σ₂ = 40
        return check(ConfidentGNMax(0.8 * teachers, 0.6 * teachers, 0.16 * teachers))
    resolved: Aggregator = resolve(aggregator, AGGREGATOR, "pate", "aggregator")
    return resolved


def _check_settings(
    fed: Federation, aggregator: Aggregator, settings: PateSettings, rows: int, runtime: Any, teachers: Any
) -> None:
    """Check all settings before a model is trained."""
    if settings.queries > rows:
        raise bad("pate", "queries", settings.queries, f"a whole number from 1 to {rows:,}, the public rows")
    noise = settings.noise
    if noise == "teachers" and runtime is None:
        raise bad(
            "pate",
            "noise",
            noise,
            "'server' if all teachers are in one process",
            "Give runtime=tacit.Processes().",
        )
    if noise == "teachers" and not aggregator.distributed:
        raise bad(
            "pate",
            "noise",
            noise,
            f"'server' with {type(aggregator).__name__}",
            "A sum of Laplace noise is not Laplace noise; use GNMax.",
        )
    if runtime is not None and isinstance(teachers, Ensemble):
        raise bad(
            "pate", "runtime", runtime, "None with the teachers of an earlier run, which are in one process"
        )
    if isinstance(aggregator, ConfidentGNMax) and aggregator.threshold > len(fed):
        raise bad(
            "ConfidentGNMax",
            "threshold",
            aggregator.threshold,
            f"at most {len(fed)}, the number of teachers",
            "There are never more votes; the paper's 200 is four fifths of its 250 teachers.",
        )


def _effective_aggregator(aggregator: Aggregator, fed: Federation, threshold: float) -> Aggregator:
    """Return the aggregator whose price is that of the noise the teachers add together."""
    from . import parties as voting

    return voting.effective_aggregator(
        aggregator, voting.make_terms(fed, aggregator, threshold, True), fed.classes or 1
    )


# results ----------------------------------------------------------------------------------------------------


def _train_student(
    fed: Federation,
    index: np.ndarray,
    labels: np.ndarray,
    x: Tensor,
    student: Student,
    model: Any,
    seed: int,
    device: str,
) -> nn.Module:
    confident = labels != UNANSWERED
    public = x.to(device)
    module = models.build(model, tuple(x.shape[1:]), fed.classes or 1, seed)
    return student.teach(
        module,
        public[torch.from_numpy(index[confident]).to(device)],
        torch.from_numpy(labels[confident]).to(device),
        public,
        seed,
    )


@torch.no_grad()
def _measure(module: nn.Module, tests: Rows, classes: int | None, device: str) -> dict[str, Any]:
    if not len(tests.y):
        return {}
    out = torch.cat([module(part.to(device)).cpu() for part in tests.x.split(2048)])
    return {k: v for k, v in measure(count(out, tests.y, classes)).items() if isinstance(v, float)}


def _record_simulation(ledger: Ledger, fed: Federation, parties: bool) -> None:
    if parties:
        ledger.record(
            "whoever runs the simulation",
            f"{len(fed)} parties, together",
            "Rows",
            "every row of every party, in the clear",
            how="ideal",
        )


def _job(
    fed: Federation,
    data_job: dict[str, Any] | None,
    teachers: int,
    queries: int,
    aggregator: Aggregator,
    model: Any,
    student_model: Any,
    lessons: Lessons,
    student: Student,
    epsilon: float | None,
    delta: float,
    noise: str,
    runtime: Any,
    seed: int,
    device: str,
    public: Any,
) -> dict[str, Any]:
    settings = {
        "teachers": teachers,
        "queries": queries,
        "epsilon": epsilon,
        "delta": delta,
        "noise": noise,
        "seed": seed,
        "device": device,
        "public": public if isinstance(public, float) else None,
        "runtime": None if runtime is None else type(runtime).__name__.lower(),
    }
    of_student = {} if student_model is None else {"student_model": models.table_of(student_model)}
    return {
        "data": data_job or {"made_in": "python", "name": fed.name},
        "model": models.table_of(model),
        **of_student,
        "aggregator": to_table(aggregator),
        "lessons": _parameters(lessons),
        "student": _parameters(student),
        "pate": {k: v for k, v in settings.items() if v is not None},
    }


def _parameters(thing: Any) -> dict[str, Any]:
    return {k: v for k, v in to_table(thing).items() if k != "name"}
