"""Attacks with steps that continue the step before (`SumStep.kept`), and with sums of words.

A server decides what a party continues, and whether histograms are added as words. Neither gives it another
sum than that of all parties' answers to one and the same request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.boost import kernels
from tacit.errors import BadData, PartyFailed
from tacit.protocols import sum_program
from tacit.protocols.sum_program import SumRules, SumsOver, SumStep
from tacit.protocols.summing import AdvertisedKeys, MaskedVector, RoundKeys
from tacit.runtimes.inprocess import InProcess
from tests.boost.tables import make_program, make_table
from tests.security.test_boost_attacks import first_step

TABLES = {name: pd.DataFrame({"x": [k]}) for k, name in enumerate("abc", 1)}
RULES = SumRules("contract", tuple(TABLES))
LONG = torch.zeros(300, dtype=torch.uint8)


@dataclass(frozen=True)
class Product:
    """Every party's number, times the last number of what was sent down: as one word."""

    max_steps: int = 3
    bound: int = 1000

    def length(self, step, down):
        return 1

    def words(self, step, down):
        return 1

    def local(self, step, table, down):
        return np.array([int(table["x"].iloc[0]) * int(down["scale"][-1])])

    local_words = local

    def unpack(self, step, down, total):
        return total

    def coordinate(self):
        first = yield {"scale": LONG}
        second = yield {"scale": torch.cat([LONG, torch.tensor([7], dtype=torch.uint8)])}
        return first, second


def play(server):
    def one(name):
        async def run(me):
            return await sum_program.client(me, Product(), TABLES[name], RULES)

        return run

    return InProcess().run_sync({**{name: one(name) for name in TABLES}, "server": server})["server"]


async def sum_of(me, step, session, keys, messages):
    """Add the masked words of one step, of which every party is sent a message of its own."""
    with me.scope(f"sum {step} {session.hex()}") as scope:
        for name, (vectors, kept) in messages.items():
            await me.send(name, SumStep(step, session, keys, vectors, kept))
        if session == keys:
            found = await scope.gather(list(TABLES), AdvertisedKeys)
            sent = RoundKeys({v: (k.channel, k.mask, k.signature) for v, k in found.items()})
            await scope.send(list(TABLES), sent)
        got = await scope.gather(list(TABLES), MaskedVector)
    words = np.sum([m.packed.numpy().view(np.uint64) for m in got.values()], axis=0, dtype=np.uint64)
    return int(words.view(np.int64)[0])


def added(*numbers):
    return {"scale": torch.tensor(numbers, dtype=torch.uint8)}, {"scale": len(LONG)}


def test_a_program_of_words_opens_the_sum_of_all():
    async def server(me):
        return await sum_program.server(me, Product(), RULES)

    assert [int(total[0]) for total in play(server)] == [0, (1 + 2 + 3) * 7]


@pytest.mark.parametrize("for_b", [added(0), added(7, 0), ({"scale": LONG}, {}), ({}, {"scale": 300})])
def test_parties_that_are_sent_different_continuations_give_noise(for_b):
    """b alone would be asked with a factor of 0 or another: the difference would be its number.

    A sum below 1,000 by chance has a probability below 2e-16.
    """
    found = {}

    async def attack(me):
        first = bytes(8)
        await sum_of(me, 0, first, first, dict.fromkeys(TABLES, ({"scale": LONG}, {})))
        messages = {**dict.fromkeys(TABLES, added(7)), "b": for_b}
        found["mixed"] = await sum_of(me, 1, b"the next", first, messages)
        await me.send(list(TABLES), SumsOver({}, ""))

    play(attack)
    assert abs(found["mixed"]) > 1000


def test_the_same_continuation_is_the_whole_vector():
    """A party that is sent the whole, and one that is sent what was added, are in the same sum."""
    found = {}

    async def server(me):
        first = bytes(8)
        await sum_of(me, 0, first, first, dict.fromkeys(TABLES, ({"scale": LONG}, {})))
        whole = {"scale": torch.cat([LONG, torch.tensor([7], dtype=torch.uint8)])}, {}
        messages = {**dict.fromkeys(TABLES, added(7)), "b": whole}
        found["sum"] = await sum_of(me, 1, b"the next", first, messages)
        await me.send(list(TABLES), SumsOver({}, ""))

    play(server)
    assert found["sum"] == 42


@pytest.mark.parametrize("kept", [{"scale": 301}, {"scale": -1}, {"other": 0}])
def test_a_party_refuses_to_continue_what_it_was_not_sent(kept):
    async def attack(me):
        first = bytes(8)
        await sum_of(me, 0, first, first, dict.fromkeys(TABLES, ({"scale": LONG}, {})))
        await sum_of(me, 1, b"the next", first, dict.fromkeys(TABLES, ({}, kept)))

    with pytest.raises(PartyFailed, match="a step continues"):
        play(attack)


def test_a_step_that_was_answered_is_not_answered_with_another_continuation():
    async def attack(me):
        first = bytes(8)
        await sum_of(me, 0, first, first, dict.fromkeys(TABLES, ({"scale": LONG}, {})))
        await sum_of(me, 1, b"the next", first, dict.fromkeys(TABLES, added(7)))
        await sum_of(me, 1, b"another ", first, dict.fromkeys(TABLES, added(8)))

    with pytest.raises(PartyFailed, match="A step is answered once"):
        play(attack)


@pytest.mark.parametrize("packed", [None, 1, "yes"])
def test_a_form_of_sums_that_is_none_is_refused(packed):
    program, table = make_program(trees=2), make_table(100)
    step, down = first_step(program, table)
    agreed = {**json.loads(bytes(down["agreed"].tolist())), "packed": packed}
    changed = {**down, "agreed": torch.tensor(list(json.dumps(agreed).encode()), dtype=torch.uint8)}
    with pytest.raises(BadData, match="a form of sums that is none"):
        program.local_words(step, table, changed)


def test_words_of_more_rows_than_fit_are_refused(monkeypatch):
    """A server that says that there are few rows: a party with more adds nothing."""
    program, table = make_program(trees=2), make_table(100)
    step, down = first_step(program, table)
    assert len(program.local_words(step, table, down)) == program.words(step, down)
    monkeypatch.setattr("tacit.boost.program.PACKED_ROWS", 100)
    with pytest.raises(BadData, match="more rows than"):
        program.local_words(step, table, down)


def test_words_show_what_the_numbers_show():
    program, table = make_program(trees=2), make_table(100)
    step, down = first_step(program, table)
    words, numbers = program.local_words(step, table, down), program.local(step, table, down)
    assert np.array_equal(program.unpack(step, down, words), numbers)
    assert np.array_equal(kernels.pack_words(numbers), words)
