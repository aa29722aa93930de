"""Models that know something already: give them another head, and say which layers may still learn.

body = transfer.rehead(pretrained, classes=5)          # the last linear layer anew, for another task
transfer.freeze(body, layers=2)                        # the first two layers with parameters keep what they know
tacit.train(fed, model=body, …)                        # frozen layers are not trained; what is sent is zero there
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from .errors import BadParameter
from .parameters import bad


def rehead(model: nn.Module, classes: int, seed: int = 0) -> nn.Module:
    """A copy whose last linear layer gives `classes` numbers, drawn anew; everything before it is as it
    was.
    """
    _module("rehead", model)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise bad("rehead", "classes", classes, "a whole number of at least 1")
    new = copy.deepcopy(model)
    last = [(name, m) for name, m in new.named_modules() if isinstance(m, nn.Linear)]
    if not last or _layers(new)[-1] is not last[-1][1]:
        raise BadParameter(
            "rehead: the model does not end in a linear layer, so there is no head to replace. Build the "
            "new one yourself."
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
    """The first `layers` layers with parameters of this model do not learn any more; 0 lets all learn again.
    Returns the model.
    """
    _module("freeze", model)
    found = _layers(model)
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 <= layers < len(found):
        raise bad(
            "freeze",
            "layers",
            layers,
            f"a whole number between 0 and {len(found) - 1}: the model has {len(found)} layers with "
            "parameters, and one "
            "must learn",
        )
    for i, layer in enumerate(found):
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
            "A model that has no weights yet is made by tacit.models.build, or is run.model after training.",
        )


def _layers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
