"""Rows as images in a report: grayscale PNGs, embedded in the page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import BadParameter
from ..files import write_atomic
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


def save_strips(path: str | Path, strips: Sequence[Tensor], span: float, zoom: int = 6) -> Path:
    """Write a PNG with a line of images for each tensor of rows, enlarged `zoom` times."""
    shape = picture_shape(strips[0][0])
    if shape is None:
        raise BadParameter(f"save_picture: rows of shape {tuple(strips[0].shape[1:])} are not gray images.")
    low = float(strips[0].min())
    lines = [
        torch.cat([F.pad(row.reshape(shape), (0, 1, 0, 1), value=low + span) for row in rows], 1)
        for rows in strips
    ]
    gray = ((torch.cat(lines) - low) / span).repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)
    write_atomic(Path(path), png(gray))
    return Path(path)


def show_pairs(
    result: Reconstruction, most: int = 8, names: tuple[str, str] = ("original", "rebuilt")
) -> Safe | None:
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
        tag("table", tag("tbody", row(names[0], result.original), row(names[1], result.rebuilt))),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label="originals and reconstructions",
    )
