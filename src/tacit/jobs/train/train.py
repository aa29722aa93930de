"""tacit.train: one model across the parties of a federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from ...algorithms.types import State
from ...config import conflicts
from ...config.audit import keep_terms, read_terms
from ...config.signature import with_options
from ...config.train import OPTIONS
from ...data.federation import Federation
from ...parameters import bad
from ...results import Result
from ...runs import (
    Event,
)
from ...runtimes.ranks import RankGroup
from . import ranked
from .plan import Plan, make_plan
from .trainer import RunContext, Trainer
from .trainer_kinds import trainer_class
from .training import Training

if TYPE_CHECKING:
    from ...config.types import TrainOptions


@with_options(OPTIONS)
def train(
    fed: Federation,
    *,
    out: str | Path | None = None,
    resume: bool | str | Path | Result = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    release: str | Mapping[str, Any] | None = None,
    **options: Unpack[TrainOptions],
) -> Result:
    """Train one model across the parties of a federation.

    The run is kept in the directory `out`, or in memory; `resume` continues a run that was stopped, or with
    more `rounds` one that had ended: True for the run in `out`, its directory, or its result.
    `watch` is called with every event of the run; if it raises an exception, the run ends after that round,
    and the exception has the result so far as `error.result`. `data_job` is the [data] table to keep in the
    run's job file.

    A guard that hides updates leaves only metrics of all parties together. With `pace`, a round is a new
    version of the model; with `speed`, every round has a time on a virtual clock.

    release="audited" attacks the run when it has ended (`tacit.audit.release`; a mapping with name="audited"
    sets `budget` and limits). What was found is `result.audited`; a model that did not pass is not exported.
    """
    p = make_plan(fed, **options)
    terms = None if release is None else read_terms(release, "train")
    if isinstance(resume, Result):
        if resume.directory is None:
            raise bad(
                "train", "resume", "a run in memory", "a run with a directory", "Train it with out='…'."
            )
        resume = resume.directory
    if isinstance(resume, str | Path):
        if out is not None and Path(out) != Path(resume):
            raise bad("train", "out", out, f"left out, or {str(resume)!r}, the run to resume")
        out, resume = resume, True
    if out is not None and not isinstance(out, str | Path):
        raise bad("train", "out", out, "a directory for the run, or None (keep it in memory)")
    if resume and out is None:
        raise bad("train", "out", out, "the directory of the run to resume", "Or leave out resume.")
    if resume:
        conflicts.check_resume(p)
    if terms is None:
        return train_side_by_side([p], [out], resume=resume, data_jobs=[data_job], watch=watch)[0]
    kept = terms

    def begin(event: Event) -> None:
        if out is not None and event["kind"] == "start":
            keep_terms(Path(out), kept)  # a run that is killed before its audit is not released either
        if watch is not None:
            watch(event)

    run = train_side_by_side([p], [out], resume=resume, data_jobs=[data_job], watch=begin)[0]
    from ..audit.release import audit_result

    run.audited = audit_result(run, terms)
    return run


def train_side_by_side(
    plans: list[Plan],
    outs: Sequence[str | Path | None],
    *,
    resume: bool = False,
    data_jobs: Sequence[dict[str, Any] | None] | None = None,
    watch: Callable[[Event], None] | None = None,
    together: Path | None = None,
) -> list[Result]:
    """Train runs that share a model and an algorithm as one stack; each gets the result it would get alone.

    Several runs are resumed from the file `together`, in which the stack was saved as a whole.
    """
    jobs = [p.job(d) for p, d in zip(plans, data_jobs or [None] * len(plans))]
    group = ranked.group_for(plans)
    if group is None:
        return _train_here(plans, outs, resume, jobs, watch, together)
    plans = ranked.place(plans, group)
    if not group.leads:
        with torch_settings(plans[0]):
            return _follow(group, plans, jobs)
    directory = None if outs[0] is None else Path(outs[0])
    return ranked.lead(
        group, directory, lambda: _train_here(plans, outs, resume, jobs, watch, together, group)
    )


def _follow(group: RankGroup, plans: list[Plan], jobs: list[dict[str, Any]]) -> list[Result]:
    training = Training(plans, [None] * len(plans), jobs, None, None)

    def make_trainer(context: RunContext) -> tuple[Trainer, list[State]]:
        training.trainer = trainer_class(plans[0])(training.task, training.starts, plans, context)
        return training.trainer, training.starts

    return ranked.follow_job(group, plans, make_trainer, training.release, jobs)


def _train_here(
    plans: list[Plan],
    outs: Sequence[str | Path | None],
    resume: bool,
    jobs: list[dict[str, Any]],
    watch: Callable[[Event], None] | None,
    together: Path | None,
    group: RankGroup | None = None,
) -> list[Result]:
    with torch_settings(plans[0]), closing(Training(plans, outs, jobs, watch, together, group)) as training:
        training.open(resume)
        training.run()
        results = training.finish()
        for callback in plans[0].callbacks:
            try:
                callback.on_end(results[0])
            except Exception as error:
                training.failure = training.failure or error
        if training.failure is not None:
            raise _with_results(training.failure, results)
        return results


def _with_results(error: Exception, results: list[Result]) -> Exception:
    """Return the exception with the results of the rounds before it, and a note that says so."""
    error.result = results[0] if len(results) == 1 else results  # type: ignore[attr-defined]
    last = max((row["round"] for row in results[0].history), default=0)
    where = results[0].directory
    more = "" if where is None else f" Resume it with out={str(where)!r}, resume=True."
    error.add_note(f"training ended after round {last}; the model so far is error.result.model.{more}")
    return error


@contextmanager
def torch_settings(p: Plan) -> Iterator[None]:
    """Set torch's precision, threads and random state for a run, and restore them afterwards.

    On a CPU the engine gives each core its own work, so torch uses one thread: on a busy machine its threads
    would spend more time waiting for each other than they save.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    torch.set_float32_matmul_precision("high" if p.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = p.precision == "tf32"
    if p.device == "cpu":
        torch.set_num_threads(1)
    try:
        gpus = [] if p.device == "cpu" else [torch.device(p.device)]
        with torch.random.fork_rng(devices=gpus):  # the caller's random state stays as it was
            # torch.manual_seed would reset every GPU, also those not used here
            torch.default_generator.manual_seed(p.seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu.index or 0].manual_seed(p.seed)
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.set_num_threads(before[2])
