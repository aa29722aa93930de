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

All layers of `model.py` are supported: the same walker runs on tagged shares (`elements.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import model, prime, spdz
from .elements import TaggedShare
from .inference import (
    CLIENT,
    OWNER,
    Architecture,
    Batches,
    PublicWeights,
    plan_batches,
    summarize_costs,
)
from .model import Layer, Weights
from .prime import FixedPointPrime
from .tagged import TaggedRequest, TaggedStock, deal, plan
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


async def share_weights(
    ctx: TaggedContext, layers: list[Layer], weights: Mapping[str, Tensor] | None, private: bool
) -> Weights:
    """Share the owner's weights, tagged (private), or encode weights that both know (public).

    `weights` is None where they are not known, and in a dry run.
    """
    with_weights = model.layers_with_weights(layers)
    shapes = {name: shape for layer in with_weights for name, shape in model.weight_shapes(layer).items()}
    codes = {} if weights is None else model.encode_weights(ctx, weights)
    if private:
        with ctx.at("weights, once"):
            inputs = {
                name: await ctx.share_input(codes.get(name), shape, OWNER, name)
                for name, shape in shapes.items()
            }
        factors: dict[str, Any] = dict(inputs)
        biases = {name: ctx.unmask(value) for name, value in inputs.items() if name.endswith(".bias")}
    else:
        if weights is None:
            codes = {name: torch.empty(s, dtype=torch.int64, device="meta") for name, s in shapes.items()}
        elif {name: tuple(w.shape) for name, w in codes.items()} != shapes:
            raise ProtocolError(
                "the public weights do not match the architecture. All parties must run the same model."
            )
        factors = codes
        biases = {name: ctx.public(w, w) for name, w in codes.items() if name.endswith(".bias")}
    return Weights(
        {layer["name"]: factors[f"{layer['name']}.weight"] for layer in with_weights},
        {
            layer["name"]: model.broadcast_bias(layer, biases[f"{layer['name']}.bias"])
            for layer in with_weights
            if layer["bias"]
        },
    )


async def answer(
    ctx: TaggedContext, layers: list[Layer], weights: Weights, x: Tensor | None, shape: list[int], reveal: str
) -> Tensor | None:
    """One batch: share the client's x, evaluate, check, and open the result to the client."""
    with ctx.at("input"):
        shared = ctx.unmask(await ctx.share_input(x, tuple(shape), CLIENT))
    y: TaggedShare = await model.evaluate(ctx, layers, weights, shared)
    if reveal == "argmax":
        with ctx.at("argmax"):
            y = await spdz.argmax(ctx, y)
    with ctx.at("result and check"):
        return await ctx.open_to(y, CLIENT)


async def owner(
    me: Party,
    layers: str,
    weights: Mapping[str, Tensor],
    *,
    private_model: bool = True,
    reveal: str = "logits",
    fraction: int = 16,
    client: str = "client",
    helper: str = "helper",
    device: str = "cpu",
) -> dict[str, Any]:
    """The model owner's program."""
    architecture = Architecture(layers, private_model, reveal, fraction)
    await me.send([client, helper], architecture)
    if not private_model:
        await me.send(client, PublicWeights(dict(weights)))
    shapes = (await me.recv(client, Batches)).shapes
    ctx = await _connect(me, OWNER, (me.name, client), helper, architecture, shapes, device)
    network = architecture.network()
    shared = await share_weights(ctx, network, weights, private_model)
    for shape in shapes:
        await answer(ctx, network, shared, None, shape, reveal)
    return summarize_costs(costs=ctx.costs)


async def client(
    me: Party, batches: Iterable[Tensor], *, owner: str = "owner", helper: str = "helper", device: str = "cpu"
) -> dict[str, Any]:
    """The client's program: {"value": the result, "costs": …}."""
    architecture = await me.recv(owner, Architecture)
    network, fixed = architecture.network(), FixedPointPrime(architecture.fraction)
    weights = None if architecture.private_model else (await me.recv(owner, PublicWeights)).weights
    inputs = [fixed.encode(x, "the input").to(device) for x in batches]  # refused before anything is sent
    shapes = [list(x.shape) for x in inputs]
    await me.send([owner, helper], Batches(shapes))
    ctx = await _connect(me, CLIENT, (owner, me.name), helper, architecture, shapes, device)
    shared = await share_weights(ctx, network, weights, architecture.private_model)
    results = []
    for x, shape in zip(inputs, shapes):
        y = await answer(ctx, network, shared, x, shape, architecture.reveal)
        assert y is not None
        results.append((prime.to_signed(y) if architecture.reveal == "argmax" else fixed.decode(y)).cpu())
    return {"value": torch.cat(results), **summarize_costs(costs=ctx.costs)}


async def helper(me: Party, *, owner: str = "owner", client: str = "client", device: str = "cpu") -> None:
    """The helper's program: confirm what it received, and deal the randomness."""
    architecture = await me.recv(owner, Architecture)
    shapes = (await me.recv(client, Batches)).shapes
    await me.send([owner, client], Dealing(_digest(architecture, shapes)))
    await deal(me, (owner, client), plan_requests(architecture, shapes), device)


def plan_requests(architecture: Architecture, shapes: list[list[int]]) -> Iterator[TaggedRequest]:
    """The randomness that a run needs: the masks of the weights, then those of each batch."""
    layers = architecture.network()

    async def setup(ctx: TaggedContext) -> Weights:
        return await share_weights(ctx, layers, None, architecture.private_model)

    async def batch(ctx: TaggedContext, shape: list[int]) -> None:
        await answer(ctx, layers, await setup(ctx), None, shape, architecture.reveal)

    fixed = FixedPointPrime(architecture.fraction)
    return plan_batches(lambda program: plan(program, fixed=fixed), setup, batch, shapes)


def _digest(architecture: Architecture, shapes: list[list[int]]) -> bytes:
    parts = architecture.layers, architecture.private_model, architecture.reveal, architecture.fraction
    return hashlib.sha256(repr(("tacit dealing 1", *parts, shapes)).encode()).digest()


async def _connect(
    me: Party,
    rank: int,
    names: tuple[str, str],
    helper: str,
    architecture: Architecture,
    shapes: list[list[int]],
    device: str,
) -> TaggedContext:
    """Check that the helper plans the same program: triples of another product would pass every check."""
    if (await me.recv(helper, Dealing)).digest != _digest(architecture, shapes):
        raise ProtocolError(
            f"{helper!r} received another architecture or other shapes than {me.name!r}: a party sent two "
            "different messages. Nothing was computed."
        )
    me.ledger.stamp(ASSUMES)
    stock = await TaggedStock.connect(me, rank, 2, helper, device)
    return TaggedContext(me, rank, names, stock, FixedPointPrime(architecture.fraction), device)
