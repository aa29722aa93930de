"""A plain PyTorch loop as a party: full batches of SGD, as `tacit.train` does with batch_size=None."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import tacit


class Scaled(nn.Module):
    """A frozen layer, a batch norm, and a layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.frozen(x)))


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10) if kind != "norm" else Scaled()


def main(kind: str, party: str) -> None:
    torch.set_num_threads(1)
    model = build(kind)
    with tacit.client() as c:
        assert c.party == party
        x, y = c.rows()
        for task in c:
            # what is frozen is not in the weights; all else is, as load_state_dict wants it
            missing = model.load_state_dict(task.weights, strict=False)
            assert not missing.unexpected_keys
            assert set(missing.missing_keys) == {k for k in model.state_dict() if k.startswith("frozen")}
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=task.lr)
            for _ in range(task.local_epochs):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            if kind == "fails" and task.round == 2 and party == "p1":
                raise ZeroDivisionError("in row 17")
            c.send(model.state_dict(), rows=len(y), metrics={"loss": loss.item(), "kept": 1.0})


if __name__ == "__main__":
    main(*sys.argv[1:])
