"""Every rule with a process for each party: the same model as in the simulation. All runs share the same few
processes, over real sockets; starting them is what takes the time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit import aggregate, algorithms, data, models

from ..guard.doomed import train_together

FED = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(4, skew=data.Dirichlet(0.5), seed=1)
GIVEN: dict[str, Any] = {
    "Distill": partial(aggregate.Distill, rows="test", steps=5),
    "Legato": partial(aggregate.Legato, window=2),
    "Momentum": partial(aggregate.Momentum, aggregate.FoolsGold(), beta=0.5),
}
NAMES = [*aggregate.ALL]


def job(name: str) -> dict[str, Any]:
    return {
        "model": models.MLP(hidden=(5,)),
        "rounds": 3,
        "evaluate_every": 0,
        "aggregate": GIVEN.get(name, aggregate.ALL[name])(),
        "algorithm": algorithms.FedPSO(lr=0.2) if name == "Best" else algorithms.FedAvg(lr=0.2),
    }  # whose parties send scores


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tacit.Result]:
    place: Path = tmp_path_factory.mktemp("rules")
    return train_together(FED, {name: job(name) for name in NAMES}, place, {}, tacit.Processes())


def vector(run: tacit.Result) -> torch.Tensor:
    return torch.cat([v.reshape(-1).double() for v in run.model.state_dict().values()])


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_over_real_processes_gives_the_model_of_the_simulation(
    name: str, apart: dict[str, tacit.Result]
) -> None:
    here, there = tacit.train(FED, **job(name)), apart[name]
    torch.testing.assert_close(vector(there), vector(here), atol=2e-6, rtol=0)
    assert all(s.how == "executed" for s in there.ledger.seen)


def test_every_update_was_really_sent_and_the_rules_do_differ(apart: dict[str, tacit.Result]) -> None:
    """Runs that share processes share their ledgers: three rounds of four parties for each rule. And of the
    models most differ, or the test above would say little: with four honest parties some rules are one, such
    as the mean and one that leaves out what is too long.
    """
    sent = max(
        sum(s.count for s in run.ledger.seen if s.kind == "Upload") for run in apart.values()
    )  # by the ledger of the run that ended last
    assert sent == 12 * (len(NAMES) - 1) + 3  # of a round's parties Best asks one
    found: list[torch.Tensor] = []
    for run in apart.values():
        if all((vector(run) - other).abs().max() > 1e-4 for other in found):
            found.append(vector(run))
    assert len(found) >= 12
