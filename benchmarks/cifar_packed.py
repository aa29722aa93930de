"""CIFAR-10's 50,000 training images in 47 MB, for a machine to which only 64 MiB can be carried.

    python benchmarks/cifar_packed.py --data-dir FOLDER FILE.npz

Pixels are rounded to multiples of 6 (44 levels of 256, an error of at most 3); color differences, the predictor of
JPEG-LS, and LZMA of what it leaves. Labels as they are. Reading needs numpy alone.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np

STEP = 6


def _predict(left: np.ndarray, above: np.ndarray, corner: np.ndarray) -> np.ndarray:
    """The median edge detector of JPEG-LS."""
    low, high = np.minimum(left, above), np.maximum(left, above)
    return np.where(corner >= high, low, np.where(corner <= low, high, left + above - corner))


def pack(pixels: np.ndarray) -> np.ndarray:
    """Compress [N, 3, 32, 32] pixels of 0 to 255."""
    v = (pixels.astype(np.int16) + STEP // 2) // STEP
    planes = np.stack([v[:, 1], v[:, 0] - v[:, 1], v[:, 2] - v[:, 1]], 1)
    edged = np.pad(planes, ((0, 0), (0, 0), (1, 0), (1, 0)))
    guess = _predict(edged[:, :, 1:, :-1], edged[:, :, :-1, 1:], edged[:, :, :-1, :-1])
    rest = ((planes - guess) & 0xFF).astype(np.uint8)
    return np.frombuffer(lzma.compress(rest.tobytes(), preset=6), np.uint8)


def unpack(packed: np.ndarray, n: int) -> np.ndarray:
    """Return what `pack` compressed, rounded: [N, 3, 32, 32] of 0 to 255."""
    rest = np.frombuffer(lzma.decompress(packed.tobytes()), np.uint8).astype(np.int8)
    rest = np.ascontiguousarray(rest.reshape(n, 3, 32, 32).transpose(2, 3, 0, 1)).astype(np.int16)
    v = np.zeros((33, 33, n, 3), np.int16)
    for i in range(32):
        for j in range(32):
            v[i + 1, j + 1] = rest[i, j] + _predict(v[i + 1, j], v[i, j + 1], v[i, j])
    planes = v[1:, 1:].transpose(2, 3, 0, 1)
    levels = np.stack([planes[:, 0] + planes[:, 1], planes[:, 0], planes[:, 0] + planes[:, 2]], 1)
    return np.minimum(levels * STEP, 255).astype(np.uint8)


def load(file: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels and labels of a packed file."""
    with np.load(file, allow_pickle=False) as kept:
        labels = kept["labels"].astype(np.int64)
        return unpack(kept["pixels"], len(labels)), labels


def main() -> None:
    from tacit import data

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--rows", type=int, help="only the first rows")
    parser.add_argument("file")
    chosen = parser.parse_args()
    rows = data.cifar10(data_dir=chosen.data_dir).rows
    pixels = (rows.x[: chosen.rows] * 255).round().numpy().astype(np.uint8)
    labels = rows.y[: chosen.rows].numpy().astype(np.uint8)
    np.savez(chosen.file, pixels=pack(pixels), labels=labels)
    again, _ = load(chosen.file)
    off = np.abs(again.astype(np.int16) - pixels).max()
    print(
        f"{chosen.file}: {Path(chosen.file).stat().st_size / 1e6:.1f} MB, {len(labels)} images, largest error {off}"
    )


if __name__ == "__main__":
    main()
