"""A training job over the ranks that torchrun or srun started: who leads, and what the others do.

Rank 0 runs the job as one process would, and its cohort shares every round's clients with the other ranks
(runtimes/shared_rounds.py). The other ranks build the same trainer, compute what rank 0 asks for, and return
a result with the same model. Nothing but rank 0 writes files, prints, or calls back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...algorithms.types import State
from ...engine.task import Task
from ...errors import BadParameter, BadRun, RankLost
from ...parties.ledger import Ledger
from ...results import Result
from ...runs import decode_nonfinite, encode_nonfinite
from ...runtimes.ranks import RankGroup, find_launch, join_group
from ...runtimes.shared_rounds import follow
from ...runtimes.shared_rows import share_rows
from .plan import Plan
from .resuming import fingerprints
from .simulated import SimulatedTrainer
from .trainer import RunContext, Trainer

if TYPE_CHECKING:
    from ...release.release import Release

SEED_STEP = 1_000_003  # between the generators of two ranks, for models that draw from torch's own


def group_for(plans: list[Plan]) -> RankGroup | None:
    """Return the ranks that share these runs; None: this process runs them alone."""
    p = plans[0]
    launch = find_launch() if p.ranks == "auto" else None
    if launch is None:
        return None
    why = None
    if p.runtime != "cohort":
        why = f"runtime={p.runtime!r} starts processes of its own"
    elif p.algorithm.sees_each:
        why = f"{type(p.algorithm).__name__} forms clusters, and with them other stacks, after every round"
    if why is not None:
        raise BadParameter(
            f"train: {launch.size} ranks were started, and {why}, so ranks cannot share it. Start one "
            "process, without torchrun or srun."
        )
    return join_group()


def place(plans: list[Plan], group: RankGroup) -> list[Plan]:
    """Return the plans with this rank's own GPU, where there are several, and rows shared by the machine."""
    share_rows([p.fed for p in plans], group)
    if plans[0].device != "cuda" or not group.local_rank:
        return plans
    gpu = f"cuda:{group.local_rank % torch.cuda.device_count()}"
    return [dataclasses.replace(p, device=gpu) for p in plans]


def facts_of(plans: list[Plan], starts: list[State], task: Task, trainer: Trainer) -> dict[str, str]:
    """Return what all ranks must have in common, as digests."""
    jobs = [p.job(None) for p in plans]
    for job in jobs:
        job["train"].pop("device")
    seen: dict[tuple[int, int], dict[str, str]] = {}
    for p, start in zip(plans, starts):
        key = id(p.fed), p.seed
        seen[key] = seen.get(key) or fingerprints(p, start, task)
    return {
        "the job": _digest(jobs),
        "the rows, or who holds them": _digest([f["data"] for f in seen.values()]),
        "the model before training": _digest([f["model"] for f in seen.values()]),
        "the engine": trainer.name,
        "the version of torch": torch.__version__,
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def meet(group: RankGroup, facts: dict[str, str]) -> None:
    """Wait until every other rank is ready, and check that it runs the same."""
    for q in group.peers:
        theirs = group.receive(q).values
        other = [name for name, value in facts.items() if theirs.get(name) != value]
        if other:
            raise BadRun(
                f"{group.name(q)} differs from rank 0 in {', '.join(other)}. All ranks must run the same "
                "script with the same data: seed what is random, and read the same files."
            )


def lead(group: RankGroup, directory: Path | None, work: Callable[[], list[Result]]) -> list[Result]:
    """Run the job as rank 0; the other ranks learn how it ends."""
    group.open()
    try:
        results = work()
        for q in group.peers:
            group.send(q, "end", *_encode(results))
        for q in group.peers:
            group.receive(q)  # its bye
    except RankLost as error:
        full = RankLost(f"{error} {_how_to_resume(directory)}")
        group.stop(full)
        raise full from None
    except BaseException as error:
        group.stop(error)
        raise
    group.close()
    return results


def _how_to_resume(directory: Path | None) -> str:
    if directory is None:
        return "The run was in memory, and is lost: give it a directory (out=…) to resume it."
    return (
        f"The run in {directory} can be resumed after its last saved round, with any number of ranks: "
        f"resume=True, or `tacit run --resume {directory}`."
    )


def _encode(results: Sequence[Result]) -> tuple[dict[str, Any], State]:
    tensors: State = {}
    for i, r in enumerate(results):
        tensors |= {f"{i}.{k}": v for k, v in r.model.state_dict().items()}
    runs = [
        {
            "metrics": encode_nonfinite(r.metrics),
            "ledger": r.ledger.to_dict(),
            "events": encode_nonfinite(r.events),
            "directory": None if r.directory is None else str(r.directory),
        }
        for r in results
    ]
    return {"runs": runs}, tensors


def follow_job(
    group: RankGroup,
    plans: list[Plan],
    make_trainer: Callable[[RunContext], tuple[Trainer, list[State]]],
    release: Callable[[int], Release],
    jobs: list[dict[str, Any]],
) -> list[Result]:
    """Run the job as another rank than 0; return results with rank 0's models and metrics."""
    group.open()
    try:
        trainer, starts = make_trainer(RunContext(ranks=group))
        assert isinstance(trainer, SimulatedTrainer)
        if trainer.task.draws:
            torch.default_generator.manual_seed(plans[0].seed + SEED_STEP * group.rank)
        group.send(0, "hello", facts_of(plans, starts, trainer.task, trainer))
        end = follow(trainer.cohort, group)
        results = []
        for i, (p, run) in enumerate(zip(plans, end.values["runs"])):
            module = trainer.task.module_at(starts[i]["w"], starts[i].get("buffers"))
            own = {k.partition(".")[2]: v for k, v in end.tensors.items() if k.startswith(f"{i}.")}
            module.load_state_dict(own)
            results.append(
                Result(
                    module,
                    decode_nonfinite({"kind": "end", "metrics": run["metrics"]})["metrics"],
                    Ledger.from_dict(run["ledger"]),
                    jobs[i],
                    [decode_nonfinite(e) for e in run["events"]],
                    None if run["directory"] is None else Path(run["directory"]),
                    p,
                    _refuse_personal if p.algorithm.personalizes and p.topology is None else None,
                    release(i),
                )
            )
        group.send(0, "bye")
    except RankLost:  # of rank 0, or told by it
        raise
    except BaseException as error:
        group.stop(error)
        raise
    group.close()
    return results


def _refuse_personal() -> dict[str, Any]:
    raise BadRun(
        "the models of single parties are with rank 0. Use them there: if os.environ['RANK'] == '0'."
    )
