"""Only the best sends its model. S. Park, Y. Suh, J. Lee: "FedPSO", Sensors 21(2), 2021, Algorithm 2. What is
said in a round of rounds.py besides:

    server                                    client k (chosen in this round)
      |---- Down(round, vectors) --------------->|
      |                                          |  local(…) on its own rows; it holds what it would send
      |<--- Score(score) ------------------------|
      |---- Pick(round, turn, wanted) ---------->|   wanted, to the one with the lowest score
      |<--- Upload(weight, vectors) -------------|   by that one alone
      |---- Pick(round, turn, not wanted) ------>|   to the others, once the model has come

Of equal scores the one of whoever stands first in the list of parties counts as the best. If its model does
not come, or is none the server can use, the next best is asked, in the next `turn`; so everyone who stated a
score hears one Pick. Whoever is not wanted drops what it held.

The server learns one update a round in the clear, and everyone's score; a client learns the model, and
whether its own was the best. It rests on parties that tell the truth about their scores: whoever states the
lowest is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..parties.message import Message

SCORE = "score"  # what `local` calls it


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
    """What takes the place of the uploads where the best party's alone is sent."""

    best: str
    upload: tuple[float, dict[str, Tensor]]
    scores: Mapping[str, float]


def rank(scores: Mapping[str, float], order: Sequence[str]) -> list[str]:
    """The lowest first; among equals whoever stands first in `order`; last those whose score is no finite
    number.
    """
    place = {name: k for k, name in enumerate(order)}
    return sorted(
        scores, key=lambda name: (scores[name] if math.isfinite(scores[name]) else math.inf, place[name])
    )


def unlike(score: float, vectors: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the model of a party that stated this score, if anything is."""
    now = float(vectors[SCORE]) if SCORE in vectors else None
    if now is not None and (now == score or (math.isnan(now) and math.isnan(score))):
        return None
    return (
        f"its model comes with {'no score' if now is None else f'the score {now:g}'}, and it was picked "
        f"for the score {score:g}"
    )


def ideal(ups: Mapping[str, tuple[float, dict[str, Tensor]]], order: Sequence[str]) -> BestUpload:
    """What comes of it: the best party's upload, and everyone's score."""
    scores = {name: float(vectors[SCORE]) for name, (_, vectors) in ups.items()}
    best = rank(scores, order)[0]
    return BestUpload(best, ups[best], scores)
