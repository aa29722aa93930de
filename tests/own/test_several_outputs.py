"""Models that return a tuple or a mapping of tensors, for an own loss; losses of whole images."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import algorithms, data, guard, private
from tacit.errors import BadParameter, BadRun

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = torch.stack([(X[:, 0] > 0).float(), X[:, 1] - X[:, 2]], 1)
FED = data.from_arrays(X, Y).split(4, skew=data.Quantity(alpha=2.0), seed=0, held_fraction=0.2)
OPTIONS: dict[str, Any] = {"rounds": 2, "algorithm": algorithms.FedAvg(lr=0.1), "min_rows": 1}
HIDDEN = [guard.Clip(20.0), guard.Quantize(bits=32, stochastic=False), guard.SecAgg(threshold=0.7)]
Heads = namedtuple("Heads", ["kind", "size"])


class Joined(nn.Module):
    """Both heads in one tensor: the reference."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.kind, self.size = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.trunk(x))
        return torch.cat([self.kind(hidden), self.size(hidden)], 1)


class Apart(Joined):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.returns = kind

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        if self.returns is dict:
            return {"kind": out[:, :2], "size": out[:, 2]}
        return Heads(out[:, :2], out[:, 2]) if self.returns is Heads else (out[:, :2], out[:, 2])


def loss_of_parts(kind: Tensor, size: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(kind, y[:, 0].long(), reduction="none") + (size - y[:, 1]) ** 2


LOSSES: dict[Any, Any] = {
    None: lambda out, y: loss_of_parts(out[:, :2], out[:, 2], y),
    tuple: lambda out, y: loss_of_parts(*out, y),
    dict: lambda out, y: loss_of_parts(out["kind"], out["size"], y),
    Heads: lambda out, y: loss_of_parts(out.kind, out.size, y),
}
HITS: dict[Any, Any] = {
    None: lambda out, y: (out[:, :2].argmax(1) == y[:, 0]).float().mean(),
    tuple: lambda out, y: (out[0].argmax(1) == y[:, 0]).float().mean(),
    dict: lambda out, y: (out["kind"].argmax(1) == y[:, 0]).float().mean(),
    Heads: lambda out, y: (out.kind.argmax(1) == y[:, 0]).float().mean(),
}


def train(kind: Any, **options: Any) -> Any:
    model = Joined() if kind is None else Apart(kind)
    return tacit.train(FED, model=model, loss=LOSSES[kind], metrics={"hit": HITS[kind]}, **OPTIONS, **options)


def weights(run: Any) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


@pytest.mark.parametrize("kind", [tuple, dict, Heads], ids=["tuple", "dict", "namedtuple"])
@pytest.mark.parametrize(
    "how",
    [{"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"}, {"guard": HIDDEN}],
    ids=["stack", "each", "messages", "secagg"],
)
def test_several_outputs_train_the_model_of_one_joined_output(kind: Any, how: dict[str, Any]) -> None:
    one, several = train(None, **how), train(kind, **how)
    assert torch.allclose(weights(one), weights(several), atol=1e-6)
    for name in ("loss", "hit"):
        assert several.metrics[name] == pytest.approx(one.metrics[name], rel=1e-5)
    assert not any("one by one" in e.get("text", "") for e in several.events)


def test_runs_side_by_side_know_the_outputs_of_their_model() -> None:
    found = tacit.compare(
        FED,
        algorithms=[algorithms.FedAvg(lr=0.1)],
        model=lambda: Apart(dict),
        loss=LOSSES[dict],
        seeds=2,
        rounds=1,
    )
    assert all(run.metrics["loss"] < 10 for run in found.results)


def test_dpsgd_clips_the_gradient_of_a_row_of_several_outputs() -> None:
    noise = private.DPSGD(epsilon=8.0, delta=1e-3)
    run = train(dict, private=noise)
    with pytest.raises(BadRun, match=r"several outputs.*run\.model\(x\)"):
        run.predict(X[:2])
    assert max(s.epsilon for s in run.ledger.spent) <= 8.0
    # the noise of DP-SGD is not a property of the model
    assert not any("draws random numbers" in e.get("text", "") for e in run.events)


class Scalar(Apart):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[0], torch.zeros(())


def test_outputs_that_have_no_entry_for_each_row_are_refused() -> None:
    with pytest.raises(BadParameter, match=r"value\.expand\(rows\)"):
        tacit.train(FED, model=Scalar(tuple), loss=LOSSES[tuple], **OPTIONS)
    with pytest.raises(BadParameter, match=r"An own loss \(loss=function\) takes a tuple or a mapping"):
        tacit.train(FED, model=Apart(dict), **OPTIONS)


def test_an_own_loss_of_images_gets_the_outputs_as_the_model_returns_them() -> None:
    """In training and in evaluation: torch's convention is [B, C, H, W], with labels [B, H, W]."""
    images = torch.randn(24, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    shapes = set()

    def dice(out: Tensor, y: Tensor) -> Tensor:
        shapes.add(tuple(out.shape[1:]))
        p, y = out.softmax(1)[:, 1], y.float()
        return 1 - (2 * (p * y).sum((1, 2)) + 1) / (p.sum((1, 2)) + y.sum((1, 2)) + 1)

    fed = data.from_arrays(images, (images[:, 0] > 0).long()).split(2, seed=0)
    torch.manual_seed(0)
    run = tacit.train(fed, model=nn.Conv2d(1, 2, 3, padding=1), loss=dice, **OPTIONS)
    assert shapes == {(2, 4, 4)}
    assert 0 < run.metrics["loss"] < 1
    assert 0 <= run.metrics["accuracy"] <= 1


class Seq2Seq(nn.Module):
    """Teacher forcing: the decoder begins with the encoder's state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 8), nn.Linear(8, 9)
        self.encoder, self.decoder = nn.GRU(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)

    def forward(self, source: Tensor, given: Tensor) -> Tensor:
        _, state = self.encoder(self.embedding(source))
        return self.out(self.decoder(self.embedding(given), state)[0])


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = Shifted(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x=x))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def test_layers_whose_rows_dpsgd_cannot_tell_are_refused_with_what_to_do() -> None:
    """Before, both ended with an error of torch's own."""
    noise, g = private.DPSGD(epsilon=8.0, delta=1e-3), torch.Generator().manual_seed(0)
    source = torch.randint(1, 9, (60, 4), generator=g)
    pairs = data.from_arrays({"source": source, "given": source}, source.flip(1), classes=9).split(3, seed=0)
    with pytest.raises(BadParameter, match=r"'decoder' \(GRU\) is called with an initial state"):
        tacit.train(pairs, model=Seq2Seq(), private=noise, **OPTIONS)
    rows = data.from_arrays(X, (X[:, 0] > 0).long()).split(3, seed=0)
    with pytest.raises(BadParameter, match=r"'norm' \(Shifted\) is called without a tensor as its first"):
        tacit.train(rows, model=ByName(), private=noise, **OPTIONS)
    assert tacit.train(pairs, model=Seq2Seq(), **OPTIONS).metrics["loss"] < 3
