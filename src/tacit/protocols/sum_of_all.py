"""A sum over all parties or none: pairwise masks under keys that last for a session.

    party u                                              coordinator
      |--- AdvertisedKeys(X_u [, signed]) --------------->|   only in the first sum of a session
      |<-- RoundKeys({v: X_v}) ---------------------------|
      |--- MaskedVector(y_u) ---------------------------->|   in every sum
      |--- SessionUnknown() ----------------------------->|   instead, if u restarted since: a new session

    s_{u,v} = HKDF(X25519(x_u, X_v); contract, session, both names and keys)        once in a session
    k_{u,v} = HMAC(s_{u,v}; "masks")                                                 once in a session
    c = SHA-256(contract, step, what was sent down, parties)                         once in a sum
    y_u = x_u + Σ_{v > u} PRG(k_{u,v}, c) − Σ_{v < u} PRG(k_{u,v}, c)                modulo 2^width

PRG(k, c) is the keystream of AES-256-GCM with the nonce c of 32 bytes: counter mode, from the counter that
follows GHASH_h(c), where the hash key h is AES_k(0).

The masks cancel in the sum over all parties and in no other. Nothing is ever revealed to unmask it, so there
are no shares of secrets, and no self-mask b_u: Bonawitz et al. (secagg.py) need both because they open the
pairwise masks of clients that dropped out. Where every sum is over all parties, a client that is missing
means no sum, and its masks are never opened.

Claim: the coordinator and any n − 2 parties together learn of the others' vectors only their sum. Between any
two honest parties u and v, k_{u,v} is the output of a pseudorandom function under a key that only u and v
have (Diffie-Hellman over Curve25519, HKDF), so PRG(k_{u,v}, c) is indistinguishable from uniform, in every
sum anew, as GCM is under different nonces. The coordinator knows all c, and may choose them by what it sends
down; whether the counters of two of them overlap depends on h, which it does not know. GHASH_h(c) is a
polynomial in h: of two different c the first counters differ by any given value with a probability of at
most 3 / 2^128, and at most 32 differences as bits are one difference as numbers (Niwa, Ohashi, Minematsu,
Iwata: GCM Security Bounds Reconsidered, FSE 2015). Those of q sums of 2^30 bytes, 2^26 blocks, overlap with a
probability below q² · 2^26 · 32 · 3 / 2^128 < q² / 2^95; of sums of 32 kB, q² / 2^110. Honest parties are
connected by these masks, so all that does not depend on them is the honest sum.

Claim: one mask hides one vector. A mask depends on contract, step and everything sent down, and a party
answers these with one vector, which it keeps on disk (`sum_program.Answers`). A coordinator that repeats an
attempt gets the same bytes again, one that changes anything gets another mask. An attempt over other keys is
another session, for which every party draws a new key pair: a private key meets one set of public keys.

A session's keys are in memory only and are deleted at its end. A process that is broken into during a
session reveals masks of that session's earlier sums; keys of earlier sessions are gone. Keys are signed
wherever parties have certificates, and against an active server always: a coordinator that plays a party is
found out. Parties that disagree about anything that a mask is bound to get noise, not a sum.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..crypto import prg, ring
from ..crypto.agree import PUBLIC, KeyPair, bind
from ..errors import ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Identity, Party
from .secagg import SecAggTerms, pair, sign
from .summing import (
    AdvertisedKeys,
    MaskedVector,
    RoundKeys,
    SumOutcome,
    SumSteps,
    advertise,
    check_keys,
    message_bytes,
    receive,
)

MASKS = b"tacit sum_of_all masks 4"


class SessionUnknown(Message, reveals="that the party has no keys of this session: it was restarted"):
    pass


class SessionLost(Exception):
    """A party has no keys of the session: begin the sum again with new ones."""


@dataclass
class Session:
    """What a party keeps between the sums of a session: the secret that it shares with each other party."""

    name: bytes = b""
    # of each other party: the key of masks, and the sign
    streams: list[tuple[prg.Keystream, int]] = field(default_factory=list, repr=False)

    def begin(self, name: bytes, about: bytes, me: str, own: KeyPair, keys: Mapping[str, bytes]) -> None:
        """Derive the secrets of a session from the public keys of all parties."""
        self.streams = []
        for v, public in keys.items():
            if v != me:
                secret = own.agree(public, pair(bind(about, name), me, own.public, v, public))
                stream = prg.Keystream(hmac.digest(secret, MASKS, "sha256"))
                self.streams.append((stream, sign(me, v)))
        self.name = name

    def mask(self, vector: np.ndarray, about: bytes, parties: Sequence[str], width: int) -> np.ndarray:
        """Add the masks of one sum to a vector, in place."""
        return prg.mask_from(vector, self.streams, mask_context(about, tuple(parties)), width)

    def answer(self, vector: np.ndarray, about: bytes, parties: Sequence[str], width: int) -> MaskedVector:
        """Mask a vector in place; return the message."""
        return MaskedVector(torch.from_numpy(ring.pack(self.mask(vector, about, parties, width), width)))


async def client(
    me: Party,
    values: Tensor,
    terms: SecAggTerms,
    parties: Sequence[str],
    session: Session,
    begins: bytes | None,
    identity: Identity | None = None,
    server: str = "server",
) -> None:
    """Take part in one sum. `begins`: the name of a new session, or None where `session` goes on."""
    identity = identity or me.identity
    vector = terms.encode(values, me.name)
    if terms.adversary == "active" and identity is None:
        raise bad("SecAgg", "identity", None, "a signing key and all public keys, against an active server")
    about = terms.context(me)
    if begins is not None:
        session.name, session.streams = b"", []
        own = KeyPair(me.secret.bytes(32))
        mine = await advertise(me, server, about, identity, own)
        keys = (await receive(me, server, RoundKeys)).keys
        check_keys(me, keys, mine, len(parties), len(parties), about, identity)
        if set(keys) != set(parties):
            raise ProtocolError(
                f"party {me.name!r} received the keys of {', '.join(sorted(set(keys) - set(parties)))}, "
                "which the contract does not name. It leaves the sum."
            )
        session.begin(begins, about, me.name, own, {v: entry[0] for v, entry in keys.items()})
    await me.send(server, session.answer(vector, about, parties, terms.width))


async def continue_session(
    me: Party,
    tag: str,
    values: np.ndarray,
    terms: SecAggTerms,
    parties: Sequence[str],
    session: Session,
    server: str = "server",
) -> None:
    """Take part in one sum of a session that goes on, in the scope `tag`: send one message, await none."""
    vector = terms.encode_numbers(values, me.name)
    about = terms.context_in(me.full_tag(tag))  # the same object at all parties of this process
    await me.send_alone(tag, server, session.answer(vector, about, parties, terms.width))


@lru_cache(64)
def mask_context(about: bytes, parties: tuple[str, ...]) -> bytes:
    """Return what the masks of a sum are bound to, as a digest."""
    return hashlib.sha256(bind(about) + _bind_names(parties)).digest()


@lru_cache(64)
def _bind_names(parties: tuple[str, ...]) -> bytes:
    return bind("participants", *sorted(parties))


async def server(
    me: Party,
    names: Sequence[str],
    terms: SecAggTerms,
    begins: bool,
    within: float | None = None,
) -> SumOutcome:
    """Return the sum over all parties. Raise SessionLost if one has no keys of a session that goes on."""
    terms.fits(names)
    steps = SumSteps(me, len(names), within)
    if begins:
        keys = await steps.ask(
            names, AdvertisedKeys, "key exchange", valid=lambda _, m: len(m.channel) == PUBLIC and not m.mask
        )
        # one message for all: encoded once
        await me.send(names, RoundKeys({v: (m.channel, m.mask, m.signature) for v, m in keys.items()}))
    size = ring.packed_bytes(terms.length, terms.width)
    uploads = await steps.ask(
        names,
        MaskedVector,
        "upload",
        lambda _, m: (
            isinstance(m, SessionUnknown)
            or (m.packed.dtype == torch.uint8 and tuple(m.packed.shape) == (size,))
        ),
        also=() if begins else (SessionUnknown,),
    )
    lost = [name for name, m in uploads.items() if isinstance(m, SessionUnknown)]
    if lost:
        raise SessionLost(f"party {lost[0]!r} has no keys of this session; the sum begins again")
    total = np.zeros(terms.length, ring.word(terms.width))
    is_whole = terms.width == 8 * total.itemsize  # of words without spare bits: nothing to unpack
    for upload in uploads.values():
        packed = upload.packed.numpy()
        total += packed.view(total.dtype) if is_whole else ring.unpack(packed, terms.length, terms.width)
    ring.truncate(total, terms.width)
    return SumOutcome(torch.from_numpy(ring.decode(total, terms.width)), tuple(uploads), steps.dropped)


def traffic(names: Sequence[str], terms: SecAggTerms, begins: bool, signature: int = 0) -> tuple[int, int]:
    """Return (bytes sent, bytes received) by these parties in one sum."""
    key, signed = bytes(PUBLIC), bytes(signature)
    up: list[Message] = [
        MaskedVector(torch.zeros(ring.packed_bytes(terms.length, terms.width), dtype=torch.uint8))
    ]
    down: list[Message] = []
    if begins:
        up.append(AdvertisedKeys(key, b"", signed))
        down.append(RoundKeys(dict.fromkeys(names, (key, b"", signed))))
    return len(names) * message_bytes(up), len(names) * message_bytes(down)
