"""Attacks on statistics: site-level matrices, differences of queries, and what a policy refuses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.accounting.account import FILE
from tacit.crypto import exact, ring
from tacit.data.table_files import read_table
from tacit.errors import BadJob, BudgetSpent, QueryRefused
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.policy import StatsPolicy, admit, read_policy
from tacit.jobs.stats.run import run_sums
from tacit.protocols import secagg
from tacit.stats.counts import CorrelationProgram
from tacit.stats.description import DescribeProgram
from tacit.stats.disclosure import (
    QueryHistory,
    check_dominance,
    check_parties,
    check_saturated,
    difference,
    hash_texts,
)
from tacit.stats.noisy import NoisyProgram
from tacit.stats.regression import GlmProgram
from tests.stats.references import heart_disease
from tests.stats.tables import heart


@dataclass(frozen=True)
class Gram:
    """XᵀX, the matrix that a Newton step of any regression sums."""

    columns: tuple[str, ...]
    max_steps: int = 1
    bound: int = exact.BOUND

    def length(self, step, down):
        return len(self.columns) ** 2 * exact.LIMBS

    def local(self, step, table, down):
        x = table[list(self.columns)].to_numpy(float)
        return exact.encode((x.T @ x).reshape(-1))

    def coordinate(self):
        p = len(self.columns)
        return exact.decode((yield {})).reshape(p, p)


def hospitals():
    """Each hospital has one patient with a rare condition: x in column `rare`, 0 elsewhere."""
    frames = {}
    for k, (name, frame) in enumerate(heart().items()):
        part = frame[["age", "trestbps"]].dropna().head(40).reset_index(drop=True)
        frames[name] = part.assign(rare=(part.index == 7 + k).astype(float))
    return frames


def test_site_level_matrices_show_a_patient_and_sums_over_all_sites_do_not(monkeypatch):
    """In XᵀX of one site, the row of a rare condition is its only patient. In the sum it is nobody's."""
    frames, program = hospitals(), Gram(("age", "trestbps", "rare"))
    victim = frames["va"][frames["va"].rare == 1].iloc[0]

    naive = exact.decode(program.local(0, frames["va"], {})).reshape(3, 3)  # what such protocols send
    assert naive[2].tolist() == [victim.age, victim.trestbps, 1.0]

    masked = []
    unpack = ring.unpack

    def record(packed, length, width):
        masked.append(unpack(packed, length, width))
        return masked[-1].copy()

    monkeypatch.setattr(secagg.ring, "unpack", record)
    found, _ = run_sums(program, frames, runtime="inprocess")
    assert found[2, 2] == 4
    assert victim.age not in found[2]
    everything = [ring.encode(program.local(0, f, {}), 64, program.bound) for f in frames.values()]
    for vector in masked:  # of 54 limbs under a mask, none is the hospital's own but by chance (2^-40 each)
        for own in everything:
            assert not (vector == own).any()


def read_patient(information, score, level):
    """The attack: the row of a level that one patient of a site has is that patient, and the score the outcome."""
    return (*(4 * information[level, :level]), score[level] > 0)


def test_a_newton_step_of_one_site_shows_a_patient_of_real_data_and_an_opened_step_does_not(monkeypatch):
    """One of 63 patients with a downsloping ST segment is in Budapest."""
    columns = ["age", "thalach", "slope", "disease"]
    fed = {n: f[columns].dropna().reset_index(drop=True) for n, f in heart_disease().items()}
    victim = fed["hungarian"][fed["hungarian"]["slope"] == 3].iloc[0]

    def step_of(table):
        x = np.column_stack([np.ones(len(table)), table["age"], table["thalach"], table["slope"] == 3])
        return x.T @ x / 4, x.T @ (table["disease"] - 0.5)

    found = read_patient(*step_of(fed["hungarian"]), 3)  # what v6-glm-py and ds.glm send to the analyst
    assert found == (1.0, victim["age"], victim["thalach"], victim["disease"] == 1)

    opened, masked, own = [], [], []
    decode, unpack, local = exact.decode, ring.unpack, GlmProgram.local

    def note_opened(total):
        opened.append(decode(total))
        return opened[-1]

    def note_masked(packed, length, width):
        masked.append(unpack(packed, length, width))
        return masked[-1].copy()

    def note_own(program, step, table, down):
        vector = local(program, step, table, down)
        if len(table) == len(fed["hungarian"]):
            own.append(ring.encode(vector, ring.width_for(len(fed), program.bound), program.bound))
        return vector

    monkeypatch.setattr("tacit.stats.regression_coordinator.exact.decode", note_opened)
    monkeypatch.setattr(secagg.ring, "unpack", note_masked)
    monkeypatch.setattr(GlmProgram, "local", note_own)
    fit = tacit.stats.glm(fed, "disease ~ age + thalach + C(slope)", runtime="inprocess")
    assert fit.n == sum(map(len, fed.values()))

    pooled = pd.concat(fed.values())
    people, age, rate, _ = read_patient(*step_of(pooled), 3)
    start = opened[0]  # the sums of the model's first step, from which the same row is read
    assert people == 63
    assert np.isclose(start, age).any()
    assert np.isclose(start, rate).any()
    for sums in opened:
        assert not np.isclose(sums, victim["age"]).any() or not np.isclose(sums, victim["thalach"]).any()
    assert len(masked) >= len(own) * len(fed) > len(fed)
    for vector in masked:  # hundreds of limbs under masks: none is what Budapest computed
        for mine in own:
            assert len(vector) < len(mine) or not (vector[: len(mine)] == mine).any()


def test_the_coordinator_sees_the_same_sums_if_two_hospitals_swap_their_patients():
    """Two worlds with the same total: whatever the coordinator computes, it cannot tell them apart."""
    first, second = hospitals(), hospitals()
    row, other = second["va"].loc[10].copy(), second["cleveland"].loc[7].copy()
    second["va"].loc[10], second["cleveland"].loc[7] = other, row
    program = Gram(("age", "trestbps", "rare"))
    locals_ = [[tuple(program.local(0, f, {})) for f in world.values()] for world in (first, second)]
    assert locals_[0] != locals_[1]
    assert (run_sums(program, first)[0] == run_sums(program, second)[0]).all()


def test_the_difference_of_two_queries_is_a_patient_and_a_party_refuses_the_second(tmp_path):
    table = heart()["va"]
    frames = {n: f for n, f in heart().items()}
    program = DescribeProgram(("age",))
    with_all = run_sums(program, frames)[0].numbers["age"]["all"]
    without = run_sums(program, {**frames, "va": table.iloc[:-1]})[0].numbers["age"]["all"]
    attacked = with_all.mean * with_all.n - without.mean * without.n
    assert attacked == pytest.approx(table["age"].iloc[-1], abs=1e-9)

    def ask(rows, edition):
        contract = SumContract.of(program, ["va", "x", "y"], data={"edition": edition})
        admit(StatsPolicy(), contract, program, rows, AnswerFile(tmp_path, "va", contract.digest), tmp_path)

    ask(table, "1")
    ask(table.sample(frac=1, random_state=0), "2")  # the same rows in another order
    with pytest.raises(QueryRefused, match="differ from those of an earlier one by 1 people"):
        ask(table.iloc[:-1], "3")
    ask(table.iloc[:-10], "4")
    with pytest.raises(QueryRefused, match="by 1 people"):  # from the fourth, after a restart as well
        ask(table.iloc[:-11], "5")


def test_groups_that_differ_in_few_people_are_refused(tmp_path):
    table = heart()["va"].assign(
        arm=lambda t: np.where(t.index % 2, "a", "b"),
        coded=lambda t: np.where((t.index % 2) & (t.index > 3), "a", "b"),
    )

    def ask(by):
        program = DescribeProgram(("age",), (), (by, ("a", "b")))
        contract = SumContract.of(program, ["va", "x", "y"])
        admit(StatsPolicy(), contract, program, table, AnswerFile(tmp_path, "va", contract.digest), tmp_path)

    ask("arm")
    with pytest.raises(QueryRefused, match=r"\(coded=a\) differ .* by 2 people"):
        ask("coded")


def test_a_party_that_was_killed_and_restarted_may_go_on_with_its_query(tmp_path):
    program = DescribeProgram(("age",))
    contract = SumContract.of(program, ["va", "x", "y"])
    for _ in range(2):
        answers = AnswerFile(tmp_path, "va", contract.digest)
        admit(StatsPolicy(), contract, program, heart()["va"], answers, tmp_path)


READINGS = (
    {"decimal": ",", "encoding": "cp1252"},
    {"decimal": ".", "encoding": "cp1252"},  # numbers with a comma are texts
    {"decimal": ",", "encoding": "latin-1", "declared": {"town": ["NA"], "dose": ["NA"]}},
    {"decimal": ",", "encoding": "cp437"},
)


@pytest.mark.parametrize("reading", READINGS)
def test_a_coordinator_that_has_a_file_read_in_another_way_cannot_ask_about_one_person_less(
    tmp_path, reading
):
    """Before, all rows were others: the numbers were texts, and nothing was refused."""
    lines = ["id;dose;town;sex", *(f"{i};{i / 4:.2f};K\u00f6ln{i % 7};{'fm'[i % 2]}" for i in range(200))]
    lines = [line.replace(".", ",") for line in lines]
    lines[5:60] = [f"{line.split(';')[0]};NA;NA;f" for line in lines[5:60]]
    tables = {}
    for name, some in {"all": lines, "less": [*lines[:30], *lines[31:]]}.items():
        (tmp_path / f"{name}.csv").write_bytes("\n".join([*some, ""]).encode("cp1252"))
        how = READINGS[0] if name == "all" else reading
        tables[name] = read_table(tmp_path / f"{name}.csv", separator=";", **how)
    first, second = hash_texts(tables["all"]), hash_texts(tables["less"])
    assert len(np.unique(first)) == 200
    assert difference(np.sort(first), np.sort(second)) == 1
    history = QueryHistory(tmp_path)
    history.admit("c1", {"all rows": first}, first, "text")
    with pytest.raises(QueryRefused, match="differ from those of an earlier one by 1 people"):
        history.admit("c2", {"all rows": second}, second, "text")


def test_row_sets_of_earlier_versions_still_count(tmp_path):
    """They have hashes of another kind; a party goes on to write those, too."""
    import pandas as pd

    table, program = heart()["va"], DescribeProgram(("age",))
    contract = SumContract.of(program, ["va", "x", "y"])
    old = pd.util.hash_pandas_object(table, index=False).to_numpy()
    QueryHistory(tmp_path).admit("c1", {"all rows": old})
    with pytest.raises(QueryRefused, match="differ from those of an earlier one by 1 people"):
        admit(
            StatsPolicy(),
            contract,
            program,
            table.iloc[1:],
            AnswerFile(tmp_path, "va", contract.digest),
            tmp_path,
        )


def test_equal_rows_are_counted():
    a, b = np.array([1, 1, 1, 2], np.uint64), np.array([1, 2, 3], np.uint64)
    assert difference(a, b) == 3
    assert difference(a, a) == 0
    assert difference(a, np.array([], np.uint64)) == 4


def test_a_history_cannot_be_read_as_code(tmp_path):
    history = QueryHistory(tmp_path)
    history.admit("c1", {"all rows": np.arange(50, dtype=np.uint64)})
    file = next((tmp_path / "row-sets").iterdir())
    np.save(file, np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        history.admit("c2", {"all rows": np.arange(45, dtype=np.uint64)})


def test_rules_against_disclosing_sums():
    check_saturated(100, 10)
    with pytest.raises(QueryRefused, match="10 parameters and 10 rows"):
        check_saturated(10, 10)
    check_dominance(np.ones(100))
    with pytest.raises(QueryRefused, match="2 rows make up more than 90%"):
        check_dominance(np.array([1e6, 1e3, *np.ones(100)]))
    check_parties(["a", "b", "c"])
    with pytest.raises(QueryRefused, match="sum over 2 parties"):
        check_parties(["a", "b"])


def _logistic_step(table, weight_on=None):
    """What a coordinator sends in a step of "sick ~ chol + thalach"; `weight_on`: the row it singles out.

    Columns of a nonlinear model with a steep slope: μ(1−μ) is 1/4 where xβ = 0 and nearly 0 elsewhere.
    """
    import torch

    from tacit.stats.design import Agreement
    from tacit.stats.newton import Scaling
    from tacit.stats.regression import NEWTON, write_scaling

    x = np.column_stack([np.ones(len(table)), table["chol"], table["thalach"]])
    slope = np.array([0.0, 0.5, 0.5 * np.sqrt(2)])  # no two patients have the same value of this
    if weight_on is None:
        point = np.zeros(3)
    else:
        point = slope * 400
        point[0] = -float(x[weight_on] @ point)
    return {
        "levels": Agreement({}).to_tensor(),
        "rows": torch.tensor(1000),
        "phase": torch.tensor(NEWTON),
        "point": torch.from_numpy(point),
        "null": torch.zeros(1, dtype=torch.float64),
        **write_scaling(Scaling(np.zeros(3), np.ones(3), 0)),
    }


def patients(name="cleveland", rows=120):
    columns = ["age", "chol", "thalach"]
    table = heart()[name].dropna(subset=columns)
    return table[columns].assign(sick=(table["num"] > 0).astype(int)).drop_duplicates().head(rows)


@pytest.mark.parametrize("rows", [120, 6])
def test_coefficients_that_give_one_patient_all_the_weight_are_refused_by_the_party(rows, monkeypatch):
    """The information matrix of such a step is w·xxᵀ of one patient, over all parties: x can be read off."""
    from tacit.stats import glm_sums, regression
    from tacit.stats.glm_sums import Pieces

    table, victim = patients(rows=rows), 4
    program = regression.GlmProgram("sick ~ chol + thalach")
    down = _logistic_step(table, victim)
    with pytest.raises(QueryRefused, match=f"rest on 1 of {rows} rows"):
        program.local(2, table, down)
    assert len(program.local(2, table, _logistic_step(table)))  # an honest step is answered

    monkeypatch.setattr(glm_sums, "check_concentration", lambda weights: None)  # without the rule
    sums = Pieces(program.model, False).read(exact.decode(program.local(2, table, down)), 3)
    read = sums.information[0] / sums.information[0, 0]
    assert read == pytest.approx([1.0, table["chol"].iloc[victim], table["thalach"].iloc[victim]], rel=1e-6)


def test_hazards_that_give_one_patient_all_the_weight_are_refused_by_the_party():
    import torch

    from tacit.stats.design import Agreement
    from tacit.stats.hazards import GRAM, RISK, CoxProgram

    table = patients().assign(week=lambda t: 1.0 + np.arange(len(t)) % 7)
    points = torch.arange(8)
    one = torch.ones(1, dtype=torch.float64)

    def ask(phase, beta, a, b):
        down = {
            "levels": Agreement({}).to_tensor(),
            "rows": torch.tensor(1000),
            "phase": torch.tensor(phase),
            "center": 0 * one,
            "scaled": one,
            "cuts": points,
            "points": points,
            "starts": torch.tensor([0, 8]),
            "beta": beta * one,
            "a": torch.tensor(a, dtype=torch.float64),
            "b": torch.tensor(b, dtype=torch.float64),
        }
        return CoxProgram("chol", "week", "sick").local(2, table, down)

    nothing, everyone = [0.0] * 8, [1.0] * 8
    assert len(ask(RISK, 0.0, everyone, nothing))
    assert len(ask(GRAM, 0.0, everyone, nothing))
    with pytest.raises(QueryRefused, match="rest on 1 of 120 rows"):
        ask(RISK, 1.0, everyone, nothing)  # exp(chol): the patient with the most
    lonely = table.assign(sick=0)
    lonely.iloc[3, lonely.columns.get_loc("sick")] = 1
    table = lonely
    with pytest.raises(QueryRefused, match="rest on 1 of 120 rows"):
        ask(GRAM, 0.0, nothing, everyone)  # Σ b xxᵀ over events: there is one


def test_a_party_refuses_a_saturated_model_whatever_the_coordinator_overlooks():
    import torch

    from tacit.errors import ProtocolError
    from tacit.stats.regression import GlmProgram

    table, program = patients(rows=40), GlmProgram("sick ~ chol + thalach")
    down = _logistic_step(table)
    with pytest.raises(QueryRefused, match="3 parameters and 3 rows"):
        program.local(2, table.head(3), {**down, "rows": torch.tensor(3)})
    with pytest.raises(ProtocolError, match="fewer rows than this party has"):
        program.local(2, table, {**down, "rows": torch.tensor(39)})


def test_a_policy_may_refuse_sums_that_two_people_dominate(tmp_path):
    incomes = pd.DataFrame(
        {"income": [1e9, 2e8, *np.linspace(2e4, 9e4, 100)], "age": np.arange(102) % 60 + 20}
    )
    rules = StatsPolicy(max_share=0.9)

    def ask(program, table=incomes):
        contract = SumContract.of(program, ["va", "x", "y"])
        admit(rules, contract, program, table, AnswerFile(tmp_path, "va", contract.digest), tmp_path)

    ask(DescribeProgram(("age",)))
    for program in (DescribeProgram(("age", "income")), CorrelationProgram(("income", "age"))):
        with pytest.raises(QueryRefused, match="2 rows make up more than 90%"):
            ask(program)


def test_a_policy_file_is_read_and_checked(tmp_path):
    assert read_policy(tmp_path) == StatsPolicy()
    (tmp_path / "policy.toml").write_text("[stats]\nmin_parties = 2\nepsilon = 3.0\n")
    assert read_policy(tmp_path) == StatsPolicy(min_parties=2, epsilon=3.0)
    (tmp_path / "policy.toml").write_text("[stats]\nmin_parties = 1\nbudget = 3\n")
    with pytest.raises(BadJob, match="no key 'budget'"):
        read_policy(tmp_path)


def test_private_queries_are_charged_once_and_stop_at_the_lifetime_budget(tmp_path):
    table = heart()["va"]
    policy = StatsPolicy(epsilon=1.3)

    def ask(edition, epsilon=1.0, rules=policy):
        program = NoisyProgram(3, epsilon, 1e-6, (("age", 0.0, 120.0),))
        contract = SumContract.of(program, ["va", "x", "y"], data={"edition": edition})
        answers = AnswerFile(tmp_path, "va", contract.digest)
        admit(rules, contract, program, table, answers, tmp_path)

    ask("1")  # two queries of ε = 1 have ε = 1.42 together
    ask("1")  # restarted: the same query is not charged again
    assert len((tmp_path / FILE).read_text().splitlines()) == 1
    with pytest.raises(BudgetSpent, match=r"allows ε = 1.3"):
        ask("2")
    ask("3", 0.2)
    program = DescribeProgram(("age",))
    contract = SumContract.of(program, ["va", "x", "y"])
    answers = AnswerFile(tmp_path, "va", contract.digest)
    with pytest.raises(QueryRefused, match="only private"):
        admit(StatsPolicy(only_private=True), contract, program, table, answers, tmp_path)


def test_a_lying_coordinator_cannot_ask_for_other_cells_than_a_search_needs():
    """More cells, cells outside the range, columns that were not declared: nothing is sent."""
    import torch

    from tacit.errors import ProtocolError

    program, table = DescribeProgram(("age",)), heart()["va"]

    def ask(columns, groups, prefixes):
        down = dict(zip(("column", "group", "prefix"), map(torch.tensor, (columns, groups, prefixes))))
        return program.local(2, table, down)

    assert ask([0], [0], [300]).sum() <= len(table)
    many = list(range(7))
    for bad in ((many[:1] * 7, many[:1] * 7, many), ([0], [0], [512]), ([-1], [0], [3]), ([0], [1], [3])):
        with pytest.raises(ProtocolError, match="no search"):
            ask(*bad)
    assert pd.api.types.is_numeric_dtype(table["age"])
    assert tacit.stats.quantile(heart(), "age").table["value"][0] == 54.0
