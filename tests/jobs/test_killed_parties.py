"""A party that is killed during a protocol over real processes ends it: soon, with an error that names the party, and
without a partial result.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file

import tacit
from tacit import data
from tacit.errors import BadParameter, PartyFailed
from tacit.runtimes import processes

SOON = 120.0  # seconds from the kill to the error: it takes less than one, and waiting for the killed party takes 300
LONG = 10**6  # so many epochs that a kill always strikes in the middle


def columns() -> dict[str, torch.Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return {"bank": x[:, :2], "shop": x[:, 2:]}


LABELS = {"bank": torch.arange(64) % 2}


def nodes() -> Any:
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.normal(size=(60, 4)), rng.integers(0, 2, 60), classes=2).split(3, seed=0)


def psi(place: Path) -> Any:
    return tacit.psi(range(50_000), range(50_000), method="dh", runtime=tacit.Processes())


def align(place: Path) -> Any:
    return tacit.align(dict.fromkeys("abc", range(20_000)), runtime=tacit.Processes())


def split(place: Path) -> Any:
    return tacit.splitnn(
        columns(), LABELS, epochs=LONG, every=LONG, runtime=tacit.Processes(), out=place / "parts"
    )


def infer(place: Path) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return tacit.infer(model, torch.zeros(20_000, 4), batch=2, runtime=tacit.Processes())


def regress(place: Path) -> Any:
    return tacit.regress(columns(), LABELS, epochs=2000, batch_size=16, runtime=tacit.Processes())


def gossip(place: Path) -> Any:
    return tacit.gossip(
        nodes(),
        graph=tacit.graphs.ring(3),
        model="logistic",
        rounds=2000,
        evaluate_every=0,
        runtime=tacit.Processes(),
        out=place / "run",
    )


def hierarchy(place: Path) -> Any:
    return tacit.train(
        nodes(),
        model="logistic",
        rounds=2000,
        evaluate_every=0,
        topology=tacit.Hierarchy(edges=2),
        runtime=tacit.Processes(),
        out=place / "run",
    )


JOBS: list[tuple[Callable[[Path], Any], str]] = [
    (psi, "sender"),
    (align, "b"),
    (split, "bank"),
    (infer, "owner"),
    (infer, "helper"),
    (regress, "shop"),
    (regress, "helper"),
    (gossip, "p1"),
    (hierarchy, "edge-0"),
]


@pytest.mark.parametrize(
    ("job", "victim"), [pytest.param(*pair, id=f"{pair[0].__name__}, {pair[1]}") for pair in JOBS]
)
def test_a_killed_party_ends_the_run_with_its_name(
    job: Callable[[Path], Any], victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[float] = []
    wait = random.Random(f"{job.__name__} {victim}").uniform(0, 1.0)

    async def strike(stage: Any) -> None:
        assert victim in stage.programs
        while victim not in stage.pids:
            await asyncio.sleep(0.01)
        await asyncio.sleep(wait)
        struck.append(time.monotonic())
        os.kill(stage.pids[victim], signal.SIGKILL)

    async def play(stage: Any) -> dict[str, Any]:
        stage.tasks.append(asyncio.create_task(strike(stage)))
        return await whole(stage)

    whole = processes._ProcessRun.play
    monkeypatch.setattr(processes._ProcessRun, "play", play)
    with pytest.raises(
        PartyFailed,
        match=f"party '{victim}' failed: ProtocolError: its process was killed by signal 9 .* Start again",
    ):
        job(tmp_path)
    assert time.monotonic() - struck[0] < SOON
    assert not (tmp_path / "parts").exists()
    for kept in tmp_path.glob("run/state/*"):  # rounds that were done by then, if any were, and whole
        assert json.loads(kept.read_text()) if kept.suffix == ".json" else load_file(kept)


@pytest.mark.parametrize(
    "runtime", [tacit.Processes(restart=True), tacit.Processes(deadline=5.0)], ids=["restart", "deadline"]
)
@pytest.mark.parametrize(
    "job",
    [
        lambda **more: tacit.psi([1], [1], **more),
        lambda **more: tacit.splitnn(columns(), LABELS, **more),
        lambda **more: tacit.infer(torch.nn.Linear(4, 2), torch.zeros(1, 4), **more),
        lambda **more: tacit.regress(columns(), LABELS, **more),
        lambda **more: tacit.gossip(nodes(), graph=tacit.graphs.ring(3), model="logistic", **more),
        lambda **more: tacit.train(nodes(), model="logistic", topology=tacit.Hierarchy(edges=2), **more),
        lambda **more: tacit.synthesize(
            dict.fromkeys("ab", pandas.DataFrame({"x": [1, 2]})), {"x": tacit.synth.integer(0, 9)}, **more
        ),
    ],
    ids=["psi", "splitnn", "infer", "regress", "gossip", "hierarchy", "synthesize"],
)
def test_a_protocol_that_needs_every_party_refuses_a_runtime_that_continues_without_one(
    job: Callable[..., Any], runtime: Any
) -> None:
    with pytest.raises(
        BadParameter,
        match=r"of the runtime is (True|5.0); it must be (False|None)\. No party can leave this protocol"
        r"|no party can leave or restart here",
    ):
        job(runtime=runtime)
