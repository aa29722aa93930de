"""Run by test_resume.py as a program: train or compare, be killed by SIGKILL, resume, and say whether
anything came out differently.

One process imports torch, then forks a fresh child for every run, so that each kill is a real one and costs
no import.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgpack  # noqa: F401  # what a run imports when it starts: once here, not once a child
import numpy as np
import safetensors.torch  # noqa: F401
import tomli_w  # noqa: F401
import torch
import torch.utils.flop_counter

import tacit
from tacit import algorithms, data, pace, runs, speeds
from tacit.jobs.train import messages, paced_parties  # noqa: F401

ROUNDS = 12
OTHERS: dict[str, dict[str, Any]] = {
    "FedBuff": {"pace": pace.FedBuff(buffer=2), "per_round": 4, "speed": speeds.Lognormal(sigma=1.0)},
    "SAFA": {"pace": pace.SAFA(fraction=0.5, lag=1, deadline=0.7), "speed": speeds.Exponential()},
    "early stopping": {"per_round": 3, "evaluate_every": 1, "patience": 1},  # it ends after six rounds
}
LATE = 3, 20  # ticks before the end: after the last state is saved, and after the state of the last round


def settings(algorithm: str, runtime: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    fed = data.from_arrays(x, (x @ rng.normal(size=(4, 3))).argmax(1), classes=3).split(
        6, skew=data.Quantity(0.7), seed=0, min_size=3
    )
    if (
        algorithm == "compare"
    ):  # the first two are one stack; the baselines are another, and parties alone have no directory
        return {
            "feds": fed,
            "algorithms": [algorithms.Scaffold(lr=0.1), algorithms.Scaffold(lr=0.2), "FedAvg"],
            "seeds": 2,
            "model": "logistic",
            "rounds": 8,
            "per_round": 3,
            "batch_size": 8,
            "evaluate_every": 3,
        }
    how: dict[str, Any] = (
        {"algorithm": algorithms.ALL[algorithm](lr=0.1), "per_round": 3}
        if algorithm in algorithms.ALL
        else OTHERS[algorithm]
    )
    return {
        "fed": fed,
        "model": "logistic",
        "rounds": ROUNDS,
        "batch_size": 8,
        "runtime": runtime,
        "evaluate_every": 3,
        **how,
    }


class Clock:
    """Replaces `time` in runs.py: 0.4 s pass at each call, so that the state is saved about every third round and not in
    the first second only.
    """

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.4
        return self.now


class Axe:
    """Counts the writes to disk, before and after each, and kills the process at the given one."""

    def __init__(self, moment: int | None):
        self.moment, self.count = moment, 0

    def install(self) -> None:
        for module, name in ((os, "fsync"), (os, "replace")):
            setattr(module, name, self.around(getattr(module, name)))
        runs.Journal.event = self.around(runs.Journal.event)  # type: ignore[method-assign]

    def around(self, do: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            out = do(*args, **kwargs)
            self.tick()
            return out

        return wrapped

    def tick(self) -> None:
        self.count += 1
        if self.count == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)


def child(out: Path, job: dict[str, Any], moment: int | None = None, delay: float | None = None) -> bool:
    """Train, or resume, in a child process; return whether it was killed."""
    pid = os.fork()
    if pid == 0:
        runs.time = Clock()  # type: ignore[assignment]
        axe = Axe(moment)
        axe.install()
        job = dict(job)
        if "feds" in job:
            found = tacit.compare(job.pop("feds"), **job, out=out, resume=(out / "runs").exists())
            models = [r.model for r in found.results]
        else:
            models = [tacit.train(job.pop("fed"), **job, out=out, resume=(out / "job.toml").exists()).model]
        torch.save(
            {f"{i} {k}": v for i, m in enumerate(models) for k, v in m.state_dict().items()}, out / "model.pt"
        )
        (out / "ticks").write_text(str(axe.count))
        os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def told(out: Path) -> Any:
    """What a run says about itself, but for the time of day and the seconds it took."""
    if (out / "runs").exists():
        return [told(run) for run in sorted((out / "runs").iterdir())], json.loads(
            (out / "compare.json").read_text()
        )
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [{k: v for k, v in e.items() if k not in ("time", "seconds")} for e in events], json.loads(
        (out / "ledger.json").read_text()
    )


def main(folder: str, algorithm: str, runtime: str, seed: str, moments: str) -> None:
    torch.set_num_threads(1)
    torch.vmap(torch.func.grad(lambda x: (x**2).sum()))(torch.zeros(2, 2))
    base, job, rng = Path(folder), settings(algorithm, runtime), random.Random(int(seed))
    begun = time.perf_counter()
    assert not child(base / "whole", job)
    took = time.perf_counter() - begun
    whole, ticks = torch.load(base / "whole" / "model.pt"), int((base / "whole" / "ticks").read_text())
    report = []
    plans: list[list[dict[str, Any]]] = [
        [{"moment": m}] for m in sorted(rng.sample(range(1, ticks), int(moments)))
    ]
    plans += [[{"moment": ticks - late}] for late in LATE]
    plans += [
        [{"moment": rng.randrange(ticks // 4, ticks // 2)}, {"moment": rng.randrange(5, ticks // 3)}],
        [{"delay": rng.uniform(0, took)}],
    ]
    for i, kills in enumerate(plans):
        out = base / f"cut{i}"
        killed = [child(out, job, **kill) for kill in kills]
        for journal in (
            out.rglob("events.jsonl") if i % 2 and not (out / "model.pt").exists() else ()
        ):  # a run that was faster than the axe is whole
            with open(journal, "ab") as file:
                file.write(b'{"kind": "round", "rou')  # the kill tore the line that was being written
        assert (out / "model.pt").exists() or not child(out, job)
        same = all(torch.equal(v, whole[k]) for k, v in torch.load(out / "model.pt").items())
        report.append(
            {"kills": kills, "killed": killed, "model": same, "told": told(out) == told(base / "whole")}
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
