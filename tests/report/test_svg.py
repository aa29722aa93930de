from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.report.maps import heat, plane
from tacit.report.numbers import percent
from tacit.report.svg import Axis, Figure, Rule, Series, bars, combine, plot

ANY = st.floats(allow_nan=True, allow_infinity=True) | st.none()
WORDS = st.text(max_size=12)


def parsed(figure: Figure) -> ET.Element:
    """XML, and no coordinate that is not a number."""
    root = ET.fromstring(figure.svg)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name in ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "transform"):
                assert not re.search("nan|inf", value), (element.tag, name, value)
    return root


def marks(root: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ANY, ANY), max_size=12), WORDS, st.booleans(), st.booleans())
def test_a_plot_of_any_values_and_any_name_is_whole_xml(
    points: list, name: str, log: bool, joined: bool
) -> None:
    series = [
        Series(
            name,
            [p[0] for p in points],
            [p[1] for p in points],
            "c1",
            [p[1] for p in points],
            [p[1] for p in points],
        )
    ]
    parsed(
        plot(name, series, Axis(name, log=log), Axis(name, log=log), joined=joined, rules=[Rule(name, 0.5)])
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, ANY), min_size=1, max_size=8), st.booleans())
def test_bars_and_heat_maps_of_any_values_are_whole_xml(items: list, dots: bool) -> None:
    names, values = [i[0] for i in items], [i[1] for i in items]
    parsed(bars("bars", names, values, percent, dots=dots, marked=[0]))
    parsed(heat("heat", names, names, [values] * len(names), [[percent(v) for v in values]] * len(names)))


@settings(max_examples=20, deadline=None)
@given(st.lists(ANY, min_size=9, max_size=9))
def test_a_plane_of_any_values_is_whole_xml(values: list) -> None:
    parsed(
        plane(
            "plane",
            [-1.0, 0.0, 1.0],
            [0.0, 1.0, 2.0],
            [values[:3], values[3:6], values[6:]],
            [{"name": "<b>", "a": 0.0, "b": 9.0}, {"name": "x"}],
        )
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), st.booleans())
def test_ticks_are_few_and_within_the_axis(values: list[float], log: bool) -> None:
    axis = Axis("", log=log).over(values)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 10
    assert all(-1e-6 <= axis.part(value) <= 1 + 1e-6 for value, _ in ticks)


def test_ticks_are_the_round_numbers_a_reader_expects() -> None:
    assert [word for _, word in Axis("", 0.0, 10.0).ticks()] == ["0", "2", "4", "6", "8", "10"]
    assert [word for _, word in Axis("", log=True).over([1, 10_000], 0).ticks()] == [
        "1",
        "10",
        "100",
        "1,000",
        "10,000",
    ]


def test_a_gap_in_the_values_is_a_gap_in_the_line() -> None:
    root = parsed(
        plot("t", [Series("a", [0, 1, 2, 3, 4], [1.0, 2.0, math.nan, 2.0, 1.0])], Axis("x"), Axis("y"))
    )
    assert len(marks(root, "line")) == 2


def test_a_chart_without_a_finite_value_says_so() -> None:
    assert (
        "no finite values to draw"
        in plot("t", [Series("a", [0, 1], [math.nan, math.inf])], Axis("x"), Axis("y")).svg
    )


def test_a_band_reaches_from_low_to_high() -> None:
    root = parsed(
        plot("t", [Series("a", [0, 1], [1.0, 1.0], "c0", [0.0, 0.0], [2.0, 2.0])], Axis("x"), Axis("y"))
    )
    heights = [float(p.split(" ")[1]) for p in marks(root, "band")[0].attrib["d"].strip("MZ").split("L")]
    line = [float(p.split(" ")[1]) for p in marks(root, "line")[0].attrib["d"].strip("M").split("L")]
    assert min(heights) < line[0] < max(heights)
    assert math.isclose(line[0], (min(heights) + max(heights)) / 2, abs_tol=0.1)


def test_contours_of_a_slope_are_vertical_strips() -> None:
    """loss = a alone: the region above the middle level must begin at the middle of the map."""
    ramp = [[0.0, 1.0, 2.0]] * 3
    root = parsed(plane("t", [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], ramp, []))
    area = next(e for e in marks(root, "level") if "h6" in e.get("class", "").split())
    frame = next(e for e in marks(root, "hole"))
    starts = [float(part.split(" ")[0]) for part in area.attrib["d"].split("M")[1:]]
    assert math.isclose(min(starts), float(frame.attrib["x"]) + float(frame.attrib["width"]) / 2, abs_tol=0.2)


def test_a_figure_is_a_file_of_its_own_and_a_notebook_shows_it(tmp_path) -> None:
    one = bars("one", ["a"], [1.0], str)
    both = combine("both", [one, one])
    assert both.save(tmp_path / "f.svg").read_text() == both._repr_svg_() == both.svg
    assert both.width == 2 * one.width
    assert parsed(both).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in both.svg
