"""Inversion layer by layer: what it rebuilds, and what it does not apply to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tacit
from tacit import algorithms, audit, data, guard
from tacit.audit import inversion, layers
from tacit.errors import BadParameter

ONE = inversion.ClientSteps(1)


def network(pool: nn.Module | None = None, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), activation(), pool or nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), activation(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


@pytest.fixture(scope="module")
def images():
    rows = data.digits().rows
    return rows.x.reshape(-1, 1, 8, 8), rows.y


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(2)], ids=["pool of maxima", "pool of means"])
def test_a_row_behind_convolutions_and_pools_is_rebuilt(images, pool):
    x, y = (t[4:5] for t in images)
    found = audit.invert(network(pool), (x, y))
    assert found.method == "layers"
    assert found.psnr > 40


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.Identity])
def test_layers_with_an_inverse_are_solved_as_equations(images, activation):
    """Strides and no pool, as in DLG's LeNet: the pixels are found to rounding, where a search has 30 to 60 dB."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            nn.Conv2d(1, 6, 3, stride=2, padding=1),
            activation(),
            nn.Conv2d(6, 12, 3, padding=1),
            activation(),
        ),
        *(nn.Flatten(), nn.Linear(192, 10)),
    )
    row = tuple(t[4:5] for t in images)
    found = audit.invert(model, row, method="layers", steps=1)
    assert found.psnr > 80


def test_equations_and_searches_take_turns(images):
    """A pool behind the first convolution: the second one is solved, the first one searched."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
        ),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )
    told = []
    found = audit.invert(
        model, tuple(t[4:5] for t in images), method="layers", watch=lambda done, of: told.append(done / of)
    )
    assert found.psnr > 40
    assert told[0] == 0.5
    assert told[-1] == 1.0


def test_every_layer_has_to_be_solved_for_the_next_one(images):
    """The gradient of the first convolution is enough for nothing if that of the second is of another row."""
    model, (x, y) = network(), images
    mine, other = (
        [u.detach() for u in inversion.update_of(model, x[k : k + 1], y[k : k + 1], ONE, F.cross_entropy)]
        for k in (0, 1)
    )
    mixed = [*mine[:2], *other[2:]]
    made = layers.invert_layers(model, mixed, (1, 8, 8), steps=300, bounds=(0.0, 1.0))
    assert made is not None
    assert inversion.compare_update(model, made, y[:1], ONE, mixed, F.cross_entropy) > 0.01


def test_what_the_server_of_a_run_sees_is_enough_and_noise_of_the_party_stops_it(images):
    fed = data.from_arrays(*(t.numpy() for t in images)).split(5, seed=0)
    options = {"model": network(), "algorithm": algorithms.FedAvg(lr=0.1), "rounds": 1, "batch_size": None}
    noisy = [guard.Clip(0.5), guard.Noise(multiplier=1.0, placement="local")]
    psnr = {}
    for name, stages in (("Clip", [guard.Clip(0.1)]), ("noise", noisy)):
        run = tacit.train(fed, **options, guard=stages)
        psnr[name] = audit.invert(run, 1, method="layers", steps=100).psnr
    assert psnr["Clip"] > 40  # the direction of an update is enough
    # The noise of the operating system is a hundred times as long as the update of 13,706 numbers: what is found
    # is as good as a guess, and a guess within a root mean square error of 0.1 in 64 pixels is rarer than 1e-8.
    assert psnr["noise"] < 20
    hidden = tacit.train(fed, **options, guard=[guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()])
    with pytest.raises(BadParameter, match="one row, one local step"):
        audit.invert(hidden, 1, method="layers")


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.Flatten(), nn.Linear(256, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding_mode="circular"), nn.Flatten(), nn.Linear(144, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10, bias=False)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()),
    ],
    ids=["no convolution", "batch norm", "padding by name", "circular", "no bias", "no linear layer"],
)
def test_other_networks_are_left_to_the_search(model):
    assert layers.read_blocks(model) is None


def test_several_rows_are_refused_by_name(images):
    with pytest.raises(BadParameter, match="needs one row, one local step"):
        audit.invert(network(), (images[0][:2], images[1][:2]), method="layers")


def test_the_search_can_be_stopped(images):
    steps = []
    found = audit.invert(
        network(),
        (images[0][:1], images[1][:1]),
        method="layers",
        watch=lambda done, of: steps.append((done, of)) or len(steps) % 3 == 0,
    )
    assert found.rebuilt.isfinite().all()
    assert len(steps) == 6  # three of each convolution
    assert {of for _, of in steps} == {2000}
