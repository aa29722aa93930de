"""Inference between two who do not trust each other with the input or the model, and a helper who sees
neither; or without the helper.

    client (x)                       owner (model)                      helper
      |<-- Architecture ----------------|--- Architecture ----------------->|
      |--- Batches(shapes) ------------>|                                   |
      |--- Batches(shapes) ------------------------------------------------>|
      |<-- TapeKey, Corrections ----------------------- TapeKey ------------|   correlated randomness (`dealer.py`), planned from the two above
      |<-- MaskedWeights ---------------|                                       once, however many batches follow (`beaver.py`)
      |<-- MaskedFactors, MaskedProducts, MaskedValues, MaskedBits, MaskedSigns -->|   layer by layer, every word of it uniform
      |<-- ResultShare -----------------|                                       at the end of each batch

The client learns the architecture and the result (the logits, or with reveal="argmax" the class alone); of
the weights what the result says. The owner learns the shapes of the input. The helper learns architecture
and shapes. It holds while each follows the program (semi-honest) and the helper works with neither of the
two; helper and owner together would see the input, helper and client the model.

With helper=None the two make that randomness themselves, by oblivious transfer (`pair.py`): the third
column falls away, the messages of the offline phase take the place of TapeKey and Corrections, and there
is nobody to collude with. The online phase is the same.

The secrets need no sharing out: x is the client's share of x and 0 the owner's, since nothing but masked
values is ever sent. With a public model (only the input private) weights go to the client in the clear,
and linear layers cost nothing but a truncation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import model, pair
from .compare import argmax
from .dealer import Made, Request, Stock, dealer, plan, stored
from .extension import Line
from .ring import Fixed
from .seat import Cost, Seat

ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program and the helper works with neither "
    "owner nor client; a party that deviates can "
    "spoil the result unnoticed."
)
OWNER, CLIENT = 0, 1


class Architecture(
    Message, reveals="the model's layers and their shapes, not its weights; and how the result is revealed"
):
    layers: str
    private_model: bool
    reveal: str
    fraction: int


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


class ResultShare(
    Message, reveals="the owner's share of the result; with its own share the client has the result"
):
    values: list[Tensor]


async def answer(
    seat: Seat, layers: list[model.Layer], weights: model.Weights, x: Tensor, reveal: str
) -> Tensor:
    """The result of one batch, shared."""
    y = await model.evaluate(seat, layers, weights, x)
    if reveal == "argmax":
        with seat.at("argmax"):
            return await argmax(seat, y)
    return y


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
) -> dict[str, Any]:
    """`stock` is a file of masks made before (`pair.prepare`, `dealer.fetch`): then helper=None, and nothing
    is made now.
    """
    _one_source(helper, stock)
    told = Architecture(layers, private_model, reveal, fraction)
    network = model.for_reveal(model.from_text(layers), reveal)
    await me.send([client, helper] if helper is not None else client, told)
    if not private_model:
        await me.send(client, PublicWeights(dict(weights)))
    shapes = (await me.recv(client, Batches)).shapes
    seat = await _sit(me, OWNER, (me.name, client), helper, told, shapes, device, debug, stock)
    known = await _weights(seat, network, weights, private_model)
    for shape in shapes:
        y = await answer(seat, network, known, torch.zeros(shape, dtype=torch.int64, device=device), reveal)
        await me.send(client, ResultShare([y.cpu()]))
    return _costs(seat)


async def client(
    me: Party,
    batches: Iterable[Tensor],
    *,
    owner: str = "owner",
    helper: str | None = "helper",
    device: str = "cpu",
    debug: bool = False,
    stock: Path | None = None,
) -> dict[str, Any]:
    _one_source(helper, stock)
    told = await me.recv(owner, Architecture)
    network, fixed = model.for_reveal(model.from_text(told.layers), told.reveal), Fixed(told.fraction)
    weights = None if told.private_model else (await me.recv(owner, PublicWeights)).weights
    inputs = [
        fixed.encode(x, "the input").to(device) for x in batches
    ]  # refused here, before a word of it is sent
    shapes = [list(x.shape) for x in inputs]
    await me.send([owner, helper] if helper is not None else owner, Batches(shapes))
    seat = await _sit(me, CLIENT, (owner, me.name), helper, told, shapes, device, debug, stock)
    known = await _weights(seat, network, weights, told.private_model)
    results = []
    for x in inputs:
        mine = await answer(seat, network, known, x, told.reveal)
        (theirs,) = (await me.recv(owner, ResultShare)).values
        if theirs.shape != mine.shape:
            raise ProtocolError(
                f"the owner's share of the result has shape {list(theirs.shape)}, ours {list(mine.shape)}."
            )
        total = mine + theirs.to(device)
        results.append((total if told.reveal == "argmax" else fixed.decode(total)).cpu())
    return {"value": torch.cat(results), **_costs(seat)}


async def helper(me: Party, *, owner: str = "owner", client: str = "client", device: str = "cpu") -> None:
    told = await me.recv(owner, Architecture)
    shapes = (await me.recv(client, Batches)).shapes
    await dealer(me, (owner, client), needed(told, shapes), device)


def needed(told: Architecture, shapes: list[list[int]]) -> Iterator[Request]:
    """What has to be dealt, or made: the masks of the weights, then each batch's; a shape is rehearsed
    once.
    """
    private_model, reveal, fraction = told.private_model, told.reveal, told.fraction
    layers = model.for_reveal(model.from_text(told.layers), reveal)

    async def setup(seat: Seat) -> None:
        await _weights(seat, layers, None, private_model)

    def batch(shape: list[int]) -> list[Request]:
        async def program(seat: Seat) -> None:
            known = await _weights(seat, layers, None, private_model)
            await answer(seat, layers, known, torch.empty(shape, dtype=torch.int64, device="meta"), reveal)

        return plan(program, fixed=Fixed(fraction))[len(masks) :]

    masks = plan(setup, fixed=Fixed(fraction))
    yield from masks
    rehearsed: dict[tuple[int, ...], list[Request]] = {}
    for shape in shapes:
        if tuple(shape) not in rehearsed:
            rehearsed[tuple(shape)] = batch(shape)
        yield from rehearsed[tuple(shape)]


async def _sit(
    me: Party,
    rank: int,
    names: tuple[str, str],
    helper: str | None,
    told: Architecture,
    shapes: list[list[int]],
    device: str,
    debug: bool,
    file: Path | None,
) -> Seat:
    offline: dict[str, Cost] = {}
    if helper is not None:
        stock = await Stock.live(me, rank, 2, helper, device)
    elif file is not None:
        stock = await _same(me, names[1 - rank], stored(file, rank, 2, device))
    else:
        line = Line(me, rank, names)
        stock = await pair.make(
            line, needed(told, shapes), device
        )  # all of it, before anything of a secret is sent under it
        offline = line.costs
    me.ledger.stamp(pair.ASSUMES if isinstance(stock, Made) else ASSUMES)
    return Seat(me, rank, names, stock, Fixed(told.fraction), device, debug, offline=offline)


def _one_source(helper: str | None, stock: Path | None) -> None:
    if helper is not None and stock is not None:
        raise BadParameter(
            f"masks come from the helper {helper!r} or from the file {stock}, not from both. Give "
            "helper=None with a file."
        )


async def _same(me: Party, other: str, stock: Stock) -> Stock:
    """Halves of different nights would give a wrong result, and nobody would see it."""
    await me.send(other, Prepared(stock.session))
    if (await me.recv(other, Prepared)).session != stock.session:
        raise ProtocolError(
            f"the masks of {me.name!r} and of {other!r} were not made together. Run the offline phase "
            "again, both."
        )
    return stock


async def _weights(
    seat: Seat, layers: list[model.Layer], weights: Mapping[str, Tensor] | None, private: bool
) -> model.Weights:
    if private:
        return await model.Weights.private(
            seat, layers, weights if seat.me is not None and seat.rank == OWNER else None, OWNER
        )
    if weights is None:  # a rehearsal: shapes will do
        known = {
            f"{layer['name']}.weight": torch.empty(layer["shape"], dtype=torch.int64, device="meta")
            for layer in model.weighted(layers)
        }
        return model.Weights({}, known)
    return model.Weights({}, model.encoded(seat, weights))


def _costs(seat: Seat) -> dict[str, Any]:
    return {
        which: {name: [cost.rounds, cost.bytes] for name, cost in costs.items()}
        for which, costs in (("costs", seat.costs), ("offline", seat.offline))
    }


def ideal(network: torch.nn.Module, x: Tensor, reveal: str = "logits") -> Tensor:
    """What the programs compute, up to rounding."""
    was = {part: part.training for part in network.modules()}
    try:
        with torch.no_grad():
            y = network.eval()(x.clone())  # a layer may overwrite what it gets
    finally:
        for part, training in was.items():
            part.training = training
    return y.argmax(-1) if reveal == "argmax" else y
