"""Mode-specific normalization, the two networks, and what CTGAN adds to them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tacit import synth
from tacit.errors import BadParameter
from tacit.synth.adversarial import (
    Critic,
    EncodedRows,
    GeneratorNet,
    activate,
    get_weights,
    gradient_penalty,
    torch_seed,
)
from tacit.synth.ctgan import ConditionalRows
from tacit.synth.encode import Conditions, Layout
from tacit.synth.gan import GANTrainer
from tacit.synth.modes import Encoding, fit_mixture


def test_the_mixture_finds_three_modes_and_drops_the_others():
    """Weights .5, .3, .2 of 20,000 rows: means are known to 0.02, weights to 0.01; we ask for five times
    that.
    """
    rng = np.random.default_rng(0)
    which = rng.choice(3, 20_000, p=[0.5, 0.3, 0.2])
    found = fit_mixture(rng.normal(np.array([-6.0, 0, 5])[which], np.array([1.0, 0.5, 0.7])[which]))
    big = np.argsort(found.mean)[found.weight[np.argsort(found.mean)] > 0.05]
    assert found.weight[big].sum() > 0.95
    assert {round(float(m)) for m in found.mean[big]} == {-6, 0, 5}
    for center, weight in ((-6, 0.5), (0, 0.3), (5, 0.2)):
        near = np.abs(found.mean - center) < 2
        assert found.weight[near].sum() == pytest.approx(weight, abs=0.05)


def table() -> tuple[Layout, np.ndarray, pd.DataFrame]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "gain": np.where(rng.random(900) < 0.7, 0.0, rng.lognormal(8, 1, 900)),
            "part": np.where(rng.random(900) < 0.2, np.nan, rng.normal(size=900)),
            "kind": rng.choice(list("abc"), 900, p=[0.9, 0.09, 0.01]),
            "rare": rng.choice(["u", "v"], 900),
        }
    )
    made = synth.Table.infer(frame)
    layout = Layout(made)
    return layout, layout.encode(made.to_numbers(frame)), frame


def test_encoded_rows_come_back_spikes_and_missing_values_exactly():
    layout, v, _ = table()
    encoding = Encoding.fit(layout, v)
    rows = encoding.encode(v, np.random.default_rng(0)).numpy()
    back = encoding.decode(rows)
    assert np.array_equal(np.isnan(back[:, 1]), np.isnan(v[:, 1]))
    assert np.array_equal(back[:, 0] == 0, v[:, 0] == 0)
    assert np.array_equal(back[:, 2:], v[:, 2:])
    near = (
        np.abs(rows[:, encoding.blocks[1].start]) < 0.98
    )  # beyond four deviations of its mode a number is cut off, as in the paper
    there = near & ~np.isnan(v[:, 1])
    assert there.mean() > 0.75
    assert np.allclose(back[there, 1], v[there, 1], atol=1e-4)
    for b in encoding.blocks:
        assert (rows[:, b.indicators].sum(axis=1) == 1).all()


def test_what_the_maker_gives_is_a_row_of_places_and_indicators():
    layout, v, _ = table()
    encoding = Encoding.fit(layout, v)
    out = activate(torch.randn(50, encoding.width) * 5, encoding)
    assert out.shape == (50, encoding.width)
    for b in encoding.blocks:
        assert torch.allclose(out[:, b.indicators].sum(dim=1), torch.ones(50), atol=1e-5)
        assert not b.scalar or out[:, b.start].abs().max() <= 1


def test_levels_are_drawn_by_log_frequency_and_real_rows_have_the_requested_level():
    """20,000 draws; 0.02 is five standard errors of a share."""
    layout, v, frame = table()
    encoding = Encoding.fit(layout, v)
    rows = ConditionalRows(encoding.encode(v, np.random.default_rng(0)), encoding)
    torch.manual_seed(0)
    condition, real, real_condition, (column, level) = rows.batch(20_000)
    assert condition.shape == (20_000, 5)
    assert (condition.sum(dim=1) == 1).all()
    counts = frame["kind"].value_counts()[["a", "b", "c"]].to_numpy()
    wanted = np.log(counts + 1) / np.log(counts + 1).sum()
    drawn = np.bincount(level[column == 0].numpy(), minlength=3) / int((column == 0).sum())
    assert drawn == pytest.approx(wanted, abs=0.02)
    indicators = torch.cat([real[:, b.indicators] for b in encoding.discrete], dim=1)
    assert ((indicators * real_condition).sum(dim=1) == 1).all()


def test_the_condition_loss_is_zero_only_when_the_maker_obeys():
    layout, v, _ = table()
    encoding = Encoding.fit(layout, v)
    rows = ConditionalRows(encoding.encode(v, np.random.default_rng(0)), encoding)
    chosen = torch.tensor([[0, 1], [2, 0]])  # column 0 level 2; column 1 level 0
    obeyed = torch.zeros(2, encoding.width)
    obeyed[0, encoding.discrete[0].indicators.start + 2] = 50
    obeyed[1, encoding.discrete[1].indicators.start] = 50
    assert float(rows.condition_loss(obeyed, chosen)) < 1e-6
    indifferent = float(rows.condition_loss(torch.zeros(2, encoding.width), chosen))
    assert indifferent == pytest.approx((np.log(3) + np.log(2)) / 2, rel=1e-5)


def test_the_penalty_of_a_linear_critic_by_hand():
    """f(x) = w·x has slope ‖w‖ everywhere; packed twos see both rows' slopes as one vector."""
    critic = Critic(3, (), pac=2, dropout=0.0)
    with torch.no_grad():
        critic.layers[0].weight.copy_(torch.tensor([[3.0, 0, 0, 0, 4.0, 0]]))
    assert gradient_penalty(critic, torch.randn(8, 3), torch.randn(8, 3), 10.0).item() == pytest.approx(
        10 * (5 - 1) ** 2, rel=1e-5
    )


def test_the_generator_concatenates_every_hidden_layer_with_its_input():
    network = GeneratorNet(4, (8, 6), 3)
    assert [linear.in_features for linear in network.linear] == [4, 12]
    assert network.last.in_features == 18


def separated(n: int = 1500) -> pd.DataFrame:
    """Two clusters of rows that differ in every column, which a network must learn to separate."""
    rng = np.random.default_rng(0)
    kind = rng.choice(2, n, p=[0.7, 0.3])
    return pd.DataFrame(
        {
            "kind": np.array(["old", "new"])[kind],
            "x": rng.normal(np.array([-4.0, 4.0])[kind], 1),
            "color": np.where(
                rng.random(n) < 0.9, np.array(["red", "blue"])[kind], np.array(["blue", "red"])[kind]
            ),
        }
    )


@pytest.mark.parametrize(
    "generator",
    [
        synth.TVAE(epochs=40, batch=100),
        pytest.param(synth.GAN(epochs=60), marks=pytest.mark.slow),
        pytest.param(synth.WGAN(epochs=60), marks=pytest.mark.slow),
    ],
    ids=lambda g: type(g).__name__,
)
def test_networks_learn_how_columns_go_together(generator):
    """Independent columns would put 50% of `old` rows at x < 0 and 66% of them in red; real rows have 100%
    and 90%.
    """
    holds_together(generator.fit(separated()))


def holds_together(fitted: synth.Fitted) -> None:
    made = fitted.sample(2000, seed=1)
    old = made[made["kind"] == "old"]
    assert 0.5 < len(old) / 2000 < 0.9
    assert (old["x"] < 0).mean() > 0.85
    assert (old["color"] == "red").mean() > 0.75
    assert [row["epoch"] for row in fitted.history] == list(range(1, fitted.epochs + 1))


@pytest.mark.slow
def test_ctgan_learns_the_same_and_is_conditioned():
    """Asked for the rarer kind, most of its draws are of that kind: 30% would be by chance."""
    fitted = synth.CTGAN(epochs=80, batch=100).fit(separated())
    holds_together(fitted)
    layout = Layout(fitted.table)
    v = fitted.draw(
        fitted.state, layout, 1000, np.random.default_rng(0), Conditions.parse(fitted.table, {"kind": "new"})
    )
    assert (v[:, 0] == fitted.table.modeled[0].values.index("new")).mean() > 0.8


def test_a_mixture_of_checkpoints_is_equal_parts_of_its_makers():
    frame = separated(400)
    fitted = synth.CTGAN(epochs=8, checkpoints=4).fit(frame)
    assert len({key.split(".")[1] for key in fitted.state.tensors if key.startswith("maker.")}) == 4
    last = synth.CTGAN(epochs=8).fit(frame)
    kept = {
        key.removeprefix("maker."): t for key, t in fitted.state.tensors.items() if key.startswith("maker.3.")
    }
    assert all(
        torch.equal(t, last.state.tensors[f"maker.0.{key.removeprefix('3.')}"]) for key, t in kept.items()
    )
    assert len(fitted.sample(101)) == 101


def test_rows_come_from_the_moving_mean_of_the_makers_weights():
    """By hand: after step t the mean keeps min(β, t / (t + 9)) of itself and takes the rest from the
    network.
    """
    layout, v, _ = table()
    encoding = Encoding.fit(layout, v, 3)
    rows = ConditionalRows(encoding.encode(v, np.random.default_rng(0)), encoding)
    torch.manual_seed(0)
    duel = GANTrainer(rows, synth.CTGAN(epochs=1, batch=100, width=16, noise=8, average=0.3))
    mean, steps, step = [p.detach().clone() for p in duel.generator.parameters()], 0, duel.optimizers[0].step

    def watched(*args):
        nonlocal mean, steps
        step(*args)
        steps += 1
        keep = min(0.3, steps / (steps + 9))
        mean = [keep * m + (1 - keep) * p.detach() for m, p in zip(mean, duel.generator.parameters())]

    duel.optimizers[0].step = watched
    duel.epoch()
    assert steps == 9
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mean, duel.mean.parameters()))
    before = torch.random.get_rng_state()
    kept = duel.averaged_weights()
    assert torch.equal(torch.random.get_rng_state(), before)
    # the first norm's means, for inputs of mean 0 (noise) and known conditions: bias + weights · mean input
    first = duel.mean.linear[0]
    told = torch.cat([rows.batch(100)[0] for _ in range(200)]).mean(dim=0)
    expected = first.bias + first.weight[:, 8:] @ told
    assert torch.allclose(
        kept["norm.0.running_mean"], expected, atol=0.06
    )  # 5,000 draws of 8 normals with weights below 0.35: deviation below 0.014
    assert set(kept) == set(get_weights(duel.generator))


def test_a_mean_of_nothing_is_the_maker_itself():
    frame = separated(200)
    plain, mean = (
        synth.GAN(epochs=2, average=average).fit(frame, floor=1).state.tensors for average in (0.0, 0.9)
    )
    assert plain.keys() == mean.keys()
    assert not torch.equal(plain["maker.0.last.weight"], mean["maker.0.last.weight"])
    layout = Layout(synth.Table.infer(frame))
    v = layout.encode(synth.Table.infer(frame).to_numbers(frame))
    encoding = Encoding.fit(layout, v, 10)
    with torch_seed(0, torch.device("cpu")):
        duel = GANTrainer(
            EncodedRows(encoding.encode(v, np.random.default_rng([0, 0])), encoding),
            synth.GAN(epochs=2, average=0.0),
        )
        duel.epoch()
        duel.epoch()
    assert torch.equal(plain["maker.0.last.weight"], duel.generator.last.weight)


def test_watch_is_called_in_every_epoch():
    heard: list[dict] = []
    synth.TVAE(epochs=3).fit(separated(100), watch=heard.append)
    assert [(e["kind"], e["epoch"], e["epochs"]) for e in heard] == [
        ("epoch", 1, 3),
        ("epoch", 2, 3),
        ("epoch", 3, 3),
    ]


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (synth.CTGAN(epochs=0), "CTGAN: epochs is 0; it must be a whole number of at least 1"),
        (synth.CTGAN(batch=5), "CTGAN: batch is 5; it must be at least pac = 10"),
        (synth.GAN(epochs=2, checkpoints=3), "GAN: checkpoints is 3; it must be at most epochs = 2"),
        (synth.TVAE(device="gpu"), "TVAE: device is 'gpu'; it must be one of 'auto', 'cpu', 'cuda'"),
    ],
)
def test_wrong_parameters_are_refused(generator, words):
    with pytest.raises(BadParameter, match=words):
        generator.fit(separated(50))


def test_a_card_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadParameter, match="torch finds no CUDA device"):
        synth.CTGAN(epochs=1, device="cuda").fit(separated(50))
