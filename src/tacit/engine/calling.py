"""How a model is called with rows, and what counts as its outputs.

Rows of one tensor are the model's argument; several are named or positional arguments. An output is a
tensor, or, as Hugging Face's models return it, a mapping or an object with `logits`. For an own loss it may
also be a tuple or a mapping of tensors (`SeveralOutputs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..data.inputs import Features, read
from ..errors import BadParameter

LOGITS, LOSS = "logits", "loss"  # what is taken of an output


@runtime_checkable
class WithLogits(Protocol):
    """What a model may return instead of a tensor."""

    logits: Tensor


@runtime_checkable
class WithLoss(Protocol):
    """What a model returns that computes its own loss."""

    loss: Tensor


class _Column(NamedTuple):
    """One of several outputs: where it is in the joined ones, and what it was."""

    key: Any
    shape: tuple[int, ...]  # of a row
    dtype: torch.dtype


class SeveralOutputs:
    """What a model that returns a tuple or a mapping of tensors returns, for a loss that takes all of them.

    Between the model and the loss they are one tensor [B, K], as other outputs are: it can be stacked, cut
    into chunks and joined. `columns` follow from the first call; until then, and with a model that returns
    one tensor, there are none.
    """

    def __init__(self) -> None:
        self.columns: tuple[_Column, ...] = ()
        self.kind: type = tuple

    def join(self, out: Any) -> Tensor | None:
        """Return the outputs as one tensor; None if there are not several tensors with a row each."""
        pairs = list(out.items() if isinstance(out, Mapping) else enumerate(out))
        values = [value for _, value in pairs]
        if not values or not all(
            isinstance(v, Tensor) and v.dim() and len(v) == len(values[0]) for v in values
        ):
            return None
        columns = tuple(_Column(key, tuple(v.shape[1:]), v.dtype) for key, v in pairs)
        if self.columns and [c[:2] for c in columns] != [c[:2] for c in self.columns]:
            raise BadParameter(
                "the model returns outputs of other names or shapes than before; for an own loss they must "
                "stay the same."
            )
        if not self.columns:
            self.columns, self.kind = columns, type(out)
        real = next((v.dtype for v in values if v.is_floating_point()), torch.float32)
        return torch.cat([v.reshape(len(v), -1).to(real) for v in values], 1)

    def split(self, out: Tensor) -> Any:
        """Return the outputs as the model returned them."""
        if not self.columns:
            return out
        parts = out.split([max(1, torch.Size(c.shape).numel()) for c in self.columns], 1)
        values = [
            part.reshape(len(out), *c.shape).to(part.dtype if c.dtype.is_floating_point else c.dtype)
            for part, c in zip(parts, self.columns)
        ]
        if issubclass(self.kind, Mapping):
            return {c.key: value for c, value in zip(self.columns, values)}
        return self.kind(*values) if hasattr(self.kind, "_make") else tuple(values)


Part = str | SeveralOutputs  # what is taken of an output


def arguments_of(x: Features) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments of a model for these rows."""
    x = read(x)
    return ((x,), {}) if isinstance(x, Tensor) else x.arguments()


def call(module: Any, x: Features, part: Part = LOGITS) -> Tensor:
    """Return the outputs of a model for these rows; `part` is what to take of an object."""
    args, named = arguments_of(x)
    return output_of(module(*args, **named), part)


def call_with(module: nn.Module, values: dict[str, Tensor], x: Features, part: Part = LOGITS) -> Tensor:
    """Return the outputs of a model with these parameters and buffers in the place of its own."""
    args, named = arguments_of(x)
    return output_of(functional_call(module, values, args, named), part)


class LastInput:
    """The input of the layer with parameters that was called last."""

    tensor: Tensor | None = None

    def features(self) -> Tensor:
        """[B, F]; BadParameter if no layer with parameters was called with a tensor."""
        if self.tensor is None:
            raise BadParameter(
                "features: no layer of the model that has parameters is called with a tensor. Give the model "
                "a last layer, such as nn.Linear."
            )
        return self.tensor.flatten(1)


@contextmanager
def last_input(module: nn.Module) -> Iterator[LastInput]:
    """Watch the layers of a module while it is called."""
    received = LastInput()

    def note(_: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            received.tensor = args[0]

    layers = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield received
    finally:
        for hook in hooks:
            hook.remove()


def output_of(out: Any, part: Part = LOGITS) -> Tensor:
    """Return the tensor of outputs among what a model returned."""
    if isinstance(out, Tensor):
        return out
    if isinstance(part, SeveralOutputs):
        has_logits = LOGITS in out if isinstance(out, Mapping) else isinstance(out, WithLogits)
        if isinstance(out, tuple | list | Mapping) and not has_logits:
            joined = part.join(out)
            if joined is not None:
                return joined
            raise BadParameter(
                f"the model returns a {type(out).__name__} with something else than tensors that have an "
                "entry for each row. Return a loss of the batch, or a number, as a value for each row: "
                "value.expand(rows)."
            )
        part = LOGITS
    if isinstance(out, dict):
        out = out.get(part, out)
    elif part == LOGITS and isinstance(out, WithLogits):
        out = out.logits
    elif part == LOSS and isinstance(out, WithLoss):
        out = out.loss
    if isinstance(out, Tensor):
        return out
    if part == LOSS:
        raise BadParameter(
            f"the model returns a {type(out).__name__} without a loss, and loss='model' needs one. Models of "
            "Hugging Face return it if `labels` are among their inputs."
        )
    raise BadParameter(
        f"the model returns a {type(out).__name__}; it must return one tensor, or an object with `logits` as "
        "models of Hugging Face do. An own loss (loss=function) takes a tuple or a mapping of tensors, too."
    )
