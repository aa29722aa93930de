"""How matrices and images are packed in polynomials of 8192 words, so that one product of polynomials
computes many products of words. Huang, Lu, Hong, Ding: Cheetah, USENIX Security 2022, Section 3
(convolutions); Hao, Li, Chen, Xing, Xu, Zhang: Iron, NeurIPS 2022 (matrix products).

    matrix      Σ x[r, j] X^(r·p·k + j) times Σ y[q, j] X^(q·k + k − 1 − j), for blocks of k inner and p outer
                columns: the coefficient at (r·p + q)·k + k − 1 is Σ_j x[r, j]·y[q, j]
    image       Σ x[i] X^i (pixels in order, width W) times Σ w[dy, dx] X^(D − dy·W − dx): the coefficient at
                i + D is Σ x[i + dy·W + dx]·w[dy, dx], D the largest exponent. Channels take the place of
                the inner columns of a matrix, filters of the outer ones

Other coefficients are of no use, and are not sent. A product that reaches X^8192 comes back, negated, below
the coefficients that are read: their first is at k − 1 or D.

A unit is what is encrypted together: `inputs` polynomials, of which `outputs` sums of products are returned.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..crypto.rlwe import INPUT_BYTES, MOST_TERMS, PLACE_BYTES, SUM_BYTES
from ..crypto.sealapi import DEGREE, SEED


class Packing(ABC):
    """One party's factor is encrypted, the other's multiplied; the same at both."""

    units: int
    inputs: int
    outputs: int

    @property
    @abstractmethod
    def places(self) -> np.ndarray:
        """The coefficients of every returned sum that are of use."""

    @abstractmethod
    def encode(self, x: np.ndarray) -> np.ndarray:
        """The polynomials of the encrypted factor: units × inputs × 8192."""

    @abstractmethod
    def encode_plain(self, y: np.ndarray, output: int) -> np.ndarray:
        """The polynomials of the other factor for one output: inputs × 8192."""

    @abstractmethod
    def decode(self, sums: np.ndarray) -> np.ndarray:
        """The product from sums: units × outputs × places."""

    @property
    def traffic(self) -> int:
        """Bytes of the ciphertexts, both ways."""
        each = self.inputs * (INPUT_BYTES + SEED) + self.outputs * (
            SUM_BYTES + PLACE_BYTES * len(self.places)
        )
        return self.units * each


@dataclass(frozen=True)
class MatrixPacking(Packing):
    """[rows, inner] × [columns, inner]ᵀ, in blocks."""

    rows: int
    inner: int
    columns: int
    inner_block: int
    column_block: int

    @property
    def row_block(self) -> int:
        return min(self.rows, DEGREE // (self.inner_block * self.column_block))

    @property
    def units(self) -> int:  # type: ignore[override]
        return -(-self.rows // self.row_block)

    @property
    def inputs(self) -> int:  # type: ignore[override]
        return -(-self.inner // self.inner_block)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return -(-self.columns // self.column_block)

    @cached_property
    def places(self) -> np.ndarray:
        k = self.inner_block
        return np.arange(self.row_block * self.column_block) * k + k - 1

    def encode(self, x: np.ndarray) -> np.ndarray:
        k, p = self.inner_block, self.column_block
        padded = np.zeros((self.units * self.row_block, self.inputs * k), np.uint64)
        padded[: self.rows, : self.inner] = x
        out = np.zeros((self.units, self.inputs, DEGREE), np.uint64)
        blocks = padded.reshape(self.units, self.row_block, self.inputs, k).swapaxes(1, 2)
        spread = out[..., : self.row_block * p * k].reshape(self.units, self.inputs, self.row_block, p * k)
        spread[..., :k] = blocks
        return out

    def encode_plain(self, y: np.ndarray, output: int) -> np.ndarray:
        k, p = self.inner_block, self.column_block
        some = y[output * p : (output + 1) * p]
        padded = np.zeros((p, self.inputs * k), np.uint64)
        padded[: len(some), : self.inner] = some
        out = np.zeros((self.inputs, DEGREE), np.uint64)
        backwards = padded.reshape(p, self.inputs, k)[..., ::-1]
        out[:, : p * k] = backwards.swapaxes(0, 1).reshape(self.inputs, p * k)
        return out

    def decode(self, sums: np.ndarray) -> np.ndarray:
        blocks = sums.reshape(self.units, self.outputs, self.row_block, self.column_block).swapaxes(1, 2)
        whole = blocks.reshape(self.units * self.row_block, self.outputs * self.column_block)
        return whole[: self.rows, : self.columns]


@dataclass(frozen=True)
class ImagePacking(Packing):
    """A convolution of padded images [n, c, height, width] with filters [out, c, kh, kw], in blocks of
    channels and of filters; images go in bands of rows that fit into a polynomial.
    """

    images: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    channel_block: int = 1
    filter_block: int = 1

    @property
    def inputs(self) -> int:  # type: ignore[override]
        return -(-self.images[1] // self.channel_block)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return -(-self.filters[0] // self.filter_block)

    @property
    def span(self) -> int:
        """Rows that a filter covers."""
        return (self.filters[2] - 1) * self.dilation[0] + 1

    @property
    def result(self) -> tuple[int, int]:
        """Rows and columns of the convolution."""
        across = (self.filters[3] - 1) * self.dilation[1] + 1
        rows = (self.images[2] - self.span) // self.stride[0] + 1
        return rows, (self.images[3] - across) // self.stride[1] + 1

    @cached_property
    def band(self) -> tuple[int, int]:
        """Rows of the result, and of the image, in a band."""
        most = DEGREE // (self.channel_block * self.filter_block * self.images[3])
        rows = min(self.result[0], (most - self.span) // self.stride[0] + 1)
        return rows, (rows - 1) * self.stride[0] + self.span

    @property
    def bands(self) -> int:
        return -(-self.result[0] // self.band[0])

    @property
    def size(self) -> int:
        """Words of a channel of a band."""
        return self.band[1] * self.images[3]

    @property
    def together(self) -> int:
        """Bands in one polynomial."""
        most = DEGREE // (self.size * self.channel_block * self.filter_block)
        return min(self.images[0] * self.bands, most)

    @property
    def units(self) -> int:  # type: ignore[override]
        return -(-self.images[0] * self.bands // self.together)

    @property
    def last(self) -> int:
        """D, the largest exponent of a channel of a filter."""
        return (self.span - 1) * self.images[3] + (self.filters[3] - 1) * self.dilation[1]

    @cached_property
    def places(self) -> np.ndarray:
        k, (rows, columns) = self.channel_block, (self.band[0], self.result[1])
        first = (
            np.arange(self.together * self.filter_block)[:, None, None] * k * self.size
            + np.arange(rows)[:, None] * self.stride[0] * self.images[3]
            + np.arange(columns) * self.stride[1]
        )
        return first.ravel() + (k - 1) * self.size + self.last

    def encode(self, x: np.ndarray) -> np.ndarray:
        n, channels, height, width = self.images
        k, p, (rows, tall) = self.channel_block, self.filter_block, self.band
        step = rows * self.stride[0]
        below = max(height, (self.bands - 1) * step + tall)
        padded = np.zeros((n, self.inputs * k, below, width), np.uint64)
        padded[:, :channels, :height] = x
        bands = np.stack([padded[:, :, b * step : b * step + tall] for b in range(self.bands)], 1)
        flat = np.zeros((self.units * self.together, self.inputs, k * self.size), np.uint64)
        flat[: n * self.bands] = bands.reshape(n * self.bands, self.inputs, -1)
        out = np.zeros((self.units, self.inputs, DEGREE), np.uint64)
        used = out[..., : self.together * p * k * self.size]
        spread = used.reshape(self.units, self.inputs, self.together, -1)
        spread[..., : k * self.size] = flat.reshape(self.units, self.together, self.inputs, -1).swapaxes(1, 2)
        return out

    def encode_plain(self, y: np.ndarray, output: int) -> np.ndarray:
        k, p = self.channel_block, self.filter_block
        some = y[output * p : (output + 1) * p]
        padded = np.zeros((p, self.inputs * k, *self.filters[2:]), np.uint64)
        padded[: len(some), : self.images[1]] = some
        down, right = (np.arange(size) * d for size, d in zip(self.filters[2:], self.dilation))
        out = np.zeros((self.inputs, DEGREE), np.uint64)
        filters = np.arange(p)[:, None, None, None] * k * self.size
        channels = np.arange(k - 1, -1, -1)[:, None, None] * self.size
        places = filters + channels + self.last - down[:, None] * self.images[3] - right
        out[:, places] = padded.reshape(p, self.inputs, k, *self.filters[2:]).swapaxes(0, 1)
        return out

    def decode(self, sums: np.ndarray) -> np.ndarray:
        n, (rows, columns), each = self.images[0], self.result, self.band[0]
        tiles = sums.reshape(self.units, self.outputs, self.together, self.filter_block, each, columns)
        tiles = tiles.swapaxes(1, 2).reshape(-1, self.outputs * self.filter_block, each, columns)
        whole = tiles[: n * self.bands].reshape(n, self.bands, -1, each, columns).swapaxes(1, 2)
        return whole.reshape(n, -1, self.bands * each, columns)[:, : self.filters[0], :rows]


def pack_matrix(rows: int, inner: int, columns: int) -> MatrixPacking | None:
    """The blocks with the least traffic; None if a sum would have more terms than stay exact."""
    found = []
    for parts in _parts(inner):
        k = -(-inner // parts)
        for pieces in _parts(columns):
            p = -(-columns // pieces)
            if k * p <= DEGREE and p * k * parts <= MOST_TERMS:
                found.append(MatrixPacking(rows, inner, columns, k, p))
    return min(found, key=lambda packing: packing.traffic, default=None)


def pack_images(
    images: tuple[int, int, int, int],
    filters: tuple[int, int, int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> ImagePacking | None:
    """The blocks with the least traffic; None if no row of the result fits into a polynomial."""
    found = []
    least = ((filters[2] - 1) * dilation[0] + 1) * images[3]  # words that a row of the result needs
    for parts in _parts(images[1]):
        k = -(-images[1] // parts)
        for pieces in _parts(filters[0]):
            p = -(-filters[0] // pieces)
            if k * p * least <= DEGREE and p * k * parts * math.prod(filters[2:]) <= MOST_TERMS:
                found.append(ImagePacking(images, filters, stride, dilation, k, p))
    return min(found, key=lambda packing: packing.traffic, default=None)


def _parts(size: int) -> list[int]:
    """Numbers of equal parts to try: 1, 2, 3, 4, 6, 8, 12, … and one for each word."""
    tried = {1, size} | {k << e for e in range(size.bit_length()) for k in (1, 3) if k << e <= size}
    return sorted(tried)
