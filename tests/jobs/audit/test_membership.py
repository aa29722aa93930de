"""Membership inference succeeds on an overfitted network, and fails under differential privacy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import tacit
from tacit import algorithms, audit, data, guard, models, private
from tacit.audit import roc
from tacit.errors import BadData, BadParameter, BadRun
from tacit.jobs.audit.membership import _pool_of_rows
from tacit.jobs.audit.runs import claim_of
from tacit.jobs.audit.shadows import _federation, split_halves
from tacit.jobs.train.train import train_side_by_side
from tacit.parties.ledger import Ledger, Spend

CHANCE = 1e-8  # the largest false-alarm probability of a test below
OPTIONS = {
    "model": models.MLP(hidden=(64,)),
    "algorithm": algorithms.FedAvg(lr=0.5),
    "rounds": 8,
    "local_epochs": 10,
    "batch_size": 16,
}


@pytest.fixture(scope="module")
def fed():
    """Real digits; half of the labels are drawn anew, so that a network that fits them must memorize."""
    digits, rng = load_digits(), np.random.default_rng(0)
    y = digits.target.copy()
    wrong = rng.random(len(y)) < 0.5
    y[wrong] = rng.integers(0, 10, wrong.sum())
    return data.from_arrays((digits.data / 16).astype("float32"), y).split(2, seed=0, held_fraction=0.9)


@pytest.fixture(scope="module")
def overfitted(fed):
    return tacit.train(fed, **OPTIONS)


@pytest.fixture(scope="module")
def lira(overfitted):
    return audit.membership(overfitted, attack="lira", shadows=8)


def test_lira_finds_members_of_an_overfitted_network(lira):
    """By chance with probability 1e-8 (Mann and Whitney): 144 members, 144 others."""
    assert lira.p_value < CHANCE
    assert lira.auc > 0.8
    assert lira.tpr_at(0.01) > 0.1
    assert lira.tpr_at(0.01) <= lira.tpr_at(0.1)
    assert lira.claim is None
    assert lira.ceiling(0.001) == 1.0
    assert "8 shadow models" in str(lira)


@pytest.mark.parametrize("attack", ["loss", "label", "lira_offline", "rmia"])
def test_the_other_attacks_find_members_too(overfitted, attack):
    found = audit.membership(overfitted, attack=attack, shadows=8)
    assert found.p_value < CHANCE
    assert found.shadows == (0 if attack in ("loss", "label") else 8)


def test_lira_beats_the_loss_where_few_false_alarms_are_allowed(overfitted, lira):
    assert lira.tpr_at(0.01) > 2 * audit.membership(overfitted, attack="loss").tpr_at(0.01)


def test_differential_privacy_stops_it(fed):
    """144 members and 144 others: the AUC of any attack exceeds the largest that ε allows by 0.2 with
    probability below 1e-8 (six standard errors of at most 0.034); without ε it is above 0.8.
    """
    run = tacit.train(
        fed, **OPTIONS | {"rounds": 2, "local_epochs": 1}, private=private.DPSGD(epsilon=0.25, delta=1e-3)
    )
    found = audit.membership(run, attack="lira", shadows=4)
    assert found.claim is not None
    assert found.claim[0] <= 0.25
    assert found.auc < roc.largest_auc(*found.claim) + 0.2 < 0.8
    assert found.tpr_at(0.1) < found.ceiling(0.1) + 0.25
    assert "allowed by ε = " in str(found)
    assert "ceiling of ε" in found.plot().svg


def test_every_unit_is_in_exactly_half_of_the_shadows():
    inside = split_halves(11, 6, np.random.default_rng(0))
    assert (inside.sum(0) == 3).all()
    assert (inside[0] ^ inside[1]).all()


def test_a_shadow_in_the_stack_equals_the_run_alone(overfitted, lira):
    """The shadow federations hold what they say, and the stack gives the models of single runs."""
    p = overfitted.origin
    pool = _pool_of_rows(p, None, None, 40, np.random.default_rng(0))
    halves = split_halves(80, 2, np.random.default_rng(1))
    units = (pool, torch.cat(pool.units), [1] * 80)
    made, inside = _federation(*units, halves[0], False)
    held = set(made.train.index.tolist())
    assert {int(u) for u, i in zip(pool.units, inside) if i} <= held
    assert not {int(u) for u, i in zip(pool.units, inside) if not i} & held
    assert len(held) == len(p.fed.train.index)
    plans = [
        dataclasses.replace(p, fed=_federation(*units, h, False)[0], rounds=2, seed=s)
        for s, h in enumerate(halves)
    ]
    stacked = train_side_by_side(plans, [None, None])
    alone = train_side_by_side(plans[1:], [None])[0]
    for a, b in zip(stacked[1].model.parameters(), alone.model.parameters()):
        assert torch.allclose(a, b, atol=1e-5)


def test_members_and_non_members_of_the_users_own(overfitted, fed):
    rows = [t[fed.train.index[:50]] for t in fed.rows]
    others = [t[:60] for t in fed.test]
    found = audit.membership(overfitted, members=rows, non_members=others, attack="loss")
    assert (found.members, len(found.curve.outside)) == (50, 50)
    with pytest.raises(BadData, match="60 of the rows in members= are not training rows"):
        audit.membership(overfitted, members=others, attack="loss")
    with pytest.raises(BadData, match="50 of the rows in non_members= are training rows"):
        audit.membership(overfitted, non_members=rows, attack="loss")


def test_whole_parties_are_found_and_client_noise_hides_them():
    """Ten parties of 12 rows each. Found: by chance below 1e-4 (ten against ten, exact: 1/184756 if all
    are separated). Hidden: AUC above 0.95 with ten against ten has probability below 2e-4 without a signal,
    and client-level ε = 0.2 allows next to none; its noise is from a seed, so every run of the test is the same.
    """
    digits = load_digits()
    whole = data.from_arrays((digits.data / 16).astype("float32"), digits.target, test_fraction=0.5, seed=1)
    fed = whole.split(60, seed=0, held_fraction=0.0)
    few = _parties(fed, range(10)), _parties(fed, range(20, 30))
    options = OPTIONS | {"rounds": 10, "local_epochs": 10}
    run = tacit.train(few[0], **options)
    found = audit.membership(run, unit="party", non_members=few[1], shadows=16)
    assert (found.unit, found.members) == ("party", 10)
    assert found.auc > 0.95
    claimed, seeded = (
        tacit.train(
            few[0],
            **options | {"rounds": 2, "local_epochs": 1},
            guard=[guard.Clip(0.5), guard.Noise(epsilon=0.2, delta=1e-3)],
            insecure_seed=seed,
        )
        for seed in (None, 0)
    )
    found = audit.membership(claimed, unit="party", non_members=few[1], shadows=4)
    assert found.claim is not None
    assert found.claim[0] <= 0.2
    hidden = audit.membership(seeded, unit="party", non_members=few[1], shadows=4)
    assert hidden.claim is None  # anybody can compute the noise
    assert hidden.auc < 0.95


def _parties(fed, which):
    lists = [fed.train.of(k) for k in which]
    index = torch.cat(lists)
    rows = data.federation.Rows(*(t[index] for t in fed.rows))
    at = list(torch.arange(len(index)).split([len(x) for x in lists]))
    empty = data.federation.Holdings.from_lists([[] for _ in lists])
    return dataclasses.replace(
        fed,
        rows=rows,
        train=data.federation.Holdings.from_lists(at),
        held=empty,
        parties=tuple(fed.parties[k] for k in which),
    )


def test_a_run_is_attacked_from_its_directory(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        '[data]\nname = "digits"\nparties = 2\n[model]\nname = "logistic"\n[algorithm]\nname = "FedAvg"\n'
        "lr = 0.1\n[train]\nrounds = 1\n"
    )
    from tacit.config.job import load

    made = load(job)
    (fed,) = made.federations()
    run = tacit.train(fed, **made.train(), out=tmp_path / "run")
    here = audit.membership(run, attack="loss")
    there = audit.membership(tmp_path / "run", attack="loss")
    assert np.array_equal(here.curve.inside, there.curve.inside)
    with pytest.raises(BadRun, match="started from Python"):
        audit.membership(
            tacit.train(fed, model="logistic", rounds=1, out=tmp_path / "py").directory, attack="loss"
        )
    text = (tmp_path / "run" / "job.toml").read_text()
    (tmp_path / "run" / "job.toml").write_text(text.replace("parties = 2", "parties = 3"))
    with pytest.raises(BadRun, match="the data changed since"):
        audit.membership(tmp_path / "run", attack="loss")


def test_a_model_of_another_program_is_attacked_with_its_own_training(fed):
    def train(rows, seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        step = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(60):
            step.zero_grad()
            torch.nn.functional.cross_entropy(model(rows.x), rows.y).backward()
            step.step()
        return model

    with torch.random.fork_rng():
        yes, no = (data.federation.Rows(*(t[a:b] for t in fed.rows)) for a, b in ((0, 150), (200, 350)))
        found = audit.membership(train(yes, 0), members=yes, non_members=no, train=train, shadows=4)
    assert found.p_value < CHANCE
    with pytest.raises(BadParameter, match="Give train="):
        audit.membership(torch.nn.Linear(64, 10), members=yes, non_members=no)
    with pytest.raises(BadParameter, match="needs members="):
        audit.membership(torch.nn.Linear(64, 10), attack="loss")


def test_a_regression_is_attacked_by_its_residual():
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    fed = data.from_arrays((20 * x).astype("float32"), (y - 150) / 77, regression=True).split(
        1, held_fraction=0.6
    )
    run = tacit.train(
        fed,
        model=models.MLP(hidden=(64,)),
        algorithm=algorithms.FedAvg(lr=0.05),
        rounds=5,
        local_epochs=20,
        batch_size=16,
    )
    assert audit.membership(run, attack="lira", shadows=4).p_value < 1e-6
    with pytest.raises(BadParameter, match="this run is a regression"):
        audit.membership(run, attack="rmia")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attack": "guess"}, "one of 'lira'"),
        ({"unit": "person"}, "'row' or 'party'"),
        ({"shadows": 5}, "an even number of at least 4"),
        ({"most": 1}, "at least 2"),
        ({"unit": "party"}, "needs non_members=, a Federation"),
        ({"members": 3}, "a pair"),
        ({"non_members": (np.zeros((2, 3)), np.zeros(2))}, r"rows of shape \(64,\)"),
    ],
)
def test_bad_options_are_refused(overfitted, options, words):
    with pytest.raises((BadParameter, BadData), match=words):
        audit.membership(overfitted, **{"attack": "loss", **options})


def test_what_is_no_run_is_refused():
    with pytest.raises(BadParameter, match="a result of tacit"):
        audit.membership(3)


def test_claims_of_parties_are_about_different_rows_and_others_add_up():
    ledger = Ledger()
    assert claim_of(ledger, "row") is None
    for name, epsilon in (("a", 1.0), ("b", 2.0)):
        ledger.spend(Spend("DP-SGD", epsilon, 1e-5, f"row of {name}, present or not", "s", "Poisson (x)"))
    assert claim_of(ledger, "row") == (2.0, 1e-5)
    assert claim_of(ledger, "party") is None
    ledger.spend(Spend("sums", 0.5, 0.0, "row, present or not", "s", "no"))
    assert claim_of(ledger, "row") == (2.5, 1e-5)
    ledger.spend(Spend("noise", 1.5, 1e-6, "client, present or not", "s", "no"))
    assert claim_of(ledger, "row") == (1.5, 1e-6)
    assert claim_of(ledger, "party") == (1.5, 1e-6)
    ledger.stamp("NOT PRIVATE: a seed")
    assert claim_of(ledger, "row") is None


def test_the_report_has_the_curve(lira, tmp_path):
    page = lira.report(tmp_path / "m.html").read_text(encoding="utf-8")
    assert "ROC curve" in page
    assert "true-positive rate (log scale)" in page
    assert lira.to_dict()["rates"]["TPR at FPR 0.01"] == lira.tpr_at(0.01)
