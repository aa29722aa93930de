"""Federated transfer learning: two feature spaces, joined through the few ids that both have.

Y. Liu, Y. Kang, C. Xing, T. Chen, Q. Yang: A Secure Federated Transfer Learning Framework, IEEE
Intelligent Systems 35(4), 2020, Section 3.

    source (columns A, labels of all its rows)              target (columns B, no labels)
      |<---------------- Agreed(settings, ids) ---------------->|
      |  learns alone from its labels                           |  learns to rebuild its own columns
      |<-- Activations(u_i^B of a batch of shared rows) --------|
      |--- CutGradients(∂L/∂u_i^B) ---------------------------->|  both parts learn; so on, batch by batch
      |--- Translator(Φ, b) ----------------------------------->|  at the end: from here on the target predicts alone

u^A = f_A(x^A) and u^B = f_B(x^B) are equally wide. The translator Φ = Σ_i c_i u_i^A takes a representation
to a score, φ(u) = Φ·u + b; c_i is ½ over the number of rows of its class, with its class's sign (the
paper's y_i / N_A where classes are equally large), and b, which the source learns, is ours: it says how
common a class is. As in the paper there are two classes.

    L  =  ℓ(φ(u_i^B), y_i)                    labels of shared rows, on the target's representation      (their L₁)
       +  γ Σ ‖u_i^A − u_i^B‖² / n            the two representations of a shared row agree               (their L₂)
       +  own · ℓ(φ(u_j^A), y_j)              all labels of the source, on its own representation         (ours: without it f_A learns from shared rows only)
       +  rebuild · ‖g_B(u^B) − x^B‖²         all rows of the target: their stacked autoencoders, kept on
       +  λ/2 (‖θ_A‖² + ‖θ_B‖²)               their L₃

The source learns u^B of the shared rows, as they change from step to step: what f_B lets through of these
people's columns. The target learns Φ and b, and a gradient for each shared row. These are not hidden from
it: the part of ℓ lies along ±Φ with the label's sign, the part of γ is u^A − u^B, so that without
`protect` it can read the labels of the shared rows and the source's representation of them. Neither side's
other rows, columns, or weights are sent. Guards at the cut (splitnn_guards.py) weaken this and give no
bound; `mpc/transfer.py` shows neither side any of it. Parties follow the protocol (semi-honest).

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
from .splitnn_terms import Activations, CutGradients, SplitInputs, losses
from .splitnn_worker import SplitWorker


class Translator(
    Message,
    reveals="the difference of the source's mean representations of its two classes, and how common they are",
):
    values: Tensor
    offset: Tensor


@dataclass(frozen=True)
class TransferTerms(splitnn_terms.SplitTerms):
    """What both agree on: one route, from the target to the source; `rows` are the shared ones."""

    width: int = whole(8, least=1, doc="numbers in a representation")
    first_epochs: int = whole(
        100,
        least=0,
        doc="steps each takes alone before they meet: the source with its labels, the target to rebuild its "
        "columns",
    )
    lr: float = real(0.01, above=0, doc="η of Adam")
    weight_decay: float = real(0.03, least=0, doc="λ, on all weights")
    gamma: float = real(1.0, least=0, doc="γ: how much the two representations of a shared row are to agree")
    own: float = real(1.0, least=0, doc="the weight of the source's own labelled rows")
    rebuild: float = real(
        1.0, least=0, doc="the weight of rebuilding the target's columns from its representation"
    )

    @property
    def source(self) -> str:
        return self.routes[0].stops[0]

    @property
    def target(self) -> str:
        return self.routes[0].sources[0]

    def adam(self, weights: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(weights, lr=self.lr, weight_decay=self.weight_decay)


def codes(y: Tensor) -> Tensor:
    """c: (rows, 1). Of the second class's rows ½ in all, of the first's −½."""
    second = y == 1
    if not 0 < int(second.sum()) < len(y):
        raise BadData(
            f"the source has {int(second.sum())} rows of the second class among {len(y)}; it needs some of "
            "either."
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
    """Everything of L that the source can see: `at` are its rows of this batch, `theirs` the target's
    representations of them.
    """
    total = (
        losses(terms.loss, offset(theirs @ (c.T @ u).T), y[at])
        + terms.gamma * (u[at] - theirs).square().sum(1).mean()
    )
    return total + terms.own * own_loss(terms, u, offset, c, y) if terms.own else total


def own_loss(terms: TransferTerms, u: Tensor, offset: nn.Module, c: Tensor, y: Tensor) -> Tensor:
    return losses(terms.loss, offset(u @ (c.T @ u).T), y)


def alone(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, count: int) -> list[float]:
    """So many steps down a loss that one party sees by itself; the losses on the way."""
    passed = []
    for _ in range(count):
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        passed.append(float(value.detach()))
    return passed


def enough(y: Tensor, names: Sequence[str] = ()) -> None:
    """Labels of the shared rows that something can be learned from."""
    kinds = torch.unique(y).tolist()
    if len(kinds) < 2:
        what = repr(names[kinds[0]]) if names else kinds[0]
        raise BadData(
            f"the {len(y)} shared rows are all of class {what}, so the target would learn to say so of "
            "everybody. "
            "Share rows of at least two classes."
        )


async def source(
    me: Party, terms: TransferTerms, mine: SplitInputs, shared: Tensor, names: Sequence[str] = ()
) -> dict[str, Any]:
    """The program of the party with labels: `mine` has its encoder as `bottom`, the offset as stop 0, all its
    rows as x[0] and y[0]; `shared` says which are shared, in the common order. Gives {"history", "state",
    "translator", "offset"}.
    """
    seat, x, y = SplitWorker(me, terms, mine), mine.x[0], mine.y[0]
    encoder, offset, c = mine.bottom, mine.stops[0], codes(y)
    assert encoder is not None
    assert seat.optimizer is not None
    enough(y[shared], names)
    await agree(me, terms, mine)
    alone(lambda: own_loss(terms, encoder(x), offset, c, y), seat.optimizer, terms.first_epochs)
    history, step = [], 0
    for epoch in range(terms.epochs):
        summed = 0.0
        for rows in terms.batches(epoch, 0):
            theirs = (await seat.recv(terms.target, Activations, step, len(rows))).requires_grad_()
            if theirs.shape != (len(rows), terms.width):
                raise ProtocolError(
                    f"{terms.target!r} sent representations of {tuple(theirs.shape)}; "
                    f"{(len(rows), terms.width)} is due."
                )
            loss = source_loss(terms, encoder(x), offset, c, y, shared[rows], theirs)
            seat.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            await seat.back(terms.target, step, theirs.grad, y[shared[rows]])
            seat.optimizer.step()
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
    """The program of the party without labels: `mine` has its encoder as `bottom`, what rebuilds its columns
    as stop 0, and all its rows as x[0].
    """
    seat, x = SplitWorker(me, terms, mine), mine.x[0]
    encoder, decoder = mine.bottom, mine.stops[0]
    assert encoder is not None
    assert seat.optimizer is not None
    await agree(me, terms, mine)
    alone(lambda: mse_loss(decoder(encoder(x)), x), seat.optimizer, terms.first_epochs)
    step = 0
    for epoch in range(terms.epochs):
        for rows in terms.batches(epoch, 0):
            z, _ = seat.leave(x[shared[rows]], (step,))
            await seat.send(terms.source, step, z)
            gradient = await seat.recv(terms.source, CutGradients, step, len(rows))
            seat.optimizer.zero_grad(set_to_none=True)
            z.backward(gradient)  # type: ignore[no-untyped-call]
            if terms.rebuild:
                (terms.rebuild * mse_loss(decoder(encoder(x)), x)).backward()  # type: ignore[no-untyped-call]
            seat.optimizer.step()
            step += 1
    came = await me.recv(terms.source, Translator, within=mine.within)
    for value, due in ((came.values, (1, terms.width)), (came.offset, (1,))):
        if value.shape != due or value.dtype != torch.float32 or not torch.isfinite(value).all():
            raise ProtocolError(
                f"{terms.source!r} sent a translator of {tuple(value.shape)}, {value.dtype}; finite float32 "
                f"of {due} is due."
            )
    return {"state": state_of(encoder), "translator": came.values, "offset": came.offset}


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
    """What the programs compute without guards, in place, and Φ and b: one loss, one backward pass a
    batch.
    """
    c, offset = codes(y), Offset()
    first, second = (
        terms.adam([*a.parameters(), *offset.parameters()]),
        terms.adam([*b.parameters(), *decoder.parameters()]),
    )
    alone(lambda: own_loss(terms, a(x_a), offset, c, y), first, terms.first_epochs)
    alone(lambda: mse_loss(decoder(b(x_b)), x_b), second, terms.first_epochs)
    for epoch in range(terms.epochs):
        for rows in terms.batches(epoch, 0):
            loss = source_loss(terms, a(x_a), offset, c, y, shared[0][rows], b(x_b[shared[1][rows]]))
            loss = loss + terms.rebuild * mse_loss(decoder(b(x_b)), x_b)
            for o in (first, second):
                o.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            for o in (first, second):
                o.step()
    with torch.no_grad():
        return c.T @ a(x_a), offset(torch.zeros(1))
