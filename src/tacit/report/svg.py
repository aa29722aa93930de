"""Charts as SVG text, from the standard library alone: lines with bands, scatter, bars, heat map, plane.

Colors are classes (`c0` …, `central`, `alone`), so one drawing serves light, dark and print. The palette is
Okabe and Ito's, which color-blind readers can tell apart; shapes and dashes say the same again. Every mark
carries its value in a <title>.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..files import write_atomic
from .markup import Safe, join, plain, tag
from .numbers import is_finite, significant, truncate

WIDTH, HEIGHT = 480, 330
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0578d", "#b07d00", "#3a9bd6", "#7a5230", "#6a51a3")
DARK = ("#56b4e9", "#f2884b", "#2fc99b", "#e09cc4", "#e6b93e", "#9ad3f5", "#c9a184", "#b3a2e0")
SMALLEST = 1e-100  # on a logarithmic axis; smaller values are rounding errors of zero
LEVELS = 12  # steps of a heat map that can be distinguished in one hue


def _ramp(low: str, high: str) -> list[str]:
    ends = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (low, high)]
    return [
        "#" + "".join(f"{round(a + (b - a) * k / (LEVELS - 1)):02x}" for a, b in zip(*ends))
        for k in range(LEVELS)
    ]


def _color_rules(
    palette: Sequence[str], ink: str, soft: str, grid: str, paper: str, alarm: str, ramp: Sequence[str]
) -> str:
    rules = [f".c{i}{{color:{c}}}" for i, c in enumerate(palette)] + [
        f".h{i}{{fill:{c};stroke:{c}}}" for i, c in enumerate(ramp)
    ]
    rules += [
        f"text{{fill:{ink}}}",
        f".soft{{fill:{soft}}}",
        f".central,.ink{{color:{ink}}}",
        f".alone,.quiet{{color:{soft}}}",
        f".paper{{fill:{paper}}}",
        f".grid{{stroke:{grid}}}",
        f".alarm{{color:{alarm}}}",
        f".alarm-text{{fill:{alarm}}}",
        f".halo{{stroke:{paper}}}",
        f".hole{{fill:{grid}}}",
    ]
    return "".join(".tacit-chart " + rule.replace(",.", ",.tacit-chart .") for rule in rules)


STYLE = Safe(
    ".tacit-chart{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".tacit-chart .title{font-size:14px;font-weight:600}.tacit-chart .small{font-size:10.5px}"
    ".tacit-chart "
    ".line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".tacit-chart .thin{stroke-width:1.1;opacity:.75}.tacit-chart .band{fill:currentColor;opacity:.16}"
    ".tacit-chart .dot{fill:currentColor}.tacit-chart .halo{stroke-width:1.2}"
    ".tacit-chart .grid{stroke-width:1;fill:none}.tacit-chart "
    ".rule{stroke:currentColor;stroke-width:1.5;stroke-dasharray:5 4}"
    ".tacit-chart .d1 .line{stroke-dasharray:7 4}.tacit-chart .d2 .line{stroke-dasharray:2 4}"
    ".tacit-chart .alone .line{stroke-dasharray:5 4}"
    ".tacit-chart rect{stroke-width:0}.tacit-chart .level{stroke-width:.7}"
    ".tacit-chart .shade{fill:currentColor;opacity:.1}.tacit-chart "
    ".outlined{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
    + _color_rules(LIGHT, "#1d2733", "#5b6876", "#dde3e8", "#ffffff", "#b3261e", _ramp("#eef4f9", "#0a4a82"))
    + "@media screen and (prefers-color-scheme:dark){"
    + _color_rules(DARK, "#e8edf2", "#9fadba", "#33404c", "#182028", "#ff8a80", _ramp("#1d2934", "#9fd0ff"))
    + "}"
)


class Table(NamedTuple):
    """The values of a chart as a table, for readers who do not see the chart."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """A chart, which notebooks display.

    `.svg` is a stand-alone file; the report lays out `.panels` itself.
    """

    title: str
    body: Safe
    width: float
    height: float
    table: Table | None = None
    caption: str = ""
    panels: tuple[Figure, ...] = ()

    def markup(self, **attributes: str) -> Safe:
        """The <svg> element for the report, which already defines the colors."""
        return tag(
            "svg",
            tag("title", self.title),
            self.body,
            class_="tacit-chart",
            role="img",
            aria_label=self.title,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            **attributes,
        )

    @property
    def svg(self) -> str:
        return self.markup(
            xmlns="http://www.w3.org/2000/svg", width=f"{self.width:g}", height=f"{self.height:g}"
        ).replace("</title>", f"</title><style>{STYLE}</style>", 1)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        write_atomic(path, self.svg)
        return path


def combine(title: str, figures: Sequence[Figure], columns: int = 2) -> Figure:
    """Combine several charts into one figure."""
    if len(figures) == 1:
        return figures[0]
    parts, top = [], 0.0
    for start in range(0, len(figures), columns):
        row, left = figures[start : start + columns], 0.0
        for figure in row:
            parts.append(
                tag(
                    "svg",
                    figure.body,
                    x=left,
                    y=top,
                    width=float(figure.width),
                    height=float(figure.height),
                    viewBox=f"0 0 {figure.width:g} {figure.height:g}",
                )
            )
            left += figure.width
        top += max(f.height for f in row)
    width = max(sum(f.width for f in figures[s : s + columns]) for s in range(0, len(figures), columns))
    return Figure(title, join(parts), width, top, panels=tuple(figures))


@dataclass(frozen=True)
class Series:
    """One curve or point cloud with a band (`low`, `high`) and a text for each point."""

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    style: str = "c0"
    low: Sequence[Any] = ()
    high: Sequence[Any] = ()
    words: Sequence[str] = ()
    thin: bool = False


class Rule(NamedTuple):
    """A horizontal reference line."""

    name: str
    value: float
    style: str = "ink"


@dataclass(frozen=True)
class Axis:
    label: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    fixed: bool = False
    form: Callable[[float, float], str] = field(
        default=lambda value, step: significant(0.0 if abs(value) < step / 1e6 else value)
    )

    def over(self, values: Sequence[Any], pad: float = 0.04) -> Axis:
        """Return the axis, extended to the values; logarithmic only if they allow it."""
        if self.fixed:
            return self
        known = [float(v) for v in values if self.fits(v)]
        if not known:
            return replace(self, low=0.0, high=1.0, log=False)
        low, high = (math.log10(v) if self.log else v for v in (min(known), max(known)))
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):
            low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
        room = (high - low) * pad
        return replace(self, low=low - room, high=high + room)

    def part(self, value: float) -> float:
        """Return the position on the axis, from 0 to 1 (and beyond)."""
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)

    def fits(self, value: Any) -> bool:
        return is_finite(value) and (not self.log or value > SMALLEST)

    def ticks(self) -> list[tuple[float, str]]:
        if self.log and self.high - self.low > 1:
            decades = range(math.ceil(self.low), math.floor(self.high) + 1)
            every = max(1, math.ceil(len(decades) / 6))
            factors = (1, 2, 5) if len(decades) <= 2 else (1,)
            marks = [
                f * 10.0**d
                for d in range(decades.start - 1, decades.stop + 1)
                if (d - decades.start) % every == 0
                for f in factors
            ]
            return [(m, self.form(m, m)) for m in marks if -1e-9 <= self.part(m) <= 1 + 1e-9]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        raw = (high - low) / 5
        scale = 10.0 ** math.floor(math.log10(raw))
        step = next(s * scale for s in (1, 2, 5, 10) if s * scale >= raw * 0.7)
        first = math.ceil(low / step - 1e-9)
        return [
            (k * step, self.form(k * step, step)) for k in range(first, math.floor(high / step + 1e-9) + 1)
        ]


def _mark(style: str, x: float, y: float, r: float = 3.4, word: str = "", cls: str = "dot halo") -> Safe:
    """Draw a circle, square, triangle or diamond, so that colors are not needed."""
    shape = int(style[1]) % 4 if style[:1] == "c" and style[1:2].isdigit() else 0
    s, w = 1.35 * r, -1.35 * r
    d = {
        1: f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
        2: f"M{x:.1f} {y - 1.25 * r:.1f}l{1.2 * r:.1f} {2.1 * r:.1f}h{-2.4 * r:.1f}z",
        3: f"M{x:.1f} {y - s:.1f}l{s:.1f} {s:.1f}l{w:.1f} {s:.1f}l{w:.1f} {w:.1f}z",
    }.get(shape)
    drawing = tag("path", d=d, class_=cls) if d else tag("circle", cx=x, cy=y, r=r, class_=cls)
    return tag("g", drawing, tag("title", word)) if word else drawing


def heading(title: str) -> tuple[Safe, float]:
    """Draw the title in one or two lines; return its height."""
    lines = textwrap.wrap(plain(title), 50, max_lines=2, placeholder=" …") or [""]
    return tag(
        "text", [tag("tspan", line, x=16, y=22 + 18 * k) for k, line in enumerate(lines)], class_="title"
    ), 18.0 * (len(lines) - 1)


def _legend(items: Sequence[tuple[str, str, bool]], width: float, top: float) -> tuple[Safe, float]:
    """Draw the legend in as many rows as needed; return its height.

    Widths are estimated, because SVG cannot measure text before it is rendered.
    """
    parts, x, y = [], 16.0, top
    for k, (name, style, is_rule) in enumerate(items):
        wide = 38 + 7.2 * len(truncate(name, 34))
        if x > 16 and x + wide > width - 8:
            x, y = 16.0, y + 19
        line = tag("line", x1=x, y1=y - 4, x2=x + 20, y2=y - 4, class_="rule" if is_rule else "line")
        mark = None if is_rule else _mark(style, x + 10, y - 4, 3.2)
        hit = tag("rect", x=x - 4, y=y - 15, width=wide - 4, height=19.0, rx=4, fill="transparent")
        parts.append(
            tag(
                "g",
                hit,
                line,
                mark,
                tag("text", truncate(name, 34), x=x + 25, y=y),
                class_=f"key {style}",
                data_series=k,
            )
        )
        x += wide
    return join(parts), (y + 12 if items else top - 8)


def plot(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    rules: Sequence[Rule] = (),
    shade: tuple[float, float, str] | None = None,
    diagonal: bool = False,
    joined: bool = True,
    caption: str = "",
    table: Table | None = None,
) -> Figure:
    """Draw curves (`joined`) or point clouds in one frame.

    Values that are not finite are gaps.
    """
    x = x.over([v for s in series for v, w in zip(s.x, s.y) if is_finite(w)], 0.015 if joined else 0.05)
    y = y.over(
        [v for s in series for part in (s.y, s.low, s.high) for v in part] + [r.value for r in rules], 0.06
    )
    if diagonal:  # equal axes, so that the diagonal means "equal"
        both = (min(x.low, y.low), max(x.high, y.high))
        x, y = replace(x, low=both[0], high=both[1]), replace(y, low=both[0], high=both[1])
    keys = [(s.name, s.style, False) for s in series] + [(r.name, r.style, True) for r in rules]
    head, down = heading(title)
    legend, top = _legend(keys if len(keys) > 1 else [], WIDTH, 48 + down)
    left, right, bottom = 62.0, WIDTH - 22.0, top + HEIGHT - 108.0

    def px(v: float) -> float:
        return left + x.part(v) * (right - left)

    def py(v: float) -> float:
        return bottom - y.part(v) * (bottom - top)

    parts = [head, legend, *_frame(x, y, px, py, left, right, top, bottom)]
    if shade:
        start, end = px(shade[0]), px(shade[1])
        parts += [
            tag("rect", x=start, y=top, width=end - start, height=bottom - top, class_="shade alarm"),
            tag("text", shade[2], x=start + 6, y=top + 14, class_="alarm-text small"),
        ]
    if diagonal:
        parts.append(tag("line", x1=left, y1=bottom, x2=right, y2=top, class_="rule quiet"))
    parts += [_curve(k, s, x, y, px, py, joined) for k, s in enumerate(series)]
    parts += [
        tag(
            "g",
            tag("line", x1=left, x2=right, y1=py(r.value), y2=py(r.value), class_="rule"),
            tag("title", f"{r.name}: {y.form(r.value, 1e-3)}"),
            class_=f"series {r.style}",
            data_series=len(series) + k,
        )
        for k, r in enumerate(rules)
        if y.fits(r.value)
    ]
    if not any(x.fits(a) and y.fits(b) for s in series for a, b in zip(s.x, s.y)):
        parts.append(
            tag(
                "text",
                "no finite values to draw",
                x=(left + right) / 2,
                y=(top + bottom) / 2,
                text_anchor="middle",
                class_="soft",
            )
        )
    frame = tag(
        "rect", x=left, y=top, width=right - left, height=bottom - top, fill="transparent", class_="area"
    )
    return Figure(title, join([*parts[:2], frame, *parts[2:]]), WIDTH, bottom + 48, table, caption)


def _frame(
    x: Axis,
    y: Axis,
    px: Callable[[float], float],
    py: Callable[[float], float],
    left: float,
    right: float,
    top: float,
    bottom: float,
) -> list[Safe]:
    parts = []
    for value, word in y.ticks():
        parts += [
            tag("line", x1=left, x2=right, y1=py(value), y2=py(value), class_="grid"),
            tag("text", word, x=left - 8, y=py(value) + 4, text_anchor="end", class_="soft"),
        ]
    for value, word in x.ticks():
        parts += [
            tag("line", x1=px(value), x2=px(value), y1=bottom, y2=bottom + 5, class_="grid"),
            tag("text", word, x=px(value), y=bottom + 19, text_anchor="middle", class_="soft"),
        ]
    middle = (top + bottom) / 2
    return [
        *parts,
        tag(
            "text",
            x.label + (" (log scale)" if x.log else ""),
            x=(left + right) / 2,
            y=bottom + 39,
            text_anchor="middle",
        ),
        tag(
            "text",
            y.label + (" (log scale)" if y.log else ""),
            x=14,
            y=middle,
            text_anchor="middle",
            transform=f"rotate(-90 14 {middle:.1f})",
        ),
    ]


def _curve(
    k: int,
    s: Series,
    x: Axis,
    y: Axis,
    px: Callable[[float], float],
    py: Callable[[float], float],
    joined: bool,
) -> Safe:
    runs: list[list[int]] = [[]]
    for i, (a, b) in enumerate(zip(s.x, s.y)):
        if x.fits(a) and y.fits(b):
            runs[-1].append(i)
        elif runs[-1]:
            runs.append([])
    known = [i for run in runs for i in run]
    words = [s.words[i] if i < len(s.words) else f"{s.name}: {y.form(s.y[i], 1e-3)}" for i in known]
    if not joined:
        small = 2.0 if len(known) > 300 else 3.6
        return tag(
            "g",
            [_mark(s.style, px(s.x[i]), py(s.y[i]), small, word) for i, word in zip(known, words)],
            class_=f"series {s.style}",
            data_series=k,
        )
    parts: list[Safe] = []
    for run in runs:
        edge = [i for i in run if i < len(s.low) and y.fits(s.low[i]) and y.fits(s.high[i])]
        if len(edge) > 1:
            outline = [(px(s.x[i]), py(s.high[i])) for i in edge] + [
                (px(s.x[i]), py(s.low[i])) for i in reversed(edge)
            ]
            parts.append(
                tag("path", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in outline) + "Z", class_="band")
            )
        if len(run) > 1:
            parts.append(
                tag(
                    "path",
                    d="M" + "L".join(f"{px(s.x[i]):.1f} {py(s.y[i]):.1f}" for i in run),
                    class_="line thin" if s.thin else "line",
                )
            )
    if known and not s.thin:
        parts.append(_mark(s.style, px(s.x[known[-1]]), py(s.y[known[-1]])))
    points = json.dumps(
        [
            [round(px(s.x[i]), 1), round(py(s.y[i]), 1), x.form(s.x[i], 1e-3), plain(w)]
            for i, w in zip(known, words)
        ],
        ensure_ascii=False,
    )
    return tag(
        "g",
        *parts,
        tag("title", words[-1]) if known else None,
        class_=f"series {s.style}",
        data_series=k,
        data_points=points,
    )


def bars(
    title: str,
    labels: Sequence[str],
    values: Sequence[Any],
    form: Callable[[Any], str],
    *,
    marked: Sequence[int] = (),
    rules: Sequence[Rule] = (),
    style: str = "c0",
    dots: bool = False,
    caption: str = "",
    columns: tuple[str, str] = ("name", "value"),
) -> Figure:
    """Draw horizontal bars from zero, or dots on their own scale.

    `marked` ones differ by color, shape and text.
    """
    known = [v for v in values if is_finite(v)] + [r.value for r in rules if is_finite(r.value)]
    axis = Axis("").over(known if dots else [0.0, *known], 0.08 if dots else 0.0)
    left = 22 + 6.8 * max([len(truncate(label)) for label in labels], default=4)
    head, down = heading(title)
    legend, top = _legend([(r.name, r.style, True) for r in rules], WIDTH, 48 + down)
    step = 20.0 if len(labels) <= 24 else 15.0
    top, right = top + (6 if rules else -8), WIDTH - 84.0
    parts = [head, legend]
    for k, (label, value) in enumerate(zip(labels, values)):
        y = top + step * (k + 0.5)
        chosen = "alarm" if k in marked else style
        parts.append(
            tag(
                "text",
                truncate(label),
                x=left - 8,
                y=y + 4,
                text_anchor="end",
                class_="alarm-text" if k in marked else None,
            )
        )
        if not is_finite(value):
            parts.append(tag("text", "not measured", x=left + 4, y=y + 4, class_="soft small"))
            continue
        end = left + axis.part(value) * (right - left)
        if dots:
            mark = [
                tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"),
                _mark("c3" if k in marked else "c0", end, y, 4.4),
            ]
        else:
            mark = [
                tag(
                    "rect",
                    x=left,
                    y=y - step * 0.34,
                    width=max(1.0, end - left),
                    height=step * 0.68,
                    rx=2,
                    class_="dot",
                )
            ]
        parts.append(tag("g", *mark, tag("title", f"{label}: {form(value)}"), class_=chosen))
        parts.append(
            tag(
                "text",
                form(value),
                x=(right if dots else end) + 8,
                y=y + 4,
                class_="alarm-text small" if k in marked else "small",
            )
        )
    end = top + step * len(labels)
    parts += [
        tag("line", x1=at, x2=at, y1=top - 2, y2=end + 2, class_=f"rule {r.style}")
        for r in rules
        if is_finite(r.value)
        for at in [left + axis.part(r.value) * (right - left)]
    ]
    rows = [
        (str(label), form(value) + (" (marked)" if k in marked else ""))
        for k, (label, value) in enumerate(zip(labels, values))
    ]
    return Figure(title, join(parts), WIDTH, end + 16, Table(columns, rows), caption)
