"""A small model with rows, and a loop over a private loader, for the tests of DP-SGD."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

N = 200


def world(seed=0, rows=N):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.randn(rows, 6), torch.randint(0, 3, (rows,))


def sgd(model, lr=0.5, **more):
    return torch.optim.SGD(model.parameters(), lr=lr, **more)


def epoch(private, model, optimizer):
    for x, y in private:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def values(model):
    return [p.detach().clone() for p in model.parameters()]
