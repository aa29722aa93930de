"""Metrics by subgroup must not reveal the outcome of single patients, and parties count only agreed ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import tacit
from tacit import algorithms, data, guard
from tacit.data import Rows
from tacit.data.subgroups import Subgroups, parse, read_declared
from tacit.engine.task import Task
from tacit.errors import BadData, BadParameter, ProtocolError
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.counts import blank_tally, pack_tally, unpack_tally
from tacit.jobs.train.elsewhere import Deployed, Elsewhere
from tacit.jobs.train.local import Member
from tacit.jobs.train.party_rows import read_rows
from tacit.jobs.train.plan import make_plan

HIDDEN = [guard.Clip(5.0), guard.Quantize(bits=24), guard.SecAgg()]
TRAIN: dict[str, Any] = {"model": "logistic", "rounds": 2, "algorithm": algorithms.FedAvg(lr=0.5)}


def frame(n: int = 240, rare: int = 3, seed: int = 0) -> pandas.DataFrame:
    """Patients of four hospitals; `rare` of them have the sex 'x'."""
    rng = np.random.default_rng(seed)
    age, score = rng.integers(20, 90, n), rng.normal(size=n)
    sex = rng.choice(["f", "m"], n)
    sex[:rare] = "x"
    sick = np.where(score + (age - 55) / 30 + rng.normal(size=n) > 0, "yes", "no")
    hospital = np.array([f"h{k}" for k in np.arange(n) % 4])
    return pandas.DataFrame({"age": age, "score": score, "sex": sex, "hospital": hospital, "sick": sick})


def hospitals(held: float = 0.5, **kind: Any) -> data.Federation:
    return data.from_frame(frame(**kind), label="sick", test_fraction=0).by("hospital", held_fraction=held)


SUBGROUPS = ["sex", "age: 40, 65"]


def last(fed: data.Federation, **how: Any) -> dict[str, Any]:
    return tacit.train(fed, subgroups=SUBGROUPS, **TRAIN, **how).metrics["subgroups"]


def test_simulation_parties_and_processes_count_the_same_subgroups() -> None:
    here, there, apart = (last(hospitals(), runtime=r) for r in ("cohort", "inprocess", "processes"))
    assert list(here) == ["sex", "age"]
    assert here["sex"].keys() == there["sex"].keys() == apart["sex"].keys()
    for column, values in here.items():
        for value, metrics in values.items():
            for other in (there, apart):
                assert metrics["rows"] == other[column][value]["rows"]
                assert metrics["accuracy"] == pytest.approx(other[column][value]["accuracy"])
                assert metrics["auc"] == pytest.approx(other[column][value]["auc"], abs=0.01)


def test_a_hidden_sum_gives_the_subgroups_of_all_parties_together() -> None:
    """Weighted sums are quantized, so models differ slightly; the numbers of rows do not."""
    plain, hidden = last(hospitals()), last(hospitals(), guard=HIDDEN, runtime="inprocess")
    simulated = last(hospitals(), guard=HIDDEN)
    rows = {v: m["rows"] for v, m in hidden["age"].items()}
    assert rows == {v: m["rows"] for v, m in simulated["age"].items()}
    assert sum(rows.values()) == sum(m["rows"] for m in plain["age"].values())
    assert all(n >= 10 for n in rows.values())


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_the_ledger_says_that_a_hidden_sum_has_small_subgroups(runtime: str) -> None:
    """No party knows which subgroups are small in all parties, so they are merged after the sum is opened."""
    run = tacit.train(hospitals(), subgroups=SUBGROUPS, guard=HIDDEN, runtime=runtime, **TRAIN)
    seen = [s for s in run.ledger.seen if "by sex, age: 40, 65" in s.reveals]
    assert [(s.party, s.sender) for s in seen] == [("server", "4 parties, together")]
    assert "fewer than 10 rows, too, which are merged only after the sum" in seen[0].reveals
    plain = tacit.train(hospitals(), subgroups=SUBGROUPS, runtime=runtime, **TRAIN)
    assert not any("after the sum" in s.reveals for s in plain.ledger.seen)


def test_a_rare_subgroup_is_merged_in_what_is_shown_and_no_difference_tells_it() -> None:
    shown = last(hospitals(rare=6))["sex"]
    assert "x" not in shown
    total = tacit.train(hospitals(rare=6), subgroups=SUBGROUPS, **TRAIN).metrics
    rows = sum(map(sum, total["confusion"]))
    for value, metrics in shown.items():
        assert metrics["rows"] >= 10
        assert rows - metrics["rows"] >= 10, value


def test_what_a_hospital_sends_does_not_depend_on_the_outcomes_of_its_rare_patients() -> None:
    """The attacker is the server: it sees the message of one hospital. Swapping the outcomes of a rare and a
    common patient of equal scores changes nothing in it.
    """
    p = make_plan(hospitals(rare=32), subgroups=["sex"], **TRAIN)
    own = p.fed.party(0)
    task = Task(torch.nn.Linear(own.rows.x.shape[1], 2), *own.rows)
    with torch.no_grad():
        for q in task.module.parameters():
            q.zero_()  # all scores are equal
    assert own.subgroups is not None
    sex = own.subgroups.codes[own.held.index, 0]
    names = own.subgroups.values[0]
    sizes = torch.bincount(sex, minlength=len(names)).tolist()
    x = names.index("x")
    assert 0 < sizes[x] < 10
    merged = min((names.index("f"), names.index("m")), key=lambda k: sizes[k])  # takes in the rare ones
    rare, common = own.held.index[sex == x], own.held.index[sex == merged]
    swap = next([int(a), int(b)] for a in rare for b in common if own.rows.y[a] != own.rows.y[b])

    def sent(y: torch.Tensor, summed: bool) -> dict[str, torch.Tensor]:
        now = dataclasses.replace(own, rows=Rows(own.rows.x, y))
        who = Member("h0", now, task.on(*now.rows), algorithms.FedAvg(), 0, 1, None, None, rules=p.rules)
        return who.test(0, {"w": task.initial()["w"]}, summed=summed)

    swapped = own.rows.y.clone()
    swapped[swap] = own.rows.y[swap[::-1]]
    a, b = sent(own.rows.y, False), sent(swapped, False)
    assert all(torch.equal(a[k], b[k]) for k in a)
    cells = unpack_tally(a, blank_tally(p)).cells
    assert cells is not None
    assert float(cells.rows[x]) == float(cells.rows[merged]) == 0
    assert float(cells.rows[len(names)]) == sizes[x] + sizes[merged] >= 10
    # so that the equality means something: only a hidden sum carries the rare subgroup by itself
    a, b = sent(own.rows.y, True), sent(swapped, True)
    assert not all(torch.equal(a[k], b[k]) for k in a)


def test_parties_are_subgroups_under_the_same_rule() -> None:
    fed = hospitals(held=0.5)
    shown = tacit.train(fed, subgroups=["party"], **TRAIN).metrics["subgroups"]["party"]
    assert set(shown) == set(fed.parties)
    few = tacit.train(fed, subgroups=["site"], min_rows=1000, **TRAIN)
    assert "subgroups" not in few.metrics or few.metrics["subgroups"] == {}
    tested = data.from_frame(frame(n=800), label="sick").by("hospital")  # with a global test set
    assert set(tacit.train(tested, subgroups=["site"], **TRAIN).metrics["subgroups"]["party"]) == set(
        fed.parties
    )
    with pytest.raises(BadParameter, match="the guard hides the metrics of single parties"):
        tacit.train(fed, subgroups=["party"], guard=HIDDEN, **TRAIN)


@pytest.mark.parametrize(
    ("subgroups", "text"),
    [
        ("sex", "a list of columns"),
        (["sex", "sex"], "a list of different columns"),
        (["age: 65, 40"], "increasing bounds for 'age'"),
        ([3], "a list of columns"),
    ],
)
def test_bad_declarations(subgroups: Any, text: str) -> None:
    with pytest.raises(BadParameter, match=text):
        tacit.train(hospitals(), subgroups=subgroups, **TRAIN)


def test_columns_that_are_not_there_or_have_too_many_values() -> None:
    with pytest.raises(BadData, match=r"no column 'gender'. .*"):
        tacit.train(hospitals(), subgroups=["gender"], **TRAIN)
    with pytest.raises(BadData, match=r'give the bounds of its bands, like "score: 40, 65"'):
        tacit.train(hospitals(), subgroups=["score"], **TRAIN)
    with pytest.raises(BadData, match="'sex' has a value that is not a number"):
        tacit.train(hospitals(), subgroups=["sex: 1, 2"], **TRAIN)
    with pytest.raises(BadData, match="they were not made from a table"):
        tacit.train(data.gaussian_blobs(rows=90).split(3), subgroups=["sex"], **TRAIN)


def test_declarations_are_kept_in_one_form() -> None:
    assert read_declared({"sex": (), "age": [40, 65.0]}, "train") == ("sex", "age: 40, 65")
    assert read_declared(["sex", " age : 40,65 "], "train") == ("sex", "age: 40, 65")
    assert read_declared(read_declared(["age: 40, 65"], "train"), "train") == ("age: 40, 65",)
    assert parse("icd:A10").column == "icd:A10"  # a colon in a name
    assert parse("age: 40, 65").values == ("below 40", "40 to 65", "65 or more", "missing")


# real parties ------------------------------------------------------------------------------------------------

LAYOUT = {
    "label": "sick",
    "labels": ["no", "yes"],
    "numbers": ["age", "score"],
    "categories": {"sex": ["f", "m"]},
    "held_fraction": 0.5,
}


def test_a_real_party_reads_the_agreed_subgroups_of_its_own_file(tmp_path: Path) -> None:
    table = frame(rare=0)
    table.loc[5, "age"] = np.nan
    table.to_csv(tmp_path / "own.csv", index=False)
    layout = {**LAYOUT, "missing": ["age"]}
    fed = read_rows("a", tmp_path / "own.csv", layout, 0, subgroups=SUBGROUPS)
    assert fed.subgroups is not None
    assert fed.subgroups.values[0][:2] == ("f", "m")
    want = np.searchsorted([40, 65], table["age"].to_numpy(), side="right")
    want[5] = fed.subgroups.values[1].index("missing")
    np.testing.assert_array_equal(fed.subgroups.codes[:, 1], want)


def test_a_number_of_zeros_and_ones_needs_no_bands_at_a_real_party(tmp_path: Path) -> None:
    """-9 means missing in this file, so it is no third value."""
    table = frame(rare=0).assign(score=lambda t: (t["score"] > t["score"].median()).astype(int))
    table.loc[5, "score"] = -9
    table.to_csv(tmp_path / "own.csv", index=False)
    layout = {**LAYOUT, "missing": ["score"], "missing_codes": {"score": [-9]}}
    fed = read_rows("a", tmp_path / "own.csv", layout, 0, subgroups=["score", "sex"])
    assert fed.subgroups is not None
    assert fed.subgroups.values[0] == ("0", "1", "missing")
    want = np.where(table["score"] == -9, 2, table["score"])
    np.testing.assert_array_equal(fed.subgroups.codes[:, 0], want)
    with pytest.raises(BadData, match=r"'age' is a number with other values than 0 and 1; write its bands"):
        read_rows("a", tmp_path / "own.csv", layout, 0, subgroups=["age"])


def test_subgroups_of_real_parties_are_columns_of_the_job() -> None:
    with pytest.raises(BadData, match=r"\[data\] has no column 'race'"):
        Subgroups.without_rows(["race"], {"sex": ["f", "m"]}, ["age"])
    with pytest.raises(BadData, match=r"'sex' is a column of texts; write its name alone"):
        Subgroups.without_rows(["sex: 1"], {"sex": ["f", "m"]}, ["age"])


# what a server accepts from a malicious party ----------------------------------------------------------------


def counts_of_a_party() -> tuple[dict[str, torch.Tensor], Any]:
    p = make_plan(hospitals(), subgroups=SUBGROUPS, **TRAIN)
    own = p.fed.party(0)
    task = Task(torch.nn.Linear(own.rows.x.shape[1], 2), *own.rows)
    who = Member("h0", own, task, algorithms.FedAvg(), 0, 1, None, None, rules=p.rules)
    return who.test(0, {"w": task.initial()["w"]}), blank_tally(p)


def test_counts_survive_the_wire_and_are_short() -> None:
    sent, blank = counts_of_a_party()
    tally = unpack_tally(sent, blank)
    again = pack_tally(tally)
    assert sent.keys() == again.keys() == {"sums", "cells"}
    assert all(torch.equal(sent[k], again[k]) for k in sent)
    rows = int(tally.total.rows)
    assert len(sent["cells"]) == rows * 2 * 3  # a confusion and a score, of all rows and in two columns


@pytest.mark.parametrize(
    ("field", "change", "text"),
    [
        ("sums", lambda v: v[:-1], "not as many as this job has"),
        ("sums", lambda v: v.float(), "not as many as this job has"),
        ("sums", lambda v: v + 0.5, "not a whole number"),
        ("sums", lambda v: v * torch.nan, "not a whole number"),
        ("cells", lambda v: v + 30000, "outside 0"),
        ("cells", lambda v: -v - 1, "outside 0"),
        ("cells", lambda v: v.long(), "a list of torch.int64"),
        ("cells", lambda v: v[1:], "do not add up"),
        ("cells", lambda v: v.repeat(100), "longer of the two forms"),
        ("more", lambda v: torch.zeros(1), "which no counts have"),
    ],
)
def test_counts_that_no_party_counts_are_refused(field: str, change: Any, text: str) -> None:
    sent, blank = counts_of_a_party()
    with pytest.raises(ProtocolError, match=text):
        unpack_tally({**sent, field: change(sent.get(field))}, blank)


def test_dense_counts_are_checked_too() -> None:
    _, blank = counts_of_a_party()
    dense = torch.zeros(len(blank.numbers), dtype=torch.int32)
    dense[0] = -1
    with pytest.raises(ProtocolError, match="whole numbers of at least 0"):
        unpack_tally({"sums": blank.sums, "dense": dense}, blank)


@pytest.mark.parametrize("hidden", [False, True], ids=["in the clear", "hidden sum"])
def test_a_server_that_has_no_rows_expects_what_a_party_counts(tmp_path: Path, hidden: bool) -> None:
    """Both derive the form of the counts from the contract alone."""
    frame(rare=0).to_csv(tmp_path / "own.csv", index=False)
    fed = Elsewhere.of("f", ("a", "b", "c"), (4,), ("no", "yes"), ())
    stages = [guard.Clip(5.0), guard.Quantize(bits=24), guard.SecAgg(max_rows=512)] if hidden else None
    p = make_plan(fed, subgroups=SUBGROUPS, guard=stages, runtime=Deployed(None, LAYOUT), **TRAIN)
    same = Contract.of(p, LAYOUT, "server", [4]).plan()
    assert same.subgroups == p.subgroups == ("sex", "age: 40, 65")
    own = read_rows("a", tmp_path / "own.csv", LAYOUT, 0, subgroups=same.subgroups)
    task = Task(torch.nn.Linear(own.rows.x.shape[1], 2), *own.rows)
    who = Member("a", own, task, algorithms.FedAvg(), 0, 1, None, None, rules=same.rules)
    tally = unpack_tally(who.test(0, {"w": task.initial()["w"]}, summed=hidden), blank_tally(p))
    assert tally.cells is not None
    assert int(tally.total.rows) == int(own.held.sizes[0])
    assert int(tally.cells.rows.sum()) == 2 * int(tally.total.rows)  # every row once in each column
