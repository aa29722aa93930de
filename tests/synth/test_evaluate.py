"""The evaluation as a user sees it: facets side by side, utility never without the copies, and a score that
copying cannot win.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit import synth
from tacit.errors import BadData, BadParameter
from tacit.synth import evaluate, rank
from tacit.synth.evaluate import PRIVACY_CHECKS

from .clinic import patients, shuffled

REAL, HELD = patients(500, 0), patients(500, 1)


@pytest.fixture(scope="module")
def seen() -> dict[str, synth.Evaluation]:
    tables = {
        "bootstrap": REAL.sample(500, replace=True, random_state=1).reset_index(drop=True),
        "fresh": patients(500, 2),
        "shuffled": shuffled(REAL, 3),
    }
    return {
        name: evaluate(REAL, made, holdout=HELD, target="ill", name=name) for name, made in tables.items()
    }


def test_a_copy_wins_fidelity_and_loses_privacy_and_both_are_in_one_table(seen):
    """The trap: a quality score that rewards copying. The bootstrap's score is as good as fresh rows', and
    the table says at what price.
    """
    copy, fresh = seen["bootstrap"], seen["fresh"]
    assert copy["quality score"].value > 0.95
    assert copy["quality score"].value >= fresh["quality score"].value
    table = copy.table()
    assert table.loc[("privacy", "exact copies"), "value"] == 1
    assert table.loc[("privacy", "membership AUC"), "low"] > 0.7
    assert (
        "100.0% of the synthetic rows are copies of training rows, compared with 0.0% of unseen real rows."
        in copy.warnings
    )
    assert any(w.startswith("membership AUC") and "better than chance" in w for w in copy.warnings)
    assert not any("copies of training" in w for w in fresh.warnings)


def test_utility_is_never_shown_without_the_copies_and_the_membership(seen):
    for evaluation in seen.values():
        shown = evaluation.table("utility")
        assert set(PRIVACY_CHECKS) <= set(shown.index.get_level_values("metric"))
        text = str(evaluation)
        assert ("TSTR" in text) == ("exact copies" in text) == ("membership AUC" in text)
    without = evaluate(REAL, patients(500, 2), target="ill")
    assert not [s for s in without.scores if s.metric.facet == "utility"]
    assert "exact copies" in str(without)
    assert without.warnings == [
        "Without a holdout no attack was run and no utility computed: give holdout=…."
    ]


def test_there_is_no_number_over_all_facets(seen):
    table = seen["fresh"].table()
    assert list(table.columns) == ["value", "low", "high", "real", "range", "better"]
    assert set(table.index.get_level_values("facet")) == {"fidelity", "utility", "privacy"}
    assert not [s for s in seen["fresh"].scores if s.metric.facet not in ("fidelity", "utility", "privacy")]
    assert list(rank(list(seen.values())).columns) == ["fidelity", "utility", "privacy"]


def test_generators_are_ranked_within_each_facet(seen):
    """Copies come first in fidelity and last in privacy; shuffled columns last in utility."""
    ranks = rank(list(seen.values()))
    assert ranks["privacy"].idxmax() == "bootstrap"
    assert ranks["utility"].idxmax() == "shuffled"
    assert ranks.loc["bootstrap", "fidelity"] < ranks.loc["shuffled", "fidelity"]
    each = rank(list(seen.values()), detail=True)
    assert each["privacy", "exact copies"].to_dict() == {"bootstrap": 3.0, "fresh": 1.5, "shuffled": 1.5}
    assert each["fidelity", "detection AUC"]["shuffled"] == 3
    assert np.allclose(each.sum(), 6)


def test_weights_say_what_matters_for_a_use(seen):
    alone = {
        name: 0.0 for _, name in rank(list(seen.values()), detail=True).columns if name != "exact copies"
    }
    ranks = rank(list(seen.values()), weights=alone)
    assert list(ranks.columns) == ["privacy"]
    assert ranks["privacy"].to_dict() == {"bootstrap": 3.0, "fresh": 1.5, "shuffled": 1.5}
    with pytest.raises(
        BadData,
        match=r"rank: there is no metric 'exact copie' in all evaluations. Did you mean 'exact copies'\?",
    ):
        rank(list(seen.values()), weights={"exact copie": 1.0})
    with pytest.raises(
        BadParameter, match="the weight of 'moments' is -1; it must be a number of at least 0"
    ):
        rank(list(seen.values()), weights={"moments": -1})


def test_ranking_needs_two_with_names_of_their_own(seen):
    with pytest.raises(BadData, match="there is one evaluation; give at least two to compare"):
        rank([seen["fresh"]])
    with pytest.raises(
        BadData, match=r"two evaluations are called 'fresh'. Give each a name: evaluate\(…, name='CTGAN'\)."
    ):
        rank([seen["fresh"], seen["fresh"]])


def test_the_same_seed_gives_the_same_figures(seen):
    again = evaluate(REAL, patients(500, 2), holdout=HELD, target="ill", name="fresh")
    pd.testing.assert_frame_equal(again.table(), seen["fresh"].table())


def test_columns_may_come_in_another_order_with_identifiers_and_missing_values():
    rng = np.random.default_rng(0)
    real, made, held = (patients(200, k) for k in range(3))
    for frame in (real, made, held):
        frame.insert(0, "id", [f"p{k}" for k in rng.permutation(10_000)[: len(frame)]])
        frame.loc[rng.permutation(200)[:20], "age"] = np.nan
        frame.loc[rng.permutation(200)[:20], "smokes"] = None
        frame["born"] = pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 20_000, len(frame)), "D")
    found = evaluate(real, made[made.columns[::-1]], holdout=held, target="ill")
    assert "id" not in found["KS complement"].parts
    assert {"age", "born"} <= set(found["KS complement"].parts)
    assert found["exact copies"].value == 0


def test_a_column_that_is_all_missing_stops_nothing(tmp_path):
    tables = [patients(60, k).assign(gone=np.nan, never=pd.NaT) for k in range(3)]
    found = evaluate(tables[0], tables[1], holdout=tables[2], target="ill")
    assert all(np.isfinite(s.value) for s in found.scores)
    assert found.report(tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"synthetic": REAL.drop(columns="age")},
            BadData,
            "the synthetic table has no column 'age', which the real one has.",
        ),
        (
            {"synthetic": REAL.iloc[:1]},
            BadData,
            "the synthetic table has 1 row; at least 2 are needed.",
        ),
        ({"synthetic": [[1]]}, BadData, "the synthetic table is a list; expected a pandas DataFrame."),
        ({"target": "sick"}, BadData, "there is no column 'sick'."),
        ({"keys": []}, BadParameter, "keys is []; it must be a list of at least one column."),
        ({"keys": ["ages"]}, BadData, "there is no column 'ages'. Did you mean 'age'?"),
        ({"seed": -1}, BadParameter, "seed is -1; it must be a whole number of at least 0."),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, error, says):
    with pytest.raises(error) as caught:
        evaluate(REAL, **{"synthetic": HELD, "holdout": HELD, **arguments})
    assert says in str(caught.value)


def test_a_score_that_is_not_there_is_named(seen):
    with pytest.raises(BadData, match=r"there is no score 'speed' in this evaluation. It has: quality score"):
        seen["fresh"]["speed"]
    with pytest.raises(
        BadParameter, match=r"facet is 'speed'; it must be one of 'fidelity', 'utility', 'privacy'"
    ):
        seen["fresh"].table("speed")
