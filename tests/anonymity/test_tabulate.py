"""Tables of counts: what linear programs disclose of naive suppression, and not of ours."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pandas
import pytest
from scipy.optimize import linprog

import tacit
from tacit.anonymity.cube import count_cells
from tacit.anonymity.rounding import round_counts
from tacit.anonymity.suppress import cell_weights, find_small, suppress
from tacit.errors import BadData, BadParameter

from .adult import adult


def expand(counts: dict[tuple[str, ...], int], names: list[str]) -> pandas.DataFrame:
    rows = [words for words, n in counts.items() for _ in range(n)]
    return pandas.DataFrame(rows, columns=names)


def grid(rows: int, columns: int, seed: int, mean: float = 8.0) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    return expand(
        {(f"r{i}", f"c{j}"): int(rng.poisson(mean)) for i in range(rows) for j in range(columns)},
        ["row", "col"],
    )


def attack(table: pandas.DataFrame, by: list[str], totals: dict[str, dict[str, list[str]]] | None = None):
    """A reader's bounds of each hidden cell: written from the published table alone, with linprog. As empty
    cells are shown, a hidden one has at least one row.

    `totals` gives the children of each node of a dimension; by default "total" is the sum of all others.
    """
    position = {tuple(words): i for i, words in enumerate(table[by].to_numpy())}
    tree = totals or {c: {"total": [w for w in table[c].unique() if w != "total"]} for c in by}
    rows = []
    for j, name in enumerate(by):
        others = [table[c].unique() for i, c in enumerate(by) if i != j]
        for (node, children), rest in itertools.product(tree[name].items(), itertools.product(*others)):
            row = np.zeros(len(table))
            row[position[(*rest[:j], node, *rest[j:])]] = 1
            for child in children:
                row[position[(*rest[:j], child, *rest[j:])]] = -1
            rows.append(row)
    known = table["count"].notna().to_numpy()
    shown = table["count"].fillna(0).to_numpy(float)
    limits = [(shown[i], shown[i]) if known[i] else (1, None) for i in range(len(table))]
    bounds = {}
    for cell in np.flatnonzero(~known):
        ends = []
        for sign in (1, -1):
            objective = np.zeros(len(table))
            objective[cell] = sign
            solved = linprog(objective, A_eq=np.array(rows), b_eq=np.zeros(len(rows)), bounds=limits)
            assert solved.success
            ends.append(sign * solved.fun)
        bounds[tuple(table[by].iloc[cell])] = (round(ends[0], 6), round(ends[1], 6))
    return bounds


def hide_small(frame: pandas.DataFrame, by: list[str], k: int) -> pandas.DataFrame:
    """Naive suppression: only the small cells are hidden."""
    table = count_cells(frame, by, {}, "total", None)
    shown = pandas.array(table.counts, dtype="Int64")
    shown[find_small(table, k)] = None
    return table.to_frame(shown)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_totals_disclose_naive_suppression_and_not_ours(seed, exact):
    frame = grid(4, 5, seed, mean=9)
    naive = attack(hide_small(frame, ["row", "col"], 5), ["row", "col"])
    assert any(low == high for low, high in naive.values())  # computed exactly
    made = tacit.tabulate(frame, ["row", "col"], k=5, exact=exact)
    found = attack(made.table, ["row", "col"])
    true = count_cells(frame, ["row", "col"], {}, "total", None)
    small = {tuple(w) for w, n in zip(true.to_frame(0)[["row", "col"]].to_numpy(), true.counts) if 0 < n < 5}
    assert small <= set(found)
    for cell in small:
        low, high = found[cell]
        assert low == 1
        assert high >= 5
    said = {
        tuple(r[:2]): tuple(r[2:]) for r in made.intervals[["row", "col", "low", "high"]].to_numpy().tolist()
    }
    assert said == {c: found[c] for c in small}


@pytest.mark.parametrize("exact", [False, True])
def test_readers_who_know_that_hidden_cells_are_not_empty(exact):
    """Three cells of one person each, with totals of 3: if only sums protected them, each would be 1."""
    frame = expand({("a", "x"): 1, ("a", "y"): 1, ("a", "z"): 1, ("b", "x"): 20, ("b", "y"): 20, ("b", "z"): 20,
                    ("c", "x"): 9, ("c", "y"): 9, ("c", "z"): 9}, ["row", "col"])  # fmt: skip
    made = tacit.tabulate(frame, ["row", "col"], k=3, exact=exact)
    found = attack(made.table, ["row", "col"])
    for column in "xyz":
        assert found["a", column][0] == 1
        assert found["a", column][1] >= 3
    pair = expand({("a", "x"): 1, ("a", "y"): 1, ("b", "x"): 20, ("b", "y"): 20}, ["row", "col"])
    low = tacit.tabulate(pair, ["row", "col"], k=3).intervals.set_index(["row", "col"])["low"]
    assert low["a", "total"] == 2  # two cells are not empty, and readers see it


def test_shown_cells_are_true_and_sum_up():
    frame = grid(5, 4, 9, mean=6)
    made = tacit.tabulate(frame, ["row", "col"], k=4)
    true = frame.value_counts(["row", "col"])
    inner = made.table[(made.table["row"] != "total") & (made.table["col"] != "total")].dropna()
    assert all(true.get((r, c), 0) == n for r, c, n in inner.to_numpy())
    assert made.table["count"].iloc[-1] == len(frame)
    assert made.hidden == made.table["count"].isna().sum() > made.small > 0


def is_safe(frame: pandas.DataFrame, hidden: set[int], k: int) -> bool:
    table = count_cells(frame, ["row", "col"], {}, "total", None)
    shown = pandas.array(table.counts, dtype="Int64")
    shown[list(hidden)] = None
    found = attack(table.to_frame(shown), ["row", "col"])
    words = [tuple(w) for w in table.to_frame(0)[["row", "col"]].to_numpy()]
    return all(found[words[c]][0] == 1 and found[words[c]][1] >= k for c in find_small(table, k))


@pytest.mark.parametrize("seed", [3, 8])
def test_the_exact_choice_equals_brute_force(seed):
    """All sets of further cells of a 2 × 3 table, by weight: the first that is safe weighs as much as ours."""
    frame = grid(2, 3, seed, mean=4)
    table = count_cells(frame, ["row", "col"], {}, "total", None)
    small = find_small(table, 4)
    assert len(small)
    ours, _, _ = suppress(table, 4, 4, exact=True)
    quick, _, _ = suppress(table, 4, 4, exact=False)
    weights = cell_weights(table)
    others = [c for c in range(len(table.counts)) if c not in small and table.counts[c]]
    sets = [s for n in range(len(others) + 1) for s in itertools.combinations(others, n)]
    sets.sort(key=lambda s: weights[list(s)].sum())
    best = next(s for s in sets if is_safe(frame, {*small, *s}, 4))
    assert weights[ours].sum() == pytest.approx(weights[[*small, *best]].sum())
    assert weights[quick].sum() >= weights[ours].sum() - 1e-9


TREE = {
    "north": {"a": ["a1", "a2"], "b": ["b1", "b2", "b3"]},
    "south": {"c": ["c1", "c2"], "d": ["d1", "d2"]},
}


def test_a_hierarchy_has_subtotals_and_is_protected_with_them():
    rng = np.random.default_rng(4)
    towns = ["a1", "a2", "b1", "b2", "b3", "c1", "c2", "d1", "d2"]
    frame = expand({(t, s): int(rng.poisson(7)) for t in towns for s in ("f", "m", "x")}, ["town", "sex"])
    made = tacit.tabulate(frame, ["town", "sex"], k=4, hierarchies={"town": TREE})
    assert made.cells == (9 + 4 + 2 + 1) * 4
    both = made.table[(made.table["town"] == "north") & (made.table["sex"] == "total")]
    assert both["count"].isna().all() or both["count"].item() == frame["town"].isin(towns[:5]).sum()
    children = {"total": ["north", "south"], "north": ["a", "b"], "south": ["c", "d"], "a": towns[:2],
                "b": towns[2:5], "c": towns[5:7], "d": towns[7:]}  # fmt: skip
    tree = {"town": children, "sex": {"total": ["f", "m", "x"]}}
    assert any(low == high for low, high in attack(_naive_tree(frame), ["town", "sex"], tree).values())
    found = attack(made.table, ["town", "sex"], tree)
    for *cell, count, low, high in made.intervals.to_numpy().tolist():
        assert found[tuple(cell)] == (low, high)
        assert 0 < count < 4
        assert low == 1
        assert high >= 4


def _naive_tree(frame: pandas.DataFrame) -> pandas.DataFrame:
    table = count_cells(frame, ["town", "sex"], {"town": TREE}, "total", None)
    shown = pandas.array(table.counts, dtype="Int64")
    shown[find_small(table, 4)] = None
    return table.to_frame(shown)


def test_three_dimensions_are_bounded_in_whole_numbers():
    rng = np.random.default_rng(2)
    frame = expand(
        {w: int(rng.poisson(9)) for w in itertools.product("ab", "cde", "fgh")}, ["one", "two", "three"]
    )
    made = tacit.tabulate(frame, ["one", "two", "three"], k=6, interval=8)
    assert made.small > 0
    assert (made.intervals["low"] == 1).all()
    assert (made.intervals["high"] >= 8).all()
    found = attack(made.table, ["one", "two", "three"])
    for *cell, _, low, high in made.intervals.to_numpy().tolist():
        assert found[tuple(cell)][0] - 1e-6 <= low
        assert high <= found[tuple(cell)][1] + 1e-6  # whole numbers are within the fractions


def test_adult_by_two_columns():
    made = tacit.tabulate(adult(), ["education", "race"], k=5)
    assert made.small > 10
    assert (made.intervals["low"] == 1).all()
    assert (made.intervals["high"] >= 5).all()
    assert made.hidden < 3 * made.small


def test_people_are_counted_for_k_and_rows_are_shown():
    """One person with ten visits is one person, and is in the total once."""
    visits = pandas.DataFrame(
        {"id": [0] * 10 + list(range(1, 31)), "ward": ["x"] * 10 + ["y", "z", "w"] * 10}
    )
    made = tacit.tabulate(visits, ["ward"], k=3, person="id")
    assert made.small == 1
    assert made.table.set_index("ward")["count"].isna()["x"]
    table = count_cells(visits, ["ward"], {}, "total", visits["id"].to_numpy())
    assert table.people.tolist() == [10, 1, 10, 10, 31]


@pytest.mark.parametrize("base", [3, 5])
def test_rounding_keeps_sums_and_is_unbiased(base):
    """Each cell of 400 rounded tables is a neighbor multiple, every total is a sum, and the mean is the count:
    within 6 standard deviations (a seed, so the outcome is the same everywhere)."""
    frame = grid(3, 4, 5)
    table = count_cells(frame, ["row", "col"], {}, "total", None)
    draw = random.Random(1)
    many = np.stack([round_counts(table, base, draw) for _ in range(400)])
    assert (many % base == 0).all()
    assert (np.abs(many - table.counts) < base).all()
    assert (many @ table.equations.T.toarray() == 0).all()
    assert (np.abs(many.mean(axis=0) - table.counts) < 6 * base / 2 / 20).all()
    assert (many.std(axis=0) > 0).sum() >= (table.counts % base > 0).sum() - 1


def test_rounded_tables_by_the_public_name():
    made = tacit.tabulate(grid(4, 4, 6), ["row", "col"], method="round", base=3)
    assert (made.table["count"] % 3 == 0).all()
    assert (made.intervals["high"] - made.intervals["low"] >= 2).all()
    assert (
        (made.intervals["low"] <= made.intervals["count"])
        & (made.intervals["count"] <= made.intervals["high"])
    ).all()
    cube = expand({w: 3 + i % 4 for i, w in enumerate(itertools.product("ab", "cd", "ef"))}, list("xyz"))
    three = tacit.tabulate(cube, list("xyz"), method="round", base=5)
    t = three.table.set_index(list("xyz"))["count"]
    for x, y in itertools.product(["a", "b", "total"], ["c", "d", "total"]):
        assert t[x, y, "total"] == t[x, y, "e"] + t[x, y, "f"]


def test_nulls_numbers_and_words_that_clash():
    frame = pandas.DataFrame({"age": [10, 9, None] * 6})
    made = tacit.tabulate(frame, ["age"], k=2)
    assert made.table["age"].tolist() == ["9", "10", "missing", "total"]
    with pytest.raises(BadData, match="'total' would be two rows of column 'sex'"):
        tacit.tabulate(pandas.DataFrame({"sex": ["total", "f"] * 5}), ["sex"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 1}, "k is 1; it must be a whole number of at least 2"),
        ({"interval": 3}, "interval is 3; it must be a whole number of at least k, which is 5"),
        ({"base": 1}, "base is 1; it must be a whole number of at least 2"),
        ({"method": "hide"}, "method is 'hide'; it must be one of 'suppress', 'round'"),
        ({"hierarchies": {"x": {}}}, "hierarchies is"),
    ],
)
def test_bad_parameters(change, words):
    with pytest.raises(BadParameter, match=words):
        tacit.tabulate(grid(2, 2, 0), ["row", "col"], **change)


def test_tables_that_cannot_be_published():
    with pytest.raises(BadData, match="fewer than k = 5"):
        tacit.tabulate(pandas.DataFrame({"a": ["x", "y"]}), ["a"])
    with pytest.raises(BadData, match="so few that not even its total"):
        tacit.tabulate(pandas.DataFrame({"a": [*"xxxyy"]}), ["a"])
    with pytest.raises(BadData, match="more than 10,000"):
        tacit.tabulate(pandas.DataFrame({"a": range(200), "b": range(200)}), ["a", "b"])
    with pytest.raises(BadData, match="The table has no rows"):
        tacit.tabulate(pandas.DataFrame({"a": []}), ["a"])
