"""Per-example gradients of single layers: squared norms and weighted sums.

    a   input of the layer, stored by the forward pass                 [B, …]
    g   gradient of the loss at its output, from one backward pass     [B, …]

I. Goodfellow: *Efficient Per-Example Gradient Computations*, 2015 (linear layers); X. Li, F. Tramèr, P.
Liang, T. Hashimoto: *Large Language Models Can Be Strong Differentially Private Learners*, ICLR 2022 (ghost
norms with a time axis, embeddings); Z. Bu, J. Mao, S. Xu: *Scalable and Efficient Training of Large
Convolutional Neural Networks with Differential Privacy*, NeurIPS 2022 (convolutions, and the choice of
method); Z. Bu, Y.-X. Wang, S. Dai, G. Karypis: *Differentially Private Optimization on Large Model at Small
Cost*, ICML 2023 (book-keeping: no second backward pass).

A layer that is used several times in one pass (a recurrent one, a critic on two batches) has several pairs
(a, g) of the same examples. Its gradient is a sum over positions, so they are concatenated along the
positions.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import BadParameter
from .norms import Places, factor_squared, squared, wide_squares, wide_total

CACHE = 1 << 21  # bytes of a convolution's patches at a time: fits a core's cache, measured twice as fast
# numbers of one example's gradient that may be stored until it is clipped; Gram matrices need less memory but
# more time
LIGHT = 1 << 14


class LayerUse(NamedTuple):
    """One use of a layer in one pass: its inputs and the gradient at its output."""

    inputs: tuple[Any, ...]
    g: Tensor


LayerUses = dict[int, list[LayerUse]]  # of one backward pass, by layer index


class LayerRule(ABC):
    """The rule for one kind of layer.

    `per_example` returns the per-example gradients; `squares` and `total` need not compute them.
    """

    def __init__(self, name: str, module: nn.Module):
        self.name, self.module = name, module
        self.parameters = {k: p for k, p in module.named_parameters(recurse=False) if p.requires_grad}

    @abstractmethod
    def per_example(self, uses: list[LayerUse]) -> dict[str, Tensor]:
        """Return per-example gradients [B, …] by parameter name."""

    def squares(self, uses: list[LayerUse]) -> tuple[Tensor, Any]:
        """Return (squared norm of each example's gradient [B], intermediate results for `total`)."""
        gradients = self.per_example(uses)
        return torch.stack([squared(v) for v in gradients.values()]).sum(0), gradients

    def total(self, uses: list[LayerUse], saved: Any, c: Tensor) -> dict[str, Tensor]:
        """Return Σ c_i · gradient_i by parameter name."""
        return {k: _weighted(c, v) for k, v in saved.items()}


def _weighted(c: Tensor, v: Tensor) -> Tensor:
    return (c.to(v.dtype) @ v.reshape(len(v), -1)).view(v.shape[1:])


def _is_small(places: int, numbers: int) -> bool:
    """Return whether to compute per-example gradients instead of their Gram matrices.

    Bu, Mao, Xu 2022, except that small gradients are always computed.
    """
    return numbers <= max(LIGHT, 2 * places * places)


class LinearRule(LayerRule):
    """The weight gradient is Σ over positions t of g_t a_tᵀ.

    With one position it is an outer product, whose norm is the product of the norms.
    """

    def _rows(self, uses: list[LayerUse]) -> tuple[Tensor, Tensor]:
        """Return a [B, T, d] and g [B, T, p]."""
        a = [p.inputs[0].reshape(len(p.g), -1, p.inputs[0].shape[-1]) for p in uses]
        g = [p.g.reshape(len(p.g), -1, p.g.shape[-1]) for p in uses]
        return (a[0], g[0]) if len(a) == 1 else (torch.cat(a, 1), torch.cat(g, 1))

    def squares(self, uses: list[LayerUse]) -> tuple[Tensor, Any]:
        a, g = self._rows(uses)
        if a.shape[1] == 1:
            of_g = factor_squared(g)
            out = factor_squared(a) * of_g if "weight" in self.parameters else torch.zeros_like(of_g)
            return (out + of_g if "bias" in self.parameters else out), (a, g, None)
        if "weight" not in self.parameters or _is_small(a.shape[1], a.shape[2] * g.shape[2]):
            return super().squares(uses)
        out, wide = wide_squares(lambda i, j: (a[i:j], g[i:j]), len(g), a.shape[1], a.shape[2] + g.shape[2])
        return (out + squared(g.sum(1)) if "bias" in self.parameters else out), (a, g, wide)

    def total(self, uses: list[LayerUse], saved: Any, c: Tensor) -> dict[str, Tensor]:
        if isinstance(saved, dict):
            return super().total(uses, saved, c)
        a, g, wide = saved
        if wide is not None:
            out = {"weight": wide_total(lambda i, j: (a[i:j], g[i:j]), wide, c, a.shape[1])}
            return {**out, "bias": _weighted(c, g.sum(1))} if "bias" in self.parameters else out
        scaled = g[:, 0] * c.to(g.dtype)[:, None]
        out = {"weight": scaled.mT @ a[:, 0]} if "weight" in self.parameters else {}
        return {**out, "bias": scaled.sum(0)} if "bias" in self.parameters else out

    def per_example(self, uses: list[LayerUse]) -> dict[str, Tensor]:
        a, g = self._rows(uses)
        out = {}
        if "weight" in self.parameters:
            out["weight"] = torch.bmm(g.mT, a).reshape(len(g), *self.parameters["weight"].shape)
        if "bias" in self.parameters:
            out["bias"] = g.sum(1)
        return out


class ConvRule(LayerRule):
    """Conv1d and Conv2d.

    Per-example gradients of a small filter are computed a few images at a time, while their patches are in
    the cache. A large filter on few positions is a wide layer (`norms.py`) whose positions are those of its
    output.
    """

    module: Any

    def _patches(self, x: Tensor) -> Tensor:
        """Return the input patch of each output position, [B, d·groups, L].

        A strided view copied once, which is twice as fast as torch's unfold.
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

    def _filter_gradients(self, use: LayerUse) -> Tensor:
        """Return per-example gradients of the filter, [B, out, d]."""
        x, g, k = use.inputs[0], use.g.flatten(2), self.module.groups
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

    def per_example(self, uses: list[LayerUse]) -> dict[str, Tensor]:
        out = {}
        if "weight" in self.parameters:
            parts = [self._filter_gradients(p) for p in uses]
            total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
            out["weight"] = total.view(-1, *self.module.weight.shape)
        if "bias" in self.parameters:
            out["bias"] = torch.stack([p.g.flatten(2).sum(2) for p in uses]).sum(0)
        return out

    def _places(self, use: LayerUse) -> Places:
        x, g = use.inputs[0], use.g.flatten(2)
        return lambda i, j: (self._patches(x[i:j]).mT, g[i:j].mT)

    def squares(self, uses: list[LayerUse]) -> tuple[Tensor, Any]:
        if (
            len(uses) > 1
            or self.module.groups > 1
            or _is_small(uses[0].g[0, 0].numel(), self.module.weight.numel())
            or "weight" not in self.parameters
        ):
            return super().squares(uses)
        g, w = uses[0].g.flatten(2), self.module.weight
        out, wide = wide_squares(self._places(uses[0]), len(g), g.shape[2], w.shape[0] + w[0].numel())
        return (out + squared(g.sum(2)) if "bias" in self.parameters else out), wide

    def total(self, uses: list[LayerUse], saved: Any, c: Tensor) -> dict[str, Tensor]:
        if isinstance(saved, dict):
            return super().total(uses, saved, c)
        g = uses[0].g.flatten(2)
        out = {
            "weight": wide_total(self._places(uses[0]), saved, c, g.shape[2]).view(self.module.weight.shape)
        }
        return {**out, "bias": _weighted(c, g.sum(2))} if "bias" in self.parameters else out


class EmbeddingRule(LayerRule):
    """Embeddings: the gradient of a token is summed over its positions."""

    module: nn.Embedding

    def __init__(self, name: str, module: nn.Embedding):
        super().__init__(name, module)
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise BadParameter(
                f"DPSGD: the embedding {name!r} uses max_norm, scale_grad_by_freq or sparse, for which "
                "per-example gradients are not available. Create it without them."
            )

    def _rows(self, uses: list[LayerUse]) -> tuple[Tensor, Tensor]:
        index = torch.cat([p.inputs[0].reshape(len(p.g), -1) for p in uses], 1)
        g = torch.cat([p.g.reshape(len(p.g), -1, p.g.shape[-1]) for p in uses], 1)
        if self.module.padding_idx is not None:
            g = g * (index != self.module.padding_idx)[..., None]
        return index, g

    def squares(self, uses: list[LayerUse]) -> tuple[Tensor, Any]:
        index, g = self._rows(uses)
        if index.shape[1] == 1:
            return squared(g), (index, g)
        same = index[:, :, None] == index[:, None, :]
        # a repeated token is summed at its first position before squaring
        first = ~torch.tril(same, -1).any(2)
        g = torch.bmm(same.to(g.dtype), g) * first[..., None]
        return squared(g), (index, g)

    def total(self, uses: list[LayerUse], saved: Any, c: Tensor) -> dict[str, Tensor]:
        index, g = saved
        return {
            "weight": torch.zeros_like(self.module.weight).index_add_(
                0, index.flatten(), (g * c.to(g.dtype)[:, None, None]).flatten(0, 1)
            )
        }

    def per_example(self, uses: list[LayerUse]) -> dict[str, Tensor]:
        index, g = self._rows(uses)
        rows, width = self.module.weight.shape
        out = torch.zeros(len(g) * rows, width, dtype=g.dtype, device=g.device)
        place = index + rows * torch.arange(len(g), device=index.device)[:, None]
        return {"weight": out.index_add_(0, place.flatten(), g.flatten(0, 1)).view(len(g), rows, width)}


class NormRule(LayerRule):
    """LayerNorm, RMSNorm, GroupNorm and InstanceNorm.

    Only scale and shift are trainable, so per-example gradients are small.
    """

    module: Any

    def per_example(self, uses: list[LayerUse]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for (x, *_), g in uses:
            if "weight" in self.parameters:
                out["weight"] = out.get("weight", 0) + self._reduce(g * self._normal(x))
            if "bias" in self.parameters:
                out["bias"] = out.get("bias", 0) + self._reduce(g)
        return out

    def _normal(self, x: Tensor) -> Tensor:
        m = self.module
        if isinstance(m, nn.LayerNorm):
            return F.layer_norm(x, m.normalized_shape, eps=m.eps)
        if isinstance(m, nn.RMSNorm):
            return F.rms_norm(x, m.normalized_shape, eps=m.eps)
        if isinstance(m, nn.GroupNorm):
            return F.group_norm(x, m.num_groups, eps=m.eps)
        return F.instance_norm(x, eps=m.eps)

    def _reduce(self, g: Tensor) -> Tensor:
        if isinstance(self.module, nn.LayerNorm | nn.RMSNorm):
            return g.reshape(len(g), -1, *g.shape[g.dim() - len(self.module.normalized_shape) :]).sum(1)
        return g.flatten(2).sum(2) if g.dim() > 2 else g


class FunctionalRule(LayerRule):
    """Any other layer, or a whole model, differentiated per example by torch.func.

    Examples are processed one by one where vmap is not supported.
    """

    def __init__(self, name: str, module: nn.Module):
        super().__init__(name, module)
        self.parameters = {k: p for k, p in module.named_parameters() if p.requires_grad}
        self.looped = ""  # why examples are processed one by one, if they are
        for inner, m in module.named_modules():
            if (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0) or (
                isinstance(getattr(m, "dropout", None), float) and m.dropout > 0
            ):
                raise BadParameter(
                    f"DPSGD: {'.'.join(filter(None, (name, inner)))!r} has dropout inside a layer that is "
                    "run again for each example, with different random numbers. Set its dropout to 0, or "
                    "use a separate dropout layer."
                )

    def per_example(self, uses: list[LayerUse]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for p in uses:
            for k, v in self._use_gradients(p).items():
                out[k] = out[k] + v if k in out else v
        return out

    def _use_gradients(self, use: LayerUse) -> dict[str, Tensor]:
        parameters = {k: p.detach() for k, p in self.parameters.items()}

        def one_example(g: Tensor, *inputs: Any) -> dict[str, Tensor]:
            def loss(parameters: dict[str, Tensor]) -> Tensor:
                out = torch.func.functional_call(
                    self.module, parameters, tuple(x[None] if isinstance(x, Tensor) else x for x in inputs)
                )
                first: Tensor = out[0] if isinstance(out, tuple) else out
                return (first[0] * g).sum()

            gradients: dict[str, Tensor] = torch.func.grad(loss)(parameters)
            return gradients

        if not self.looped:
            dims = (0, *(0 if isinstance(x, Tensor) else None for x in use.inputs))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # torch warns where it would loop, slower than below
                    return torch.vmap(one_example, in_dims=dims, randomness="error")(use.g, *use.inputs)
            except (RuntimeError, UserWarning) as error:
                self.looped = str(error).strip().splitlines()[0]
        each = [
            one_example(use.g[i], *(x[i] if isinstance(x, Tensor) else x for x in use.inputs))
            for i in range(len(use.g))
        ]
        return {k: torch.stack([e[k] for e in each]) for k in parameters}


KINDS: dict[type[nn.Module], type[LayerRule]] = {
    nn.Linear: LinearRule,
    nn.Conv1d: ConvRule,
    nn.Conv2d: ConvRule,
    nn.Embedding: EmbeddingRule,
    nn.LayerNorm: NormRule,
    nn.RMSNorm: NormRule,
    nn.GroupNorm: NormRule,
    nn.InstanceNorm1d: NormRule,
    nn.InstanceNorm2d: NormRule,
    nn.InstanceNorm3d: NormRule,
}


def find_layers(model: nn.Module, method: str = "auto") -> list[LayerRule]:
    """Return the rule of every trainable layer.

    A module with own parameters but without a rule becomes one layer with all its children.
    """
    if "_orig_mod" in model._modules or any(m._compiled_call_impl is not None for m in model.modules()):
        raise BadParameter(
            "DPSGD: the model is compiled (torch.compile), so the inputs of its layers cannot be observed. "
            "Attach the uncompiled model, and compile it after attach."
        )
    for name, module in model.named_modules():
        if uses_batch_statistics(module) and (module.training or module.running_mean is None):
            raise BadParameter(
                f"DPSGD: {name or 'the model'!r} is a {type(module).__name__}, which mixes the examples of a "
                "batch or keeps statistics of them, so there are no per-example gradients. Replace it by "
                "nn.GroupNorm(min(32, channels), channels); tacit.private.without_batch_norm(model) replaces "
                "all. A layer whose statistics come from public data may stay in evaluation mode (.eval() "
                "before attach)."
            )
    rules: list[LayerRule] = []

    def walk(name: str, module: nn.Module) -> None:
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        kind = KINDS.get(type(module)) if _has_rule(module) else None
        if method == "functional" or (own and kind is None):
            if any(p.requires_grad for p in module.parameters()):
                rules.append(FunctionalRule(name, module))
        elif own:
            assert kind is not None
            rules.append(kind(name, module))
        else:
            for child_name, child in module.named_children():
                walk(f"{name}.{child_name}" if name else child_name, child)

    walk("", model)
    # a module used at two places is one layer
    unique = list({id(layer.module): layer for layer in rules}.values())
    if not unique:
        raise BadParameter(
            "DPSGD: the model has no trainable parameter (requires_grad=True). Give a model that has one."
        )
    return unique


def uses_batch_statistics(module: nn.Module) -> TypeGuard[nn.BatchNorm1d]:
    """Return whether a module normalizes by batch statistics, or keeps them."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or (
        isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    )


def _has_rule(module: nn.Module) -> bool:
    """Return whether the rule of its kind applies: no parametrization, only zero padding."""
    if is_parametrized(module):
        return False
    return not isinstance(module, nn.Conv1d | nn.Conv2d) or (
        module.padding_mode == "zeros" and not isinstance(module.padding, str)
    )


def without_batch_norm(model: nn.Module) -> nn.Module:
    """Replace every batch norm by a group norm of up to 32 groups, in place.

    The statistics of the batch norms are dropped.
    """
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            groups = max(k for k in range(1, 33) if child.num_features % k == 0)
            setattr(model, name, nn.GroupNorm(groups, child.num_features, eps=child.eps, affine=child.affine))
        else:
            without_batch_norm(child)
    return model
