"""Count votes with secure aggregation: teachers label public rows, and no single vote is revealed.

N. Papernot and others, ICLR 2017, assume an aggregator that is trusted with single votes. Here secure
aggregation (`secagg.py`) replaces it.

    asker                                                       teacher k
      |--- Questions(public rows) ------------------------------->|   once; k's votes stay with k
      |--- Tallied(which questions) ----------------------------->|   per count: all questions, then open ones
      |<== secure sum of (one-hot votes of k [+ k's noise]) ======|   the programs of `secagg.py`
      |--- Tallied(none) ---------------------------------------->|   no more counts

The asker learns the counts, or the noisy counts where teachers add noise. It learns nothing about a single
vote, under the assumptions of `secagg.py`. If the asker adds the noise, it must be trusted with the exact
counts. If the teachers add it, the guarantee holds without that trust, provided that as many teachers as the
terms require add their share and keep it secret. A teacher learns which public rows are asked about, and
which are counted again.
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
    server: str = "server",
) -> int:
    """Vote; return the number of counts this teacher took part in. `terms.length` is set for each count."""
    questions = await me.recv(server, Questions)
    choices = vote(questions.rows)
    if tuple(choices.shape) != (len(questions.rows),):
        raise BadData(
            f"party {me.name!r} returned votes of shape {tuple(choices.shape)} for {len(questions.rows)} "
            "questions. Return one class per question."
        )
    count = 0
    while len(which := (await me.recv(server, Tallied)).which):
        if (
            which.dim() != 1
            or int(which.min()) < 0
            or int(which.max()) >= len(choices)
            or len(torch.unique(which)) < len(which)
        ):
            raise ProtocolError(
                f"party {me.name!r} is asked to count an unknown question, or one twice. It refuses."
            )
        votes = torch.nn.functional.one_hot(choices[which], classes).flatten()
        if noise is not None:
            # fewer than one draw in 10⁴⁰ exceeds the bound; a larger number would wrap around in the ring
            votes = (votes + noise(count, len(votes))).clamp(-terms.bound, terms.bound)
        if not await secagg.client(
            me.scope(f"count {count}"), votes, replace(terms, length=len(votes)), server=server
        ):
            break  # this count continued without the teacher, and so will the next ones
        count += 1
    return count


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
    """Return (questions, counts [questions, classes], teachers included) for each count.

    `still_open[i]` maps the result of count i to a mask of the questions to count again; an empty mask ends
    the counting.
    """
    names = list(names)
    await me.send(names, Questions(rows))
    which, counts_so_far = torch.arange(len(rows)), []
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
        counts_so_far.append((which, counts, outcome.included))
        names = list(
            outcome.included
        )  # a teacher that left stays out: its votes would be missing from some questions only
        if i < len(still_open):
            which = which[still_open[i](counts)]
            if not len(which):
                break
    await me.send(names, Tallied(torch.empty(0, dtype=torch.int64)))
    return counts_so_far


def ideal(choices: Tensor, classes: int) -> Tensor:
    """Count the teachers' votes for each class of each question; `choices` is [teachers, questions]."""
    return torch.nn.functional.one_hot(choices, classes).sum(0)
