"""Thresholds on a figure of the whole table: average risk and population uniques, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.anonymity import AverageRisk, KAnonymity, PopulationUniqueness, population
from tacit.anonymity.classes import Classes
from tacit.anonymity.models import check_models
from tacit.anonymity.table import encode
from tacit.errors import BadData, BadParameter
from tacit.parameters import check

from .adult import BITS, THREE, adult, files

HIERARCHIES = {"a": BITS, "b": THREE, "c": BITS}
TABLES = st.lists(
    st.tuples(st.sampled_from("01"), st.sampled_from("012"), st.sampled_from("01")), min_size=2, max_size=9
)


def classes(sizes: list[int]) -> Classes:
    frame = pandas.DataFrame({"q": [str(i) for i, n in enumerate(sizes) for _ in range(n)]})
    table = encode(frame, ["q"], {})
    label = np.array([int(table.columns[0].hierarchy.values[c]) for c in table.codes[:, 0]])
    return table.partition(label, len(sizes))


def test_average_risk_leaves_out_the_fewest_of_the_smallest():
    """Sizes 1, 1, 2, 4, 8: 5/16 in all; without the ones 3/14 = .214; without the two 2/12 = .167; the eight
    alone .125.
    """
    made = classes([1, 1, 2, 4, 8])
    for most, kept in (
        (5 / 16, [1, 1, 1, 1, 1]),
        (0.3, [0, 0, 1, 1, 1]),
        (0.2, [0, 0, 0, 1, 1]),
        (0.15, [0, 0, 0, 0, 1]),
        (0.1, [0, 0, 0, 0, 0]),
    ):
        assert AverageRisk(most).holds(made).astype(int).tolist() == kept, most
    assert check_models((KAnonymity(3), AverageRisk(0.15)), made).astype(int).tolist() == [0, 0, 0, 0, 1]


def test_average_risk_in_a_population_is_the_marketers():
    made = classes([1, 1, 2, 4, 8])
    sizes = np.array([1, 1, 2, 4, 8])
    mean = float(sizes @ population.class_risk(sizes, 1000)) / 16
    assert AverageRisk(mean + 1e-9, population_size=1000).holds(made).all()
    assert not AverageRisk(mean - 1e-9, population_size=1000).holds(made).all()
    assert mean == pytest.approx(
        tacit.risk(
            *[pandas.DataFrame({"q": [str(i) for i, n in enumerate(sizes) for _ in range(n)]})] * 2,
            ["q"],
            population_size=1000,
        ).after.marketer
    )


@pytest.mark.parametrize("model", list(population.MODELS))
def test_population_uniques_are_estimated_as_the_report_does_and_the_uniques_go_where_they_are_too_many(
    model,
):
    rng = np.random.default_rng(1)
    sizes = rng.geometric(0.35, 300)
    made = classes(sizes.tolist())
    rows = int(sizes.sum())
    share = population.MODELS[model](population.sample_of(sizes, 3 * rows)).share
    if math.isnan(share):  # no fit: nobody knows, so the uniques go
        assert (PopulationUniqueness(3 * rows, 1.0, model).holds(made) == (sizes > 1)).all()
        return
    assert 0 < share < 1
    assert PopulationUniqueness(3 * rows, share + 1e-9, model).holds(made).all()
    assert (PopulationUniqueness(3 * rows, share - 1e-9, model).holds(made) == (sizes > 1)).all()


@settings(max_examples=60, deadline=None)
@given(
    rows=TABLES,
    limit=st.sampled_from([0.0, 0.34, 1.0]),
    most=st.sampled_from([0.2, 0.35, 0.5]),
    uniques=st.booleans(),
)
def test_the_optimum_under_a_threshold_equals_brute_force(rows, limit, most, uniques):
    """Every node by pandas: classes are left out from the smallest until the figure holds; of what may be
    suppressed, the least loss.
    """
    frame = pandas.DataFrame(rows, columns=list("abc"))
    n = len(frame)
    model = PopulationUniqueness(4 * n, most / 10, "zayatz") if uniques else AverageRisk(most)

    def fine(sizes):
        if not uniques:
            return len(sizes) / sum(sizes) <= most
        return (
            1 not in sizes
            or population.zayatz(population.sample_of(np.array(sizes), 4 * n)).share <= most / 10
        )

    found = []
    for levels in itertools.product(range(2), range(3), range(2)):
        shown = pandas.DataFrame(
            {c: [HIERARCHIES[c].generalize(v, level) for v in frame[c]] for c, level in zip("abc", levels)}
        )
        groups = sorted(shown.groupby(list("abc")).indices.values(), key=len)
        while groups and not fine([len(g) for g in groups]):
            groups = [g for g in groups if len(g) > len(groups[0])]
        kept = {i for g in groups for i in g}
        if n - len(kept) <= limit * n + 1e-9:
            cells = [
                (HIERARCHIES[c].levels[level].count(shown[c][i]) - 1) / (len(HIERARCHIES[c]) - 1)
                if i in kept
                else 1.0
                for c, level in zip("abc", levels)
                for i in range(n)
            ]
            found.append(sum(cells) / (3 * n))
    ask = dict(
        quasi=list("abc"),
        k=None,
        models=[model],
        hierarchies=HIERARCHIES,
        method="optimal",
        max_suppressed=limit,
    )
    if found:
        assert tacit.anonymize(frame, **ask).loss == pytest.approx(min(found), abs=1e-9)
    else:
        with pytest.raises(BadData, match="suppressed"):
            tacit.anonymize(frame, **ask)


def test_adult_with_few_population_uniques_costs_less_than_with_none():
    """Adult as a sample of 300,000 people, and at most one in 500 of them unique: what the report then
    estimates is below it.
    """
    quasi = ["sex", "age", "race", "marital-status"]
    ask = dict(quasi=quasi, hierarchies=files(quasi), method="optimal", max_suppressed=0.04)
    few = tacit.anonymize(adult()[quasi], k=None, models=[PopulationUniqueness(300_000, 0.002)], **ask)
    none = tacit.anonymize(adult()[quasi], k=2, **ask)
    left = tacit.risk(adult()[quasi], few, population_size=300_000)
    assert left.after.uniques / 300_000 <= 0.002
    assert few.loss < none.loss
    fly = tacit.anonymize(
        adult()[quasi],
        k=None,
        models=[AverageRisk(0.01)],
        quasi=quasi,
        hierarchies=files(quasi),
        method="datafly",
        max_suppressed=0.04,
    )
    assert tacit.risk(adult()[quasi], fly).after.prosecutor.average <= 0.01


@pytest.mark.parametrize("method", ["mondrian", "cluster"])
def test_methods_that_make_one_class_at_a_time_refuse_thresholds(method):
    with pytest.raises(
        BadParameter,
        match=f"method is '{method}'; it must be 'optimal', 'datafly' or Fixed.* for AverageRisk",
    ):
        tacit.anonymize(
            pandas.DataFrame({"a": list("0011")}),
            quasi=["a"],
            k=None,
            models=[AverageRisk(0.5)],
            method=method,
        )


def test_a_population_smaller_than_its_sample_is_refused():
    with pytest.raises(
        BadParameter,
        match="PopulationUniqueness: population_size is 2; it must be at least 4, the rows of the table",
    ):
        tacit.anonymize(
            pandas.DataFrame({"a": list("0012")}), quasi=["a"], k=None, models=[PopulationUniqueness(2)]
        )
    with pytest.raises(
        BadParameter, match="AverageRisk: most is 0; it must be a number above 0 and at most 1"
    ):
        check(AverageRisk(0))
