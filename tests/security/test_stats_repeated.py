"""Coordinators that choose what they ask: steps that do not follow from the opened sums are refused.

Each attack also runs against parties that do not repeat the coordinator's part, and succeeds there.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.crypto import exact
from tacit.errors import PartyFailed, ProtocolError
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.parties import coordinator, party
from tacit.protocols import sum_program
from tacit.protocols.checked_sums import OPENED, PRIMES, TAGS, Checker, are_right, find_difference, make_tags
from tacit.protocols.sum_program import KeptAnswers, SumStep
from tacit.runtimes.inprocess import InProcess
from tacit.stats.counts import FrequentProgram
from tacit.stats.design import Agreement
from tacit.stats.glm_sums import Pieces
from tacit.stats.hazards import COUNT, CoxProgram
from tacit.stats.lifetimes import LifetimeProgram
from tacit.stats.regression import GlmProgram


def make_party(seed, n=60):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(48, 53, n).astype(float),
            "sex": rng.integers(0, 2, n).astype(float),
            "sick": rng.integers(0, 2, n).astype(float),
            "week": rng.integers(1, 9, n).astype(float),
            "city": rng.choice(["rome", "riga", "oslo"], n),
        }
    )


PARTIES = {name: make_party(seed) for seed, name in enumerate("abc")}


def ask(program, lying, checked=True, parties=PARTIES):
    """Run the parties of an agreed program with a coordinator that runs another one."""
    contract = SumContract.of(program, list(parties))
    assert contract.tables["checked"]
    if not checked:
        contract = SumContract({**contract.tables, "checked": 0})
    programs = {
        name: functools.partial(party, contract=contract, read=lambda f=frame: f, answers=KeptAnswers())
        for name, frame in parties.items()
    }
    programs["server"] = functools.partial(coordinator, contract=contract, program=lying)
    return InProcess().run_sync(programs)["server"]


@dataclass(frozen=True)
class Lying:
    """The steps of an honest program, some of them replaced; it returns all sums."""

    honest: object
    changes: dict  # step: vectors

    def __getattr__(self, name):
        return getattr(self.honest, name)

    def coordinate(self):
        steps, sums = self.honest.coordinate(), []
        down = next(steps)
        for step in range(self.honest.max_steps):
            down = {**down, **self.changes.get(step, {})}
            sums.append((yield down))
            if step >= max(self.changes):
                return sums
            down = steps.send(sums[-1])
        return sums


# --- coefficients of the coordinator's choice ---------------------------------------------------------------


def steep(column, at, formula_columns=("age", "sex")):
    """Standardized coefficients under which only rows with this value have weight."""
    pooled = pd.concat(PARTIES.values())
    scale = np.array([pooled[c].std(ddof=0) for c in formula_columns])
    mean = np.array([pooled[c].mean() for c in formula_columns])
    slope = np.zeros(2)
    k = formula_columns.index(column)
    slope[k] = 100.0 * scale[k]
    return torch.tensor([100.0 * (mean[k] - at), *slope], dtype=torch.float64)


def test_a_coordinator_cannot_count_the_people_of_one_age_by_a_choice_of_coefficients():
    """With logit(p) = 100 (age − 50) only people of 50 have weight: a query about a subgroup nobody agreed to."""
    program = GlmProgram("sick ~ age + sex")
    lying = Lying(program, {2: {"point": steep("age", 50.0)}})
    sums = ask(program, lying, checked=False)
    found = Pieces(program.model, False).read(exact.decode(sums[2]), 3)
    pooled = pd.concat(PARTIES.values())
    people = pooled[pooled["age"] == 50]
    assert found.information[0, 0] == pytest.approx(len(people) / 4)  # W = p (1 − p) = 1/4
    with pytest.raises(PartyFailed, match="'point' is not what follows"):
        ask(program, lying)


@pytest.mark.parametrize(
    ("program", "step", "changes", "name"),
    [
        (CoxProgram("age", "week", "sick", min_exits=20), 2, {"cuts": torch.arange(16)}, "cuts"),
        (CoxProgram("age", "week", "sick"), 2, {"beta": torch.full((1,), 3.0).double()}, "beta"),
        (CoxProgram("age", "week", "sick"), 1, {"cells": torch.tensor(1 << 16)}, "cells"),
        (LifetimeProgram("week", "sick"), 1, {"cells": torch.tensor(1 << 16)}, "cells"),
        (GlmProgram("sick ~ age"), 1, {"rows": torch.tensor(10**6)}, "rows"),
        (
            FrequentProgram("city", 60),
            1,
            {"prefixes": torch.tensor([ord("o")], dtype=torch.uint8), "lengths": torch.ones(1).long()},
            "prefixes",
        ),
    ],
    ids=[
        "cuts of the time grid",
        "cox beta",
        "cox cells",
        "cells of curves",
        "rows",
        "prefix below the least",
    ],
)
def test_what_does_not_follow_from_the_sums_is_refused(program, step, changes, name):
    """A finer time grid, a huge one, a prefix of few people: without the rule they are answered."""
    lying = Lying(program, {step: changes})
    if name not in ("cuts", "beta"):
        assert len(ask(program, lying, checked=False)) == step + 1
    with pytest.raises(PartyFailed, match=f"'{name}' is not what follows"):
        ask(program, lying)


def test_phases_out_of_order_are_refused():
    program = GlmProgram("sick ~ age", robust="HC0")
    finish = {"phase": torch.tensor(3), "scale": torch.tensor(1.0).double()}
    with pytest.raises(PartyFailed, match="is not what follows"):
        ask(program, Lying(program, {2: finish}))


@pytest.mark.parametrize("cells", [1 << 40, 0, -1])
@pytest.mark.parametrize("kind", [LifetimeProgram, CoxProgram])
def test_a_huge_grid_takes_no_memory_where_steps_are_not_checked(kind, cells):
    """With a threshold below 1: 2^40 cells would be 26 TB."""
    program = kind("week", "sick") if kind is LifetimeProgram else kind("age", "week", "sick")
    down = {
        "levels": Agreement({}).to_tensor(),
        "cells": torch.tensor(cells),
        "phase": torch.tensor(COUNT),
        "rows": torch.tensor(1000),
    }
    with pytest.raises(ProtocolError, match="grid points; this grid has at most 131,072"):
        program.local(1, PARTIES["a"], down)
    declared = LifetimeProgram("week", "sick", grid=(4.0, 8.0))
    with pytest.raises(ProtocolError, match="at most 2"):
        declared.local(1, PARTIES["a"], {**down, "cells": torch.tensor(3)})


# --- sums that were not opened ------------------------------------------------------------------------------


def test_a_sum_that_was_not_opened_has_wrong_tags():
    """A coordinator that wants another β states another sum. 4 tags: accepted with probability 2^-61."""
    key, rng = bytes(range(32)), np.random.default_rng(0)
    vectors = {u: rng.integers(-(1 << 32), 1 << 32, 50) for u in "abc"}
    bound = (1 << 32) - 1
    total = sum(np.concatenate([v, make_tags(key, 4, "abc", u, v)]) for u, v in vectors.items())
    assert are_right(key, 4, "abc", total, bound)
    assert not are_right(key, 5, "abc", total, bound)  # the sum of another step
    assert not are_right(bytes(32), 4, "abc", total, bound)
    for place in (0, 7, 49, 50, 53):
        for change in (1, -1, *PRIMES, 1 << 31):
            forged = total.copy()
            forged[place] += change
            if place < 50 or change % PRIMES[(place - 50) // 2]:
                assert not are_right(key, 4, "abc", forged, bound)
    beyond = total.copy()
    beyond[3] += PRIMES[0] * PRIMES[1]  # the same modulo both primes, and outside the range of a sum
    assert not are_right(key, 4, "abc", beyond, bound)


def test_tags_are_small_numbers_of_the_vector_and_differ_between_parties():
    """A party's tags are padded: a vector of zeros does not have the tag 0."""
    zeros = np.zeros(5, np.int64)
    tags = {u: make_tags(bytes(32), 0, "ab", u, zeros) for u in "ab"}
    assert (tags["a"] != tags["b"]).all()
    assert all((t >= 0).all() and (t < max(PRIMES)).all() and t.any() for t in tags.values())
    assert len(tags["a"]) == TAGS


def test_a_coordinator_that_lies_about_a_sum_is_found_out(monkeypatch):
    """It runs the agreed program on sums of its choice and sends these along: everything follows from them."""
    honest = sum_program.run_steps

    async def lie(program, rules, sums, ask):
        class Other:
            def __getattr__(self, name):
                return getattr(program, name)

            def coordinate(self):
                steps = program.coordinate()
                down = next(steps)
                while True:
                    total = yield down
                    if "phase" in down:
                        total[3 * exact.LIMBS + 2] += 12345  # in place: it is also what parties are sent
                    down = steps.send(total)

        return await honest(Other(), rules, sums, ask)

    monkeypatch.setattr(sum_program, "run_steps", lie)
    program = GlmProgram("sick ~ age")
    with pytest.raises(PartyFailed, match=r"sum of step 2 .* its tags are wrong"):
        ask(program, program)


# --- what is not covered ------------------------------------------------------------------------------------


def test_known_limit_a_coordinator_that_runs_a_party_can_state_another_sum():
    """It has the key, so its tags fit any sum. It could as well add numbers of its choice as a party. What the
    next step singles out is bounded by the party's own rules only (test_stats_lies.py, effective_rows).
    """
    key, names = bytes(32), list("abc")
    vectors = {name: np.arange(4) + 10 * k for k, name in enumerate(names)}
    total = np.sum([np.concatenate([v, make_tags(key, 3, names, n, v)]) for n, v in vectors.items()], axis=0)
    # as party a with the key it adds a thousand to its own vector, tags included, after it has seen the sum
    other = vectors["a"] + 1000
    forged = total + np.concatenate([other - vectors["a"], make_tags(key, 3, names, "a", other) - make_tags(
        key, 3, names, "a", vectors["a"])])  # fmt: skip
    assert are_right(key, 3, names, forged, 10**6)
    stranger = total + np.concatenate([other - vectors["a"], np.zeros(TAGS, np.int64)])
    assert not are_right(key, 3, names, stranger, 10**6)
    from tacit.errors import QueryRefused
    from tacit.stats.disclosure import check_concentration, require_effective_rows

    weights = np.full(60, 1e-9)
    weights[7] = 1.0  # coefficients under which one person has all the weight
    with require_effective_rows(2.0), pytest.raises(QueryRefused, match="single rows out"):
        check_concentration(weights)


def test_known_limit_with_a_threshold_below_1_steps_are_not_checked_and_a_policy_may_refuse_that(tmp_path):
    from tacit.errors import QueryRefused
    from tacit.jobs.stats.policy import StatsPolicy, admit

    program = GlmProgram("sick ~ age + sex")
    open_steps = SumContract.of(program, list(PARTIES), threshold=0.7)
    assert not open_steps.tables["checked"]
    answers = AnswerFile(tmp_path, "a", open_steps.digest)
    with pytest.raises(QueryRefused, match="could choose the steps of this query"):
        admit(StatsPolicy(only_checked=True), open_steps, program, PARTIES["a"], answers, tmp_path)
    checked = SumContract.of(program, list(PARTIES))
    answers = AnswerFile(tmp_path, "a", checked.digest)
    admit(StatsPolicy(only_checked=True), checked, program, PARTIES["a"], answers, tmp_path)


def test_parties_that_may_leave_do_not_count_among_the_fewest_of_a_sum(tmp_path):
    """A coordinator that drops one of three parties would open the sum of the other two."""
    from tacit.errors import QueryRefused
    from tacit.jobs.stats.policy import StatsPolicy, admit

    program = GlmProgram("sick ~ age + sex")
    for threshold, may_open_two in ((0.6, True), (0.7, False), (1.0, False)):
        contract = SumContract.of(program, list(PARTIES), threshold=threshold)
        answers = AnswerFile(tmp_path, "a", contract.digest)
        if may_open_two:
            with pytest.raises(QueryRefused, match=r"a sum over 2 parties of 3 \(threshold = 0.6\)"):
                admit(StatsPolicy(), contract, program, PARTIES["a"], answers, tmp_path)
            admit(StatsPolicy(min_parties=2), contract, program, PARTIES["a"], answers, tmp_path)
        else:
            admit(StatsPolicy(), contract, program, PARTIES["a"], answers, tmp_path)


# --- honest coordinators ------------------------------------------------------------------------------------


def test_a_restarted_party_checks_with_the_sums_on_its_disk(tmp_path):
    """Its process has no generator and no session; key and sums were written before it answered."""
    program, tables = GlmProgram("sick ~ age"), PARTIES
    answers = {u: AnswerFile(tmp_path, u, "contract") for u in tables}
    checkers = {u: Checker(u, program, list(tables), answers[u]) for u in tables}
    for kept in answers.values():
        kept.keep_key(bytes(32))
    steps, down = program.coordinate(), {}
    next(steps)
    for step in range(4):
        message = SumStep(step, bytes(8), bytes(8), down)
        vectors = []
        for u, table in tables.items():
            if step == 3:  # restarted
                answers[u] = AnswerFile(tmp_path, u, "contract")
                checkers[u] = Checker(u, program, list(tables), answers[u])
                chosen = SumStep(step, bytes(8), bytes(8), {**down, "point": down["point"] + 0.01})
                with pytest.raises(ProtocolError, match="'point' is not what follows"):
                    sum_program._answer(u, program, table, answers[u], chosen, checkers[u])
            vector = sum_program._answer(u, program, table, answers[u], message, checkers[u])[1]
            vectors.append(checkers[u].tag(step, vector))
        total = np.sum(vectors, axis=0)
        down = {**steps.send(total[:-TAGS].copy()), OPENED: torch.from_numpy(total)}


def test_what_a_coordinator_chooses_within_rounding_has_no_effect(tmp_path):
    """With a badly scaled column, rounding of one coefficient exceeds another coefficient."""
    program = _Scaled()
    answers = AnswerFile(tmp_path, "a", "contract")
    checker = Checker("a", program, ["a"], answers)
    chosen = {"point": torch.tensor([1e9, 50.0]).double()}  # 1e9 and 0 follow: 50 is within rounding of 1e9
    assert find_difference(program.follows, chosen) is None
    step = SumStep(0, bytes(8), bytes(8), chosen)
    assert sum_program._answer("a", program, None, answers, step, checker)[1].tolist() == [10**9, 0]


class _Scaled:
    """A program whose only step asks for the rounded point."""

    max_steps, bound = 1, 2**40
    follows: ClassVar = {"point": torch.tensor([1e9, 0.0]).double()}

    def length(self, step, down):
        return 2

    def local(self, step, table, down):
        return down["point"].round().long().numpy()

    def coordinate(self):
        yield self.follows


def test_rounding_of_another_machine_is_no_difference():
    own = {"point": torch.tensor([1.0, 1e-12, -3.0]).double(), "phase": torch.tensor(2)}
    assert find_difference(own, {**own, "point": own["point"] * (1 + 1e-9) + 1e-11}) is None
    assert find_difference(own, {**own, "point": own["point"] + 1e-4}) == "point"
    assert find_difference(own, {**own, "point": own["point"].float()}) == "point"
    assert find_difference(own, {**own, "phase": torch.tensor(3)}) == "phase"
    assert find_difference(own, {"point": own["point"]}) == "phase"
    assert find_difference(own, {**own, "more": torch.tensor(1)}) == "more"
    nan = {"point": torch.tensor([float("nan"), 1.0])}
    assert find_difference(nan, nan) is None
    assert find_difference({"point": torch.ones(2)}, nan) == "point"


def test_the_leaders_key_does_not_reach_the_coordinator_and_a_second_key_is_refused():
    fit = tacit.stats.glm(PARTIES, "sick ~ age", runtime="inprocess")
    keys = [line for line in fit.ledger.seen if line.kind == "SumKey"]
    assert {(line.party, line.sender) for line in keys} == {("b", "a"), ("c", "a")}
    kept = KeptAnswers()
    kept.keep_key(bytes(32))
    checker = Checker("b", GlmProgram("sick ~ age"), "abc", kept)

    class Scope:
        async def recv(self, sender, kind):
            assert sender == "a"
            return kind(bytes([1]) * 32)

    with pytest.raises(ProtocolError, match="another key"):
        asyncio.run(checker.exchange_key(Scope()))
