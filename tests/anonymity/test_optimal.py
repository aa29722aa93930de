from __future__ import annotations

import itertools
import math

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.anonymity import LDiversity, TCloseness, losses
from tacit.errors import BadData, BadParameter

from .adult import BITS, COLUMNS, THREE, adult, files, in_order


@pytest.mark.parametrize(
    ("left_out", "limit", "loss", "levels", "classes", "suppressed"),
    [
        ([], 0.04, 0.2928, [0, 3, 0, 1, 1, 1, 1, 2, 0], 370, 1178),
        (["occupation"], 0.04, 0.2044, None, None, None),
        (COLUMNS[4:], 0.04, 0.0255, None, None, None),
        ([], 0.0, 0.6355, None, None, 0),
        ([], 1.0, 0.2277, None, None, None),
    ],
)
def test_the_optimum_on_adult_is_arxs(left_out, limit, loss, levels, classes, suppressed):
    """ARX 3.9.2, k = 5: the same loss for the same columns and limit."""
    quasi = [c for c in COLUMNS if c not in left_out]
    made = tacit.anonymize(
        adult(), quasi=quasi, k=5, hierarchies=files(quasi), method="optimal", max_suppressed=limit
    )
    assert round(made.loss, 4) == loss
    assert levels is None or list(made.levels.values()) == levels
    assert classes is None or made.classes == classes
    assert suppressed is None or len(made.suppressed) == suppressed
    assert len(made.table) + len(made.suppressed) == 30162
    assert int(made.table.groupby(quasi).size().min()) >= 5
    chosen = [v for v in made.lattice if v.levels == tuple(made.levels.values())]
    assert len(chosen) == 1
    assert chosen[0].anonymous
    assert chosen[0].loss == made.loss == min(v.loss for v in made.lattice if v.loss is not None)


def test_half_of_adults_rows_are_unique():
    assert round(float((adult().value_counts() == 1).sum() / 30162), 3) == 0.514


TABLES = st.lists(
    st.tuples(st.sampled_from("01"), st.sampled_from("012"), st.sampled_from("01"), st.sampled_from("ab")),
    min_size=3,
    max_size=9,
)
HIERARCHIES = {"a": BITS, "b": THREE, "c": BITS}


def every_node(rows, k, fine):
    """Levels, published words by column, kept rows and classes of every node, in plain Python."""
    columns = dict(zip("abc", zip(*rows)))
    for levels in itertools.product(range(2), range(3), range(2)):
        shown = {
            c: [HIERARCHIES[c].generalize(v, level) for v in columns[c]] for c, level in zip("abc", levels)
        }
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, words in enumerate(zip(*shown.values())):
            groups.setdefault(words, []).append(i)
        published, before = [g for g in groups.values() if len(g) >= k], -1
        while len(published) != before:  # what is suppressed changes the table that a class is compared with
            before, table = len(published), np.array([rows[j][3] for g in published for j in g])
            published = [g for g in published if fine(np.array([rows[j][3] for j in g]), table)]
        kept = {i for g in published for i in g}
        yield levels, shown, kept, list(groups.values())


def price(metric, rows, levels, shown, kept, groups, k):
    """The five metrics from their definitions."""
    n, gone = len(rows), len(rows) - len(kept)
    if metric == "discernibility":
        return (sum(len(g) ** 2 for g in groups if set(g) <= kept) + gone * n) / n**2
    if metric == "class_size":
        return n / (sum(set(g) <= kept for g in groups) + (gone > 0)) / k
    total, most = 0.0, 0.0
    for c, level, values in zip("abc", levels, zip(*rows)):
        h = HIERARCHIES[c]
        for i in range(n):
            word = shown[c][i]
            if metric == "loss":
                total += (h.levels[level].count(word) - 1) / (len(h) - 1) if i in kept else 1.0
                most += 1
            elif metric == "height":
                total += level / h.height if i in kept else 1.0
                most += 1
            else:
                alike = values.count(values[i])
                total += math.log2((shown[c].count(word) if i in kept else n) / alike)
                most += math.log2(n / alike)
    return total / most if most else 0.0


@pytest.mark.filterwarnings(
    "ignore:.*differs in every row:tacit.anonymity.IdentifierWarning"
)  # tables of two rows
@pytest.mark.parametrize("metric", losses.METRICS)
@settings(max_examples=60, deadline=None)
@given(rows=TABLES, k=st.integers(1, 3), limit=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_full_domain_with_suppression_equals_brute_force(metric, rows, k, limit):
    frame = pandas.DataFrame(rows, columns=["a", "b", "c", "s"])
    found = [
        price(metric, rows, *node, k)
        for node in every_node(rows, k, lambda s, _: True)
        if len(frame) - len(node[2]) <= limit * len(frame) + 1e-9
    ]
    made = tacit.anonymize(
        frame,
        quasi=["a", "b", "c"],
        k=k,
        hierarchies=HIERARCHIES,
        method="optimal",
        max_suppressed=limit,
        metric=metric,
    )
    assert made.loss == pytest.approx(min(found), abs=1e-9)


@pytest.mark.filterwarnings("ignore:.*a single value:tacit.anonymity.HomogeneityWarning")
@settings(max_examples=60, deadline=None)
@given(
    rows=TABLES,
    limit=st.sampled_from([0.0, 0.34, 0.67]),
    kind=st.sampled_from(["distinct", "entropy", "recursive", "t"]),
)
def test_other_models_equal_brute_force_also_where_suppression_is_not_monotone(rows, limit, kind):
    frame = pandas.DataFrame(rows, columns=["a", "b", "c", "s"])
    tests = {
        "distinct": (LDiversity(2), lambda s, _: len(set(s)) >= 2),
        "entropy": (LDiversity(1.8, kind="entropy"), lambda s, _: _entropy(s) >= np.log(1.8) - 1e-12),
        "recursive": (LDiversity(2, kind="recursive", c=1.5), lambda s, _: max(_two(s)) < 1.5 * min(_two(s))),
        "t": (
            TCloseness(0.2),
            lambda s, table: abs((s == "a").mean() - (table == "a").mean()) <= 0.2 + 1e-12,
        ),
    }
    model, fine = tests[kind]
    found = [
        price("loss", rows, *node, 2)
        for node in every_node(rows, 2, fine)
        if len(frame) - len(node[2]) <= limit * len(frame) + 1e-9
    ]
    ask = dict(
        quasi=["a", "b", "c"],
        sensitive=["s"],
        k=2,
        models=[model],
        hierarchies=HIERARCHIES,
        method="optimal",
        max_suppressed=limit,
    )
    if found:
        made = tacit.anonymize(frame, **ask)
        assert made.loss == pytest.approx(min(found), abs=1e-9)
    else:
        with pytest.raises(BadData, match="at most"):
            tacit.anonymize(frame, **ask)


def _two(s):
    return (s == "a").sum(), (s == "b").sum()


def _entropy(s):
    p = np.array([(s == v).mean() for v in set(s)])
    return -(p * np.log(p)).sum()


def test_a_lattice_too_large_to_search_is_refused_with_an_alternative():
    frame = pandas.DataFrame({f"c{i}": list("abcdefgh") for i in range(30)})
    with pytest.raises(
        BadParameter, match=r"a lattice of 1,073,741,824 nodes .* method='datafly', 'mondrian' or 'cluster'"
    ):
        tacit.anonymize(frame, quasi=list(frame.columns), k=2, method="optimal")


def test_keys_beyond_63_bits_are_ranked_on_the_way():
    """40 columns of 60 values: 2^236 combinations. Two pairs of equal rows are 2-anonymous as they are; the
    rest is suppressed.
    """
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.integers(0, 60, (50, 40)).astype(str), columns=[f"c{i}" for i in range(40)])
    frame = pandas.concat([frame, frame.iloc[:2]], ignore_index=True)
    quasi = list(frame.columns)
    made = tacit.anonymize(
        frame, quasi=quasi, k=2, method="cluster", hierarchies={c: tacit.anonymity.Flat() for c in quasi}
    )
    assert in_order(made).loc[[0, 50]].drop_duplicates().shape[0] == 1
    fly = tacit.anonymize(
        frame,
        quasi=quasi,
        k=2,
        method="datafly",
        hierarchies={c: tacit.anonymity.Flat() for c in quasi},
        max_suppressed=48 / 52,
    )
    assert in_order(fly).index.tolist() == [0, 1, 50, 51]
    assert fly.levels == dict.fromkeys(quasi, 0)
