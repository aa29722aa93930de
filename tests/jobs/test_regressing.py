"""tacit.regress: pooled regression's answer from columns that never meet."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit import data
from tacit.errors import BadParameter


def test_encrypted_and_shared_logistic_regression_equal_the_pooled_one():
    parties = data.breast_cancer().vertical(into={"guest": range(10), "host": range(10, 30)}, label_at="guest")
    x = torch.cat([parties.parties[n].x[parties.train] for n in ("guest", "host")], 1).double()
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    y, w = parties.y[parties.train].double(), torch.zeros(31, dtype=torch.float64)
    for _ in range(3):
        w = w - 0.5 * x.T @ (torch.sigmoid(x @ w) - y) / len(y)
    for secure, tolerance in (("encrypted", 1e-5), ("shared", 1e-3)):
        run = tacit.regress(parties, secure=secure, epochs=3, batch_size=512)
        assert torch.allclose(torch.cat([run.weights["guest"], run.weights["host"]]), w[:30], rtol=0, atol=tolerance)
        assert abs(run.intercept - float(w[30])) < tolerance
        assert run.metrics["auc"] > 0.95


def test_numbers_come_out_in_their_own_units_in_processes_too():
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(200, 2, generator=g), "b": torch.randn(200, 3, generator=g)}
    y = 100 + 20 * (x["a"] @ torch.tensor([1.0, -2.0]) + x["b"] @ torch.tensor([0.5, 0.0, 3.0])) + 0.01
    run = tacit.regress(x, {"a": y}, epochs=40, lr=0.5, test_fraction=0.1, runtime=tacit.Processes())
    assert torch.allclose(run.weights["b"], torch.tensor([10.0, 0.0, 60.0], dtype=torch.float64), atol=0.05)
    assert abs(run.intercept - 100) < 0.1
    assert run.metrics["r2"] > 0.999


def test_labels_without_columns_of_their_own():
    g = torch.Generator().manual_seed(0)
    x = {"a": torch.randn(100, 2, generator=g), "b": torch.randn(100, 2, generator=g)}
    y = (x["a"][:, 0] - x["b"][:, 1] > 0).long()
    run = tacit.regress(x, {"registry": y}, epochs=5)
    assert set(run.weights) == {"a", "b"}
    assert run.metrics["auc"] > 0.9


@pytest.mark.parametrize(("told", "words"), [
    ({"secure": "trust"}, r"secure is 'trust'; it must be 'encrypted' or 'shared'"),
    ({"family": "linear"}, r"family is 'linear'; it must be 'logistic' for two classes, 'linear' for numbers\. These labels are of 2 classes"),
    ({"batch_size": 20000}, r"batch_size is 20000; it must be a whole number at least 2 and at most 16384"),
    ({"secure": "shared", "l2": 0.1}, r"l2 is 0\.1; it must be 0 with secure='shared'"),
    ({"secure": "shared", "lr": 0}, r"lr is 0; it must be a number above 0 and at most 64")])
def test_bad_requests(told, words):
    x = {"a": torch.randn(40, 2), "b": torch.randn(40, 2)}
    with pytest.raises(BadParameter, match=words):
        tacit.regress(x, {"a": torch.arange(40) % 2}, **told)
