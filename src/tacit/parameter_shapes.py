"""A model that is only its parameters, by name and shape, for parties that train it with loops of their own.

Server and parties need to agree on the vector that is sent and on nothing else: what the parameters are for,
a party's own code knows. A module, its `state_dict`, scikit-learn's `coef_` and `intercept_` and the arrays
of a JAX model all have this form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .parameters import bad

NAME = "shapes"  # in job files and contracts
MOST_NUMBERS = 10**10  # of all parameters together: a job with more is a mistake or an attack


class ParameterSet(nn.Module):
    """Parameters and buffers under their names; with rows as input it returns zeros, as it computes nothing.

    A name with dots is that of a nested module, so that `state_dict` has the names of the original.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor] | None = None,
        transient: Iterable[str] = (),
        outputs: int = 1,
    ):
        super().__init__()
        self.outputs = outputs
        for name, value in parameters.items():
            home, last = self._home(name)
            home.register_parameter(last, nn.Parameter(value.detach().clone()))
        for name, value in (buffers or {}).items():
            home, last = self._home(name)
            home.register_buffer(last, value.detach().clone(), persistent=name not in set(transient))

    def _home(self, name: str) -> tuple[nn.Module, str]:
        *parts, last = name.split(".")
        home: nn.Module = self
        for part in parts:
            if part not in home._modules:
                home.add_module(part, nn.Module())
            child = home._modules[part]
            assert child is not None
            home = child
        return home, last

    def forward(self, rows: Tensor) -> Tensor:
        total = torch.stack([p.float().sum() for p in self.parameters()]).sum()
        return torch.zeros(len(rows), self.outputs, device=total.device) + 0 * total


@dataclass(frozen=True)
class ParameterShapes:
    """Names and shapes of a model's parameters; all values are 0 until the server sends others."""

    # trainable parameters, and running statistics, which are averaged like parameters: a table, or a list of
    # [name, shape], because their order is that of the vector, and tables of a contract are sorted
    shapes: Mapping[str, Any] | Sequence[Any] = field(default_factory=dict)
    buffers: Mapping[str, Any] | Sequence[Any] = field(default_factory=dict)
    transient: tuple[str, ...] = ()  # buffers that a state_dict leaves out
    counters: tuple[str, ...] = ()  # integers of a state_dict, which are never sent
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names of tied parameters

    @classmethod
    def of(cls, module: nn.Module) -> ParameterShapes:
        """The shapes of a module's trainable parameters and of its buffers."""
        trainable = {k: p for k, p in module.named_parameters() if p.requires_grad}
        buffers = dict(module.named_buffers())
        real = {k: tuple(b.shape) for k, b in buffers.items() if b.is_floating_point()}
        state = module.state_dict(keep_vars=True)
        first = {id(p): k for k, p in trainable.items()}
        return cls(
            {k: tuple(p.shape) for k, p in trainable.items()},
            real,
            tuple(k for k in real if k not in state),
            tuple(k for k, b in buffers.items() if k not in real and k in state),
            {k: first[id(p)] for k, p in state.items() if id(p) in first and k not in trainable},
        )

    def as_table(self) -> dict[str, Any]:
        return {
            "name": NAME,
            "shapes": [[k, list(v)] for k, v in self.of_parameters.items()],
            **({"buffers": [[k, list(v)] for k, v in self.of_buffers.items()]} if self.buffers else {}),
            **({"transient": list(self.transient)} if self.transient else {}),
            **({"counters": list(self.counters)} if self.counters else {}),
            **({"aliases": dict(self.aliases)} if self.aliases else {}),
        }

    @property
    def of_parameters(self) -> dict[str, Any]:
        """The shape of each trainable parameter."""
        return _table(self.shapes, "shapes")

    @property
    def of_buffers(self) -> dict[str, Any]:
        """The shape of each buffer."""
        return _table(self.buffers, "buffers")

    def check(self) -> None:
        if not self.shapes:
            raise bad(NAME, "shapes", {}, "a table with the shape of each parameter, as in coef_ = [1, 30]")
        for table in (self.of_parameters, self.of_buffers):
            for name, shape in table.items():
                if not _is_name(name) or not _is_shape(shape):
                    must_be = "a name and a list of whole numbers above 0, as in coef_ = [1, 30]"
                    raise bad(NAME, f"the shape of {name!r:.60}", shape, must_be)
        names = [*self.of_parameters, *self.of_buffers, *self.counters, *self.aliases]
        numbers = sum(math.prod(s) for t in (self.of_parameters, self.of_buffers) for s in t.values())
        nested = {name.rpartition(".")[0] for name in names}
        if (
            len(set(names)) < len(names)
            or nested & set(names)
            or not all(map(_is_name, names))
            or not set(self.transient) <= set(self.of_buffers)
            or not set(self.aliases.values()) <= set(self.of_parameters)
            or numbers > MOST_NUMBERS
        ):
            raise bad(NAME, "shapes", names[:5], f"different names of at most {MOST_NUMBERS:,} numbers")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        zeros = {k: torch.zeros(tuple(s)) for k, s in self.of_parameters.items()}
        buffers = {k: torch.zeros(tuple(s)) for k, s in self.of_buffers.items()}
        return ParameterSet(zeros, buffers, self.transient, outputs)


def to_module(values: Mapping[str, Any]) -> ParameterSet:
    """Return arrays by name as a model."""
    tensors = {}
    for name, value in values.items():
        if not _is_name(name):
            raise bad("train", "the name of a parameter", name, "a text without empty parts between dots")
        tensor = to_tensor(value, f"the parameter {name!r:.60}")
        tensors[name] = tensor
    if not tensors:
        raise bad("train", "model", {}, "a dict with at least one array")
    return ParameterSet(tensors)


def to_tensor(value: Any, what: str) -> Tensor:
    """Return a tensor, or whatever numpy reads as an array of numbers, as float32 on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", torch.float32)
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = array.astype(np.float64)
        return torch.from_numpy(np.array(array, dtype=np.float32))
    except (TypeError, ValueError):
        raise bad("client", what, type(value).__name__, "a tensor or an array of numbers") from None


def is_arrays(model: Any) -> bool:
    """Whether a model is given as arrays by name, like a state_dict."""
    return isinstance(model, Mapping) and "name" not in model


def _table(given: Any, key: str) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in given
    ):
        raise bad(NAME, key, given, "a table of names and shapes, or a list of [name, shape]")
    table = {name: shape for name, shape in given}
    if len(table) < len(given):
        raise bad(NAME, key, [name for name, _ in given][:5], "of different names")
    return table


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 300 and all(name.split("."))


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list | tuple)
        and len(shape) <= 8
        and all(type(n) is int and 0 < n <= MOST_NUMBERS for n in shape)
    )
