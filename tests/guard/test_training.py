"""Guards in `tacit.train`: simulation and parties agree, budgets end runs, nothing spent is forgotten."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, models
from tacit.errors import BadJob, BadParameter
from tacit.guard import Clip, Lazy, Noise, Quantize, SecAgg, Sparsify
from tacit.jobs.train import guards
from tacit.jobs.train.plan import make_plan

FED = data.digits().split(6, skew=data.Dirichlet(0.5), seed=0)
FAST = {"model": "logistic", "rounds": 3, "batch_size": 64}


def train(guard=None, **more):
    return tacit.train(FED, **{**FAST, "algorithm": algorithms.FedAvg(lr=0.3), "guard": guard, **more})


def apart(a, b):
    return max(
        float((x - y).detach().abs().max()) for x, y in zip(a.model.parameters(), b.model.parameters())
    )


GUARDS = {
    "clip": [Clip(0.5)],
    "layer": [Clip(0.5, per="layer")],
    "central": [Clip(0.5), Noise(multiplier=0.3)],
    "local": [Clip(0.5), Noise(multiplier=0.3, placement="local")],
    "adaptive": [Clip(0.5, quantile=0.5), Noise(multiplier=0.3), Quantize(bits=20)],
    "top": [Sparsify(top_k=0.1), Quantize(bits=8)],
    "random": [Sparsify(random_k=0.1), Clip(0.5), Noise(multiplier=0.1)],
    "lazy": [Lazy(xi=2.0)],
    "nearest": [Quantize(bits=8, stochastic=False)],
}


@pytest.mark.parametrize("engine", ["stack", "each"])
@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_simulation_and_real_parties_give_the_same_model_the_same_bytes_and_the_same_account(guard, engine):
    more = {"per_round": 3, "sampling": "poisson"} if guard is GUARDS["central"] else {}
    one, other = (
        train(guard, engine=engine, insecure_seed=1, **more),
        train(guard, runtime="inprocess", insecure_seed=1, **more),
    )
    assert apart(one, other) < 1e-5
    assert [e["bytes_up"] for e in one.history] == [e["bytes_up"] for e in other.history]
    assert one.ledger.spent == other.ledger.spent
    uploads = [next(s.reveals for s in r.ledger.seen if s.kind == "Upload") for r in (one, other)]
    assert uploads[0] == uploads[1] == guards.reveals(guards.fit(*fitting(guard, insecure_seed=1, **more)))


def fitting(guard, **more):
    from tacit.jobs.train.plan import make_task

    p = make_plan(FED, **{**FAST, "guard": guard, **more})
    task = make_task(p)
    return p, task, task.initial()


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, kind in algorithms.ALL.items()
        if not kind.sees_each and name not in ("IFCA", "FedLBFGSCV")
    ),
)
def test_every_algorithm_gives_the_unguarded_model_up_to_rounding_when_nothing_is_added(name):
    told = {
        **FAST,
        "model": models.MLP(hidden=(8,)),
        "algorithm": algorithms.ALL[name](lr=0.05),
        "per_round": 4,
    }  # two layers: some keep the last
    plain = tacit.train(FED, **told)
    hidden = tacit.train(FED, **told, guard=[Clip(1000.0), Quantize(bits=48), SecAgg(threshold=0.6)])
    assert apart(plain, hidden) < 2e-4


def test_a_model_with_batch_norm_is_guarded_with_its_buffers():
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
    )
    plain, guarded = (
        tacit.train(FED, model=net, rounds=2, guard=g)
        for g in (None, [Clip(1e6), Quantize(bits=48), SecAgg()])
    )
    assert torch.allclose(plain.model[1].running_var, guarded.model[1].running_var, atol=1e-3)


# what is spent ----------------------------------------------------------------------------------------------


def test_epsilon_asks_for_the_noise_that_the_whole_run_may_cost():
    for more in ({}, {"per_round": 3, "sampling": "poisson"}, {"per_round": 3}):
        (spent,) = train([Clip(0.5), Noise(epsilon=5.0, delta=1e-3)], **more).ledger.spent
        assert 4.9 < spent.epsilon <= 5.0
        assert spent.delta == 1e-3
        assert spent.unit.startswith("client")
    (spent,) = train(
        [Clip(0.5), Noise(epsilon=5.0, delta=1e-3, placement="distributed"), Quantize(bits=24), SecAgg()]
    ).ledger.spent
    assert 4.9 < spent.epsilon <= 5.0
    assert "honest" in spent.adversary
    (spent,) = train(
        [
            Clip(0.5),
            Noise(epsilon=5.0, delta=1e-3, placement="distributed", distribution="skellam"),
            Quantize(bits=20),
            SecAgg(),
        ]
    ).ledger.spent
    assert 4.9 < spent.epsilon <= 5.0
    assert spent.mechanism.startswith("Skellam noise of")


def test_on_a_grid_too_coarse_for_the_discrete_gaussian_skellam_noise_still_has_its_price():
    """13 bits for the sum of 6 clients of 650 numbers: a client's own noise is less than two units wide."""
    stages = [Clip(0.5), Noise(multiplier=0.005, placement="distributed"), Quantize(bits=13), SecAgg()]
    with pytest.raises(
        BadParameter,
        match=r"below 2 its guarantee does not hold\. Give Quantize more bits, or Noise a larger multiplier",
    ):
        train(stages)
    coarse = train(
        [
            Clip(0.5),
            Noise(multiplier=0.005, placement="distributed", distribution="skellam"),
            Quantize(bits=13),
            SecAgg(),
        ]
    ).ledger.spent[0]
    fine = train(
        [
            Clip(0.5),
            Noise(multiplier=0.005, placement="distributed", distribution="skellam"),
            Quantize(bits=30),
            SecAgg(),
        ]
    ).ledger.spent[0]
    assert coarse.epsilon > fine.epsilon > 0
    with pytest.raises(
        BadParameter, match=r"beyond 33554432 it cannot be drawn exactly\. Give Quantize fewer bits\."
    ):
        train(
            [
                Clip(0.5),
                Noise(multiplier=0.005, placement="distributed", distribution="skellam"),
                Quantize(bits=40),
                SecAgg(),
            ]
        )


def test_a_fixed_number_and_local_noise_are_accounted_for_one_client_exchanged_for_another():
    """Two updates are up to two norms apart: the multiplier over the distance is half of that over the norm."""
    central, fixed, local = (
        train([Clip(0.5), Noise(multiplier=1.0, placement=p)], **m).ledger.spent[0]
        for p, m in (("central", {}), ("central", {"per_round": 3}), ("local", {}))
    )
    assert "Multiplier over sensitivity: 1." in central.note
    assert "Multiplier over sensitivity: 0.5." in fixed.note
    assert "Multiplier over sensitivity: 0.5." in local.note
    assert local.epsilon == pytest.approx(tacit.accounting.epsilon(noise_multiplier=0.5, steps=3, delta=1e-5))


def test_a_run_stops_before_the_round_that_would_exceed_its_budget_and_says_so(tmp_path):
    run = train([Clip(0.5), Noise(multiplier=2.0, epsilon=4.0)], rounds=10, out=tmp_path / "run")
    after = tacit.accounting.epsilon(noise_multiplier=2.0, steps=len(run.history) + 1, delta=1e-5)
    assert run.ledger.spent[0].epsilon <= 4.0 < after
    assert len(run.history) < 10
    assert "accuracy" in run.history[-1]
    note = next(e["text"] for e in run.events if e["kind"] == "note")
    assert note.startswith(
        f"stopped after round {len(run.history)} of 10: the next one would cost ε = {after:.4g} at δ = "
        "1e-05, and the budget is 4."
    )
    again = train(
        [Clip(0.5), Noise(multiplier=2.0, epsilon=4.0)], rounds=10, out=tmp_path / "run", resume=True
    )
    assert again.ledger.spent == run.ledger.spent
    assert apart(run, again) == 0


class Killed(BaseException):  # not an error of `watch`, after which a run is saved
    pass


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_resumed_run_counts_the_round_it_lost_and_stops_earlier_for_it(tmp_path, runtime):
    """Killed in round 3, before its state was saved: rounds begun are four in the end, of which the budget
    pays for three.
    """
    out, told = tmp_path / "run", {"rounds": 3, "runtime": runtime, "out": tmp_path / "run"}
    noise = Noise(
        multiplier=2.0, epsilon=tacit.accounting.epsilon(noise_multiplier=2.0, steps=3, delta=1e-5) + 1e-6
    )

    def watch(event):
        if event["kind"] == "round" and event["round"] == 3:
            raise Killed

    with pytest.raises((Killed, tacit.TacitError)):
        train([Clip(0.5), noise], watch=watch, **told)
    lost = (
        3 - json.loads((out / "state" / "state.json").read_text())["round"]
        if (out / "state" / "state.json").exists()
        else 3
    )
    assert len((out / "spent.jsonl").read_text().splitlines()) == 3
    run = train([Clip(0.5), noise], resume=True, **told)
    assert lost >= 1
    assert len(run.history) == 3 - lost
    assert run.ledger.spent[0].epsilon == pytest.approx(
        tacit.accounting.epsilon(noise_multiplier=2.0, steps=3, delta=1e-5)
    )
    assert any("stopped after round" in e.get("text", "") for e in run.events)


@pytest.mark.parametrize(
    "guard", [GUARDS["adaptive"], GUARDS["top"], GUARDS["lazy"]], ids=["adaptive", "top", "lazy"]
)
@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_run_resumed_with_replayable_secrets_ends_with_the_same_model(tmp_path, guard, runtime):
    told = {"rounds": 4, "runtime": runtime, "insecure_seed": 2}
    whole = train(guard, **told)

    def watch(event):
        if event["kind"] == "round" and event["round"] == 3:
            raise Killed

    with pytest.raises((Killed, tacit.TacitError)):
        train(guard, out=tmp_path / "run", watch=watch, **told)
    assert apart(whole, train(guard, out=tmp_path / "run", resume=True, **told)) == 0


def test_a_seed_for_secrets_stamps_the_result_the_ledger_and_the_report(tmp_path):
    run = train([Clip(0.5), Noise(multiplier=1.0)], insecure_seed=0, out=tmp_path / "run")
    assert run.ledger.stamps[0].startswith("NOT PRIVATE")
    assert json.loads((tmp_path / "run" / "ledger.json").read_text())["stamps"][0].startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in run.report().read_text()
    assert not train([Clip(0.5), Noise(multiplier=1.0)]).ledger.stamps


def test_under_noise_the_journal_reveals_neither_the_participants_nor_the_clipped_updates():
    guard = [Clip(1e-3), Noise(multiplier=1.0)]
    run = train(guard, per_round=3, sampling="poisson", rounds=8)
    assert {e["sampled"] for e in run.history} == {3}
    assert not {"clipped", "out_of_range"} & set(run.history[0])
    assert train([Clip(1e-3)]).history[0]["clipped"] == 6


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_under_noise_the_ledger_does_not_reveal_how_often_each_party_was_drawn(sampling):
    """In one round that would be who took part, and ε counts on nobody knowing. Without noise, and where
    everyone takes part, each has its lines.
    """
    one = train(
        [Clip(0.5), Noise(multiplier=1.0)], rounds=2, per_round=3, sampling=sampling, runtime="inprocess"
    )
    told = {s.kind: (s.party, s.sender, s.count) for s in one.ledger.seen if s.kind in ("Down", "Upload")}
    assert told == {
        "Upload": ("server", "6 parties, together", 6),
        "Down": ("6 parties, together", "server", 6),
    }
    assert sum(s.bytes for s in one.ledger.seen if s.kind == "Upload") == sum(
        e["bytes_up"] for e in one.history
    )
    assert (
        len({s.party for s in one.ledger.seen if s.kind == "Test"}) == 6
    )  # whom everyone is sent is no secret
    for guard, more in (([Clip(0.5)], {"per_round": 5}), ([Clip(0.5), Noise(multiplier=1.0)], {})):
        assert (
            len(
                {
                    s.sender
                    for s in train(guard, rounds=2, runtime="inprocess", **more).ledger.seen
                    if s.kind == "Upload"
                }
            )
            >= 5
        )


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_an_empty_sample_shows_in_no_event(runtime):
    """Of 6 parties one is expected, so nobody is drawn in a third of the rounds; in none of 25 once in 27,000
    runs.
    """
    run = train(
        [Clip(0.5), Noise(multiplier=1.0)], rounds=25, per_round=1, sampling="poisson", runtime=runtime
    )
    assert len({(e["sampled"], e["bytes_up"], e["bytes_down"]) for e in run.history}) == 1


def test_numbers_out_of_range_are_reported_also_under_noise():
    guard = guards.fit(*fitting([Clip(0.5), Noise(multiplier=1.0)]))
    guard.events = {"clipped": 3, "out of range": 2}
    assert guards.guard_facts(guard) == {"out_of_range": 2}
    guard.events = {"clipped": 3, "out of range": 0}
    assert guards.guard_facts(guard) == {}


def test_who_takes_part_under_noise_is_drawn_in_secret_and_each_with_its_probability():
    """2,000 rounds: how often each of 6 takes part has a deviation of 22; 7 of those are passed by chance
    with probability below 1e-10. The seed plays no part.
    """
    for sampling in ("poisson", "fixed"):
        p = make_plan(FED, guard=[Clip(1.0), Noise(multiplier=1.0)], per_round=2, sampling=sampling)
        drawn = [guards.chosen(p, r) for r in range(2000)]
        counts = torch.bincount(torch.from_numpy(np.concatenate(drawn)), minlength=6)
        assert (counts - 2000 / 3).abs().max() < 7 * math.sqrt(2000 * 2 / 9)
        sizes = {
            len(d) for d in drawn
        }  # of a Poisson sample: 0 to 4 each come up in 8% of the rounds or more, 6 in one of 729 only
        assert sizes == {2} if sampling == "fixed" else sizes >= {0, 1, 2, 3, 4}
        assert any(
            (a != b).any() if len(a) == len(b) else True
            for a, b in zip(drawn, [guards.chosen(p, r) for r in range(50)])
        )


def test_an_empty_round_still_adds_noise_and_without_noise_changes_nothing(monkeypatch):
    for guard in ([Clip(0.5), Noise(multiplier=1.0)], [Clip(0.5)], None):
        monkeypatch.setattr(guards, "chosen", lambda p, number: np.arange(0))
        run = train(guard, rounds=1, sampling="poisson", per_round=3, algorithm=algorithms.FedAvg(lr=0.3))
        fresh = train(None, rounds=1, sampling="poisson", per_round=3, algorithm=algorithms.FedAvg(lr=1e-30))
        assert (apart(run, fresh) > 0.01) == (guard is not None and len(guard) == 2)


# plans and job files ----------------------------------------------------------------------------------------


def test_a_plan_says_what_the_run_then_does():
    told = {
        **FAST,
        "algorithm": algorithms.Scaffold(lr=0.1),
        "guard": [Clip(0.5), Noise(epsilon=3.0, delta=1e-3), Quantize(bits=20)],
        "per_round": 3,
        "sampling": "poisson",
    }
    outlook, run = tacit.plan(FED, **told), tacit.train(FED, **told)
    assert outlook.spends["epsilon"] == run.ledger.spent[0].epsilon
    assert outlook.bytes_up * 3 == run.history[0]["bytes_up"]
    assert outlook.bytes_down * 3 == pytest.approx(run.history[0]["bytes_down"], abs=6)
    assert outlook.sees[0]["what"] == next(s.reveals for s in run.ledger.seen if s.kind == "Upload")
    for words in (
        "the server sees: one party's model update, shortened to an L2 norm of 0.5, rounded to 20 bits; "
        "every party counts the same",
        "ε = 2.9",
        "at δ = 0.001 (budget 3) for each client, present or not, after 3 rounds",
        "against anyone who sees the models",
        "assuming Poisson (3 of 6 clients a round expected, drawn in secret) sampling",
        "dropouts tolerated in a round: 0 of 3",
    ):
        assert words in str(outlook)


def test_a_plan_counts_the_dropouts_a_secure_sum_survives_and_the_rounds_a_budget_allows():
    outlook = tacit.plan(
        FED,
        **{**FAST, "rounds": 50},
        guard=[Clip(0.5), Noise(multiplier=2.0, epsilon=4.0), Quantize(bits=20), SecAgg(threshold=0.6)],
    )
    assert outlook.tolerated == 2  # 4 of 6 must stay
    assert outlook.rounds < 50
    assert f"the budget ends the run after round {outlook.rounds} of 50." in str(outlook)
    assert "nothing about one party" in str(outlook)
    assert "no differential privacy" in str(tacit.plan(FED, **FAST))


JOB = """
[data]
name = "digits"
parties = 6

[model]
name = "logistic"

[[guard]]
name = "Clip"
norm = 0.5

[[guard]]
name = "Noise"
multiplier = 1.0

[train]
rounds = 2
"""


def test_a_job_file_with_a_guard_runs_resumes_and_plans(tmp_path, capsys):
    from tacit.cli import main

    job = tmp_path / "job.toml"
    job.write_text(JOB)
    assert main(["plan", str(job), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["run", str(job), "--out", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert planned["spends"]["epsilon"] == ran["ledger"]["spent"][0]["epsilon"]
    assert [s["name"] for s in ran["job"]["guard"]] == ["Clip", "Noise"]
    assert main(["run", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert "Accuracy vs. ε" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "guard.1.multiplier=-1",
            "job.toml, guard[1]: Noise: multiplier is -1; it must be a number above 0, or None.",
        ),
        ("guard.0.name=Clap", "job.toml, guard[0]: 'Clap' is not known here. Did you mean 'Clip'?"),
        ("guard.0.norms=2", "guard[0]: Clip has no parameter 'norms'. Did you mean 'norm'?"),
        ('guard.0.name="Quantize"', "guard[0]: Quantize has no parameter 'norm'."),
    ],
)
def test_a_job_file_with_a_wrong_guard_names_the_file_and_the_stage(tmp_path, capsys, change, words):
    from tacit.cli import main

    job = tmp_path / "job.toml"
    job.write_text(JOB)
    assert main(["plan", str(job), "--set", change]) == 2
    assert words in capsys.readouterr().err


def test_a_wrong_order_in_a_job_file_is_refused_and_a_guarded_comparison_has_each_algorithm_with_and_without(
    tmp_path,
):
    from tacit.config import job as config

    job = tmp_path / "job.toml"
    first, second = JOB.split("[[guard]]")[1:]
    job.write_text(
        JOB.split("[[guard]]")[0]
        + "[[guard]]"
        + second.split("[train]")[0]
        + "[[guard]]"
        + first
        + "[train]\nrounds = 2\n"
    )
    with pytest.raises(BadJob, match=r"job\.toml, guard: Clip comes after Noise\. The order is"):
        config.load(job)
    job.write_text(JOB)
    told = config.load(job).compare()
    assert list(told["guards"]) == ["no guard", "guarded"]
    assert [type(s).__name__ for s in told["guards"]["guarded"]] == ["Clip", "Noise"]


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (
            [Clip(0.5), Noise(multiplier=0.01), Quantize(bits=4)],
            "units of Quantize's grid wide, and below 2 its guarantee does not hold. Give Quantize more bits",
        ),
        (
            [Clip(0.5), Noise(multiplier=1.0, accountant="pld"), Quantize(bits=8)],
            "for which PLD is not exact. Use accountant='rdp', or leave out Quantize.",
        ),
    ],
)
def test_a_grid_too_coarse_for_its_noise_is_refused_before_anything_runs(guard, words):
    with pytest.raises(BadParameter, match=re.escape(words)):
        train(guard)
