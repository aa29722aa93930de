"""DP-SGD where rows belong to people: a person with all their rows is the unit of ε."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data, guard
from tacit.data.federation import Federation, Holdings, Rows
from tacit.engine.task import Task
from tacit.errors import BadParameter
from tacit.jobs.train import local_dp
from tacit.jobs.train.local import Member
from tacit.jobs.train.local_dp import PrivateTask
from tacit.jobs.train.plan import make_plan
from tacit.private import DPSGD, noise


def people(sizes: list[int], without: int | None = None) -> Federation:
    """One party: person k has sizes[k] rows, far out in a direction of their own."""
    persons = np.repeat(np.arange(len(sizes)), sizes)
    persons = persons[persons != without]
    x = torch.zeros(len(persons), len(sizes))
    x[torch.arange(len(persons)), torch.from_numpy(persons)] = 50.0
    y = torch.from_numpy(persons % 2)
    return Federation(
        "clinic",
        Rows(x, y),
        Holdings.from_lists([torch.arange(len(persons))]),
        Holdings.from_lists([torch.arange(0)]),
        Rows(x[:0], y[:0]),
        2,
        ("a",),
        persons=torch.from_numpy(persons),
    )


def record_sums(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, float]]:
    """Keep what the noise is added to, and its deviation, and add none."""
    kept: list[tuple[torch.Tensor, float]] = []

    def keep(sums: Any, sigma: float, source: Any) -> Any:
        kept.append((torch.cat([s.reshape(-1) for s in sums]), sigma))
        return sums

    monkeypatch.setattr(local_dp.noise, "add_noise", keep)
    return kept


def plan_step(fed: Federation, clip: float) -> Any:
    settings = DPSGD(noise_multiplier=1.5, clip=clip, public_size=10)
    return make_plan(fed, model="logistic", rounds=1, batch_size=5, local_steps=1, private=settings)


def train_once(fed: Federation, draw: Any, monkeypatch: pytest.MonkeyPatch, clip: float = 1.0) -> None:
    """One local step in which the people are those of `draw`."""
    monkeypatch.setattr(local_dp.discrete, "uniform", lambda below, n, source: draw(below, n))
    p = plan_step(fed, clip)
    module = torch.nn.Linear(fed.rows.x.shape[1], 2)
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    task = PrivateTask.of(Task(module, *fed.rows), p)
    member = Member("a", fed, task, p.algorithm, 0, 1, 5, 1)
    member.local(0, {"w": task.initial()["w"]}, {})


SIZES = [1, 40, 3, 1, 7]


def test_without_a_person_the_sum_changes_by_at_most_the_clipping_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everybody is drawn. Person 1 has 40 rows, each with a gradient far beyond the norm; the accountant's
    sensitivity is the norm, and it is reached.
    """
    kept = record_sums(monkeypatch)
    for clip in (1.0, 0.25):
        kept.clear()
        for without in (None, *range(len(SIZES))):
            train_once(people(SIZES, without), lambda below, n: np.zeros(n, int), monkeypatch, clip)
        (whole, sigma), *others = kept
        release = local_dp.terms(plan_step(people(SIZES), clip), 10, 1).release
        assert release is not None
        accounted = (release.multiplier, release.rate, release.sampling)
        assert accounted == (1.5, 0.5, "poisson")  # of 5 of 10 people
        assert sigma == pytest.approx(noise.deviation(1.5, clip, len(whole)))
        assert sigma >= 1.5 * clip
        for changed, _ in others:
            assert float((whole - changed).norm()) == pytest.approx(clip, rel=1e-3)
            assert float((whole - changed).norm()) <= clip


def test_by_rows_the_same_person_changes_the_sum_by_as_many_norms_as_they_have_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the test above."""
    from dataclasses import replace

    kept = record_sums(monkeypatch)
    for without in (None, 1):
        fed = replace(people(SIZES, without), persons=None)
        train_once(fed, lambda below, n: np.zeros(n, int), monkeypatch)
    assert float((kept[0][0] - kept[1][0]).norm()) == pytest.approx(40.0, rel=1e-3)


def test_all_rows_of_a_person_are_drawn_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw for each person, not for each row; only the second and the last are below the width."""
    kept, draws = record_sums(monkeypatch), list[tuple[int, int]]()

    def draw(below: int, n: int) -> np.ndarray:
        draws.append((below, n))
        return np.array([9, 0, 5, 9, 4])

    train_once(people(SIZES), draw, monkeypatch)
    assert draws == [(10, 5)]  # the public number of people, and the real one
    total = kept[0][0][: 2 * len(SIZES)].reshape(2, len(SIZES)).abs().sum(0)
    assert (total > 0).tolist() == [False, True, False, False, True]


def test_a_simulation_claims_its_epsilon_for_a_person() -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(120), 3)
    frame = pd.DataFrame(
        {
            "patient": who,
            "site": np.where(who % 2, "a", "b"),
            "age": rng.normal(50, 10, 360),
            "ill": rng.choice(["no", "yes"], 360),
        }
    )
    fed = data.from_frame(
        *(frame, "ill"), groups=["site"], group="patient", fit_epsilon=1.0, bounds={"age": (0, 120)}
    ).by("site")
    settings = DPSGD(noise_multiplier=1.0, delta=1e-3, accountant="rdp", public_size=50)
    run = tacit.train(fed, model="logistic", rounds=1, private=settings)
    units = [line.unit for line in run.ledger.spent]
    assert units == [
        "person of a, present or not",
        "person of b, present or not",
        "one person, with all their rows at a party",
    ]
    assert all("people expected" in line.sampling for line in run.ledger.spent[:2])
    assert "A person is present or not with all their rows" in run.ledger.spent[0].note
    plan = tacit.plan(fed, model="logistic", rounds=1, private=settings)
    assert "for each person of any party" in str(plan)
    assert plan.total == {"epsilon": plan.spends["epsilon"] + 1.0, "delta": 1e-3 + 1e-6}
    assert (
        f"total: ε = {plan.total['epsilon']:.4g} at δ = 0.001001 for each person, with all their rows at a party, "
        "preparation and training together"
    ) in str(plan)
    assert "for each one" not in str(plan) + str(run.ledger) + run.card()
    stages = [guard.Clip(1.0), guard.Noise(multiplier=1.0)]
    clients = tacit.plan(fed, model="logistic", rounds=1, guard=stages)
    assert clients.total is None  # ε for a client that is present or not is less than one for its exchange
    assert "no total: the ε of training is for a client" in str(clients)


def test_one_holder_whose_rows_belong_to_people_is_refused_with_what_to_do() -> None:
    """Its ε would be that of a row, and a person has several."""
    frame = pd.DataFrame(
        {
            "patient": np.arange(60) // 3,
            "age": np.arange(60.0),
            "ill": np.where(np.arange(60) % 2, "yes", "no"),
        }
    )
    table = data.from_frame(frame, label="ill", group="patient", test_fraction=0.0)
    with pytest.raises(
        BadParameter, match=r"belong to people \(group='patient'\), and ε here is for one row"
    ):
        tacit.train_private(table, epsilon=1.0, epochs=1)
    settings = DPSGD(noise_multiplier=1.0, delta=1e-3, accountant="rdp", public_size=20)
    run = tacit.train(table.split(1), model="logistic", rounds=1, private=settings)  # what the error proposes
    assert run.ledger.spent[0].unit.startswith("person of")
