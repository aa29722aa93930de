"""Who masks with whom. Bell, Bonawitz, Gascón, Lepoint, Raykova: Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, CCS 2020.

In Bonawitz et al. (2017) everybody masks with everybody, and a client's work grows with n. Here the clients
stand in a circle in an order drawn anew each round, and each masks with the k/2 next to it on either side (a
Harary graph, Section 3.2): k grows with log n.

The order is the server's draw, so this is for a server that follows the protocol and is curious; one that
picks neighbourhoods to its liking could surround a client with its friends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..parameters import bad


def neighbourhoods(
    names: Sequence[str], degree: int | None, draw: Callable[[int], bytes]
) -> dict[str, tuple[str, ...]]:
    """Who holds whose shares: a client's neighbours and itself, in the order of their names. None:
    everybody.
    """
    n = len(names)
    if degree is None or degree >= n - 1:
        return dict.fromkeys(names, tuple(sorted(names)))
    circle = shuffled(names, draw)
    half = degree // 2
    return {
        name: tuple(sorted(circle[(i + step) % n] for step in range(-half, half + 1)))
        for i, name in enumerate(circle)
    }


def shuffled(names: Sequence[str], draw: Callable[[int], bytes]) -> list[str]:
    """A random order by 128-bit tickets: that two are equal has a probability below n²/2^129."""
    return [name for _, name in sorted((draw(16), name) for name in names)]


def degree(
    parties: int, threshold: float, corrupt: float = 0.2, drop: float = 0.1, safe: int = 40, right: int = 30
) -> int:
    """The least even k for which Bell et al.'s three demands hold (Definition 3.3 and Section 3.3), or
    parties − 1 when there is none below it.

    With a share `corrupt` of the clients in league with the server and a share `drop` gone, except with a
    probability of 2^-safe
      1. nobody's neighbourhood has t corrupt members, who could open its secrets, and
      2. the honest clients that stayed are connected, so that no smaller sum than theirs can be told apart,
    and except with 2^-right
      3. everybody's neighbourhood keeps t members, so that the sum comes out.
    t = ⌈threshold·(k + 1)⌉ as in `SecAggTerms`. Tails are hypergeometric, summed over the clients.
    """
    if not 0 <= corrupt < 1 or not 0 <= drop < 1 or corrupt + drop >= 1:
        raise bad(
            "SecAgg", "corrupt and drop", (corrupt, drop), "shares of at least 0 that add up to less than 1"
        )
    n, bad_ones, gone = parties, math.ceil(corrupt * parties), math.ceil(drop * parties)
    for k in range(2, n - 1, 2):
        t = math.ceil(threshold * (k + 1))
        surrounded = n * _tail(n - 1, bad_ones, k, t)
        lost = n * _tail(
            n - 1, gone, k, k + 1 - t
        )  # of k + 1 holders, itself gone too, fewer than t are left
        # on a circle the rest falls apart only if k/2 in a row are missing, in two places: one place is
        # counted, which is on the safe side
        apart = n * _run(n, min(n, bad_ones + gone), k // 2)
        if (
            max(surrounded, apart) <= 2.0 ** -(safe + 1) and lost <= 2.0**-right
        ):  # safe + 1: the first two add up
            return k
    return n - 1


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """The chance that a draw without replacement holds `least` marked ones or more."""
    possible = range(max(least, drawn - (population - marked)), min(marked, drawn) + 1)
    whole = _log_ways(population, drawn)
    return sum(
        math.exp(_log_ways(marked, i) + _log_ways(population - marked, drawn - i) - whole) for i in possible
    )


def _run(population: int, marked: int, length: int) -> float:
    """The chance that `length` given places are all marked."""
    return (
        math.exp(_log_ways(population - length, marked - length) - _log_ways(population, marked))
        if marked >= length
        else 0.0
    )


def _log_ways(n: int, k: int) -> float:
    """ln of n over k; exact enough (1e-9) for parties by the million, where the whole number would have a
    million digits.
    """
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
