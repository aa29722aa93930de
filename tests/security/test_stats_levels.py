"""Levels of categorical columns in statistics: a value that few rows of each party have is in no message.

A party adds a level to the first sum only if it has `min_level_rows` rows of it.

Each attack also runs with one protection removed, and succeeds there.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.crypto import exact
from tacit.errors import BadData, PartyFailed, ProtocolError, QueryRefused
from tacit.jobs.stats.contract import QueryNotAgreed, SumContract
from tacit.jobs.stats.parties import coordinator, party
from tacit.jobs.stats.policy import StatsPolicy, check_least
from tacit.jobs.stats.queries import read_query
from tacit.protocols.checked_sums import OPENED, Checker, make_tags
from tacit.protocols.sum_program import KeptAnswers
from tacit.runtimes.inprocess import InProcess
from tacit.stats import design, level_sketch
from tacit.stats.description import DescribeProgram
from tacit.stats.design import Agreement
from tacit.stats.hazards import CoxProgram
from tacit.stats.lifetimes import LifetimeProgram
from tacit.stats.regression import GlmProgram
from tacit.stats.site_logrank import SiteLogrankProgram
from tacit.stats.site_model import SiteModelProgram

RARE = ("patient", "plague", "19")  # of an id, a diagnosis and a date of birth


def patients(seed: int, rare: bool = True) -> pd.DataFrame:
    """A party's rows: an id and a date of birth of each, a diagnosis that one row has, and a frequent one."""
    rng, n = np.random.default_rng(seed), 60
    born = pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.choice(9000, n, replace=False) * 3 + seed, "D")
    frame = pd.DataFrame(
        {
            "id": [f"patient {seed}-{k}" for k in range(n)],
            "born": born.strftime("%Y-%m-%d"),
            "diagnosis": ["healthy"] * 30 + ["measles"] * 30,
            "age": rng.integers(20, 90, n).astype(float),
            "ill": rng.integers(0, 2, n),
            "week": rng.integers(1, 9, n),
        }
    )
    if rare:
        frame.loc[seed, "diagnosis"] = "plague"  # one row at every party, three over all
    return frame


PATIENTS = {f"p{k}": patients(k) for k in range(3)}
FREQUENT = {f"p{k}": patients(k, rare=False) for k in range(3)}
PROGRAMS = {
    "glm": lambda c, **o: GlmProgram(f"ill ~ age + {c}", **o),
    "gee": lambda c, **o: SiteModelProgram("gee", f"ill ~ {c}", "binomial", None, {}, "drop", 10, 9, **o),
    "cox": lambda c, **o: CoxProgram(f"age + {c}", "week", "ill", **o),
    "cox strata": lambda c, **o: CoxProgram("age", "week", "ill", strata=(c,), **o),
    "km": lambda c, **o: LifetimeProgram("week", "ill", c, **o),
    "logrank by site": lambda c, **o: SiteLogrankProgram("week", "ill", c, **o),
}


def run(program, changes=None, tables=PATIENTS, checked=True):
    """Run the parties of an agreed program; return what was sent and the sums, which a server changes."""
    contract = SumContract.of(program, list(tables))
    assert contract.tables["checked"] == program.max_steps
    if not checked:
        contract = SumContract({**contract.tables, "checked": 0})
    sent, sums = [], []

    class Lying:
        def __getattr__(self, name):
            return getattr(program, name)

        def coordinate(self):
            steps = program.coordinate()
            down = next(steps)
            while True:
                sent.append({**down, **(changes or {}).get(len(sums), {})})
                sums.append((yield sent[-1]))
                try:
                    down = steps.send(sums[-1])
                except StopIteration as end:
                    return end.value

    programs = {
        name: functools.partial(party, contract=contract, read=lambda f=frame: f, answers=KeptAnswers())
        for name, frame in tables.items()
    }
    error = None
    try:
        InProcess().run_sync(
            {**programs, "server": functools.partial(coordinator, contract=contract, program=Lying())}
        )
    except (PartyFailed, BadData, QueryRefused) as refused:
        error = refused
    return sent, sums, error


def levels_of(vector: np.ndarray) -> list[str]:
    return [text for _, text in level_sketch.decode(vector[-level_sketch.LENGTH :])]


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("column", ["id", "born", "diagnosis"])
def test_the_first_sum_has_no_value_that_one_row_of_each_party_has(kind, column):
    """Before, it opened the id and the date of birth of every person, and the diagnosis that one has."""
    make = PROGRAMS[kind]
    frames = [frame[:40] for frame in PATIENTS.values()]
    total = np.sum([make(column).local(0, frame, {}) for frame in frames], axis=0)
    assert levels_of(total) == (['"healthy"', '"measles"'] if column == "diagnosis" else [])
    every = np.sum([make(column, min_level_rows=1).local(0, frame, {}) for frame in frames], axis=0)
    shown = levels_of(every)
    assert len(shown) == (3 if column == "diagnosis" else 120)
    assert any(text.strip('"').startswith(RARE) for text in shown)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_rows_of_a_rarer_level_refuse_the_query_and_are_not_named(kind):
    """They do not join the reference level. What the server is told does not have the value."""
    make = PROGRAMS[kind]
    sent, _, error = run(make("diagnosis"))
    assert "of which no party has 2 rows" in str(error)
    assert "Declare the levels: levels={'diagnosis'" in str(error)
    texts = b"".join(bytes(v.reshape(-1).view(torch.uint8).tolist()) for down in sent for v in down.values())
    assert b"measles" in texts
    assert b"plague" not in texts
    program = make("diagnosis")
    down = program.coordinate()
    next(down)
    request = down.send(np.sum([program.local(0, f, {}) for f in PATIENTS.values()], axis=0))
    with pytest.raises(BadData, match="'plague'") as refused:  # what its owner reads
        program.local(1, PATIENTS["p0"], request)
    assert "plague" not in refused.value.outside
    assert program.local(1, FREQUENT["p0"], request).size
    ids = run(make("id"))[2]
    assert "fewer than two levels" in str(ids)
    assert "at least 2 rows of it (min_level_rows)" in str(ids)
    assert "patient" not in str(ids)


def test_a_server_cannot_ask_for_a_value_that_it_knows_or_guesses():
    """With the level "plague", the sums have how many people have it, and who of them is ill."""
    guess = {"levels": Agreement({"diagnosis": ("healthy", "measles", "plague")}).to_tensor()}
    program = GlmProgram("ill ~ age + diagnosis")
    # parties that do not check count their rows: cells of levels are the last numbers of the first step
    _, sums, _ = run(program, {1: guess}, checked=False)
    assert exact.decode(sums[1])[-3:].tolist() == [87.0, 90.0, 3.0]
    _, sums, error = run(program, {1: guess})
    assert len(sums) == 1
    assert "step 2 does not follow from the sums before: 'levels' is not what follows" in str(error)
    # tables without rare levels get further, and a level of the server's choice is refused there too
    _, sums, error = run(program, {2: guess}, FREQUENT)
    assert len(sums) == 2
    assert "step 3 does not follow from the sums before: 'levels' is not what follows" in str(error)


def test_a_server_cannot_claim_that_another_sum_of_levels_was_opened():
    """The sum has tags under a key that the server has not: a sum with "plague" in it is refused."""
    program, names = GlmProgram("ill ~ age + diagnosis"), list(PATIENTS)
    kept = KeptAnswers()
    kept.keep_key(bytes(32))
    checker = Checker("p0", program, names, kept)
    vectors = [program.local(0, frame, {}) for frame in PATIENTS.values()]
    tagged = [np.concatenate([v, make_tags(bytes(32), 0, names, u, v)]) for u, v in zip(names, vectors)]
    forged = np.sum(tagged, axis=0)
    length = len(vectors[0])
    forged[length - level_sketch.LENGTH : length] += level_sketch.encode([(2, '"plague"')])
    steps = program.coordinate()
    next(steps)
    down = dict(steps.send(forged[:length].copy()))
    assert "plague" in bytes(down["levels"].tolist()).decode()
    with pytest.raises(ProtocolError, match="its tags are wrong"):
        checker.check(1, {**down, OPENED: torch.from_numpy(forged)})


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_server_cannot_lower_the_rows_that_a_level_needs(kind):
    make = PROGRAMS[kind]
    mine, theirs = (SumContract.of(make("diagnosis", min_level_rows=n), list(PATIENTS)) for n in (2, 1))
    with pytest.raises(QueryNotAgreed, match=r"min_level_rows \(agreed: 2, offered: 1\)"):
        mine.check_offer(theirs.text)


JOBS = {
    "glm": 'formula = "ill ~ diagnosis"',
    "gee": 'formula = "ill ~ diagnosis"',
    "mixed": 'formula = "ill ~ diagnosis"',
    "meta": 'formula = "ill ~ diagnosis"\nopen_sites = true',
    "cox": 'formula = "diagnosis"\ntime = "week"\nevent = "ill"',
    "km": 'time = "week"\nevent = "ill"\nby = "diagnosis"',
    "nelson-aalen": 'time = "week"\nevent = "ill"\nby = "diagnosis"',
    "aalen-johansen": 'time = "week"\nevent = "ill"\nby = "diagnosis"\ncause = 1\ncauses = [1]',
    "logrank": 'time = "week"\nevent = "ill"\nby = "diagnosis"',
}


@pytest.mark.parametrize("word", JOBS)
def test_the_number_is_in_the_job_file_and_the_owners_policy_bounds_it(tmp_path, word):
    job = tmp_path / "job.toml"
    found = {}
    for number in (None, 1, 7):
        job.write_text("[stats]\n" + JOBS[word] + ("" if number is None else f"\nmin_level_rows = {number}"))
        query = read_query(word, job)
        program = query.verb.program(query.options, list(PATIENTS))
        found[number] = SumContract.of(program, list(PATIENTS), data=query.agreed_data()).tables["data"][
            "stats"
        ]
        assert getattr(program, "first", program).min_level_rows == (number or 2)
    check_least(StatsPolicy(), found[None])
    with pytest.raises(QueryRefused, match="min_level_rows = 1, and this party's policy requires 2"):
        check_least(StatsPolicy(), found[1])
    with pytest.raises(QueryRefused, match="min_level_rows = 2, and this party's policy requires 5"):
        check_least(StatsPolicy(min_level_rows=5), found[None])
    check_least(StatsPolicy(min_level_rows=5), found[7])
    job.write_text("[stats]\n" + JOBS[word] + "\nmin_level_rows = 0")
    query = read_query(word, job)
    with pytest.raises(tacit.errors.BadParameter, match="min_level_rows"):
        query.verb.program(query.options, list(PATIENTS))


def test_declared_levels_are_not_bound_and_a_model_without_rare_levels_is_the_same():
    """A declared level of three rows has its own minimum, min_count. Found and declared levels: one model."""
    levels = {"diagnosis": ["healthy", "measles", "plague"]}
    with pytest.raises(BadData, match="of which no party has 2 rows"):
        tacit.stats.glm(PATIENTS, "ill ~ age + diagnosis")
    with pytest.raises(QueryRefused, match="1 to 4 alone have another value in 'diagnosis=plague'"):
        tacit.stats.glm(PATIENTS, "ill ~ age + diagnosis", levels=levels)
    whole = tacit.stats.glm(FREQUENT, "ill ~ age + diagnosis")
    declared = tacit.stats.glm(
        FREQUENT, "ill ~ age + diagnosis", levels={"diagnosis": levels["diagnosis"][:2]}
    )
    assert whole.params.equals(declared.params)
    one = {**FREQUENT, "p0": patients(0)}  # a party with one row of a level that another one found
    one["p1"] = patients(1).assign(diagnosis=lambda t: t["diagnosis"].where(t.index > 2, "plague"))
    assert "diagnosis[T.plague]" in tacit.stats.glm(one, "ill ~ age + diagnosis", min_count=1).params


def test_numbers_with_some_text_are_refused_by_the_party_without_its_values():
    frame = PATIENTS["p0"].assign(lab=[*(np.arange(59) + 0.5), "n/a"])
    with pytest.raises(BadData, match="nearly all of its values are numbers") as refused:
        design.count_kinds(frame, ["lab"], [], {})
    assert "n/a" not in str(refused.value)
    assert "58.5" not in str(refused.value)


def test_tables_of_declared_levels_open_no_other_value():
    """`describe` and `crosstab` count values that are not declared as one; none is in a vector."""
    program = DescribeProgram((), (("diagnosis", ("healthy", "measles")),))
    frame = PATIENTS["p0"]
    renamed = frame.assign(diagnosis=frame["diagnosis"].replace("plague", "cholera"))
    assert np.array_equal(program.local(0, frame, {}), program.local(0, renamed, {}))
