"""A convolutional network's gradient written out for a stack: what autograd gives, for every kind of network
it takes, and no other is taken.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import models
from tacit.engine import pooled
from tacit.engine.layers import CropFlip
from tacit.engine.task import Task

NETWORKS: dict[str, tuple[models.CNN, tuple[int, int, int]]] = {
    "color": (models.CNN(), (3, 32, 32)),  # 6 filters: tiles of half a row, then of whole rows
    "digits of 28": (
        models.CNN(),
        (1, 28, 28),
    ),  # 32 and 64 filters, padded: tiles of four columns, then of two
    "digits of 8": (models.CNN(), (1, 8, 8)),
    "few filters": (models.CNN(channels=(2, 3), hidden=(5,)), (1, 16, 20)),
    "many filters": (models.CNN(channels=(90, 100), hidden=(), kernel=3, padding=1), (2, 4, 8)),
    "filters of one": (models.CNN(channels=(3, 4), hidden=(5,), kernel=1), (3, 8, 4)),
}


def task(model: nn.Module, shape: tuple[int, ...], n: int = 9) -> Task:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, *shape, generator=g)
    x[:, :, : shape[1] // 2] = 0.5  # a plain background: all four values of a pool are equal
    return Task(model, x, torch.randint(0, 10, (n,), generator=g))


def by_autograd(module: nn.Module, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    module = copy.deepcopy(module).double()
    torch.nn.utils.vector_to_parameters(w.double(), module.parameters())
    return torch.cat(
        [
            g.reshape(-1)
            for g in torch.autograd.grad(F.cross_entropy(module(x.double()), y), list(module.parameters()))
        ]
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_every_client_is_autograds_over_its_live_rows(name: str) -> None:
    made, shape = NETWORKS[name]
    torch.manual_seed(1)
    t = task(made.build(shape, 10), shape)
    assert t.pooled is not None
    g = torch.Generator().manual_seed(2)
    w = t.initial()["w"] + 0.02 * torch.randn(3, t.dim, generator=g)
    index, live = torch.randint(0, len(t.x), (3, 5), generator=g), torch.ones(3, 5)
    live[1, 3:] = 0
    got = pooled.gradient(t.pooled, w, t.x[index], t.y[index], live)
    for k, rows in enumerate((index[0], index[1, :3], index[2])):
        assert torch.allclose(
            got[k].double(), by_autograd(t.module, w[k], t.x[rows], t.y[rows]), rtol=1e-4, atol=2e-6
        ), k


@pytest.mark.parametrize("name", NETWORKS)
def test_many_models_answer_at_once_as_each_alone(name: str) -> None:
    made, shape = NETWORKS[name]
    t = task(made.build(shape, 10), shape)
    w = t.initial()["w"] + 0.02 * torch.randn(4, t.dim, generator=torch.Generator().manual_seed(3))
    assert t.pooled is not None
    got = pooled.predict(t.pooled, w, t.x)
    assert torch.allclose(got, torch.stack([t.predict(v, t.x) for v in w]), rtol=1e-4, atol=1e-5)


def network(
    conv: Any = None,
    pool: Any = None,
    relu: Any = None,
    front: tuple[Any, ...] = (),
    tail: tuple[Any, ...] | None = None,
) -> nn.Sequential:
    end = (nn.Flatten(), nn.Linear(4 * 3 * 3, 10)) if tail is None else tail
    return nn.Sequential(
        *front, conv or nn.Conv2d(1, 4, 3, bias=False), relu or nn.ReLU(), pool or nn.MaxPool2d(2), *end
    )


def frozen() -> nn.Sequential:
    made = network()
    made[0].weight.requires_grad_(False)
    return made


def hooked() -> nn.Sequential:
    made = network()
    made[1].register_forward_hook(lambda *a: None)
    return made


def shared() -> nn.Sequential:
    made = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(1, 1, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 10),
    )
    made[3].weight = made[0].weight
    return made


OTHERS: dict[str, Any] = {
    "a stride": lambda: network(nn.Conv2d(1, 4, 3, stride=2), tail=(nn.Flatten(), nn.Linear(4, 10))),
    "an even filter": lambda: network(nn.Conv2d(1, 4, 2), tail=(nn.Flatten(), nn.Linear(36, 10))),
    "an oblong filter": lambda: network(nn.Conv2d(1, 4, (3, 1)), tail=(nn.Flatten(), nn.Linear(48, 10))),
    "a layer before it": lambda: network(front=(nn.Identity(),)),
    "holes in the filter": lambda: network(
        nn.Conv2d(1, 4, 3, dilation=2), tail=(nn.Flatten(), nn.Linear(16, 10))
    ),
    "mirrored edges": lambda: network(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), tail=(nn.Flatten(), nn.Linear(64, 10))
    ),
    "pools that overlap": lambda: network(
        pool=nn.MaxPool2d(2, stride=1), tail=(nn.Flatten(), nn.Linear(100, 10))
    ),
    "a mean for a pool": lambda: network(pool=nn.AvgPool2d(2)),
    "another activation": lambda: network(relu=nn.Tanh()),
    "dropout": lambda: network(tail=(nn.Flatten(), nn.Dropout(), nn.Linear(36, 10))),
    "no perceptron": lambda: network(tail=(nn.Flatten(),)),
    "frozen filters": frozen,
    "a hook": hooked,
    "filters used twice": shared,
    "no convolution": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_network_with_anything_else_in_it_is_left_to_autograd(name: str) -> None:
    assert task(OTHERS[name](), (1, 8, 8)).pooled is None


def test_the_plain_network_is_taken_with_and_without_augmented_images() -> None:
    assert task(network(), (1, 8, 8)).pooled
    net = task(network(front=(CropFlip(2),)), (1, 8, 8)).pooled
    assert net is not None
    assert net.front is not None


@pytest.mark.parametrize("image", [(1, 10, 10), (1, 9, 8), (1, 8, 9)])
def test_images_of_another_size_or_with_an_odd_side_are_left_to_autograd(image: tuple[int, ...]) -> None:
    assert pooled.network_of(network(), task(network(), (1, 8, 8)).parameters, torch.Size(image)) is None
