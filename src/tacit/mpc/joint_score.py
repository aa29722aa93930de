"""A sum of scores for each row, opened to one party, which learns nothing else of the others' scores.

    party i (scores s_i)                       party j                    receiver
      |--- ScoreKey(k_ij), i < j ------------->|
      |--- MaskedScores(s_i ± pads of all k_ij) ---------------------------->|    pads cancel in the sum

With one other party the receiver learns that party's score of each row, as the prediction implies: prediction
minus its own score. Semi-honest; a receiver that colludes with all others but one learns that one's scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .tape import Tape

FRACTION = 32  # fractional bits of a score
MOST = 2.0**28


class ScoreKey(Message, reveals="a random key for masks that cancel in a sum: nothing"):
    key: bytes


class MaskedScores(
    Message,
    reveals="the sender's score of each row under masks that cancel with the other senders': the sum of the "
    "others' scores of each row (with one sender, its own)",
):
    values: Tensor


async def add_scores(me: Party, parties: Sequence[str], receiver: str, own: Tensor) -> Tensor | None:
    """Σ of all parties' scores (rows × outcomes, float64) at the receiver; None elsewhere."""
    senders = [n for n in parties if n != receiver]
    if own.numel() and not bool((own.abs() < MOST).all()):
        raise BadData(f"predict: a score of {me.name!r} is not a number below {MOST:g}. Check its rows.")
    words = torch.round(own.double() * 2.0**FRACTION).long()
    if me.name == receiver:
        for name, message in (await me.gather(senders, MaskedScores)).items():
            if message.values.shape != words.shape or message.values.dtype is not torch.int64:
                raise ProtocolError(
                    f"{name!r} sent scores of shape {tuple(message.values.shape)}; expected "
                    f"{tuple(words.shape)}. "
                    "All parties must have parts of the same fit."
                )
            words = words + message.values
        return words.double() / 2.0**FRACTION
    place = senders.index(me.name)
    for other in senders[place + 1 :]:
        key = me.secret.bytes(KEY)
        await me.send(other, ScoreKey(key))
        words = words + Tape(key).draw(tuple(words.shape))
    for other in senders[:place]:
        key = (await me.recv(other, ScoreKey)).key
        if len(key) != KEY:
            raise ProtocolError(f"{other!r} sent a key of {len(key)} bytes; expected {KEY}.")
        words = words - Tape(key).draw(tuple(words.shape))
    await me.send(receiver, MaskedScores(words))
    return None
