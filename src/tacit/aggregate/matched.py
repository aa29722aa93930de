"""Hidden units are matched before they are averaged, since the order they stand in means nothing.

H. Wang, M. Yurochkin, Y. Sun, D. Papailiopoulos, Y. Khazaeni: "Federated Learning with Matched Averaging"
(FedMA), ICLR 2020: layer by layer, by the Hungarian method. There the model may grow new units and parties
train on after every layer; here its size stays and all layers are matched at once. S. Ek, F. Portet, P.
Lalanda, G. Vega: "A Federated Learning Aggregation Algorithm for Pervasive Computing: Evaluation and
Comparison" (FedDist), PerCom 2021: Euclidean distances between units.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from ..parameters import whole
from .assignment import assign
from .models import Models, OfModels, Told
from .stack import Updates

SAME = (
    nn.Flatten,
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Dropout,
    nn.Dropout2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)  # layers that do the same to every unit
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Matched(OfModels):
    """The mean of models whose hidden units were put in the order of the server's. It assumes honest parties:
    breakdown point 0. For chains of linear layers, convolutions and batch norms, as MLP and CNN are.
    """

    sweeps: int = whole(
        2,
        least=1,
        doc="how often units are matched: first to the server's model, then to the mean just found",
    )

    def with_task(self, task: Any, tests: list[Tensor]) -> Told:
        layers, start = chain(task.module), task.initial()
        values = _cut(task.parameters, start["w"]) | (
            _cut(task.riders, start["buffers"]) if "buffers" in start else {}
        )
        turned = values
        for layer, after in pairwise(layers):  # all units the other way round: what the model says must stay
            order = torch.arange(len(values[f"{layer.name}.weight"]), device=task.x.device).flip(0)
            if values[f"{after.name}.weight"].shape[1] % len(order):
                raise _refused(f"{after.name} does not take what {layer.name} gives")
            turned = reordered(turned, layer, after, order)
        before, after_it = (
            task.predict(
                _joined(task.parameters, v), task.x[:2], _joined(task.riders, v) if task.riders else None
            )
            for v in (values, turned)
        )
        if not torch.allclose(before, after_it, rtol=1e-3, atol=1e-4):
            raise _refused("this model's layers do not follow each other as they are listed")
        return super().with_task(task, tests)

    def of_models(
        self, updates: Updates, mean: dict[str, Tensor], models: Models, told: Told
    ) -> dict[str, Tensor]:
        layers, slots = chain(told.task.module), [*told.task.parameters, *told.task.riders]
        share = (updates.weights.double() / updates.weights.sum()).to(told.w)
        aim = _cut(told.task.parameters, told.w)
        for _ in range(self.sweeps):
            total = {s.name: torch.zeros(s.shape, device=told.w.device) for s in slots}
            for i in range(len(updates)):
                own = models.one(updates, i)
                values = _cut(told.task.parameters, own["model"]) | (
                    _cut(told.task.riders, own["buffers"]) if "buffers" in own else {}
                )
                for name, value in matched(values, aim, layers).items():
                    total[name] += share[i] * value
            aim = total
        return {"model": _joined(told.task.parameters, aim)} | (
            {"buffers": _joined(told.task.riders, aim)} if "buffers" in mean else {}
        )


@dataclass
class Layer:
    """A layer with weights, and the norms that follow it."""

    name: str
    norms: list[str] = field(default_factory=list)


def chain(module: nn.Module) -> list[Layer]:
    """The layers with weights, in order; refused where units cannot be put in another order without changing
    what the model says.
    """
    layers: list[Layer] = []
    for name, m in module.named_modules():
        if any(True for _ in m.children()) and type(m) is not nn.Sequential:
            raise _refused(f"layer {name or 'one'} is a {type(m).__name__}")
    for name, m in module.named_modules():
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d) and getattr(m, "groups", 1) == 1:
            layers.append(Layer(name))
        elif isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) and layers:
            layers[-1].norms.append(name)
        elif not isinstance(m, SAME) and type(m) is not nn.Sequential:
            raise _refused(f"layer {name or 'one'} is a {type(m).__name__}")
    return layers


def _refused(why: str) -> BadParameter:
    return BadParameter(
        f"Matched: {why}, and units are matched in chains of linear layers, convolutions, batch norms and "
        "what acts on every unit alike. "
        "Use model='mlp' or 'cnn', an nn.Sequential of these, or another rule."
    )


def matched(values: Values, aim: Values, layers: list[Layer]) -> Values:
    """The same network, its hidden units in the order that brings it nearest to `aim`, one layer after the
    other.
    """
    for layer, after in pairwise(layers):
        learned = [n for n in _of_units(layer, values) if "running_" not in n]
        mine, theirs = (
            torch.cat([v[n].reshape(len(v[n]), -1) for n in learned], 1).double() for v in (values, aim)
        )
        order = torch.from_numpy(assign(torch.cdist(theirs, mine).square().cpu().numpy())).to(
            mine.device
        )  # place j gets the unit most like aim's j
        values = reordered(values, layer, after, order)
    return values


def reordered(values: Values, layer: Layer, after: Layer, order: Tensor) -> Values:
    """The same network with one layer's units in this order."""
    w = values[f"{after.name}.weight"]
    moved = {name: values[name][order] for name in _of_units(layer, values)}
    return {
        **values,
        **moved,
        f"{after.name}.weight": w.unflatten(1, (len(order), -1))[:, order].reshape(w.shape),
    }  # a flattened channel is a block of inputs


def _of_units(layer: Layer, values: Values) -> list[str]:
    """The names of all that holds a value, or a row, for each unit of a layer."""
    parts = [
        (layer.name, ("weight", "bias")),
        *((norm, ("weight", "bias", "running_mean", "running_var")) for norm in layer.norms),
    ]
    return [f"{name}.{part}" for name, some in parts for part in some if f"{name}.{part}" in values]


def _joined(slots: Any, values: Values) -> Tensor:
    return torch.cat([values[s.name].reshape(-1) for s in slots])


def _cut(slots: Any, flat: Tensor) -> Values:
    return {s.name: flat[s.start : s.stop].view(s.shape) for s in slots}
