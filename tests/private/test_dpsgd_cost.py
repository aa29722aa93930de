"""What DP-SGD costs, and the ways in which a guarantee is lost unnoticed, each of them closed."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from tacit.accounting import epsilon
from tacit.errors import BadParameter, BudgetSpent
from tacit.private import DPSGD

from .world import N, epoch, sgd, world


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_dp_accounting(accountant):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    model, x, y = world()
    private = DPSGD(noise_multiplier=1.1, delta=1e-5, accountant=accountant).attach(
        model, optimizer := sgd(model), (x, y), batch_size=20
    )
    for _ in range(3):
        epoch(private, model, optimizer)
    theirs = {"pld": PLDAccountant, "rdp": RdpAccountant}[accountant]()
    theirs.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.1)), 30)
    assert private.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    (line,) = private.ledger.spent
    assert line.epsilon == private.epsilon
    assert "20 of 200 rows expected" in line.sampling
    assert line.unit == "row, present or not"


@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "fixed"])
def test_a_target_epsilon_is_reached_and_never_passed(sampling):
    model, x, y = world()
    private = DPSGD(epsilon=2.0, delta=1e-4, sampling=sampling).attach(
        model, optimizer := sgd(model), (x, y), epochs=4, batch_size=25
    )
    for _ in range(4):
        epoch(private, model, optimizer)
    assert 1.98 < private.epsilon <= 2.0
    with pytest.raises(BudgetSpent, match=r"budget of ε = 2 at δ = 0.0001 is already spent after 32 steps"):
        epoch(private, model, optimizer)


def test_shuffled_batches_are_not_accounted_as_poisson():
    """The trap: the same noise, batches and epochs say far less ε if the order is taken for Poisson
    sampling.
    """
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-5, sampling="shuffle").attach(
        model, optimizer := sgd(model), (x, y), batch_size=20
    )
    epoch(private, model, optimizer)
    from tacit.accounting import gaussian_epsilon

    assert private.epsilon == pytest.approx(
        gaussian_epsilon(0.5, 1e-5)
    )  # one epoch, one release, a row exchanged: distance 2C
    assert private.epsilon > 2 * epsilon(noise_multiplier=1.0, sampling_rate=0.1, steps=10, delta=1e-5)
    assert private.ledger.spent[0].sampling == "shuffled, which is accounted as no"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"sampling": "shuffle", "accountant": "pld"},
            "accountant is 'pld', which does not apply to sampling='shuffle'.*Use accountant='gaussian', or "
            "sampling='poisson'",
        ),
        (
            {"sampling": "fixed", "accountant": "pld"},
            "accountant is 'pld', which does not apply to sampling='fixed'",
        ),
        (
            {"sampling": "poisson", "accountant": "gaussian"},
            "accountant is 'gaussian', which does not apply to sampling='poisson'",
        ),
    ],
)
def test_an_accountant_of_another_sampling_is_an_error(settings, words):
    model, x, y = world()
    with pytest.raises(BadParameter, match=words):
        DPSGD(noise_multiplier=1.0, **settings).attach(model, sgd(model), (x, y), batch_size=20)


def test_a_weighted_loader_is_refused():
    """The trap: rows that a sampler prefers are looked at more often than Poisson's ε says."""
    model, x, y = world()
    loader = DataLoader(
        TensorDataset(x, y), batch_size=20, sampler=WeightedRandomSampler(torch.rand(N).tolist(), N)
    )
    with pytest.raises(
        BadParameter,
        match=r"the loader uses a WeightedRandomSampler, but ε assumes 'poisson' sampling",
    ):
        DPSGD(noise_multiplier=1.0).attach(model, sgd(model), loader)


def test_rows_from_ones_own_loader_are_refused():
    """The other half of the trap: the session is there, but the loop still goes over the old, shuffled
    loader.
    """
    model, x, y = world()
    optimizer = sgd(model)
    DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, optimizer, (x, y), batch_size=20)
    F.cross_entropy(model(x[:20]), y[:20]).backward()
    with pytest.raises(BadParameter, match=r"step\(\) was called without drawn rows"):
        optimizer.step()


def test_a_second_look_at_a_batch_is_refused():
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(
        model, optimizer := sgd(model), (x, y), batch_size=50
    )
    for a, b in private:
        F.cross_entropy(model(a), b).backward()
        private.ghost.flush()
        F.cross_entropy(model(a), b).backward()
        with pytest.raises(BadParameter, match="a second backward pass in one step"):
            optimizer.step()
        break


def test_a_batch_that_is_not_the_one_drawn_is_refused():
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(
        model, optimizer := sgd(model), (x, y), batch_size=50
    )
    for a, b in private:
        F.cross_entropy(model(torch.cat([a, a])), torch.cat([b, b])).backward()
        with pytest.raises(BadParameter, match=r"rows were drawn and \d+ passed through the model"):
            optimizer.step()
        break


def test_the_account_survives_a_restart(tmp_path):
    """A started step is spent: a second run with the same file continues the account, and is refused when the budget is
    spent.
    """
    settings = DPSGD(epsilon=1.0, delta=1e-4, noise_multiplier=3.0)
    model, x, y = world()
    private = settings.attach(
        model, optimizer := sgd(model), (x, y), batch_size=25, epochs=40, file=tmp_path / "spent.jsonl"
    )
    for a, b in private:
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    private.close()
    model, x, y = world()
    private = settings.attach(
        model, optimizer := sgd(model), (x, y), batch_size=25, epochs=40, file=tmp_path / "spent.jsonl"
    )
    assert private.account.spent == 8
    while private.account.spent < private.account.allowed - 3:
        private.account.spend(1)
    with pytest.raises(BudgetSpent, match="is already spent after"):
        epoch(private, model, optimizer)
    assert private.epsilon <= 1.0
    private.close()
    lines = [
        json.dumps(
            {
                "round": 1,
                "begun": i + 1,
                "multiplier": 3.0,
                "rate": 0.125,
                "sampling": "poisson",
                "accountant": "pld",
            }
        )
        for i in range(10_000)
    ]
    (tmp_path / "spent.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(
        BudgetSpent,
        match=r"is already spent: 10000 steps cost ε = .*according to .*spent.jsonl\. Spent privacy cannot "
        r"be "
        r"recovered",
    ):
        settings.attach(model, sgd(model), (x, y), batch_size=25, epochs=40, file=tmp_path / "spent.jsonl")
