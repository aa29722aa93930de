"""One contender of benchmarks/dpsgd.py: plain SGD, tacit, or one of Opacus' modes. Prints the CPU seconds of the
best epoch and the peak resident memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from typing import Any

import torch
from torch import nn

ROWS, BATCH, EPOCHS = 5000, 250, 3


def network(name: str) -> nn.Module:
    if name == "small":  # Opacus' MNIST example
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, 3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def batches(x: torch.Tensor, y: torch.Tensor) -> Any:
    order = torch.randperm(ROWS)
    for i in range(0, ROWS, BATCH):
        rows = order[i : i + BATCH]
        yield x[rows], y[rows]


def main(mode: str, name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network(name)
    x, y = torch.randn(ROWS, 1, 28, 28), torch.randint(0, 10, (ROWS,))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion: Any = nn.CrossEntropyLoss()
    draws: Any = lambda: batches(x, y)  # noqa: E731
    if mode == "tacit":
        from tacit.private import DPSGD

        session = DPSGD(noise_multiplier=1.1, delta=1e-5).attach(model, optimizer, (x, y), batch_size=BATCH)
        draws = lambda: session  # noqa: E731
        criterion = nn.CrossEntropyLoss(reduction="none")
    elif mode != "plain":
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        more = {"criterion": criterion} if mode == "ghost" else {}
        loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
        private = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.1,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
            **more,
        )
        model, optimizer = private[0], private[1]
        criterion = private[2] if mode == "ghost" else criterion

    def epoch() -> float:
        begun = time.process_time()
        for a, b in draws():
            optimizer.zero_grad()
            loss = criterion(model(a), b)
            loss.backward() if mode != "tacit" else session.backward(loss)
            optimizer.step()
        return time.process_time() - begun

    epoch()
    seconds = min(epoch() for _ in range(EPOCHS))
    print(
        json.dumps({"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
