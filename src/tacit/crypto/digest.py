"""One digest for a set of named tensors, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

DIGEST = 32  # bytes


def digest_tensors(vectors: Mapping[str, Tensor], *about: str) -> bytes:
    """Return the SHA-256 digest of `about` and of every name, dtype, shape and value. Two different inputs never encode to the same bytes."""
    state = hashlib.sha256()

    def add(data: bytes) -> None:
        state.update(len(data).to_bytes(8, "little") + data)

    add(len(about).to_bytes(8, "little"))
    for text in about:
        add(text.encode())
    for name in sorted(vectors):
        tensor = vectors[name].detach().cpu().contiguous()
        add(name.encode())
        add(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # its length follows from dtype and shape
    return state.digest()
