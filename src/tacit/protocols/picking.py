"""Only the best client sends its model. S. Park, Y. Suh, J. Lee: "FedPSO", Sensors 21(2), 2021, Algorithm 2.
Messages in addition to those of rounds.py:

    server                                    client k (chosen in this round)
      |---- Down(round, vectors) --------------->|
      |                                          |  local(…) on its own rows; keeps its update
      |<--- Score(score) ------------------------|
      |---- Pick(round, turn, wanted) ---------->|   wanted: to the client with the lowest score
      |<--- Upload(weight, vectors) -------------|   from that client only
      |---- Pick(round, turn, not wanted) ------>|   to the others, after the upload

Ties are broken by the order of the list of parties. If the best client's model does not arrive or is invalid,
the next best is asked in the next `turn`, so every client that reported a score receives one Pick. Clients
that are not picked discard their update.

The server learns one update per round in the clear, and all scores. A client learns the model, and whether
its own was the best. Clients are trusted to report their true scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..parties.message import Message

SCORE = "score"  # its key in the vectors of `local`


class Score(Message, reveals="how large one party's loss on the round's rows is, after its own steps"):
    score: float


class Pick(
    Message,
    reveals="whether the party's model is wanted: of all that are still there, it did best in the round",
):
    round: int
    turn: int
    wanted: bool


class BestUpload(NamedTuple):
    """The result of a round in which only the best party sends its update."""

    best: str
    upload: tuple[float, dict[str, Tensor]]
    scores: Mapping[str, float]


def rank(scores: Mapping[str, float], order: Sequence[str]) -> list[str]:
    """Sort parties by score, lowest first; ties follow `order`, non-finite scores come last."""
    place = {name: k for k, name in enumerate(order)}
    return sorted(
        scores, key=lambda name: (scores[name] if math.isfinite(scores[name]) else math.inf, place[name])
    )


def unlike(score: float, vectors: Mapping[str, Tensor]) -> str | None:
    """Return why the model does not match the reported score, or None if it does."""
    now = float(vectors[SCORE]) if SCORE in vectors else None
    if now is not None and (now == score or (math.isnan(now) and math.isnan(score))):
        return None
    return (
        f"its model comes with {'no score' if now is None else f'the score {now:g}'}, and it was picked "
        f"for the score {score:g}"
    )


def ideal(ups: Mapping[str, tuple[float, dict[str, Tensor]]], order: Sequence[str]) -> BestUpload:
    """Return the best party's upload and all scores."""
    scores = {name: float(vectors[SCORE]) for name, (_, vectors) in ups.items()}
    best = rank(scores, order)[0]
    return BestUpload(best, ups[best], scores)
