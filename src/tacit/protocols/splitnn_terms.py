"""Messages, routes, terms and inputs of split learning. The programs are in splitnn.py."""

from __future__ import annotations

import dataclasses
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parameters import bad, choice, whole
from ..parties.message import Message

LOSSES = ("cross_entropy", "bce", "mse")
VALIDATION = 0.15  # share of the training rows that decide when to stop
FEWEST = 20  # validation rows; with fewer the training loss decides
VALIDATING = 7  # the random stream that draws them
LESS = 1e-3  # a loss is lower if it is lower by this share: rounding is no progress


class Agreed(
    Message,
    reveals="the settings of the run as the sender has them, and a keyed fingerprint of the order of its ids",
):
    terms: str
    ids: bytes


class Asked(Message, reveals="how many rows are shared (−1: not yet known), and a fingerprint of the job"):
    rows: int
    job: str


class Activations(
    Message,
    reveals="what the sender's part of the network lets through of each row: its columns can be rebuilt "
    "from it in part",
):
    step: int
    values: Tensor
    grid: list[float]  # (lowest value, distance of levels) where values are levels, else empty


class CutGradients(
    Message,
    reveals="the loss's gradient at the cut for each row of a batch: norms and directions can give labels "
    "away",
):
    step: int
    values: Tensor


class EpochEnd(
    Message,
    reveals="whether the loss on the label holder's validation rows was the lowest so far, and whether "
    "training ends",
):
    epoch: int
    is_best: bool
    ends: bool


class HandedOn(
    Message,
    reveals="the clients' part of the network as the sender leaves it, with the state of its optimizer; not "
    "the server's part",
):
    vectors: dict[str, Tensor]


@dataclass(frozen=True)
class Route:
    """The path of a batch: from the sources through the stops; the last stop has the labels."""

    sources: tuple[str, ...]
    stops: tuple[str, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.sources, *self.stops)))

    def senders(self, depth: int) -> tuple[str, ...]:
        """The parties whose activations a stop receives."""
        return self.sources if depth == 0 else (self.stops[depth - 1],)


@dataclass(frozen=True)
class SplitTerms:
    """Settings that all parties of a run agree on."""

    routes: tuple[Route, ...]
    rows: tuple[int, ...]  # training rows on each route
    tests: tuple[int, ...]  # held out, on each route
    epochs: int = whole(10, least=0, doc="passes over the rows")
    batch_size: int = whole(64, least=1, doc="rows in a step")
    slices: int = whole(
        1,
        least=1,
        doc="slices of a batch, so that parties compute concurrently; 1: the summation order of one network",
    )
    seed: int = whole(0, least=0, doc="determines the order of the rows")
    loss: str = choice(
        "cross_entropy",
        LOSSES,
        doc="cross_entropy (classes), bce (one output for two classes) or mse (numbers)",
    )
    clients: str = choice(
        "hand on",
        ("hand on", "average"),
        doc="relay: weights are handed from client to client, or averaged after every epoch",
    )
    every: int = whole(1, least=0, doc="epochs between evaluations on the held-out rows; 0: only at the end")
    patience: int = whole(
        0,
        least=0,
        doc="epochs without a lower loss on validation rows after which training stops; the weights of the "
        "best epoch are kept; 0: all epochs",
    )

    join: str = choice("inner", ("inner", "left"), doc="left: rows that only the label holder has are kept")

    def check(self) -> None:
        if self.patience and len(self.routes) > 1:
            raise bad(
                "splitnn",
                "patience",
                self.patience,
                "0 in a relay",
                "Its clients have no common validation rows.",
            )

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def validation(self) -> Tensor:
        """Return the training rows that are left out of the batches to decide when to stop.

        They follow from the seed and the number of rows. Without patience, or with so few rows that their
        loss would be mostly noise, there are none.
        """
        count = round(VALIDATION * self.rows[0]) if self.patience else 0
        order = np.random.default_rng([self.seed, len(self.rows), VALIDATING]).permutation(self.rows[0])
        return torch.from_numpy(order[: count if count >= FEWEST else 0]).sort().values

    def batches(self, epoch: int, turn: int) -> list[Tensor]:
        order = torch.from_numpy(np.random.default_rng([self.seed, epoch, turn]).permutation(self.rows[turn]))
        if self.patience:
            order = order[~torch.isin(order, self.validation())]
        return list(torch.split(order, self.batch_size))


class Segment(nn.Module):
    """A stop's module: merge the inputs, then apply its part."""

    def __init__(self, merge: nn.Module, body: nn.Module):
        super().__init__()
        self.merge, self.body = merge, body

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        out: Tensor = self.body(self.merge(values))
        return out


@dataclass
class SplitInputs:
    """One party's parts, and its rows by route; `peek` is an extra loss of (columns, activations)."""

    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    bottom: nn.Module | None = None
    stops: dict[int, nn.Module] = field(default_factory=dict)
    x: dict[int, Tensor] = field(default_factory=dict)
    y: dict[int, Tensor] = field(default_factory=dict)
    test_x: dict[int, Tensor] = field(default_factory=dict)
    test_y: dict[int, Tensor] = field(default_factory=dict)
    absent: dict[int, Tensor] = field(default_factory=dict)  # training rows that only the label holder has
    guards: Sequence[Any] = ()
    protect: Any = None
    peek: Callable[[Tensor, Tensor], Tensor] | None = None
    measure: Callable[[Tensor, Tensor], dict[str, float]] | None = None
    unit: float = 1.0  # what a loss of 1 is in the units of the labels, squared, for the history
    fingerprint: bytes = b""
    watch: Callable[[dict[str, Any]], None] | None = None
    within: float | None = None

    @property
    def parts(self) -> nn.ModuleDict:
        modules = {f"stop{depth}": part for depth, part in self.stops.items()}
        return nn.ModuleDict(modules if self.bottom is None else {"bottom": self.bottom, **modules})


def compute_loss(kind: str, out: Tensor, y: Tensor) -> Tensor:
    if kind == "mse":
        return F.mse_loss(out.reshape(y.shape), y)
    return (
        F.cross_entropy(out, y)
        if kind == "cross_entropy"
        else F.binary_cross_entropy_with_logits(out.reshape(y.shape), y.to(out.dtype))
    )


def fingerprint(ids: Sequence[str], key: bytes) -> bytes:
    """Return a keyed fingerprint of a list of ids.

    Without the `key`, which only holders of the ids have, guesses of the list cannot be checked.
    """
    return hmac.digest(key, json.dumps(list(ids)).encode(), "sha256")
