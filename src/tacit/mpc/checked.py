"""Inference as in `inference.py`, but a party that deviates is caught before anything is revealed
(`spdz.py`).

    client (x)                       owner (model)                      helper
      |<-- Architecture ----------------|--- Architecture ----------------->|
      |--- Batches(shapes) ------------>|                                   |
      |--- Batches(shapes) ------------------------------------------------>|
      |<-- Dealing(digest) ----------------------- Dealing(digest) ---------|   what the helper was told, so that nobody tells it something else
      |<-- TapeKey, Corrections ----------------------- TapeKey ------------|   tagged randomness (`tagged.py`)
      |<-- MaskedEntry (weights) -------|                                       once
      |--- MaskedEntry (x) ------------>|                                       each batch
      |<-- MaskedOpening -------------->|                                       layer by layer, every number of it uniform
      |<-- Commitment, Opened --------->|                                       the check; then, and only then, the client takes its mask off the result

Who learns what is as in `inference.py`. It holds, and the result is the model's on the input or there is
none, even if owner or client departs from its program in any way (but with probability below 2^-59), as
long as the helper is honest and works with neither. Stopping, and false inputs, cannot be prevented.

Every layer of `model.py` is covered: functions are those of `functions.py`, with steps that carry tags
(`elements.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import functions, model, prime, spdz
from .beaver import MATMUL, MUL, Bilinear
from .elements import Desk, Elements
from .inference import CLIENT, OWNER, Architecture, Batches, PublicWeights
from .prime import FixedPrime
from .spdz import Kept, Table
from .tagged import Tagged, TaggedStock, deal, plan

ASSUMES = (
    "CHECKED: an owner or client that departs from its program is caught before anything is revealed, but "
    "with probability below 2^-59, if the helper "
    "is honest and works with neither. False inputs, and stopping, are not prevented."
)
FUNCTIONS: dict[str, Any] = {
    "relu": functions.relu,
    "sigmoid": functions.sigmoid,
    "tanh": functions.tanh,
    "gelu": functions.gelu,
}
Layers = list[model.Layer]


class Dealing(
    Message,
    reveals="a hash of the architecture and the shapes the helper was told, to compare with one's own",
):
    digest: bytes


class Weights:
    """Brought in by their owner and tagged (private), or known to both (public)."""

    def __init__(self, kept: Mapping[str, Kept], known: Mapping[str, Tensor]):
        self.kept, self.known = kept, known

    @classmethod
    async def settle(
        cls, table: Table, layers: Layers, weights: Mapping[str, Tensor] | None, private: bool
    ) -> Weights:
        """`weights` is None where they are not known."""
        coded = (
            {}
            if weights is None
            else {
                name: table.fixed.encode(
                    w, f"the model's {name}", scale=2 if name.endswith(".bias") else 1
                ).to(table.device)
                for name, w in weights.items()
            }
        )
        shapes = {name: shape for layer in model.weighted(layers) for name, shape in _shapes(layer).items()}
        if not private:
            if weights is None:
                coded = {
                    name: torch.empty(shape, dtype=torch.int64, device="meta")
                    for name, shape in shapes.items()
                }
            elif {name: tuple(w.shape) for name, w in coded.items()} != shapes:
                raise ProtocolError(
                    "the weights that came do not fit the architecture. Do all parties run the same model?"
                )
            return cls({}, coded)
        with table.at("weights, once"):
            return cls(
                {
                    name: await table.bring(coded.get(name), shape, OWNER, name)
                    for name, shape in shapes.items()
                },
                {},
            )

    async def times(self, table: Table, x: Tensor, layer: model.Layer, op: Bilinear) -> Tensor:
        """[x ∘ w + bias], truncated."""
        name, bias = f"{layer['name']}.weight", f"{layer['name']}.bias"
        made = (
            await spdz.times_kept(table, x, self.kept[name], op)
            if name in self.kept
            else spdz.times_public(x, self.known[name], op)
        )
        if layer["bias"]:
            side = (
                (-1, 1, 1)
                if layer["kind"] == "conv2d"
                else layer["shape"]
                if layer["kind"] == "affine"
                else (-1,)
            )
            if bias in self.kept:
                tagged = table.whole(self.kept[bias])
                shape = tagged[0].reshape(side).shape
                made = prime.add(made, tagged.reshape(2, *[1] * (made.dim() - 1 - len(shape)), *shape))
            else:
                made = table.plus(made, self.known[bias].reshape(side))
        return await spdz.truncate(table, made)


def _shapes(layer: model.Layer) -> dict[str, tuple[int, ...]]:
    shape = tuple(layer["shape"])
    made = {f"{layer['name']}.weight": shape}
    if layer["bias"]:
        made[f"{layer['name']}.bias"] = (
            shape if layer["kind"] == "affine" else shape[-1:] if layer["kind"] == "linear" else shape[:1]
        )
    return made


async def evaluate(table: Table, layers: Layers, weights: Weights, x: Tensor, at: str = "") -> Tensor:
    """The network's output, tagged."""
    for i, layer in enumerate(layers):
        kind, label = layer["kind"], f"{at}{i} {layer['kind']}"
        if kind == "residual":
            both = [
                await evaluate(table, layer[part], weights, x, f"{label} {part} ")
                for part in ("body", "shortcut")
            ]
            with model.rehearsing(table.me is None, label, list(x.shape[1:])):
                x = prime.add(*both)
        elif kind == "graph":
            values = [x]
            for j, node in enumerate(layer["nodes"]):
                branches = [values[k] for k in node["sum"]]
                if len({branch.shape for branch in branches}) > 1:
                    raise BadData(
                        f"{label} adds branches of shapes {[list(b.shape[1:]) for b in branches]}; they "
                        "must be equal."
                    )
                joined = prime.total(torch.stack(branches), 0)
                values.append(await evaluate(table, node["layers"], weights, joined, f"{label} node {j} "))
            x = values[-1]
        else:
            with table.at(label), model.rehearsing(table.me is None, label, list(x.shape[1:])):
                model.fits(layer, list(x.shape[1:]))
                x = await _layer(table, layer, weights, x)
    return x


async def _layer(table: Table, layer: model.Layer, weights: Weights, x: Tensor) -> Tensor:
    kind, shape = layer["kind"], list(x.shape[1:])
    if kind == "linear":
        return await weights.times(table, x, layer, MATMUL)
    if kind == "conv2d":
        (sh, sw), (ph, pw), (dh, dw) = layer["stride"], layer["padding"], layer["dilation"]
        return await weights.times(
            table, x, layer, Bilinear("conv2d", ((sh, sw), (ph, pw), (dh, dw), layer["groups"]))
        )
    if kind == "affine":
        return await weights.times(table, x, layer, MUL)
    if kind in FUNCTIONS:
        return await _applied(FUNCTIONS[kind], table, x)
    if kind == "softmax":
        return await _applied(functions.softmax, table, x, layer["dim"])
    if kind == "layernorm":
        return await _applied(functions.layer_norm, table, x, layer["dims"], layer["eps"])
    if kind == "maxpool":
        made = torch.stack([model.windows(part, layer, 0) for part in x])
        if any(layer["padding"]):  # padding is less than any value
            outside = model.windows(torch.zeros(shape, dtype=torch.int64, device=x.device), layer, 1)
            made = table.plus(made, outside * (prime.P - (1 << prime.VALUE)))
        return await spdz.largest(table, made)
    if kind == "avgpool":
        size = layer["kernel"][0] * layer["kernel"][1]
        return await _applied(
            functions.times,
            table,
            prime.total(torch.stack([model.windows(part, layer, 0) for part in x]), -1),
            1 / size,
        )
    if kind == "meanpool":
        return await _applied(
            functions.times,
            table,
            prime.total(x.flatten(-2), -1)[..., None, None],
            1 / (shape[-2] * shape[-1]),
        )
    start, end = (
        d if d < 0 else d + 1 for d in (layer["start"], layer["end"])
    )  # flatten; the tag's dimension stands in front
    return x.flatten(start, end)


async def _applied(function: Any, table: Table, x: Tensor, *options: Any) -> Tensor:
    return (await function(Desk(table), Elements(x), *options)).both


async def answer(
    table: Table, layers: Layers, weights: Weights, x: Tensor | None, shape: list[int], reveal: str
) -> Tensor | None:
    """One batch: the client brings x in, the network is evaluated, the result is opened under the client's
    mask, checked, and unmasked.
    """
    with table.at("input"):
        entered = table.whole(await table.bring(x, tuple(shape), CLIENT))
    y = await evaluate(table, layers, weights, entered)
    if reveal == "argmax":
        with table.at("argmax"):
            y = await spdz.argmax(table, y)
    with table.at("result and check"):
        return await table.tell(y, CLIENT)


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
    told = Architecture(layers, private_model, reveal, fraction)
    await me.send([client, helper], told)
    if not private_model:
        await me.send(client, PublicWeights(dict(weights)))
    shapes = (await me.recv(client, Batches)).shapes
    table = await _sit(me, OWNER, (me.name, client), helper, told, shapes, device)
    network = model.for_reveal(model.from_text(layers), reveal)
    known = await Weights.settle(table, network, weights, private_model)
    for shape in shapes:
        await answer(table, network, known, None, shape, reveal)
    return _costs(table)


async def client(
    me: Party, batches: Iterable[Tensor], *, owner: str = "owner", helper: str = "helper", device: str = "cpu"
) -> dict[str, Any]:
    told = await me.recv(owner, Architecture)
    network, fixed = model.for_reveal(model.from_text(told.layers), told.reveal), FixedPrime(told.fraction)
    weights = None if told.private_model else (await me.recv(owner, PublicWeights)).weights
    inputs = [
        fixed.encode(x, "the input").to(device) for x in batches
    ]  # refused here, before a word of it is sent
    shapes = [list(x.shape) for x in inputs]
    await me.send([owner, helper], Batches(shapes))
    table = await _sit(me, CLIENT, (owner, me.name), helper, told, shapes, device)
    known = await Weights.settle(table, network, weights, told.private_model)
    results = []
    for x, shape in zip(inputs, shapes):
        got = await answer(table, network, known, x, shape, told.reveal)
        assert got is not None
        results.append((prime.centred(got) if told.reveal == "argmax" else fixed.decode(got)).cpu())
    return {"value": torch.cat(results), **_costs(table)}


async def helper(me: Party, *, owner: str = "owner", client: str = "client", device: str = "cpu") -> None:
    told = await me.recv(owner, Architecture)
    shapes = (await me.recv(client, Batches)).shapes
    await me.send([owner, client], Dealing(_digest(told, shapes)))
    await deal(me, (owner, client), needed(told, shapes), device)


def needed(told: Architecture, shapes: list[list[int]]) -> Iterator[Tagged]:
    """What the dealer has to make: the masks of the weights, then each batch's; a shape is rehearsed once."""
    layers = model.for_reveal(model.from_text(told.layers), told.reveal)

    async def setup(table: Table) -> Weights:
        return await Weights.settle(table, layers, None, told.private_model)

    def batch(shape: list[int]) -> list[Tagged]:
        async def program(table: Table) -> None:
            await answer(table, layers, await setup(table), None, shape, told.reveal)

        return plan(program, fixed=FixedPrime(told.fraction))[len(masks) :]

    masks = plan(setup, fixed=FixedPrime(told.fraction))
    yield from masks
    rehearsed: dict[tuple[int, ...], list[Tagged]] = {}
    for shape in shapes:
        if tuple(shape) not in rehearsed:
            rehearsed[tuple(shape)] = batch(shape)
        yield from rehearsed[tuple(shape)]


def _digest(told: Architecture, shapes: list[list[int]]) -> bytes:
    return hashlib.sha256(
        repr(
            ("tacit dealing 1", told.layers, told.private_model, told.reveal, told.fraction, shapes)
        ).encode()
    ).digest()


async def _sit(
    me: Party,
    rank: int,
    names: tuple[str, str],
    helper: str,
    told: Architecture,
    shapes: list[list[int]],
    device: str,
) -> Table:
    """Before anything is computed: was the helper told what this party was told? Triples of another product
    would pass every check.
    """
    if (await me.recv(helper, Dealing)).digest != _digest(told, shapes):
        raise ProtocolError(
            f"{helper!r} was told another architecture or other shapes than {me.name!r}: somebody told two "
            "parties two "
            "things. Nothing was computed."
        )
    me.ledger.stamp(ASSUMES)
    return Table(
        me,
        rank,
        names,
        await TaggedStock.live(me, rank, 2, helper, device),
        FixedPrime(told.fraction),
        device,
    )


def _costs(table: Table) -> dict[str, Any]:
    return {"costs": {name: [cost.rounds, cost.bytes] for name, cost in table.costs.items()}}
