"""Coordinates as square cells that are large where few people live: an adaptive quadtree.

R. Lagonigro, R. Oller, J. C. Martori: "AQuadtree: an R Package for Quadtree Anonymization of Point Data", The
R Journal 12, 2020. The grid does not depend on the data: cells start at `origin`, and their sides are
`largest`, half of it, and so on to `smallest`. A cell is divided into its quarters as follows. Quarters of
fewer than k people become one part, the *rest* of the cell; if it has fewer than k people, it also gets the
smallest of the other quarters. If no quarter is left then, the cell is not divided. With `max_suppressed`, a
rest of at most that share of the cell's people is suppressed instead.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas

from ..errors import BadData
from ..files import write_atomic
from ..parameters import bad
from ..people import encode_person
from ..results import check_absent
from .hierarchies import STAR, Hierarchy


@dataclass(frozen=True)
class SpatialCells:
    """Points in cells of at least k people.

    `table` is the input with a column `cell` instead of the coordinates. `cells` has a row for each cell: its
    lower left corner, its side, whether it is the rest of a divided cell, and its people. `suppressed` are
    the labels of the rows in no cell.
    """

    table: pandas.DataFrame = field(repr=False)
    cells: pandas.DataFrame = field(repr=False)
    suppressed: list[object] = field(repr=False)
    smallest: float
    largest: float
    origin: tuple[float, float]

    def hierarchy(self) -> Hierarchy:
        """The cells, then the cells of twice the side that contain them, and so on.

        With it `tacit.anonymize` generalizes cells together with other quasi-identifiers.
        """
        sides = _sides(self.smallest, self.largest)
        rows = []
        for word, x, y, side in self.cells[["cell", "x", "y", "side"]].itertuples(index=False):
            above = [
                word
                if larger <= side
                else _name(*_corner(x + side / 2, y + side / 2, larger, self.origin), larger)
                for larger in sides[1:]
            ]
            rows.append([word, *above, STAR])
        return Hierarchy.from_rows(rows, "The hierarchy of cells")

    def to_geojson(self, path: str | Path) -> Path:
        """Write the cells and their people as polygons, in the coordinates of the table."""
        features = []
        for word, x, y, side, is_rest, people in self.cells.itertuples(index=False):
            ring = [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]
            features.append(
                {
                    "type": "Feature",
                    "properties": {"cell": word, "people": int(people), "is_rest": bool(is_rest)},
                    "geometry": {"type": "Polygon", "coordinates": [[[float(a), float(b)] for a, b in ring]]},
                }
            )
        file = check_absent(path)
        write_atomic(file, json.dumps({"type": "FeatureCollection", "features": features}))
        return file


def aggregate_points(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    *,
    k: int,
    smallest: float,
    largest: float,
    person: str | None = None,
    max_suppressed: float = 0.0,
    origin: tuple[float, float] = (0.0, 0.0),
    name: str = "cell",
) -> SpatialCells:
    """Replace coordinates by cells of at least k people.

    `smallest` and `largest` are sides of cells in the unit of the coordinates; `largest` is `smallest` times
    a power of two. Use projected coordinates (meters): a cell in degrees is narrower in the north. Points in
    a largest cell of fewer than k people are suppressed. `person` is the column that tells whose a row is, if
    people have several rows; a person with points in several cells counts in each.
    """
    _check(frame, x, y, k, smallest, largest, max_suppressed, name)
    people = (
        np.arange(len(frame)) if person is None else encode_person(frame, person, [x, y], "aggregate_points")
    )
    points = frame[[x, y]].to_numpy(dtype=float)
    index = np.floor((points - np.asarray(origin)) / smallest).astype(np.int64)
    side = np.full(len(frame), len(_sides(smallest, largest)) - 1)  # as a power of two of the smallest
    groups = _count(index, side, people)
    lost = groups.people < k  # whole largest cells
    is_rest, done = np.zeros(len(frame), bool), np.zeros(len(frame), bool)
    for level in range(side.max(initial=0), 0, -1):
        at = np.flatnonzero((side == level) & ~lost & ~done)
        if not len(at):
            continue
        cell = _count(index[at], side[at], people[at])
        quarter = _count(index[at], side[at] - 1, people[at])
        in_rest = quarter.people < k
        rest = _count_marked(cell, in_rest, people[at])
        is_lost = in_rest & (rest < k) & (rest <= max_suppressed * cell.people)
        # the smallest other quarter joins a rest that is too small
        is_short = (rest > 0) & (rest < k) & ~is_lost & ~_any(cell, is_lost)
        size = np.where(in_rest, np.inf, quarter.people)
        smallest_quarter = np.full(len(cell.first), np.inf)
        np.minimum.at(smallest_quarter, cell.number, size)
        # of quarters of the same size, that of the lowest number
        is_smallest = size == smallest_quarter[cell.number]
        chosen = np.full(len(cell.first), len(quarter.first))
        np.minimum.at(chosen, cell.number[is_smallest], quarter.number[is_smallest])
        in_rest |= is_short & (quarter.number == chosen[cell.number])
        divides = _any(cell, ~in_rest)
        lost[at[is_lost & divides]] = True
        is_rest[at[in_rest & divides]] = True
        side[at[~in_rest & divides]] -= 1
        done[at[in_rest | ~divides]] = True
    final = _count(index[~lost], side[~lost], people[~lost], is_rest[~lost])
    first = np.flatnonzero(~lost)[final.first]
    length = smallest * 2.0 ** side[first]
    corner = (index[first] >> side[first, None]) * length[:, None] + np.asarray(origin)
    cells = pandas.DataFrame(
        {
            "cell": [
                ("rest of " if r else "") + _name(a, b, s)
                for (a, b), s, r in zip(corner, length, is_rest[first])
            ],
            "x": corner[:, 0],
            "y": corner[:, 1],
            "side": length,
            "is_rest": is_rest[first],
            "people": final.people[final.first],
        }
    )
    table = frame[~lost].drop(columns=[x, y])
    table[name] = cells["cell"].to_numpy()[final.number]
    return SpatialCells(table, cells, list(frame.index[lost]), smallest, largest, origin)


@dataclass(frozen=True)
class _Cells:
    number: np.ndarray  # of the cell of each point
    first: np.ndarray  # a point of each cell
    people: np.ndarray  # of the cell of each point


def _any(cells: _Cells, mark: np.ndarray) -> np.ndarray:
    """For each point, whether a point of its cell is marked."""
    return np.asarray(np.bincount(cells.number, mark, minlength=len(cells.first))[cells.number] > 0)


def _count_marked(cells: _Cells, mark: np.ndarray, people: np.ndarray) -> np.ndarray:
    """For each point, the people of the marked points of its cell."""
    pairs = np.unique(np.column_stack([cells.number[mark], people[mark]]), axis=0)
    return np.asarray(np.bincount(pairs[:, 0], minlength=len(cells.first))[cells.number])


def _count(
    index: np.ndarray, side: np.ndarray, people: np.ndarray, is_rest: np.ndarray | None = None
) -> _Cells:
    """The people of each point's cell; the rest of a divided cell is a cell of its own."""
    kind = np.zeros(len(side), np.int64) if is_rest is None else is_rest.astype(np.int64)
    key = np.column_stack([kind, side, index >> side[:, None]])
    _, first, number = np.unique(key, axis=0, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    pairs = np.unique(np.column_stack([number, people]), axis=0)
    return _Cells(number, first, np.bincount(pairs[:, 0], minlength=len(first))[number])


def _sides(smallest: float, largest: float) -> list[float]:
    return [smallest * 2**i for i in range(round(math.log2(largest / smallest)) + 1)]


def _corner(x: float, y: float, side: float, origin: tuple[float, float]) -> tuple[float, float]:
    return (
        origin[0] + math.floor((x - origin[0]) / side) * side,
        origin[1] + math.floor((y - origin[1]) / side) * side,
    )


def _name(x: float, y: float, side: float) -> str:
    return f"{side:.12g} at {x:.12g}, {y:.12g}"


def _check(
    frame: pandas.DataFrame,
    x: str,
    y: str,
    k: int,
    smallest: float,
    largest: float,
    max_suppressed: float,
    name: str,
) -> None:
    owner = "aggregate_points"
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise bad(owner, "k", k, "a whole number of at least 1")
    if not (isinstance(smallest, int | float) and math.isfinite(smallest) and smallest > 0):
        raise bad(owner, "smallest", smallest, "a number above 0")
    ratio = largest / smallest if isinstance(largest, int | float) and largest > 0 else 0.0
    if ratio < 1 or not math.isclose(ratio, 2 ** round(math.log2(ratio)), rel_tol=1e-9):
        raise bad(
            owner, "largest", largest, f"smallest ({smallest:g}) times 1, 2, 4, 8 or another power of two"
        )
    if not (isinstance(max_suppressed, int | float) and 0 <= max_suppressed <= 1):
        raise bad(owner, "max_suppressed", max_suppressed, "a fraction between 0 and 1")
    if name in frame.columns:
        raise bad(owner, "name", name, "the name of a new column")
    for column in (x, y):
        if column not in frame.columns:
            raise BadData(f"{owner}: there is no column {column!r}.")
        values = pandas.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)
        wrong = int((~np.isfinite(values)).sum())
        if wrong or not pandas.api.types.is_numeric_dtype(frame[column].dtype):
            raise BadData(
                f"{owner}: column {column!r} needs finite numbers; {wrong:,} rows have none. Convert it with "
                "pandas.to_numeric, and drop rows without coordinates."
            )
    if not len(frame):
        raise BadData("The table has no rows. Pass a table with at least one row.")
