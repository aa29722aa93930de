"""Federated transfer learning: two feature spaces with few shared ids.

Y. Liu, Y. Kang, C. Xing, T. Chen, Q. Yang: A Secure Federated Transfer Learning Framework, IEEE
Intelligent Systems 35(4), 2020, Section 3.

    source (columns A, labels of all its rows)              target (columns B, no labels)
      |<---------------- Agreed(settings, ids) ---------------->|
      |  trains alone on its labels                             |  trains an autoencoder of its columns
      |<-- Activations(u_i^B of a batch of shared rows) --------|
      |--- CutGradients(∂L/∂u_i^B) ---------------------------->|  both update; repeated for each batch
      |--- Translator(Φ, b) ----------------------------------->|  at the end: the target predicts alone

u^A = f_A(x^A) and u^B = f_B(x^B) have equal width. The translator Φ = Σ_i c_i u_i^A maps a representation to
a score, φ(u) = Φ·u + b; c_i is ½ over the number of rows of its class, with the sign of its class (the
paper's y_i / N_A for classes of equal size). The learned offset b is our addition: it models class
frequencies. As in the paper there are two classes.

    L  =  ℓ(φ(u_i^B), y_i)                    labels of shared rows, on the target's representation (L₁)
       +  γ Σ ‖u_i^A − u_i^B‖² / n            representations of a shared row agree (L₂)
       +  own · ℓ(φ(u_j^A), y_j)              all labels of the source (ours: f_A uses all its rows)
       +  rebuild · ‖g_B(u^B) − x^B‖²         autoencoder on all rows of the target
       +  λ/2 (‖θ_A‖² + ‖θ_B‖²)               weight decay (L₃)

The source learns u^B of the shared rows in every step. The target learns Φ and b, and a gradient for each
shared row. Without `protect`, these reveal labels and representations to the target: the gradient of ℓ is
along ±Φ with the label's sign, and that of γ is u^A − u^B. Other rows, columns and weights are not sent.
Guards at the cut (splitnn_guards.py) weaken this without a bound; `mpc/transfer.py` reveals none of it.
Parties follow the protocol (semi-honest).

`ideal` is the same in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..errors import BadData, ProtocolError
from ..parameters import real, whole
from ..parties.message import Message
from ..parties.party import Party
from . import splitnn_terms
from .splitnn import agree
from .splitnn_terms import Activations, CutGradients, SplitInputs, compute_loss
from .splitnn_worker import SplitWorker


class Translator(
    Message,
    reveals="the difference of the source's mean representations of its two classes, and how common they are",
):
    values: Tensor
    offset: Tensor


@dataclass(frozen=True)
class TransferTerms(splitnn_terms.SplitTerms):
    """Settings of both parties: one route, from the target to the source; `rows` are the shared ones."""

    width: int = whole(8, least=1, doc="numbers in a representation")
    first_epochs: int = whole(
        100,
        least=0,
        doc="steps each party takes alone first: the source on its labels, the target on its autoencoder",
    )
    lr: float = real(0.01, above=0, doc="η of Adam")
    weight_decay: float = real(0.03, least=0, doc="λ, on all weights")
    gamma: float = real(
        1.0, least=0, doc="γ: the weight of agreement of the two representations of a shared row"
    )
    own: float = real(1.0, least=0, doc="the weight of the source's own labeled rows")
    rebuild: float = real(1.0, least=0, doc="the weight of the target's autoencoder")

    @property
    def source(self) -> str:
        return self.routes[0].stops[0]

    @property
    def target(self) -> str:
        return self.routes[0].sources[0]

    def adam(self, weights: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(weights, lr=self.lr, weight_decay=self.weight_decay)


def codes(y: Tensor) -> Tensor:
    """Return c: (rows, 1). It sums to ½ over the second class and to −½ over the first."""
    second = y == 1
    if not 0 < int(second.sum()) < len(y):
        raise BadData(
            f"the source has {int(second.sum())} rows of the second class among {len(y)}; it needs rows of "
            "both classes."
        )
    return torch.where(second, 0.5 / second.sum(), -0.5 / (~second).sum())[:, None]


class Offset(nn.Module):
    """b, added to scores."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.b


def source_loss(
    terms: TransferTerms, u: Tensor, offset: nn.Module, c: Tensor, y: Tensor, at: Tensor, theirs: Tensor
) -> Tensor:
    """Return the terms of L at the source, for its rows `at` and the target's representations `theirs`."""
    total = (
        compute_loss(terms.loss, offset(theirs @ (c.T @ u).T), y[at])
        + terms.gamma * (u[at] - theirs).square().sum(1).mean()
    )
    return total + terms.own * own_loss(terms, u, offset, c, y) if terms.own else total


def own_loss(terms: TransferTerms, u: Tensor, offset: nn.Module, c: Tensor, y: Tensor) -> Tensor:
    return compute_loss(terms.loss, offset(u @ (c.T @ u).T), y)


def train_alone(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, count: int) -> list[float]:
    """Take `count` optimizer steps on a local loss; return the losses."""
    history = []
    for _ in range(count):
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        torch.autograd.backward(value)
        optimizer.step()
        history.append(float(value.detach()))
    return history


def check_labels(y: Tensor, names: Sequence[str] = ()) -> None:
    """Check that the shared rows contain at least two classes."""
    kinds = torch.unique(y).tolist()
    if len(kinds) < 2:
        what = repr(names[kinds[0]]) if names else kinds[0]
        raise BadData(
            f"the {len(y)} shared rows are all of class {what}, so the target could only learn to predict "
            "that class. Share rows of at least two classes."
        )


async def source(
    me: Party, terms: TransferTerms, mine: SplitInputs, shared: Tensor, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the party with labels; return {"history", "state", "translator", "offset"}.

    `mine` has its encoder as `bottom`, the offset as stop 0, and all its rows as x[0] and y[0]; `shared` are
    the indices of the shared rows, in the common order.
    """
    worker, x, y = SplitWorker(me, terms, mine), mine.x[0], mine.y[0]
    encoder, offset, c = mine.bottom, mine.stops[0], codes(y)
    assert encoder is not None
    assert worker.optimizer is not None
    check_labels(y[shared], names)
    await agree(me, terms, mine)
    train_alone(lambda: own_loss(terms, encoder(x), offset, c, y), worker.optimizer, terms.first_epochs)
    history, step = [], 0
    for epoch in range(terms.epochs):
        summed = 0.0
        for rows in terms.batches(epoch, 0):
            theirs = (await worker.recv(terms.target, Activations, step, len(rows))).requires_grad_()
            if theirs.shape != (len(rows), terms.width):
                raise ProtocolError(
                    f"{terms.target!r} sent representations of {tuple(theirs.shape)}; "
                    f"{(len(rows), terms.width)} is due."
                )
            loss = source_loss(terms, encoder(x), offset, c, y, shared[rows], theirs)
            worker.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            await worker.send_gradient(terms.target, step, theirs.grad, y[shared[rows]])
            worker.optimizer.step()
            summed, step = summed + float(loss.detach()) * len(rows), step + 1
        history.append({"epoch": epoch + 1, "train_loss": summed / terms.rows[0]})
        if not torch.isfinite(torch.tensor(summed)):
            raise BadData(
                f"the loss is {summed} in epoch {epoch + 1}: the networks diverge. Take a smaller learning "
                "rate, or scale the columns."
            )
    with torch.no_grad():
        phi, b = c.T @ encoder(x), offset(torch.zeros(1))
    await me.send(terms.target, Translator(phi, b))
    return {"history": history, "state": state_of(encoder), "translator": phi, "offset": b}


async def target(me: Party, terms: TransferTerms, mine: SplitInputs, shared: Tensor) -> dict[str, Any]:
    """Run the party without labels.

    `mine` has its encoder as `bottom`, its decoder as stop 0, and all its rows as x[0].
    """
    worker, x = SplitWorker(me, terms, mine), mine.x[0]
    encoder, decoder = mine.bottom, mine.stops[0]
    assert encoder is not None
    assert worker.optimizer is not None
    await agree(me, terms, mine)
    train_alone(lambda: mse_loss(decoder(encoder(x)), x), worker.optimizer, terms.first_epochs)
    step = 0
    for epoch in range(terms.epochs):
        for rows in terms.batches(epoch, 0):
            z, _ = worker.forward_bottom(x[shared[rows]], (step,))
            await worker.send(terms.source, step, z)
            gradient = await worker.recv(terms.source, CutGradients, step, len(rows))
            worker.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(z, gradient)
            if terms.rebuild:
                torch.autograd.backward(terms.rebuild * mse_loss(decoder(encoder(x)), x))
            worker.optimizer.step()
            step += 1
    message = await me.recv(terms.source, Translator, within=mine.within)
    for value, due in ((message.values, (1, terms.width)), (message.offset, (1,))):
        if value.shape != due or value.dtype != torch.float32 or not torch.isfinite(value).all():
            raise ProtocolError(
                f"{terms.source!r} sent a translator of {tuple(value.shape)}, {value.dtype}; finite float32 "
                f"of {due} is due."
            )
    return {"state": state_of(encoder), "translator": message.values, "offset": message.offset}


def state_of(encoder: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in encoder.state_dict().items()}


def ideal(
    terms: TransferTerms,
    a: nn.Module,
    b: nn.Module,
    decoder: nn.Module,
    x_a: Tensor,
    y: Tensor,
    x_b: Tensor,
    shared: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Train the same without guards in one place; return Φ and b."""
    c, offset = codes(y), Offset()
    first, second = (
        terms.adam([*a.parameters(), *offset.parameters()]),
        terms.adam([*b.parameters(), *decoder.parameters()]),
    )
    train_alone(lambda: own_loss(terms, a(x_a), offset, c, y), first, terms.first_epochs)
    train_alone(lambda: mse_loss(decoder(b(x_b)), x_b), second, terms.first_epochs)
    for epoch in range(terms.epochs):
        for rows in terms.batches(epoch, 0):
            loss = source_loss(terms, a(x_a), offset, c, y, shared[0][rows], b(x_b[shared[1][rows]]))
            loss = loss + terms.rebuild * mse_loss(decoder(b(x_b)), x_b)
            for o in (first, second):
                o.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            for o in (first, second):
                o.step()
    with torch.no_grad():
        return c.T @ a(x_a), offset(torch.zeros(1))
