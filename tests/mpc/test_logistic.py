from __future__ import annotations

import pytest
import torch

import tacit
from tacit.errors import BadData, BadParameter


def plain(x, y, epochs, lr, batch):
    """Gradient descent in float64, written out."""
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(epochs):
        for rows, labels in zip(x.split(batch), y.split(batch)):
            w = w - lr / len(rows) * rows.T @ (torch.sigmoid(rows @ w) - labels)
    return w


@pytest.mark.parametrize("parties", [2, 3])
def test_it_is_gradient_descent(parties):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(70, 4, generator=rng, dtype=torch.float64)
    y = (
        x @ torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64) + 0.3 * torch.randn(70, generator=rng)
        > 0.2
    ).double()
    made = tacit.mpc.train_logistic(
        tacit.mpc.share(x, parties), tacit.mpc.share(y, parties), epochs=3, lr=2.0, batch=32
    )
    assert (made.open() - plain(x, y, 3, 2.0, 32)).abs().max() < 5e-3
    assert "OutputShare" in {line.kind for line in made.ledger.seen}


def test_on_real_rows_it_is_as_accurate_as_in_the_clear():
    rows = tacit.data.breast_cancer()
    x = rows.rows.x.double()
    x = (x - x.mean(0)) / x.std(0)
    y = rows.rows.y.double()
    w = (
        tacit.mpc.train_logistic(tacit.mpc.share(x), tacit.mpc.share(y), epochs=2, lr=0.5, batch=64)
        .open()
        .double()
    )
    clear = plain(x, y, 2, 0.5, 64)
    right = [float(((x @ v[:-1] + v[-1] > 0) == (y > 0)).double().mean()) for v in (w, clear)]
    assert right[0] == pytest.approx(right[1], abs=0.005)
    assert right[0] > 0.95


def test_bad_requests_are_refused():
    x, y = tacit.mpc.share(torch.ones(4, 2)), tacit.mpc.share(torch.ones(4))
    with pytest.raises(
        BadParameter, match="train_logistic: epochs is 0; it must be a whole number of at least 1"
    ):
        tacit.mpc.train_logistic(x, y, epochs=0)
    with pytest.raises(BadParameter, match="lr is -1"):
        tacit.mpc.train_logistic(x, y, lr=-1)
    with pytest.raises(BadData, match=r"x has shape \[4, 2\] and y \[4, 2\]"):
        tacit.mpc.train_logistic(x, x)


def test_it_is_trained_on_plain_shares_only():
    x, y = tacit.mpc.share(torch.ones(4, 2), checked=True), tacit.mpc.share(torch.ones(4), checked=True)
    with pytest.raises(
        BadParameter, match="train_logistic: x is 'CheckedTensor'; it must be a tensor shared with"
    ):
        tacit.mpc.train_logistic(x, y)
