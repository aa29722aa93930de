from __future__ import annotations

import math

import pytest

from tacit.report import numbers


def test_mean_and_standard_error_by_hand() -> None:
    """Of 1, 2, 3: mean 2, variance 1, standard error sqrt(1/3)."""
    mean, error = numbers.mean_error([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert error == pytest.approx(math.sqrt(1 / 3))
    assert numbers.mean_error([0.5]) == (0.5, None)
    assert math.isnan(numbers.mean_error([1.0, math.nan])[0])
    assert math.isnan(numbers.mean_error([1.0, "nan"])[0])


def test_worst_decile_has_a_tenth_of_the_known_values_and_at_least_one() -> None:
    assert numbers.worst_decile([0.9, None, 0.2, 0.5]) == [2]
    assert len(numbers.worst_decile([k / 100 for k in range(100)])) == 10
    assert len(numbers.worst_decile([k / 100 for k in range(11)])) == 2
    assert numbers.worst_decile([None, math.nan]) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_999, "1 MB"), (2.5e9, "2.5 GB"), (math.nan, "–")],
)
def test_sizes_read_as_on_a_bill(value: float, said: str) -> None:
    assert numbers.size(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(1e-5, "1e-5"), (0.31299, "0.313"), (1234.4, "1,234"), (1e30, "1e30"), (None, "–"), (0, "0")],
)
def test_three_significant_digits(value: float, said: str) -> None:
    assert numbers.significant(value) == said


def test_names_are_listed_then_counted() -> None:
    assert numbers.names(["a"]) == "a"
    assert numbers.names(["a", "b", "c"]) == "a, b and c"
    assert numbers.names([str(k) for k in range(1000)], 2) == "0, 1 and 998 more"


def test_figures_carry_their_error_or_say_that_they_diverged() -> None:
    assert numbers.plus_minus("accuracy", 0.9134, 0.004) == "91.3 ± 0.4%"
    assert numbers.plus_minus("loss", 0.5) == "0.5"
    assert numbers.plus_minus("loss", math.nan) == "diverged"
    assert numbers.format_seconds(7265) == "2 h 1 min"
