"""Record-level privacy at every party of a federation."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import aggregate, algorithms, selection
from tacit.accounting import epsilon
from tacit.algorithms.plan import identify, plan
from tacit.config import job as config
from tacit.errors import BadJob, BadParameter
from tacit.jobs.train.plan import make_plan, make_task
from tacit.private import DPFTRL, DPSGD


@pytest.fixture(scope="module")
def fed():
    return tacit.data.digits().split(3, skew=tacit.data.Quantity(0.5), seed=0)


def trained(fed, private=None, **more):
    told = {
        "model": "mlp",
        "algorithm": algorithms.FedAvg(lr=0.3),
        "rounds": 3,
        "local_epochs": 2,
        "batch_size": 60,
        **more,
    }
    return tacit.train(fed, private=private, **told)


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_every_party_has_an_epsilon_of_its_own(fed, runtime):
    """Two passes of ⌈n/60⌉ steps in each of three rounds, at the rate 60/n: what dp-accounting says of just
    that, for each party.
    """
    n = 400
    run = trained(fed, DPSGD(noise_multiplier=1.5, delta=1e-4, public_size=n), runtime=runtime)
    assert len(run.ledger.spent) == 3
    for line, name in zip(run.ledger.spent, fed.parties):
        assert line.unit == f"row of {name}, present or not"
        want = epsilon(noise_multiplier=1.5, sampling_rate=60 / n, steps=3 * 2 * -(-n // 60), delta=1e-4)
        assert line.epsilon == pytest.approx(want, rel=5e-3)
        assert line.adversary.startswith("the server")


def test_a_target_is_met_by_each_party_whatever_its_size(fed):
    run = trained(fed, DPSGD(epsilon=6.0, delta=1e-4))
    assert [5.9 < line.epsilon <= 6.0 for line in run.ledger.spent] == [True] * 3
    assert len({line.mechanism for line in run.ledger.spent}) > 1, "smaller parties add more noise"


@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.FedAvg(lr=0.3),
        algorithms.FedProx(lr=0.3, mu=0.1),
        algorithms.FedSGD(lr=0.3),
        algorithms.FedNova(lr=0.3),
    ],
    ids=lambda a: type(a).__name__,
)
def test_without_noise_and_clipping_it_is_the_algorithm_itself(fed, algorithm):
    """All rows in every step, so that nothing is drawn: the same model as without `private`."""
    plain = trained(fed, algorithm=algorithm, batch_size=None)
    same = trained(fed, DPSGD(noise_multiplier=0, clip=None), algorithm=algorithm, batch_size=None)
    for a, b in zip(plain.model.parameters(), same.model.parameters()):
        assert torch.allclose(a, b, atol=1e-5)
    assert same.ledger.stamps == ["NOT PRIVATE: gradients were not clipped; nothing is guaranteed."]


def test_clipping_and_noise_change_the_model(fed):
    plain, private = trained(fed), trained(fed, DPSGD(noise_multiplier=0.5, delta=1e-4))
    assert not all(torch.allclose(a, b) for a, b in zip(plain.model.parameters(), private.model.parameters()))
    again = trained(fed, DPSGD(noise_multiplier=0.5, delta=1e-4))
    assert not all(torch.equal(a, b) for a, b in zip(again.model.parameters(), private.model.parameters())), (
        "noise from the operating system"
    )


def test_a_job_file_has_it(tmp_path):
    (tmp_path / "job.toml").write_text(
        '[data]\nname = "digits"\nparties = 3\n[private]\nepsilon = 8.0\nclip = 0.5\n[train]\nrounds = 2\n'
    )
    job = config.load(tmp_path / "job.toml")
    assert job.train()["private"] == DPSGD(epsilon=8.0, clip=0.5)
    again = config.from_tables(job.resolved())
    assert again.options["private"] == job.options["private"]
    with pytest.raises(BadJob, match=r"\[private\] is for `tacit run`"):
        job.compare()
    (tmp_path / "job.toml").write_text('[data]\nname = "digits"\nparties = 3\n[private]\nepsilom = 8.0\n')
    with pytest.raises(BadJob, match="DPSGD has no parameter 'epsilom'"):
        config.load(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"private": DPFTRL(epsilon=1.0)}, "private is DPFTRL.*it must be private.DPSGD"),
        ({"private": DPSGD(epsilon=1.0, sampling="shuffle")}, "with sampling='poisson'"),
        ({"private": 3.0}, "private is 3.0"),
        ({"private": DPSGD(epsilon=1.0), "landscape": True}, "private: with landscape it would not be known"),
        (
            {"private": DPSGD(epsilon=1.0), "pace": tacit.pace.FedBuff()},
            "private: with pace it would not be known",
        ),
        (
            {"private": DPSGD(epsilon=1.0), "engine": "stack"},
            "private: clients run one after the other. Leave engine at 'auto'",
        ),
        (
            {"private": DPSGD(epsilon=1.0, accountant="rdp"), "rounds": 10**15},
            "noise_multiplier is [0-9.]+; it must be at most",
        ),
        ({"private": DPSGD(epsilon=1.0), "resume": True}, "resume: with private, a round that was lost"),
    ],
)
def test_what_does_not_go_together_leaves_nothing_behind(fed, tmp_path, more, words):
    with pytest.raises(BadParameter, match=words):
        trained(fed, **more, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (algorithms.FedPSO(), {"aggregate": aggregate.Best()}),
        (algorithms.QFedAvg(lr=0.3), {}),
        (algorithms.AFL(lr=0.3), {}),
        (algorithms.IFCA(lr=0.3), {}),
        (algorithms.FedAvg(lr=0.3), {"select": selection.PowerOfChoice(candidates=3), "per_round": 2}),
    ],
    ids=["score", "fair", "mixture", "cluster", "select"],
)
def test_what_goes_by_exact_losses_of_private_rows_is_refused(fed, tmp_path, algorithm, more):
    """The server would learn exact losses, or what was selected by them, which the ε of noisy gradients does not cover."""
    with pytest.raises(BadParameter, match=r"losses of .* rows, which no noise"):
        trained(
            fed, DPSGD(noise_multiplier=1.0, delta=1e-4), algorithm=algorithm, **more, out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_how_many_rows_a_coin_took_shows_nowhere_but_in_their_clipped_sum(fed):
    """FedNova by epochs uploads a party's rows looked at over its rows, FedSGD weighs its steps by them:
    under Poisson sampling that number is a secret.
    """
    p = make_plan(
        fed, model="logistic", rounds=1, batch_size=60, private=DPSGD(noise_multiplier=1.0, delta=1e-4)
    )
    task = make_task(p)
    plans = task.redraw(plan(0, 0, identify(["p0"]), p.sizes[:1], 1, 60, None), "p0", 1)
    assert (plans.live.sum(-1) == 60).all()
    assert (
        len(set(task.rows.values())) > 1
    )  # or chance made all alike: 60 ± 6 of each, five or more times over
    seen, forward = [], task._loss
    task._loss = lambda out, y: seen.append(len(y)) or forward(out, y)
    batches = plans.of(0)
    algorithms.FedSGD().local(
        task,
        {**task.initial(), "round": torch.zeros(())},
        {},
        batches._replace(index=fed.train.index[batches.index]),
    )
    # before the first step two rows are compared with one at a time
    assert seen == [1, 1, 2, 2, *task.rows.values()]


def test_an_algorithm_with_unaccounted_gradients_is_refused(fed, tmp_path):
    """Scaffold's option i computes a full gradient at the server's model in addition to the local steps, which is not
    accounted for.
    """
    with pytest.raises(BadParameter, match="Scaffold computes more gradients than local steps"):
        trained(
            fed,
            DPSGD(noise_multiplier=1.0, delta=1e-4),
            algorithm=algorithms.Scaffold(lr=0.3, option="i"),
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
