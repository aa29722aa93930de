"""Correlated noise for training without sampling: prefix sums released by a binary tree.

P. Kairouz, B. McMahan, S. Song, O. Thakkar, A. Thakurta, Z. Xu: *Practical and Private (Deep) Learning
without Sampling or Shuffling*, ICML 2021, Algorithm 1 with the tree of Dwork, Naor, Pitassi, Rothblum (STOC
2010) and Chan, Shi, Song (ICALP 2010); restarted every epoch (Section 4.2).

After t steps, the sum g₁ + … + g_t has the noise of the tree nodes that make up [1, t], one for each 1 in t's
binary digits: at most ⌊log₂ T⌋ + 1 terms instead of t. Each step receives the difference of two such sums, so
any torch optimizer adds them up again; plain SGD on them is DP-FTRL.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Tree:
    """The noise of the prefix sums of one epoch.

    `draw` returns a node's noise; the memory is one vector per level.
    """

    def __init__(self, draw: Callable[[], Tensor]):
        self.draw = draw
        self.restart()

    def restart(self) -> None:
        self.step = 0
        self.nodes: list[Tensor | None] = []  # by level: the completed node of the current prefix
        self.before: Tensor | None = None

    def next(self) -> Tensor:
        """Return the noise of the next step: that of the new prefix minus that of the old one."""
        self.step += 1
        level = (self.step & -self.step).bit_length() - 1  # of the node of 2^level leaves completed here
        # its children are no longer part of the prefix
        self.nodes[: level + 1] = [*[None] * level, self.draw()]
        now = torch.stack([n for n in self.nodes if n is not None]).sum(0)
        before, self.before = self.before, now
        return now if before is None else now - before
