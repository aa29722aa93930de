"""Votes that only their sum tells: teachers answer questions about public rows, and nobody sees what one
of them said.

N. Papernot and others, ICLR 2017, assume an aggregator that everybody trusts with single votes; the sum by
Bonawitz and others (`secagg.py`) takes its place.

    asker                                                       teacher k
      |--- Questions(public rows) ------------------------------->|   once: k's model answers, its votes stay with it
      |--- Tallied(which questions) ----------------------------->|   for each count, first of all questions, then of those that are still open
      |<== secure sum of (one-hot votes of k [+ k's noise]) ======|   the programs of `secagg.py`, in a scope of their own
      |--- Tallied(none) ---------------------------------------->|   no more counts

The asker learns the counts, or, where teachers add noise, the counts with all their noise in it; of a
single vote nothing, on the assumptions of `secagg.py`. Where the asker adds the noise it must be trusted
with the counts, not with a vote. Where the teachers add it, it need not be: the sum alone carries the
guarantee, as long as so many teachers add their part as the terms say must stay, and do not tell it to the
asker. A teacher learns which public rows are asked about, and which of them are counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import secagg

Noise = Callable[[int, int], Tensor]  # (which count, how many numbers) → a teacher's own part of the noise


class Questions(Message, reveals="the public rows that a label is wanted for"):
    rows: Tensor


class Tallied(Message, reveals="which questions are counted now; none: the counting is over"):
    which: Tensor


async def teacher(
    me: Party,
    vote: Callable[[Tensor], Tensor],
    terms: secagg.SecAggTerms,
    classes: int,
    noise: Noise | None = None,
    boss: str = "server",
) -> int:
    """How many counts this teacher took part in. `terms.length` is set anew for each count."""
    asked = await me.recv(boss, Questions)
    choices = vote(asked.rows)
    if tuple(choices.shape) != (len(asked.rows),):
        raise BadData(
            f"party {me.name!r} gives votes of shape {tuple(choices.shape)} for {len(asked.rows)} "
            "questions. Give one class a question."
        )
    counted = 0
    while len(which := (await me.recv(boss, Tallied)).which):
        if (
            which.dim() != 1
            or int(which.min()) < 0
            or int(which.max()) >= len(choices)
            or len(which.unique()) < len(which)
        ):
            raise ProtocolError(
                f"party {me.name!r} is asked to count questions that were not asked, or one twice. It takes "
                "no part."
            )
        mine = torch.nn.functional.one_hot(choices[which], classes).flatten()
        if noise is not None:
            # beyond the bound lies less than one draw in 10⁴⁰; a larger number would wrap around in the ring
            mine = (mine + noise(counted, len(mine))).clamp(-terms.bound, terms.bound)
        if not await secagg.client(
            me.scope(f"count {counted}"), mine, replace(terms, length=len(mine)), boss=boss
        ):
            break  # the count went on without it, and so will those that follow
        counted += 1
    return counted


async def asker(
    me: Party,
    names: Sequence[str],
    rows: Tensor,
    terms: secagg.SecAggTerms,
    classes: int,
    still_open: Sequence[Callable[[Tensor], Tensor]] = (),
    within: float | None = None,
    first: float | None = None,
) -> list[tuple[Tensor, Tensor, tuple[str, ...]]]:
    """(which questions, their counts [questions, classes], whose votes are in them), one for each count.

    `still_open[i]` is given the counts of count i and says for which questions there is another; none of
    them: the counting ends.
    """
    names = list(names)
    await me.send(names, Questions(rows))
    which, done = torch.arange(len(rows)), []
    for i in range(len(still_open) + 1):
        await me.send(names, Tallied(which))
        outcome = await secagg.server(
            me.scope(f"count {i}"),
            names,
            replace(terms, length=len(which) * classes),
            within=within,
            first=first,
        )
        counts = outcome.total.view(len(which), classes)
        done.append((which, counts, outcome.included))
        names = list(
            outcome.included
        )  # who left stays away: its model's votes would be missing from some questions only
        if i < len(still_open):
            which = which[still_open[i](counts)]
            if not len(which):
                break
    await me.send(names, Tallied(torch.empty(0, dtype=torch.int64)))
    return done


def ideal(choices: Tensor, classes: int) -> Tensor:
    """What is computed: for each question how many teachers vote for each class. `choices` is [teachers,
    questions].
    """
    return torch.nn.functional.one_hot(choices, classes).sum(0)
