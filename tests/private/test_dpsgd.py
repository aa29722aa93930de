"""DP-SGD in a loop of one's own: what it computes, what it costs, and the ways in which a guarantee is lost unnoticed, each of them closed."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from tacit.accounting import epsilon
from tacit.errors import BadData, BadParameter, BudgetSpent
from tacit.private import DPFTRL, DPSGD
from tacit.private.tree import Tree

from .reference import clipped_sum, close, each_gradient

torch.set_num_threads(1)
N = 200


def world(seed=0, rows=N):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.randn(rows, 6), torch.randint(0, 3, (rows,))


def sgd(model, lr=0.5, **more):
    return torch.optim.SGD(model.parameters(), lr=lr, **more)


def epoch(private, model, optimizer):
    for x, y in private:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def values(model):
    return [p.detach().clone() for p in model.parameters()]


# what a step computes ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [None, 7, 50])
def test_without_noise_and_clipping_it_is_sgd(micro_batch):
    """σ = 0, C = ∞: every row in every step, and the same model as torch's own loop, in chunks or not."""
    model, x, y = world()
    other = copy.deepcopy(model)
    private = DPSGD(noise_multiplier=0, clip=None, sampling="shuffle", micro_batch=micro_batch).attach(model, optimizer := sgd(model), (x, y), batch_size=N)
    plain = sgd(other)
    for _ in range(5):
        epoch(private, model, optimizer)
        plain.zero_grad()
        F.cross_entropy(other(x), y).backward()
        plain.step()
    assert close(values(model), values(other), 1e-5)
    assert math.isinf(private.epsilon)
    assert private.ledger.stamps[0] == "NOT PRIVATE: gradients were not clipped; nothing is guaranteed."


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True), lambda p: torch.optim.Adam(p, lr=0.01),
                                  lambda p: torch.optim.AdamW(p, lr=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01)], ids=["sgd", "adam", "adamw", "rmsprop"])
def test_any_optimiser_gets_the_clipped_sum_over_the_expected_batch_size(make):
    """The trap of dividing by the rows that happen to be there: the reference divides by 40 whatever the draw."""
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
        private = DPSGD(noise_multiplier=0, clip=0.5, sampling="shuffle", reduction=reduction).attach(model, optimizer := sgd(model), (x, y), batch_size=N)
        for a, b in private:
            F.cross_entropy(model(a), b, reduction=reduction).backward()
            optimizer.step()
        ends.append(values(model))
    assert close(*ends, 1e-4)


def test_the_noise_has_the_deviation_that_was_accounted_for():
    """20,002 parameters that nothing pulls at, one step: the deviation of p is lr·zC/B within 2.5%, five standard errors (false alarm below 1e-6)."""
    model = nn.Linear(20_001, 1)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = DPSGD(noise_multiplier=2.0, clip=0.5).attach(model, optimizer, 100, batch_size=10)
    private.draw()
    optimizer.step()
    moved = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert abs(float(moved.std()) / (2.0 * 0.5 / 10) - 1) < 0.025
    assert abs(float(moved.mean())) < 5 * 0.1 / math.sqrt(20_002)


def test_a_batch_without_rows_is_a_step_of_noise():
    """With one row expected of 200, 37% of the batches are empty: the loop sees none of them, every one of them costs a step, and the model moves by noise."""
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
    private._draw = lambda: np.empty(0, np.int64)
    assert list(private) == []
    assert not close(values(model), before, 1e-6)


def test_every_row_is_drawn_with_the_probability_that_is_accounted():
    """2,000 Poisson draws of 10 in 50: each row's count is within 6 standard deviations of 400 (false alarm below 1e-7 for all 50), sizes vary."""
    model, _, _ = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-3).attach(model, sgd(model), 50, batch_size=10)
    counts, sizes = np.zeros(50), []
    for _ in range(2000):
        private.steps += 1
        rows = private._draw()
        counts[rows] += 1
        sizes.append(len(rows))
    assert abs(counts - 400).max() < 6 * math.sqrt(2000 * 0.2 * 0.8)
    assert np.var(sizes) == pytest.approx(50 * 0.2 * 0.8, rel=0.2)


def test_shuffling_looks_at_every_row_once_an_epoch():
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-6, sampling="shuffle").attach(model, optimizer := sgd(model), (x, torch.arange(N)), batch_size=30)
    seen = []
    for a, rows in private:
        seen += rows.tolist()
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


def test_a_scheduler_made_before_or_after_works():
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
    """As a GAN does: real rows once, generated ones as often as it likes, and a generator that learns through the critic without leaving a trace."""
    _, x, _ = world()
    critic, generator = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, 1)), nn.Linear(2, 6)
    optimizer, other = sgd(critic), sgd(generator)
    private = DPSGD(noise_multiplier=0, clip=0.1).attach(critic, optimizer, N, batch_size=50)
    for _ in range(3):
        rows = private.draw()
        fake = generator(torch.randn(50, 2))
        want = clipped_sum(each_gradient(copy.deepcopy(critic).requires_grad_(True), x[rows], x[rows], lambda out, _: -out.sum()), 0.1)
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


# what it costs ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_dp_accounting(accountant):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    model, x, y = world()
    private = DPSGD(noise_multiplier=1.1, delta=1e-5, accountant=accountant).attach(model, optimizer := sgd(model), (x, y), batch_size=20)
    for _ in range(3):
        epoch(private, model, optimizer)
    theirs = {"pld": PLDAccountant, "rdp": RdpAccountant}[accountant]()
    theirs.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.1)), 30)
    assert private.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)
    line, = private.ledger.spent
    assert line.epsilon == private.epsilon
    assert "20 of 200 rows expected" in line.sampling
    assert line.unit == "row, present or not"


@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "fixed"])
def test_a_target_epsilon_is_reached_and_never_passed(sampling):
    model, x, y = world()
    private = DPSGD(epsilon=2.0, delta=1e-4, sampling=sampling).attach(model, optimizer := sgd(model), (x, y), epochs=4, batch_size=25)
    for _ in range(4):
        epoch(private, model, optimizer)
    assert 1.98 < private.epsilon <= 2.0
    with pytest.raises(BudgetSpent, match=r"budget of ε = 2 at δ = 0.0001 is already spent after 32 steps"):
        epoch(private, model, optimizer)


def test_shuffled_batches_are_not_accounted_as_poisson():
    """The trap: the same noise, batches and epochs say far less ε if the order is taken for Poisson sampling."""
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-5, sampling="shuffle").attach(model, optimizer := sgd(model), (x, y), batch_size=20)
    epoch(private, model, optimizer)
    from tacit.accounting import gaussian_epsilon

    assert private.epsilon == pytest.approx(gaussian_epsilon(0.5, 1e-5))  # one epoch, one release, a row exchanged: distance 2C
    assert private.epsilon > 2 * epsilon(noise_multiplier=1.0, sampling_rate=0.1, steps=10, delta=1e-5)
    assert private.ledger.spent[0].sampling == "shuffled, which is accounted as no"


@pytest.mark.parametrize(("settings", "words"), [
    ({"sampling": "shuffle", "accountant": "pld"}, "accountant is 'pld' and the rows are drawn by 'shuffle'.*Use accountant='gaussian', or sampling='poisson'"),
    ({"sampling": "fixed", "accountant": "pld"}, "accountant is 'pld' and the rows are drawn by 'fixed'"),
    ({"sampling": "poisson", "accountant": "gaussian"}, "accountant is 'gaussian' and the rows are drawn by 'poisson'")])
def test_an_accountant_of_another_sampling_is_an_error(settings, words):
    model, x, y = world()
    with pytest.raises(BadParameter, match=words):
        DPSGD(noise_multiplier=1.0, **settings).attach(model, sgd(model), (x, y), batch_size=20)


def test_a_weighted_loader_is_refused():
    """The trap: rows that a sampler prefers are looked at more often than Poisson's ε says."""
    model, x, y = world()
    loader = DataLoader(TensorDataset(x, y), batch_size=20, sampler=WeightedRandomSampler(torch.rand(N).tolist(), N))
    with pytest.raises(BadParameter, match=r"the loader draws its rows by a WeightedRandomSampler, and ε would be that of 'poisson' sampling"):
        DPSGD(noise_multiplier=1.0).attach(model, sgd(model), loader)


def test_rows_from_ones_own_loader_are_refused():
    """The other half of the trap: the session is there, but the loop still goes over the old, shuffled loader."""
    model, x, y = world()
    optimizer = sgd(model)
    DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, optimizer, (x, y), batch_size=20)
    F.cross_entropy(model(x[:20]), y[:20]).backward()
    with pytest.raises(BadParameter, match="a step for which no rows were drawn"):
        optimizer.step()


def test_a_second_look_at_a_batch_is_refused():
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, optimizer := sgd(model), (x, y), batch_size=50)
    for a, b in private:
        F.cross_entropy(model(a), b).backward()
        private.ghost.flush()
        F.cross_entropy(model(a), b).backward()
        with pytest.raises(BadParameter, match="a second backward pass in one step"):
            optimizer.step()
        break


def test_a_batch_that_is_not_the_one_drawn_is_refused():
    model, x, y = world()
    private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, optimizer := sgd(model), (x, y), batch_size=50)
    for a, b in private:
        F.cross_entropy(model(torch.cat([a, a])), torch.cat([b, b])).backward()
        with pytest.raises(BadParameter, match=r"rows were drawn and \d+ came through the model"):
            optimizer.step()
        break


def test_the_account_survives_a_restart(tmp_path):
    """What was begun is spent: a second run with the same file goes on from there, and is refused when nothing is left."""
    settings = DPSGD(epsilon=1.0, delta=1e-4, noise_multiplier=3.0)
    model, x, y = world()
    private = settings.attach(model, optimizer := sgd(model), (x, y), batch_size=25, epochs=40, file=tmp_path / "spent.jsonl")
    for a, b in private:
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    private.close()
    model, x, y = world()
    private = settings.attach(model, optimizer := sgd(model), (x, y), batch_size=25, epochs=40, file=tmp_path / "spent.jsonl")
    assert private.account.spent == 8
    private.account.spent = private.account.allowed - 3
    with pytest.raises(BudgetSpent, match="is already spent after"):
        epoch(private, model, optimizer)
    assert private.epsilon <= 1.0
    private.close()
    (tmp_path / "spent.jsonl").write_text('{"round": 1}\n' * 10_000)
    with pytest.raises(BudgetSpent, match=r"is already spent: 10000 steps cost ε = .*says .*spent.jsonl\. Privacy once given away stays given away"):
        settings.attach(model, sgd(model), (x, y), batch_size=25, epochs=40, file=tmp_path / "spent.jsonl")


# DP-FTRL ------------------------------------------------------------------------------------------------------------------------------------


def test_the_trees_prefix_sums_carry_the_nodes_of_their_binary_digits():
    """Leaves 1 … 13 with node noises 1, 2, 4, 8, …: after t steps the prefix holds one node for each 1 in t's digits; 13 = 8 + 4 + 1 holds three."""
    drawn = iter(torch.tensor([2.0 ** k]) for k in range(100))
    tree = Tree(lambda: next(drawn))
    total, prefixes = torch.zeros(1), []
    for _ in range(13):
        total = total + tree.next()
        prefixes.append(float(total))
    # node k is made at step k + 1; a prefix is the sum of the nodes made at steps 13 = {8, 12, 13}, 12 = {8, 12}, 7 = {4, 6, 7}
    assert prefixes[12] == 2.0**7 + 2.0**11 + 2.0**12
    assert prefixes[11] == 2.0**7 + 2.0**11
    assert prefixes[6] == 2.0**3 + 2.0**5 + 2.0**6


def test_ftrl_costs_one_release_for_each_level_of_the_tree():
    """8 steps an epoch: a row is in at most ⌊log₂ 8⌋ + 1 = 4 nodes; two epochs are two trees. ε is that of one Gaussian of z/√8."""
    from tacit.accounting import gaussian_epsilon

    model, x, y = world()
    private = DPFTRL(noise_multiplier=10.0, delta=1e-5).attach(model, optimizer := sgd(model), (x, y), batch_size=25)
    for _ in range(2):
        epoch(private, model, optimizer)
    assert private.epsilon == pytest.approx(gaussian_epsilon(10 / math.sqrt(8), 1e-5))
    assert private.ledger.spent[0].sampling == "no"
    assert "binary-tree" in private.ledger.spent[0].mechanism


def test_ftrls_running_sum_has_less_noise_than_as_many_independent_ones():
    """63 steps of noise alone with lr 1: the tree's prefix holds 6 nodes, so its variance is 6 σ², not 63 σ²; measured on 20,002 parameters (within 5%, five
    standard errors)."""
    ends = {}
    for kind in (DPSGD, DPFTRL):
        model = nn.Linear(20_001, 1)
        start = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        private = kind(noise_multiplier=1.0, clip=1.0, delta=1e-4).attach(model, optimizer, 630, batch_size=10)
        for _ in range(63):
            private.draw()
            optimizer.step()
        ends[kind] = float((torch.cat([p.detach().flatten() for p in model.parameters()]) - start).var()) * 100
    assert ends[DPFTRL] == pytest.approx(6, rel=0.05)
    assert ends[DPSGD] == pytest.approx(63, rel=0.05)


def test_ftrl_takes_the_rows_in_their_order():
    model, x, y = world()
    private = DPFTRL(epsilon=5.0, delta=1e-4).attach(model, optimizer := sgd(model), (x, torch.arange(N)), batch_size=64, epochs=1)
    seen = []
    for a, rows in private:
        seen += rows.tolist()
        F.cross_entropy(model(a), y[rows]).backward()
        optimizer.step()
    assert seen == list(range(N))
    assert 4.9 < private.epsilon <= 5.0


# errors ------------------------------------------------------------------------------------------------------------------------------------


def test_a_delta_of_one_over_the_rows_warns_and_says_why():
    model, x, y = world()
    with pytest.warns(UserWarning, match="δ ≥ 1/rows allows a method that publishes a random row in the clear"):
        DPSGD(noise_multiplier=1.0, delta=0.01).attach(model, sgd(model), (x, y), batch_size=20)


@pytest.mark.parametrize(("settings", "words"), [
    ({"noise_multiplier": 1.0, "clip": 0}, r"DPSGD: clip is 0; it must be a number above 0, or None"),
    ({}, "neither epsilon nor noise_multiplier is given"),
    ({"epsilon": 0}, r"epsilon is 0; it must be a number above 0"),
    ({"epsilon": 1.0, "noise_multiplier": 0}, "without noise there is no ε"),
    ({"noise_multiplier": 1.0, "clip": None}, "clip is None, so an example's gradient has no bound"),
    ({"noise_multiplier": 1.0, "sampling": "weighted"}, "sampling is 'weighted'; it must be one of 'poisson', 'shuffle', 'fixed'"),
    ({"epsilon": 1.0}, "how long the run is was not said")])
def test_settings_that_cannot_be(settings, words):
    model, x, y = world()
    with pytest.raises(BadParameter, match=words):
        DPSGD(**settings).attach(model, sgd(model), (x, y), batch_size=20)


def test_what_cannot_be_attached():
    model, x, y = world()
    one = DPSGD(noise_multiplier=1.0, delta=1e-6)
    with pytest.raises(BadParameter, match="batch_size is None; it must be a whole number between 1 and the number of rows, 200"):
        one.attach(model, sgd(model), (x, y))
    with pytest.raises(BadParameter, match="data is 'generator'"):
        one.attach(model, sgd(model), (i for i in range(3)), batch_size=1)
    with pytest.raises(BadData, match=r"the tensors have \[200, 100\] rows"):
        one.attach(model, sgd(model), (x, y[:100]), batch_size=1)
    with pytest.raises(BadParameter, match="the optimiser does not hold the parameters of this model"):
        one.attach(model, sgd(nn.Linear(2, 2)), (x, y), batch_size=20)
    with pytest.raises(BadParameter, match=r"the model cannot take rows of shape \(6,\)"):
        one.attach(other := nn.Linear(5, 2), sgd(other), (x, y), batch_size=20)
    with pytest.raises(BadParameter, match=r"BatchNorm1d, which mixes.*without_batch_norm"):
        one.attach(other := nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), sgd(other), (x, y), batch_size=20)


def test_a_model_that_mixes_examples_by_a_function_is_refused():
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(x - x.mean(0))

    model, x, y = Mixes(), *world()[1:]
    with pytest.raises(BadParameter, match="what the model gives for a row depends on the rows beside it"):
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
    with pytest.raises(BadParameter, match=r"the parameter 'b.weight' is used outside its own layer's forward pass.*method='functional'"):
        DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, sgd(model), (x, y), batch_size=20)
    private = DPSGD(noise_multiplier=0, clip=0.5, method="functional", sampling="shuffle").attach(model, optimizer := sgd(model), (x, y), batch_size=N)
    want = clipped_sum(each_gradient(copy.deepcopy(model).requires_grad_(True), x, y), 0.5)
    epoch(private, model, optimizer)
    assert close([p.grad * N for p in model.parameters()], want, 1e-5)


def test_a_replayable_secret_is_stamped():
    ends = []
    for _ in range(2):
        model, x, y = world()
        private = DPSGD(noise_multiplier=1.0, delta=1e-6).attach(model, optimizer := sgd(model), (x, y), batch_size=20, secret_seed=3)
        epoch(private, model, optimizer)
        ends.append(values(model))
        assert any("NOT PRIVATE" in s for s in private.ledger.stamps)
    assert all(map(torch.equal, *ends))
