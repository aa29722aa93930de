"""Layers whose output is the same for a client alone, in a stack, and with padding in its batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class LocalStep(TorchFunctionMode):
    """Replace torch functions by versions that do not depend on how clients are run.

    Dropout masks are hashes of (key, call, position): the same alone, in a stack, and on any device. Batch
    norm uses the statistics of the live rows, so that padding changes nothing.

    With `patches`, convolutions are matrix products: a stack of clients with their own filters is a grouped
    convolution, which cuDNN runs group by group, while a batched product runs all at once. With few
    filters, copying the patches costs more than the product; then whole rows of the image are multiplied by
    a band matrix, with more arithmetic and a fifth of the copying.

    With `products`, attention is two matrix products and a softmax: the gradient of torch's fused kernels
    cannot be stacked.
    """

    def __init__(self, key: Tensor, live: Tensor, patches: bool = False, products: bool = False):
        super().__init__()
        self.key, self.live, self.patches, self.products = key, live, patches, products
        self.drops = self.norms = 0
        self.draws = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.dropout, torch.dropout):
            return self._drop(*args, **(kwargs or {}))
        if func in (F.dropout1d, F.dropout2d, F.dropout3d):
            return self._drop(*args, **{**(kwargs or {}), "whole_channels": True})
        if func is F.batch_norm:
            return self._norm(*args, **(kwargs or {}))
        if func is torch.conv2d and self.patches:
            return self._convolve(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            with self:  # it calls dropout and attention, which must be found here too
                return _multi_head_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool | None = None,
        whole_channels: bool = False,
    ) -> Tensor:
        self.drops += 1
        if not (training if train is None else train) or p == 0:
            return input
        shape = input.shape[:2] + (1,) * (input.dim() - 2) if whole_channels else input.shape
        place = torch.arange(math.prod(shape), device=input.device).view(shape)
        # an odd constant separates the calls, wrapped to int64
        call = (self.drops * 0x632BE59BD9B4E019 + 2**63) % 2**64 - 2**63
        h = place + self.key + call
        # MurmurHash3's 64-bit finalizer, in int64 arithmetic, which wraps
        for factor in (-0xAE502812AA7333, -0x3B314601E57A13AD, 1):
            h = (h ^ ((h >> 33) & 0x7FFFFFFF)) * factor
        keep = (h & 0xFFFFFF) >= int(p * 0x1000000)
        return input * keep.to(input.dtype) / max(1 - p, 1e-12)  # p = 1 drops everything

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if not self.products and not dropout_p:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:  # several heads of the query share one of the key
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            scores = (
                scores.masked_fill(~attn_mask, -torch.inf)
                if attn_mask.dtype == torch.bool
                else scores + attn_mask
            )
        return self._drop(torch.softmax(scores, -1), dropout_p) @ value

    def _norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        self.norms += 1
        # another length: the batch was folded into another axis, and the task does not use padding
        if not training or len(input) != len(self.live):
            with torch._C.DisableTorchFunction():
                return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        shape = (1, -1) + (1,) * (input.dim() - 2)
        live = self.live.view(-1, *[1] * (input.dim() - 1)).to(input.dtype)
        over = [d for d in range(input.dim()) if d != 1]
        n = live.sum() * (input[0, 0].numel())
        mean = (input * live).sum(over) / n
        centered = input - mean.view(shape)
        var = (centered**2 * live).sum(over) / n
        if running_mean is not None and running_var is not None:
            running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
            running_var.mul_(1 - momentum).add_(momentum * var.detach() * n / (n - 1).clamp(min=1))
        out = centered * torch.rsqrt(var + eps).view(shape)
        out = out if weight is None else out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)

    def _convolve(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        (sh, sw), (kh, kw) = _pair(stride), weight.shape[-2:]
        if groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str) or input.dim() != 4:
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        ph, pw = _pair(padding)
        if ph or pw:
            input = F.pad(input, (pw, pw, ph, ph))
        oh, ow = (input.shape[2] - kh) // sh + 1, (input.shape[3] - kw) // sw + 1
        if len(weight) <= FEW and (sh, sw) == (1, 1):
            strips = apply_map(input, _strips, _add_strips, input.shape, kh)
            out = torch.matmul(strips, _bands(weight, input.shape[3]).t())  # [B·oh, filters·ow]
            out = out.view(len(input), oh, len(weight), ow)
            return (out if bias is None else out + bias[:, None]).transpose(1, 2)
        patches = apply_map(input, _columns, _images, input.shape, (kh, kw), (sh, sw))
        out = torch.matmul(weight.reshape(len(weight), -1), patches)
        out = out if bias is None else out + bias[:, None]
        return out.view(len(weight), len(input), oh, ow).transpose(0, 1)


def _unhooked(function: Any) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not hand itself over to an active mode; what it calls
    does.
    """
    names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


_multi_head_attention = _unhooked(F.multi_head_attention_forward)


class Characters(nn.Module):
    """An LSTM that predicts the next token: after the last one, or after `every` one."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, every: bool = False):
        super().__init__()
        self.built, self.every = (vocabulary, embedding, hidden, layers, every), every
        self.embed = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():  # rounding pixels in [0, 1] to tokens 0 and 1 would go unnoticed
            raise ValueError(
                "the model reads integer tokens (from_arrays(…, tokens=True)), and these rows contain "
                "fractions"
            )
        h = self.lstm(self.embed(x.long()))[0]
        logits: Tensor = self.out(h if self.every else h[:, -1])
        return logits


class CropFlip(nn.Module):
    """Random crop and horizontal flip of training images, as is usual for CIFAR; nothing in evaluation mode.

    Images are shifted by up to `crop` pixels in each direction, with reflection padding. The random bits
    come from dropout, which the engines hash from the run's seed: the same alone, in a stack, in a
    deployment and after resuming.
    """

    COIN = 16  # random bits for one shift: the probability of a value is off by less than 1/65,536

    def __init__(self, crop: int = 4, flip: bool = True):
        super().__init__()
        self.crop, self.flip = crop, flip

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        n, channels, height, width = x.shape
        if self.crop >= min(height, width):
            raise ValueError(
                f"images of {height}×{width} cannot be shifted by {self.crop} pixels; crop must be smaller "
                "than their sides"
            )
        bits = F.dropout(torch.ones(n, 2 * self.COIN + 1, device=x.device), 0.5, training=True) > 0
        powers = 2 ** torch.arange(self.COIN, device=x.device)
        down, right = (
            (bits[:, i * self.COIN : (i + 1) * self.COIN] * powers).sum(1)
            * (2 * self.crop + 1)
            // 2**self.COIN
            - self.crop
            for i in (0, 1)
        )
        rows, columns = self._sources(height, down), self._sources(width, right)
        if self.flip:
            columns = torch.where(bits[:, -1:], columns.flip(1), columns)
        x = x.gather(2, rows[:, None, :, None].expand(n, channels, height, width))
        return x.gather(3, columns[:, None, None, :].expand(n, channels, height, width))

    @staticmethod
    def _sources(length: int, shift: Tensor) -> Tensor:
        """[N, length]: the source of each pixel, reflected at the edges."""
        at = (torch.arange(length, device=shift.device) + shift[:, None]).abs()
        return length - 1 - (length - 1 - at).abs()

    def extra_repr(self) -> str:
        return f"crop={self.crop}, flip={self.flip}"


# filters: on an H200, strips are 1.2 times as fast for 6 and 16 filters of 5×5 in float32, and 1.7 times in
# TF32
FEW = 16


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class _LinearMap(torch.autograd.Function):
    """A linear map of a stack of images, given with its adjoint, which is its gradient.

    Under `vmap` it is one call for the whole stack; torch's `unfold`, for example, copies image by image.
    """

    @staticmethod
    def forward(x: Tensor, linear: Callable[..., Tensor], adjoint: Any, *sizes: Any) -> Tensor:
        return linear(x[None], *sizes)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.linear, ctx.adjoint, *ctx.sizes = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return apply_map(g, ctx.adjoint, ctx.linear, *ctx.sizes), None, None, *[None] * len(ctx.sizes)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, linear: Callable[..., Tensor], adjoint: Any, *sizes: Any
    ) -> Any:
        return linear(x.movedim(in_dims[0], 0), *sizes), 0


apply_map: Callable[..., Tensor] = _LinearMap.apply


def _columns(x: Tensor, shape: torch.Size, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """The patches of a convolution: [S, B, C, H, W] → [S, C·kh·kw, B·oh·ow]."""
    b, c = shape[:2]
    views = x.unfold(3, kernel[0], stride[0]).unfold(4, kernel[1], stride[1])  # [S, B, C, oh, ow, kh, kw]
    oh, ow = views.shape[3:5]
    return views.permute(0, 2, 5, 6, 1, 3, 4).reshape(len(x), c * kernel[0] * kernel[1], b * oh * ow)


def _images(g: Tensor, shape: torch.Size, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """The adjoint of `_columns`: patches are added where they overlap."""
    b, c, h, w = shape
    (kh, kw), (sh, sw) = kernel, stride
    oh, ow = (h - kh) // sh + 1, (w - kw) // sw + 1
    parts = g.reshape(len(g), c, kh, kw, b, oh, ow).permute(2, 3, 0, 4, 1, 5, 6)  # [kh, kw, S, B, C, oh, ow]
    out = g.new_zeros(len(g), b, c, h, w)
    for i in range(kh):
        for j in range(kw):
            out[..., i : i + sh * oh : sh, j : j + sw * ow : sw] += parts[i, j]
    return out


def _strips(x: Tensor, shape: torch.Size, height: int) -> Tensor:
    """The strips of `height` image rows: [S, B, C, H, W] → [S, B·oh, C·height·W]."""
    b, c, h, w = shape
    strips = x.unfold(3, height, 1).permute(0, 1, 3, 2, 5, 4)
    return strips.reshape(len(x), b * (h - height + 1), c * height * w)


def _add_strips(g: Tensor, shape: torch.Size, height: int) -> Tensor:
    """The adjoint of `_strips`: strips are added where they overlap."""
    b, c, h, w = shape
    oh = h - height + 1
    strips = g.reshape(len(g), b, oh, c, height, w)
    out = g.new_zeros(len(g), b, h, c, w)
    for i in range(height):
        out[:, :, i : i + oh] += strips[..., i, :]
    return out.transpose(2, 3)


def _bands(weight: Tensor, width: int) -> Tensor:
    """[filters, C, kh, kw] → [filters·ow, C·kh·width]: row (o, j) is filter o, shifted by j, with zeros.

    A padded filter that is read in rows one shorter than it was written shifts by one from row to row.
    """
    o, c, kh, kw = weight.shape
    ow = width - kw + 1
    padded = F.pad(weight, (0, width + 1 - kw))[:, :, :, None].expand(o, c, kh, ow, width + 1)
    shifted = padded.reshape(o, c, kh, ow * (width + 1))[..., : ow * width].reshape(o, c, kh, ow, width)
    return shifted.permute(0, 3, 1, 2, 4).reshape(o * ow, c * kh * width)
