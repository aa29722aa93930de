"""LightSecAgg. So, He, Yang, Li, Yu, Ali, Guler, Avestimehr: LightSecAgg: a Lightweight and Versatile
Design for Secure Aggregation in Federated Learning, MLSys 2022, Algorithm 1.

    client i                                             server
      |--- AdvertisedKeys(channel) ------------------------>|  0  N1: those that answered, at least U
      |<-- RoundKeys(everybody's) --------------------------|
      |--- SealedShares({j: coded piece of z_i for j}) ---->|  1  encode and share masks (lines 1 to 9)
      |<-- ForwardedShares({j: what j sealed for i}) -------|
      |--- MaskedVector(x_i + z_i) ------------------------>|  2  mask and upload (lines 10 to 16)
      |<-- Survivors(alive, dropped) -----------------------|
      |--- SummedShares(Σ_{j alive} piece of z_j for i) -->|  3  recover the sum of masks (lines 17 to 22)

The server recovers the sum of the survivors' masks in one step, whoever dropped out. It never reconstructs a
single secret, and its work does not grow with dropouts. In exchange, each client sends every other client a
coded piece of its mask beforehand: length/(U − T) numbers each.

z_i is cut into U − T pieces and T random pieces are added. A polynomial of degree U − 1 through all U of
them, evaluated at party j's point, is j's piece. Any U pieces determine the polynomial; any T are uniformly
random. Sums of pieces are pieces of the sum.

The server learns the sum over the survivors and who dropped out when. It learns nothing about a single x_i,
even together with T clients. Security rests on X25519 and ChaCha20-Poly1305 between clients, on AES-256 to
expand z_i from a seed, and on a server that follows the protocol (honest but curious).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..crypto import field
from ..crypto.agree import PUBLIC, SEALED, KeyPair, bind, seal
from ..errors import BadData
from ..parameters import bad, real
from ..parties.message import Message
from ..parties.party import Identity, Party
from .consent import UNCOMMITTED, Commitment
from .secagg import check_lists, ideal
from .summing import (
    AdvertisedKeys,
    ForwardedShares,
    MaskedVector,
    RoundKeys,
    SealedShares,
    SumOutcome,
    SumSteps,
    SumTerms,
    Survivors,
    advertise,
    channels,
    check_keys,
    leave_unless,
    message_bytes,
    open_share,
    receive,
    whether_included,
)

__all__ = ["LightSecAggTerms", "client", "ideal", "server", "traffic"]


class SummedShares(
    Message,
    reveals="a piece of the sum of the survivors' masks: enough of them give that sum, and no single mask",
):
    piece: Tensor


@dataclass(frozen=True)
class LightSecAggTerms(SumTerms):
    """Parameters that all parties of a round agree on; `enough` is the paper's U, `length` its d."""

    threshold: float = real(0.7, above=0.5, most=1.0, doc="U/N: the share that must stay to the end")
    colluding: float = real(
        0.5, least=0.0, below=1.0, doc="T/N: the share that may join with the server and still learn nothing"
    )

    def check(self) -> None:
        if not self.private < self.enough:
            raise bad(
                "LightSecAgg",
                "threshold",
                self.threshold,
                f"large enough that more must stay than may collude: of {self.parties} parties {self.enough} "
                f"must stay and {self.private} may collude",
                "Raise threshold or lower colluding.",
            )
        if 2 * self.parties * self.bound >= field.Q:
            raise bad(
                "LightSecAgg",
                "the range of a sum",
                f"±{self.parties * self.bound}",
                "below 2^31, half of its field",
                "Quantize to at most 31 bits.",
            )

    @property
    def private(self) -> int:
        """T, at least 1: a single piece must reveal nothing to its holder."""
        return max(1, math.floor(self.colluding * self.parties))

    @property
    def piece(self) -> int:
        """The number of field elements in a piece."""
        return -(-self.length // (self.enough - self.private))

    def context(self, me: Party) -> bytes:
        return bind(
            "tacit lightsecagg 2",
            self.federation,
            me.tag,
            self.parties,
            self.length,
            self.bound,
            str(self.threshold),
            str(self.colluding),
            self.sent,
        )


@whether_included
async def client(
    me: Party,
    values: Tensor,
    terms: LightSecAggTerms,
    identity: Identity | None = None,
    server: str = "server",
    commitment: Commitment = UNCOMMITTED,
) -> None:
    """Take part in one sum; return whether this client's integers are included, as in secagg.py."""
    about, draw, identity = terms.context(me), me.secret.bytes, identity or me.identity
    vector = field.encode(values.numpy(), terms.bound)
    if len(vector) != terms.length:
        raise BadData(
            f"party {me.name!r} has {len(vector)} numbers to add; the terms require {terms.length}."
        )
    channel = KeyPair(draw(32))
    own_keys = await advertise(me, server, about, identity, channel)
    keys = (await receive(me, server, RoundKeys)).keys
    check_keys(me, keys, own_keys, terms.enough, terms.parties, about, identity)

    # lines 1 to 9: a mask, cut, padded with T random pieces, coded for everyone
    names = sorted(keys)
    mask = field.uniform(draw(32), terms.length)
    pieces = np.zeros((terms.enough, terms.piece), np.uint64)
    pieces[: terms.enough - terms.private].reshape(-1)[: terms.length] = mask
    pieces[terms.enough - terms.private :] = field.uniform(draw(32), terms.private * terms.piece).reshape(
        terms.private, terms.piece
    )
    coded = {
        name: field.combine(weights, pieces).astype(np.uint32)
        for name, weights in zip(names, _code(terms, len(names)))
    }
    lines = channels(me, about, channel, {name: entry[0] for name, entry in keys.items()})
    await me.send(
        server,
        SealedShares(
            {
                v: seal(lines[me.name, v], coded[v].tobytes(), bind(about, me.name, v), draw)
                for v in names
                if v != me.name
            }
        ),
    )
    shares = {me.name: coded[me.name].tobytes()}
    for name, box in (await receive(me, server, ForwardedShares)).sealed.items():
        shares[name] = open_share(me, name, box, lines, about, 4 * terms.piece)

    # lines 10 to 16
    await leave_unless(me, server, commitment.upload(sorted(shares)))
    await me.send(
        server, MaskedVector(torch.from_numpy(field.add(vector, mask).astype(np.uint32).view(np.uint8)))
    )

    # lines 17 to 22
    alive, _ = check_lists(me, await receive(me, server, Survivors), shares, terms.enough)
    total = np.zeros(terms.piece, np.uint64)
    for name in alive:
        total += np.frombuffer(shares[name], np.uint32) % np.uint32(
            field.Q
        )  # honest parties send field elements; others must not overflow the sum
    await leave_unless(me, server, commitment.reveal())
    await me.send(server, SummedShares(torch.from_numpy((total % np.uint64(field.Q)).astype(np.uint32))))


async def server(
    me: Party,
    names: Sequence[str],
    terms: LightSecAggTerms,
    within: float | None = None,
    first: float | None = None,
) -> SumOutcome:
    """Return the sum over the clients that stayed; `within` and `first` as in secagg.py."""
    terms.fits(names)
    steps = SumSteps(me, terms.enough, within)
    n1 = await steps.ask(
        names, AdvertisedKeys, "key exchange", within=first, valid=lambda _, m: len(m.channel) == PUBLIC
    )
    await me.send(n1, RoundKeys({v: (m.channel, b"", m.signature) for v, m in n1.items()}))
    n2 = await steps.ask(n1, SealedShares, "sharing", lambda name, m: set(m.sealed) == set(n1) - {name})
    for name in n2:
        await me.send(name, ForwardedShares({v: m.sealed[name] for v, m in n2.items() if v != name}))
    n3 = await steps.ask(
        n2,
        MaskedVector,
        "upload",
        lambda _, m: m.packed.dtype == torch.uint8 and tuple(m.packed.shape) == (4 * terms.length,),
    )
    await me.send(n3, Survivors(list(n3), [v for v in n2 if v not in n3]))
    n4 = await steps.ask(
        n3,
        SummedShares,
        "recovery",
        lambda _, m: m.piece.dtype == torch.uint32 and tuple(m.piece.shape) == (terms.piece,),
    )

    total = np.zeros(terms.length, np.uint64)
    for upload in n3.values():
        total += upload.packed.numpy().view(np.uint32)
    at = {name: terms.enough + 1 + i for i, name in enumerate(sorted(n1))}
    some = list(n4)[: terms.enough]
    rows = np.stack([n4[name].piece.numpy().astype(np.uint64) for name in some])
    masks = [
        field.combine(field.lagrange([at[name] for name in some], k + 1), rows)
        for k in range(terms.enough - terms.private)
    ]
    mask = np.concatenate(masks)[: terms.length]
    return SumOutcome(
        torch.from_numpy(field.decode(field.subtract(total % np.uint64(field.Q), mask))),
        tuple(n3),
        steps.dropped,
    )


def traffic(names: Sequence[str], terms: LightSecAggTerms, signature: int = 0) -> tuple[int, int]:
    """As in secagg.py."""
    key, signed = bytes(PUBLIC), bytes(signature)
    sealed = dict.fromkeys(sorted(names)[1:], bytes(SEALED + 4 * terms.piece))
    up = [
        AdvertisedKeys(key, b"", signed),
        SealedShares(sealed),
        MaskedVector(torch.zeros(4 * terms.length, dtype=torch.uint8)),
        SummedShares(torch.zeros(terms.piece, dtype=torch.uint32)),
    ]
    down = [
        RoundKeys(dict.fromkeys(names, (key, b"", signed))),
        ForwardedShares(sealed),
        Survivors(list(names), []),
    ]
    return len(names) * message_bytes(up), len(names) * message_bytes(down)


def _code(terms: LightSecAggTerms, parties: int) -> list[list[int]]:
    """Row j: the Lagrange weights of party j's piece. Pieces are at points 1 … U, parties after them."""
    places = range(1, terms.enough + 1)
    return [field.lagrange(list(places), terms.enough + 1 + j) for j in range(parties)]
