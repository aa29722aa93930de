"""Who trains in a round, and in which order on which rows: it follows from (seed, round, name).

A party computes its own plan, and a simulation computes thousands at once. Every order is the order of
hashes, so a client's plan is the same alone and in a stack. The hash is for shuffling; it protects no
secret.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .types import Batches

# 2⁶⁴/φ: the step of a Weyl sequence, as in SplitMix64 (Steele, Lea, Flood 2014)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ORDER, _DROPOUT, _SAMPLE = 1, 2, 3  # the purpose of a hash, so that no two uses share one


def mix(*words: np.ndarray | int) -> np.ndarray:
    """SplitMix64's finalizer, chained over the words; arrays broadcast."""
    with np.errstate(over="ignore"):
        h: np.ndarray = np.zeros((), dtype=np.uint64)
        for word in words:
            h = (h ^ np.asarray(word).astype(np.uint64)) + _GOLDEN
            h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            h = h ^ (h >> np.uint64(31))
    return h


def identify(names: tuple[str, ...] | list[str]) -> np.ndarray:
    """A number for each name, the same on every machine."""
    return np.array(
        [int.from_bytes(hashlib.blake2b(n.encode(), digest_size=8).digest(), "little") for n in names],
        dtype=np.uint64,
    )


def sample(seed: int, round: int, ids: np.ndarray, per_round: int) -> np.ndarray:
    """`per_round` of the parties, uniformly without replacement, as ascending indices of `ids`."""
    if per_round >= len(ids):
        return np.arange(len(ids))
    return np.sort(np.argpartition(mix(seed, round, _SAMPLE, ids), per_round - 1)[:per_round])


class Plans(NamedTuple):
    """The plans of several clients, padded to the longest: client s has `steps[s]` of the T steps."""

    # [S, T, B] indices of the client's rows; padding repeats rows of the client, with live = 0
    index: Tensor  # type: ignore[assignment]
    live: Tensor  # [S, T, B]
    key: Tensor  # [S, T]
    size: Tensor  # [S]
    steps: Tensor  # [S] int64

    def of(self, s: int) -> Batches:
        """One client's plan, without the padding steps."""
        t = int(self.steps[s])
        return Batches(self.index[s, :t], self.live[s, :t], self.key[s, :t], self.size[s])


def count_steps(
    sizes: np.ndarray, epochs: np.ndarray, batch_size: int | None, local_steps: int | None
) -> np.ndarray:
    """τ_k, the local steps of each client."""
    a_pass = np.ones_like(sizes) if batch_size is None else -(-sizes // batch_size)
    return np.full_like(sizes, local_steps) if local_steps is not None else epochs * a_pass


def plan(
    seeds: np.ndarray | int,
    round: np.ndarray | int,
    ids: np.ndarray,
    sizes: np.ndarray,
    epochs: np.ndarray | int,
    batch_size: int | None,
    local_steps: int | None = None,
) -> Plans:
    """The batches of each client: its rows, shuffled for every epoch, `batch_size` at a time (None: all).

    `local_steps`, if given, replaces the epochs: that many batches, over as many passes as they need.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    seeds = np.broadcast_to(np.asarray(seeds, dtype=np.uint64), sizes.shape)
    rounds = np.broadcast_to(np.asarray(round, dtype=np.uint64), sizes.shape)
    epochs = np.broadcast_to(np.asarray(epochs, dtype=np.int64), sizes.shape)
    width = int(sizes.max()) if batch_size is None else min(batch_size, int(sizes.max()))
    a_pass = -(-sizes // width)  # steps in one pass over a client's rows
    steps = count_steps(sizes, epochs, width, local_steps)
    t_max, n = int(steps.max()), len(sizes)
    step = np.arange(t_max)
    index = np.zeros((n, t_max, width), dtype=np.int64)
    live = np.zeros((n, t_max, width), dtype=np.float32)
    # clients with the same number of rows and steps together: there are usually few such groups
    for size, tau in {(int(a), int(b)) for a, b in zip(sizes, steps)}:
        who = np.flatnonzero((sizes == size) & (steps == tau))
        per = int(a_pass[who[0]])
        passes = -(-tau // per)
        mine = (seeds[who, None, None], rounds[who, None, None], _ORDER, ids[who, None, None])
        rank = mix(*mine, np.arange(passes)[None, :, None], np.arange(size)[None, None, :])
        order = np.argsort(rank, axis=-1)  # [who, passes, size]
        # [tau, width] indices within the pass
        place = (step[:tau, None] % per) * width + np.arange(width)[None, :]
        index[who, :tau] = order[:, step[:tau, None] // per, place % size]
        live[who, :tau] = place < size
    key = mix(seeds[:, None], rounds[:, None], _DROPOUT, ids[:, None], step[None, :]).astype(np.int64)
    return Plans(
        torch.from_numpy(index),
        torch.from_numpy(live),
        torch.from_numpy(key),
        torch.from_numpy(sizes.astype(np.float32)),
        torch.from_numpy(steps),
    )
