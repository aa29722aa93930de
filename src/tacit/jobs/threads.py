"""How many threads torch uses while a small network is trained, and BLAS while parties compute sums.

A layer of a few hundred rows takes microseconds. Shared between threads, it takes as long, and the threads
spin while they wait for each other. On two busy cores, 10 epochs of a split network on 6,000 rows of
default_credit took 27.9 CPU seconds with two threads and 3.5 with one, with the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Multiplications of a batch up to which one thread is used: about 10 ms of one core.
SMALL = 50_000_000


def is_small(modules: Iterable[nn.Module], batch_size: int) -> bool:
    """Return whether a batch takes one core a few milliseconds: no convolution and few weights."""
    parts = list(modules)
    layers = [layer for part in parts for layer in part.modules()]
    if any(type(layer).__name__.startswith("Conv") for layer in layers):
        return False
    return batch_size * sum(p.numel() for part in parts for p in part.parameters()) <= SMALL


@contextmanager
def one_thread_if(small: bool) -> Iterator[None]:
    """Let torch use one thread in this block, if `small`; afterwards as many as before."""
    before = torch.get_num_threads()
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy's matrix products use one thread in this block, if threadpoolctl is installed.

    A party's matrices have thousands of rows and tens of columns: a product takes a millisecond, and on a
    busy machine its threads spin while they wait for each other. A round of a regression over 100 parties
    took 8.9 CPU seconds with two threads beside 14 other processes (benchmarks/stats.py), and 1 with one.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield
        return
    global _LIMIT, _INSIDE
    with _CHANGE:
        if not _INSIDE:
            _LIMIT = threadpool_limits(1, "blas")
        _INSIDE += 1
    try:
        yield
    finally:
        with _CHANGE:
            _INSIDE -= 1
            if not _INSIDE:
                _LIMIT.restore_original_limits()


# the parties of one process are in this block together: to look for its libraries takes milliseconds
_CHANGE, _INSIDE = threading.Lock(), 0
_LIMIT: Any = None  # of the outermost block
