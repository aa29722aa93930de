"""A frame whose tensors stay on their GPU: for parties of one process that share the card.

A frame of bytes takes a tensor of a GPU to host memory at the sender, and back at the receiver, which takes
much longer than a copy on the card. This frame has the same length, the same head and the same padding, and
the body's tensors are copies on the card: neither party can change the other's. Only `InProcess` uses it; a
frame that goes to another process is bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import BadFrame


class DevicePiece:
    """A tensor in the body of a frame: a copy, made when it is sent."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach().clone(memory_format=torch.contiguous_format)

    def __len__(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def __bytes__(self) -> bytes:
        return self.tensor.cpu().flatten().view(torch.uint8).numpy().tobytes()

    def read(self, dtype: torch.dtype, where: str) -> Tensor:
        """A copy of the receiver's own: a frame may be sent to several parties."""
        if self.tensor.dtype is not dtype:
            raise BadFrame(f"{where} is announced as {dtype} and holds {self.tensor.dtype}.")
        return self.tensor.clone()


class DeviceBody(list[Any]):
    """Collects the body of a frame; tensors of a GPU stay there."""


class DeviceFrame:
    """The pieces of a frame; slices as bytes would, where a piece that is a tensor is taken as a whole."""

    def __init__(self, pieces: Sequence[bytes | memoryview | DevicePiece]):
        self._pieces: dict[int, bytes | memoryview | DevicePiece] = {}
        head, at = b"", 0
        for piece in pieces:
            if isinstance(piece, DevicePiece) or at > len(head):
                self._pieces[at] = piece if isinstance(piece, DevicePiece) else bytes(piece)
            else:  # everything up to the first tensor
                head += piece
            at += len(piece)
        self._head, self._size = head, at

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        """The frame as another process would receive it."""
        return self._head + b"".join(bytes(piece) for _, piece in sorted(self._pieces.items()))

    def __getitem__(self, part: slice) -> Any:
        start, end, _ = part.indices(self._size)
        if end <= len(self._head) or start == end:
            return memoryview(self._head)[start:end]
        piece = self._pieces.get(start, b"")
        if len(piece) == end - start:
            return piece
        raise IndexError(f"bytes {start} to {end} of a frame on a device are no piece of it")
