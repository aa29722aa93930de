"""Rows as images in a report: grayscale PNGs, embedded in the page."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

from ..report.markup import Safe, tag, text
from .reconstruction import Reconstruction, picture_shape


def png(gray: Tensor) -> bytes:
    """An 8-bit grayscale PNG of a matrix of values between 0 and 1."""
    pixels = (gray.clamp(0, 1) * 255).round().to(torch.uint8)
    high, wide = pixels.shape
    lines = b"".join(b"\x00" + bytes(row.tolist()) for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(lines, 9))
        + chunk(b"IEND", b"")
    )


def image(gray: Tensor, alt: str, size: int = 84) -> Safe:
    data = base64.b64encode(png(gray)).decode()
    return Safe(f'<img src="data:image/png;base64,{data}" alt="{text(alt)}" width="{size}" height="{size}"/>')


def show_pairs(result: Reconstruction, most: int = 8) -> Safe | None:
    """Original rows above their reconstructions; None if rows are not images."""
    shape = picture_shape(result.original[0])
    if shape is None:
        return None
    low, high = float(result.original.min()), float(result.original.max())

    def row(name: str, values: Tensor) -> Safe:
        scaled = (values[:most].reshape(-1, *shape) - low) / ((high - low) or 1.0)
        return tag(
            "tr",
            tag("th", name, scope="row"),
            [tag("td", image(one, f"{name}, row {k}")) for k, one in enumerate(scaled)],
        )

    return tag(
        "div",
        tag("table", tag("tbody", row("original", result.original), row("rebuilt", result.rebuilt))),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label="originals and reconstructions",
    )
