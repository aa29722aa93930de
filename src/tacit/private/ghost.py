"""Clipped sums of per-example gradients, from one backward pass.

Z. Bu, Y.-X. Wang, S. Dai, G. Karypis: *Differentially Private Optimization on Large Model at Small Cost*,
ICML 2023, Algorithm 1 (book-keeping).

Parameters are taken out of torch's graph (requires_grad=False), so a backward pass computes no weight
gradients: it only propagates the loss's gradient from one layer's output to the next. Afterwards, every layer
computes the squared norm of each example's gradient (`layers.py`), the norms give one factor per example, and
every layer sums its gradients with those factors. Only that sum is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from .layers import FunctionalRule, LayerUse, LayerUses, find_layers, uses_batch_statistics
from .norms import LARGEST, squared

# covers the rounding of norms (`norms.py`), of factors and of their product with a gradient, each below 4e-6
SLACK = 1 - 2.0**-18
HALF = (torch.bfloat16, torch.float16)


class _Tap(torch.autograd.Function):
    """Make the first layer's output part of the graph, in place.

    Later layers may then work in place on it.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return None, None


class GhostClipping:
    """The clipped gradient sums of one model.

    `factors` maps the norms of the groups of layers [G, B] to a factor for each example [G, B].
    """

    def __init__(
        self,
        model: nn.Module,
        factors: Callable[[Tensor], Tensor],
        groups: str = "flat",
        method: str = "auto",
    ):
        self.model, self.factors = model, factors
        self.layers = find_layers(model, method)
        self.group = list(range(len(self.layers))) if groups == "per-layer" else [0] * len(self.layers)
        self.parameters: list[nn.Parameter] = list(
            {id(p): p for layer in self.layers for p in layer.parameters.values()}.values()
        )
        owners = Counter(id(p) for layer in self.layers for p in layer.parameters.values())
        # layers that share a parameter need per-example gradients
        self.tied = {
            i
            for i, layer in enumerate(self.layers)
            if any(owners[id(p)] > 1 for p in layer.parameters.values())
        }
        if groups == "per-layer" and self.tied:
            first = min(self.tied)
            for i in self.tied:  # a gradient summed over two layers is clipped once
                self.group[i] = first
            self.group = [sorted(set(self.group)).index(g) for g in self.group]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
                raise BadParameter(
                    f"DPSGD: the parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')}, in "
                    "which rounding may exceed the clipping norm. Keep the weights in float32 "
                    "(model.float()) and run the model under torch.autocast."
                )
        self.sums: dict[int, Tensor] = {}
        self.is_active, self.is_mean = True, True
        # called with the number of examples of a pass, before its gradients are used
        self.on_pass: Callable[[int], None] = lambda rows: None
        # receives the gradients of a pass, and returns whether they are to be added
        self.inspect: Callable[[LayerUses], bool] = lambda uses_by_layer: True
        self.is_public = False
        self.is_watching = False
        self.half_precision = False  # whether gradients were in half precision, as under autocast
        self._uses: LayerUses = {}
        self._task: int | None = None  # the backward pass that they belong to
        self._hooks = [
            layer.module.register_forward_hook(self._make_hook(i)) for i, layer in enumerate(self.layers)
        ]
        self._hooks += [
            m.register_forward_pre_hook(_refuse_training_mode(name, m))
            for name, m in model.named_modules()
            if uses_batch_statistics(m)
        ]
        for p in self.parameters:
            p.requires_grad_(False)
        self._anchor = torch.zeros((), requires_grad=True)

    def close(self) -> None:
        """Restore the model."""
        for hook in self._hooks:
            hook.remove()
        self._set_requires_grad(True)
        self.drop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore passes in this block, such as those of a generator through its critic."""
        before, self.is_active = self.is_active, False
        self._set_requires_grad(False)
        try:
            yield
        finally:
            self.is_active = before
            self._set_requires_grad(self.is_watching)

    def watch(self, watched: bool) -> None:
        """Let torch compute its own parameter gradients, too, for `inspect` to compare with."""
        if watched or self.is_watching:
            self.is_watching = watched
            self._set_requires_grad(watched)
            for p in self.parameters:
                p.grad = None

    def _set_requires_grad(self, learn: bool) -> None:
        for p in self.parameters:
            p.requires_grad_(learn)

    def _make_hook(self, i: int) -> Callable[..., Any]:
        layer = self.layers[i]

        def hook(module: nn.Module, inputs: tuple[Any, ...], out: Any) -> Any:
            # a copy of the model has copies of its hooks
            if not self.is_active or module is not layer.module or not torch.is_grad_enabled():
                return out
            first = out[0] if isinstance(out, tuple) else out
            if not isinstance(first, Tensor):
                raise BadParameter(
                    f"DPSGD: layer {layer.name!r} ({type(module).__name__}) returns a "
                    f"{type(first).__name__}. Return a tensor with one row per example."
                )
            if not first.requires_grad:
                first = _Tap.apply(first, self._anchor.to(first.device))  # type: ignore[no-untyped-call]
            detached = tuple(x.detach() if isinstance(x, Tensor) else x for x in inputs)

            def store_gradient(g: Tensor) -> None:
                if g.requires_grad:
                    raise BadParameter(
                        "DPSGD: second-order gradients (create_graph=True) reach the weights without "
                        "passing the layers' outputs. Use a loss without them, or compute them inside `with "
                        "private.paused()`."
                    )
                _check_rows_of(layer.name, module, detached, len(g))
                task = torch._C._current_graph_task_id()
                if self._task not in (None, task):
                    raise BadParameter(
                        "DPSGD: a second backward pass in one step; an example that is used twice may "
                        "change the sum by twice the clipping norm. Add the losses and call backward once; "
                        "to accumulate gradients use a larger batch_size with micro_batch."
                    )
                self._task = task
                self.half_precision = self.half_precision or g.dtype in HALF
                self._uses.setdefault(i, []).append(
                    LayerUse(tuple(map(_to_float32, detached)), _to_float32(g.detach()))
                )

            first.register_hook(store_gradient)
            return (first, *out[1:]) if isinstance(out, tuple) else first

        return hook

    # gradients of a pass ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Clip and add up the gradients of the last backward pass."""
        uses_by_layer = self.take_uses()
        if uses_by_layer:
            with (
                torch.no_grad(),
                self.paused(),
                _full_precision(uses_by_layer),
            ):  # torch.func runs layers again
                if self.inspect(uses_by_layer):
                    self._add(uses_by_layer)

    def take_uses(self) -> LayerUses:
        """Return and forget the gradients of the last backward pass."""
        uses_by_layer, self._uses, self._task = self._uses, {}, None
        return uses_by_layer

    def sum_unclipped(self, uses_by_layer: LayerUses) -> dict[int, Tensor]:
        """Return the unclipped sums of these gradients, by parameter id."""
        out: dict[int, Tensor] = {}
        for i, uses in uses_by_layer.items():
            layer = self.layers[i]
            square, saved = layer.squares(uses)
            for name, total in layer.total(uses, saved, torch.ones_like(square)).items():
                at = id(layer.parameters[name])
                out[at] = out[at] + total if at in out else total
        return out

    def _add(self, uses_by_layer: LayerUses) -> None:
        rows = {len(p.g) for uses in uses_by_layer.values() for p in uses}
        if len(rows) != 1:
            raise BadParameter(
                f"DPSGD: layers received batches of {sorted(rows)} rows in one backward pass, so rows cannot "
                "be assigned to examples. Give every layer one row per example, or call backward once for "
                "each batch."
            )
        n = rows.pop()
        self.on_pass(n)
        if n == 0:
            return
        scale = float(n) if self.is_mean else 1.0  # a mean loss divides gradients by the number of rows
        which = sorted(uses_by_layer)
        squares = torch.zeros(
            max(self.group) + 1, n, dtype=torch.float64, device=uses_by_layer[which[0]][0].g.device
        )
        saved: dict[int, Any] = {}
        shared: dict[int, Tensor] = {}  # per-example gradients of parameters that several layers share
        for i in which:
            if i in self.tied:
                for k, v in self.layers[i].per_example(uses_by_layer[i]).items():
                    at = id(self.layers[i].parameters[k])
                    shared[at] = shared[at] + v if at in shared else v
                continue
            square, saved[i] = self.layers[i].squares(uses_by_layer[i])
            squares[self.group[i]] += square
        for v in shared.values():
            squares[self.group[min(self.tied)]] += squared(v)
        norms = squares.sqrt() * scale
        c = torch.ones_like(norms) if self.is_public else self.factors(norms)
        bad = ~(norms <= LARGEST).all(0)
        if bool(bad.any()):  # gradients that are not finite are dropped
            c[:, bad] = 0
            uses_by_layer = {
                i: [LayerUse(tuple(_zero_rows(x, bad) for x in p.inputs), _zero_rows(p.g, bad)) for p in uses]
                for i, uses in uses_by_layer.items()
            }
            saved = {i: self.layers[i].squares(uses_by_layer[i])[1] for i in saved}
            shared = {k: _zero_rows(v, bad) for k, v in shared.items()}
        c = c * scale
        for i, k in saved.items():
            for name, total in self.layers[i].total(uses_by_layer[i], k, c[self.group[i]]).items():
                self._accumulate(id(self.layers[i].parameters[name]), total)
        for at, v in shared.items():
            self._accumulate(
                at, (c[self.group[min(self.tied)]].to(v.dtype) @ v.reshape(n, -1)).view(v.shape[1:])
            )

    def _accumulate(self, at: int, total: Tensor) -> None:
        self.sums[at] = self.sums[at] + total if at in self.sums else total

    def take(self) -> list[Tensor]:
        """Return the sums since the last call, one for each of `parameters`."""
        self.flush()
        out = [
            self.sums[id(p)] if id(p) in self.sums else torch.zeros_like(p, requires_grad=False)
            for p in self.parameters
        ]
        self.sums = {}
        return out

    def drop(self) -> None:
        """Forget all sums and pending gradients."""
        self.sums = {}
        self.take_uses()

    @property
    def looped(self) -> dict[str, str]:
        """Layers whose examples are processed one by one, and why."""
        return {
            layer.name or "the model": layer.looped
            for layer in self.layers
            if isinstance(layer, FunctionalRule) and layer.looped
        }


def _check_rows_of(name: str, module: nn.Module, inputs: tuple[Any, ...], rows: int) -> None:
    """Raise unless every input of a layer has an entry for each of the rows that it returns."""
    what = f"layer {name!r}" if name else "the model"
    if not inputs or not isinstance(inputs[0], Tensor):
        raise BadParameter(
            f"DPSGD: {what} ({type(module).__name__}) is called without a tensor as its first argument, so "
            "examples cannot be separated. Call it with positional tensors that have a row for each example."
        )
    if isinstance(module, nn.RNNBase) and any(x is not None for x in inputs[1:]):
        raise BadParameter(
            f"DPSGD: {what} ({type(module).__name__}) is called with an initial state, whose first axis is "
            "not the batch, so examples cannot be separated. Begin with no state, and join it to the input: "
            "torch.cat([x, state[:, None].expand(-1, x.shape[1], -1)], 2)."
        )
    for x in inputs:
        if isinstance(x, Tensor) and (not x.dim() or len(x) != rows):
            taken = len(x) if x.dim() else "no"
            raise BadParameter(
                f"DPSGD: {what} takes {taken} rows and returns {rows}, so examples cannot be separated. Keep "
                "the batch on the first axis (batch_first=True) of all that it takes."
            )


def _to_float32(x: Any) -> Any:
    """Convert half precision, from autocast, to float32."""
    return x.float() if isinstance(x, Tensor) and x.dtype in HALF else x


@contextmanager
def _full_precision(uses_by_layer: LayerUses) -> Iterator[None]:
    """Compute products in full float32 precision.

    Under autocast, TF32 or bfloat16, rounding could exceed the clipping norm.
    """
    device = next(iter(uses_by_layer.values()))[0].g.device.type
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _refuse_training_mode(name: str, layer: nn.Module) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any) -> None:
        if module is layer and module.training and torch.is_grad_enabled():
            raise BadParameter(
                f"DPSGD: {name!r} ({type(module).__name__}) was in evaluation mode at attach and is now in "
                "training mode, in which it mixes the examples of a batch. Call .eval() on it after "
                "model.train()."
            )

    return hook


def _zero_rows(x: Any, bad: Tensor) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return torch.where(bad.view(-1, *[1] * (x.dim() - 1)), 0, x)


def flat_factors(clip: float) -> Callable[[Tensor], Tensor]:
    """Return min(1, C/‖g‖): Abadi et al., CCS 2016, Algorithm 1.

    Each of G groups of layers has C/√G, so that all of them together have C.
    """

    def factors(norms: Tensor) -> Tensor:
        bound = clip / math.sqrt(len(norms)) * SLACK
        return (bound / norms.clamp(min=1e-30)).clamp(max=1)

    return factors


def automatic_factors(clip: float, gamma: float) -> Callable[[Tensor], Tensor]:
    """Return C/(‖g‖ + γ): AUTO-S of Z. Bu, Y.-X. Wang, S. Zha, G. Karypis.

    *Automatic Clipping*, NeurIPS 2023: every gradient has norm of nearly C, so C needs no tuning.
    """

    def factors(norms: Tensor) -> Tensor:
        return clip / math.sqrt(len(norms)) * SLACK / (norms + gamma)

    return factors


def unit_factors(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)
