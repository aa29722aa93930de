"""The IDX format of the MNIST family: a big-endian header with the shape, then bytes."""

from __future__ import annotations

import os

import numpy as np
import torch

from ..errors import BadData
from ..parameters import bad
from .federation import Dataset, Rows
from .sources import Published, contents, folders


def parse(name: str, data: bytes) -> np.ndarray:
    """Return the array of unsigned bytes in an IDX file."""
    if len(data) < 8 or data[:3] != b"\x00\x00\x08":
        raise BadData(
            f"{name} is not an IDX file of bytes: it starts with {data[:4].hex() or 'nothing'}, not 000008. "
            "Get the file again."
        )
    shape = tuple(np.frombuffer(data, ">u4", count=data[3], offset=4).tolist())
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if body.size != np.prod(shape):
        raise BadData(
            f"{name} says it holds {'×'.join(map(str, shape))} bytes and has {body.size}. It is truncated; "
            "get the file again."
        )
    return body.reshape(shape)


def images(
    name: str,
    files: tuple[Published, ...],
    labels: tuple[str, ...],
    scale: str,
    standard: tuple[list[float], list[float]],
    data_dir: str | os.PathLike[str] | None,
    also: tuple[str, ...],
    verify: bool,
    download: bool,
) -> Dataset:
    """Load images [N, 1, H, W] and labels from four IDX files, for training and test."""
    x, y, xt, yt = (
        parse(f"{name}: {f.name}", data)
        for f, data in zip(files, contents(name, files, folders(name, data_dir, also), verify, download))
    )
    for pixels, marks in ((x, y), (xt, yt)):
        if (
            len(pixels) != len(marks)
            or pixels.ndim != 3
            or marks.ndim != 1
            or marks.max(initial=0) >= len(labels)
        ):
            raise BadData(
                f"{name}: images of shape {pixels.shape} and labels of shape {marks.shape} do not fit. Get "
                "all four files again."
            )
    rows, test = (
        Rows(scale_pixels(p[:, None], scale, standard), torch.from_numpy(m.astype(np.int64)))
        for p, m in ((x, y), (xt, yt))
    )
    return Dataset(name, rows, test, len(labels), labels=labels)


def scale_pixels(pixels: np.ndarray, scale: str, standard: tuple[list[float], list[float]]) -> torch.Tensor:
    """Scale bytes [N, C, H, W] to [0, 1], to [−1, 1], or by mean and deviation."""
    if scale not in ("unit", "half", "standard"):
        raise bad("scale", "scale", scale, "one of 'unit', 'half', 'standard'")
    x = torch.from_numpy(pixels.astype(np.float32)).div_(255)
    if scale == "unit":
        return x
    mean, std = ([0.5], [0.5]) if scale == "half" else standard
    return x.sub_(torch.tensor(mean)[None, :, None, None]).div_(torch.tensor(std)[None, :, None, None])
