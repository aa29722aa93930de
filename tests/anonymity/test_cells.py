"""The optimum of cell-level tables and of k-ambiguity, against brute force over every table there is."""

from __future__ import annotations

import itertools

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.anonymity import Ambiguity, Cells
from tacit.errors import BadParameter, MissingExtra

from .adult import BITS, THREE, in_order

SMALL = st.lists(
    st.tuples(st.sampled_from("01"), st.sampled_from("01"), st.sampled_from("01")), min_size=3, max_size=6
)
BOOLEAN = {"a": BITS, "b": BITS, "c": BITS}


def partitions(rows, k):
    """Every way to put rows into classes of at least k."""
    if not rows:
        yield []
        return
    first, rest = rows[0], rows[1:]
    for size in range(k - 1, len(rest) + 1):
        for others in itertools.combinations(rest, size):
            for more in partitions([r for r in rest if r not in others], k):
                yield [(first, *others), *more]


def changed_by(rows, classes):
    return sum(len(c) for c in classes for j in range(3) if len({rows[i][j] for i in c}) > 1)


@settings(max_examples=50, deadline=None)
@given(rows=SMALL, k=st.integers(2, 3), limit=st.sampled_from([0.0, 0.34]))
def test_the_fewest_changed_cells_equal_brute_force(rows, k, limit):
    frame = pandas.DataFrame(rows, columns=list("abc"))
    n, costs = len(frame), []
    for gone in range(int(limit * n + 1e-9) + 1):
        for left_out in itertools.combinations(range(n), gone):
            costs += [
                changed_by(rows, p) + 3 * gone
                for p in partitions([i for i in range(n) if i not in left_out], k)
            ]
    made = tacit.anonymize(
        frame, quasi=list("abc"), k=k, hierarchies=BOOLEAN, method="cells", max_suppressed=limit
    )
    assert made.trace[-1].counts["changed"] == min(costs)
    assert len(made.suppressed) <= limit * n


def test_a_boolean_table_whose_optimum_is_known():
    """000, 001, 110, 111 with k = 2: the last bit of every row, four cells."""
    frame = pandas.DataFrame([tuple("000"), tuple("001"), tuple("110"), tuple("111")], columns=list("abc"))
    made = tacit.anonymize(frame, quasi=list("abc"), k=2, hierarchies=BOOLEAN, method="cells")
    assert in_order(made).to_numpy().tolist() == [
        ["0", "0", "*"],
        ["0", "0", "*"],
        ["1", "1", "*"],
        ["1", "1", "*"],
    ]
    assert made.trace[-1].counts["changed"] == 4


def test_with_the_loss_as_cost_a_word_is_cheaper_than_a_star():
    frame = pandas.DataFrame({"b": list("0122")})
    by_loss = tacit.anonymize(frame, quasi=["b"], k=2, hierarchies={"b": THREE}, method=Cells(cost="loss"))
    assert in_order(by_loss)["b"].tolist() == ["low", "low", "2", "2"]


def levels_of(frame, hierarchies):
    return [
        list(itertools.product(*(range(hierarchies[c].height + 1) for c in frame))) for _ in range(len(frame))
    ]


def fits(frame, hierarchies, i, levels, o):
    return all(
        hierarchies[c].generalize(frame[c][i], level) == hierarchies[c].generalize(frame[c][o], level)
        for c, level in zip(frame, levels)
    )


@pytest.mark.parametrize("two_way", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("01"), st.sampled_from("012")), min_size=2, max_size=4),
    cost=st.sampled_from(["changed", "loss"]),
)
def test_k_ambiguity_equals_brute_force(two_way, rows, cost):
    """Every table of at most 4 rows × 2 columns: 6 ways to publish a row, so at most 1,296 tables."""
    frame, hierarchies = pandas.DataFrame(rows, columns=["a", "b"]), {"a": BITS, "b": THREE}
    n, best = len(frame), np.inf
    ways = list(itertools.product(range(2), range(3)))
    fit = {(i, w, o): fits(frame, hierarchies, i, w, o) for i in range(n) for w in ways for o in range(n)}
    price = {
        "changed": lambda c, w, v: float(w > 0),
        "loss": lambda c, w, v: _share(hierarchies[c], w, v),
    }[cost]
    cell = {(i, w): sum(price(c, x, frame[c][i]) for c, x in zip("ab", w)) for i in range(n) for w in ways}
    for chosen in itertools.product(ways, repeat=n):
        grid = [[fit[i, chosen[i], o] for o in range(n)] for i in range(n)]
        if min(map(sum, zip(*grid))) >= 2 and (not two_way or min(map(sum, grid)) >= 2):
            best = min(best, sum(cell[i, w] for i, w in enumerate(chosen)))
    made = tacit.anonymize(
        frame, quasi=["a", "b"], k=2, hierarchies=hierarchies, method=Ambiguity(two_way=two_way, cost=cost)
    )
    got = made.trace[-1].counts["changed"] if cost == "changed" else made.loss * 2 * n
    assert got == pytest.approx(best, abs=1e-6)


def _share(hierarchy, level, value):
    return (hierarchy.levels[level].count(hierarchy.generalize(value, level)) - 1) / (len(hierarchy) - 1)


def test_ambiguity_costs_no_more_than_anonymity_and_two_ways_no_less_than_one():
    rng = np.random.default_rng(3)
    for _ in range(5):
        frame = pandas.DataFrame(rng.choice(list("01"), (7, 3)), columns=list("abc"))
        ask = dict(quasi=list("abc"), k=2, hierarchies=BOOLEAN)
        one, two, anonymous = (
            tacit.anonymize(frame, method=m, **ask).trace[-1].counts["changed"]
            for m in ("ambiguity", Ambiguity(two_way=True), "cells")
        )
        assert one <= two <= anonymous


def test_one_way_ambiguity_names_the_exposed_rows():
    frame = pandas.DataFrame([tuple("00"), tuple("01"), tuple("10"), tuple("11")], columns=list("ab"))
    made = tacit.anonymize(
        frame, quasi=["a", "b"], k=2, hierarchies={"a": BITS, "b": BITS}, method="ambiguity"
    )
    assert (
        made.trace[-1].counts["changed"] == 3
    )  # a row of stars fits everybody, one more cell hides its own original
    assert made.warnings == [
        "2 rows of the release are compatible with fewer than k = 2 originals each: one-way k-ambiguity "
        "allows this. Use Ambiguity(two_way=True) unless no attacker knows all the originals."
    ]


def test_a_large_table_is_restored_from_a_clustering():
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"a": rng.choice(list("01"), 400), "b": rng.choice(list("012"), 400), "n": rng.integers(0, 90, 400)}
    )
    ask = dict(quasi=["a", "b", "n"], k=5, hierarchies={"a": BITS, "b": THREE})
    both = tacit.anonymize(frame, method=Ambiguity(two_way=True, cost="loss", block=100), **ask)
    classes = tacit.anonymize(frame, method="cluster", **ask)
    assert both.loss < classes.loss


def test_a_table_too_large_for_the_solver_is_refused_with_an_alternative():
    frame = pandas.DataFrame({"a": [str(i) for i in range(200)]})
    with pytest.raises(
        BadParameter,
        match=r"200 different rows and k = 5: there are .* groups .* Use method='cluster' or 'mondrian', or "
        r"fewer rows",
    ):
        tacit.anonymize(frame, quasi=["a"], k=5, method="cells")


def test_other_models_are_refused_with_the_reason():
    frame = pandas.DataFrame({"a": list("0011"), "s": list("xyxy")})
    for method in ("cells", "ambiguity"):
        with pytest.raises(
            BadParameter, match=r"another method for LDiversity\. This method supports only k"
        ):
            tacit.anonymize(frame, quasi=["a"], sensitive=["s"], k=2, l=2, method=method)


def test_without_scipy_the_error_has_the_install_command(monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        MissingExtra, match=r"method='cells' needs the package 'scipy'.*pip install 'tacit\[anonymity\]'"
    ):
        tacit.anonymize(pandas.DataFrame({"a": list("01")}), quasi=["a"], k=2, method="cells")
