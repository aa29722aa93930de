"""The correlated randomness of a whole program, made by two parties and nobody else, before they compute:
the offline phase without a dealer.

    party 0                                     party 1
      |<-- TransferOffer, TransferChoices ------->|   once each way: base transfers (`extension.py`)
      |<-- Extended, Correlations --------------->|   products: Beaver triples, squares, products with masks that stay (`gilboa.py`)
      |<-- Extended, Correlations --------------->|   the masks of all truncations, then of all comparisons (`masks.py`)

What is made is what a dealer deals: a stock from which the online programs take their shares in order, or
keep in a file until they do (`dealer.stored`). Both know the plan, which a rehearsal without numbers
lists. What is of one kind is made at once, however many steps ask for it.

Learns: neither anything. It holds while both follow the program (semi-honest), under computational
Diffie-Hellman and with AES and SHA-256 as ideal.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import BadParameter, ProtocolError
from ..parties.party import Party
from . import gilboa, masks
from .beaver import MUL, Square, Triple
from .compare import Comparison
from .dealer import Made, Mask, Request, label
from .extension import Line
from .truncate import Truncation

ASSUMES = (
    "SEMI-HONEST, NO HELPER: the secrets hold if owner and client follow their programs; the masks they "
    "need they made themselves, by oblivious "
    "transfer. A party that deviates can spoil the result unnoticed."
)
KINDS = (Mask, Triple, Square, Truncation, Comparison)
Shares = dict[str, Tensor]


async def make(line: Line, requests: Iterable[Request], device: str = "cpu") -> Made:
    """This party's shares of everything that is asked for."""
    wanted = list(requests)
    unknown = sorted({type(r).__name__ for r in wanted if not isinstance(r, KINDS)})
    if unknown:
        raise BadParameter(
            f"{', '.join(unknown)} cannot be made by two parties alone. Name a helper that deals it."
        )
    made: dict[int, Shares] = await _products(line, wanted)
    for bits in sorted({r.bits for r in wanted if isinstance(r, Truncation)}):
        made |= await _truncations(
            line, {i: r for i, r in enumerate(wanted) if isinstance(r, Truncation) and r.bits == bits}, bits
        )
    made |= await _comparisons(line, {i: r for i, r in enumerate(wanted) if isinstance(r, Comparison)})
    return Made(
        [made[i] for i in range(len(wanted))], line.rank, 2, device, line.session, list(map(label, wanted))
    )


def estimate(requests: Iterable[Request]) -> dict[str, int]:
    """Bytes that `make` will send, both parties together, by what for: what to know before a large network is
    begun.
    """
    wanted = list(requests)
    holders = {r.name: r.holder for r in wanted if isinstance(r, Mask)}
    triples = [
        (r, 2 if r.kept is None or holders[r.kept] is None else 1) for r in wanted if isinstance(r, Triple)
    ]
    return {
        "products": sum(ways * gilboa.traffic(r.op, r.x, r.y) for r, ways in triples)
        + sum(gilboa.traffic(MUL, r.x, r.x) for r in wanted if isinstance(r, Square)),
        "truncations": sum(
            _eights(int(np.prod(r.shape))) * masks.traffic(r.bits)
            for r in wanted
            if isinstance(r, Truncation)
        ),
        "comparisons": sum(_eights(r.count) for r in wanted if isinstance(r, Comparison))
        * masks.traffic(None),
    }


async def prepare(
    me: Party, rank: int, names: tuple[str, ...], requests: Iterable[Request], path: Path
) -> Path:
    """The offline phase, kept in a file for `dealer.stored` to use once."""
    return (await make(Line(me, rank, names), requests)).keep(path)


async def _products(line: Line, wanted: list[Request]) -> dict[int, Shares]:
    """Masks are drawn; a ∘ b of what both hold is what each makes at home and the two cross terms.
    Elementwise products go together.
    """
    line.label = "products"
    made: dict[int, Shares] = {}
    kept: dict[str, tuple[int | None, Tensor]] = {}
    pending: dict[int, list[tuple[int, Tensor, int]]] = {
        0: [],
        1: [],
    }  # by the rank of the left factor's holder: (number, my factor, times what)
    for i, request in enumerate(wanted):
        if isinstance(request, Mask):
            if request.name in kept:
                raise ProtocolError(f"mask {request.name!r} is made twice; one mask hides one value only.")
            mine = request.holder in (None, line.rank)
            b = line.tape.draw(request.shape) if mine else torch.zeros(request.shape, dtype=torch.int64)
            kept[request.name], made[i] = (request.holder, b), {"b": b}
        elif isinstance(request, Square):
            a = line.tape.draw(request.x)
            made[i] = {"a": a, "c": a * a}
            pending[0].append((i, a, 2))  # (a_0 + a_1)² = a_0² + a_1² + 2 a_0 a_1
        elif isinstance(request, Triple):
            a = line.tape.draw(request.x)
            holder, b = (None, line.tape.draw(request.y)) if request.kept is None else kept[request.kept]
            made[i] = (
                {"a": a, "c": request.op(a, b)}
                if request.kept is not None
                else {"a": a, "b": b, "c": request.op(a, b)}
            )
            for left in (0, 1):
                if holder not in (None, 1 - left):
                    continue  # nothing of b lies with the other
                if request.op.name == "mul":
                    pending[left].append((i, (a if line.rank == left else b).expand(made[i]["c"].shape), 1))
                else:
                    x, y = (a, None) if line.rank == left else (None, b)
                    made[i]["c"] = made[i]["c"] + await gilboa.cross(
                        line, request.op, x, y, request.x, request.y
                    )
    for left, terms in pending.items():
        if terms:
            flat = torch.cat([factor.flatten() for _, factor, _ in terms])
            shares = await gilboa.elementwise(line, *(flat, None) if line.rank == left else (None, flat))
            for (i, factor, times), share in zip(
                terms, shares.split([factor.numel() for _, factor, _ in terms])
            ):
                made[i]["c"] = made[i]["c"] + times * share.reshape(factor.shape)
    return made


async def _truncations(line: Line, asked: dict[int, Truncation], bits: int) -> dict[int, Shares]:
    line.label = "truncations"
    counts = [int(np.prod(r.shape)) for r in asked.values()]
    parts = await masks.truncations(line, sum(map(_eights, counts)), bits) if sum(counts) else {}
    made = {}
    for (i, request), begin, count in zip(asked.items(), _begins(counts), counts):
        made[i] = {
            name: _words(parts[name][begin : begin + count] if count else np.zeros(0, np.uint64), shape).to(
                dtype
            )
            for name, (shape, dtype) in {**request.free(), **request.fixed()}.items()
        }
    return made


async def _comparisons(line: Line, asked: dict[int, Comparison]) -> dict[int, Shares]:
    line.label = "comparisons"
    counts = [r.count for r in asked.values()]
    if not sum(counts):
        return {
            i: {
                name: torch.zeros(shape, dtype=dtype)
                for name, (shape, dtype) in {**r.free(), **r.fixed()}.items()
            }
            for i, r in asked.items()
        }
    parts = await masks.comparisons(line, sum(map(_eights, counts)))
    made = {}
    for (i, request), begin, count in zip(asked.items(), _begins(counts), counts):
        got = {}
        for name, (shape, dtype) in {**request.free(), **request.fixed()}.items():
            at, width = (
                (begin // 8, shape[-1]) if dtype is torch.uint8 and name != "T" else (begin, count)
            )  # bits lie eight to a byte
            some = parts[name][..., at : at + width]
            got[name] = (
                _words(some, shape) if dtype is torch.int64 else torch.from_numpy(some.copy()).reshape(shape)
            )
        made[i] = got
    return made


def _words(some: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(some.view(np.int64).copy()).reshape(shape)


def _eights(count: int) -> int:
    """Bits are packed in bytes: every request begins at one."""
    return -(-count // 8) * 8


def _begins(counts: list[int]) -> list[int]:
    return [0, *np.cumsum([_eights(c) for c in counts]).tolist()]
