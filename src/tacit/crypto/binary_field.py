"""GF(2^64) = GF(2)[x] / (x^64 + x^4 + x^3 + x + 1), on arrays of 64-bit words: bit k of a word is the
coefficient of x^k.

Addition is exclusive or. The product of arrays takes 64 steps on each; the product with one factor takes
eight look-ups a word.
"""

from __future__ import annotations

import numpy as np

TAIL = 0b11011  # x^64 as a sum of lower powers
WORD = 8  # bytes
_ONE, _TOP, _TAIL = np.uint64(1), np.uint64(63), np.uint64(TAIL)


def double(words: np.ndarray) -> np.ndarray:
    """x·w for each word."""
    return np.asarray(words << _ONE ^ (words >> _TOP) * _TAIL)


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a·b, word by word; shapes are broadcast."""
    product = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.uint64)
    for k in range(64):
        product ^= a * (b >> np.uint64(k) & _ONE)
        a = double(a)
    return product


def products_of_bytes(factor: int) -> np.ndarray:
    """The products of a factor with every byte in each of the eight places of a word: [8, 256]."""
    powers = np.empty(64, np.uint64)
    power = np.array(factor, np.uint64)
    for k in range(64):
        powers[k] = power
        power = double(power)
    return subset_sums(powers.reshape(WORD, 8))


def subset_sums(words: np.ndarray) -> np.ndarray:
    """The sums of all subsets of the words in the last dimension: [..., k] to [..., 2^k]; bit i of the index
    says whether word i is in the subset.
    """
    count = words.shape[-1]
    sums = np.zeros((*words.shape[:-1], 1 << count), np.uint64)
    for i in range(count):
        np.bitwise_xor(sums[..., : 1 << i], words[..., i, None], out=sums[..., 1 << i : 2 << i])
    return sums


def multiply_by(words: np.ndarray, factor: int) -> np.ndarray:
    """factor·w for each word."""
    table = products_of_bytes(factor)
    places = np.ascontiguousarray(words, np.uint64).view(np.uint8).reshape(*words.shape, WORD)
    product = table[0][places[..., 0]]
    for byte in range(1, WORD):
        product ^= table[byte][places[..., byte]]
    return np.asarray(product)


def add_up(words: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The sum along a dimension, or of all words."""
    return np.asarray(np.bitwise_xor.reduce(words, axis=axis), np.uint64)
