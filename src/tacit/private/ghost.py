"""One backward pass to the layers' outputs; norms from it, and the clipped sum of per-example gradients from
the same tensors.

Bu, Wang, Dai, Karypis: *Differentially Private Optimization on Large Model at Small Cost*, ICML 2023,
Algorithm 1 (book-keeping).

Parameters are taken out of torch's graph (requires_grad=False), so a backward pass computes no gradient of a
weight at all: it only carries the loss's gradient from one layer's output to the next. When it has ended,
every layer says the squared norm of each example's gradient (`layers.py`), the norms give one factor for each
example, and every layer sums its gradients under those factors. That sum is all that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from .layers import Functional, Piece, Pieces, keeps_statistics, layers_of
from .norms import LARGEST, squared

SLACK = (
    1 - 2.0**-18
    # covers the rounding of norms (`norms.py`), of factors and of their product with a gradient, each by
    # itself
    # below 4e-6
)
HALF = (torch.bfloat16, torch.float16)


class _Tap(torch.autograd.Function):
    """Make the first layer's output part of the graph, in place: what comes after may again work in place on
    it.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return None, None


class Ghost:
    """The clipped sums of one model. `factors` maps the norms of the groups of layers [G, B] to a factor for
    each example [G, B].
    """

    def __init__(
        self,
        model: nn.Module,
        factors: Callable[[Tensor], Tensor],
        groups: str = "flat",
        method: str = "auto",
    ):
        self.model, self.factors = model, factors
        self.layers = layers_of(model, method)
        self.group = list(range(len(self.layers))) if groups == "per-layer" else [0] * len(self.layers)
        self.parameters: list[nn.Parameter] = list(
            {id(p): p for layer in self.layers for p in layer.mine.values()}.values()
        )
        owners: dict[int, list[int]] = {}
        for i, layer in enumerate(self.layers):
            for p in layer.mine.values():
                owners.setdefault(id(p), []).append(i)
        self.tied = {
            i for who in owners.values() if len(who) > 1 for i in who
        }  # layers that share a parameter are made example by example
        if groups == "per-layer" and self.tied:
            first = min(self.tied)
            for i in self.tied:  # a gradient that is summed over two layers is clipped once
                self.group[i] = first
            self.group = [sorted(set(self.group)).index(g) for g in self.group]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
                raise BadParameter(
                    f"DPSGD: the parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')}, in "
                    "which a clipped gradient may round to "
                    "more than its bound. Keep the weights in float32 (model.float()) and run the model "
                    "under torch.autocast."
                )
        self.sums: dict[int, Tensor] = {}
        self.on, self.mean = True, True
        self.after: Callable[[int], None] = lambda rows: (
            None
        )  # told how many examples a pass had, before its gradients are used
        self.inspect: Callable[[Pieces], bool] = lambda pieces: (
            True
        )  # sees what a pass left, and says whether it is to be added
        self.public = False
        self.watched = False
        self.short = False  # whether gradients came in half precision, as under autocast
        self._pieces: Pieces = {}
        self._task: int | None = None  # the backward pass that left them
        self._hooks = [
            layer.module.register_forward_hook(self._seen(i)) for i, layer in enumerate(self.layers)
        ]
        self._hooks += [
            m.register_forward_pre_hook(_frozen(name, m))
            for name, m in model.named_modules()
            if keeps_statistics(m)
        ]
        for p in self.parameters:
            p.requires_grad_(False)
        self._anchor = torch.zeros((), requires_grad=True)

    def close(self) -> None:
        """Give the model back as it was."""
        for hook in self._hooks:
            hook.remove()
        self._learn(True)
        self.drop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Passes in here leave no trace: a critic that its generator learns from."""
        before, self.on = self.on, False
        self._learn(False)
        try:
            yield
        finally:
            self.on = before
            self._learn(self.watched)

    def watch(self, watched: bool) -> None:
        """Let torch compute its own gradients of the parameters too, for `inspect` to compare with."""
        if watched or self.watched:
            self.watched = watched
            self._learn(watched)
            for p in self.parameters:
                p.grad = None

    def _learn(self, learn: bool) -> None:
        for p in self.parameters:
            p.requires_grad_(learn)

    def _seen(self, i: int) -> Callable[..., Any]:
        layer = self.layers[i]

        def hook(module: nn.Module, inputs: tuple[Any, ...], out: Any) -> Any:
            if (
                not self.on or module is not layer.module or not torch.is_grad_enabled()
            ):  # a copy of the model copies its hooks
                return out
            first = out[0] if isinstance(out, tuple) else out
            if not isinstance(first, Tensor):
                raise BadParameter(
                    f"DPSGD: layer {layer.name!r} ({type(module).__name__}) gives a {type(first).__name__}, "
                    "and a tensor with one row an "
                    f"example is "
                    "needed. Make it give one."
                )
            if not first.requires_grad:
                first = _Tap.apply(first, self._anchor.to(first.device))
            kept = tuple(x.detach() if isinstance(x, Tensor) else x for x in inputs)

            def arrived(g: Tensor) -> None:
                if g.requires_grad:
                    raise BadParameter(
                        "DPSGD: a gradient of a gradient (create_graph=True) reaches the weights past the "
                        "layers' outputs, where it is "
                        "not seen. Use a loss "
                        "without it, or compute it inside `with private.paused()`."
                    )
                if len(g) != len(kept[0]):
                    raise BadParameter(
                        f"DPSGD: layer {layer.name!r} takes {len(kept[0])} rows and gives {len(g)}; "
                        "examples cannot be told apart behind "
                        f"it. Keep "
                        "the batch on the first axis (batch_first=True)."
                    )
                task = torch._C._current_graph_task_id()
                if self._task not in (None, task):
                    raise BadParameter(
                        "DPSGD: a second backward pass in one step; an example that is looked at twice may "
                        "move the sum by twice the "
                        "clipping norm. Add the losses and call backward once; for gradients of many "
                        "batches use a larger batch_size "
                        "with micro_batch."
                    )
                self._task = task
                self.short = self.short or g.dtype in HALF
                self._pieces.setdefault(i, []).append(Piece(tuple(map(_full, kept)), _full(g.detach())))

            first.register_hook(arrived)
            return (first, *out[1:]) if isinstance(out, tuple) else first

        return hook

    # what a pass leaves -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Clip and add up what the last backward pass left."""
        pieces = self.take_pieces()
        if pieces:
            with torch.no_grad(), self.paused(), _full_precision(pieces):  # torch.func runs layers again
                if self.inspect(pieces):
                    self._add(pieces)

    def take_pieces(self) -> Pieces:
        """What the last backward pass left, which is then forgotten."""
        pieces, self._pieces, self._task = self._pieces, {}, None
        return pieces

    def sum_unclipped(self, pieces: Pieces) -> dict[int, Tensor]:
        """The sums of these gradients, not clipped, by the parameter's id."""
        out: dict[int, Tensor] = {}
        for i, uses in pieces.items():
            layer = self.layers[i]
            square, kept = layer.squares(uses)
            for name, total in layer.total(uses, kept, torch.ones_like(square)).items():
                at = id(layer.mine[name])
                out[at] = out[at] + total if at in out else total
        return out

    def _add(self, pieces: Pieces) -> None:
        rows = {len(p.g) for uses in pieces.values() for p in uses}
        if len(rows) != 1:
            raise BadParameter(
                f"DPSGD: layers saw batches of {sorted(rows)} rows in one backward pass; which rows are one "
                "example's cannot be told. "
                f"Give every layer "
                "one row an example, or call backward once for each batch."
            )
        n = rows.pop()
        self.after(n)
        if n == 0:
            return
        scale = (
            float(n) if self.mean else 1.0
        )  # a mean loss has divided each example's gradient by the rows that happen to be there
        which = sorted(pieces)
        squares = torch.zeros(
            max(self.group) + 1, n, dtype=torch.float64, device=pieces[which[0]][0].g.device
        )
        kept: dict[int, Any] = {}
        shared: dict[int, Tensor] = {}  # per-example gradients of parameters that several layers share
        for i in which:
            if i in self.tied:
                for k, v in self.layers[i].each(pieces[i]).items():
                    at = id(self.layers[i].mine[k])
                    shared[at] = shared[at] + v if at in shared else v
                continue
            square, kept[i] = self.layers[i].squares(pieces[i])
            squares[self.group[i]] += square
        for v in shared.values():
            squares[self.group[min(self.tied)]] += squared(v)
        norms = squares.sqrt() * scale
        c = torch.ones_like(norms) if self.public else self.factors(norms)
        bad = ~(norms <= LARGEST).all(0)
        if bool(bad.any()):  # such an example says nothing that is bounded, so it says nothing
            c[:, bad] = 0
            pieces = {
                i: [Piece(tuple(_zeroed(x, bad) for x in p.inputs), _zeroed(p.g, bad)) for p in uses]
                for i, uses in pieces.items()
            }
            kept = {i: self.layers[i].squares(pieces[i])[1] for i in kept}
            shared = {k: _zeroed(v, bad) for k, v in shared.items()}
        c = c * scale
        for i, k in kept.items():
            for name, total in self.layers[i].total(pieces[i], k, c[self.group[i]]).items():
                self._keep(id(self.layers[i].mine[name]), total)
        for at, v in shared.items():
            self._keep(at, (c[self.group[min(self.tied)]].to(v.dtype) @ v.reshape(n, -1)).view(v.shape[1:]))

    def _keep(self, at: int, total: Tensor) -> None:
        self.sums[at] = self.sums[at] + total if at in self.sums else total

    def take(self) -> list[Tensor]:
        """The sums since the last call, one for each of `parameters`."""
        self.flush()
        out = [
            self.sums[id(p)] if id(p) in self.sums else torch.zeros_like(p, requires_grad=False)
            for p in self.parameters
        ]
        self.sums = {}
        return out

    def drop(self) -> None:
        """Forget what was summed, and what was seen but not yet summed."""
        self.sums = {}
        self.take_pieces()

    @property
    def looped(self) -> dict[str, str]:
        """Layers whose examples go one by one, and why."""
        return {
            layer.name or "the model": layer.looped
            for layer in self.layers
            if isinstance(layer, Functional) and layer.looped
        }


def _full(x: Any) -> Any:
    """In float32, where autocast made it shorter."""
    return x.float() if isinstance(x, Tensor) and x.dtype in HALF else x


@contextmanager
def _full_precision(pieces: Pieces) -> Iterator[None]:
    """Products in float32 itself: under autocast, TF32 or bfloat16 a clipped gradient would round to more
    than its bound.
    """
    device = next(iter(pieces.values()))[0].g.device.type
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _frozen(name: str, layer: nn.Module) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any) -> None:
        if module is layer and module.training and torch.is_grad_enabled():
            raise BadParameter(
                f"DPSGD: {name!r} ({type(module).__name__}) was in evaluation mode at attach and is now in "
                "training mode, in which it mixes the "
                "examples of a batch. Call .eval() on it after model.train()."
            )

    return hook


def _zeroed(x: Any, bad: Tensor) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return torch.where(bad.view(-1, *[1] * (x.dim() - 1)), 0, x)


def flat(clip: float) -> Callable[[Tensor], Tensor]:
    """min(1, C/‖g‖): Abadi et al., CCS 2016, Algorithm 1. A group of layers has C/√groups, so that all of
    them together have C.
    """

    def factors(norms: Tensor) -> Tensor:
        bound = clip / math.sqrt(len(norms)) * SLACK
        return (bound / norms.clamp(min=1e-30)).clamp(max=1)

    return factors


def automatic(clip: float, gamma: float) -> Callable[[Tensor], Tensor]:
    """C/(‖g‖ + γ): Bu, Wang, Zha, Karypis: *Automatic Clipping*, NeurIPS 2023, AUTO-S; every gradient comes
    out nearly C long, so C is no longer tuned.
    """

    def factors(norms: Tensor) -> Tensor:
        return clip / math.sqrt(len(norms)) * SLACK / (norms + gamma)

    return factors


def unclipped(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)
