"""Match hidden units before averaging, because their order in a layer is arbitrary.

H. Wang, M. Yurochkin, Y. Sun, D. Papailiopoulos, Y. Khazaeni: "Federated Learning with Matched Averaging"
(FedMA), ICLR 2020: layer by layer, by the Hungarian method. There the model may grow and parties train on
after every layer; here its size is fixed and all layers are matched at once. S. Ek, F. Portet, P. Lalanda,
G. Vega: "A Federated Learning Aggregation Algorithm for Pervasive Computing: Evaluation and Comparison"
(FedDist), PerCom 2021: Euclidean distances between units.
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
from .models import BoundModelRule, ModelCoding, ModelRule
from .rule import State
from .stack import Updates

ELEMENTWISE = (
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
)  # layers that treat every unit alike
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Matched(ModelRule):
    """The mean of models whose hidden units were reordered to match the server's model.

    It assumes honest parties: breakdown point 0. It works on chains of linear layers, convolutions and batch
    norms, such as MLP and CNN.
    """

    sweeps: int = whole(
        2,
        least=1,
        doc="how often units are matched: first to the server's model, then to the last mean",
    )

    def with_task(self, task: Any, tests: list[Tensor]) -> BoundModelRule:
        if not all(q.requires_grad for q in task.module.parameters()):
            raise _unsupported("some layers are frozen, and their units cannot be reordered")
        layers, start = chain(task.module), task.initial()
        values = _split(task.parameters, start["w"]) | (
            _split(task.buffer_slots, start["buffers"]) if "buffers" in start else {}
        )
        reversed_values = values
        for layer, after in pairwise(layers):  # reversing all units must not change the model's outputs
            order = torch.arange(len(values[f"{layer.name}.weight"]), device=task.x.device).flip(0)
            if values[f"{after.name}.weight"].shape[1] % len(order):
                raise _unsupported(f"{after.name} does not take the outputs of {layer.name}")
            reversed_values = reorder(reversed_values, layer, after, order)
        first, second = (
            task.predict(
                _join(task.parameters, v),
                task.x[:2],
                _join(task.buffer_slots, v) if task.buffer_slots else None,
            )
            for v in (values, reversed_values)
        )
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-4):
            raise _unsupported("this model does not apply its layers in the order in which they are listed")
        return super().with_task(task, tests)

    def aggregate_models(
        self, updates: Updates, mean: State, models: ModelCoding, bound: BoundModelRule
    ) -> State:
        task = bound.task
        layers, slots = chain(task.module), [*task.parameters, *task.buffer_slots]
        share = (updates.weights.double() / updates.weights.sum()).to(bound.w)
        target = _split(task.parameters, bound.w)
        for _ in range(self.sweeps):
            total = {s.name: torch.zeros(s.shape, device=bound.w.device) for s in slots}
            for i in range(len(updates)):
                own = models.of_party(updates, i)
                values = _split(task.parameters, own["model"]) | (
                    _split(task.buffer_slots, own["buffers"]) if "buffers" in own else {}
                )
                for name, value in match(values, target, layers).items():
                    total[name] += share[i] * value
            target = total
        return {"model": _join(task.parameters, target)} | (
            {"buffers": _join(task.buffer_slots, target)} if "buffers" in mean else {}
        )


@dataclass
class Layer:
    """A layer with weights, and the batch norms after it."""

    name: str
    norms: list[str] = field(default_factory=list)


def chain(module: nn.Module) -> list[Layer]:
    """The layers with weights, in order; BadParameter if their units cannot be reordered."""
    layers: list[Layer] = []
    for name, m in module.named_modules():
        if any(True for _ in m.children()) and type(m) is not nn.Sequential:
            raise _unsupported(f"layer {name or 'one'} is a {type(m).__name__}")
    for name, m in module.named_modules():
        if isinstance(m, nn.Linear) or (isinstance(m, nn.Conv1d | nn.Conv2d) and m.groups == 1):
            layers.append(Layer(name))
        elif isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) and layers:
            layers[-1].norms.append(name)
        elif not isinstance(m, ELEMENTWISE) and type(m) is not nn.Sequential:
            raise _unsupported(f"layer {name or 'one'} is a {type(m).__name__}")
    return layers


def _unsupported(why: str) -> BadParameter:
    return BadParameter(
        f"Matched: {why}. It supports chains of linear layers, convolutions, batch norms and layers that "
        "treat every unit alike. Use model='mlp' or 'cnn', an nn.Sequential of these, or another rule."
    )


def match(values: Values, target: Values, layers: list[Layer]) -> Values:
    """The same network with its hidden units reordered, layer by layer, to be nearest to `target`."""
    for layer, after in pairwise(layers):
        learned = [n for n in _unit_values(layer, values) if "running_" not in n]
        ours, theirs = (
            torch.cat([v[n].reshape(len(v[n]), -1) for n in learned], 1).double() for v in (values, target)
        )
        # position j gets the unit that is nearest to the target's unit j
        order = torch.from_numpy(assign(torch.cdist(theirs, ours).square().cpu().numpy())).to(ours.device)
        values = reorder(values, layer, after, order)
    return values


def reorder(values: Values, layer: Layer, after: Layer, order: Tensor) -> Values:
    """The same network with the units of one layer in this order."""
    w = values[f"{after.name}.weight"]
    return {
        **values,
        **{name: values[name][order] for name in _unit_values(layer, values)},
        # a flattened channel is a block of inputs
        f"{after.name}.weight": torch.unflatten(w, 1, (len(order), -1))[:, order].reshape(w.shape),
    }


def _unit_values(layer: Layer, values: Values) -> list[str]:
    """The names of the tensors with one entry for each unit of a layer."""
    parts = [
        (layer.name, ("weight", "bias")),
        *((norm, ("weight", "bias", "running_mean", "running_var")) for norm in layer.norms),
    ]
    return [f"{name}.{part}" for name, some in parts for part in some if f"{name}.{part}" in values]


def _join(slots: Any, values: Values) -> Tensor:
    return torch.cat([values[s.name].reshape(-1) for s in slots])


def _split(slots: Any, flat: Tensor) -> Values:
    return {s.name: flat[s.start : s.stop].view(s.shape) for s in slots}
