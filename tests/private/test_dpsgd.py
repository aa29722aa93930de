"""DP-SGD in a loop of one's own: what a step computes, and what cannot be attached."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.errors import BadData, BadParameter
from tacit.private import DPSGD

from .reference import clipped_sum, close, each_gradient
from .world import N, epoch, sgd, values, world


@pytest.mark.parametrize("micro_batch", [None, 7, 50])
def test_without_noise_and_clipping_it_is_sgd(micro_batch):
    """σ = 0, C = ∞: every row in every step, and the same model as torch's own loop, in chunks or not."""
    model, x, y = world()
    other = copy.deepcopy(model)
    private = DPSGD(noise_multiplier=0, clip=None, sampling="shuffle", micro_batch=micro_batch).attach(
        model, optimizer := sgd(model), (x, y), batch_size=N
    )
    plain = sgd(other)
    for _ in range(5):
        epoch(private, model, optimizer)
        plain.zero_grad()
        F.cross_entropy(other(x), y).backward()
        plain.step()
    assert close(values(model), values(other), 1e-5)
    assert math.isinf(private.epsilon)
    assert private.ledger.stamps[0] == "NOT PRIVATE: gradients were not clipped; nothing is guaranteed."


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ],
    ids=["sgd", "adam", "adamw", "rmsprop"],
)
def test_any_optimizer_gets_the_clipped_sum_over_the_expected_batch_size(make):
    """The trap of dividing by the rows that happen to be there: the reference divides by 40 whatever the
    draw.
    """
    model, x, y = world()
    other = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(other.parameters())
    private = DPSGD(noise_multiplier=0, clip=0.5).attach(model, optimizer, N, batch_size=40)
    sizes = set()
    for _ in range(6):
        rows = private.draw()
        sizes.add(len(rows))
        private.backward(F.cross_entropy(model(x[rows]), y[rows], reduction="none"))
        optimizer.step()
        for p, total in zip(other.parameters(), clipped_sum(each_gradient(other, x[rows], y[rows]), 0.5)):
            p.grad = total / 40
        plain.step()
    assert len(sizes) > 1
    assert close(values(model), values(other), 1e-4)


def test_a_sum_loss_and_a_mean_loss_give_the_same_step():
    ends = []
    for reduction in ("mean", "sum"):
        model, x, y = world()
        private = DPSGD(noise_multiplier=0, clip=0.5, sampling="shuffle", reduction=reduction).attach(
            model, optimizer := sgd(model), (x, y), batch_size=N
        )
        for a, b in private:
            F.cross_entropy(model(a), b, reduction=reduction).backward()
            optimizer.step()
        ends.append(values(model))
    assert close(*ends, 1e-4)


def test_the_noise_has_the_deviation_that_was_accounted_for():
    """20,002 parameters that nothing pulls at, one step: the deviation of p is lr·zC/B within 3.5%, seven
    standard errors (false alarm below 1e-11).
    """
    model = nn.Linear(20_001, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = DPSGD(noise_multiplier=2.0, clip=0.5).attach(model, optimizer, 100, batch_size=10)
    private.draw()
    optimizer.step()
    moved = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert abs(float(moved.std()) / (2.0 * 0.5 / 10) - 1) < 0.035
    assert abs(float(moved.mean())) < 7 * 0.1 / math.sqrt(20_002)


def test_a_batch_without_rows_is_a_step_of_noise():
    """With one row expected of 200, 37% of the batches are empty: the loop sees none of them, every one of
    them costs a step, and the model moves by noise.
    """
    model, x, y = world()
    optimizer = sgd(model)
    private = DPSGD(noise_multiplier=1.0, clip=1.0, delta=1e-6).attach(model, optimizer, (x, y), batch_size=1)
    seen = 0
    for a, b in private:
        seen += 1
        assert len(a) >= 1
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    assert seen < 200  # all 200 batches had a row: probability 0.63^200
    assert private.steps == 200
    assert private.account.spent == 200
    before = values(model)
    private._draw_rows = lambda: np.empty(0, np.int64)
    assert list(private) == []
    assert not close(values(model), before, 1e-6)


def test_every_row_is_drawn_with_the_probability_that_is_accounted():
    """2,000 Poisson draws of 10 in 50: each row's count is within 7 standard deviations of 400 (false alarm
    below 1e-9 for all 50), sizes vary.
    """
    model, _, _ = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-3).attach(model, sgd(model), 50, batch_size=10)
    counts, sizes = np.zeros(50), []
    for _ in range(2000):
        private.steps += 1
        rows = private._draw_rows()
        counts[rows] += 1
        sizes.append(len(rows))
    assert abs(counts - 400).max() < 7 * math.sqrt(2000 * 0.2 * 0.8)
    assert np.var(sizes) == pytest.approx(50 * 0.2 * 0.8, rel=0.25)


def test_shuffling_uses_every_row_once_per_epoch():
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-6, sampling="shuffle").attach(
        model, optimizer := sgd(model), (x, torch.arange(N)), batch_size=30
    )
    seen = []
    for a, rows in private:
        seen += [] if private.is_checking else rows.tolist()
        F.cross_entropy(model(a), y[rows]).backward()
        optimizer.step()
    assert sorted(seen) == list(range(N))
    assert seen != sorted(seen)


def test_a_loader_with_its_own_collate_function_is_used():
    model, x, y = world()

    def blank(rows):
        return torch.stack([r[0] for r in rows]) * 0, torch.tensor([0] * len(rows))

    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True, collate_fn=blank)
    private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, sgd(model), loader)
    a, b = next(iter(private))
    assert not a.any()
    assert not b.any()
    assert private.batch_size == 20


def test_a_scheduler_created_before_or_after_works():
    model, x, y = world()
    optimizer = sgd(model)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, optimizer, (x, y), batch_size=50)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    epoch(private, model, optimizer)
    before.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    private.close()
    assert all(p.requires_grad for p in model.parameters())


def test_a_critic_in_a_loop_of_its_own():
    """As a GAN does: real rows once, generated ones as often as it likes, and a generator that learns through
    the critic without leaving a trace.
    """
    _, x, _ = world()
    critic, generator = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, 1)), nn.Linear(2, 6)
    optimizer, other = sgd(critic), sgd(generator)
    private = DPSGD(noise_multiplier=0, clip=0.1).attach(critic, optimizer, N, batch_size=50)
    for _ in range(3):
        rows = private.draw()
        fake = generator(torch.randn(50, 2))
        want = clipped_sum(
            each_gradient(
                copy.deepcopy(critic).requires_grad_(True), x[rows], x[rows], lambda out, _: -out.sum()
            ),
            0.1,
        )
        shown = copy.deepcopy(critic).requires_grad_(True)
        shown(fake.detach()).sum().backward()
        want = [(a + p.grad) / 50 for a, p in zip(want, shown.parameters())]
        private.backward(-critic(x[rows])[:, 0])
        private.backward(critic(fake.detach())[:, 0], public=True)
        optimizer.step()
        assert close([p.grad for p in critic.parameters()], want, 1e-4)
        with private.paused():
            other.zero_grad()
            (-critic(generator(torch.randn(20, 2)))).mean().backward()
        assert generator.weight.grad.abs().sum() > 0
        other.step()


def test_a_delta_of_one_over_the_rows_warns_and_says_why():
    model, x, y = world()
    with pytest.warns(UserWarning, match="δ ≥ 1/rows permits publishing a random row"):
        DPSGD(noise_multiplier=1.0, delta=0.01).attach(model, sgd(model), (x, y), batch_size=20)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_multiplier": 1.0, "clip": 0}, r"DPSGD: clip is 0; it must be a number above 0, or None"),
        ({}, "neither epsilon nor noise_multiplier is given"),
        ({"epsilon": 0}, r"epsilon is 0; it must be a number above 0"),
        ({"epsilon": 1.0, "noise_multiplier": 0}, "without noise there is no ε"),
        ({"noise_multiplier": 1.0, "clip": None}, "clip is None, so gradients are unbounded"),
        (
            {"noise_multiplier": 1.0, "sampling": "weighted"},
            "sampling is 'weighted'; it must be one of 'poisson', 'shuffle', 'fixed'",
        ),
        ({"epsilon": 1.0}, "neither epochs nor steps is given"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    model, x, y = world()
    with pytest.raises(BadParameter, match=words):
        DPSGD(**settings).attach(model, sgd(model), (x, y), batch_size=20)


def test_what_cannot_be_attached():
    model, x, y = world()
    one = DPSGD(noise_multiplier=1.0, delta=1e-6)
    with pytest.raises(
        BadParameter,
        match="batch_size is None; it must be a whole number between 1 and the number of rows, 200",
    ):
        one.attach(model, sgd(model), (x, y))
    with pytest.raises(BadParameter, match="data is 'generator'"):
        one.attach(model, sgd(model), (i for i in range(3)), batch_size=1)
    with pytest.raises(BadData, match=r"the tensors have \[200, 100\] rows"):
        one.attach(model, sgd(model), (x, y[:100]), batch_size=1)
    with pytest.raises(BadParameter, match="the optimizer must have exactly the parameters of this model"):
        one.attach(model, sgd(nn.Linear(2, 2)), (x, y), batch_size=20)
    with pytest.raises(BadParameter, match=r"the model does not accept rows of shape \(6,\)"):
        one.attach(other := nn.Linear(5, 2), sgd(other), (x, y), batch_size=20)
    with pytest.raises(BadParameter, match=r"BatchNorm1d, which mixes.*without_batch_norm"):
        one.attach(
            other := nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), sgd(other), (x, y), batch_size=20
        )


def test_a_model_that_mixes_examples_by_a_function_is_refused():
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(x - x.mean(0))

    model, x, y = Mixes(), *world()[1:]
    with pytest.raises(
        BadParameter, match="the model's output for one row depends on the other rows in the batch"
    ):
        DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, sgd(model), (x, y), batch_size=20)


def test_a_weight_used_behind_its_layers_back_is_refused_and_functional_takes_it():
    class Behind(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.a(x) + F.linear(x, self.b.weight)

    model, x, y = Behind(), *world()[1:]
    model.b.bias = None
    with pytest.raises(
        BadParameter,
        match=r"the parameter 'b.weight' is used outside its own layer's forward pass.*method='functional'",
    ):
        DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, sgd(model), (x, y), batch_size=20)
    private = DPSGD(noise_multiplier=0, clip=0.5, method="functional", sampling="shuffle").attach(
        model, optimizer := sgd(model), (x, y), batch_size=N
    )
    want = clipped_sum(each_gradient(copy.deepcopy(model).requires_grad_(True), x, y), 0.5)
    epoch(private, model, optimizer)
    assert close([p.grad * N for p in model.parameters()], want, 1e-5)


def test_a_replayable_secret_is_stamped():
    ends = []
    for _ in range(2):
        model, x, y = world()
        private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(
            model, optimizer := sgd(model), (x, y), batch_size=20, insecure_seed=3
        )
        epoch(private, model, optimizer)
        ends.append(values(model))
        assert any("NOT PRIVATE" in s for s in private.ledger.stamps)
    assert all(map(torch.equal, *ends))
