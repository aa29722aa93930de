"""Inference as in `inference.py`, secure against malicious parties: a party that deviates from its program is
caught before anything is revealed (`tagged_context.py`).

    client (x)                       owner (model)                      helper
      |<-- Architecture ----------------|--- Architecture ----------------->|
      |--- Batches(shapes) ------------>|                                   |
      |--- Batches(shapes) ------------------------------------------------>|
      |<-- Dealing(digest) ----------------------- Dealing(digest) ---------|   what the helper received
      |<-- TapeKey, Corrections ----------------------- TapeKey ------------|   randomness (`tagged.py`)
      |<-- MaskedEntry (weights) -------|                                       once
      |--- MaskedEntry (x) ------------>|                                       each batch
      |<-- MaskedOpening -------------->|                                       each layer: uniform numbers
      |<-- Commitment, Opened --------->|                                       the check

The client removes the mask from its result after the check. Each party learns what it learns in
`inference.py`. Even if owner or client is malicious, this holds, and the result is the model's on the input
or there is none (except with probability below 2^-59), as long as the helper is honest and colludes with
neither. False inputs, and parties that stop, cannot be prevented.

The programs are those of `inference.py`, on tagged shares (`elements.py`): all layers of `model.py` are
supported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import BadParameter, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import inference
from .inference import Architecture, InferenceMode, plan_requests
from .prime import FixedPointPrime
from .tagged import TaggedStock, deal, plan
from .tagged_context import TaggedContext

ASSUMES = (
    "CHECKED: an owner or client that deviates from its program is caught before anything is revealed, "
    "except with probability below 2^-59, if the helper is honest and colludes with neither. False inputs, "
    "and stopping, are not prevented."
)


class Dealing(
    Message,
    reveals="a hash of the architecture and the shapes the helper received, to compare with one's own",
):
    digest: bytes


def _digest(architecture: Architecture, shapes: list[list[int]]) -> bytes:
    a = architecture
    parts = a.layers, a.private_model, a.reveal, a.fraction, a.receiver
    return hashlib.sha256(repr(("tacit dealing 3", *parts, shapes)).encode()).digest()


async def _connect(
    me: Party,
    rank: int,
    names: tuple[str, str],
    helper: str | None,
    architecture: Architecture,
    shapes: list[list[int]],
    device: str,
    debug: bool,
    file: Path | None,
    products: str,
) -> TaggedContext:
    """Check that the helper plans the same program: triples of another product would pass every check."""
    if helper is None or file is not None or debug:
        raise BadParameter(
            "checked inference needs a helper that deals tagged masks, and has no debug mode. Name a helper, "
            "and use debug=False."
        )
    if (await me.recv(helper, Dealing)).digest != _digest(architecture, shapes):
        raise ProtocolError(
            f"{helper!r} received another architecture or other shapes than {me.name!r}: a party sent two "
            "different messages. Nothing was computed."
        )
    me.ledger.stamp(ASSUMES)
    stock = await TaggedStock.connect(me, rank, 2, helper, device)
    return TaggedContext(me, rank, names, stock, FixedPointPrime(architecture.fraction), device)


async def _deal(
    me: Party, names: tuple[str, str], architecture: Architecture, shapes: list[list[int]], device: str
) -> None:
    """Confirm what the helper received, and deal the randomness."""
    await me.send(list(names), Dealing(_digest(architecture, shapes)))
    await deal(me, names, plan_requests(architecture, shapes, CHECKED), device)


CHECKED = InferenceMode(FixedPointPrime, plan, _connect, _deal)


async def owner(me: Party, layers: str, weights: Mapping[str, Tensor], **options: Any) -> dict[str, Any]:
    """The model owner's program; options as for `inference.owner`."""
    return await inference.owner(me, layers, weights, mode=CHECKED, **options)


async def client(me: Party, batches: Iterable[Tensor], **options: Any) -> dict[str, Any]:
    """The client's program; options as for `inference.client`."""
    return await inference.client(me, batches, mode=CHECKED, **options)


async def helper(me: Party, **options: Any) -> None:
    """The helper's program; options as for `inference.helper`."""
    await inference.helper(me, mode=CHECKED, **options)
