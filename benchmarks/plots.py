"""Line charts as SVG: few lines over one logarithmic axis, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 360
#: Margins of the axes, in pixels; the right one has room for the names of the lines.
LEFT, RIGHT, TOP, BOTTOM = 76, 150, 48, 56

#: The colours of lines differ also for people who see few colours, on light and on dark ground.
_STYLE = """
.ground { fill: #ffffff; stroke: #d0d7de; } text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; } .grid { stroke: #d8dee4; } .axis { stroke: #57606a; }
.aim { stroke: #57606a; stroke-dasharray: 6 4; } text.aim { stroke: none; fill: #57606a; }
.line { fill: none; stroke-width: 2.5; }
.l0 { stroke: #0b66c3; } .l1 { stroke: #b45309; } .l2 { stroke: #0f766e; } .l3 { stroke: #a21caf; }
.f0 { fill: #0b66c3; } .f1 { fill: #b45309; } .f2 { fill: #0f766e; } .f3 { fill: #a21caf; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; stroke: #30363d; } text { fill: #e6edf3; } .grid { stroke: #262c34; }
  .axis { stroke: #8b949e; } .aim { stroke: #8b949e; } text.aim { fill: #8b949e; }
  .l0 { stroke: #58a6ff; } .l1 { stroke: #f0a04b; } .l2 { stroke: #3fc1b0; } .l3 { stroke: #e086e0; }
  .f0 { fill: #58a6ff; } .f1 { fill: #f0a04b; } .f2 { fill: #3fc1b0; } .f3 { fill: #e086e0; }
}
"""

#: Values of the ticks of a logarithmic axis.
_STEPS = [factor * 10.0**power for power in range(-6, 13) for factor in (1, 2, 5)]

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines by name over a logarithmic x axis; `aim` is a dashed line.

    The labels of the axes name their units. With `log_y` the y axis is logarithmic, too; else it begins at 0.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Points]
    aim: float | None = None
    log_y: bool = False

    def svg(self) -> str:
        """Return the chart as SVG."""
        x, y = self._axes()
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            f' role="img" aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style>",
            f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
            _text(LEFT, 26, self.title, css="title"),
            *(_tick_y(y, value) for value in y.ticks()),
            *(_tick_x(x, value) for value in x.ticks()),
            f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, self.x_label, anchor="middle"),
            _text(0, 0, self.y_label, anchor="middle", more=f'transform="translate(20 {middle}) rotate(-90)"'),
            *(_line(number, points, x, y) for number, points in enumerate(self.lines.values())),
            *self._names(y),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _axes(self) -> tuple[Axis, Axis]:
        points = [point for line in self.lines.values() for point in line]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        ys += [] if self.aim is None else [self.aim]
        across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, log=True)
        low, high = 0.0, 1.08 * max(ys) or 1.0
        if self.log_y:
            low = max(step for step in _STEPS if step <= min(ys))
            high = min(step for step in _STEPS if step >= max(ys))
        return across, Axis(low, high, HEIGHT - BOTTOM, TOP, log=self.log_y)

    def _names(self, y: Axis) -> list[str]:
        """Return the names of the lines beside their last points, and the aim's line with its name."""
        ends = [(y.at(points[-1][1]), name, f"f{number}") for number, (name, points) in enumerate(self.lines.items())]
        parts = []
        if self.aim is not None:
            height = y.at(self.aim)
            parts.append(f'<path class="aim" d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}"/>')
            ends.append((height, f"aim: {number_text(self.aim)}", "aim"))
        last = -math.inf
        for height, name, css in sorted(ends):
            last = max(height, last + 17)
            parts.append(_text(WIDTH - RIGHT + 10, last + 4, name, css=css))
        return parts


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`, drawn between two pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the values to be labelled: powers of ten, or round steps."""
        if self.log:
            found = [value for value in _STEPS if self.low * 0.999 <= value <= self.high * 1.001]
            tens = [value for value in found if math.isclose(math.log10(value), round(math.log10(value)))]
            return tens if len(tens) >= 3 else found
        rough = self.high / 5
        scale = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough)
        return [number * step for number in range(int(self.high / step) + 1)]


def number_text(value: float) -> str:
    """Return a number for people: `10,000`, `2`, `0.25`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Write each plot to a file of its name."""
    folder.mkdir(exist_ok=True)
    for plot in plots:
        (folder / f"{plot.name}.svg").write_text(plot.svg())


def _text(x: float, y: float, text: str, *, css: str = "", anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _tick_y(axis: Axis, value: float) -> str:
    height = axis.at(value)
    line = f'<path class="grid" d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}"/>'
    return line + _text(LEFT - 8, height + 4, number_text(value), anchor="end")


def _tick_x(axis: Axis, value: float) -> str:
    across = axis.at(value)
    line = f'<path class="grid" d="M{across:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
    return line + _text(across, HEIGHT - BOTTOM + 18, number_text(value), anchor="middle")


def _line(number: int, points: Points, x: Axis, y: Axis) -> str:
    pixels = [(x.at(across), y.at(up)) for across, up in points]
    path = "L".join(f"{across:.1f} {up:.1f}" for across, up in pixels)
    dots = "".join(f'<circle class="f{number}" cx="{across:.1f}" cy="{up:.1f}" r="4"/>' for across, up in pixels)
    return f'<path class="line l{number}" d="M{path}"/>{dots}'
