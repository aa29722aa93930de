"""A party that leaves a query: the result is that of the remaining parties, or there is none. Never a mixture."""

from __future__ import annotations

import contextlib

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

from tacit.errors import PartyFailed
from tacit.jobs.stats import parties
from tacit.jobs.stats.contract import SumContract
from tacit.parties.ledger import Ledger
from tacit.protocols import sum_program
from tacit.protocols.sum_program import KeptAnswers
from tacit.runtimes.inprocess import InProcess
from tacit.stats.counts import CorrelationProgram, FrequentProgram
from tacit.stats.description import DescribeProgram
from tacit.stats.hazards import CoxProgram
from tacit.stats.lifetimes import LifetimeProgram
from tacit.stats.private_regression import PrivateGlmProgram
from tacit.stats.regression import GlmProgram
from tacit.stats.site_model import SiteModelProgram
from tests.stats.references import quiet

NAMES = ("east", "north", "south", "west")
ALONE = 2  # rows of north with the level "old"


def make_tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(23)
    tables = {}
    for k, name in enumerate(NAMES):
        n = (160, 90, 120, 75)[k]
        age = rng.normal(55 + 4 * k, 9, n).round(1)
        arm = rng.choice(["drug", "none"], n)
        risk = 1 / (1 + np.exp(-(age - 58) / 12 + (arm == "drug") * 0.6 - 0.2 * k))
        months = np.ceil(rng.exponential(20 / (0.5 + risk)))
        tables[name] = pd.DataFrame(
            {
                "age": age,
                "arm": arm,
                "sick": (rng.random(n) < risk).astype(int),
                "months": np.minimum(months, 30),
                "died": (months < 30).astype(int),
                "site": name,
                "ward": np.where(np.arange(n) < n // 2, "old", "new"),
            }
        )
    rare = tables["north"]
    rare["ward"] = np.where(np.arange(len(rare)) < ALONE, "old", "new")
    for name in ("east", "west"):
        tables[name]["ward"] = "new"
    return tables


TABLES = make_tables()


class Leaves(Exception):
    """The machine of a party fails."""


def run(program, leaving: dict[str, int], tables=TABLES, opened=lambda *entry: None):
    """Return the result if each of these parties fails after it answered so many steps, and the ledger."""
    contract, ledger = SumContract.of(program, list(tables), threshold=0.51), Ledger()

    def one(name):
        def answered(step):
            if step + 1 == leaving.get(name):
                raise Leaves

        async def member(me):
            with contextlib.suppress(Leaves):
                await parties.party(me, contract, lambda: tables[name], KeptAnswers(), answered=answered)

        return member

    seen = parties.Departures(contract, program, ledger)

    def keep(step, total, included):
        seen.add(step, included)
        opened(step, total, included)

    async def server(me):
        return await parties.coordinator(me, contract, program, within=1.0, opened=keep)

    programs = {name: one(name) for name in tables}
    return InProcess().run_sync({**programs, "server": server})["server"], ledger


def without(*left):
    return {name: table for name, table in TABLES.items() if name not in left}


def flat(value):
    """All numbers of a result, for comparison to the last bit."""
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.shape
    if hasattr(value, "__dataclass_fields__"):
        return [(k, flat(v)) for k, v in vars(value).items() if k != "rounds"]
    if isinstance(value, dict):
        return [(k, flat(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [flat(v) for v in value]
    return repr(value)


GLM = GlmProgram("sick ~ age + arm + C(site)")


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_a_model_that_loses_a_party_is_that_of_statsmodels_on_the_others(after):
    """The party is lost after the agreement, the first sums, or in Newton's steps. C(site) loses its level."""
    found, ledger = run(GLM, {"north": after})
    pooled = pd.concat(without("north").values(), ignore_index=True)
    theirs = quiet(lambda: smf.glm(GLM.formula, pooled, family=sm.families.Binomial()).fit(tol=1e-13))
    assert set(found.names) == set(theirs.params.index)
    np.testing.assert_allclose(found.beta, theirs.params[found.names], rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(found.covariance)), theirs.bse[found.names], rtol=1e-6)
    np.testing.assert_allclose(
        [found.deviance, found.null_deviance, found.loglik],
        [theirs.deviance, theirs.null_deviance, theirs.llf],
        rtol=1e-8,
    )
    assert (found.rows, found.parties) == (len(pooled), 3)
    assert any(
        f"party 'north' left: sums from step {after + 1} on" in text
        and "all figures are about the rows of east, south, west" in text
        and f"sums of steps 1 to {after} were with 'north'" in text
        for text in ledger.stamps
    )


def test_parties_that_leave_one_after_another_begin_the_model_again_each_time():
    five = {**TABLES, "zoo": TABLES["south"].assign(site="zoo")}
    found, ledger = run(GLM, {"north": 2, "zoo": 6}, five)
    assert flat(found) == flat(run(GLM, {}, without("north"))[0])
    assert [text.split(":")[0] for text in ledger.stamps] == ["party 'north' left", "party 'zoo' left"]


PROGRAMS = {
    "describe": DescribeProgram(("age", "months"), (("arm", ("drug", "none")),), ("arm", ("drug", "none"))),
    "correlation": CorrelationProgram(("age", "months")),
    "frequent": FrequentProgram("site", 3, 8, 1),
    "survival": LifetimeProgram("months", "died"),
    "cox": CoxProgram("age + arm", "months", "died"),
    "cox by site": CoxProgram("age + arm", "months", "died", by_site=True),
    "mixed": SiteModelProgram("mixed", "sick ~ age", "binomial", None, {}, "drop", 10, 40),
}  # fmt: skip


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_query_without_an_epsilon_is_that_of_the_remaining_parties(name, after):
    program = PROGRAMS[name]
    if after > 1 and program.max_steps == 2:
        after = 1
    found, ledger = run(program, {"south": after})
    assert flat(found) == flat(run(program, {}, without("south"))[0])
    assert len(ledger.stamps) == 1


def test_a_party_that_leaves_before_the_first_sum_is_not_in_it():
    found, ledger = run(GLM, {}, without("north"))
    assert flat(found) == flat(run(GLM, {}, without("north"))[0])
    assert not ledger.stamps


def test_what_is_rare_without_the_party_that_left_is_refused_and_not_shown():
    """All four parties have 62 people in old wards. Without south 2 are left, and a coefficient is theirs."""
    program = GlmProgram("sick ~ age + ward")
    assert run(program, {})[0].rows == sum(map(len, TABLES.values()))
    with pytest.raises(PartyFailed, match="'ward=old'"):
        run(program, {"south": 4})


def test_a_level_that_left_with_its_party_is_no_level_any_more():
    tables = {n: t.assign(ward=np.where(n == "south", "old", t["arm"])) for n, t in TABLES.items()}
    found, _ = run(GlmProgram("sick ~ age + ward"), {"south": 3}, tables)
    assert found.names == ["Intercept", "age", "ward[T.none]"]


@pytest.mark.parametrize(
    ("program", "after", "why"),
    [
        (GlmProgram("sick ~ age", robust="HC0"), "last", "asked once, were asked"),
        (GlmProgram("months ~ age", "gamma"), "last", "asked once, were asked"),
        (
            PrivateGlmProgram("sick ~ age", "binomial", 4, 8.0, 1e-5, {"age": (20, 90), "sick": (0, 1)}, {}),
            2,
            "a query with an ε is paid for once",
        ),
    ],
)
def test_where_a_query_cannot_begin_again_it_ends_with_the_reason(program, after, why):
    if after == "last":  # the party is lost in the sum that is asked once
        after = run(program, {})[0].rounds - 1
    text = rf"party 'south' left in step {after + 1}\..*{why}.*There is no result"
    with pytest.raises(PartyFailed, match=text):
        run(program, {"south": after})


def test_a_restarted_coordinator_begins_again_at_the_same_step():
    """From the sums on its disk it computes the result that it computed before, and asks nobody."""
    kept = []
    found, _ = run(GLM, {"north": 3}, opened=lambda *entry: kept.append(entry))
    contract = SumContract.of(GLM, list(TABLES), threshold=0.51)

    async def server(me):
        return await sum_program.server(
            me,
            GLM,
            contract.rules(1.0),
            sums=[total for _, total, _ in kept],
            included=[present for _, _, present in kept],
        )

    async def over(me):
        await me.recv("server", sum_program.SumsOver)

    again = InProcess().run_sync({**dict.fromkeys(NAMES, over), "server": server})["server"]
    assert flat(again) == flat(found)
