"""How many bytes the messages of a round take on the wire."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...algorithms.types import State
from ...engine.metrics import count
from ...guard import Guard
from ...parties.message import Message
from ...protocols.picking import Pick, Score
from ...protocols.rounds import Down, Look, Loss, Test, Tested, Upload
from ...runs import Event
from .plan import Plan


class MessageSizes(NamedTuple):
    """Bytes of one message of each kind, as they are in one round."""

    down: int = 0
    up: int = 0
    look: int = 0
    loss: int = 0


def wire_size(message: Message, otherwise: int = 0) -> int:
    """Return the bytes of a message; `otherwise` where msgpack is missing, as on a bare GPU machine."""
    try:
        from ...parties.codec import encode_parts
    except ImportError:
        return otherwise
    return sum(map(len, encode_parts(message)))


def _numbers(vectors: State) -> int:
    """Bytes of the numbers alone."""
    return sum(4 * v.numel() for v in vectors.values())


def _on_cpu(vectors: State) -> State:
    return {k: v.cpu() for k, v in vectors.items()}


def round_sizes(r: int, down: State, up: State) -> MessageSizes:
    """Return the sizes of one Down and one Upload of round r (counted from 1)."""
    return MessageSizes(
        wire_size(Down(r - 1, down), _numbers(down)), wire_size(Upload(1.0, up), _numbers(up))
    )


def guarded_sizes(p: Plan, guard: Guard | None, r: int, down: State, up: State) -> MessageSizes:
    """Return what a client receives and sends in round r (counted from 1).

    Where updates are hidden, that is more than Down and Upload: keys and shares, too.
    """
    if guard is not None and guard.hiding is not None:
        try:
            from .hidden_sums import hidden_sizes
        except ImportError:  # msgpack is missing
            return round_sizes(r, down, up)
        return hidden_sizes(p, guard, r, down)
    return round_sizes(r, down, up)


def look_sizes(model: State) -> tuple[int, int]:
    """Return the sizes of one Look and one Loss."""
    return wire_size(Look(0, 0, _on_cpu(model)), _numbers(model)), wire_size(Loss(0.0), 8)


def score_sizes(r: int) -> tuple[int, int]:
    """Return the sizes of one Pick and one Score of round r (counted from 1)."""
    return wire_size(Pick(r - 1, 0, True), 9), wire_size(Score(0.0), 8)


def test_sizes(model: State, classes: int | None) -> tuple[int, int]:
    """Return the sizes of one Test and one Tested."""
    counts = count(
        torch.zeros(0, classes or 1), torch.zeros(0, dtype=torch.int64 if classes else torch.float32), classes
    )
    return wire_size(Test(0, _on_cpu(model))), wire_size(Tested(counts._asdict()))


def count_bytes(
    r: int,
    sizes: MessageSizes,
    *,
    downs: int,
    uploads: int,
    skipped: int = 0,
    looked: int = 0,
    scored: int = 0,
) -> tuple[int, int]:
    """Return the bytes that all parties together sent and received in round r (counted from 1).

    `skipped` of the uploads say only that there is nothing new; `looked` parties reported a loss before
    participants were chosen; `scored` ones reported a score before the best one alone sent its model.
    """
    pick, score = score_sizes(r) if scored else (0, 0)
    silence = wire_size(Upload(1.0, {})) if skipped else 0
    up = sizes.up * (uploads - skipped) + silence * skipped + sizes.loss * looked + score * scored
    return up, sizes.down * downs + sizes.look * looked + pick * scored


def tested_bytes(events: list[Event], size: int) -> int:
    """Return the bytes of all Tested of these rounds, if one with counts takes `size`.

    A party with too few held-out rows sends one without counts.
    """
    without = sum(e.get("untested", 0) for e in events)
    return (sum(e["tested"] for e in events) - without) * size + without * wire_size(Tested({}))


def score_bytes(events: list[Event]) -> tuple[int, int, int]:
    """Return the number of scores in these rounds, the bytes of all Picks, and those of all Scores.

    Everyone who states a score receives one Pick.
    """
    each = [(int(e["scored"]), *score_sizes(e["round"])) for e in events if "scored" in e]
    return (
        sum(n for n, _, _ in each),
        sum(n * pick for n, pick, _ in each),
        sum(n * score for n, _, score in each),
    )
