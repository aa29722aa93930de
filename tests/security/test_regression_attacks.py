"""Attacks on `tacit.regress` by its own participants, on the breast cancer table: a label holder that wants the other party's columns, and a party with columns
that wants the labels of the training rows. The attacker follows the protocol and keeps everything it was sent (semi-honest)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import tacit
from tacit import data
from tacit.data.vertical import Columns, Vertical
from tacit.parties import Ledger, decode
from tacit.parties.conformance import Tap
from tacit.runtimes import InProcess

KNOWN = 7  # rows of the other party that the label holder knows already


class Recorder:
    """The in-process runtime, with every frame kept."""

    def __init__(self) -> None:
        self.tap = Tap()

    def run_sync(self, programs, ledger: Ledger | None = None):
        return InProcess().run_sync(self.tap.on(programs), ledger=ledger)

    def tensors(self, sender: str, to: str) -> list[tuple[str, Tensor]]:
        """(kind, tensor) for each tensor that `sender` sent to `to`, in order."""
        found = []
        for by, at, _, frame in self.tap.frames:
            if (by, at) == (sender, to):
                message = decode(frame)
                for name in message.forms:
                    value = getattr(message, name)
                    found += [(message.kind, v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, Tensor)]
        return found


def parties(host: range, shuffled_labels: bool = False) -> Vertical:
    """Breast cancer: the guest has the label and the first columns, the host the given ones."""
    rows = data.breast_cancer().rows
    x = (rows.x - rows.x.mean(0)) / rows.x.std(0)
    y = rows.y[torch.randperm(len(rows.y), generator=torch.Generator().manual_seed(1))] if shuffled_labels else rows.y
    ids = np.arange(len(x))
    guest = [i for i in range(10) if i not in host]
    held = {"guest": Columns("guest", ids, x[:, guest], tuple(map(str, guest)), None, y, 2, ("0", "1")),
            "host": Columns("host", ids, x[:, list(host)], tuple(map(str, host)), None, None, None, ())}
    return Vertical.of(held, "guest", 0.01, 0)


def rebuild_columns(vectors: list[np.ndarray], truth: np.ndarray) -> float:
    """The share of the host's unknown cells that come within 0.01 standard deviations.

    Linear scores of the host lie in the span of its p columns. The attacker takes the p strongest directions of all vectors it saw, and the rows it
    knows fix the map from them to the columns.
    """
    seen = np.stack(vectors, 1)
    base = np.linalg.svd(seen / np.linalg.norm(seen, axis=0), full_matrices=False)[0][:, :truth.shape[1]]
    found = base @ np.linalg.lstsq(base[:KNOWN], truth[:KNOWN], rcond=None)[0]
    return float((np.abs(found - truth)[KNOWN:] <= 0.01 * truth.std(0)).mean())


def guess_labels(rows: list[np.ndarray], gradients: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """−residual for each row, by least squares from Xᵀr = g of every step: large where the label is 1."""
    equations = np.zeros((sum(map(len, gradients)), len(x)))
    at = 0
    for batch, g in zip(rows, gradients):
        equations[at:at + len(g), batch] = x[batch].T
        at += len(g)
    return -np.linalg.lstsq(equations, np.concatenate(gradients), rcond=1e-9)[0]


def orders(rows: int, batch: int, epochs: int, seed: int = 0) -> list[np.ndarray]:
    """The public order of the rows, step by step."""
    from tacit.protocols.vertical import Terms
    terms = Terms(("host",), "guest", rows, epochs=epochs, batch_size=batch, seed=seed)
    return [b.numpy() for e in range(epochs) for b in terms.batches(e)]


def test_the_label_holder_cannot_rebuild_the_hosts_columns():
    listening, table = Recorder(), parties(range(10, 17))
    tacit.regress(table, epochs=20, batch_size=1024, lr=1.0, runtime=listening)
    n, seen = len(table.train), []
    order = orders(n, 1024, 20)
    for kind, v in listening.tensors("host", "guest"):
        if v.numel() == n and v.abs().max() > 0:
            values = np.zeros(n)
            values[order[min(len(seen) + 1, 19)]] = v.double().flatten().numpy()
            seen.append(values)
    print(len(seen), rebuild_columns(seen, table.parties["host"].x[table.train].double().numpy()))
    assert rebuild_columns(seen, table.parties["host"].x[table.train].double().numpy()) < 0.05


def test_a_party_with_columns_cannot_guess_training_labels(monkeypatch):
    from tacit.crypto import bfv
    from tacit.protocols import vertical
    table, epochs, batch = parties(range(10, 30), shuffled_labels=True), 6, 64
    gradients = []
    whole = bfv.centred

    def watched(v):
        got = whole(v)
        if got.shape == (20,):
            gradients.append(got * 2.0**-36)
        return got
    monkeypatch.setattr(vertical.bfv, "centred", watched)
    tacit.regress(table, epochs=epochs, batch_size=batch, lr=0.02)
    x = table.parties["host"].x[table.train].double().numpy()
    guess = guess_labels(orders(len(x), batch, epochs), gradients, x)
    auc = roc_auc_score(table.y[table.train].numpy(), guess)
    print(len(gradients), auc)
    assert auc < 0.75
