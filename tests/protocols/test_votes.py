"""Votes under secure aggregation: the counts are right, the teachers' noise is in them, and no single vote is
visible.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tacit.accounting import discrete
from tacit.errors import PartyFailed
from tacit.parties.conformance import Tap, check_protocol
from tacit.parties.ledger import Ledger
from tacit.protocols import votes
from tacit.protocols.secagg import MaskedVector, SecAggTerms
from tacit.runtimes.inprocess import InProcess

NAMES = [f"t{i}" for i in range(5)]
ROWS = torch.arange(12.0).reshape(6, 2)
TERMS = SecAggTerms("fed", 5, 1, 1)


def choices(seed: int = 0) -> torch.Tensor:
    return torch.randint(3, (5, 6), generator=torch.Generator().manual_seed(seed))


def programs(said: torch.Tensor, terms: SecAggTerms = TERMS, noise=None, again=()):
    made = {
        name: (lambda me, k=k: votes.teacher(me, lambda rows: said[k], terms, 3, noise))
        for k, name in enumerate(NAMES)
    }

    async def boss(me):
        return [(which, counts) for which, counts, _ in await votes.asker(me, NAMES, ROWS, terms, 3, again)]

    return {"server": boss, **made}


def test_the_counts_are_those_of_the_ideal():
    check_protocol(
        programs,
        lambda said: {"server": [(torch.arange(6), votes.ideal(said, 3))], **dict.fromkeys(NAMES, 1)},
        [choices(s) for s in range(3)],
    )


def test_only_the_questions_that_stay_open_are_counted_again():
    said = choices(1)
    total = votes.ideal(said, 3)
    stay = total.max(1).values >= 3
    assert 0 < int(stay.sum()) < 6, "the example must have some of both"
    out = InProcess().run_sync(programs(said, again=[lambda counts: counts.max(1).values >= 3]))
    _, (some, second) = out["server"]
    assert torch.equal(some, torch.arange(6)[stay])
    assert torch.equal(second, total[stay])
    assert all(out[name] == 2 for name in NAMES)
    assert (
        len(InProcess().run_sync(programs(said, again=[lambda counts: counts.max(1).values > 9]))["server"])
        == 1
    )


def test_the_teachers_noise_is_in_the_sum_and_has_the_variance_it_should():
    """5 teachers with σ² = 8 each: 40 in the sum. 2,400 numbers: a sample variance off by a fifth has
    probability below 1e-10 (χ²).
    """
    said, shake = choices(2), np.random.default_rng(0)
    terms = SecAggTerms("fed", 5, 1, 1 + math.ceil(14 * math.sqrt(8)))
    rows = torch.zeros(800, 2)

    def noise(count: int, n: int) -> torch.Tensor:
        return torch.from_numpy(discrete.gaussian(Fraction(8), n, shake.bytes))

    async def boss(me):
        return (await votes.asker(me, NAMES, rows, terms, 3))[0][1]

    made = {
        name: (lambda me, k=k: votes.teacher(me, lambda rows: said[k, :1].expand(len(rows)), terms, 3, noise))
        for k, name in enumerate(NAMES)
    }
    counts = InProcess().run_sync({"server": boss, **made})["server"]
    extra = (counts - votes.ideal(said[:, :1].expand(5, 800), 3)).double()
    assert abs(extra.var().item() / 40 - 1) < 0.2
    assert abs(extra.mean().item()) < 5 * math.sqrt(40 / 2400), "five deviations: 6e-7"


def test_the_server_is_sent_no_vote_but_under_a_mask():
    """All teachers cast the same vote, twice: the server receives different data each time, without a one-hot row."""
    same = torch.zeros(5, 6, dtype=torch.int64)
    seen = []
    for _ in range(2):
        tap = Tap()
        InProcess(seed=0).run_sync(tap.on(programs(same)), ledger=Ledger())
        kinds = {kind for (to, _, kind) in tap.counts() if to == "server"}
        assert kinds == {"AdvertisedKeys", "SealedShares", "MaskedVector", "RevealedShares"}
        seen.append([f for f in tap.view("server") if MaskedVector.kind.encode() in f])
    assert len(seen[0]) == len(seen[1]) == 5
    assert len({bytes(f) for f in seen[0] + seen[1]}) == 10, (
        "ten masks, drawn anew for each teacher and each run"
    )


def test_a_teacher_that_stays_away_is_done_without_down_to_the_threshold():
    said = choices(3)

    async def away(me):
        return None

    async def boss(me):
        return [
            (counts, who)
            for _, counts, who in await votes.asker(
                me, NAMES, ROWS, TERMS, 3, [lambda counts: counts.max(1).values >= 0], within=5.0
            )
        ]

    made = {**programs(said), "server": boss, "t4": away}
    (first, who), (second, again) = InProcess().run_sync(made)["server"]
    assert who == again == ("t0", "t1", "t2", "t3")
    assert torch.equal(first, votes.ideal(said[:4], 3))
    assert torch.equal(second, first)
    with pytest.raises(PartyFailed, match="secure aggregation was aborted, and no update was opened"):
        InProcess().run_sync({**made, "t1": away, "t2": away})


def test_a_teacher_refuses_an_unexpected_count():
    async def boss(me):
        await me.send(NAMES, votes.Questions(ROWS))
        await me.send(NAMES, votes.Tallied(torch.tensor([0, 6])))
        await me.recv("t0", MaskedVector)

    with pytest.raises(PartyFailed, match="is asked to count an unknown question, or one twice"):
        InProcess().run_sync({**programs(choices()), "server": boss})


def test_a_teacher_must_vote_on_every_question():
    made = programs(choices())
    made["t1"] = lambda me: votes.teacher(me, lambda rows: torch.zeros(2, dtype=torch.int64), TERMS, 3)
    with pytest.raises(PartyFailed, match="party 't1' returned votes of shape"):
        InProcess().run_sync(made)
