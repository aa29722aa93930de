"""Inference between a model's owner and a client who do not trust each other with the model or the input,
with a helper who sees neither, or without one.

    client (x)                       owner (model)                      helper
      |<-- Architecture ----------------|--- Architecture ----------------->|
      |--- Batches(shapes) ------------>|                                   |
      |--- Batches(shapes) ------------------------------------------------>|
      |<-- TapeKey, Corrections ----------------------- TapeKey ------------|   randomness (`dealer.py`)
      |<-- MaskedWeights ---------------|                                       once (`beaver.py`)
      |<-- MaskedFactors, MaskedProducts, MaskedValues, MaskedBits, MaskedSigns -->|   each layer: uniform
      |<-- ResultShare -----------------|                                       at the end of each batch

The client learns the architecture and the result (the logits, or with reveal="argmax" the class alone), and
of the weights what the result reveals. The owner learns the shapes of the input. The helper learns
architecture and shapes, from which it plans the randomness. This holds if all parties are semi-honest and the
helper colludes with neither of the two; helper and owner together would see the input, helper and client the
model.

With helper=None the two generate the randomness themselves (`pair.py`), by homomorphic encryption and
oblivious transfer: its offline phase replaces TapeKey and Corrections, and there is nobody to collude with.
The online phase is the same. A long plan is generated in parts, while they compute.

Inputs need not be shared first: x is the client's share of x and 0 the owner's, since only masked values are
sent. With a public model (only the input is private) the weights are sent to the client in the clear, and a
linear layer costs one truncation.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import BadParameter, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import model, pair
from .context import Context, Cost, RingContext
from .dealer import ReadyStock, Request, Stock, dealer, open_stock, plan
from .extension import OTChannel
from .model import Layer, Weights
from .ring import FixedPoint

ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program and the helper colludes with neither "
    "owner nor client; a party that deviates can corrupt the result unnoticed."
)
OWNER, CLIENT = 0, 1
Report = Callable[[int, int], None]  # (batches done, all batches)


class Architecture(
    Message, reveals="the model's layers and their shapes, not its weights; and how the result is revealed"
):
    layers: str
    private_model: bool
    reveal: str
    fraction: int
    receiver: int = CLIENT  # who learns the result: OWNER or CLIENT

    def network(self) -> list[Layer]:
        """The layers that have to be evaluated."""
        return model.drop_final_activation(model.from_text(self.layers), self.reveal)


class PublicWeights(Message, reveals="the model's weights, in the clear: the model was declared public"):
    weights: dict[str, Tensor]


class Batches(Message, reveals="how many inputs there are and their shapes, not their values"):
    shapes: list[list[int]]


class Prepared(
    Message,
    reveals="which run of the offline phase the masks come from: a hash of random group elements, or a "
    "dealer's random number",
):
    session: bytes


class InferenceMode(NamedTuple):
    """What depends on the adversary: `SEMI_HONEST`, or `checked.CHECKED`."""

    fixed: type[FixedPoint]
    plan: Callable[..., list[Request]]
    connect: Callable[..., Awaitable[Context]]
    deal: Callable[..., Awaitable[None]]


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
) -> RingContext:
    offline: dict[str, Cost] = {}
    if helper is not None:
        stock = await Stock.connect(me, rank, 2, helper, device)
    elif file is not None:
        stock = await _check_same_session(me, names[1 - rank], open_stock(file, rank, 2, device))
    else:
        channel = OTChannel(me, rank, names, products)
        stock = await pair.stream(channel, plan_requests(architecture, shapes), device)
        offline = channel.costs
    me.ledger.stamp(pair.ASSUMES if isinstance(stock, ReadyStock) else ASSUMES)
    return RingContext(
        me, rank, names, stock, FixedPoint(architecture.fraction), device, debug, offline=offline
    )


async def _check_same_session(me: Party, other: str, stock: Stock) -> Stock:
    """Refuse halves of different offline phases: they would give a wrong result without an error."""
    await me.send(other, Prepared(stock.session))
    if (await me.recv(other, Prepared)).session != stock.session:
        raise ProtocolError(
            f"the masks of {me.name!r} and of {other!r} are from different offline phases. Both must run the "
            "offline phase again."
        )
    return stock


async def _deal(
    me: Party, names: tuple[str, str], architecture: Architecture, shapes: list[list[int]], device: str
) -> None:
    await dealer(me, names, plan_requests(architecture, shapes), device)


SEMI_HONEST = InferenceMode(FixedPoint, plan, _connect, _deal)


async def owner(
    me: Party,
    layers: str,
    weights: Mapping[str, Tensor],
    *,
    private_model: bool = True,
    reveal: str = "logits",
    fraction: int = 16,
    client: str = "client",
    helper: str | None = "helper",
    device: str = "cpu",
    debug: bool = False,
    stock: Path | None = None,
    products: str = "he",
    mode: InferenceMode = SEMI_HONEST,
    receiver: int = CLIENT,
    admit: Callable[[list[list[int]]], None] = lambda shapes: None,
    report: Report = lambda done, most: None,
) -> dict[str, Any]:
    """The model owner's program; {"value": the result, …} if it is the `receiver`.

    `stock` is a file of masks from an earlier offline phase (`pair.prepare`, `dealer.fetch`); it needs
    helper=None. `products`: how matrix products are computed without a helper (`extension.PRODUCTS`), the
    same at both. `admit(shapes)` may refuse the client's batches before anything is computed on them.
    """
    _check_source(helper, stock)
    architecture = Architecture(layers, private_model, reveal, fraction, receiver)
    network = architecture.network()
    await me.send([client, helper] if helper is not None else client, architecture)
    if not private_model:
        await me.send(client, PublicWeights(dict(weights)))
    shapes = (await me.recv(client, Batches)).shapes
    admit(shapes)
    names = (me.name, client)
    ctx = await mode.connect(me, OWNER, names, helper, architecture, shapes, device, debug, stock, products)
    shared = await share_weights(ctx, network, weights, private_model)
    found = []
    for number, shape in enumerate(shapes, 1):
        found.append(await answer(ctx, network, shared, None, shape, reveal, receiver))
        report(number, len(shapes))
    costs = summarize_costs(costs=ctx.costs, offline=ctx.offline)
    return costs if receiver != OWNER else {"value": _join(found, mode.fixed(fraction), reveal), **costs}


async def client(
    me: Party,
    batches: Iterable[Tensor],
    *,
    owner: str = "owner",
    helper: str | None = "helper",
    device: str = "cpu",
    debug: bool = False,
    stock: Path | None = None,
    products: str = "he",
    mode: InferenceMode = SEMI_HONEST,
    receiver: int = CLIENT,
    check: Callable[[Architecture], None] = lambda architecture: None,
    report: Report = lambda done, most: None,
) -> dict[str, Any]:
    """The client's program: {"value": the result, "costs": …, "offline": …}.

    `receiver` is who may learn the result; `products` as for `owner`; `check` may refuse what the owner
    announces.
    """
    _check_source(helper, stock)
    architecture = await me.recv(owner, Architecture)
    check_receiver(owner, architecture, receiver)
    check(architecture)
    network, fixed = architecture.network(), mode.fixed(architecture.fraction)
    weights = None if architecture.private_model else (await me.recv(owner, PublicWeights)).weights
    inputs = [
        model.encode_input(network, x, fixed).to(device) for x in batches
    ]  # refused before anything is sent
    shapes = [list(x.shape) for x in inputs]
    await me.send([owner, helper] if helper is not None else owner, Batches(shapes))
    names = (owner, me.name)
    ctx = await mode.connect(me, CLIENT, names, helper, architecture, shapes, device, debug, stock, products)
    shared = await share_weights(ctx, network, weights, architecture.private_model)
    results = []
    for number, (x, shape) in enumerate(zip(inputs, shapes), 1):
        results.append(await answer(ctx, network, shared, x, shape, architecture.reveal, receiver))
        report(number, len(shapes))
    costs = summarize_costs(costs=ctx.costs, offline=ctx.offline)
    return costs if receiver != CLIENT else {"value": _join(results, fixed, architecture.reveal), **costs}


def _join(results: list[Tensor | None], fixed: FixedPoint, reveal: str) -> Tensor:
    """The opened words of all batches as numbers, or as classes."""
    words = [y for y in results if y is not None]
    return torch.cat([(fixed.to_signed(y) if reveal == "argmax" else fixed.decode(y)).cpu() for y in words])


def check_receiver(owner: str, architecture: Architecture, receiver: int) -> None:
    """Refuse a result that would be opened to another party than agreed."""
    if architecture.receiver != receiver:
        raise ProtocolError(
            f"{owner!r} announced that {'it' if architecture.receiver == OWNER else 'the client'} receives "
            "the result, which was not agreed. Nothing was sent."
        )


async def helper(
    me: Party,
    *,
    owner: str = "owner",
    client: str = "client",
    device: str = "cpu",
    mode: InferenceMode = SEMI_HONEST,
    receiver: int = CLIENT,
    check: Callable[[Architecture], None] = lambda architecture: None,
    admit: Callable[[list[list[int]]], None] = lambda shapes: None,
) -> None:
    """The helper's program: deal the randomness. `check` and `admit` as for client and owner."""
    architecture = await me.recv(owner, Architecture)
    check_receiver(owner, architecture, receiver)
    check(architecture)
    shapes = (await me.recv(client, Batches)).shapes
    admit(shapes)
    await mode.deal(me, (owner, client), architecture, shapes, device)


def _check_source(helper: str | None, stock: Path | None) -> None:
    if helper is not None and stock is not None:
        raise BadParameter(
            f"masks come either from the helper {helper!r} or from the file {stock}. Use "
            "helper=None with a file."
        )


def plan_requests(
    architecture: Architecture, shapes: list[list[int]], mode: InferenceMode = SEMI_HONEST
) -> Iterator[Request]:
    """The randomness that a run needs: the masks of the weights, then those of each batch.

    There is one dry run for each different shape.
    """
    layers, fixed = architecture.network(), mode.fixed(architecture.fraction)

    async def setup(ctx: Context) -> Weights:
        return await share_weights(ctx, layers, None, architecture.private_model)

    async def batch(ctx: Context, shape: tuple[int, ...]) -> None:
        weights = await setup(ctx)
        await answer(ctx, layers, weights, None, shape, architecture.reveal, architecture.receiver)

    masks = mode.plan(setup, fixed=fixed)
    yield from masks
    planned: dict[tuple[int, ...], list[Request]] = {}
    for shape in map(tuple, shapes):
        if shape not in planned:
            planned[shape] = mode.plan(functools.partial(batch, shape=shape), fixed=fixed)[len(masks) :]
        yield from planned[shape]


async def share_weights(
    ctx: Context, layers: list[Layer], weights: Mapping[str, Tensor] | None, private: bool
) -> Weights:
    """Mask the owner's weights once and share its biases (private), or encode what both know (public).

    `weights` is None where they are not known, and in a dry run.
    """
    with_weights = model.layers_with_weights(layers)
    shapes = {name: shape for layer in with_weights for name, shape in model.weight_shapes(layer).items()}
    codes: Mapping[str, Any] = {} if weights is None else model.encode_weights(ctx, weights, with_weights)
    if weights is not None and {name: tuple(w.shape) for name, w in codes.items()} != shapes:
        raise ProtocolError("the weights do not match the architecture. All parties must run the same model.")
    if not private and weights is None:
        codes = {name: torch.empty(s, dtype=torch.int64, device="meta") for name, s in shapes.items()}
    shared: dict[str, Any] = {}
    with ctx.at("weights, once"):
        for name, shape in shapes.items():
            code, is_bias = codes.get(name), name.endswith((".bias", ".shift"))
            if private and is_bias:
                shared[name] = await ctx.share_private(code, shape, OWNER)
            elif private:
                shared[name] = await ctx.mask_private(name, shape, code, OWNER)
            else:
                shared[name] = ctx.public(code, code) if is_bias else code
    shifts = [layer["name"] for layer in with_weights if layer["kind"] == "shift"]
    return Weights(
        {
            layer["name"]: shared[f"{layer['name']}.weight"]
            for layer in with_weights
            if layer["kind"] != "shift"
        },
        {name: shared[f"{name}.shift"] for name in shifts}
        | {
            layer["name"]: model.broadcast_bias(layer, shared[f"{layer['name']}.bias"])
            for layer in with_weights
            if layer["bias"]
        },
    )


async def answer(
    ctx: Context,
    layers: list[Layer],
    weights: Weights,
    x: Tensor | None,
    shape: Iterable[int],
    reveal: str,
    receiver: int = CLIENT,
) -> Tensor | None:
    """One batch: share the client's x, evaluate, and open the result to the receiver."""
    with ctx.at("input"):
        shared = await ctx.share_private(x, tuple(shape), CLIENT)
    y = await model.evaluate(ctx, layers, weights, shared)
    if reveal == "argmax":
        with ctx.at("argmax"):
            y = await ctx.argmax(y)
    with ctx.at("result and check"):
        return await ctx.open_to(y, receiver)


def summarize_costs(**costs: Mapping[str, Cost]) -> dict[str, Any]:
    """Costs in plain types, for another process."""
    return {
        which: {name: [cost.rounds, cost.bytes] for name, cost in each.items()}
        for which, each in costs.items()
    }


def ideal(network: torch.nn.Module, x: Tensor | Mapping[str, Tensor], reveal: str = "logits") -> Tensor:
    """What the programs compute, up to rounding."""
    modes = {part: part.training for part in network.modules()}
    try:
        with torch.no_grad():
            network.eval()
            # a layer may overwrite its input
            out = network(x.clone()) if isinstance(x, Tensor) else network(**x)
            y: Tensor = getattr(out, "logits", out)
    finally:
        for part, training in modes.items():
            part.training = training
    return y.argmax(-1) if reveal == "argmax" else y
