"""Rules that remember earlier rounds: momentum, FoolsGold on what each party sent so far, LEGATO's log. Held
to plain numpy, to what history is for, and to exact resume.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import aggregate, algorithms, data, guard
from tacit.errors import BadParameter, PartyFailed

STANDS = {"w": torch.zeros(1, 4)}


def play(rule: Any, rounds: list[np.ndarray], who: list[np.ndarray] | None = None) -> list[np.ndarray]:
    """The results of a rule round by round, as an engine calls it."""
    memories: list[Any] = [{}]
    out = []
    for r, x in enumerate(rounds):
        sent = torch.as_tensor(x, dtype=torch.float32)
        total = rule.add(rule.start(), torch.ones(1, len(sent)), {"delta": sent})
        parties = torch.arange(len(sent)) if who is None else torch.as_tensor(who[r])
        mean, memories = rule.result_with_memory(total, parties, memories, STANDS)
        out.append(mean["delta"][0].numpy())
    return out


def test_momentum_is_its_recursion_around_any_rule():
    rng = np.random.default_rng(0)
    rounds = [rng.standard_normal((5, 4)) for _ in range(4)]
    v = np.zeros(4)
    for got, x in zip(play(aggregate.Momentum(aggregate.Median(), beta=0.7), rounds), rounds):
        v = 0.7 * v + np.median(x, axis=0)
        np.testing.assert_allclose(got, v, atol=1e-6)


@functools.cache
def fed() -> data.Federation:
    return data.gaussian_blobs(rows=300, classes=3, features=5, seed=4).split(
        6, skew=data.Dirichlet(0.5), seed=0
    )


def vector(run: tacit.Result) -> torch.Tensor:
    return torch.cat([v.reshape(-1) for v in run.model.state_dict().values()])


@pytest.mark.parametrize("option", ["I", "II"])
def test_momentum_around_the_mean_is_fedavgm_whether_parties_send_models_or_changes(option):
    job: dict[str, Any] = dict(model="mlp", rounds=5, per_round=4)
    theirs = tacit.train(fed(), algorithm=algorithms.FedAvgM(lr=0.1, beta=0.7), **job)
    ours = tacit.train(
        fed(),
        algorithm=algorithms.FedAvg(lr=0.1, option=option),
        aggregate=aggregate.Momentum(beta=0.7),
        **job,
    )
    torch.testing.assert_close(vector(ours), vector(theirs), atol=2e-6, rtol=0)
    assert (
        vector(theirs) - vector(tacit.train(fed(), algorithm=algorithms.FedAvg(lr=0.1), **job))
    ).abs().max() > 1e-2


def sybil_rounds(rounds: int = 40, seed: int = 3) -> tuple[list[np.ndarray], np.ndarray]:
    """Five honest parties with different updates; five sybils with a common target under noise three times as large,
    new for each of them in every round: the cosine similarity of two sybils is about 1/10 in one round, and
    t/(t + 9) after t rounds.
    """
    rng = np.random.default_rng(seed)
    d = 400
    goals, attack = rng.standard_normal((5, d)), rng.standard_normal(d)
    unit = np.sqrt(d)
    out = []
    for _ in range(rounds):
        noise = rng.standard_normal((5, d))
        honest = goals + 0.5 * rng.standard_normal((5, d))
        sybils = attack + 3 * noise * unit / np.linalg.norm(noise, axis=1, keepdims=True)
        out.append(np.concatenate([honest, sybils]))
    return out, attack / np.linalg.norm(attack)


def test_history_finds_sybils_that_hide_under_new_noise_in_every_round_and_one_round_does_not():
    rounds, attack = sybil_rounds()
    moved: dict[bool, float] = {}
    for history in (True, False):
        rule, memories = aggregate.FoolsGold(history=history), [{}]
        for x in rounds:
            sent = torch.as_tensor(x, dtype=torch.float32)
            mean, memories = rule.result_with_memory(
                rule.add(rule.start(), torch.ones(1, 10), {"delta": sent}), torch.arange(10), memories, {}
            )
        moved[history] = abs(float(mean["delta"][0].double().numpy() @ attack))
    plain = abs(float(rounds[-1].mean(0) @ attack))
    assert moved[False] > 0.5 * plain  # of one round it makes little
    assert moved[True] < 0.2 * plain


def test_history_is_of_each_party_by_its_name_and_not_by_its_place():
    """The parties of a round come in another order, or only some come: what is remembered goes with them."""
    rng = np.random.default_rng(5)
    rounds = [rng.standard_normal((6, 4)) for _ in range(3)]
    orders = [rng.permutation(6)[:n] for n in (6, 4, 5)]
    sums: dict[int, np.ndarray] = {}
    for x, who in zip(rounds, orders):
        for k in who:
            sums[k] = sums.get(k, 0) + x[k]
    shuffled = play(aggregate.FoolsGold(), [x[o] for x, o in zip(rounds, orders)], list(orders))
    h = torch.as_tensor(np.stack([sums[k] for k in orders[-1]]))
    share = aggregate.FoolsGold().shares(h @ h.T).numpy()
    np.testing.assert_allclose(shuffled[-1], share @ rounds[-1][orders[-1]], atol=1e-5)


def test_whoever_sends_nothing_has_no_say():
    """A free rider's zeros are unlike everybody's updates; parties that agree are not to be silenced for
    them.
    """
    agree = 1 + 0.3 * np.random.default_rng(8).standard_normal((4, 4))
    (got,) = play(aggregate.FoolsGold(), [np.concatenate([agree, np.zeros((2, 4))])])
    (wanted,) = play(aggregate.FoolsGold(), [agree])
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    assert play(aggregate.FoolsGold(), [np.zeros((3, 4))])[0].tolist() == [0.0] * 4


def legato_by_hand(rounds: list[np.ndarray], window: int, cuts: tuple[int, ...]) -> list[np.ndarray]:
    out = []
    for t in range(len(rounds)):
        log = rounds[max(0, t - window + 1) : t + 1]
        ends = np.cumsum((0, *cuts))
        vary = []
        for a, b in itertools.pairwise(ends):
            norms = np.concatenate([np.linalg.norm(x[:, a:b], axis=1) for x in log])
            vary.append(norms.std() / norms.mean())
        robust = np.repeat(min(vary) / np.array(vary), cuts)
        out.append(robust * rounds[t].mean(0) + (1 - robust) * np.mean([x.mean(0) for x in log], axis=0))
    return out


def test_legato_by_its_log():
    rng = np.random.default_rng(6)
    rounds = [
        np.concatenate([1 + 0.1 * rng.standard_normal((4, 2)), 3 * rng.standard_normal((4, 2))], 1)
        for _ in range(6)
    ]
    rule = aggregate.Legato(window=3).with_layers((2, 2))
    for got, wanted in zip(play(rule, rounds), legato_by_hand(rounds, 3, (2, 2))):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_an_attack_on_one_layer_has_a_part_of_its_effect_and_the_others_are_the_rounds_own():
    rng = np.random.default_rng(7)
    rounds = [np.ones((5, 4)) + 0.01 * rng.standard_normal((5, 4)) for _ in range(8)]
    rounds[-1][0, 2:] = 1000
    last = play(aggregate.Legato(window=8).with_layers((2, 2)), rounds)[-1]
    np.testing.assert_allclose(last[:2], rounds[-1].mean(0)[:2], atol=1e-5)
    assert last[2] < 0.2 * rounds[-1].mean(0)[2]


RULES = [
    aggregate.Momentum(aggregate.Median(), beta=0.5),
    aggregate.FoolsGold(),
    aggregate.Legato(window=3),
    aggregate.Momentum(aggregate.FoolsGold()),
]
IDS = ["momentum", "foolsgold", "legato", "momentum of foolsgold"]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_program_for_each_party_gives_the_model_of_the_stack(rule):
    job: dict[str, Any] = dict(
        model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=5, per_round=4, aggregate=rule
    )
    torch.testing.assert_close(
        vector(tacit.train(fed(), **job)),
        vector(tacit.train(fed(), **job, runtime="inprocess")),
        atol=1e-6,
        rtol=0,
    )


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_what_a_rule_remembers_survives_a_resume_to_the_same_bits(rule, runtime, tmp_path: Path):
    job: dict[str, Any] = dict(
        model="logistic",
        algorithm=algorithms.FedAvg(lr=0.2),
        rounds=6,
        per_round=4,
        aggregate=rule,
        runtime=runtime,
    )

    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 4:
            raise RuntimeError("stopped on purpose")

    whole = tacit.train(fed(), **job)
    with pytest.raises((RuntimeError, PartyFailed), match="stopped on purpose"):
        tacit.train(fed(), **job, out=tmp_path / "run", watch=stop)
    (state,) = (tmp_path / "run" / "state").glob("*.safetensors")
    assert b"rule." in state.read_bytes()  # or the test would pass by beginning anew
    assert torch.equal(vector(tacit.train(fed(), **job, out=tmp_path / "run", resume=True)), vector(whole))


def test_runs_side_by_side_each_have_a_memory_of_their_own():
    rules = [aggregate.FoolsGold(), aggregate.Momentum(beta=0.6)]
    found = tacit.compare(
        fed(),
        model="logistic",
        algorithms=[algorithms.FedAvg(lr=0.2)],
        rounds=4,
        per_round=4,
        seeds=[3, 8],
        aggregates=rules,
    )
    for rule in rules:
        for seed in (3, 8):
            alone = tacit.train(
                fed(),
                model="logistic",
                algorithm=algorithms.FedAvg(lr=0.2),
                rounds=4,
                per_round=4,
                seed=seed,
                aggregate=rule,
            )
            row = next(
                r for r in found.summary["rows"] if r["label"] == type(rule).__name__ and r["seed"] == seed
            )
            assert row["metrics"]["loss"] == pytest.approx(alone.metrics["loss"], abs=1e-6)


def test_a_round_without_participants_changes_nothing_in_any_engine():
    """With Poisson sampling of one in six, a third of the rounds are empty: no run is lost, alone, in a stack or over
    messages.
    """
    job: dict[str, Any] = dict(model="logistic", rounds=6, per_round=1, sampling="poisson")
    rule = aggregate.Momentum(beta=0.5)
    found = tacit.compare(fed(), algorithms=[algorithms.FedAvg(lr=0.1)], seeds=3, aggregates=[rule], **job)
    for seed in range(3):
        here, there = (
            tacit.train(
                fed(), algorithm=algorithms.FedAvg(lr=0.1), seed=seed, aggregate=rule, runtime=r, **job
            )
            for r in ("cohort", "inprocess")
        )
        assert 0 in [e["sampled"] for e in here.history]
        row = next(r for r in found.summary["rows"] if r["label"] == "Momentum" and r["seed"] == seed)
        assert row["metrics"]["loss"] == pytest.approx(here.metrics["loss"], abs=1e-6)
        torch.testing.assert_close(vector(here), vector(there), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            dict(aggregate=aggregate.Momentum(aggregate.Best())),
            r"Momentum: rule is Best\(\); it must be a rule that combines updates into an update",
        ),
        (
            dict(aggregate=aggregate.Momentum(beta=1.0)),
            "Momentum: beta is 1.0; it must be a number of at least 0 and below 1",
        ),
        (
            dict(aggregate=aggregate.Momentum(3)),
            "Momentum: rule is 3; it must be an aggregation rule",
        ),
        (
            dict(aggregate=aggregate.FoolsGold(), topology=tacit.Hierarchy(edges=2)),
            "FoolsGold remembers what one server received in earlier rounds",
        ),
        (
            dict(aggregate=aggregate.Momentum(), algorithm=algorithms.Scaffold()),
            "Momentum works on models or their changes, .* parties send dc, dx",
        ),
        (
            dict(
                aggregate=aggregate.Legato(), guard=[guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg()]
            ),
            "SecAgg hides each update .*, and Legato",
        ),
    ],
    ids=range(6),
)
def test_what_is_refused(job, said):
    with pytest.raises(BadParameter, match=said):
        tacit.train(fed(), **{"model": "logistic", "rounds": 1, **job})
