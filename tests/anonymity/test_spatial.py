"""Coordinates as cells of at least k people."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest

import tacit
from tacit.anonymity import aggregate_points
from tacit.errors import BadData, BadParameter


def city(n: int = 3000, seed: int = 0) -> pandas.DataFrame:
    """A dense center, a sparse surrounding, and one house far away."""
    rng = np.random.default_rng(seed)
    spread = np.where(rng.random(n) < 0.7, 400, 6000)
    points = rng.normal(0, 1, (n, 2)) * spread[:, None] + [4_000, -2_000]
    frame = pandas.DataFrame(points, columns=["east", "north"])
    frame.loc[0] = [90_000, 90_000]
    return frame.assign(id=np.arange(n) // 2, age=rng.integers(20, 80, n), sex=rng.choice(["f", "m"], n))


def people_by_place(frame: pandas.DataFrame, made: tacit.anonymity.SpatialCells) -> dict[str, set[int]]:
    """Brute force: the ids of the points inside the square of each cell, in no smaller one of the table."""
    inside = {}
    for cell in made.cells.itertuples():
        e, n = frame["east"], frame["north"]
        square = (cell.x <= e) & (e < cell.x + cell.side) & (cell.y <= n) & (n < cell.y + cell.side)
        inside[cell.cell] = set(frame.loc[square].index)
    for cell in made.cells[made.cells["is_rest"]].itertuples():
        for other in made.cells[made.cells["side"] < cell.side].itertuples():
            if cell.x <= other.x < cell.x + cell.side and cell.y <= other.y < cell.y + cell.side:
                inside[cell.cell] -= inside[other.cell]
    return inside


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_every_cell_has_k_people_and_contains_its_points(share):
    frame = city()
    made = aggregate_points(
        frame, "east", "north", k=10, smallest=125, largest=16_000, person="id", max_suppressed=share
    )
    table = made.table.assign(id=frame["id"])
    assert table.groupby("cell")["id"].nunique().min() >= 10
    inside = people_by_place(frame, made)
    for word, rows in made.table.groupby("cell"):
        assert set(rows.index) <= inside[word]
        if not share:
            assert set(rows.index) == inside[word]  # squares do not overlap
    assert made.cells.set_index("cell")["people"].equals(
        table.groupby("cell")["id"].nunique().reindex(made.cells["cell"]).rename("people")
    )
    assert 0 in made.suppressed  # the house far away
    assert len(made.table) + len(made.suppressed) == len(frame)
    assert not {"east", "north"} & set(made.table.columns)


def test_cells_are_small_where_people_are_many_and_cannot_be_divided():
    frame = city()
    made = aggregate_points(frame, "east", "north", k=20, smallest=125, largest=16_000)
    sides = made.cells.set_index("cell")["side"]
    assert sides.min() < 1_000 < sides.max()
    for cell in made.cells[(made.cells["side"] > 125) & ~made.cells["is_rest"]].itertuples():
        rows = frame.loc[made.table.index[made.table["cell"] == cell.cell]]
        quarters = rows.groupby(
            [rows["east"] >= cell.x + cell.side / 2, rows["north"] >= cell.y + cell.side / 2]
        )
        sizes = quarters.size()
        # otherwise it would have been divided
        assert (sizes >= 20).sum() <= 1
        assert (sizes < 20).any()
        assert sizes[sizes < 20].sum() < 20 or not (sizes >= 20).any()
    assert made.cells["is_rest"].any()


def test_the_grid_does_not_depend_on_the_data():
    one = aggregate_points(city(seed=1), "east", "north", k=15, smallest=500, largest=16_000)
    two = aggregate_points(city(seed=2), "east", "north", k=15, smallest=500, largest=16_000)
    for made in (one, two):
        assert (made.cells["x"] % made.cells["side"] == 0).all()
        assert (made.cells["y"] % made.cells["side"] == 0).all()


def test_cells_are_generalized_with_other_columns():
    made = aggregate_points(city(), "east", "north", k=10, smallest=250, largest=16_000)
    both = tacit.anonymize(
        made.table.drop(columns="id"), quasi=["cell", "age", "sex"], k=10, max_suppressed=0.05,
        hierarchies={"cell": made.hierarchy(), "age": tacit.anonymity.Intervals(20, (2,))},
    )  # fmt: skip
    assert both.table.groupby(["cell", "age", "sex"]).size().min() >= 10
    assert both.levels["cell"] > 0
    tree = made.hierarchy()
    assert all(len(set(level)) <= len(set(below)) for below, level in zip(tree.levels, tree.levels[1:]))


def test_geojson(tmp_path):
    made = aggregate_points(city(500), "east", "north", k=10, smallest=500, largest=16_000)
    read = json.loads(made.to_geojson(tmp_path / "cells.json").read_text())
    assert [f["properties"]["cell"] for f in read["features"]] == made.cells["cell"].tolist()
    with pytest.raises(BadParameter, match="exists"):
        made.to_geojson(tmp_path / "cells.json")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"k": 0}, BadParameter, "k is 0"),
        ({"largest": 700}, BadParameter, r"largest is 700; it must be smallest \(100\) times"),
        ({"smallest": 0}, BadParameter, "smallest is 0"),
        ({"max_suppressed": 2}, BadParameter, "max_suppressed is 2"),
        ({"name": "age"}, BadParameter, "name is 'age'"),
        ({"x": "west"}, BadData, "there is no column 'west'"),
        ({"x": "sex"}, BadData, "column 'sex' needs finite numbers; 50 rows have none"),
    ],
)
def test_bad_input(change, kind, words):
    ask = {"x": "east", "y": "north", "k": 5, "smallest": 100, "largest": 800, **change}
    with pytest.raises(kind, match=words):
        aggregate_points(city(50), **ask)
