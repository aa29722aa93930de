"""The graph of secure aggregation: who masks with whom. Bell, Bonawitz, Gascón, Lepoint, Raykova: Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020.

In Bonawitz et al. (2017) all clients mask with all others, and a client's work grows with n. Here the clients
are placed on a circle in a random order, new in each round. Each masks with the k/2 clients on either side (a
Harary graph, Section 3.2); k grows with log n.

The server draws the order, so this needs a server that follows the protocol: a malicious one could surround a
client with colluding neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..parameters import bad


def neighborhoods(
    names: Sequence[str], degree: int | None, draw: Callable[[int], bytes]
) -> dict[str, tuple[str, ...]]:
    """Return who holds whose shares: each client's neighbors and itself, sorted by name.

    `degree` None: all clients.
    """
    n = len(names)
    if degree is None or degree >= n - 1:
        return dict.fromkeys(names, tuple(sorted(names)))
    circle = shuffle(names, draw)
    half = degree // 2
    return {
        name: tuple(sorted(circle[(i + step) % n] for step in range(-half, half + 1)))
        for i, name in enumerate(circle)
    }


def shuffle(names: Sequence[str], draw: Callable[[int], bytes]) -> list[str]:
    """Shuffle by random 128-bit tickets; two are equal with probability below n²/2^129."""
    return [name for _, name in sorted((draw(16), name) for name in names)]


def degree(
    parties: int, threshold: float, corrupt: float = 0.2, drop: float = 0.1, safe: int = 40, right: int = 30
) -> int:
    """Return the least even k that satisfies Bell et al. (Definition 3.3, Section 3.3), or parties − 1.

    With a share `corrupt` of the clients colluding with the server and a share `drop` dropped out, except
    with probability 2^-safe
      1. no neighborhood has t corrupt members, who could open its secrets, and
      2. the honest clients that stayed are connected, so that no partial sum can be separated,
    and except with probability 2^-right
      3. every neighborhood keeps t members, so that the sum can be computed.
    t = ⌈threshold·(k + 1)⌉ as in `SecAggTerms`. Tails are hypergeometric, summed over the clients.
    """
    if not 0 <= corrupt < 1 or not 0 <= drop < 1 or corrupt + drop >= 1:
        raise bad(
            "SecAgg", "corrupt and drop", (corrupt, drop), "fractions of at least 0 whose sum is below 1"
        )
    n, corrupt_count, dropped_count = parties, math.ceil(corrupt * parties), math.ceil(drop * parties)
    for k in range(2, n - 1, 2):
        t = math.ceil(threshold * (k + 1))
        surrounded = n * _tail(n - 1, corrupt_count, k, t)
        lost = n * _tail(
            n - 1, dropped_count, k, k + 1 - t
        )  # of k + 1 holders, including the dropped client, fewer than t are left
        # a circle disconnects only if k/2 in a row are missing in two places; counting one place is an
        # upper bound
        apart = n * _run(n, min(n, corrupt_count + dropped_count), k // 2)
        if (
            max(surrounded, apart) <= 2.0 ** -(safe + 1) and lost <= 2.0**-right
        ):  # safe + 1: a union bound over the first two
            return k
    return n - 1


def _tail(population: int, marked: int, draws: int, least: int) -> float:
    """Return the probability that a draw without replacement has at least `least` marked items."""
    possible = range(max(least, draws - (population - marked)), min(marked, draws) + 1)
    whole = _log_ways(population, draws)
    return sum(
        math.exp(_log_ways(marked, i) + _log_ways(population - marked, draws - i) - whole) for i in possible
    )


def _run(population: int, marked: int, length: int) -> float:
    """Return the probability that `length` given places are all marked."""
    return (
        math.exp(_log_ways(population - length, marked - length) - _log_ways(population, marked))
        if marked >= length
        else 0.0
    )


def _log_ways(n: int, k: int) -> float:
    """Return ln C(n, k), accurate to 1e-9 for millions of parties."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
