"""Discrete logarithms modulo a safe prime of 63 bits in seconds: index calculus with a rational
reconstruction.

For g^k mod p the extended Euclidean algorithm gives a/b ≡ g^k with a and b of half the length; where both
have only small primes, k is a sum of the small primes' logarithms. Enough such sums are solved for the
logarithms modulo q = (p − 1)/2.
"""

from __future__ import annotations

import math
import random

import numpy as np

BOUND = 1200


def primes_below(n: int) -> list[int]:
    return [k for k in range(2, n) if all(k % d for d in range(2, math.isqrt(k) + 1))]


def halves(x: int, p: int) -> tuple[int, int]:
    """(a, b) with a ≡ ±b·x mod p and both about √p; signs do not matter modulo q, where −1 has the logarithm
    0.
    """
    a, b, s, t = p, x, 0, 1
    while b * b > p:
        k = a // b
        a, b, s, t = b, a - k * b, t, s - k * t
    return b, abs(t)


def smooth(numbers: np.ndarray, primes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(exponents of each prime, which numbers have no others)."""
    left, exponents = numbers.copy(), np.zeros((len(numbers), len(primes)), np.int64)
    for j, prime in enumerate(primes):
        divides = left % prime == 0
        while divides.any():
            exponents[divides, j] += 1
            left[divides] //= prime
            divides &= left % prime == 0
    return exponents, left == 1


class Logarithms:
    """Of all elements to the base g, modulo q."""

    def __init__(self, p: int, g: int, seed: int = 0):
        self.p, self.q, self.g, self.rng = p, (p - 1) // 2, g, random.Random(seed)
        self.primes = primes_below(BOUND)
        rows: dict[int, list[int]] = {}  # pivot: a relation reduced by all others, the sum last
        while len(rows) < len(self.primes):
            for k, relation in self._relations(1):
                self._reduce(rows, [*relation, k % self.q])
        self.of_primes = [rows[j][-1] for j in range(len(self.primes))]

    def _relations(self, h: int, count: int = 20_000) -> list[tuple[int, list[int]]]:
        """(k, exponents) with h·g^k = ± the product."""
        tried = [self.rng.randrange(self.p - 1) for _ in range(count)]
        pairs = np.array([halves(h * pow(self.g, k, self.p) % self.p, self.p) for k in tried], np.int64)
        above, fine = smooth(pairs[:, 0], self.primes)
        where = np.flatnonzero(fine)
        below, also = smooth(pairs[where, 1], self.primes)
        return [(tried[i], (above[i] - below[j]).tolist()) for j, i in enumerate(where) if also[j]]

    def _reduce(self, rows: dict[int, list[int]], row: list[int]) -> None:
        for j, other in rows.items():
            if row[j] % self.q:
                f = row[j]
                row = [(a - f * b) % self.q for a, b in zip(row, other)]
        pivot = next((j for j, a in enumerate(row[:-1]) if a % self.q), None)
        if pivot is None:
            return
        inverse = pow(row[pivot], -1, self.q)
        row = [a * inverse % self.q for a in row]
        for j, other in rows.items():
            if other[pivot]:
                f = other[pivot]
                rows[j] = [(a - f * b) % self.q for a, b in zip(other, row)]
        rows[pivot] = row

    def of(self, h: int) -> int:
        while True:
            for k, exponents in self._relations(h % self.p, 4000):
                return (sum(e * log for e, log in zip(exponents, self.of_primes)) - k) % self.q
