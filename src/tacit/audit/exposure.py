"""Exposure: how far a secret in the training text stands out among secrets that were not in it.

N. Carlini, C. Liu, Ú. Erlingsson, J. Kos, D. Song: "The Secret Sharer: Evaluating and Testing Unintended
Memorization in Neural Networks", USENIX Security 2019: exposure = log2 |R| − log2 rank (Definition 4),
estimated by sampling (section 4.4), and extraction by a search over prefixes (section 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Surprise = Callable[[Tensor], Tensor]  # secrets [M, L] → −log P of each token given those before [M, L]


def rank(own: float, others: Tensor) -> int:
    """The place of a secret among candidates, 1 for the least surprising; ties count against the attack."""
    return 1 + int((others <= own).sum())


def exposure(place: int, candidates: int) -> float:
    """−log2 of the share of secrets that are at least as likely as this one; at most log2(candidates + 1)."""
    return math.log2((candidates + 1) / place)


def search(surprise: Surprise, letters: Tensor, length: int, width: int = 50) -> Tensor:
    """[L]: the most likely secret, by a beam search of `width` prefixes."""
    beam = torch.zeros(1, 0, dtype=torch.int64)
    for at in range(length):
        grown = torch.cat([beam.repeat_interleave(len(letters), 0), letters.repeat(len(beam))[:, None]], 1)
        filled = torch.cat([grown, letters[:1].expand(len(grown), length - at - 1)], 1)
        cost = surprise(filled)[:, : at + 1].sum(1)
        beam = grown[cost.argsort()[:width]]
    return beam[0]
