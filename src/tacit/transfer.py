"""Transfer learning: replace the head of a pretrained model, and freeze layers.

body = transfer.rehead(pretrained, classes=5)   # a new last linear layer, for another task
transfer.freeze(body, layers=2)                 # the first two layers with parameters are not trained
tacit.train(fed, model=body, …)                 # updates are zero in frozen layers
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from .errors import BadParameter
from .parameters import bad


def rehead(model: nn.Module, classes: int, seed: int = 0) -> nn.Module:
    """A copy with a new, randomly initialized last linear layer with `classes` outputs."""
    _module("rehead", model)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise bad("rehead", "classes", classes, "a whole number of at least 1")
    new = copy.deepcopy(model)
    last = [(name, m) for name, m in new.named_modules() if isinstance(m, nn.Linear)]
    if not last or _layers(new)[-1] is not last[-1][1]:
        raise BadParameter(
            "rehead: the last layer of the model is not linear, so there is no head to replace. Replace it "
            "yourself."
        )
    name, old = last[-1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        head = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    if not name:
        return head
    outer, _, leaf = name.rpartition(".")
    setattr(new.get_submodule(outer), leaf, head)
    return new


def freeze(model: nn.Module, layers: int) -> nn.Module:
    """Freeze the first `layers` layers with parameters, in place; 0 unfreezes all. Returns the model."""
    _module("freeze", model)
    trainable = _layers(model)
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 <= layers < len(trainable):
        raise bad(
            "freeze",
            "layers",
            layers,
            f"a whole number between 0 and {len(trainable) - 1}: the model has {len(trainable)} layers with "
            "parameters, and one "
            "must be trained",
        )
    for i, layer in enumerate(trainable):
        for p in layer.parameters(recurse=False):
            p.requires_grad_(i >= layers)
    return model


def _module(owner: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise bad(
            owner,
            "model",
            model if isinstance(model, str) else type(model).__name__,
            "a torch.nn.Module",
            "tacit.models.build makes one, and run.model is one after training.",
        )


def _layers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
