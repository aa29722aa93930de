from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadData
from tacit.synth import utility
from tacit.synth.views import Views

from .clinic import patients, shuffled


def measured(made: pd.DataFrame, target: str = "ill", real: pd.DataFrame | None = None) -> dict:
    views = Views(patients(800, 0) if real is None else real, made, patients(800, 1))
    return {s.name: s for s in utility.measure(views, target, np.random.default_rng(0))}


def test_fresh_rows_teach_as_much_as_the_real_ones_and_shuffled_rows_nothing():
    fresh, bad = measured(patients(800, 2)), measured(shuffled(patients(800, 0), 3))
    for model in utility.MODELS:
        good = fresh[f"TSTR {model}"]
        assert good.value > good.reference - 0.05
        assert good.reference > 0.75
        assert abs(bad[f"TSTR {model}"].value - 0.5) < 0.12
    assert fresh["importance agreement"].value > bad["importance agreement"].value
    assert fresh["workload error"].value < 0.5 * bad["workload error"].value + 0.05


def test_a_number_is_predicted_by_regression():
    found = measured(patients(800, 2), "weight")
    assert found["TSTR ridge regression"].value == pytest.approx(
        found["TSTR ridge regression"].reference, abs=0.1
    )
    assert found["TSTR ridge regression"].reference > 0.15
    assert measured(shuffled(patients(800, 0), 3), "weight")["TSTR ridge regression"].value < 0.1


def test_many_classes_are_scored_one_against_the_rest():
    real = patients(800, 0)
    found = measured(real.copy(), "smokes")
    assert 0.4 < found["TSTR gradient boosting"].value < 0.8


def test_a_synthetic_table_with_one_class_teaches_nothing_and_says_half():
    made = patients(300, 2)
    made["ill"] = "no"
    assert all(s.value == 0.5 for n, s in measured(made).items() if n.startswith("TSTR"))


def test_without_a_target_only_the_workload_is_measured():
    views = Views(patients(200, 0), patients(200, 2), patients(200, 1))
    assert [s.name for s in utility.measure(views, None, np.random.default_rng(0))] == ["workload error"]


def test_a_target_that_cannot_be_one_is_refused():
    real = patients(100, 0).assign(ill="no")
    with pytest.raises(BadData, match="the target 'ill' has a single value in the real table"):
        measured(patients(100, 2), "ill", real)
    with pytest.raises(BadData, match=r"there is no column 'il'. Did you mean 'ill'\?"):
        measured(patients(100, 2), "il")


def test_the_workload_error_of_a_table_against_itself_is_that_of_the_real_one():
    real = patients(500, 0)
    found = measured(real.copy(), "ill", real)["workload error"]
    assert found.value == found.reference
