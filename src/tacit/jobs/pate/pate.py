"""`tacit.pate`: a student trained on the noisy votes of teachers with disjoint data."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import models
from ...data.federation import Dataset, Federation, Rows, check_one_label
from ...engine.metrics import count, measure
from ...errors import BadData, BadParameter
from ...files import write_atomic
from ...parameters import bad, check, nearest, to_table
from ...parties.ledger import Ledger, Spend
from ...private.pate import AGGREGATOR, ALL, UNANSWERED, Aggregator, ConfidentGNMax, LNMax, VoteCost
from ...private.pate_student import Lessons, Student
from ...runs import check_unused
from ..devices import device_for
from .teachers import Ensemble, train

CONFIDENTIAL = "computed from the votes, which it reveals: do not publish it"


class SmallDelta(UserWarning):
    """δ is so large that the definition permits publishing one row."""


@dataclass
class PateResult:
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

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one self-contained HTML file without anything confidential."""
        from ...private.pate_report import write

        return write(self, Path(path) if path is not None else (self.directory or Path()) / "report.html")

    def save(self, path: str | Path) -> Path:
        """Write job, result, labels, student and report; nothing confidential."""
        import tomli_w
        from safetensors.torch import save

        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        public = {k: v for k, v in self.to_dict().items() if k not in ("ledger", "job")}
        lines = [f"{r},{y}\n" for r, y in zip(self.questions, self.labels) if y != UNANSWERED]
        weights = {k: v.detach().cpu().contiguous() for k, v in self.student.state_dict().items()}
        write_atomic(directory / "job.toml", tomli_w.dumps(self.config))
        write_atomic(directory / "result.json", json.dumps(public, indent=1))
        write_atomic(directory / "labels.csv", "row,label\n" + "".join(lines))
        write_atomic(directory / "student.safetensors", save(weights))
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
    runtime: Any = None,
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

    With `runtime` (`tacit.InProcess()` or `tacit.Processes()`) each teacher is a party that trains by itself,
    and votes are summed by secure aggregation. The noise is added by the "server", which then sees the
    counts, or by the "teachers" together, so that it does not.

    `seed` affects the partition, the queries and the training. The noise always comes from the operating
    system, so two runs with the same seed differ.
    """
    fed, x, known, tests = _split_rows(dataset, teachers, public, seed)
    lessons, student = check(lessons or Lessons()), check(student or Student())
    aggregator = _make_aggregator(aggregator, len(fed))
    device = device_for("pate", device)
    if runtime is not None:
        from ...runtimes.choose import choose_runtime

        runtime = choose_runtime("pate", runtime)
    split = _settings(fed, aggregator, queries, len(x), epsilon, delta, noise, runtime, seed, teachers)
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
    affordable = _affordable_queries(priced, queries, epsilon, delta, earlier, split)
    if publish and earlier:
        raise bad(
            "pate",
            "publish",
            publish,
            "False if `before` lists earlier runs",
            "Data-dependent costs of several runs are not added up.",
        )
    if publish and split:
        raise bad(
            "pate",
            "publish",
            publish,
            "False if teachers add the noise",
            "No party has the counts from which a data-dependent ε is computed.",
        )
    if publish and epsilon is not None:
        raise bad(
            "pate",
            "publish",
            publish,
            "False with a budget",
            "The budget does not cover the cost of publishing. Remove epsilon or publish.",
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
    bound, guaranteed = _guarantee(priced, len(index), epsilon, delta, earlier, earlier_bound, split)
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
    covered = _count_covered(priced, labels, epsilon, delta, earlier, split)
    index, labels, counts = index[:covered], labels[:covered], None if counts is None else counts[:covered]
    spent = (
        VoteCost(covered, int((labels != UNANSWERED).sum()), delta, 0.0)
        if counts is None
        else aggregator.spent(counts, labels, delta, publish)
    )
    price = priced.price(covered, spent.answers, split)
    used = _total_epsilon(priced, covered, spent.answers, delta, earlier, split)
    reported = guaranteed if spent.released is None else spent.epsilon
    ledger.spend(
        _spend_line(
            aggregator, spent, reported, used, delta, split, runtime is not None, len(before), epsilon
        )
    )
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
        result.save(directory)
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
        return fed, x.to(fed.rows.x.dtype), None, fed.test
    cut = int(len(fed.test.y) * public)
    if not 0 < cut < len(fed.test.y):
        raise BadData(
            f"pate: {fed.name} has {len(fed.test.y)} test rows, of which {cut} would be public; both parts "
            "need rows. Give public=rows."
        )
    return fed, fed.test.x[:cut], fed.test.y[:cut], Rows(fed.test.x[cut:], fed.test.y[cut:])


def _make_aggregator(aggregator: Any, teachers: int) -> Aggregator:
    if aggregator is None:  # the ratios of ICLR 2018 for 250 teachers: T = 200, σ₁ = 150, σ₂ = 40
        return check(ConfidentGNMax(0.8 * teachers, 0.6 * teachers, 0.16 * teachers))
    if isinstance(aggregator, str):
        member = {k.lower(): v for k, v in ALL.items()}.get(aggregator.lower())
        if member is None:
            raise bad("pate", "aggregator", aggregator, str(AGGREGATOR), nearest(aggregator, list(ALL)))
        aggregator = member()
    if not isinstance(aggregator, Aggregator):
        raise bad("pate", "aggregator", aggregator, str(AGGREGATOR))
    return check(aggregator)


def _settings(
    fed: Federation,
    aggregator: Aggregator,
    queries: Any,
    rows: int,
    epsilon: Any,
    delta: Any,
    noise: Any,
    runtime: Any,
    seed: Any,
    teachers: Any,
) -> bool:
    """Check all settings before a model is trained; return whether the teachers add the noise."""
    if isinstance(queries, bool) or not isinstance(queries, int) or not 1 <= queries <= rows:
        raise bad("pate", "queries", queries, f"a whole number from 1 to {rows:,}, the public rows")
    if epsilon is not None and (
        isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf
    ):
        raise bad("pate", "epsilon", epsilon, "a number above 0, or None (no budget)")
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise bad("pate", "delta", delta, "a probability above 0 and below 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise bad("pate", "seed", seed, "a whole number of at least 0")
    if noise not in ("server", "teachers"):
        raise bad("pate", "noise", noise, "'server' or 'teachers'")
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
    return noise == "teachers"


# the budget -------------------------------------------------------------------------------------------------


def _effective_aggregator(aggregator: Aggregator, fed: Federation, threshold: float) -> Aggregator:
    """Return the aggregator whose price is that of the noise the teachers add together."""
    from . import parties as voting

    return voting.effective_aggregator(
        aggregator, voting.make_terms(fed, aggregator, threshold, True), fed.classes or 1
    )


def _total_epsilon(
    aggregator: Aggregator, queries: int, answers: int, delta: float, earlier: float, split: bool
) -> float:
    """Return the data-independent ε, including earlier runs: prices add up."""
    from ...accounting.votes import gaussian_votes_epsilon

    return (
        aggregator.epsilon(queries, answers, delta, split)
        if not earlier
        else gaussian_votes_epsilon(earlier + aggregator.price(queries, answers, split), delta)
    )


def _affordable_queries(
    aggregator: Aggregator, queries: int, epsilon: float | None, delta: float, earlier: float, split: bool
) -> int:
    """Return how many queries the budget covers if all are answered; at least one, or raise."""
    if epsilon is None:
        return queries
    low, high = 0, queries + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high)
            if _total_epsilon(aggregator, middle, middle, delta, earlier, split) <= epsilon
            else (low, middle)
        )
    if low:
        return low
    if earlier:
        was, more = (_total_epsilon(aggregator, n, n, delta, earlier, split) for n in (0, 1))
        raise BadParameter(
            f"pate: the budget ε = {epsilon:g} is spent: earlier runs cost ε = {was:.4g} at δ = {delta:g}, "
            f"and one more answer makes it {more:.4g}. These rows allow no further queries."
        )
    raise BadParameter(
        f"pate: the budget ε = {epsilon:g} does not cover one answer of {aggregator}, which costs ε = "
        f"{aggregator.epsilon(1, 1, delta, split):.4g} at δ = {delta:g}. Use a larger budget, or more noise "
        "and more teachers."
    )


def _count_covered(
    aggregator: Aggregator,
    labels: np.ndarray,
    epsilon: float | None,
    delta: float,
    earlier: float,
    split: bool,
) -> int:
    """Return how many queries, in their order, the budget covers.

    Each stop is decided by earlier answers, so the budget holds (a filter on zCDP).
    """
    if epsilon is None or not isinstance(aggregator, ConfidentGNMax):
        return len(labels)
    answered = 0
    for i, label in enumerate(labels):
        if _total_epsilon(aggregator, i + 1, answered + 1, delta, earlier, split) > epsilon:
            return i
        answered += label != UNANSWERED
    return len(labels)


def _guarantee(
    aggregator: Aggregator,
    queries: int,
    epsilon: float | None,
    delta: float,
    earlier: float,
    earlier_bound: float,
    split: bool,
) -> tuple[float, float]:
    """Return (the largest possible price of this run, ε of all runs), before the first query.

    How many queries ConfidentGNMax answers depends on the votes, so the ε of the given answers is no (ε, δ)
    guarantee: it is not known in advance. What holds is the cost if all were answered, and the budget, since
    queries stop before it (a filter: R. Rogers, A. Roth, J. Ullman, S. Vadhan, *Privacy Odometers and
    Filters*, NeurIPS 2016; under zCDP costs may be chosen by earlier answers without loss).
    """
    all_answered = aggregator.price(queries, queries, split)
    most = _total_epsilon(aggregator, queries, queries, delta, earlier_bound, split)
    if epsilon is None or most <= epsilon:
        return all_answered, most
    within = (
        math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))
    ) ** 2  # the price whose ε is the budget
    return min(all_answered, max(within - earlier, aggregator.price(1, 1, split))), epsilon


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


def _spend_line(
    aggregator: Aggregator,
    spent: VoteCost,
    reported: float,
    used: float,
    delta: float,
    split: bool,
    parties: bool,
    earlier: int,
    budget: float | None,
) -> Spend:
    noise = "discrete Laplace" if isinstance(aggregator, LNMax) else "discrete Gaussian"
    whom = (
        "whoever sees labels and student, including the server if enough teachers add their noise"
        if split
        else "whoever sees labels and student, but not the server, which sees the counts"
        if parties
        else "whoever sees labels and student"
    )
    released = spent.released is not None and reported == spent.released
    if released:
        basis = (
            "data-dependent, published with smooth-sensitivity noise: a bound for these votes, known only "
            "afterwards, not for all data."
        )
    elif spent.released is not None:
        basis = (
            "data-independent, including the cost of publishing a data-dependent one; known only afterwards."
        )
    elif not isinstance(aggregator, ConfidentGNMax):
        basis = "data-independent."
    else:
        what = (
            "as if every query were answered" if reported != budget else "the budget, at which queries stop"
        )
        basis = (
            f"data-independent: {what}. The given answers cost ε = {used:.4g}, which depends on the votes "
            "and is no guarantee."
        )
    return Spend(
        f"{aggregator}: {spent.answers} answers to {spent.queries} queries, {noise} noise",
        reported,
        delta,
        "row of a teacher's data, or all of its rows, exchanged for others",
        whom,
        "no",
        f"{basis}{f' With {earlier} earlier runs.' if earlier else ''} The student only depends on the "
        "labels and public rows.",
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
    def to_named_table(model: Any) -> dict[str, Any]:
        known = next((k for k, v in models.ALL.items() if v is type(model)), None)
        return {**to_table(model), "name": known} if known else {"name": models.name_of(model)}

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
    of_student = {} if student_model is None else {"student_model": to_named_table(student_model)}
    return {
        "data": data_job or {"made_in": "python", "name": fed.name},
        "model": to_named_table(model),
        **of_student,
        "aggregator": to_table(aggregator),
        "lessons": _parameters(lessons),
        "student": _parameters(student),
        "pate": {k: v for k, v in settings.items() if v is not None},
    }


def _parameters(thing: Any) -> dict[str, Any]:
    return {k: v for k, v in to_table(thing).items() if k != "name"}
