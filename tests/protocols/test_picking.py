"""Only the best party of a round sends its model: equal to the ideal function and to the stacked engine, byte for
byte; and what happens if the best party disconnects.
"""

from __future__ import annotations

import asyncio
import functools

import numpy as np
import pytest
import torch

import tacit
from tacit import aggregate, data, models, selection
from tacit.algorithms import FedPSO
from tacit.errors import BadJob, PartyFailed
from tacit.jobs.train import client_work, deployed, networked, party_rows
from tacit.jobs.train import member as members
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.plan import make_plan
from tacit.jobs.train.train import train_side_by_side
from tacit.parties.codec import encode
from tacit.parties.ledger import Ledger
from tacit.protocols import joining, picking, rounds
from tacit.protocols.picking import Pick, Score
from tacit.protocols.rounds import Down, Loss, Stop, Upload
from tacit.runtimes import kits
from tacit.runtimes.inprocess import InProcess

from ..awaited import awaited
from ..guard.doomed import doom
from ..runtimes.net import Net

# the protocol alone -----------------------------------------------------------------------------------------

SCORES = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 1.0}


def local(name):
    return lambda r, down: (1.0, {"w": down["w"] + ord(name), "score": torch.tensor(SCORES[name])})


def play(others=None, **how):
    """Three rounds of a to d: (what was merged, what was dropped, the ledger). `others` are programs in place
    of honest ones.
    """
    merged, gone, ledger = [], [], Ledger()

    async def server(me):
        await rounds.server(
            me,
            list(SCORES),
            range(3),
            lambda r: [["d", "c", "b"], ["c", "a"], ["a", "c", "d"]][r],
            lambda r: {"w": torch.tensor(float(r))},
            awaited(lambda r, got: merged.append(got)),
            awaited(lambda r: None),
            awaited(lambda r, counts: None),
            scores=True,
            dropped=lambda r, who: gone.append(who),
            **how,
        )

    honest = {
        name: (lambda me, name=name: rounds.client(me, local(name), lambda r, w: {}, scores=lambda: True))
        for name in SCORES
    }
    InProcess().run_sync({"server": server, **honest, **(others or {})}, ledger=ledger)
    return merged, gone, ledger


def test_the_programs_compute_the_ideal_and_the_first_of_equals_wins():
    merged, gone, ledger = play()
    meant = []
    rounds.ideal(
        range(3),
        lambda r: [["d", "c", "b"], ["c", "a"], ["a", "c", "d"]][r],
        lambda r: {"w": torch.tensor(float(r))},
        {name: local(name) for name in SCORES},
        lambda r, got: meant.append(got),
        scores=True,
    )
    assert merged == meant
    assert [m.best for m in merged] == ["b", "c", "d"]  # b and d state the same
    assert merged[0].scores == {"d": 1.0, "c": 2.0, "b": 1.0}
    assert not gone
    counts = {(s.party, s.sender, s.kind): s.count for s in ledger.seen if s.kind != "Stop"}
    each = {"a": 2, "b": 1, "c": 3, "d": 2}
    for name, n in each.items():
        assert (
            counts[name, "server", "Down"]
            == counts[name, "server", "Pick"]
            == counts["server", name, "Score"]
            == n
        )
    assert {s for _, s, kind in counts if kind == "Upload"} == {"b", "c", "d"}
    assert sum(n for (_, _, kind), n in counts.items() if kind == "Upload") == 3


def test_non_finite_scores_are_last():
    said = {"a": float("nan"), "b": 2.0, "c": float("-inf"), "d": float("inf")}
    assert picking.rank(said, ["d", "c", "b", "a"]) == ["b", "d", "c", "a"]


def speaks(score, vectors):
    """A client with a score of its own, and a model that goes with it or not; without one, it falls
    silent.
    """

    async def program(me):
        while not isinstance(message := await me.recv("server", Down, Pick, Stop), Stop):
            if isinstance(message, Down):
                await me.scope(f"round {message.round}").send("server", Score(score))
            elif message.wanted and vectors is not None:
                await me.scope(f"best {message.round} {message.turn}").send("server", Upload(1.0, vectors))

    return program


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        (None, "no answer within 0.5 s"),
        (
            {"w": torch.zeros(()), "score": torch.tensor(2.5)},
            "its model comes with the score 2.5, and it was picked for the score 0.5",
        ),
        ({"w": torch.zeros(())}, "its model comes with no score, and it was picked for the score 0.5"),
    ],
    ids=["silent", "another", "none"],
)
def test_a_best_party_that_sends_nothing_or_another_model_is_followed_by_the_next(vectors, why):
    merged, gone, ledger = play({"c": speaks(0.5, vectors)}, within=0.5, at_least=1)
    assert [m.best for m in merged] == ["b", "a", "d"]
    assert (
        gone
        == [{"c": f"it did best, and its model did not come: {why}; the next best was asked for its own"}] * 3
    )
    assert all("c" in m.scores for m in merged)
    assert sum(s.count for s in ledger.seen if s.kind == "Pick") == 8  # one for everyone who had said a score


def test_if_no_model_comes_the_round_fails_and_says_so():
    silent = {name: speaks(SCORES[name], None) for name in SCORES}
    with pytest.raises(
        PartyFailed,
        match=r"party 'server' has no valid Upload in round 1: 'b': no answer within 0.2 s; 'd': .*; "
        r"'c': ",
    ):
        play(silent, within=0.2, at_least=1)


def test_a_client_of_another_job_says_so():
    async def server(me):
        await me.send("a", Pick(0, 0, True))

    with pytest.raises(
        PartyFailed,
        match=r"party 'a' received a Pick, and in this job all parties send their models\. Do both run "
        r"the same job\?",
    ):
        InProcess().run_sync(
            {"server": server, "a": lambda me: rounds.client(me, local("a"), lambda r, w: {})}
        )


# training ---------------------------------------------------------------------------------------------------


@functools.cache
def fed():
    return data.gaussian_blobs(rows=200, classes=3, features=5, seed=4).split(
        4, skew=data.Quantity(1.0), seed=0
    )


JOB = dict(model=models.MLP(hidden=(40,)), algorithm=FedPSO(lr=0.2), aggregate=aggregate.Best(), rounds=4)


def vector(run):
    return torch.cat([v.reshape(-1) for v in run.model.state_dict().values()])


def told(run):
    return [
        {
            k: v
            for k, v in e.items()
            if k in ("sampled", "scored", "uploaded", "best", "bytes_up", "bytes_down")
        }
        for e in run.history
    ]


def seen(run):
    found = {}
    for s in run.ledger.seen:
        if s.kind in ("Down", "Score", "Pick", "Upload", "Test", "Tested"):
            n, size = found.get(s.kind, (0, 0))
            found[s.kind] = n + s.count, size + s.bytes
    return found


@pytest.mark.parametrize(
    "more",
    [
        {},
        dict(per_round=2, rounds=6),
        dict(per_round=2, sampling="poisson"),
        dict(select=selection.PowerOfChoice(3), per_round=2),
        dict(batch_size=None, local_epochs=[1, 2, 1, 3]),
    ],
    ids=["all", "some", "poisson", "select", "ragged"],
)
def test_one_model_goes_up_in_a_round_and_it_is_the_simulations(more):
    stacked, apart = (tacit.train(fed(), **{**JOB, **more}, runtime=r) for r in ("cohort", "inprocess"))
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)
    assert seen(stacked) == seen(apart)
    model, score = (
        len(encode(Upload(1.0, {"delta": torch.zeros(len(vector(apart))), "score": torch.zeros(())}))),
        len(encode(Score(0.0))),
    )
    lost = len(encode(Loss(0.0)))
    for e in apart.history:
        if e["sampled"]:
            assert e["scored"] == e["sampled"]
            assert e["bytes_up"] == model + e["scored"] * score + e.get("looked", 0) * lost
    asked = sum(e["sampled"] for e in apart.history)
    assert {k: n for k, (n, _) in seen(apart).items()} == {
        **{k: n for k, (n, _) in seen(apart).items()},
        "Down": asked,
        "Score": asked,
        "Pick": asked,
        "Upload": sum(e["sampled"] > 0 for e in apart.history),
    }
    assert {s.how for s in stacked.ledger.seen} == {"ideal"}
    assert {s.how for s in apart.ledger.seen} == {"executed"}


def test_it_saves_the_published_bytes_and_with_the_mean_every_party_sends():
    best, mean = tacit.train(fed(), **JOB), tacit.train(fed(), **{**JOB, "aggregate": None})
    assert best.history[-1]["bytes_up"] < 0.3 * mean.history[-1]["bytes_up"]  # one of four, and four scores
    assert "scored" not in mean.history[-1]
    assert seen(mean)["Upload"][0] == 16


def test_many_runs_side_by_side_each_name_their_own_best():
    plans = [make_plan(fed(), **JOB, seed=seed) for seed in range(3)]
    runs = train_side_by_side(plans, [None] * 3)
    for seed, run in enumerate(runs):
        assert told(run) == told(tacit.train(fed(), **JOB, seed=seed))
    assert len({tuple(e["best"] for e in run.history) for run in runs}) > 1


def test_of_equal_scores_the_first_party_counts_however_long_others_work():
    """The parties' rows are the same and all are looked at in each step; the second only makes more steps,
    with a model that learns nothing: no gradient.
    """
    x = torch.ones(12, 2)
    same = data.from_arrays(x.numpy(), np.zeros(12, dtype=int), classes=2).split(3, seed=0)
    job = {
        **JOB,
        "model": "logistic",
        "algorithm": FedPSO(lr=1e-9),
        "batch_size": None,
        "local_epochs": [1, 5, 1],
        "rounds": 2,
    }  # lr: below float32
    for runtime in ("cohort", "inprocess"):
        run = tacit.train(same, **job, runtime=runtime)
        assert [e["best"] for e in run.history] == [same.parties[0]] * 2


def test_if_no_score_is_finite_no_party_is_best_and_the_model_does_not_change():
    job = {**JOB, "algorithm": FedPSO(lr=1e38), "rounds": 2}
    stacked, apart = (tacit.train(fed(), **job, runtime=r) for r in ("cohort", "inprocess"))
    assert told(stacked) == told(apart)
    assert all("best" not in e and e["uploaded"] == 1 for e in apart.history)
    assert torch.equal(vector(stacked), vector(apart))
    assert torch.isfinite(vector(apart)).all()


@pytest.mark.parametrize("runtime", ["cohort", "inprocess", "processes"])
def test_a_run_resumes_to_the_same_bits(runtime, tmp_path):
    def stop(event):
        if event["kind"] == "round" and event["round"] == 2:
            raise RuntimeError("stopped on purpose")

    whole = tacit.train(fed(), **JOB)
    with pytest.raises((RuntimeError, PartyFailed), match="stopped on purpose"):
        tacit.train(fed(), **JOB, runtime=runtime, out=tmp_path / "run", watch=stop)
    again = tacit.train(fed(), **JOB, runtime=runtime, out=tmp_path / "run", resume=True)
    assert (vector(again) - vector(whole)).abs().max() < 1e-6
    assert told(again) == told(whole)
    if runtime != "processes":
        assert seen(again) == seen(whole)


def test_a_plan_lists_who_sends_a_model():
    told = str(tacit.plan(fed(), **JOB))
    assert "in the clear: of the best of each round" in told
    assert (
        "the server sees: how large one party's loss on the round's rows is, after its own steps, of every "
        "party of a round" in told
    )
    assert (
        "of a round's 4 parties only the one with the lowest score sends its model; the others send" in told
    )


# real processes ---------------------------------------------------------------------------------------------


def test_real_processes_send_the_same():
    stacked, apart = tacit.train(fed(), **JOB), tacit.train(fed(), **JOB, runtime="processes")
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)
    assert seen(stacked) == seen(apart)
    assert {s.how for s in apart.ledger.seen} == {"executed"}


def with_kits(programs, folder, more=None, **how):
    """A run whose parties have kits and meet at a hub; `programs` take the place of honest ones. (its result,
    {party: how it ended})
    """
    for k in range(4):
        party_rows.save_rows(fed(), k, folder / str(k))

    async def play():
        async with Net.of("server", *fed().parties) as net, asyncio.timeout(300):
            job = asyncio.create_task(
                asyncio.to_thread(
                    tacit.train,
                    fed(),
                    **{**JOB, **(more or {})},
                    runtime=networked.Deployed(net.kits["server"], {}, **how),
                )
            )

            def start(k, name):
                def honest(me):
                    return members.member(me, {"folder": str(folder / str(k))}, str(folder / f"state-{k}"))

                return asyncio.create_task(net.party(name, programs.get(name, honest)))

            parties = [start(k, name) for k, name in enumerate(fed().parties)]
            result = await job
            return result, dict(zip(fed().parties, await asyncio.gather(*parties, return_exceptions=True)))

    return asyncio.run(play())


def test_parties_with_kits_send_the_same(tmp_path):
    stacked, (apart, ended) = tacit.train(fed(), **JOB), with_kits({}, tmp_path)
    assert not any(isinstance(e, BaseException) for e in ended.values())
    assert (vector(stacked) - vector(apart)).abs().max() < 1e-6
    assert told(stacked) == told(apart)
    up = {k: n for k, n in seen(stacked).items() if k in ("Score", "Upload")}
    assert {
        k: n for k, n in seen(apart).items() if k in ("Score", "Upload")
    } == up  # what the parties saw is in their own ledgers


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (float("nan"), "the score it states is nan; it must be a finite number"),
        (-1.0, "its model comes with the score 0, and it was picked for the score -1"),
    ],
    ids=["nan", "lie"],
)
def test_a_party_with_a_kit_that_sends_an_invalid_or_foreign_score_is_refused(score, words, tmp_path):
    last = fed().parties[-1]

    async def liar(me):
        work = client_work.ClientWork(me.name, {"folder": str(tmp_path / "3")}, tmp_path / "state", "")

        async def play():
            await work.prepared.wait()
            while not isinstance(message := await me.recv("server", Down, Pick, Stop), Stop):
                if isinstance(message, Down):
                    weight, vectors = work.local(message.round, message.vectors)
                    await me.scope(f"round {message.round}").send("server", Score(score))
                elif isinstance(message, Pick) and message.wanted:
                    await me.scope(f"best {message.round} {message.turn}").send(
                        "server", Upload(weight, {**vectors, "score": torch.zeros(())})
                    )
                await me.scope(joining.SCOPE).send("server", joining.Free())

        await members.run_alongside(play(), joining.attend(me, "server", tacit.__version__, work.prepare))

    run, ended = with_kits(
        {last: liar}, tmp_path, dict(rounds=2, evaluate_every=0), deadline=60.0, at_least=3
    )
    assert words in str(ended.pop(last))
    assert not any(isinstance(e, BaseException) for e in ended.values())
    assert words in run.history[0]["dropped"][last]
    assert all(e["best"] != last for e in run.history)
    assert [(e["scored"], e["uploaded"]) for e in run.history] == [(3 if score != score else 4, 1), (3, 1)]


def test_a_party_that_agreed_to_a_score_does_not_send_its_model_unasked(tmp_path):
    """Its job file says that only the best sends a model; a server that would have all of them is refused."""
    file = tmp_path / "job.toml"
    file.write_text(
        '[data]\nlabel = "y"\nlabels = ["a", "b"]\nnumbers = ["x"]\n[model]\nname = '
        '"logistic"\n[algorithm]\nname = "FedPSO"\n'
        '[aggregate]\nname = "Best"\n'
    )
    _, kit = kits.temporary("few", ("server", "p0", "p1"))
    ours = deployed.agreement(kit["p0"], file)
    assert ours.check_offer(ours.agreed).picks
    everybody = Contract({**ours.agreed.tables, "scores": False})
    with pytest.raises(
        BadJob,
        match=r"to which this party agreed, in scores \(agreed: true, offered: false\)\. Nothing was read",
    ):
        ours.check_offer(everybody)


def test_if_the_best_party_is_killed_before_it_sends_its_model_the_next_best_is_used(tmp_path, monkeypatch):
    """The best party of the first round is killed before it sends its model. The run states this, and equals one whose
    server does not count that party's scores.
    """
    job = {**JOB, "rounds": 2, "evaluate_every": 0}
    gone = tacit.train(fed(), **job).history[0]["best"]
    doom(monkeypatch, tmp_path / "killed", kind="Upload", **{gone: 1})
    run = tacit.train(fed(), **job, runtime=tacit.Processes(deadline=5.0, at_least=3))
    first, second = run.history
    assert first["dropped"] == {
        gone: "it did best, and its model did not come: no answer within 5 s; the next best was asked for "
        "its own"
    }
    assert first["best"] != gone
    assert (first["scored"], second["scored"], first["uploaded"], second["uploaded"]) == (4, 3, 1, 1)
    assert gone in second["dropped"]
    sent = {s.sender: s.count for s in run.ledger.seen if s.kind == "Upload"}
    assert gone not in sent
    assert sum(sent.values()) == 2
    assert {s.sender for s in run.ledger.seen if s.kind == "Score"} == set(fed().parties)

    monkeypatch.setattr(
        rounds, "rank", lambda scores, order: [n for n in picking.rank(scores, order) if n != gone]
    )
    fewer = tacit.train(fed(), **job, runtime="inprocess")
    assert [e["best"] for e in fewer.history] == [e["best"] for e in run.history]
    assert (vector(fewer) - vector(run)).abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["Upload", "Free"])
def test_a_best_party_that_is_started_again_still_sends_its_model(kind, tmp_path, monkeypatch):
    """It had sent its score, and lost its state with its process; it is killed when sending its model, or right after
    its score. No party waits forever.
    """
    job = {**JOB, "rounds": 2, "evaluate_every": 0}
    stacked = tacit.train(fed(), **job)
    first = stacked.history[0]["best"]
    doom(monkeypatch, tmp_path / "killed", kind=kind, come_back=True, **{first: 1})
    run = tacit.train(fed(), **job, runtime=tacit.Processes(restart=True))
    assert (tmp_path / "killed" / first).exists()
    assert (vector(stacked) - vector(run)).abs().max() < 1e-6
    assert [e["best"] for e in run.history] == [e["best"] for e in stacked.history]
    assert any("was restarted" in e["text"] for e in run.events if e["kind"] == "note")
