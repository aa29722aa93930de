"""What ranks run in test_ranks.py: `python rank_job.py CASE…`. Prints {"case": digest of the model} as JSON.

RANK_DIES=n: this rank is killed when it gets the order of round n; rank 0, when it has written round n. RANK_DATA=s: it splits with another seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit import aggregate, algorithms, data, guard, models, pace
from tacit.runtimes import shared_rounds, shared_rows

CASES: dict[str, dict[str, Any]] = {
    "a stack": {"algorithm": algorithms.FedAvg(lr=0.3)},
    "kept state": {"algorithm": algorithms.Scaffold(lr=0.3), "engine": "each"},
    "kept state, stacked": {"algorithm": algorithms.Scaffold(lr=0.3)},
    "each update": {"aggregate": aggregate.Median(), "engine": "each"},
    "a guard": {
        "guard": [guard.Clip(0.5), guard.Noise(multiplier=0.3)],
        "insecure_seed": 5,
        "engine": "each",
    },
    "malicious parties": {"adversaries": {"sign_flip": 0.25}, "engine": "each"},
    "no rounds": {"pace": pace.FedBuff(3)},
    "a hierarchy": {"topology": tacit.Hierarchy([3])},
    "early stopping": {"patience": 1, "rounds": 6, "evaluate_every": 1},
    "a stop of each member": {
        "model": models.MLP((4,), members=3),
        "algorithm": algorithms.FedAdam(lr=0.1, server_lr=0.5, tau=1e-3),
        "patience": 2,
        "rounds": 6,
        "evaluate_every": 1,
        "stop_by": "loss",
    },
}


def federation() -> data.Federation:
    seed = int(os.environ.get("RANK_DATA", "0"))
    return data.digits().split(12, data.Dirichlet(0.5), seed=seed, held_fraction=0.2)


def train(case: str, **more: Any) -> tacit.Result:
    options = {"model": "logistic", "rounds": 3, "per_round": 9, "batch_size": 8, "evaluate_every": 3}
    return tacit.train(federation(), **{**options, "min_rows": 1, **CASES[case], **more})


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values())).hexdigest()


def die_in_round(number: int) -> None:
    answer = shared_rounds._answer_round

    def or_die(cohort: Any, group: Any, frame: Any) -> None:
        if frame.values["number"] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        answer(cohort, group, frame)

    shared_rounds._answer_round = or_die


def die_after_round(number: int) -> Callable[[dict[str, Any]], None]:
    def watch(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def main(names: list[str]) -> None:
    out: dict[str, Any] = {}
    if "RANK_DIES" in os.environ:
        die_in_round(int(os.environ["RANK_DIES"]))
    for name in names:
        case, _, directory = name.partition("=")
        more = {"out": directory, "resume": Path(directory).exists(), "rounds": 5} if directory else {}
        if "RANK_DIES" in os.environ and os.environ["RANK"] == "0":
            more["watch"] = die_after_round(int(os.environ["RANK_DIES"]))
        result = train(case, **more)
        out[case] = digest(result.model)
        out[f"{case}: metrics"] = {k: v for k, v in result.metrics.items() if isinstance(v, float)}
    if "RANK_SHARES" in os.environ:
        shared_rows.LEAST = 1000  # bytes; the rows of a test are few
        fed = federation()
        before = fed.rows.x.clone()
        tacit.train(fed, model="logistic", rounds=1)
        maps = Path("/proc/self/maps").read_text()
        out["is mapped"] = any("tacit-rows" in line and "(deleted)" in line for line in maps.splitlines())
        out["is equal"] = bool(torch.equal(fed.rows.x, before))
    print(json.dumps(out))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except tacit.errors.TacitError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
