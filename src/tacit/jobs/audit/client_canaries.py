"""Empirical ε of user-level privacy: canaries that are whole clients of a federation, in one training run.

As `canaries.one_run` (T. Steinke, M. Nasr, M. Jagielski, NeurIPS 2023), but what is included or not is a
client: G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. Suriyakumar: "One-shot Empirical Privacy
Estimation for Federated Learning", ICLR 2024, insert clients whose updates point in directions of their
own. Here each canary client has a feature of its own, which no other client has, so that its update is the
only one in that direction.

If the run's ε is about a client that is exchanged for another, an excluded canary is exchanged for a client
with the same label and without the feature; if it is about one that is present or not, it is absent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...audit.canaries import Audited, TrainingResult, _losses, from_scores
from ...data.federation import Federation, Holdings, Rows, check_one_label
from ...errors import BadParameter
from ...parameters import bad, refuse
from ..train.plan import Plan
from .runs import ROW_UNITS
from .uploads import module_at_start

LEAST = 10


def client_canaries(
    fed: Federation,
    train: Callable[[Federation], Any],
    *,
    clients: int = 200,
    size: float = 10.0,
    claimed: float | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    exchanged: bool | None = None,
    start: Callable[[Federation], Any] | None = None,
) -> Audited:
    """Audit federated training with an ε for clients by running it once with about half of the canary
    clients.

    `train` takes a federation and returns a result with `.model` and `.ledger`, as tacit.train does, or a
    model (then set `claimed`, `delta` and `exchanged`: whether the ε is about a client exchanged for
    another). Each of the `clients` canary clients has one row, a random label, and a feature of its own of
    size `size`; rows of the federation must be flat. They are as many more parties: make per_round, if any,
    fit.

    Canaries are scored by the decrease of their loss since the initial model, which an adversary knows:
    that of the run, or what `start` returns for a federation.

    What the ledger says of ε is known after training only, so `exchanged` is by default that of runs in
    which the number of clients is public (True): the excluded clients are exchanged, which an ε for
    presence covers at 2ε.
    """
    refuse(
        (
            isinstance(clients, bool) or not isinstance(clients, int) or clients < LEAST,
            bad("client_canaries", "clients", clients, f"a whole number of at least {LEAST}"),
        ),
        (not 0 < confidence < 1, bad("client_canaries", "confidence", confidence, "a probability")),
        (
            fed.classes is None,
            "client_canaries: the federation has no classes, and canaries need a label. Audit a classifier.",
        ),
    )
    check_one_label("client_canaries", fed)
    x = fed.rows.matrix("client_canaries")
    if x.dim() != 2 or not x.is_floating_point():
        raise BadParameter(
            f"client_canaries: canaries need flat features, and these rows have shape {tuple(x.shape[1:])}."
        )
    # secret: the training procedure must not know which canaries are included
    included = np.array([secrets.randbelow(2) == 1 for _ in range(clients)])
    labels = torch.tensor([secrets.randbelow(fed.classes or 2) for _ in range(clients)])
    canaries = torch.cat([torch.zeros(clients, x.shape[1]), size * torch.eye(clients)], 1)
    exchange = exchanged is not False
    mixed = _mix(fed, canaries, labels, included, exchange)
    result = train(mixed)
    model, ledger = (result.model, result.ledger) if isinstance(result, TrainingResult) else (result, None)
    lines = [] if ledger is None else [s for s in ledger.spent if not s.unit.startswith(ROW_UNITS)]
    if claimed is None or delta is None:
        if not lines:
            raise BadParameter(
                "client_canaries: the run states no ε for clients. Use guard=[Clip, Noise], or set "
                "claimed= and "
                "delta=."
            )
        # to exchange a client is to remove one and to add one
        times = [2 if exchange and "exchanged" not in s.unit else 1 for s in lines]
        claimed = sum(k * s.epsilon for k, s in zip(times, lines)) if claimed is None else claimed
        delta = sum(k * s.delta for k, s in zip(times, lines)) if delta is None else delta
    blank = torch.zeros_like(canaries)  # what the other clients teach of the label is no trace of a canary

    def gain(m: Any) -> np.ndarray:
        return _losses(m, blank, labels) - _losses(m, canaries, labels)

    scores, origin = gain(model), getattr(result, "origin", None)
    if start is not None:
        scores = scores - gain(start(mixed))
    elif isinstance(origin, Plan):
        scores = scores - gain(module_at_start(origin))
    return from_scores(scores, included, claimed=claimed, delta=delta, confidence=confidence)


def _mix(
    fed: Federation, canaries: torch.Tensor, labels: torch.Tensor, included: np.ndarray, exchange: bool
) -> Federation:
    """The federation with columns for canaries, and a party for each canary that is included."""
    m, width = len(canaries), fed.rows.x.shape[1]

    def widen(rows: Rows) -> Rows:
        return Rows(torch.cat([rows.matrix("client_canaries"), torch.zeros(len(rows.y), m)], 1), rows.y)

    wide = widen(fed.rows)
    kept = torch.from_numpy(included)
    blank = canaries.clone()
    blank[:, width:] = 0
    rows = torch.where(kept[:, None], canaries, blank) if exchange else canaries[kept]
    y = labels if exchange else labels[kept]
    first = len(wide.y)
    lists = [fed.train.of(k) for k in range(len(fed))] + [torch.tensor([first + i]) for i in range(len(y))]
    nobody = torch.empty(0, dtype=torch.int64)
    held = [fed.held.of(k) for k in range(len(fed))] + [nobody] * len(y)
    return replace(
        fed,
        rows=Rows(torch.cat([wide.matrix("client_canaries"), rows]), torch.cat([wide.y, y])),
        train=Holdings.from_lists(lists),
        held=Holdings.from_lists(held),
        test=widen(fed.test),
        parties=(*fed.parties, *(f"canary {i}" for i in range(len(y)))),
        columns=(),
        pipeline=None,
        persons=None,
        subgroups=None,
        source=None,
    )
