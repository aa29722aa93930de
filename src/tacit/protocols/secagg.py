"""Secure aggregation. Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical
Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4; with the sparse graph of
Bell et al., CCS 2020 (`secagg_graph.py`).

    client u                                             server
      |--- AdvertisedKeys(c_u^PK, s_u^PK [, signed]) ------>|  0  U1: those that answered, at least t
      |<-- RoundKeys(keys of its neighbors) ----------------|
      |--- SealedShares({v: shares of b_u and s_u^SK}) ---->|  1  U2 ⊆ U1
      |<-- ForwardedShares({v: what v sealed for u}) -------|
      |--- MaskedVector(y_u) ------------------------------>|  2  U3 ⊆ U2: whose vectors make the sum
      |<-- Survivors(alive, dropped) -----------------------|
      |--- AgreedSurvivors(signature of the list) --------->|  3  only against an active server: U4 ⊆ U3
      |<-- SurvivorSignatures({v: its signature}) ----------|
      |--- RevealedShares(b_v of alive, s_v^SK of dropped) ->|  4  U5, at least t
      |<-- RoundOver(why) ----------------------------------|     to dropped clients; on abort, to all

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_{u,v}) − Σ_{v < u} PRG(s_{u,v})   modulo 2^width

The server learns the sum over U3 and who dropped out when; of a single x_u nothing, unless it holds t of
the shares that u's neighbors hold. Clients learn who their neighbors are. Security rests on Diffie-Hellman
over Curve25519, AES-256 as a pseudorandom generator and ChaCha20-Poly1305. `curious`: the server follows the
protocol and may share what it sees with fewer than t clients. `active`: it may send anything to anyone;
public keys and the list of survivors are signed, and t must exceed two thirds. Neither prevents a client
from submitting a false vector.

Across processes, signatures are those of the parties' certificates (ECDSA P-256). Keys are signed in both
modes, so an agreed key is bound to the round, the federation and the certificates of both ends. In one
process there are no certificates; for `active`, Ed25519 keys are generated there.

A client leaves the round when it is asked for both kinds of share of one client, when the lists overlap or
differ from the clients it shared with, when it is itself listed as dropped, or when fewer than t survived.
It answers once per round, with fresh keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..crypto import prg, ring, shamir
from ..crypto.agree import PUBLIC, SEALED, KeyPair, bind, seal
from ..errors import BadData, ProtocolError, SumAborted
from ..parameters import bad, choice, whole
from ..parties.message import Message
from ..parties.party import Identity, Party
from .consent import UNCOMMITTED, Commitment, RoundSpent
from .secagg_graph import neighborhoods
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

WORD = 64  # bits of a word that wraps around


class AgreedSurvivors(Message, reveals="that a party received this list of survivors"):
    signature: bytes


class SurvivorSignatures(Message, reveals="that enough parties received the same list of survivors"):
    signatures: dict[str, bytes]


class RevealedShares(
    Message,
    reveals="shares that open the own mask of those in the sum, or the pairwise masks of those who dropped "
    "out, never both of one",
):
    own: dict[str, bytes]
    pairwise: dict[str, bytes]


@dataclass(frozen=True)
class SecAggTerms(SumTerms):
    """Parameters that all parties of a round agree on."""

    neighbors: int | None = whole(
        None, least=2, none=True, doc="with how many others a client masks; None: with all"
    )
    adversary: str = choice("curious", ("curious", "active"), doc="what the server may do")
    # whether numbers are words modulo 2^64 (sum_steps.Packed), not within ±bound
    modular: bool = field(default=False, kw_only=True)

    def check(self) -> None:
        if self.adversary == "active" and not self.threshold > 2 / 3:
            raise bad(
                "SecAgg",
                "threshold",
                self.threshold,
                "above 2/3 against an active server, which could send two halves of the clients different "
                "lists",
            )
        if self.adversary == "active" and self.neighbors is not None:
            raise bad(
                "SecAgg",
                "neighbors",
                self.neighbors,
                "None against an active server, which could choose a client's neighbors",
            )

    def bound_to(self, sent: bytes) -> SecAggTerms:
        """Return these terms, which were checked, for what was sent down."""
        last: SecAggTerms | None = self.__dict__.get("_bound")  # parties of one process ask for the same
        if last is not None and last.sent == sent:
            return last
        terms = object.__new__(SecAggTerms)  # dataclasses.replace takes ten times as long
        terms.__dict__.update(self.__dict__, sent=sent)
        for name in ("_bound", "_context"):  # of other terms
            terms.__dict__.pop(name, None)
        self.__dict__["_bound"] = terms
        return terms

    @cached_property
    def width(self) -> int:
        return WORD if self.modular else ring.width_for(self.parties, self.bound)

    @property
    def shares(self) -> int:
        """t: the number of shares that reconstruct a secret. Never taken from the server's messages."""
        return (
            self.enough
            if self.neighbors is None
            else max(2, math.ceil(self.threshold * (min(self.neighbors, self.parties - 1) + 1)))
        )

    def context(self, me: Party) -> bytes:
        """Bind protocol, contract, terms, scope (it contains the round) and the digest of what was sent."""
        return self.context_in(me.tag)

    def context_in(self, scope: str) -> bytes:
        last: tuple[str, bytes] | None = self.__dict__.get("_context")
        if last is None or last[0] != scope:
            before, between, after = self.constant_context
            last = scope, b"".join((before, bind(scope), between, bind(self.sent), after))
            self.__dict__["_context"] = last
        return last[1]

    @cached_property
    def constant_context(self) -> tuple[bytes, bytes, bytes]:
        """What surrounds the scope and the digest in a context: the same in all sums under these terms."""
        terms = (self.parties, self.length, self.bound, str(self.threshold), str(self.neighbors))
        return (
            bind("tacit secagg 2", self.federation),
            bind(*terms, self.adversary),
            bind("modular") if self.modular else b"",
        )

    def encode(self, values: Tensor, name: str) -> np.ndarray:
        """Return a party's integers as words of the ring, which the caller may change."""
        return self.encode_numbers(values.numpy(), name)

    def encode_numbers(self, numbers: np.ndarray, name: str) -> np.ndarray:
        if len(numbers) != self.length:
            raise BadData(
                f"party {name!r} has {len(numbers)} numbers to add; the terms require {self.length}."
            )
        if not self.modular:
            return ring.encode(numbers, self.width, self.bound)
        return numbers.view(np.uint64).copy()

    def among(self, about: bytes, participants: Iterable[str]) -> bytes:
        """Return the context of the masks, which includes the participants.

        Masks of parties that received different sets then do not cancel. In a sparse graph a party knows only
        its neighbors, so the set is left out.
        """
        return bind(about, "participants", *sorted(participants)) if self.neighbors is None else about


# the client -------------------------------------------------------------------------------------------------


@whether_included
async def client(
    me: Party,
    values: Tensor,
    terms: SecAggTerms,
    identity: Identity | None = None,
    server: str = "server",
    commitment: Commitment = UNCOMMITTED,
) -> None:
    """Take part in one sum; return whether this client's integers are included.

    False: the round continued without this client. An aborted round raises SumAborted. `commitment` is
    consulted before anything is sent that could open a second sum of the round.
    """
    about, draw, active, identity = (
        terms.context(me),
        me.secret.bytes,
        terms.adversary == "active",
        identity or me.identity,
    )
    vector = terms.encode(values, me.name)
    if active and identity is None:
        raise bad("SecAgg", "identity", None, "a signing key and all public keys, against an active server")

    # round 0: two key pairs, drawn for this round alone
    channel, pairwise = KeyPair(draw(32)), KeyPair(draw(32))
    own_keys = await advertise(me, server, about, identity, channel, pairwise)
    keys = (await receive(me, server, RoundKeys)).keys
    check_keys(
        me,
        keys,
        own_keys,
        terms.shares,
        terms.parties if terms.neighbors is None else terms.neighbors + 1,
        about,
        identity,
    )

    # round 1: shares of b_u and of s_u^SK, one for each holder, the party itself among them
    b, holders = draw(shamir.SECRET), sorted(keys)
    parts = [shamir.split(secret, terms.shares, len(holders), draw) for secret in (b, pairwise.private)]
    for_each = {name: parts[0][i] + parts[1][i] for i, name in enumerate(holders)}
    lines = channels(me, about, channel, {name: c for name, (c, _, _) in keys.items()})
    sealed = {
        v: seal(lines[me.name, v], for_each[v], bind(about, me.name, v), draw)
        for v in holders
        if v != me.name
    }
    await me.send(server, SealedShares(sealed))

    # round 2: open what the others sealed, mask with each of them
    shares = {me.name: for_each[me.name]}
    for name, box in (await receive(me, server, ForwardedShares)).sealed.items():
        try:
            shares[name] = open_share(me, name, box, lines, about, 2 * shamir.SHARE)
        except ProtocolError as error:  # caused by another client or the server: leave this sum, not the run
            await me.send(server, RoundSpent())
            raise SumAborted(str(error), spent=True) from error
    if len(shares) < terms.shares:
        raise ProtocolError(
            f"party {me.name!r} would mask with {len(shares) - 1} others; at least {terms.shares - 1} were "
            "agreed on. It leaves the round."
        )
    await leave_unless(me, server, commitment.upload(sorted(shares) if terms.neighbors is None else None))
    crowd = terms.among(about, shares)
    masks = [
        (
            pairwise.agree(keys[name][1], pair(crowd, me.name, own_keys[1], name, keys[name][1])),
            sign(me.name, name),
        )
        for name in shares
        if name != me.name
    ]
    prg.mask(vector, [(b, 1), *masks], terms.width)
    await me.send(server, MaskedVector(torch.from_numpy(ring.pack(vector, terms.width))))

    # round 3 and 4: one kind of share of each, after everyone has signed the same list
    alive, dropped = check_lists(me, await receive(me, server, Survivors), shares, terms.shares)
    if active and identity:
        # bound to all keys of this round: a signature of another round or attempt does not verify here
        listed = bind(
            about,
            "survivors",
            *(part for name in sorted(keys) for part in (name, *keys[name][:2])),
            "alive",
            *sorted(alive),
        )
        await me.send(server, AgreedSurvivors(identity.sign(listed)))
        signed = await receive(me, server, SurvivorSignatures)
        good = [
            name
            for name, s in signed.signatures.items()
            if name in alive and identity.verify(name, listed, s)
        ]
        if len(good) < terms.shares:
            raise ProtocolError(
                f"party {me.name!r} has {len(good)} valid signatures of the list of survivors and needs "
                f"{terms.shares}. The server may have sent others a different list; no share is revealed."
            )
    await leave_unless(me, server, commitment.reveal(alive))
    await me.send(
        server,
        RevealedShares(
            {v: shares[v][: shamir.SHARE] for v in sorted(alive)},
            {v: shares[v][shamir.SHARE :] for v in sorted(dropped)},
        ),
    )


def check_lists(
    me: Party, survivors: Survivors, shares: Mapping[str, bytes], least: int
) -> tuple[set[str], set[str]]:
    """Return (survivors, dropped), or refuse lists with which the server could unmask one client's vector."""
    alive, dropped = set(survivors.alive), set(survivors.dropped)
    refuse = f"party {me.name!r} reveals no share: "
    if alive & dropped or len(alive) < len(survivors.alive) or len(dropped) < len(survivors.dropped):
        twice = sorted(alive & dropped) or "someone"
        raise ProtocolError(
            f"{refuse}the server lists {twice} both as surviving and as dropped, or twice. Both kinds of "
            "share would unmask its vector."
        )
    if alive | dropped != set(shares):
        raise ProtocolError(
            f"{refuse}the server's lists differ from the clients it shared secrets with in "
            f"{sorted((alive | dropped) ^ set(shares))}."
        )
    if me.name not in alive:
        raise ProtocolError(
            f"{refuse}it is listed as dropped although it sent its vector; its pairwise masks would be "
            "revealed."
        )
    if len(alive) < least:
        raise ProtocolError(
            f"{refuse}{len(alive)} of the clients it masks with survived; {least} are needed."
        )
    return alive, dropped


def sign(u: str, v: str) -> int:
    """Return +1 at one end of a pair and −1 at the other, so that the pair's mask cancels in the sum."""
    return 1 if u < v else -1


def pair(about: bytes, u: str, key_u: bytes, v: str, key_v: bytes) -> bytes:
    """Return the context to which both ends of a pair bind their mask."""
    (a, key_a), (b, key_b) = sorted([(u, key_u), (v, key_v)])
    return bind(about, "mask", a, key_a, b, key_b)


# the server -------------------------------------------------------------------------------------------------


async def server(
    me: Party,
    names: Sequence[str],
    terms: SecAggTerms,
    within: float | None = None,
    first: float | None = None,
) -> SumOutcome:
    """Return the sum over the clients that stayed.

    `within`: seconds for each step; clients that have not answered by then are dropped. `first`: seconds for
    the first step, during which clients may still compute their vectors.
    """
    terms.fits(names)
    about, steps = terms.context(me), SumSteps(me, terms.enough, within)
    t = terms.shares

    u1 = await steps.ask(
        names,
        AdvertisedKeys,
        "key exchange",
        within=first,
        valid=lambda _, m: len(m.channel) == len(m.mask) == PUBLIC,
    )
    around = neighborhoods(list(u1), terms.neighbors, me.secret.bytes)
    for name in u1:
        await me.send(
            name, RoundKeys({v: (u1[v].channel, u1[v].mask, u1[v].signature) for v in around[name]})
        )

    u2 = await steps.ask(
        u1, SealedShares, "sharing", lambda name, m: set(m.sealed) == set(around[name]) - {name}
    )
    for name in u2:
        await me.send(
            name, ForwardedShares({v: u2[v].sealed[name] for v in around[name] if v in u2 and v != name})
        )

    crowd = terms.among(about, u2)
    size = ring.packed_bytes(terms.length, terms.width)
    total = np.zeros(terms.length, ring.word(terms.width))

    u3 = await steps.ask(
        u2,
        MaskedVector,
        "upload",
        lambda _, m: m.packed.dtype == torch.uint8 and tuple(m.packed.shape) == (size,),
    )
    for upload in u3.values():
        total += ring.unpack(upload.packed.numpy(), terms.length, terms.width)
    del upload

    lists = {
        name: ([v for v in around[name] if v in u3], [v for v in around[name] if v in u2 and v not in u3])
        for name in u3
    }
    for name in u3:
        await me.send(name, Survivors(*lists[name]))
    u4: Mapping[str, Any] = u3
    if terms.adversary == "active":
        u4 = await steps.ask(u3, AgreedSurvivors, "consistency check")
        for name in u4:
            await me.send(name, SurvivorSignatures({v: m.signature for v, m in u4.items()}))
    u5 = await steps.ask(
        u4,
        RevealedShares,
        "unmasking",
        lambda name, m: (set(m.own), set(m.pairwise)) == tuple(map(set, lists[name])),
    )

    def recover(owner: str, kind: str) -> bytes:
        shares = {i: getattr(u5[v], kind)[owner] for i, v in enumerate(around[owner]) if v in u5}
        if len(shares) < t:
            raise ProtocolError(
                f"{len(shares)} of the {len(around[owner])} parties that hold shares of {owner!r} stayed to "
                f"the end and {t} are needed"
            )
        return shamir.join(shares, t)

    try:
        masks = [(recover(name, "own"), -1) for name in u3]
        for name in set(u2) - set(u3):
            private = KeyPair(recover(name, "pairwise"))
            if private.public != u1[name].mask:
                raise ProtocolError(
                    f"the shares of {name!r} do not reconstruct the private key of its public key: a party "
                    "sent a false share or key"
                )
            masks += [
                (private.agree(u1[v].mask, pair(crowd, name, u1[name].mask, v, u1[v].mask)), -sign(v, name))
                for v in around[name]
                if v in u3
            ]
    except ProtocolError as error:
        raise await steps.abort(names, str(error).rstrip(".")) from None
    prg.mask(total, masks, terms.width)
    return SumOutcome(torch.from_numpy(ring.decode(total, terms.width)), tuple(u3), steps.dropped)


def traffic(names: Sequence[str], terms: SecAggTerms, signature: int = 0) -> tuple[int, int]:
    """Return (bytes sent, bytes received) by these clients in a round without dropouts.

    Computed from messages of the same shape. `signature`: the length of a signature where keys are signed.
    """
    around = sorted(names)[: len(names) if terms.neighbors is None else terms.neighbors + 1]
    key, signed, share, box = (
        bytes(PUBLIC),
        bytes(signature),
        bytes(shamir.SHARE),
        bytes(SEALED + 2 * shamir.SHARE),
    )
    sealed = dict.fromkeys(around[1:], box)
    up: list[Message] = [
        AdvertisedKeys(key, key, signed),
        SealedShares(sealed),
        RevealedShares(dict.fromkeys(around, share), {}),
        MaskedVector(torch.zeros(ring.packed_bytes(terms.length, terms.width), dtype=torch.uint8)),
    ]
    down: list[Message] = [
        RoundKeys(dict.fromkeys(around, (key, key, signed))),
        ForwardedShares(sealed),
        Survivors(around, []),
    ]
    if terms.adversary == "active":
        up.append(AgreedSurvivors(signed))
        down.append(SurvivorSignatures(dict.fromkeys(names, signed)))
    return len(names) * message_bytes(up), len(names) * message_bytes(down)


def ideal(values: Mapping[str, Tensor], included: Iterable[str] | None = None) -> Tensor:
    """Return the sum of the integers of all clients that stayed up to their upload."""
    return torch.stack(
        [values[name].to(torch.int64) for name in (values if included is None else included)]
    ).sum(0)
