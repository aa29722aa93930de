"""Who is asked in a round: what each rule looks at, what it comes to in training, and what is refused."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, guard, selection, speeds
from tacit.errors import BadParameter, PartyFailed
from tacit.protocols import rounds
from tacit.runtimes.inprocess import InProcess

from .awaited import awaited

SIZES = np.array([1, 1, 1, 1, 96])


def known(losses=None, seconds=None, sizes=SIZES):
    return selection.PartyInfo(
        sizes, lambda who: np.asarray(losses if losses is not None else np.zeros(len(sizes)))[who], seconds
    )


def test_by_size_takes_the_large_ones_more_often():
    """The fifth has 96% of the rows: over 200 draws of one, fewer than 170 hits has a probability below
    1e-8.
    """
    hits = sum(4 in selection.BySize().choose(known(), 1, np.random.default_rng(s)) for s in range(200))
    assert hits > 170
    assert len(set(selection.BySize().choose(known(), 5, np.random.default_rng(0)).tolist())) == 5


def test_power_of_choice_asks_those_with_the_largest_losses():
    losses = [0.1, 5.0, 0.2, 4.0, 0.3]
    got = selection.PowerOfChoice(candidates=5).choose(
        known(losses, sizes=np.ones(5)), 2, np.random.default_rng(0)
    )
    assert sorted(got.tolist()) == [1, 3]
    asked = []
    among = selection.PartyInfo(np.ones(50), lambda who: asked.append(who) or np.zeros(len(who)), None)
    selection.PowerOfChoice(candidates=7).choose(among, 3, np.random.default_rng(0))
    assert len(asked[0]) == 7


def test_absent_and_slow_parties_are_not_selected():
    there = [
        len(
            selection.Available(probability=0.3).choose(
                known(sizes=np.ones(1000)), 1000, np.random.default_rng(s)
            )
        )
        for s in range(3)
    ]
    assert all(200 < n < 400 for n in there)
    fast = selection.Fast(deadline=2.0).choose(
        known(seconds=np.array([1.0, 3.0, 2.0, 9.0, 0.1])), 5, np.random.default_rng(0)
    )
    assert sorted(fast.tolist()) == [0, 2, 4]


@functools.cache
def fed():
    return data.gaussian_blobs(rows=600, classes=3, features=4, seed=3).split(
        12, skew=data.Dirichlet(0.3), seed=1, held_fraction=0.2
    )


@pytest.mark.parametrize(
    "rule",
    [selection.BySize(), selection.PowerOfChoice(candidates=6), selection.Available(probability=0.5)],
    ids=lambda r: type(r).__name__,
)
def test_training_learns_and_comes_out_the_same_again(rule):
    one, two = (
        tacit.train(
            fed(), model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=12, per_round=3, select=rule
        )
        for _ in range(2)
    )
    assert one.metrics["accuracy"] > 0.75
    assert one.metrics == two.metrics
    assert all(e["sampled"] <= 3 for e in one.history)


def test_no_round_takes_longer_than_the_deadline():
    job = dict(
        model="logistic",
        algorithm=algorithms.FedAvg(lr=0.2),
        rounds=5,
        per_round=4,
        speed=speeds.Lognormal(sigma=1.0),
    )
    free = tacit.train(fed(), **job)
    longest = np.diff([0.0, *(e["clock"] for e in free.history)]).max()
    bounded = tacit.train(fed(), **job, select=selection.Fast(deadline=longest / 2))
    assert np.diff([0.0, *(e["clock"] for e in bounded.history)]).max() <= longest / 2 + 1e-9


def test_fairness_of_a_run():
    run = tacit.train(fed(), model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=3)
    each = [a for a in run.history[-1]["parties"]["accuracy"] if a is not None]
    told = run.fairness()
    assert told["mean"] == pytest.approx(np.mean(each))
    assert told["variance"] == pytest.approx(np.var(each))
    assert told["worst_decile"] == pytest.approx(min(each))
    assert told["jain"] == pytest.approx(sum(each) ** 2 / (len(each) * sum(a * a for a in each)))


# real parties -----------------------------------------------------------------------------------------------


def vector(run):
    return torch.cat([v.reshape(-1).double() for v in run.model.state_dict().values()])


def told(run):
    return [{k: v for k, v in e.items() if k != "seconds" and not isinstance(v, float)} for e in run.history]


def seen(run, *kinds):
    return {
        k: (
            sum(s.count for s in run.ledger.seen if s.kind == k),
            sum(s.bytes for s in run.ledger.seen if s.kind == k),
        )
        for k in kinds
    }


def few():
    return data.gaussian_blobs(rows=240, classes=3, features=4, seed=3).split(
        4, skew=data.Dirichlet(0.3), seed=1, held_fraction=0.2
    )


JOB = dict(model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=4, per_round=2)


@pytest.mark.parametrize(
    "rule",
    [
        selection.BySize(),
        selection.PowerOfChoice(candidates=3),
        selection.Available(probability=0.4),
        selection.Fast(deadline=0.5),
    ],
    ids=lambda r: type(r).__name__,
)
def test_a_program_for_each_party_asks_the_same_and_learns_the_same(rule):
    speed = dict(speed=speeds.Lognormal(sigma=1.0)) if isinstance(rule, selection.Fast) else {}
    stacked, apart = (
        tacit.train(few(), **JOB, **speed, select=rule, runtime=r) for r in ("cohort", "inprocess")
    )
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)
    kinds = ("Upload", "Down", "Look", "Loss")
    assert seen(stacked, *kinds) == seen(apart, *kinds)
    plain = tacit.train(few(), **JOB, **speed)
    assert (vector(stacked) - vector(plain)).abs().max() > 1e-4  # it does matter who is asked


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        (algorithms.FedAvg(lr=0.2), selection.PowerOfChoice(candidates=3)),
        (algorithms.QFedAvg(lr=0.2), selection.BySize()),
        (algorithms.AFL(lr=0.2), selection.Available(probability=0.5)),
    ],
    ids=["loss", "q-FedAvg", "agnostic"],
)
def test_real_processes_ask_the_same_and_learn_the_same(algorithm, rule):
    job = {**JOB, "algorithm": algorithm, "select": rule, "rounds": 3}
    stacked, apart = tacit.train(few(), **job), tacit.train(few(), **job, runtime="processes")
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)
    kinds = ("Upload", "Down", "Look", "Loss")
    assert seen(stacked, *kinds) == seen(apart, *kinds)
    if isinstance(rule, selection.PowerOfChoice):
        assert (
            seen(apart, "Look", "Loss")["Loss"][0] == 9
        )  # three candidates a round are sent the model, and say their loss
        assert all(s.how == "executed" for s in apart.ledger.seen)
        assert (
            apart.history[-1]["bytes_down"]
            > tacit.train(few(), **{**job, "select": None}).history[-1]["bytes_down"]
        )


def test_real_parties_are_timed_and_slow_ones_are_not_selected_again():
    """Nobody answers within a nanosecond: each is asked once, to find out."""
    run = tacit.train(
        few(), **{**JOB, "rounds": 3}, select=selection.Fast(deadline=1e-9), runtime="processes"
    )
    assert [e["sampled"] for e in run.history] == [2, 2, 0]


def test_losses_are_not_sent_with_a_hidden_sum():
    stages = [guard.Clip(5.0), guard.Quantize(bits=24), guard.SecAgg()]
    job = {**JOB, "per_round": 3, "select": selection.PowerOfChoice(candidates=4)}
    with pytest.raises(
        ValueError,
        match="SecAgg hides what each party sends, and PowerOfChoice asks each party for its loss in the "
        "clear",
    ):
        tacit.train(few(), **job, guard=stages)


def test_a_rule_of_ones_own_may_ask_for_losses_more_than_once():
    @dataclasses.dataclass(frozen=True)
    class Twice(selection.SelectionRule):
        def choose(self, known, per_round, rng):
            first = known.loss(np.array([0, 1]))
            return np.array([int(first.argmax()), 2 + int(known.loss(np.array([2, 3])).argmax())])

    stacked, apart = (tacit.train(few(), **JOB, select=Twice(), runtime=r) for r in ("cohort", "inprocess"))
    assert told(stacked) == told(apart)
    assert [e["looked"] for e in apart.history] == [4] * 4
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6


def test_a_plan_states_that_losses_are_requested():
    told = str(tacit.plan(few(), **JOB, select=selection.PowerOfChoice(candidates=3)))
    assert (
        "the server sees: how large the model's mean loss on one party's training rows is, of 3 parties a "
        "round, which are sent the model first" in told
    )
    assert "loss on one party's" not in str(tacit.plan(few(), **JOB, select=selection.BySize()))
    assert "which parties are similar" in str(tacit.plan(few(), **{**JOB, "algorithm": algorithms.CFL()}))


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_run_that_selects_by_losses_resumes_to_the_same_bits(runtime, tmp_path):
    job = {**JOB, "rounds": 6, "select": selection.PowerOfChoice(candidates=3), "runtime": runtime}

    def stop(event):
        if event["kind"] == "round" and event["round"] == 3:
            raise RuntimeError("stopped on purpose")

    whole = tacit.train(few(), **job)
    with pytest.raises((RuntimeError, PartyFailed), match="stopped on purpose"):
        tacit.train(few(), **job, out=tmp_path / "run", watch=stop)
    for _ in range(2):  # and again, when it is done
        again = tacit.train(few(), **job, out=tmp_path / "run", resume=True)
        assert torch.equal(vector(again), vector(whole))
        assert again.ledger == whole.ledger


def test_candidates_that_stay_silent_or_misreport_their_loss_are_not_selected():
    """Over the protocol alone: one does not answer, one reports a non-finite loss."""
    sent = []

    async def server(me):
        def settle(losses):
            sent.append(dict(losses))
            return [name for name in losses if losses[name] > 1]

        def wrong(name, message):
            return (
                None
                if not isinstance(message, rounds.Loss) or np.isfinite(message.loss)
                else "it is no number"
            )

        await rounds.server(
            me,
            ["a", "b", "c", "d"],
            range(1),
            lambda r: rounds.Candidates(["a", "b", "c", "d"], {"w": torch.zeros(1)}, settle),
            lambda r: {"w": torch.zeros(1)},
            awaited(lambda r, ups: sent.append(list(ups))),
            awaited(lambda r: None),
            awaited(lambda r, c: None),
            within=0.5,
            at_least=1,
            wrong=wrong,
            dropped=lambda r, who: sent.append(dict(who)),
        )

    def client(loss):
        return lambda me: rounds.client(
            me, lambda r, w: (1.0, dict(w)), lambda r, w: {}, look=lambda r, w: loss
        )

    async def silent(me):
        while not isinstance(await me.recv("server", rounds.Look, rounds.Stop), rounds.Stop):
            pass

    programs = {"server": server, "a": client(2.0), "b": client(0.5), "c": client(float("nan")), "d": silent}
    InProcess().run_sync(programs)
    assert sent == [{"c": "it is no number", "d": "no answer within 0.5 s"}, {"a": 2.0, "b": 0.5}, ["a"]]


def test_disconnected_parties_are_not_selected():
    there = np.array([True, False, True, False, True])
    for seed in range(20):
        got = selection.Available(probability=1.0).choose(
            known(sizes=np.ones(5))._replace(there=there), 5, np.random.default_rng(seed)
        )
        assert sorted(got.tolist()) == [0, 2, 4]
    sizes = np.array([3, 0, 5, 0, 0])  # two have joined so far
    assert sorted(selection.BySize().choose(known(sizes=sizes), 4, np.random.default_rng(0)).tolist()) == [
        0,
        2,
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(select="PowerOfChance"), "select is 'PowerOfChance'; it must be one of BySize"),
        (
            dict(select=selection.PowerOfChoice(candidates=0)),
            "candidates is 0; it must be a whole number of at least 1",
        ),
        (dict(select=selection.Fast()), "Fast needs to know how long parties take"),
        (
            dict(select=selection.BySize(), sampling="poisson"),
            r"BySize is for synchronous rounds with one server and sampling='fixed'",
        ),
        (
            dict(select=selection.BySize(), guard=[guard.Clip(1.0), guard.Noise(multiplier=1.0)]),
            "Noise assumes that parties are drawn independently of their data",
        ),
        (
            dict(select=selection.BySize(), per_round=None),
            "BySize chooses the participants of a round, and without per_round everyone takes part. Give "
            "per_round",
        ),
        (
            dict(select=selection.PowerOfChoice(), per_round=None),
            "PowerOfChoice chooses the participants",
        ),
        (
            dict(select=selection.PowerOfChoice(candidates=2)),
            "PowerOfChoice has candidates=2, fewer than the 3 parties of a round",
        ),
    ],
    ids=range(8),
)
def test_what_is_refused(given, said):
    with pytest.raises(BadParameter, match=said):
        tacit.train(fed(), **{"model": "logistic", "rounds": 1, "per_round": 3, **given})
