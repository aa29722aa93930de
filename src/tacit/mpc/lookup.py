"""The inputs of a program: token ids as one-hot rows, masks as bits, and numbers.

    id t of a vocabulary of V  →  [0, …, 1, …, 0], and row t of a table = one-hot row @ table

So the owner's table is looked up by one product that opens V masked words a token, whichever the token is;
nobody sees the id. As the rows are whole numbers, the product is exact, without truncation. The client makes
the one-hot rows itself.

A client that follows its program gets the embedding of one token in each place. One that does not could
share any row c, and would compute with Σ c_t · (row t): not the table, but the network's answer for a mixture
of rows, from which answers for many tokens may be read. Semi-honest clients do not do this. In the checked
mode it is refused before any layer (`check_inputs`), by the sketch of Boneh, Boyle, Corrigan-Gibbs, Gilboa,
Ishai: Lightweight Techniques for Private Heavy Hitters, IEEE S&P 2021, with the sum:

    owner |--- Challenge(seed) --->| client      after the client announced its masked rows
    r from the seed, both;  open ⟨r, x⟩² − ⟨r², x⟩ and Σ x − 1, after a check of the tags: both are 0

If x is not one-hot, one of them is not 0, except with probability 2/p < 2^-59. For an honest client zeros are
opened, whatever the owner sends. Bits b of masks: b² − b is opened.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from . import prime
from .beaver import MUL
from .context import Context, Share
from .elements import TaggedShare
from .ring import FixedPoint
from .tagged import draw_elements
from .tape import Tape

Layer = dict[str, Any]


class Challenge(Message, reveals="a random seed, for a check that the client's token ids and masks are such"):
    seed: bytes


def sizes(part: Layer) -> list[int]:
    """The shape of one row's shares of an input."""
    return [*part["shape"], part["vocabulary"]] if part["kind"] == "tokens" else list(part["shape"])


def join(inputs: list[Tensor]) -> Tensor:
    """A batch's inputs side by side, as numbers: [rows, all numbers of a row]."""
    return torch.cat([x.detach().cpu().double().flatten(1) for x in inputs], 1)


def encode(layer: Layer, x: Tensor, fixed: FixedPoint) -> Tensor:
    """A batch of `join` as ring elements, [rows, …], with token ids as one-hot rows."""
    widths = [math.prod(part["shape"]) for part in layer["inputs"]]
    if x.dim() != 2 or x.shape[1] != sum(widths):
        raise BadData(
            f"the input has the shape {list(x.shape)}; the model takes {sum(widths)} numbers a row "
            f"({', '.join(part['name'] for part in layer['inputs'])})."
        )
    pieces = []
    for part, values in zip(layer["inputs"], x.split(widths, 1)):
        what = f"the input's {part['name']}"
        if part["kind"] == "numbers":
            pieces.append(fixed.encode(values, what))
            continue
        top = part["vocabulary"] - 1 if part["kind"] == "tokens" else 1
        whole = values.round()
        if not bool(((whole == values) & (whole >= 0) & (whole <= top)).all()):
            raise BadData(
                f"{what} has values from {float(values.min()):g} to {float(values.max()):g}; allowed are "
                + (
                    f"token ids from 0 to {top}."
                    if part["kind"] == "tokens"
                    else "0 and 1, as in a mask; give other numbers as floats."
                )
            )
        codes = whole.long()
        if part["kind"] == "tokens":
            codes = torch.nn.functional.one_hot(codes, part["vocabulary"]).flatten(1)
        pieces.append(codes)
    return torch.cat(pieces, 1)


def split(layer: Layer, x: Share) -> list[Share]:
    """The shares of each input, in its shape."""
    values, begin = [], 0
    for part in layer["inputs"]:
        size = sizes(part)
        end = begin + math.prod(size)
        values.append(x[:, begin:end].reshape((x.shape[0], *size)))
        begin = end
    return values


def check_width(layer: Layer, shape: list[int]) -> None:
    """Refuse a batch of another shape than the program's inputs."""
    width = sum(math.prod(sizes(part)) for part in layer["inputs"])
    if len(shape) != 2 or shape[1] != width or not shape[0]:
        raise BadData(f"a batch has the shape {shape}; the model takes (rows, {width}).")


async def check_inputs(ctx: Context, layer: Layer, values: list[Share], client: int = 1) -> None:
    """In the checked mode, abort unless token ids are one-hot and masks are bits."""
    if not any(isinstance(x, TaggedShare) for x in values):
        return
    wrong: list[Share] = []
    for part, x in zip(layer["inputs"], values):
        if part["kind"] == "tokens":
            r = await _challenge(ctx, part["vocabulary"], client, x.device)
            z = (x * r).sum(-1)
            square = r if r.is_meta else prime.mul(r, r)
            wrong.append((await ctx.product(z, z, MUL) - (x * square).sum(-1)).reshape(-1))
            total = x.sum(-1).reshape(-1)
            wrong.append(total - ctx.public(torch.ones(total.shape, dtype=torch.int64), total))
        elif part["kind"] == "bits":
            wrong.append((await ctx.product(x, x, MUL) - x).reshape(-1))
    if not wrong:
        return
    await ctx.check()  # a wrong opening above would make what is opened now depend on the ids
    opened = await ctx.reveal(torch.cat(wrong))
    if ctx.me is not None and bool((opened != 0).any()):
        raise ProtocolError(
            f"{ctx.names[client]!r} shared something else than token ids and masks: a row is not one-hot, or "
            "a mask is neither 0 nor 1. Nothing was computed on it."
        )


async def _challenge(ctx: Context, count: int, client: int, device: Any) -> Tensor:
    """Random weights that the client could not know when it shared its rows."""
    if ctx.me is None:
        return torch.empty(count, dtype=torch.int64, device="meta")
    if ctx.rank == client:
        seed = (await ctx.me.recv(ctx.peers[0], Challenge)).seed
        ctx.charge(0)
    else:
        seed = ctx.me.secret.bytes(KEY)
        await ctx.me.send(ctx.names[client], Challenge(seed))
        ctx.charge(KEY)
    if len(seed) != KEY:
        raise ProtocolError(f"a challenge has {len(seed)} bytes; expected {KEY}.")
    return draw_elements(Tape(seed), (count,)).to(device)
