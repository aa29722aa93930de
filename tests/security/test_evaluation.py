"""Evaluation must not reveal the outcome of single patients: the attacker reads events.jsonl, the report or
compare.json.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, guard, pace
from tacit.data import Holdings, Rows
from tacit.engine import evaluation
from tacit.engine.metrics import count
from tacit.engine.subgroups import Tally
from tacit.engine.task import Task
from tacit.errors import BadRun
from tacit.jobs.train.local import Member

FEATURES = 4
SIMULATED = [{"engine": "stack"}, {"engine": "each"}]
HIDDEN = [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg()]


def hospitals(held: list[int], test_rows: int = 0, train_rows: int = 3, seed: int = 0) -> data.Federation:
    """One hospital for each entry of `held`, with that many held-out patients. Outcomes are half noise, so
    that no model gets all of them right.
    """
    rng, train, back, at = np.random.default_rng(seed), [], [], 0
    for n in held:
        train.append(list(range(at, at + train_rows)))
        back.append(list(range(at + train_rows, at + train_rows + n)))
        at += train_rows + n
    x = rng.normal(size=(at + test_rows, FEATURES))
    y = (x[:, 0] + rng.normal(size=len(x)) > 0).astype(np.int64)
    x, y = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
    return data.Federation(
        "hospitals",
        Rows(x[:at], y[:at]),
        Holdings.from_lists(train),
        Holdings.from_lists(back),
        Rows(x[at:], y[at:]),
        2,
        tuple(f"h{k:03d}" for k in range(len(held))),
    )


def run(fed: data.Federation, out: Path, **how: Any) -> tacit.Result:
    return tacit.train(
        fed,
        model="logistic",
        rounds=2,
        batch_size=None,
        out=out,
        **{"algorithm": algorithms.FedAvg(lr=0.5), **how},
    )


def rounds_in(out: Path) -> list[dict[str, Any]]:
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [e for e in events if e["kind"] == "round" and e["round"]]


def attack(fed: data.Federation, result: tacit.Result, told: dict[str, float]) -> int:
    """How many patients' outcomes follow from {hospital: accuracy on its one held-out patient} and that
    patient's features.
    """
    right = 0
    for name, accuracy in told.items():
        (row,) = fed.held.of(fed.parties.index(name))
        with torch.no_grad():
            guess = int(result.model(fed.rows.x[row : row + 1]).argmax())
        right += int(fed.rows.y[row]) == (guess if accuracy > 0.5 else 1 - guess)
    return right


def told_by_events(fed: data.Federation, out: Path) -> dict[str, float]:
    each = rounds_in(out)[-1].get("parties", {}).get("accuracy", [])
    return {name: a for name, a in zip(fed.parties, each) if a is not None}


def told_by_report(fed: data.Federation, page: Path) -> dict[str, float]:
    """All percentages in a table row, or in a mark, with a hospital's name."""
    text = html.unescape(page.read_text())
    found = re.findall(r"\b(h\d{3})\b(?:</t[hd]>\s*<td[^>]*>|: |</?\w+[^>]*>|\s)*([\d.]+)\s?%", text)
    return {name: float(value) / 100 for name, value in found if name in fed.parties}


@pytest.mark.parametrize(
    "how",
    [*SIMULATED, {"runtime": "inprocess"}, {"guard": HIDDEN}],
    ids=["stack", "each", "parties", "SecAgg"],
)
@pytest.mark.parametrize("test_rows", [0, 20], ids=["no test set", "test set"])
def test_with_one_patient_held_out_at_each_of_174_hospitals_nobodys_outcome_is_told(
    tmp_path: Path, how: dict[str, Any], test_rows: int
) -> None:
    """Before `min_rows`: 174 of 174 from events.jsonl, 30 of 30 from the report (which draws up to 40 parties
    one by one), under SecAgg too.
    """
    for n in (174, 30):
        fed = hospitals([1] * n, test_rows)
        result = run(fed, tmp_path / str(n), **how)
        assert attack(fed, result, told_by_events(fed, tmp_path / str(n))) == 0
        assert attack(fed, result, told_by_report(fed, result.report())) == 0
        assert result.fairness() == {}
        assert ("accuracy" in result.metrics) == (
            test_rows > 0 or "guard" in how
        )  # the sum of all, where it is hidden what each adds


def test_the_attack_finds_what_a_federation_chose_to_show(tmp_path: Path) -> None:
    """So that its silence above means something."""
    fed = hospitals([1] * 30)
    result = run(fed, tmp_path / "run", min_rows=1)
    assert attack(fed, result, told_by_events(fed, tmp_path / "run")) == 30
    assert attack(fed, result, told_by_report(fed, result.report())) == 30


@pytest.mark.parametrize("how", [*SIMULATED, {"runtime": "inprocess"}], ids=["stack", "each", "parties"])
def test_figures_begin_at_min_rows_and_the_total_is_of_those_alone(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """Nothing is left to subtract: what all together got right is the sum of what the shown hospitals got
    right.
    """
    held = [4, 5, 6, 0, 20]
    fed = hospitals(held)
    result = run(fed, tmp_path / "run", min_rows=5, **how)
    last = result.history[-1]
    each = last["parties"]["accuracy"]
    assert [a is None for a in each] == [True, False, False, True, False]
    assert last["untested"] == 2
    shown = [(a, n) for a, n in zip(each, held) if a is not None]
    assert last["accuracy"] == pytest.approx(sum(a * n for a, n in shown) / sum(n for _, n in shown))
    assert "small parties (2)" in result.report().read_text()


def flipped(fed: data.Federation, k: int) -> data.Federation:
    """The same, with the other outcome for every held-out patient of hospital k."""
    y = fed.rows.y.clone()
    y[fed.held.of(k)] = 1 - y[fed.held.of(k)]
    return dataclasses.replace(fed, rows=Rows(fed.rows.x, y))


def written(result: tacit.Result) -> Any:
    """All files of a run, without durations and without the description of the simulated data at the start."""
    events = [
        {k: v for k, v in e.items() if k != "seconds"} for e in result.events if e["kind"] in ("round", "end")
    ]
    return events, result.metrics, result.fairness(), result.ledger.to_dict()


KINDS: dict[str, dict[str, Any]] = {
    "stack": {"engine": "stack"},
    "each": {"engine": "each"},
    "parties": {"runtime": "inprocess"},
    "own models": {"algorithm": algorithms.Ditto(lr=0.5)},
    "own models, parties": {"algorithm": algorithms.Ditto(lr=0.5), "runtime": "inprocess"},
    "clusters": {"algorithm": algorithms.CFL(lr=0.5)},
    "clusters, parties": {"algorithm": algorithms.CFL(lr=0.5), "runtime": "inprocess"},
    "pace": {"pace": pace.FedBuff(buffer=2)},
    "pace, parties": {"pace": pace.FedBuff(buffer=2), "runtime": "inprocess"},
    "edges": {"topology": tacit.Hierarchy(edges=2)},
    "clip": {"guard": [guard.Clip(1.0)]},
}


@pytest.mark.parametrize("test_rows", [0, 20], ids=["no test set", "test set"])
@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
def test_nothing_that_is_written_depends_on_the_held_out_outcomes_of_a_small_hospital(
    how: dict[str, Any], test_rows: int
) -> None:
    """The only small one among large ones: the difference of a total over all and of the others would give it
    away.
    """
    fed = hospitals([12, 9, 10, 15], test_rows)
    a, b, c = (
        tacit.train(
            f, model="logistic", rounds=2, batch_size=None, **{"algorithm": algorithms.FedAvg(lr=0.5), **how}
        )
        for f in (fed, flipped(fed, 1), flipped(fed, 2))
    )
    assert written(a) == written(b)
    assert written(a) != written(c)  # ten rows are enough to be reported on


def test_nor_does_what_nodes_without_a_server_show() -> None:
    fed = hospitals([12, 9, 10, 15])
    a, b, c = (
        tacit.gossip(f, graph=tacit.graphs.ring(4), model="logistic", rounds=2)
        for f in (fed, flipped(fed, 1), flipped(fed, 2))
    )
    assert written(a) == written(b)
    assert written(a) != written(c)
    secure = tacit.gossip(fed, graph=tacit.graphs.ring(4), model="logistic", rounds=1, secure=True)
    assert "parties" not in secure.history[-1]


def test_nor_does_a_comparison(tmp_path: Path) -> None:
    fed = hospitals([12, 9, 10, 15])
    told = dict(
        model="logistic",
        algorithms=[algorithms.FedAvg(lr=0.5), algorithms.Ditto(lr=0.5)],
        rounds=2,
        batch_size=None,
    )
    a, b, c = (
        tacit.compare(f, out=tmp_path / name, **told)
        for f, name in ((fed, "a"), (flipped(fed, 1), "b"), (flipped(fed, 2), "c"))
    )
    assert a.summary == b.summary
    assert a.summary != c.summary
    assert (tmp_path / "a" / "compare.json").read_text() == (tmp_path / "b" / "compare.json").read_text()
    assert [written(r) for r in a.results] == [written(r) for r in b.results]


def test_nor_does_a_contribution() -> None:
    fed = hospitals([12, 9, 10, 15])
    a, b, c = (
        tacit.contribution(tacit.train(f, model="logistic", rounds=2)).value
        for f in (fed, flipped(fed, 1), flipped(fed, 2))
    )
    assert a == b
    assert a != c


# hidden sums ------------------------------------------------------------------------------------------------


def swapped(fed: data.Federation) -> data.Federation:
    """The same, with the held-out patients of every hospital at the next one: all sums over hospitals
    stay.
    """
    lists = [fed.held.of(k) for k in range(len(fed))]
    return dataclasses.replace(fed, held=Holdings.from_lists([*lists[1:], lists[0]]))


@pytest.mark.parametrize(
    "stage", [guard.SecAgg(), guard.LightSecAgg(), guard.Encrypt()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_under_a_hidden_sum_it_is_not_told_at_which_hospital_a_patient_is(stage: Any, runtime: str) -> None:
    """Also for large hospitals: only the sum over all of them is shown. Earlier versions also showed each hospital's
    accuracy.
    """
    fed = hospitals([12, 10, 15, 11])
    a, b = (
        tacit.train(
            f,
            model="logistic",
            rounds=1,
            guard=[guard.Clip(1.0), guard.Quantize(bits=8), stage],
            runtime=runtime,
            insecure_seed=1,
            algorithm=algorithms.FedAvg(lr=0.5, weighted=False),
        )
        for f in (fed, swapped(fed))
    )
    (one,), (other,) = a.history, b.history
    assert "parties" not in one
    assert "untested" not in one
    assert one["accuracy"] == other["accuracy"]
    assert one["loss"] == pytest.approx(other["loss"])
    assert a.fairness() == {}


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_own_models_under_a_hidden_sum_have_one_figure_over_all_rows(runtime: str) -> None:
    fed = hospitals([1, 30, 2])
    result = tacit.train(
        fed,
        model="logistic",
        algorithm=algorithms.Ditto(lr=0.5, weighted=False),
        rounds=2,
        guard=HIDDEN,
        runtime=runtime,
    )
    right = sum(
        int((own(fed.rows.x[fed.held.of(k)]).argmax(1) == fed.rows.y[fed.held.of(k)]).sum())
        for k, own in enumerate(result.models().values())
    )
    assert result.metrics["personal_accuracy"] == pytest.approx(right / 33)
    assert "worst_party" not in result.metrics


def test_a_comparison_under_a_hidden_sum_tells_nothing_of_single_hospitals() -> None:
    fed = hospitals([12, 10, 15, 11], test_rows=20)
    found = tacit.compare(fed, model="logistic", rounds=1, guards={"plain": None, "hidden": HIDDEN})
    gain = {g["label"]: g for g in found.summary["gain"]}
    assert all(a is not None for key in ("local_own", "federated_own") for a in gain["plain"][key])
    assert all(a is None for key in ("local_own", "federated_own") for a in gain["hidden"][key])
    assert all("parties" not in row for r in found.results if r.config.get("guard") for row in r.history)


# what a party sends, and what is said of it -----------------------------------------------------------------


def test_a_small_hospital_sends_no_counts_whatever_it_is_asked_to_test() -> None:
    """The party itself refuses; a server cannot lower its limit by asking."""
    fed = hospitals([9, 10])
    task = Task(torch.nn.Linear(FEATURES, 2), *fed.rows)
    down = {"w": task.initial()["w"]}
    small, large = (
        Member(
            fed.parties[k], fed.party(k), task.on(*fed.party(k).at(0)), algorithms.FedAvg(), 0, 1, None, None
        )
        for k in (0, 1)
    )
    assert small.test(0, down) == {}
    assert float(large.test(0, down)["sums"][0]) == 10  # the first number is that of rows
    assert (
        float(small.test(0, down, summed=True)["sums"][0]) == 9
    )  # which only a caller that adds it up under masks asks for


def test_a_server_shows_nothing_of_counts_that_a_party_should_not_have_sent() -> None:
    fed = hospitals([9, 10])
    task = Task(torch.nn.Linear(FEATURES, 2), *fed.rows)
    w = task.initial()["w"]
    answers = {
        fed.parties[k]: Tally(
            count(task.predict(w, fed.rows.x[fed.held.of(k)]), fed.rows.y[fed.held.of(k)], 2)
        )
        for k in (0, 1)
    }
    found = evaluation.gather(task, w, None, fed.test, answers, evaluation.Rules(2, min_rows=10))
    assert found["parties"]["accuracy"][0] is None
    assert found["accuracy"] == found["parties"]["accuracy"][1]
    assert found["untested"] == 1


def test_real_processes_do_the_same() -> None:
    fed = hospitals([9, 10])
    here, there = (
        tacit.train(fed, model="logistic", rounds=1, runtime=runtime) for runtime in ("cohort", "processes")
    )
    assert there.history[-1]["untested"] == here.history[-1]["untested"] == 1
    assert there.history[-1]["parties"] == here.history[-1]["parties"]
    assert there.metrics["accuracy"] == pytest.approx(here.metrics["accuracy"])


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_ledger_plan_and_job_state_the_rule(tmp_path: Path, runtime: str) -> None:
    fed = hospitals([12, 9, 10])
    result = run(fed, tmp_path / "run", min_rows=10, runtime=runtime)
    (line,) = {s.reveals for s in result.ledger.seen if s.kind == "Tested"}
    assert line.startswith("one party's counts on at least 10 held-out rows: ")
    outlook = str(tacit.plan(fed, model="logistic", rounds=2, min_rows=10))
    assert line in outlook
    assert (
        "figures on held-out rows: of each party with at least 10 of them (min_rows); 1 of 3 parties hold "
        "back fewer and report none" in outlook
    )
    assert (
        "figures on held-out rows: of all parties together; the guard hides those of single parties"
        in str(tacit.plan(fed, model="logistic", guard=HIDDEN))
    )
    with pytest.raises(BadRun, match=r"it differs in train\.min_rows"):
        run(fed, tmp_path / "run", min_rows=1, runtime=runtime, resume=True)


def test_a_run_without_any_figure_says_why() -> None:
    result = tacit.train(hospitals([1, 1]), model="logistic", rounds=1)
    assert "accuracy" not in result.metrics
    (note,) = [e["text"] for e in result.events if e["kind"] == "note"]
    assert note.startswith(
        "no loss or accuracy: there are no test rows, and no party holds back at least min_rows=10 rows."
    )


def test_simulation_and_parties_count_the_same_bytes() -> None:
    """A small party's answer is empty, and shorter; the simulated ledger knows."""
    fed = hospitals([12, 9, 10, 0])
    sums = []
    for runtime in ("cohort", "inprocess"):
        seen = tacit.train(fed, model="logistic", rounds=2, runtime=runtime, evaluate_every=2).ledger.seen
        sums.append(
            [sum(getattr(s, what) for s in seen if s.kind == "Tested") for what in ("count", "bytes")]
        )
    assert sums[0] == sums[1]
