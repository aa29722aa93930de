"""How many bytes the messages of a round take on the wire."""

from __future__ import annotations

from typing import NamedTuple

from ...algorithms.types import State
from ...guard import Guard
from ...parties.message import Message
from ...protocols.picking import Pick, Score
from ...protocols.rounds import Down, Look, Loss, Test, Tested, Upload
from ...runs import Event
from .counts import blank_tally, sized_tally, tally_sizes
from .plan import Plan


class MessageSizes(NamedTuple):
    """Bytes of one message of each kind, as they are in one round."""

    down: int = 0
    up: int = 0
    look: int = 0
    loss: int = 0
    evaluation: int = 0  # of all messages of one evaluation, from and to all parties


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


def evaluation_sizes(p: Plan, guard: Guard | None, model: State) -> tuple[int, int]:
    """Return the bytes of all Test and of all Tested of one evaluation, or of the hidden sum in their place.

    A party with too few held-out rows sends a Tested without counts.
    """
    blank, parties = blank_tally(p), len(p.fed)
    test = parties * wire_size(Test(0, _on_cpu(model)), _numbers(model))
    if guard is not None and guard.hiding is not None:
        try:
            from .hidden_sums import HiddenCounts
        except ImportError:  # msgpack is missing
            return test, 0
        up, down = HiddenCounts(guard, parties, blank, p.fed.name).traffic(p.fed.parties)
        return test + parties * down, parties * up
    columns = 0 if p.fed.subgroups is None or len(p.fed.test.y) else len(p.fed.subgroups.columns)
    tested = sum(
        n * wire_size(Tested(sized_tally(rows, blank, columns) if rows else {}))
        for rows, n in tally_sizes(p).items()
    )
    return test, tested


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
