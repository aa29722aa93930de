"""How a model is called with rows, and what counts as its outputs.

Rows of one tensor are the model's argument; several are named or positional arguments. An output is a
tensor, or, as Hugging Face's models return it, a mapping or an object with `logits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

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


def arguments_of(x: Features) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments of a model for these rows."""
    x = read(x)
    return ((x,), {}) if isinstance(x, Tensor) else x.arguments()


def call(module: Any, x: Features, part: str = LOGITS) -> Tensor:
    """Return the outputs of a model for these rows; `part` is what to take of an object."""
    args, named = arguments_of(x)
    return output_of(module(*args, **named), part)


def call_with(module: nn.Module, values: dict[str, Tensor], x: Features, part: str = LOGITS) -> Tensor:
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


def output_of(out: Any, part: str = LOGITS) -> Tensor:
    """Return the tensor of outputs among what a model returned."""
    if isinstance(out, Tensor):
        return out
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
        "models of Hugging Face do. Wrap it in a module that returns what the loss takes."
    )
