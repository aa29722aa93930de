"""Guards across real processes: what a client sends from a machine of its own is what the simulation sends;
clients that are killed are survived.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit import algorithms, data, models
from tacit.errors import PartyFailed, SumAborted
from tacit.guard import Clip, Encrypt, Lazy, LightSecAgg, Noise, Quantize, SecAgg, Sparsify
from tacit.jobs.train import messages
from tacit.protocols import rounds

from .doomed import doom, train_together

FED = data.digits().split(3, seed=0)
TOLD = {"model": "logistic", "algorithm": algorithms.Scaffold(lr=0.1), "rounds": 2, "batch_size": 64}
FOUR = data.gaussian_blobs(rows=80, seed=0).split(4, skew=data.Quantity(0.7), seed=0)
# seconds a party may take for a step, and to join: on the clock of doomed.py, which stops until it is killed
SOON = 6.0


def weights(run: tacit.Result) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def apart(a: tacit.Result, b: tacit.Result) -> float:
    return float((weights(a) - weights(b)).abs().max())


@pytest.mark.parametrize(
    "guard",
    [
        [Clip(0.3, quantile=0.5), Quantize(bits=16, stochastic=False)],
        [Sparsify(top_k=0.1), Quantize(bits=8, stochastic=False)],
        [Clip(5.0), Quantize(bits=40, stochastic=False), SecAgg()],
        [Lazy(xi=5.0)],
        [Clip(5.0), Quantize(bits=40, stochastic=False), SecAgg(threshold=0.7, adversary="active")],
        [Clip(5.0), Quantize(bits=28, stochastic=False), LightSecAgg()],
        [Clip(5.0), Quantize(bits=28, stochastic=False), Encrypt()],
    ],
    ids=["adaptive", "sparse", "hidden", "lazy", "signed", "light", "encrypted"],
)
def test_processes_and_the_simulation_give_the_same_model(guard: list[Any]) -> None:
    active = any(
        getattr(stage, "adversary", "") == "active" for stage in guard
    )  # which is refused where clients keep state
    told = {**TOLD, "algorithm": algorithms.FedAvg(lr=0.1)} if active else TOLD
    there, here = (
        tacit.train(FED, **told, guard=guard, runtime="processes"),
        tacit.train(FED, **told, guard=guard),
    )
    assert apart(there, here) < 1e-5


def test_noise_across_processes_is_accounted_equally_and_never_replayable() -> None:
    guard = [Clip(0.3), Noise(multiplier=1.0, placement="distributed"), Quantize(bits=24), SecAgg()]
    there, here = (
        tacit.train(FED, **TOLD, guard=guard, runtime="processes"),
        tacit.train(FED, **TOLD, guard=guard),
    )
    assert there.ledger.spent == here.ledger.spent
    again = tacit.train(FED, **TOLD, guard=guard, runtime="processes")
    assert apart(there, again) > 0


# a client is killed -----------------------------------------------------------------------------------------


@contextmanager
def without(gone: str, since: int) -> Iterator[None]:
    """Runs in one process in which that party is not asked from this round (counted from 0) on."""
    original = rounds.server

    async def fewer(me: Any, names: Any, numbers: Any, choose: Any, *more: Any, **network: Any) -> None:
        await original(
            me, names, numbers, lambda r: [n for n in choose(r) if n != gone or r < since], *more, **network
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages.protocol, "server", fewer)
        yield


def test_every_linear_algorithm_with_a_killed_client_is_the_unguarded_one_up_to_quantization(
    tmp_path: Path,
) -> None:
    """Clip → Quantize → SecAgg for each, and for some Clip → Noise → Quantize → SecAgg, in one process a
    party; p1 is killed before its second upload. The grid: ±2000 in 2^48/4 points; what is left is float32's
    own rounding, which FedAdam and its kin divide by a small √v. With noise: 1e-3 · 20 on the sum.
    """
    gone = FOUR.parties[1]
    common = {
        "model": models.MLP(hidden=(3,)),
        "rounds": 2,
        "evaluate_every": 0,
        "batch_size": 8,
    }  # two layers: personalized ones keep the last
    linear = {
        name: {**common, "algorithm": made(lr=0.05)}
        for name, made in algorithms.ALL.items()
        if not made.sees_each and name not in ("IFCA", "FedLBFGSCV")  # the latter is refused with a guard
    }
    off, on = [Clip(2000.0)], [Clip(20.0), Noise(multiplier=1e-3, placement="distributed")]
    hidden = [Quantize(bits=48, stochastic=False), SecAgg(within=SOON)]
    jobs = {name: {**job, "guard": [*off, *hidden]} for name, job in linear.items()}
    jobs |= {
        f"{name} with noise": {**linear[name], "guard": [*on, *hidden]}
        for name in ("FedAvg", "FedNova", "Scaffold", "FedAdam")
    }
    found = train_together(FOUR, jobs, tmp_path, {gone: 2}, tacit.Processes(deadline=SOON, at_least=3))
    for name, run in found.items():
        assert [e.get("dropped", {}) for e in run.history] == [
            {},
            {gone: "left the secure sum at its step 'upload'"},
        ], name
        assert [e["sampled"] for e in run.history] == [4, 3], name
        with without(gone, since=1):
            plain = tacit.train(FOUR, **linear[name.split()[0]], runtime="inprocess")
        if "noise" in name:
            assert apart(plain, run) > 1e-4, name
            assert run.ledger.spent[0].epsilon > 0
        else:
            assert apart(plain, run) < (2e-4 if name in ("FedAdagrad", "FedAdam", "FedYogi") else 2e-5), name


def guarded(**more: Any) -> dict[str, Any]:
    return {
        "model": "logistic",
        "algorithm": algorithms.Scaffold(lr=0.1),
        "rounds": 3,
        "batch_size": 8,
        "evaluate_every": 0,
        "guard": [Clip(20.0), Quantize(bits=40, stochastic=False), SecAgg(within=SOON, **more)],
    }


def test_a_killed_client_is_left_out_of_its_round_and_of_those_after_it_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against an active server, so that the survivors' list is signed by certificates while one client is absent."""
    gone = FOUR.parties[2]
    doom(monkeypatch, tmp_path / "killed", **{gone: 1})
    told = {**guarded(threshold=0.7, adversary="active"), "rounds": 2, "algorithm": algorithms.FedAvg(lr=0.1)}
    run = tacit.train(FOUR, **told, runtime=tacit.Processes(deadline=SOON, at_least=3))
    assert [e.get("dropped", {}) for e in run.history] == [
        {gone: "left the secure sum at its step 'upload'"},
        {gone: "it is not there, or still at work on an earlier round"},
    ]
    with without(gone, since=0):
        plain = tacit.train(FOUR, **{**told, "guard": None}, runtime="inprocess")
    assert apart(run, plain) < 2e-5
    assert {"MaskedVector", "AgreedSurvivors"} < {s.kind for s in run.ledger.seen if s.party == "server"}
    assert not [s for s in run.ledger.seen if s.kind == "Upload"]


def test_too_few_left_abort_the_sum_and_those_who_come_back_take_part_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four clients are killed before their second upload, and three are needed; the two are restarted. In the end
    no client is missing from any sum.
    """
    first, second = FOUR.parties[:2]
    doom(monkeypatch, tmp_path / "killed", come_back=True, **{first: 2, second: 2})
    run = tacit.train(FOUR, **guarded(), runtime=tacit.Processes(deadline=30.0, at_least=4, restart=True))
    notes = [e["text"] for e in run.events if e["kind"] == "note" and "aborted" in e["text"]]
    assert len(notes) == 1
    assert notes[0].startswith(
        "round 2: secure aggregation was aborted, and no update was opened. upload: 2 of 4 parties answered "
        "and 3 are needed "
        f"({first!r}, {second!r} did not)."
    )
    assert [e.get("dropped", {}) for e in run.history] == [{}, {}, {}]
    assert apart(run, tacit.train(FOUR, **{**guarded(), "guard": None})) < 2e-5


def test_too_few_left_for_good_end_the_run_with_nothing_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = FOUR.parties[:2]
    doom(monkeypatch, tmp_path / "killed", **{first: 1, second: 1})
    events: list[dict[str, Any]] = []
    told = guarded(tries=2)
    with pytest.raises(
        PartyFailed,
        match=r"a secure sum was not begun: 2 parties are there and 3 are needed .* Round 1 was tried 2 "
        r"times\.",
    ) as failed:
        tacit.train(FOUR, **told, runtime=tacit.Processes(deadline=SOON, at_least=2), watch=events.append)
    assert isinstance(failed.value.error, SumAborted)
    assert not [e for e in events if e["kind"] == "round"]
    assert [e["text"].split(".")[0] for e in events if "round 1: " in e.get("text", "")] == [
        "round 1: secure aggregation was aborted, and no update was opened",
        f"round 1: a secure sum was not begun: 2 parties are there and 3 are needed ({first!r}, {second!r} "
        "are not)",
    ]
