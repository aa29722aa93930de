"""Inversion of updates: exact rows, labels, searches; and the measures of similarity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tacit import audit, data, models
from tacit.audit import inversion, similarity
from tacit.errors import BadData, BadParameter


@pytest.fixture(scope="module")
def digits():
    return data.digits().rows


def mlp(hidden=64):
    return models.build(models.MLP(hidden=(hidden,)), (64,), 10, 0)


def lenet():
    """The network of the DLG paper: sigmoids, and no pooling, which hides where a value came from."""
    layers = [nn.Conv2d(1, 12, 5, padding=2, stride=2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, padding=2)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Sequential(*layers, nn.Sigmoid(), nn.Flatten(), nn.Linear(12 * 16, 10))
        for p in made.parameters():
            nn.init.uniform_(p, -0.5, 0.5)
    return made


def test_an_update_is_the_difference_that_plain_sgd_makes(digits):
    """Two epochs of batches of 4 and 2, with torch's own optimizer."""
    model, x, y = mlp(8), digits.x[:6], digits.y[:6]
    found = inversion.update_of(model, x, y, inversion.ClientSteps(6, 0.3, 4, 2), cross_entropy)
    other = mlp(8)
    step = torch.optim.SGD(other.parameters(), 0.3)
    for _ in range(2):
        for at in (slice(0, 4), slice(4, 6)):
            step.zero_grad()
            cross_entropy(other(x[at]), y[at]).backward()
            step.step()
    for before, after, u in zip(model.parameters(), other.parameters(), found):
        assert torch.allclose((before - after) / 0.3, u, atol=1e-5)


def test_a_single_row_is_read_exactly_from_a_linear_layer(digits):
    found = audit.invert(mlp(), (digits.x[:1], digits.y[:1]), method="analytic")
    assert found.found == 1
    assert torch.allclose(found.rebuilt, digits.x[:1], atol=1e-5)
    assert found.labels.tolist() == digits.y[:1].tolist()
    assert found.psnr > 80
    assert found.rows_within == 1.0


def test_the_label_of_every_single_row_is_inferred(digits):
    model = mlp()
    for k in range(40):
        update = inversion.update_of(
            model, digits.x[k][None], digits.y[k][None], inversion.ClientSteps(1), cross_entropy
        )
        assert inversion.infer_labels(model, update, inversion.ClientSteps(1), (64,)).tolist() == [
            int(digits.y[k])
        ]


def test_labels_of_a_batch_are_inferred_as_counts(digits):
    """A fresh model is close to even on all inputs, so that counts are nearly read off."""
    model, n = mlp(), 32
    update = inversion.update_of(model, digits.x[:n], digits.y[:n], inversion.ClientSteps(n), cross_entropy)
    found = inversion.infer_labels(model, update, inversion.ClientSteps(n), (64,))
    a, b = (torch.bincount(v, minlength=10) for v in (found, digits.y[:n]))
    assert int((a - b).abs().sum()) <= 4
    assert len(found) == n


def test_what_no_two_neurons_agree_on_is_not_called_exact():
    rng = torch.Generator().manual_seed(0)
    weight, bias = torch.rand(20, 5, generator=rng), torch.rand(20, generator=rng)
    assert len(inversion.exact_rows(weight, bias)) == 0
    weight[3], weight[9] = bias[3] * torch.arange(5.0), bias[9] * torch.arange(5.0)
    assert inversion.exact_rows(weight, bias).tolist() == [pytest.approx([0, 1, 2, 3, 4])]


@pytest.mark.parametrize(("malicious", "least"), [("trap", 0.5), ("imprint", 0.75)])
def test_a_malicious_model_reads_a_batch_that_an_honest_one_does_not(digits, malicious, least):
    """32 rows, 1,000 neurons: an honest model shows 12 of them exactly."""
    model = models.build(models.MLP(hidden=(1000, 32)), (64,), 10, 0)
    rows = digits.x[:32], digits.y[:32]
    honest = audit.invert(model, rows, method="analytic")
    trapped = audit.invert(model, rows, method="analytic", malicious=malicious, public=digits.x[100:300])
    assert honest.rows_within < 0.45
    assert trapped.rows_within > least


def test_a_malicious_model_needs_a_first_linear_layer(digits):
    with pytest.raises(BadParameter, match="cannot be trapped"):
        inversion.trap_weights(lenet(), (1, 8, 8))
    with pytest.raises(BadParameter, match="another one after it"):
        inversion.imprint_weights(models.build("logistic", (64,), 10, 0), (64,))


def test_dlg_rebuilds_an_image_from_a_smooth_network(digits):
    """The DLG network on 8 × 8 digits, from noise."""
    found = audit.invert(lenet(), (digits.x[:1].reshape(1, 1, 8, 8), digits.y[:1]), method="dlg", steps=300)
    assert found.psnr > 30
    assert found.ssim > 0.95


def test_cosine_matching_rebuilds_an_image_from_a_convolutional_network(digits):
    model = models.build(models.CNN(channels=(32, 64), hidden=(64,), kernel=3, padding=1), (1, 8, 8), 10, 0)
    rows = digits.x[:1].reshape(1, 1, 8, 8), digits.y[:1]
    found = audit.invert(model, rows, method="cosine", steps=150)
    assert found.psnr > 30
    assert found.labels.tolist() == digits.y[:1].tolist()


def test_several_local_steps_are_inverted_by_simulating_them(digits):
    """Four epochs with a learning rate of 0.5: an attacker that knows this rebuilds the row."""
    model = models.build(models.CNN(channels=(32, 64), hidden=(64,), kernel=3, padding=1), (1, 8, 8), 10, 0)
    rows = digits.x[3:4].reshape(1, 1, 8, 8), digits.y[3:4]
    found = audit.invert(model, rows, method="cosine", steps=120, lr=0.2, local_epochs=4)
    assert found.psnr > 25


def test_an_update_without_its_rows_is_inverted_but_not_judged(digits):
    model = mlp()
    update = inversion.update_of(model, digits.x[:1], digits.y[:1], inversion.ClientSteps(1), cross_entropy)
    flat = -0.1 * torch.cat([u.detach().flatten() for u in update])
    found = audit.invert(model, flat, rows=1, lr=0.1)
    assert torch.allclose(found.rebuilt, digits.x[:1], atol=1e-4)
    with pytest.raises(BadParameter, match="cannot be judged"):
        found.psnr  # noqa: B018
    assert "psnr" not in found.to_dict()
    judged = audit.invert(model, flat, lr=0.1, truth=(digits.x[:1], digits.y[:1]))
    assert judged.psnr > 60


def test_noise_stops_the_analytic_attack(digits):
    model = mlp()
    update = inversion.update_of(model, digits.x[:1], digits.y[:1], inversion.ClientSteps(1), cross_entropy)
    flat = -torch.cat([u.detach().flatten() for u in update])
    noise = torch.randn(len(flat), generator=torch.Generator().manual_seed(0))
    noisy = flat + 0.1 * flat.norm() * noise
    found = audit.invert(model, noisy, truth=(digits.x[:1], digits.y[:1]), steps=30)
    assert found.method == "cosine"
    assert found.psnr < 15


def test_ssim_is_the_definition_with_loops():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 9, 10)), rng.random((2, 9, 10))
    values = []
    for p, q in zip(a, b):
        each = []
        for i in range(3):
            for j in range(4):
                u, v = p[i : i + 7, j : j + 7].ravel(), q[i : i + 7, j : j + 7].ravel()
                cov = np.cov(u, v)
                c1, c2 = 1e-4, 9e-4
                each.append(
                    (2 * u.mean() * v.mean() + c1)
                    * (2 * cov[0, 1] + c2)
                    / ((u.mean() ** 2 + v.mean() ** 2 + c1) * (cov[0, 0] + cov[1, 1] + c2))
                )
        values.append(np.mean(each))
    found = similarity.ssim(*(torch.from_numpy(t)[:, None] for t in (a, b)), 1.0)
    assert np.allclose(found.numpy(), values)


def test_psnr_and_pairs_by_hand():
    a = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert similarity.psnr(a, a + 0.1, 1.0).tolist() == pytest.approx([20.0, 20.0], abs=1e-4)
    assert similarity.psnr(a, a, 1.0).tolist() == [100.0, 100.0]
    assert similarity.pair_up(a, torch.tensor([[0.9, 1.0]])).tolist() == [-1, 0]
    assert similarity.share_within(a, torch.tensor([[0.0, 0.2], [1.0, 1.0]]), torch.tensor(1.0), 0.1) == (
        0.75,
        0.5,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "guess"}, "one of 'auto'"),
        ({"at": "middle"}, "'start' or 'end'"),
        ({"steps": 0}, "at least 1"),
        ({"bounds": (1, 0)}, "lowest, highest"),
        ({"malicious": "virus"}, "'trap', 'imprint'"),
        ({"labels": [1, 2]}, "1 labels"),
    ],
)
def test_bad_options_are_refused(digits, options, words):
    with pytest.raises(BadParameter, match=words):
        audit.invert(mlp(), (digits.x[:1], digits.y[:1]), **options)


def test_bad_updates_are_refused(digits):
    model = mlp()
    size = sum(p.numel() for p in model.parameters())
    with pytest.raises(BadParameter, match="Give rows="):
        audit.invert(model, torch.zeros(size))
    with pytest.raises(BadParameter, match=f"{size} trainable"):
        audit.invert(model, torch.zeros(3), rows=1)
    with pytest.raises(BadData, match="NaN"):
        audit.invert(model, torch.full((size,), torch.nan), rows=1)
    with pytest.raises(BadParameter, match="made with another model"):
        audit.invert(model, torch.zeros(size), rows=1, malicious="trap")
    with pytest.raises(BadParameter, match="does not follow from this model"):
        audit.invert(lenet(), torch.zeros(sum(p.numel() for p in lenet().parameters())), rows=1)
    with pytest.raises(BadParameter, match="first layer is linear"):
        audit.invert(lenet(), (digits.x[:1].reshape(1, 1, 8, 8), digits.y[:1]), method="analytic")
