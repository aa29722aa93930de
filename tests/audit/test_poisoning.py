"""Attacks: what each does, that a mean breaks and a median does not, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import tacit
from tacit import aggregate, algorithms, audit, data
from tacit.audit.poisoning import ALL, Adversaries, attacks
from tacit.errors import BadParameter
from tacit.parameters import from_table, to_table

OWN = {"delta": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
EVERYONE = {"delta": torch.tensor([[1.0, 2.0], [3.0, 4.0], [8.0, 0.0]])}


def sent(attack):
    return attack.updates(OWN, EVERYONE, torch.Generator().manual_seed(0))["delta"]


def test_sent_updates_by_hand():
    assert sent(audit.SignFlip(factor=2)).tolist() == [[-2, -4], [-6, -8]]
    assert sent(audit.Scale(factor=10)).tolist() == [[10, 20], [30, 40]]
    assert sent(audit.FreeRide()).tolist() == [[0, 0], [0, 0]]
    assert sent(audit.InnerProduct(epsilon=0.5)).tolist() == [[-2, -1], [-2, -1]]  # the mean of all is (4, 2)
    assert sent(audit.LittleIsEnough(z=2.0)).tolist() == [[0, 1], [0, 1]]  # mean (2, 3), deviation (1, 1)
    assert sent(audit.Gaussian(deviation=3)).std() > 0.5
    noise = sent(audit.FreeRide(noise=1.0))
    assert noise.abs().sum() > 0
    assert not torch.equal(noise, OWN["delta"])


def test_a_little_takes_the_papers_z():
    """Baruch et al., n = 50 workers, m = 24 corrupted: s = 50/2 + 1 − 24 = 2 supporters among 26, z =
    Φ⁻¹(24/26) = 1.43.
    """
    own = {"delta": torch.randn(24, 1000, generator=torch.Generator().manual_seed(1))}
    everyone = {"delta": torch.cat([own["delta"], torch.zeros(26, 1000)])}
    got = audit.LittleIsEnough().updates(own, everyone, torch.Generator())["delta"]
    mean, std = own["delta"].mean(0), own["delta"].std(0, correction=0)
    np.testing.assert_allclose(((mean - got[0]) / std).numpy(), 1.426, atol=1e-3)


def test_labels_are_flipped_at_the_attackers_only():
    fed = data.digits().split(5)
    liars = Adversaries.assign(fed, (audit.LabelFlip(share=0.4),), seed=3)
    bad = liars.rows(fed)
    (who,) = liars.who
    assert len(who) == 2
    for k in range(5):
        before, after = fed.rows.y[fed.train.of(k)], bad.rows.y[bad.train.of(k)]
        assert torch.equal(after, 9 - before if k in who else before)
        assert torch.equal(fed.rows.y[fed.held.of(k)], bad.rows.y[bad.held.of(k)])


def test_half_of_the_attackers_rows_have_the_trigger():
    fed = data.digits().split(5)
    attack = audit.Backdoor(share=0.2, target=7, poisoned=0.5)
    liars = Adversaries.assign(fed, (attack,), seed=0)
    bad = liars.rows(fed)
    changed = (bad.rows.x != fed.rows.x).flatten(1).any(1)
    mine = fed.train.of(int(liars.who[0][0]))
    assert 0.3 < changed[mine].double().mean() < 0.7
    assert changed.sum() == changed[mine].sum()
    assert (bad.rows.y[changed] == 7).all()
    wanted = liars.target_rows(fed.test)
    assert wanted is not None
    assert (wanted.y == 7).all()
    assert len(wanted.y) == int((fed.test.y != 7).sum())
    picture = torch.zeros(2, 3, 8, 8)
    picture[0, 0, 0, 0] = 1
    stamped = attack.stamp(picture)
    assert (stamped[..., 5:, 5:] == 1).all()
    assert stamped[1].sum() == 3 * 9


@pytest.mark.parametrize("name", ALL)
def test_every_attack_is_restored_from_its_table(name):
    attack = ALL[name]()
    assert (
        from_table(to_table(attack), {kind.__name__: kind for kind in ALL.values()}, "adversaries") == attack
    )
    assert dataclasses.is_dataclass(attack)
    assert attacks({name: 0.3})[0].share == 0.3


def test_a_mean_breaks_and_a_median_does_not():
    fed = data.gaussian_blobs(rows=1200, classes=3, features=5, seed=1).split(10)
    found = tacit.compare(
        fed,
        model="logistic",
        algorithms=[algorithms.FedAvg(lr=0.3)],
        aggregates=[aggregate.Mean(), aggregate.Median()],
        rounds=10,
        adversaries={"sign_flip": 0.3, "scale": 0.3},
        seeds=2,
    )
    assert list(found.table().columns) == ["no attack", "sign_flip 30%", "scale 30%"]
    assert score(found, "Mean", "no attack") > 0.9
    assert score(found, "Median", "no attack") > 0.9
    assert score(found, "Mean", "sign_flip 30%") < 0.5
    assert score(found, "Median", "sign_flip 30%") > 0.85
    assert score(found, "central", "sign_flip 30%") > 0.9  # baselines have honest rows


def score(comparison, label, column):
    rows = [
        r["metrics"]["accuracy"]
        for r in comparison.summary["rows"]
        if (r["label"], r["skew"]) == (label, column)
    ]
    return sum(rows) / len(rows)


def test_a_backdoor_reports_its_success_rate():
    fed = data.digits().split(6)
    attack = audit.Backdoor(share=0.2, target=3, factor=6.0)
    model = "logistic"
    honest = tacit.train(
        fed,
        model=model,
        algorithm=algorithms.FedAvg(lr=0.3),
        rounds=6,
        adversaries=[dataclasses.replace(attack, poisoned=1e-9, factor=1.0)],
    )
    open_door = tacit.train(
        fed, model=model, algorithm=algorithms.FedAvg(lr=0.3), rounds=6, adversaries=[attack]
    )
    bounded = tacit.train(
        fed,
        model=model,
        algorithm=algorithms.FedAvg(lr=0.3),
        rounds=6,
        adversaries=[attack],
        aggregate=aggregate.NormBound(factor=1.5),
    )
    assert open_door.metrics["attack_success"] > 0.6 > honest.metrics["attack_success"] + 0.2
    assert bounded.metrics["attack_success"] < open_door.metrics["attack_success"] - 0.3


def test_runs_under_attack_side_by_side_equal_each_alone():
    fed = data.gaussian_blobs(rows=300, classes=3, features=4, seed=2).split(6)
    both = tacit.compare(
        fed,
        model="logistic",
        algorithms=[algorithms.FedAvg(lr=0.2)],
        aggregates=[aggregate.TrimmedMean()],
        rounds=3,
        adversaries={"gaussian": 0.2, "label_flip": 0.4},
    )
    for name, share in (("gaussian", 0.2), ("label_flip", 0.4)):
        alone = tacit.train(
            fed,
            model="logistic",
            algorithm=algorithms.FedAvg(lr=0.2),
            aggregate=aggregate.TrimmedMean(),
            rounds=3,
            adversaries={name: share},
        )
        assert score(both, "TrimmedMean", f"{name} {share:.0%}") == pytest.approx(
            alone.metrics["accuracy"], abs=1e-9
        )


def test_a_rule_gives_the_same_model_over_messages():
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(5)
    for rule in (aggregate.Median(), aggregate.MultiKrum(byzantine=0.2), aggregate.Layerwise()):
        one, two = (
            tacit.train(fed, model="logistic", aggregate=rule, rounds=3, runtime=r).model.state_dict()
            for r in ("cohort", "inprocess")
        )
        for k in one:
            torch.testing.assert_close(one[k], two[k], atol=1e-6, rtol=0)


def test_a_run_with_attackers_and_a_rule_resumes_to_the_same_model(tmp_path):
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(5)
    job = dict(model="logistic", aggregate=aggregate.Median(), adversaries={"gaussian": 0.2})
    whole = tacit.train(fed, rounds=4, out=tmp_path / "whole", **job)

    class Enough(Exception):
        pass

    def watch(event):
        if event["kind"] == "round" and event["round"] == 3:
            raise Enough

    with pytest.raises(Enough):
        tacit.train(fed, rounds=4, out=tmp_path / "cut", watch=watch, **job)
    again = tacit.train(fed, rounds=4, out=tmp_path / "cut", resume=True, **job)
    for a, b in zip(whole.model.state_dict().values(), again.model.state_dict().values()):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            dict(adversaries={"sign_flop": 0.2}),
            "adversaries is 'sign_flop'; it must be one of label_flip, sign_flip",
        ),
        (dict(adversaries={"sign_flip": 1.5}), "share is 1.5; it must be a number above 0 and below 1"),
        (dict(adversaries="sign_flip"), "a share of the parties by attack"),
        (dict(adversaries={"sign_flip": 0.6, "scale": 0.4}), "none is left to learn from"),
        (dict(adversaries=[audit.Backdoor(target=12)]), "target is 12; it must be one of the 3 classes"),
        (dict(adversaries={"scale": 0.2}, runtime="inprocess"), "malicious parties are simulated"),
        (dict(aggregate="Medain"), "aggregate is 'Medain'; it must be one of Mean,.*Did you mean"),
        (dict(aggregate=aggregate.Median), "an aggregation rule such as aggregate.Median"),
        (
            dict(aggregate=aggregate.Median(), guard=[tacit.guard.Clip(1.0)]),
            "guard: its stages work on a sum of updates, and Median",
        ),
        (
            dict(
                aggregate=aggregate.Krum(),
                guard=[tacit.guard.Clip(1.0), tacit.guard.Quantize(bits=16), tacit.guard.SecAgg()],
            ),
            "SecAgg hides each update from the server, and Krum must see each",
        ),
    ],
    ids=range(10),
)
def test_what_is_refused(wrong, said):
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(5)
    with pytest.raises(BadParameter, match=said):
        tacit.train(fed, model="logistic", rounds=1, **wrong)


def test_labels_cannot_be_flipped_where_there_are_none():
    fed = data.gaussian_blobs(rows=100, classes=2, features=3).split(4)
    fed = dataclasses.replace(
        fed,
        classes=None,
        rows=fed.rows._replace(y=fed.rows.y.float()),
        test=fed.test._replace(y=fed.test.y.float()),
    )
    with pytest.raises(BadParameter, match="label_flip changes class labels"):
        tacit.train(fed, model="logistic", adversaries={"label_flip": 0.2})
