"""What one layer knows about its per-example gradients: their squared norms, and their weighted sum, from the
same two tensors.

    a   what went into the layer, kept by the forward pass            [B, …]
    g   the loss's gradient at what came out, from one backward pass  [B, …]

Goodfellow: *Efficient Per-Example Gradient Computations*, 2015 (linear layers); Li, Tramèr, Liang, Hashimoto:
*Large Language Models Can Be Strong Differentially Private Learners*, ICLR 2022 (ghost norms with a time
axis, embeddings); Bu, Mao, Xu: *Scalable and Efficient Training of Large Convolutional Neural Networks with
Differential Privacy*, NeurIPS 2022 (convolutions, and when to prefer which); Bu, Wang, Dai, Karypis:
*Differentially Private Optimization on Large Model at Small Cost*, ICML 2023 (book-keeping: no second
backward pass).

A layer that is used several times in one pass (a recurrent one, a critic on two batches) has several pairs
(a, g) of the same examples: as its gradient is a sum over places, they are laid one after the other along the
places.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadParameter
from .norms import Places, factor_squared, squared, wide_squares, wide_total

CACHE = (
    1 << 21
    # bytes of patches of a convolution at a time, what a core's cache holds: measured, half the time of all
    # at
    # once
)
LIGHT = (
    1 << 14
    # numbers in one example's gradient that may be kept until it is clipped; Gram matrices need less room but
    # more time
)


class Piece(NamedTuple):
    """One use of a layer in one pass."""

    inputs: tuple[Any, ...]
    g: Tensor


Pieces = dict[int, list[Piece]]  # what a backward pass leaves, by the number of the layer


class Layer(ABC):
    """The rule of a kind of layer. `each` gives the per-example gradients themselves; `squares` and `total`
    need not make them.
    """

    def __init__(self, name: str, module: nn.Module):
        self.name, self.module = name, module
        self.mine = {k: p for k, p in module.named_parameters(recurse=False) if p.requires_grad}

    @abstractmethod
    def each(self, pieces: list[Piece]) -> dict[str, Tensor]:
        """Per-example gradients [B, …], by parameter."""

    def squares(self, pieces: list[Piece]) -> tuple[Tensor, Any]:
        """(squared norm of each example's gradient [B], what `total` may use again)."""
        made = self.each(pieces)
        return _squares(made), made

    def total(self, pieces: list[Piece], kept: Any, c: Tensor) -> dict[str, Tensor]:
        """Σ c_i · gradient_i, by parameter."""
        return {k: _weighted(c, v) for k, v in kept.items()}


def _squares(made: dict[str, Tensor]) -> Tensor:
    return torch.stack([squared(v) for v in made.values()]).sum(0)


def _weighted(c: Tensor, v: Tensor) -> Tensor:
    return (c.to(v.dtype) @ v.reshape(len(v), -1)).view(v.shape[1:])


def _light(places: int, numbers: int) -> bool:
    """Whether per-example gradients are made, in place of their Gram matrices: Bu, Mao, Xu 2022, but for the
    small ones.
    """
    return numbers <= max(LIGHT, 2 * places * places)


class Linear(Layer):
    """Its weight gradient is Σ over positions t of g_t a_tᵀ. With one position it is an outer product, whose
    norm is the product of the norms.
    """

    def rows(self, pieces: list[Piece]) -> tuple[Tensor, Tensor]:
        """a [B, T, d] and g [B, T, p]."""
        a = [p.inputs[0].reshape(len(p.g), -1, p.inputs[0].shape[-1]) for p in pieces]
        g = [p.g.reshape(len(p.g), -1, p.g.shape[-1]) for p in pieces]
        return (a[0], g[0]) if len(a) == 1 else (torch.cat(a, 1), torch.cat(g, 1))

    def squares(self, pieces: list[Piece]) -> tuple[Tensor, Any]:
        a, g = self.rows(pieces)
        if a.shape[1] == 1:
            of_g = factor_squared(g)
            out = factor_squared(a) * of_g if "weight" in self.mine else torch.zeros_like(of_g)
            return (out + of_g if "bias" in self.mine else out), (a, g, None)
        if "weight" not in self.mine or _light(a.shape[1], a.shape[2] * g.shape[2]):
            return super().squares(pieces)
        out, wide = wide_squares(lambda i, j: (a[i:j], g[i:j]), len(g), a.shape[1], a.shape[2] + g.shape[2])
        return (out + squared(g.sum(1)) if "bias" in self.mine else out), (a, g, wide)

    def total(self, pieces: list[Piece], kept: Any, c: Tensor) -> dict[str, Tensor]:
        if isinstance(kept, dict):
            return super().total(pieces, kept, c)
        a, g, wide = kept
        if wide is not None:
            out = {"weight": wide_total(lambda i, j: (a[i:j], g[i:j]), wide, c, a.shape[1])}
            return {**out, "bias": _weighted(c, g.sum(1))} if "bias" in self.mine else out
        scaled = g[:, 0] * c.to(g.dtype)[:, None]
        out = {"weight": scaled.mT @ a[:, 0]} if "weight" in self.mine else {}
        return {**out, "bias": scaled.sum(0)} if "bias" in self.mine else out

    def each(self, pieces: list[Piece]) -> dict[str, Tensor]:
        a, g = self.rows(pieces)
        out = {}
        if "weight" in self.mine:
            out["weight"] = torch.bmm(g.mT, a).reshape(len(g), *self.mine["weight"].shape)
        if "bias" in self.mine:
            out["bias"] = g.sum(1)
        return out


class Conv(Layer):
    """Conv1d and Conv2d. Per-example gradients of a small filter are made a few images at a time, while their
    patches are in the cache; a large one on few places is a wide layer (`norms.py`) whose positions are the
    places of its output.
    """

    module: Any

    def _patches(self, x: Tensor) -> Tensor:
        """[B, d·groups, L]: what each place of the output looked at. A view of the image, copied once:
        torch's own unfold takes twice as long.
        """
        m = self.module
        if x.dim() == 3:  # Conv1d is a Conv2d one pixel high
            x = x.unsqueeze(2)
        kh, sh, ph, dh = (
            (1, 1, 0, 1)
            if len(m.kernel_size) == 1
            else (m.kernel_size[0], m.stride[0], m.padding[0], m.dilation[0])
        )
        kw, sw, pw, dw = m.kernel_size[-1], m.stride[-1], m.padding[-1], m.dilation[-1]
        x = F.pad(x, (pw, pw, ph, ph)) if ph or pw else x
        high, wide = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1, (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
        b, c, h, w = x.stride()
        view = x.as_strided(
            (len(x), x.shape[1], kh, kw, high, wide),
            (b, c, h * dh, w * dw, h * sh, w * sw),
            x.storage_offset(),
        )
        return view.reshape(len(x), -1, high * wide)

    def _small(self, g: Tensor) -> bool:
        w = self.module.weight
        return _light(g[0, 0].numel(), w.numel())

    def _made(self, piece: Piece) -> Tensor:
        """[B, out, d] per-example gradients of the filter."""
        x, g, k = piece.inputs[0], piece.g.flatten(2), self.module.groups
        w = self.module.weight
        step = max(1, CACHE // max(1, 4 * k * w[0].numel() * g.shape[2]))
        out = torch.empty(len(g), w.shape[0], w[0].numel(), dtype=g.dtype, device=g.device)
        for i in range(0, len(g), step):
            a, h = self._patches(x[i : i + step]), g[i : i + step]
            n = len(h)
            torch.bmm(
                h.reshape(n * k, -1, h.shape[2]),
                a.reshape(n * k, -1, a.shape[2]).mT,
                out=out[i : i + n].view(n * k, -1, out.shape[2]),
            )
        return out

    def each(self, pieces: list[Piece]) -> dict[str, Tensor]:
        out = {}
        if "weight" in self.mine:
            made = [self._made(p) for p in pieces]
            out["weight"] = (
                torch.stack(made).sum(0).reshape(len(made[0]), *self.module.weight.shape)
                if len(made) > 1
                else made[0].view(-1, *self.module.weight.shape)
            )
        if "bias" in self.mine:
            out["bias"] = torch.stack([p.g.flatten(2).sum(2) for p in pieces]).sum(0)
        return out

    def _places(self, piece: Piece) -> Places:
        x, g = piece.inputs[0], piece.g.flatten(2)
        return lambda i, j: (self._patches(x[i:j]).mT, g[i:j].mT)

    def squares(self, pieces: list[Piece]) -> tuple[Tensor, Any]:
        if len(pieces) > 1 or self.module.groups > 1 or self._small(pieces[0].g) or "weight" not in self.mine:
            return super().squares(pieces)
        g, w = pieces[0].g.flatten(2), self.module.weight
        out, wide = wide_squares(self._places(pieces[0]), len(g), g.shape[2], w.shape[0] + w[0].numel())
        return (out + squared(g.sum(2)) if "bias" in self.mine else out), wide

    def total(self, pieces: list[Piece], kept: Any, c: Tensor) -> dict[str, Tensor]:
        if isinstance(kept, dict):
            return super().total(pieces, kept, c)
        g = pieces[0].g.flatten(2)
        out = {
            "weight": wide_total(self._places(pieces[0]), kept, c, g.shape[2]).view(self.module.weight.shape)
        }
        return {**out, "bias": _weighted(c, g.sum(2))} if "bias" in self.mine else out


class Embedding(Layer):
    module: nn.Embedding

    def __init__(self, name: str, module: nn.Embedding):
        super().__init__(name, module)
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise BadParameter(
                f"DPSGD: the embedding {name!r} has max_norm, scale_grad_by_freq or sparse, by which one "
                "row's gradient depends on the "
                f"rows beside "
                "it or which its norm cannot see. Make it without them."
            )

    def _rows(self, pieces: list[Piece]) -> tuple[Tensor, Tensor]:
        index = torch.cat([p.inputs[0].reshape(len(p.g), -1) for p in pieces], 1)
        g = torch.cat([p.g.reshape(len(p.g), -1, p.g.shape[-1]) for p in pieces], 1)
        if self.module.padding_idx is not None:
            g = g * (index != self.module.padding_idx)[..., None]
        return index, g

    def squares(self, pieces: list[Piece]) -> tuple[Tensor, Any]:
        index, g = self._rows(pieces)
        if index.shape[1] == 1:
            return squared(g), (index, g)
        same = index[:, :, None] == index[:, None, :]
        first = ~torch.tril(same, -1).any(
            2
        )  # a token that comes twice is added up at its first position, before it is squared
        g = torch.bmm(same.to(g.dtype), g) * first[..., None]
        return squared(g), (index, g)

    def total(self, pieces: list[Piece], kept: Any, c: Tensor) -> dict[str, Tensor]:
        index, g = kept
        scaled = (g * c.to(g.dtype)[:, None, None]).flatten(0, 1)
        return {"weight": torch.zeros_like(self.module.weight).index_add_(0, index.flatten(), scaled)}

    def each(self, pieces: list[Piece]) -> dict[str, Tensor]:
        index, g = self._rows(pieces)
        rows, width = self.module.weight.shape
        out = torch.zeros(len(g) * rows, width, dtype=g.dtype, device=g.device)
        place = index + rows * torch.arange(len(g), device=index.device)[:, None]
        return {"weight": out.index_add_(0, place.flatten(), g.flatten(0, 1)).view(len(g), rows, width)}


class Norm(Layer):
    """LayerNorm, RMSNorm, GroupNorm and InstanceNorm: scale and shift alone are learnt, so per-example
    gradients are small.
    """

    module: Any

    def each(self, pieces: list[Piece]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for (x, *_), g in pieces:
            if "weight" in self.mine:
                out["weight"] = out.get("weight", 0) + self._reduce(g * self._normal(x))
            if "bias" in self.mine:
                out["bias"] = out.get("bias", 0) + self._reduce(g)
        return out

    def _normal(self, x: Tensor) -> Tensor:
        m = self.module
        if isinstance(m, nn.LayerNorm):
            return F.layer_norm(x, m.normalized_shape, eps=m.eps)
        if isinstance(m, nn.RMSNorm):
            return F.rms_norm(x, m.normalized_shape, eps=m.eps)
        return (
            F.group_norm(x, m.num_groups, eps=m.eps)
            if isinstance(m, nn.GroupNorm)
            else F.instance_norm(x, eps=m.eps)
        )

    def _reduce(self, g: Tensor) -> Tensor:
        if isinstance(self.module, nn.LayerNorm | nn.RMSNorm):
            kept = len(self.module.normalized_shape)
            return g.reshape(len(g), -1, *g.shape[g.dim() - kept :]).sum(1)
        return g.flatten(2).sum(2) if g.dim() > 2 else g


class Functional(Layer):
    """Any other layer, or a whole model: its own program differentiated for each example by torch.func; where
    vmap cannot, example by example.
    """

    def __init__(self, name: str, module: nn.Module):
        super().__init__(name, module)
        self.mine = {k: p for k, p in module.named_parameters() if p.requires_grad}
        self.looped = ""  # why examples go one by one, where they do
        for inner, m in module.named_modules():
            if (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0) or (
                isinstance(getattr(m, "dropout", None), float) and m.dropout > 0
            ):
                raise BadParameter(
                    f"DPSGD: {'.'.join(filter(None, (name, inner)))!r} drops out, inside a layer that is "
                    "run again for each example, "
                    f"with other draws. Set "
                    "its dropout to 0, or put it outside, as a layer between layers."
                )

    def each(self, pieces: list[Piece]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for p in pieces:
            for k, v in self._one(p).items():
                out[k] = out[k] + v if k in out else v
        return out

    def _one(self, piece: Piece) -> dict[str, Tensor]:
        mine = {k: p.detach() for k, p in self.mine.items()}

        def of_one(g: Tensor, *inputs: Any) -> dict[str, Tensor]:
            def loss(mine: dict[str, Tensor]) -> Tensor:
                made = torch.func.functional_call(
                    self.module, mine, tuple(x[None] if isinstance(x, Tensor) else x for x in inputs)
                )
                return ((made[0] if isinstance(made, tuple) else made)[0] * g).sum()

            return torch.func.grad(loss)(mine)

        if not self.looped:
            dims = (0, *(0 if isinstance(x, Tensor) else None for x in piece.inputs))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "error"
                    )  # torch warns where it would silently loop, and then loops slower than we do
                    return torch.vmap(of_one, in_dims=dims, randomness="error")(piece.g, *piece.inputs)
            except (RuntimeError, UserWarning) as error:
                self.looped = str(error).strip().splitlines()[0]
        each = [
            of_one(piece.g[i], *(x[i] if isinstance(x, Tensor) else x for x in piece.inputs))
            for i in range(len(piece.g))
        ]
        return {k: torch.stack([e[k] for e in each]) for k in mine}


KINDS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv,
    nn.Conv2d: Conv,
    nn.Embedding: Embedding,
    nn.LayerNorm: Norm,
    nn.RMSNorm: Norm,
    nn.GroupNorm: Norm,
    nn.InstanceNorm1d: Norm,
    nn.InstanceNorm2d: Norm,
    nn.InstanceNorm3d: Norm,
}


def layers_of(model: nn.Module, method: str = "auto") -> list[Layer]:
    """The rule for every layer that learns; a module with parameters of its own that has no rule is one
    layer, with all that is in it.
    """
    if "_orig_mod" in model._modules or any(m._compiled_call_impl is not None for m in model.modules()):
        raise BadParameter(
            "DPSGD: the model is compiled (torch.compile), and what its layers see may not be followed. "
            "Attach the model itself, and "
            "compile it after attach."
        )
    for name, module in model.named_modules():
        if keeps_statistics(module) and (module.training or module.running_mean is None):
            raise BadParameter(
                f"DPSGD: {name or 'the model'!r} is a {type(module).__name__}, which mixes the examples of "
                "a batch or keeps statistics "
                f"of them: no "
                "gradient of one example is there to be clipped. Replace it by nn.GroupNorm(min(32, "
                "channels), channels); "
                "tacit.private.without_batch_norm(model) does so for all. One whose statistics come from "
                "public data may stay in "
                "evaluation mode (.eval() before attach)."
            )
    found: list[Layer] = []

    def walk(name: str, module: nn.Module) -> None:
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        kind = KINDS.get(type(module)) if _plain(module) else None
        if method == "functional" or (own and kind is None):
            if any(p.requires_grad for p in module.parameters()):
                found.append(Functional(name, module))
        elif own:
            assert kind is not None
            found.append(kind(name, module))
        else:
            for child_name, child in module.named_children():
                walk(f"{name}.{child_name}" if name else child_name, child)

    walk("", model)
    unique = list(
        {id(layer.module): layer for layer in found}.values()
    )  # a module that stands at two places is one layer
    if not unique:
        raise BadParameter(
            "DPSGD: the model has no parameter that learns (requires_grad=True), so there is nothing to "
            "train. Give one that has."
        )
    return unique


def keeps_statistics(module: nn.Module) -> TypeGuard[nn.BatchNorm1d]:
    """Whether it normalises by statistics of a batch, or keeps them."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or (
        isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    )


def _plain(module: nn.Module) -> bool:
    """Whether the rule of its kind holds: no parametrisation, no padding but zeros."""
    if hasattr(module, "parametrizations"):
        return False
    return not isinstance(module, nn.Conv1d | nn.Conv2d) or (
        module.padding_mode == "zeros" and not isinstance(module.padding, str)
    )


def without_batch_norm(model: nn.Module) -> nn.Module:
    """The model with every batch norm replaced by a group norm of up to 32 groups, in place; the statistics a
    batch norm had kept are dropped with it.
    """
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            groups = max(k for k in range(1, 33) if child.num_features % k == 0)
            setattr(model, name, nn.GroupNorm(groups, child.num_features, eps=child.eps, affine=child.affine))
        else:
            without_batch_norm(child)
    return model
