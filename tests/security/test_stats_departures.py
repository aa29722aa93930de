"""What a coordinator gains from parties that leave, or that it says have left (departures.py)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tacit.crypto import exact
from tacit.errors import PartyFailed, ProtocolError, SumAborted
from tacit.jobs.stats.answers import AnswerFile
from tacit.protocols import secagg, sum_program
from tacit.protocols.departures import BEGAN, read_first
from tacit.protocols.sum_program import KeptAnswers, SumRules, SumStep
from tacit.protocols.summing import AdvertisedKeys, RoundOver
from tacit.runtimes.inprocess import InProcess
from tacit.stats.disclosure import LEAST
from tacit.stats.private_regression import PrivateGlmProgram
from tacit.stats.regression import FINISH, GlmProgram
from tests.stats.test_departures import GLM, NAMES, TABLES, run

BOUNDS = {"age": (20, 90), "sick": (0, 1)}


def ask(program, step, vectors, threshold=0.51, answers=None):
    """Send one step to one party, and return its error."""
    rules = SumRules("contract", NAMES, threshold=threshold)

    async def party(me):
        await sum_program.client(me, program, TABLES["east"], rules, answers=answers or KeptAnswers())

    async def server(me):
        session = bytes(8)
        await me.send("east", SumStep(step, session, session, vectors))
        await me.recv("east", sum_program.SumRefused)

    with pytest.raises(PartyFailed) as failure:
        InProcess().run_sync({"east": party, "server": server})
    assert isinstance(failure.value.__cause__, ProtocolError)
    return str(failure.value)


@pytest.mark.parametrize(
    ("program", "threshold", "first", "step"),
    [
        (GLM, 1.0, torch.tensor(1), 1),  # every sum is over all parties: nobody may leave
        (PrivateGlmProgram("sick ~ age", "binomial", 4, 8.0, 1e-5, BOUNDS, {}), 0.51, torch.tensor(1), 1),
        (GLM, 0.51, torch.tensor(2), 1),  # a step before the first one
        (GLM, 0.51, torch.tensor(0), 0),
        (GLM, 0.51, torch.tensor(-3), 1),
        (GLM, 0.51, torch.tensor(1.0), 1),
        (GLM, 0.51, torch.tensor([1]), 1),
        (GLM, 0.51, torch.tensor(GLM.max_steps + 1), GLM.max_steps + 1),  # one of four may leave
    ],
)
def test_a_program_begins_again_only_as_often_as_parties_may_leave(program, threshold, first, step):
    text = ask(program, step, {BEGAN: first}, threshold)
    assert "so many parties cannot have left. Nothing was sent." in text


def test_no_party_answers_more_steps_than_those_that_may_leave_make():
    assert f"has {GLM.max_steps} steps" in ask(GLM, GLM.max_steps, {})
    last, answers = 2 * GLM.max_steps, KeptAnswers()
    answers.begin(GLM.max_steps)
    text = ask(GLM, last, {BEGAN: torch.tensor(GLM.max_steps)}, answers=answers)
    assert f"has {GLM.max_steps} steps" in text


def test_not_every_step_can_be_the_first_one_again(tmp_path):
    """Each over everyone but another party: differences of their sums would show each party's own."""
    kinds = {
        "memory": (KeptAnswers, lambda answers: answers),
        "disk": (lambda: AnswerFile(tmp_path, "east", "c"), lambda _: AnswerFile(tmp_path, "east", "c")),
    }
    for make, restart in kinds.values():
        answers = make()
        answers.keep(0, b"", np.zeros(1, np.int64))
        answers.keep(1, b"", np.zeros(1, np.int64))
        answers.begin(1)  # one of four may leave: this was it
        for first in (2, 0):  # begun once more, or gone on with the program as it was before
            answers = restart(answers)
            down = {BEGAN: torch.tensor(first)} if first else {}
            text = ask(GLM, 2, down, answers=answers)
            assert f"began at step {first + 1}; it began at 1, 2, and begins again at most 1 times" in text
            assert list(answers.begun) == [1]
            assert answers.find(2) is None


def test_a_beginning_is_kept_before_its_first_step_is_answered():
    answers = KeptAnswers()
    answers.keep(0, b"", np.zeros(1, np.int64))
    rules = SumRules("contract", NAMES, threshold=0.51)
    first, _ = read_first(GLM, rules.may_leave, 1, {BEGAN: torch.tensor(1)}, answers)
    assert first == 1
    assert answers.begun == [1]
    assert read_first(GLM, rules.may_leave, 1, {BEGAN: torch.tensor(1)}, answers)[0] == 1  # asked again
    assert read_first(GLM, rules.may_leave, 0, {}, answers)[0] == 0  # a step before it, asked again


def test_a_question_that_is_asked_once_is_not_asked_again_by_beginning_again():
    """Products of scores at two points would show each site's own."""
    program, answers = GlmProgram("sick ~ age", robust="site"), KeptAnswers()
    for step in range(3):
        answers.keep(step, b"", np.zeros(1, np.int64), "finish" if step == 2 else None)
    answers.begin(2)
    down = {"phase": torch.tensor(FINISH), BEGAN: torch.tensor(2)}
    assert "for what it has answered (finish)" in ask(program, 3, down, answers=answers)


def test_known_limit_sums_before_and_after_a_departure_show_the_sums_of_the_party_that_left(monkeypatch):
    """Documented; the ledger says so. The default is a threshold of 1, where the query ends instead."""
    sums = []
    encode = exact.decode
    monkeypatch.setattr(
        "tacit.stats.regression_coordinator.exact.decode", lambda v: sums.append(encode(v)) or encode(v)
    )
    program = GlmProgram("sick ~ age")
    _, ledger = run(program, {"north": 3})
    starts = [s for s in sums if len(s) == len(sums[0])]
    assert len(starts) == 2  # the first sums of the model, with north and without it
    weight, _, events = (starts[0] - starts[1])[:3]
    assert (weight, events) == (len(TABLES["north"]), TABLES["north"]["sick"].sum()) > (LEAST, LEAST)
    assert any("who subtracts those after step 4 has sums of its rows alone" in s for s in ledger.stamps)


@dataclasses.dataclass(frozen=True)
class Rows:
    """How many rows all have, asked again and again."""

    max_steps: int = 4
    bound: int = 1000

    def length(self, step, down):
        return 1

    def local(self, step, table, down):
        return np.array([len(table)])


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_party_that_is_left_out_of_a_step_is_in_no_later_one(where, tmp_path):
    """Otherwise each step could be over everyone but another party, and show this party's part of it."""
    rules, opened = SumRules("contract", NAMES, threshold=0.51), []

    def party(name):
        answers = KeptAnswers() if where == "memory" else AnswerFile(tmp_path, name, "c")

        async def program(me):
            await sum_program.client(me, Rows(), TABLES[name], rules, answers=answers)

        return program

    async def ask_step(me, step, names):
        session = bytes([step] * 8)
        message = SumStep(step, session, session, {})
        terms = rules.terms(1, Rows.bound, sum_program.digest_of_step(step, {}))
        others = [n for n in NAMES if n not in names]
        if others:  # it computes and keeps an answer, and is told that the sum is over
            late = SumStep(step, bytes(8), bytes(8), {})
            await me.send(others, late)
            with me.scope(sum_program._tag(late)) as scope:
                for name in others:
                    await scope.recv(name, AdvertisedKeys)
                await scope.send(others, RoundOver(True, "left out"))
        with me.scope(sum_program._tag(message)) as scope:
            await me.send(names, message)
            return int((await secagg.server(scope, names, terms, 2.0, 2.0)).total[0])

    async def server(me):
        opened.append(await ask_step(me, 0, list(NAMES)))
        opened.append(await ask_step(me, 1, ["north", "south", "west"]))
        try:
            opened.append(await ask_step(me, 2, ["east", "south", "west"]))
        except SumAborted as error:
            opened.append(str(error))
        await me.send(list(NAMES), sum_program.SumsOver({}, ""))

    InProcess().run_sync({**{n: party(n) for n in NAMES}, "server": server})
    assert opened[0] - opened[1] == len(TABLES["east"])  # the known limit: one party may leave
    assert isinstance(opened[2], str), "sums without east and without north were opened"
