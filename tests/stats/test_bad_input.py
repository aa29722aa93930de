"""Statistics that are asked in a wrong way: one clear error that names the value and what is allowed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadData, BadParameter

S = tacit.stats
RNG = np.random.default_rng(0)


def part(n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": RNG.integers(20, 90, n).astype(float),
            "sex": RNG.choice(["f", "m"], n),
            "sick": RNG.integers(0, 2, n),
            "week": RNG.integers(1, 50, n),
            "same": "x",
        }
    )


FED = {"north": part(60), "south": part(40), "west": part(30)}
TIMES = {"time": "week", "event": "sick"}


@pytest.mark.parametrize("formula", [None, 3, "", ["sick", "age"]])
@pytest.mark.parametrize("model", ["glm", "gee", "mixed", "cox"])
def test_a_formula_is_a_text(model, formula):
    with pytest.raises(BadParameter, match="expected a text like 'death ~ age"):
        getattr(S, model)(FED, formula, **(TIMES if model == "cox" else {}))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: S.glm(FED, "sick ~ age | sex"), r"has several parts \('\|'\)"),
        (lambda: S.cox(FED, "age | sex", **TIMES), r"has several parts \('\|'\)"),
        (lambda: S.glm(FED, "sick ~ C(sex, Treatment('m'))"), r"instead of patsy's Treatment, write contr\.treat"),
        (lambda: S.glm(FED, "sick ~ C(sex, Sum)"), r"instead of Sum, write contr\.sum"),
        (lambda: S.glm(FED, "sick ~ age", weights=3), "weights is 3; it must be the name of a column"),
        (lambda: S.glm(FED, "sick ~ sex", levels={"sxe": ["f", "m"]}), "levels is .'sxe'.*Did you mean 'sex'"),
        (lambda: S.cox(FED, "sex", levels={"arm": ["a", "b"]}, **TIMES), "levels of columns that the query uses"),
        (lambda: S.kaplan_meier(FED, levels={"arm": ["a"]}, **TIMES), "levels of columns that the query uses"),
        (lambda: S.glm(FED, "sick ~ age", min_count=0), "min_count is 0"),
        (lambda: S.cox(FED, "age", time="week", event="sick", strata=3), "strata is 3"),
        (lambda: S.kaplan_meier(FED, time=None, event=""), "(?s)time is None.*event is ''"),
        (lambda: S.kaplan_meier(FED, by=3, **TIMES), "by is 3; it must be the name of a column"),
        (lambda: S.kaplan_meier(FED, grid="days", **TIMES), "grid is 'days'; it must be a width above 0"),
        (lambda: S.kaplan_meier(FED, time=3, event="sick", epsilon=1.0, grid=[1]), "time is 3"),
        (lambda: S.logrank(FED, by=None, **TIMES), "by is None"),
        (lambda: S.aalen_johansen(FED, cause=1, causes=None, **TIMES), "causes is None; it must be a list"),
        (lambda: S.describe(FED, "age"), r"columns is 'age'; it must be a list of columns: \['age'\]"),
        (lambda: S.describe(FED, by=["sex"]), r"a column is \['sex'\]; it must be the name of a column"),
        (lambda: S.describe(FED, quantiles=0.5), "quantiles is 0.5; it must be numbers between 0 and 1"),
        (lambda: S.describe({}), "at least one party"),
        (lambda: S.correlation(FED, "age"), "columns is 'age'"),
        (lambda: S.quantile(FED, "age", None), "quantiles is None"),
        (lambda: S.histogram(FED, "age", (0, 100), min_count=0), "min_count is 0"),
        (lambda: S.crosstab(FED, "sex", "sick", min_count=-1), "min_count is -1"),
    ],
)  # fmt: skip
def test_bad_options(call, words):
    with pytest.raises(BadParameter, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: S.glm(FED, "sick ~ same"), "fewer than two levels at all parties together. Leave it out"),
        (lambda: S.kaplan_meier(FED, time="week", event="sex"), "It is text, 'f' and 'm'"),
    ],
)
def test_bad_columns(call, words):
    with pytest.raises(BadData, match=words):
        call()


def with_column(name, values):
    return {k: v.assign(**{name: values(v)}) for k, v in FED.items()}


TEXTS = with_column("lab", lambda v: [*(v["age"] + v["week"] / 64)[:-1], "n/a"])
DATES = with_column("day", lambda v: pd.date_range("2020-01-01", periods=len(v)))
INFINITE = with_column("dose", lambda v: [*v["age"][:-1], np.inf])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: S.glm(TEXTS, "sick ~ lab"), "'lab': nearly all of its values are numbers, and some are text"),
        (lambda: S.cox(TEXTS, "lab", **TIMES), "'lab': nearly all of its values are numbers"),
        (lambda: S.describe(TEXTS), "Nearly all values of 'lab' are numbers, but 'n/a' is not: replace such cells"),
        (lambda: S.glm(DATES, "sick ~ day"), "column 'day' contains dates. Turn it into a number"),
        (lambda: S.describe(DATES), "'day' contains dates: turn it into a number"),
        (lambda: S.glm(INFINITE, "sick ~ dose"), "column 'dose' has infinite values. Replace or remove them"),
        (lambda: S.cox(INFINITE, "age + dose", **TIMES), "column 'dose' has infinite values"),
        (lambda: S.glm(FED, "sick ~ 0"), "'sick ~ 0' has no terms and no intercept"),
        (lambda: S.glm(FED, "sick ~ ."), "'.' for all columns is not allowed.*Name them"),
        (
            lambda: S.describe({k: v.rename(columns={"age": 3}) for k, v in FED.items()}),
            "'north': column 3 has no text as its name",
        ),
    ],
)  # fmt: skip
def test_cells_and_formulas_of_real_tables(call, words):
    with pytest.raises((BadData, BadParameter), match=words):
        call()


@pytest.mark.parametrize(
    "formula", ["sick ~ log(age - 50)", "sick ~ age + log(age - age)", "sick ~ np.sqrt(30 - age)"]
)
@pytest.mark.parametrize("model", ["glm", "cox"])
def test_a_formula_that_gives_no_number_in_some_row_is_refused(model, formula):
    """Rows with NaN were left out of the matrix alone, so that numpy found arrays of different lengths."""
    options = TIMES if model == "cox" else {}
    with pytest.raises(BadData, match="gives NaN or infinite values in rows of a party"):
        getattr(S, model)(FED, formula if model == "glm" else formula.removeprefix("sick ~ "), **options)


def test_a_formula_may_have_no_value_for_other_numbers_than_those_of_the_parties():
    """Before the rows are read, columns are made of ones: log(1 - 10) is NaN."""
    fit = S.glm(FED, "sick ~ log(age - 10)")
    logs = {name: table.assign(log=np.log(table["age"] - 10)) for name, table in FED.items()}
    np.testing.assert_allclose(fit.summary(), S.glm(logs, "sick ~ log").summary())
