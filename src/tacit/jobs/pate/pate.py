"""tacit.pate: many teachers on disjoint data, a noisy vote, and a student that learns from its outcome
alone.
"""

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
from ...errors import BadData, BadParameter, BadRun
from ...files import write_atomic
from ...parameters import bad, check, nearest, to_table
from ...parties.ledger import Ledger, Spend
from ...private.pate import AGGREGATOR, ALL, UNANSWERED, Aggregator, ConfidentGNMax, LNMax, VoteCost
from ...private.pate_student import Lessons, Student
from ..devices import device_for
from .teachers import Ensemble, train

CONFIDENTIAL = "computed from the votes, so it tells of them: do not publish it"


class SmallDelta(UserWarning):
    """δ so large that the guarantee allows to give one row away whole."""


@dataclass
class PateResult:
    """What `tacit.pate` gives back. Everything but `confidential` and `teachers` may be published; those two
    hold what the noise hides.
    """

    student: nn.Module
    labels: np.ndarray  # of each question, −1 where there was no answer
    questions: np.ndarray  # which public rows were asked about
    answered: float  # the share of the questions
    epsilon: float
    delta: float
    metrics: dict[str, Any]
    ledger: Ledger
    config: dict[str, Any]
    notes: list[str]
    price: float  # the data-independent cost over the order λ; what `before` adds up
    history: list[dict[str, float]]  # ε and the student's accuracy after each run so far, this one last
    confidential: dict[str, Any] = field(repr=False, default_factory=dict)
    teachers: Ensemble | None = field(repr=False, default=None)
    directory: Path | None = None
    bound: float = 0.0  # what `price` could have come to, whatever the votes: what `epsilon` is computed from
    used: float = 0.0  # ε of the answers that were given, known only afterwards: no guarantee

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one self-contained HTML file; nothing confidential is in it."""
        from ...private.pate_report import write

        return write(self, Path(path) if path is not None else (self.directory or Path()) / "report.html")

    def to_dict(self) -> dict[str, Any]:
        """What may be published, as plain values."""
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
    """A student that learns from a noisy vote of teachers, each of whom saw other rows.

    `dataset`: its rows are private and dealt out to `teachers` at random; or a Federation, whose parties are
    the teachers. `public`: the rows that may be asked about and that the student learns from without labels:
    a share of the test set (the rest measures the student), or an array of rows. `queries` of them, drawn at
    random, are asked about. With `epsilon`, questions stop before the data-independent ε of everything asked,
    in this run and in those listed in `before`, would exceed it; what those asked is not asked again, and the
    student learns from their answers, too. The result's `epsilon` is settled before the first question: the
    budget, or the cost if every question were answered. What the given answers cost is `used`; it depends on
    the votes. `publish` also releases a data-dependent ε, with smooth-sensitivity noise. With `runtime`
    (`tacit.InProcess()` or `tacit.Processes()`) each teacher is a party that trains by itself, and votes are
    summed under secure aggregation; the noise is added by the "server" that asks, which then sees the counts,
    or by the "teachers" together, so that it does not.
    """
    fed, x, known, tests = _split_rows(dataset, teachers, public, seed)
    lessons, student = check(lessons or Lessons()), check(student or Student())
    aggregator = _make_aggregator(aggregator, len(fed))
    device = device_for("pate", device)
    split = _settings(fed, aggregator, queries, len(x), epsilon, delta, noise, runtime, seed, teachers)
    directory = None if out is None else _free(Path(out))
    notes = list(fed.notes)
    if isinstance(dataset, Dataset) and dataset.table is not None and dataset.table.reads_rows:
        notes.append(
            "columns were scaled and encoded by statistics of the private rows, which ε does not cover; "
            "encode with public ones if that matters."
        )
    if delta >= 1 / int(fed.train.sizes.sum()):
        warnings.warn(
            f"δ = {delta:g} is not below 1/{int(fed.train.sizes.sum()):,}, one over the private rows: a "
            "mechanism that publishes one row whole "
            "would pass.",
            SmallDelta,
            stacklevel=2,
        )  # for whoever holds the rows; their number is in no file
    priced = _effective_aggregator(aggregator, fed, threshold) if split else aggregator
    earlier, earlier_bound = sum(run.price for run in before), sum(run.bound for run in before)
    many = _affordable_queries(priced, queries, epsilon, delta, earlier, split)
    if publish and earlier:
        raise bad(
            "pate",
            "publish",
            publish,
            "False where `before` lists earlier runs",
            "Data-dependent costs of several runs are not added up.",
        )
    if publish and split:
        raise bad(
            "pate",
            "publish",
            publish,
            "False where teachers add the noise",
            "Nobody has the counts that a data-dependent ε is computed from.",
        )
    if publish and epsilon is not None:
        raise bad(
            "pate",
            "publish",
            publish,
            "False with a budget",
            "What publishing costs is not in the budget. Leave out epsilon, or publish.",
        )
    if many < queries:
        notes.append(
            f"the budget ε = {epsilon:g} allows {many:,} of {queries:,} questions, were all of them answered."
        )
    asked = np.random.default_rng([seed, 7]).permutation(len(x))
    asked = asked[~np.isin(asked, [i for run in before for i in run.questions])]
    if queries > len(asked):
        raise bad(
            "pate",
            "queries",
            queries,
            f"at most {len(asked):,}, the public rows that earlier runs did not aggregator about",
        )
    # Where the check may say no, more may be asked than would be affordable if all were answered; but not
    # where the server hears every noisy count.
    asked = asked[: queries if isinstance(priced, ConfidentGNMax) and not split else many]
    rows, ledger = x[torch.from_numpy(asked)], Ledger()
    bound, guaranteed = _guarantee(priced, len(asked), epsilon, delta, earlier, earlier_bound, split)
    ensemble = None
    if runtime is None:
        ensemble = teachers if isinstance(teachers, Ensemble) else train(fed, model, lessons, seed, device)
        notes += ensemble.notes
        counts: np.ndarray | None = ensemble.counts(rows)
        labels = aggregator.decide(counts)  # type: ignore[arg-type]
        _record_simulation(ledger, fed, isinstance(dataset, Federation))
    else:
        from . import parties as voting  # needs what real parties need; a simulation does not

        outcome = voting.collect_votes(
            fed, rows, aggregator, model, lessons, seed, runtime, ledger, split, threshold, within
        )
        labels, counts = outcome.labels, outcome.counts
        if len(outcome.included) < len(fed):
            notes.append(f"{len(fed) - len(outcome.included)} of {len(fed)} teachers left before the count.")
    # A budget ends the questions where the next answer might exceed it; what lies behind was never told to
    # anybody.
    keep = _count_covered(priced, labels, epsilon, delta, earlier, split)
    asked, labels, counts = asked[:keep], labels[:keep], None if counts is None else counts[:keep]
    spent = (
        VoteCost(keep, int((labels != UNANSWERED).sum()), delta, 0.0)
        if counts is None
        else aggregator.spent(counts, labels, delta, publish)
    )
    price = priced.price(keep, spent.answered, split)
    used = _total_epsilon(priced, keep, spent.answered, delta, earlier, split)
    told = guaranteed if spent.released is None else spent.told
    ledger.spend(
        _spend_line(aggregator, spent, told, used, delta, split, runtime is not None, len(before), epsilon)
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
    if directory is not None:  # what is spent is written before anything is made of it
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / "ledger.json", json.dumps(ledger.to_dict(), indent=1))
    if not spent.answered:
        raise BadData(
            f"none of the {keep} questions was answered, and asking cost ε = {told:.4g}. Lower the "
            "threshold of ConfidentGNMax, or take fewer and "
            "better teachers."
        )
    rows_asked, all_labels = (
        np.concatenate([*(getattr(run, k) for run in before), new])
        for k, new in (("questions", asked), ("labels", labels))
    )
    module = _train_student(fed, rows_asked, all_labels, x, student, student_model or model, seed, device)
    metrics = {"answered": spent.answered / keep, **_measure(module, tests, fed.classes, device)}
    if known is not None:
        right = labels == known.numpy()[asked]
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
        {"epsilon": told, **({"accuracy": metrics["accuracy"]} if "accuracy" in metrics else {})},
    ]
    done = PateResult(
        module,
        labels,
        asked,
        spent.answered / keep,
        told,
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
        _keep(done, directory)
    return done


# what is given ----------------------------------------------------------------------------------------------


def _split_rows(
    dataset: Any, teachers: Any, public: Any, seed: int
) -> tuple[Federation, Tensor, Tensor | None, Rows]:
    """(who teaches on what, the public rows, their labels where they are known to whoever measures, the rows
    the student is measured on).
    """
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
                "a whole number: among how many teachers the rows are dealt out",
                "The papers take 250 for MNIST.",
            )
        need = max(2, dataset.classes or 2)
        if len(dataset) < many * need:
            raise BadData(
                f"pate: {many} teachers for {len(dataset):,} rows of {dataset.name} leave "
                f"{len(dataset) // many} rows each; with {need} classes a "
                f"teacher needs at least {need}. Take at most {len(dataset) // need} teachers."
            )
        fed = dataset.split(int(many), seed=seed, held_fraction=0.0)
    else:
        raise bad("pate", "dataset", type(dataset).__name__, "a Dataset (tacit.data.mnist()) or a Federation")
    check_one_label("pate", fed)
    if fed.classes is None:
        raise BadData(f"pate: {fed.name} has numbers to predict, and teachers can only vote on classes.")
    if isinstance(public, bool) or (isinstance(public, int | float) and not 0 < public < 1):
        raise bad(
            "pate", "public", public, "a share of the test set above 0 and below 1, or an array of rows"
        )
    if not isinstance(public, float):
        x = torch.as_tensor(public)
        if x.shape[1:] != fed.rows.x.shape[1:] or not len(x):
            raise BadData(
                f"pate: the public rows have shape {tuple(x.shape)}; each must be like a private one, "
                f"{tuple(fed.rows.x.shape[1:])}."
            )
        return fed, x.to(fed.rows.x.dtype), None, fed.test
    cut = int(len(fed.test.y) * public)
    if not 0 < cut < len(fed.test.y):
        raise BadData(
            f"pate: {fed.name} has {len(fed.test.y)} test rows, of which {cut} would be public; there must "
            "be some of both. Give public=rows."
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
    """Whether the teachers add the noise. Everything is refused here, before a model is trained."""
    if isinstance(queries, bool) or not isinstance(queries, int) or not 1 <= queries <= rows:
        raise bad("pate", "queries", queries, f"a whole number from 1 to {rows:,}, the public rows")
    if epsilon is not None and (
        isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf
    ):
        raise bad("pate", "epsilon", epsilon, "a number above 0, or None (no budget)")
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 < delta < 1:
        raise bad("pate", "delta", delta, "a probability above 0 and below 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise bad("pate", "seed", seed, "a whole number at least 0")
    if noise not in ("server", "teachers"):
        raise bad("pate", "noise", noise, "'server' or 'teachers'")
    if noise == "teachers" and runtime is None:
        raise bad(
            "pate",
            "noise",
            noise,
            "'server' where one process holds all teachers",
            "Give runtime=tacit.Processes().",
        )
    if noise == "teachers" and not aggregator.distributed:
        raise bad(
            "pate",
            "noise",
            noise,
            f"'server' with {type(aggregator).__name__}",
            "A sum of Laplace parts is not Laplace noise; use GNMax.",
        )
    if runtime is not None and (isinstance(teachers, Ensemble) or not hasattr(runtime, "run_sync")):
        raise bad(
            "pate",
            "runtime",
            runtime,
            "tacit.InProcess(…) or tacit.Processes(…), with teachers that train there",
        )
    if isinstance(aggregator, ConfidentGNMax) and aggregator.threshold > len(fed):
        raise bad(
            "ConfidentGNMax",
            "threshold",
            aggregator.threshold,
            f"at most {len(fed)}, the number of teachers",
            "More votes than that are never cast; the paper's 200 is four fifths of its 250 teachers.",
        )
    return noise == "teachers"


def _free(path: Path) -> Path:
    if (path / "ledger.json").exists():
        raise BadRun(
            f"{path} already holds a run, whose ledger is never written over. Give another directory."
        )
    if path.exists() and not path.is_dir():
        raise BadRun(f"{path} is a file; a run needs a directory. Give another one.")
    return path


# the budget -------------------------------------------------------------------------------------------------


def _effective_aggregator(aggregator: Aggregator, fed: Federation, threshold: float) -> Aggregator:
    """The aggregator whose price is that of noise which the teachers add together."""
    from . import parties as voting

    return voting.effective_aggregator(
        aggregator, voting.make_terms(fed, aggregator, threshold, True), fed.classes or 1
    )


def _total_epsilon(
    aggregator: Aggregator, asked: int, answered: int, delta: float, earlier: float, split: bool
) -> float:
    """The data-independent ε with what was spent before: costs that are linear in the order add up."""
    from ...accounting.votes import gaussian_votes_epsilon

    return (
        aggregator.epsilon(asked, answered, delta, split)
        if not earlier
        else gaussian_votes_epsilon(earlier + aggregator.price(asked, answered, split), delta)
    )


def _affordable_queries(
    aggregator: Aggregator, queries: int, epsilon: float | None, delta: float, earlier: float, split: bool
) -> int:
    """How many questions the budget allows, were all answered; a budget that does not allow one is an
    error.
    """
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
            "and one more answer makes it "
            f"{more:.4g}. Nothing more may be asked of these rows."
        )
    raise BadParameter(
        f"pate: the budget ε = {epsilon:g} does not pay for one answer of {aggregator}, which costs ε = "
        f"{aggregator.epsilon(1, 1, delta, split):.4g} at "
        f"δ = {delta:g}. Give a larger budget, or more noise and more teachers."
    )


def _count_covered(
    aggregator: Aggregator,
    labels: np.ndarray,
    epsilon: float | None,
    delta: float,
    earlier: float,
    split: bool,
) -> int:
    """How many questions, in their order, the budget pays for. Each stop is decided by what was told before,
    so the budget holds (a filter on zCDP).
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
    asked: int,
    epsilon: float | None,
    delta: float,
    earlier: float,
    earlier_bound: float,
    split: bool,
) -> tuple[float, float]:
    """(the most this run's price can come to, ε of all runs together): settled before the first question,
    whatever the votes.

    How many questions ConfidentGNMax answers depends on the votes, so the ε of the answers given is no (ε, δ)
    guarantee: it holds for no ε that is known beforehand. What does hold is the cost if all were answered;
    and the budget, since questions stop before it (a filter: R. Rogers, A. Roth, J. Ullman, S. Vadhan,
    "Privacy Odometers and Filters", NeurIPS 2016; on zCDP costs may be chosen by earlier answers without a
    loss).
    """
    all_answered = aggregator.price(asked, asked, split)
    most = _total_epsilon(aggregator, asked, asked, delta, earlier_bound, split)
    if epsilon is None or most <= epsilon:
        return all_answered, most
    within = (
        math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))
    ) ** 2  # the price whose ε is the budget
    return min(all_answered, max(within - earlier, aggregator.price(1, 1, split))), epsilon


# what comes of it -------------------------------------------------------------------------------------------


def _train_student(
    fed: Federation,
    asked: np.ndarray,
    labels: np.ndarray,
    x: Tensor,
    student: Student,
    model: Any,
    seed: int,
    device: str,
) -> nn.Module:
    sure = labels != UNANSWERED
    there = x.to(device)
    module = models.build(model, tuple(x.shape[1:]), fed.classes or 1, seed)
    return student.teach(
        module,
        there[torch.from_numpy(asked[sure]).to(device)],
        torch.from_numpy(labels[sure]).to(device),
        there,
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
    told: float,
    used: float,
    delta: float,
    split: bool,
    parties: bool,
    earlier: int,
    budget: float | None,
) -> Spend:
    noise = "discrete Laplace" if isinstance(aggregator, LNMax) else "discrete Gaussian"
    whom = (
        "whoever sees labels and student, the server among them while enough teachers add their noise"
        if split
        else "whoever sees labels and student, but not the server, which sees the counts"
        if parties
        else "whoever sees labels and student"
    )
    released = spent.released is not None and told == spent.released
    if released:
        basis = (
            "data-dependent, published with smooth-sensitivity noise: known only afterwards, and a "
            "bound for these votes, not for all data."
        )
    elif spent.released is not None:
        basis = "data-independent, and the attempt to publish a data-dependent one; known only afterwards."
    elif not isinstance(aggregator, ConfidentGNMax):
        basis = "data-independent."
    else:
        what = (
            "as if every question had been answered"
            if told != budget
            else "the budget, at which questions stop"
        )
        basis = (
            f"data-independent: {what}. The answers given cost ε = {used:.4g}, which depends on the "
            "votes and is no guarantee."
        )
    return Spend(
        f"{aggregator}: {spent.answered} answers to {spent.asked} questions, {noise} noise",
        told,
        delta,
        "teacher's whole data, and so each row",
        whom,
        "no",
        f"{basis}{f' With {earlier} earlier runs.' if earlier else ''} The student is made of the labels "
        "and public rows alone.",
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
    def named(given: Any) -> dict[str, Any]:
        known = next((k for k, v in models.ALL.items() if v is type(given)), None)
        return {**to_table(given), "name": known} if known else {"name": models.name_of(given)}

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
    of_student = {} if student_model is None else {"student_model": named(student_model)}
    return {
        "data": data_job or {"made_in": "python", "name": fed.name},
        "model": named(model),
        **of_student,
        "aggregator": to_table(aggregator),
        "lessons": _parameters(lessons),
        "student": _parameters(student),
        "pate": {k: v for k, v in settings.items() if v is not None},
    }


def _parameters(thing: Any) -> dict[str, Any]:
    return {k: v for k, v in to_table(thing).items() if k != "name"}


def _keep(done: PateResult, directory: Path) -> None:
    """job.toml, result.json, labels.csv, the student, the report: what may be published, and nothing else."""
    import tomli_w
    from safetensors.torch import save

    write_atomic(directory / "job.toml", tomli_w.dumps(done.config))
    write_atomic(
        directory / "result.json",
        json.dumps({k: v for k, v in done.to_dict().items() if k not in ("ledger", "job")}, indent=1),
    )
    write_atomic(
        directory / "labels.csv",
        "row,label\n" + "".join(f"{r},{y}\n" for r, y in zip(done.questions, done.labels) if y != UNANSWERED),
    )
    write_atomic(
        directory / "student.safetensors",
        save({k: v.detach().cpu().contiguous() for k, v in done.student.state_dict().items()}),
    )
    done.report(directory / "report.html")
