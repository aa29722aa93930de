"""Linear and logistic regression over columns that lie with different parties, with encrypted residuals.

After S. Hardy and others: Private federated learning on vertically partitioned data via entity resolution and additively homomorphic encryption, 2017, without
their third party, and with σ itself instead of its Taylor polynomial.

    host k (columns X_k, weights w_k)                   guest (label y, its own columns, a key)
                                                          |  once: |--- RegressionKey(public) --->| to every host
      |--- Scores(X_k w_k) of a batch ------------------->|  r = σ(Σ scores) − y, or Σ scores − y
      |<-- EncryptedResiduals(E(r)) ----------------------|  its own weights: w ← w − η(Xᵀr/n + λw)
      |--- MaskedColumns(E(r∘x_j + m_j) for each j) ----->|  opens, adds up over rows
      |<-- MaskedGradient(Σ r∘x_j + Σ m_j mod t) ---------|
      |  takes Σ m_j away: its gradient X_kᵀr             |

The guest learns each host's score of every row in every step (one number a row, of all its columns together), and no column, weight or gradient: the masks are
uniform modulo t. A host learns its own gradients, sums over a batch, and no residual; a batch must have at least twice as many rows as it has columns, or it
could solve for them. It rests on ring learning with errors (crypto/bfv.py) and on parties that follow the protocol (semi-honest).

Residuals and columns are rounded to 2^-18; the rest is float64. A step's gradient is the pooled one's (`ideal`) to 2^-18 · (mean |x| + mean |r|).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..crypto import bfv
from ..crypto.prg import KEY
from ..errors import BadData, ProtocolError
from ..parameters import bad, choice, real, whole
from ..parties.message import Message
from ..parties.party import Party

FRACTION = 18  # bits of a residual and of a column behind the point
ROOM = 2.0**20  # |Σ r·x| of a batch: 57 bits less a sign and 36 fractional ones
REACH = {"logistic": 1.0, "linear": 64.0}  # the largest residual; of linear regression in deviations of the label, above which it diverges
ASSUMES = ("SEMI-HONEST: every party follows its program. The guest sees each host's linear score of every row at every step; columns, weights and residuals "
           "stay with their holders.")


class RegressionKey(Message, reveals="a public key of the guest's, and the settings of the run"):
    key: bytes
    terms: str


class Scores(Message, reveals="the host's linear score of each row: one number that all its columns make together"):
    step: int
    values: Tensor


class EncryptedResiduals(Message, reveals="what is left of the labels after the scores, encrypted (BFV, 128-bit security) under a key only the guest has"):
    step: int
    box: bytes


class MaskedColumns(Message, reveals="products of residuals and columns under one-time masks: uniform numbers"):
    step: int
    boxes: list[bytes]


class MaskedGradient(Message, reveals="the host's own gradient under its own mask: sums of residuals times its columns over a batch"):
    step: int
    values: Tensor


@dataclass(frozen=True)
class Terms:
    """What all parties agree on."""

    hosts: tuple[str, ...]
    guest: str
    rows: int = whole(least=2, doc="to learn from")
    tests: int = whole(0, least=0, doc="held out")
    family: str = choice("logistic", ("logistic", "linear"), doc="of classes 0 and 1, or of numbers")
    epochs: int = whole(20, least=1, doc="passes over the rows")
    batch_size: int = whole(1024, least=2, most=bfv.SLOTS, doc="rows in a step; one ciphertext holds up to 16,384")
    lr: float = real(0.5, above=0, doc="η, the step")
    l2: float = real(0.0, least=0, doc="λ, the ridge on all weights but the intercept")
    seed: int = whole(0, least=0, doc="the order of the rows follows from it")

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def batches(self, epoch: int) -> list[Tensor]:
        order = torch.from_numpy(np.random.default_rng([self.seed, epoch, 1]).permutation(self.rows))
        made = list(order.split(self.batch_size))
        if len(made) > 1 and len(made[-1]) < self.batch_size:  # a small last batch would tell a host single residuals
            made[-2:] = [torch.cat(made[-2:])] if len(made[-1]) + len(made[-2]) <= bfv.SLOTS else made[-2:-1]
        return made


def residual(family: str, score: Tensor, y: Tensor) -> Tensor:
    return (torch.sigmoid(score) if family == "logistic" else score) - y


def loss_of(family: str, score: Tensor, y: Tensor) -> float:
    if family == "linear":
        return float(((score - y) ** 2).mean() / 2)
    return float(torch.nn.functional.binary_cross_entropy_with_logits(score, y))


async def guest(me: Party, terms: Terms, x: Tensor, y: Tensor, test_x: Tensor | None = None) -> dict[str, Any]:
    """{"weights": the guest's, the intercept last; "history"; "scores" of the held-out rows}. `x` may have no columns."""
    me.ledger.stamp(ASSUMES)
    secret, public = await asyncio.to_thread(bfv.keys)
    await me.send(terms.hosts, RegressionKey(public, terms.text()))
    box = bfv.Box(secret)
    x, y = _with_one(x.double()), y.double()
    w, step, history = torch.zeros(x.shape[1], dtype=torch.float64), 0, []
    for epoch in range(terms.epochs):
        total = 0.0
        for rows in terms.batches(epoch):
            came = await me.gather(terms.hosts, Scores)
            score = x[rows] @ w + sum(_scores(name, m, step, len(rows)) for name, m in came.items())
            r = residual(terms.family, score, y[rows])
            if not bool((r.abs() <= REACH[terms.family]).all()):
                raise BadData(f"a residual of {float(r.abs().max()):.3g} in epoch {epoch + 1}: the regression diverges. "
                              "Take a smaller lr, or scale the columns.")
            total += loss_of(terms.family, score, y[rows]) * len(rows)
            held = await asyncio.to_thread(box.encrypt, _tiled(r, len(rows)))
            await me.send(terms.hosts, EncryptedResiduals(step, held))
            gradient = x[rows].T @ r / len(rows) + terms.l2 * torch.cat([w[:-1], torch.zeros(1, dtype=torch.float64)])
            w = w - terms.lr * gradient
            for name, masked in (await me.gather(terms.hosts, MaskedColumns)).items():
                sums = await asyncio.to_thread(_sums, box, name, masked, step, len(rows))
                await me.send(name, MaskedGradient(step, torch.from_numpy(sums)))
            step += 1
        history.append({"epoch": epoch + 1, "train_loss": total / sum(map(len, terms.batches(epoch)))})
    scores = None
    if terms.tests and test_x is not None:
        came = await me.gather(terms.hosts, Scores)
        scores = _with_one(test_x.double()) @ w + sum(_scores(name, m, step, terms.tests) for name, m in came.items())
    return {"weights": w, "history": history, "scores": scores}


async def host(me: Party, terms: Terms, x: Tensor, test_x: Tensor | None = None) -> dict[str, Any]:
    """{"weights": the host's}."""
    me.ledger.stamp(ASSUMES)
    x = x.double()
    d = x.shape[1]
    smallest = min(len(rows) for rows in terms.batches(0))
    if smallest < 2 * d:
        raise BadData(f"{me.name!r} has {d} columns and batches of {smallest} rows: from its own gradients it could solve for single labels. "
                      f"Take batch_size of at least {2 * d}.")
    most = float(x.abs().max()) * REACH[terms.family] * min(terms.batch_size, terms.rows)
    if not most < ROOM:
        raise BadData(f"{me.name!r} has a number of {float(x.abs().max()):.3g} in its columns: sums over a batch could reach {most:.3g} and must stay "
                      f"below {ROOM:.3g}. Standardise the columns, or take smaller batches.")
    told = await me.recv(terms.guest, RegressionKey)
    if told.terms != terms.text():
        raise ProtocolError(f"{terms.guest!r} and {me.name!r} have different settings: {told.terms:.200} and {terms.text():.200}. All must start the same job.")
    box = await asyncio.to_thread(bfv.Box, told.key)
    whole_x = torch.round(x * 2**FRACTION).to(torch.int64).numpy()
    w, step = torch.zeros(d, dtype=torch.float64), 0
    for epoch in range(terms.epochs):
        for rows in terms.batches(epoch):
            await me.send(terms.guest, Scores(step, x[rows] @ w))
            held = await me.recv(terms.guest, EncryptedResiduals)
            if held.step != step:
                raise ProtocolError(f"{terms.guest!r} is at step {held.step}, {me.name!r} at {step}.")
            boxes, masks = await asyncio.to_thread(_products, box, held.box, whole_x[rows.numpy()], me.secret.bytes(2 * KEY))
            await me.send(terms.guest, MaskedColumns(step, boxes))
            came = await me.recv(terms.guest, MaskedGradient)
            due = len(boxes) * _copies(len(rows))  # a ciphertext's columns that we have not are nobody's
            if came.step != step or came.values.dtype != torch.int64 or tuple(came.values.shape) != (due,):
                raise ProtocolError(f"{terms.guest!r} sent {tuple(came.values.shape)} sums for step {came.step}; {due} for step {step} are due.")
            found = bfv.centred((came.values[:d].numpy() % bfv.PRIME) - masks).astype(np.float64) * 2.0 ** (-2 * FRACTION)
            w = w - terms.lr * (torch.from_numpy(found) / len(rows) + terms.l2 * w)
            step += 1
    if terms.tests and test_x is not None:
        await me.send(terms.guest, Scores(step, test_x.double() @ w))
    return {"weights": w}


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def _scores(name: str, came: Scores, step: int, rows: int) -> Tensor:
    if came.step != step or came.values.dtype != torch.float64 or tuple(came.values.shape) != (rows,) or not torch.isfinite(came.values).all():
        raise ProtocolError(f"{name!r} sent scores of {tuple(came.values.shape)} for step {came.step}; {rows} finite ones for step {step} are due.")
    return came.values


def _copies(rows: int) -> int:
    """Columns that share a ciphertext: residuals stand in it as often as they fit."""
    return bfv.SLOTS // rows


def _tiled(r: Tensor, rows: int) -> np.ndarray:
    return np.tile(torch.round(r * 2**FRACTION).to(torch.int64).numpy(), _copies(rows))


def _products(box: bfv.Box, residuals: bytes, x: np.ndarray, keys: bytes) -> tuple[list[bytes], np.ndarray]:
    """(E(r∘x_j + m_j), column after column; Σ m_j modulo the prime)."""
    n, d = x.shape
    each = _copies(n)
    boxes, sums = [], np.empty(d, np.int64)
    for at in range(0, d, each):
        block = np.zeros((each, n), np.int64)
        block[:min(each, d - at)] = x[:, at:at + each].T
        about = at.to_bytes(4, "little")
        masks = bfv.uniform(keys[:KEY] + about, each * n).reshape(each, n)
        boxes.append(box.times(residuals, block.reshape(-1), masks.reshape(-1), keys[KEY:] + about))
        sums[at:at + each] = [bfv.total(m) for m in masks[:d - at]]
    return boxes, sums


def _sums(box: bfv.Box, name: str, came: MaskedColumns, step: int, rows: int) -> np.ndarray:
    if came.step != step:
        raise ProtocolError(f"{name!r} is at step {came.step}, the guest at {step}.")
    each = _copies(rows)
    return np.array([bfv.total(column) for boxed in came.boxes for column in box.decrypt(boxed, each * rows).reshape(each, rows)], np.int64)


def ideal(terms: Terms, x: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    """Pooled gradient descent on the same batches: each party's weights, the guest's intercept last."""
    names: Sequence[str] = (*terms.hosts, terms.guest)
    pooled = _with_one(torch.cat([x[name].double() for name in names], 1))
    w = torch.zeros(pooled.shape[1], dtype=torch.float64)
    ridge = torch.cat([torch.ones(len(w) - 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]) * terms.l2
    for epoch in range(terms.epochs):
        for rows in terms.batches(epoch):
            w = w - terms.lr * (pooled[rows].T @ residual(terms.family, pooled[rows] @ w, y[rows].double()) / len(rows) + ridge * w)
    parts = w[:-1].split([x[name].shape[1] for name in names])
    return {name: part if name != terms.guest else torch.cat([part, w[-1:]]) for name, part in zip(names, parts)}


def check(terms: Terms, columns: Mapping[str, int]) -> None:
    """What can be told before anything starts."""
    if terms.guest in terms.hosts or not terms.hosts:
        raise bad("regress", "parties", [*terms.hosts, terms.guest], "one that holds the label and at least one other with columns")
    for name in terms.hosts:
        if not columns[name]:
            raise bad("regress", f"the columns of {name!r}", 0, "at least one")
