"""Two-dimensional charts: a heat map with values, and a plane with contours and points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .markup import join, tag
from .numbers import is_finite, significant, truncate
from .svg import LEVELS, SMALLEST, WIDTH, Axis, Figure, Table, _frame, _mark, heading

# cells a side of the drawn plane: the measured grid is coarser and is interpolated, so that levels read as
# contours
GRID = 44
MOST_POINTS = 60  # rows of the table beside the plane
_CORNERS = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


def _level(part: float) -> int:
    return min(LEVELS - 1, int(min(1.0, max(0.0, part)) * LEVELS))


def heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[Any]],
    texts: Sequence[Sequence[str]],
    *,
    row_name: str = "",
    column_name: str = "",
    top_value: float | None = None,
    caption: str = "",
    words: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Draw rows × columns; the shade is the value, from zero to `top_value`.

    The value is printed in the cell if it fits.
    """
    known = [v for row in values for v in row if is_finite(v)]
    highest = top_value if top_value is not None else max(known, default=1.0)
    left = 30 + 6.6 * max([len(truncate(r, 16)) for r in rows], default=4)
    wide, tall = min(72.0, (WIDTH - 14 - left) / max(1, len(columns))), 24.0 if len(rows) <= 20 else 11.0
    fits = tall > 20 and max([len(t) for row in texts for t in row], default=0) * 6.2 < wide
    head, down = heading(title)
    top, every = (
        62.0 + down,
        max(1, math.ceil(max([len(truncate(c, 10)) for c in columns], default=1) * 7.2 / wide)),
    )
    parts = [
        head,
        tag(
            "text",
            column_name,
            x=left + wide * len(columns) / 2,
            y=42 + down,
            text_anchor="middle",
            class_="soft small",
        ),
    ]
    parts += [
        tag("text", truncate(c, 10), x=left + wide * (j + 0.5), y=top - 6, text_anchor="middle")
        for j, c in enumerate(columns)
        if j % every == 0
    ]
    for i, name in enumerate(rows):
        y = top + tall * i
        if tall > 20 or i % 3 == 0:
            parts.append(
                tag(
                    "text",
                    truncate(name, 16),
                    x=left - 8,
                    y=y + tall / 2 + 4,
                    text_anchor="end",
                    class_=None if tall > 20 else "small",
                )
            )
        for j, value in enumerate(values[i]):
            level = _level(value / highest if highest else 0.0) if is_finite(value) else None
            word = words[i][j] if words else f"{name}, {columns[j]}: {texts[i][j]}"
            parts.append(
                tag(
                    "g",
                    tag(
                        "rect",
                        x=left + wide * j,
                        y=y,
                        width=wide - 1.5,
                        height=tall - 1.5,
                        rx=2,
                        class_="hole" if level is None else f"h{level}",
                    ),
                    tag(
                        "text",
                        texts[i][j],
                        x=left + wide * (j + 0.5),
                        y=y + tall / 2 + 3.4,
                        text_anchor="middle",
                        class_="small paper" if (level or 0) > LEVELS * 0.5 else "small",
                    )
                    if fits
                    else None,
                    tag("title", word),
                )
            )
    middle = top + tall * len(rows) / 2
    parts.append(
        tag(
            "text",
            row_name,
            x=12,
            y=middle,
            text_anchor="middle",
            class_="soft small",
            transform=f"rotate(-90 12 {middle:.1f})",
        )
    )
    table = Table(
        (row_name or "row", *map(str, columns)), [(str(r), *map(str, t)) for r, t in zip(rows, texts)]
    )
    return Figure(title, join(parts), WIDTH, top + tall * len(rows) + 16, table, caption)


def plane(
    title: str,
    a: Sequence[float],
    b: Sequence[float],
    values: Sequence[Sequence[Any]],
    points: Sequence[Mapping[str, Any]],
    caption: str = "",
) -> Figure:
    """Draw a plane with `values[j][i]` at (a[i], b[j]).

    Levels are logarithmic if the values allow it, to resolve the bottom of a basin.
    """
    known = [v for row in values for v in row if is_finite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    log = low > SMALLEST and high / low > 4
    span = (math.log(high / low) if log else high - low) or 1.0
    head, down = heading(title)
    left, top, side = 62.0, 44.0 + down, WIDTH - 156.0
    x, y = Axis("direction a", a[0], a[-1]), Axis("direction b", b[0], b[-1])

    def px(v: float) -> float:
        return left + x.part(v) * side

    def py(v: float) -> float:
        return top + side - y.part(v) * side

    def height(v: float) -> float:
        return (math.log(v / low) if log else v - low) / span * LEVELS

    fine = [
        [None if (v := _between(values, i / GRID, j / GRID)) is None else height(v) for i in range(GRID + 1)]
        for j in range(GRID + 1)
    ]
    areas = ["".join(_above(fine, level, left, top, side / GRID)) for level in range(LEVELS)]
    parts = [head, *_frame(x, y, px, py, left, left + side, top, top + side)]
    parts.append(tag("rect", x=left, y=top, width=side, height=side, class_="hole"))
    parts += [tag("path", d=area, class_=f"level h{level}") for level, area in enumerate(areas) if area]
    points_inside = [
        p
        for p in points
        if is_finite(p.get("a"))
        and is_finite(p.get("b"))
        and 0 <= x.part(p["a"]) <= 1
        and 0 <= y.part(p["b"]) <= 1
    ]
    for p in sorted(points_inside, key=lambda p: p.get("name") == "global"):
        name, center = str(p.get("name", "")), p.get("name") == "global"
        parts.append(
            tag(
                "g",
                _mark(
                    "c3" if center else "c0", px(p["a"]), py(p["b"]), 6.5 if center else 4.2, cls="dot halo"
                ),
                tag("title", name),
                class_="c1" if center else "central",
            )
        )
        if (
            center or len(points_inside) <= 13
        ):  # more names would cover the map; the tooltip and the table have them
            near_edge = x.part(p["a"]) > 0.85
            parts.append(
                tag(
                    "text",
                    truncate(name, 14),
                    x=px(p["a"]) + (-9 if near_edge else 9),
                    y=py(p["b"]) + 4,
                    text_anchor="end" if near_edge else "start",
                    class_="outlined halo small",
                )
            )
    edge = left + side + 24
    for k in range(LEVELS):
        y0 = top + side - (k + 1) * side / LEVELS
        parts.append(tag("rect", x=edge, y=y0, width=18, height=side / LEVELS + 0.4, class_=f"h{k}"))
        if k % 3 == 0 or k == LEVELS - 1:
            value = low * math.exp(span * (k + 0.5) / LEVELS) if log else low + span * (k + 0.5) / LEVELS
            parts.append(
                tag("text", significant(value), x=edge + 24, y=y0 + side / LEVELS / 2 + 4, class_="soft")
            )
    parts.append(tag("text", "loss" + (" (log)" if log else ""), x=edge, y=top - 8, class_="soft small"))
    table = Table(
        ("point", "a", "b"),
        [
            (str(p.get("name", "")), significant(p.get("a")), significant(p.get("b")))
            for p in points[:MOST_POINTS]
        ],
    )
    return Figure(title, join(parts), WIDTH, top + side + 48, table, caption)


def _above(
    field: Sequence[Sequence[float | None]], level: int, left: float, top: float, cell: float
) -> Iterator[str]:
    """Return outlines of where the field is at least `level`.

    Whole cells are joined to strips; the others are cut along the straight contour.
    """
    for j in range(GRID):
        y, start = top + (GRID - 1 - j) * cell, None
        for i in range(GRID + 1):
            corners = (
                [field[j][i], field[j][i + 1], field[j + 1][i + 1], field[j + 1][i]] if i < GRID else [None]
            )
            whole = all(c is not None and c >= level for c in corners)
            if whole and start is None:
                start = i
            elif not whole and start is not None:
                yield (
                    f"M{_short(left + start * cell)} "
                    f"{_short(y)}h{_short((i - start) * cell)}v{_short(cell)}h{_short((start - i) * cell)}z"
                )
                start = None
            known = [c for c in corners if c is not None]
            if whole or len(known) < 4 or max(known) < level:
                continue
            cut: list[tuple[float, float]] = []
            for k in range(4):
                (u, v), (u2, v2), a, b = _CORNERS[k], _CORNERS[(k + 1) % 4], known[k], known[(k + 1) % 4]
                if a >= level:
                    cut.append((u, v))
                if (a >= level) != (b >= level):
                    s = (level - a) / (b - a)
                    cut.append((u + s * (u2 - u), v + s * (v2 - v)))
            # Relative, so that four corners take a dozen letters instead of forty: a page with many planes is
            # half as large.
            (u, v), steps = (
                cut[0],
                [((u2 - u1) * cell, (v1 - v2) * cell) for (u1, v1), (u2, v2) in pairwise(cut)],
            )
            yield (
                f"M{_short(left + (i + u) * cell)} {_short(y + (1 - v) * cell)}l"
                + " ".join(f"{_short(a)} {_short(b)}" for a, b in steps)
                + "z"
            )


def _short(value: float) -> str:
    """Format a coordinate to a tenth of a pixel, as short as possible."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _between(values: Sequence[Sequence[Any]], u: float, v: float) -> float | None:
    """Interpolate bilinearly; None next to a value that is not finite."""
    i, j = u * (len(values[0]) - 1), v * (len(values) - 1)
    i0, j0 = min(int(i), max(0, len(values[0]) - 2)), min(int(j), max(0, len(values) - 2))
    i1, j1 = min(i0 + 1, len(values[0]) - 1), min(j0 + 1, len(values) - 1)
    corners: list[float] = [values[j0][i0], values[j0][i1], values[j1][i0], values[j1][i1]]
    if not all(is_finite(c) for c in corners):
        return None
    s, t = i - i0, j - j0
    return (corners[0] * (1 - s) + corners[1] * s) * (1 - t) + (corners[2] * (1 - s) + corners[3] * s) * t
