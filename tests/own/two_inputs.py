"""Models with several inputs that test processes import."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TwoInputs(nn.Module):
    """Embedded words (whole numbers, with a mask) beside measurements (real numbers)."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.numbers = nn.Linear(4, 5)
        self.out = nn.Linear(10, classes)

    def forward(self, ids: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        m = mask.unsqueeze(-1).float()
        text = (self.words(ids) * m).sum(1) / m.sum(1).clamp(min=1)
        return self.out(torch.tanh(torch.cat([text, self.numbers(numbers)], 1)))


def two_inputs() -> nn.Module:
    torch.manual_seed(0)
    return TwoInputs()
