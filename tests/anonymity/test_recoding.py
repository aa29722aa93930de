"""Local recoding: Mondrian and clustering."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

import tacit
from tacit.anonymity import Cluster, Flat, LDiversity, Mondrian, TCloseness
from tacit.anonymity.improve import Targets, _find_targets
from tacit.anonymity.release import TableRelease
from tacit.errors import BadData

from .adult import COLUMNS, THREE, adult, files, in_order


def test_clustering_adult_loses_less_than_arxs_local_recoding():
    """ARX 3.9.2, local recoding, 9 quasi-identifiers, k = 5: .0591."""
    made = tacit.anonymize(adult(), quasi=COLUMNS, k=5, hierarchies=files(COLUMNS), method="cluster")
    assert made.loss <= 0.059
    assert made.suppressed == []
    assert int(made.table.groupby(COLUMNS).size().min()) >= 5


def test_improvement_only_improves():
    some = adult().sample(1500, random_state=0)
    greedy, better = (
        tacit.anonymize(some, quasi=COLUMNS, k=5, hierarchies=files(COLUMNS), method=Cluster(rounds=r)).loss
        for r in (0, 12)
    )
    assert better < greedy


def test_targets_kept_between_rounds_are_those_of_a_new_search(monkeypatch):
    """In every round, what was kept from the last one is what comparing everything again gives."""
    kept, rounds = Targets.update, 0

    def update(self, forest, nodes, counts, partition, candidates, home):
        nonlocal rounds
        out = kept(self, forest, nodes, counts, partition, candidates, home)
        every = np.arange(partition.number)
        target, rise = _find_targets(forest, nodes, counts, partition, candidates, home, every)
        assert np.array_equal(out[0], target)
        assert np.array_equal(out[1], rise)
        rounds += 1
        return out

    monkeypatch.setattr(Targets, "update", update)
    some = adult().sample(3000, random_state=0)
    tacit.anonymize(some, quasi=COLUMNS, k=5, hierarchies=files(COLUMNS), method="cluster")
    assert rounds > 2


def test_strict_mondrian_cuts_at_medians():
    """1…8, k = 2: cut at 4, then at 2 and 6."""
    made = tacit.anonymize(pandas.DataFrame({"x": range(1, 9)}), quasi=["x"], k=2, method="mondrian")
    assert in_order(made)["x"].tolist() == ["1 – 2"] * 2 + ["3 – 4"] * 2 + ["5 – 6"] * 2 + ["7 – 8"] * 2
    assert made.loss == pytest.approx(1 / 7)


def test_strict_keeps_equal_values_together_and_relaxed_parts_them():
    frame = pandas.DataFrame({"x": [1, 2, 2, 2, 2, 3]})
    strict = tacit.anonymize(frame, quasi=["x"], k=2, method="mondrian")
    assert strict.table["x"].nunique() == 1
    relaxed = tacit.anonymize(frame, quasi=["x"], k=3, method=Mondrian(strict=False))
    assert in_order(relaxed)["x"].tolist() == ["1 – 2"] * 3 + ["2 – 3"] * 3


def test_a_hierarchy_is_cut_into_children():
    frame = pandas.DataFrame({"b": list("00112222")})
    made = tacit.anonymize(frame, quasi=["b"], k=2, hierarchies={"b": THREE}, method="mondrian")
    assert in_order(made)["b"].tolist() == list("00112222")
    made = tacit.anonymize(frame, quasi=["b"], k=3, hierarchies={"b": THREE}, method="mondrian")
    assert in_order(made)["b"].tolist() == ["low"] * 4 + ["2"] * 4


def test_relaxed_merges_small_children():
    frame = pandas.DataFrame({"c": ["US"] * 10 + ["IT", "FR", "DE"]})
    strict, relaxed = (
        tacit.anonymize(frame, quasi=["c"], k=3, hierarchies={"c": Flat()}, method=Mondrian(strict=s))
        for s in (True, False)
    )
    assert set(strict.table["c"]) == {"*"}
    assert in_order(relaxed)["c"].tolist() == ["US"] * 10 + ["*"] * 3


@pytest.mark.parametrize(
    "method", [Mondrian(), Mondrian(strict=False), Cluster(), "optimal", "datafly"], ids=str
)
def test_every_method_that_takes_models_satisfies_several_at_once(method):
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "x": rng.integers(0, 50, 400),
            "y": rng.choice(list("abc"), 400),
            "s": rng.choice(list("pqrs"), 400, p=[0.5, 0.3, 0.15, 0.05]),
        }
    )
    models = [LDiversity(2.0, kind="entropy"), TCloseness(0.35)]
    made = tacit.anonymize(
        frame, quasi=["x", "y"], sensitive=["s"], k=4, l=3, models=models, method=method, max_suppressed=0.1
    )
    overall = frame["s"].value_counts(normalize=True)
    for _, group in made.table.groupby(["x", "y"]):
        p = group["s"].value_counts(normalize=True)
        assert len(group) >= 4
        assert len(p) >= 3
        assert -(p * np.log(p)).sum() >= np.log(2) - 1e-9
        assert (p.reindex(overall.index, fill_value=0) - overall).abs().sum() / 2 <= 0.35 + 1e-9
    assert len(made.suppressed) <= 40


def test_a_request_the_whole_table_fails_is_refused():
    frame = pandas.DataFrame({"x": range(6), "s": ["flu"] * 6})
    with pytest.raises(BadData, match="The whole table as one class violates the privacy models"):
        tacit.anonymize(frame, quasi=["x"], sensitive=["s"], k=2, l=2, method="mondrian")
    with pytest.raises(BadData, match="The whole table as one class violates the privacy models"):
        tacit.anonymize(frame, quasi=["x"], sensitive=["s"], k=2, l=2, method="cluster")


def test_a_table_that_fails_its_models_is_never_returned(monkeypatch):
    """Were an algorithm wrong, the job would see it in the release itself."""

    def wrong(self, table, request):
        return TableRelease(table.inverse, [table.codes[:, 0]], [table.columns[0].words[0]], 0.0, [0])

    monkeypatch.setattr(Mondrian, "run", wrong)
    with pytest.raises(RuntimeError, match="6 classes of the anonymized table violate a privacy model"):
        tacit.anonymize(pandas.DataFrame({"x": range(6)}), quasi=["x"], k=2, method="mondrian")


def test_thousands_of_codes_need_no_table_of_all_pairs():
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"zip": [f"{z:05d}" for z in rng.integers(10000, 99999, 6000)], "sex": rng.choice(["M", "F"], 6000)}
    )
    made = tacit.anonymize(frame, quasi=["zip", "sex"], k=5, method=Cluster(rounds=1, block=1500))
    assert int(made.table.groupby(["zip", "sex"]).size().min()) >= 5
    assert made.loss < 0.01
