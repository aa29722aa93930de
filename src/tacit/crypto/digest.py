"""A digest of named tensors, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..errors import MissingExtra


@cache
def _blake3() -> Callable[..., Any]:
    """BLAKE3 for the values of tensors: 3.5 times as fast as SHA-256, which took a fifth of a client's time
    in a sparse secure sum.
    """
    try:
        from blake3 import blake3
    except ImportError:
        raise MissingExtra("a hidden sum, or a run between real parties,", "secagg", "blake3") from None
    return blake3


class Digests:
    """Digests of sets of named tensors; each tensor is hashed once, however many sets it is in."""

    def __init__(self, vectors: Mapping[str, Tensor]):
        self.vectors = vectors
        self._known: dict[str, bytes] = {}

    def of(self, names: Iterable[str] | None = None, *about: str) -> bytes:
        """The digest of `about` and of these tensors (default: all): names, dtypes, shapes and values.

        Unknown names are ignored. The encoding is injective: every part is preceded by its length.
        """
        state = hashlib.sha256()
        chosen = sorted(self.vectors if names is None else set(names) & set(self.vectors))
        for part in (
            *(text.encode() for text in about),
            b"tensors",
            *(part for name in chosen for part in (name.encode(), self._one(name))),
        ):
            state.update(len(part).to_bytes(8, "little") + part)
        return state.digest()

    def _one(self, name: str) -> bytes:
        if name not in self._known:
            tensor = self.vectors[name].detach().cpu().contiguous()
            state = _blake3()(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            if tensor.dtype is torch.uint8 and tensor.ndim == 1:  # most of what a long program sends
                state.update(tensor.numpy().data)
            elif tensor.numel():
                state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
            self._known[name] = state.digest()
        return self._known[name]
