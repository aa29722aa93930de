"""Inference between two and nobody else: a linear model, with triples they make themselves by oblivious transfer (`gilboa.py`).

    client (x)                                  owner (model)
      |<-- Architecture ---------------------------|
      |--- Batches(shapes) ----------------------->|
      |<-- TransferOffer … Correlations ---------->|   the triples: a ∘ b, of which each holds one factor's mask
      |<-- MaskedWeights --------------------------|   once, however many batches follow
      |<-- MaskedFactors ------------------------->|   each batch
      |<-- ResultShare ----------------------------|

Who learns what is as in `inference.py`, and there is no helper to trust: it holds while both follow the program (semi-honest), under computational
Diffie-Hellman and with AES and SHA-256 as ideal. One Linear layer is what can be had so: its product is revealed with all its 2f fractional bits, so nothing
has to be truncated. Truncation and comparison (ReLU, pools, argmax, a second layer) need masks that only a helper deals; they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, BadParameter, ProtocolError
from ..parties.party import Party
from . import model
from .beaver import MATMUL, times_kept
from .gilboa import Pair
from .inference import CLIENT, OWNER, Architecture, Batches, ResultShare
from .ring import Fixed
from .seat import Seat

ASSUMES = ("SEMI-HONEST, NO HELPER: the secrets hold if owner and client follow their programs; the masks they need they made themselves, by oblivious "
           "transfer. A party that deviates can spoil the result unnoticed.")


def accepted(layers: list[model.Layer], private_model: bool, reveal: str) -> tuple[model.Layer, bool]:
    """(the one linear layer, whether the client applies σ to what it opens), or the reason why there must be a helper."""
    if not private_model:
        raise BadParameter("infer: with a public model and no helper there is nothing to share: the client has the weights and can compute by itself. "
                           "Let it, or keep the model private.")
    if reveal != "logits":
        raise BadParameter(f"infer: reveal={reveal!r} takes comparisons, whose masks two parties alone do not make. Name a helper, or reveal the logits.")
    sigmoid = bool(layers) and layers[-1]["kind"] == "sigmoid"
    kinds = [layer["kind"] for layer in (layers[:-1] if sigmoid else layers)]
    if [kind for kind in kinds if kind != "flatten"] != ["linear"] or kinds[-1] != "linear":
        raise BadParameter(f"infer: without a helper only one Linear layer can be evaluated (Flatten before and Sigmoid after it are fine), and this "
                           f"model has {', '.join(kind for kind in kinds if kind != 'flatten') or 'none'}: truncation and comparison take masks that two "
                           "parties alone do not make. Name a helper.")
    return layers[len(kinds) - 1], sigmoid


async def product(seat: Seat, layers: list[model.Layer], linear: model.Layer, kept: Any, x: Tensor) -> Tensor:
    """[x ∘ w], not truncated."""
    for layer in layers:
        if layer is linear:
            break
        x = x.flatten(layer["start"], layer["end"])
    if x.dim() != 2 or x.shape[1] != linear["shape"][0]:
        raise BadData(f"layer {linear['name']} takes {linear['shape'][0]} inputs and gets a shape of {list(x.shape)}. Check the input's shape, "
                      "or flatten first.")
    with seat.at("linear"):
        return await times_kept(seat, x, kept, MATMUL)


async def owner(me: Party, layers: str, weights: Mapping[str, Tensor], *, private_model: bool = True, reveal: str = "logits", fraction: int = 16,
                client: str = "client", device: str = "cpu") -> dict[str, Any]:
    await me.send(client, Architecture(layers, private_model, reveal, fraction))
    network = model.from_text(layers)
    linear, _ = accepted(network, private_model, reveal)
    shapes = (await me.recv(client, Batches)).shapes
    seat = _sit(me, OWNER, (me.name, client), fraction, device)
    kept = (await model.Weights.private(seat, network, weights, OWNER)).kept[f"{linear['name']}.weight"]
    coded = model.encoded(seat, weights).get(f"{linear['name']}.bias")
    for shape in shapes:
        y = await product(seat, network, linear, kept, torch.zeros(shape, dtype=torch.int64, device=device))
        await me.send(client, ResultShare([(y if coded is None else y + coded).cpu()]))
    return _costs(seat)


async def client(me: Party, batches: Iterable[Tensor], *, owner: str = "owner", device: str = "cpu") -> dict[str, Any]:
    told = await me.recv(owner, Architecture)
    network, fixed = model.from_text(told.layers), Fixed(told.fraction)
    linear, sigmoid = accepted(network, told.private_model, told.reveal)
    inputs = [fixed.encode(x, "the input").to(device) for x in batches]  # refused here, before a word of it is sent
    await me.send(owner, Batches([list(x.shape) for x in inputs]))
    seat = _sit(me, CLIENT, (owner, me.name), told.fraction, device)
    kept = (await model.Weights.private(seat, network, None, OWNER)).kept[f"{linear['name']}.weight"]
    results = []
    for x in inputs:
        mine = await product(seat, network, linear, kept, x)
        (theirs,) = (await me.recv(owner, ResultShare)).values
        if theirs.shape != mine.shape or theirs.dtype is not torch.int64:
            raise ProtocolError(f"the owner's share of the result has shape {list(theirs.shape)}, ours {list(mine.shape)}.")
        y = (mine + theirs.to(device)).double() / 2.0 ** (2 * told.fraction)
        results.append((y.sigmoid() if sigmoid else y).cpu())
    return {"value": torch.cat(results), **_costs(seat)}


def _sit(me: Party, rank: int, names: tuple[str, str], fraction: int, device: str) -> Seat:
    me.ledger.stamp(ASSUMES)
    return Seat(me, rank, names, Pair(me, rank, names, device), Fixed(fraction), device)


def _costs(seat: Seat) -> dict[str, Any]:
    return {"costs": {name: [cost.rounds, cost.bytes] for name, cost in seat.costs.items()}}
