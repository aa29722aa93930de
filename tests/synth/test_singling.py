"""Singling out on whole tables: agreement with Anonymeter, warnings that fire, and holdouts of another size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit.synth import privacy, singling
from tacit.synth.evaluate import Evaluation
from tacit.synth.views import View, Views

from .clinic import patients, shuffled
from .leaks import TABLES, load

# risk and 95% interval by Anonymeter 1.1.0, means over five seeds, printed by benchmarks/anonymeter_agree.py
ANONYMETER = {
    "copied": {"multivariate": (0.292, 0.226, 0.358), "univariate": (0.502, 0.458, 0.546)},
    "honest": {"multivariate": (0.007, 0.000, 0.054), "univariate": (0.996, 0.992, 1.000)},
    "towns": {"multivariate": (0.132, 0.079, 0.185), "univariate": (0.062, 0.040, 0.084)},
    "tumors": {"multivariate": (0.000, 0.000, 0.000), "univariate": (0.002, 0.000, 0.009)},
    "diabetes": {"multivariate": (0.630, 0.574, 0.686), "univariate": (0.643, 0.559, 0.727)},
}


def attack(views: Views, seed: int = 0) -> dict:
    return {s.name: s for s in singling.measure(views, np.random.default_rng(seed))}


@pytest.mark.parametrize("name", list(TABLES))
def test_risks_are_within_the_intervals_of_anonymeter(name):
    found = attack(Views(*load(name)))
    for mode, score in (
        ("multivariate", found["singling-out risk"]),
        ("univariate", found["singling-out risk (one column)"]),
    ):
        risk, low, high = ANONYMETER[name][mode]
        assert low - 5e-4 <= score.value <= high + 5e-4, (mode, score.value, risk)


def test_unique_values_of_one_column_are_found_and_warned_about():
    """Issue 22: shuffled columns publish every value of every person, and the old attack found 2%."""
    views = Views(*load("honest"))
    scores = singling.measure(views, np.random.default_rng(0))
    found = Evaluation("shuffled", [privacy.exact_copies(views), *scores], views)
    assert found["singling-out risk"].value < 0.06
    assert found["singling-out risk (one column)"].value > 0.99
    assert set(found["singling-out risk (one column)"].parts) == {"age", "weight", "noise"}
    assert any(w.startswith("singling-out risk (one column) 0.99") for w in found.warnings)


@pytest.mark.parametrize("name", ["copied", "diabetes", "towns"])
def test_a_table_that_leaks_is_warned_about(name):
    views = Views(*load(name))
    found = Evaluation(
        name, [privacy.exact_copies(views), *singling.measure(views, np.random.default_rng(0))], views
    )
    assert any(w.startswith("singling-out risk 0.") for w in found.warnings)


def test_new_rows_of_the_population_single_nobody_out():
    views = Views(patients(1200, 0), patients(1200, 5), patients(1200, 1))
    for score in attack(views).values():
        assert score.interval[0] == 0.0


def test_a_small_holdout_is_extrapolated_to_the_size_of_the_training_table():
    """Predicates of new rows succeed on 1,500 training rows as on 1,500 others. Of 150 rows, the success is
    another one; extrapolated, it is that of 1,500 rows within a third, on five draws of the holdout.
    """
    rng = np.random.default_rng(0)
    synthetic, large = patients(1500, 2), patients(1500, 1)
    views = Views(patients(1500, 0), synthetic, large)
    predicates = singling.multivariate(
        singling.PeopleTable.from_view(View("synthetic", views.synthetic.x)), views, rng
    )
    whole = singling.PeopleTable.from_view(views.holdout)
    true = sum(len(whole.find(p)) == 1 for p in predicates)
    raw, corrected = [], []
    for seed in range(5):
        rows = np.random.default_rng(seed).permutation(1500)[:300]
        small = singling.PeopleTable.from_view(View("small", views.holdout.x[rows]))
        matches = [small.find(p) for p in predicates]
        raw.append(sum(len(m) == 1 for m in matches))
        corrected.append(singling.extrapolate(matches, small.people, 1500, rng))
    assert np.mean(corrected) == pytest.approx(true, rel=0.35)
    assert abs(np.mean(corrected) - true) < abs(np.mean(raw) - true)


def test_a_holdout_larger_than_the_table_is_sampled_down():
    rng = np.random.default_rng(0)
    matches = [np.array([0]), np.array([1, 2]), np.array([], dtype=int)]
    # of 10 people 5 are drawn: P(exactly one) is 1/2, 2 · 5/10 · 5/9 = 5/9, and 0
    # 2,000 draws with a standard deviation of 0.6 each: the mean is known to 0.013; with replacement it is 1
    mean = np.mean([singling.extrapolate(matches, 10, 5, rng) for _ in range(100)])
    assert mean == pytest.approx(1 / 2 + 5 / 9, abs=0.03)
    assert singling.extrapolate(matches, 10, 10, rng) == 1


def test_a_person_with_several_rows_is_singled_out_by_what_only_those_rows_have():
    """Ten people have three rows each, with a value of their own: every such value holds for three rows and one
    person. Counted by rows, none is singled out.
    """
    person = np.repeat(np.arange(10), 3)
    real = pd.DataFrame({"value": [f"p{i}" for i in person], "other": np.tile(list("abc"), 10)})
    made = pd.DataFrame(
        {"value": [f"p{i}" for i in range(10)] + ["q"] * 20, "other": np.tile(list("abc"), 10)}
    )
    control = pd.DataFrame({"value": ["q"] * 30, "other": np.tile(list("abc"), 10)})
    views = Views(real, made, control)
    by_row = attack(views)["singling-out risk (one column)"]
    assert by_row.note.startswith("10 predicates: 0.0% single out a training row")
    views.real.person, views.holdout.person = person, person
    by_person = attack(views)["singling-out risk (one column)"]
    assert by_person.note.startswith("10 predicates: 100.0% single out a training row")


def test_predicates_by_hand():
    """One missing value; 1 and 9 are the ends; 1, 4 and 9 occur once; of the categories, only c."""
    views = Views(
        *[
            pd.DataFrame({"x": [1, 2, 2, 4, 9, np.nan], "k": list("aabbca")}).astype({"k": "category"})
            for _ in range(3)
        ]
    )
    table = singling.PeopleTable.from_view(views.synthetic)
    found = {p[0] for p in singling.univariate(table, views, np.random.default_rng(0))}
    assert found == {
        (0, "∅", 0.0),
        (0, "≤", 1.0),
        (0, "≥", 9.0),
        (0, "=", 1.0),
        (0, "=", 4.0),
        (0, "=", 9.0),
        (1, "=", 2.0),
    }


def test_shuffled_columns_of_categories_alone_have_no_predicate_of_one_column():
    real = pd.DataFrame({"a": list("xy") * 40, "b": list("uuvv") * 20})
    found = attack(Views(real, shuffled(real, 0), real))["singling-out risk (one column)"]
    assert (found.value, found.note) == (0.0, "no predicate singles out a synthetic row")
