"""A picture: messages by topic and time, and how late they came; HTML with SVG inside, or PNG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from rmqcore.errors import ConfigError, RmqCoreError

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 320, 70, 40, 16
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
_LATE = "#222222"
_BARS_MAX = 120
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#222}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;"
    "text-align:left;border-bottom:1px solid #ddd}td.n{text-align:right;"
    "font-variant-numeric:tabular-nums}svg{width:100%;height:auto}.key{display:inline-block;"
    "width:.8em;height:.8em;margin:0 .3em 0 1em}"
)
#: heads, then rows; numbers are set to the right
Table = tuple[Sequence[str], Iterable[Sequence[object]]]


def page(title: str, parts: Iterable[str]) -> str:
    """A page of its own, with no file beside it.

    Args:
        title: text, which is escaped here.
        parts: HTML.

    Returns:
        HTML.
    """
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>\n{body}\n</html>\n"
    )


def traffic_page(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A page with the picture of the traffic and nothing else.

    Args:
        title: above the picture.
        rows: of `rmqcore.spark.traffic`.

    Returns:
        HTML.
    """
    return page(title, [traffic_picture(rows)])


def save_traffic(path: Path, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the picture of the traffic to a file; its name ends in .html or .png.

    Args:
        path: of the file.
        title: above the picture.
        rows: of `rmqcore.spark.traffic`.

    Raises:
        ConfigError: another name.
        RmqCoreError: PNG needs matplotlib, which is not installed.
    """
    kind = check_picture(path)
    if kind == ".html":
        path.write_text(traffic_page(title, rows), "utf-8")
    else:
        _save_png(path, title, rows)


def check_picture(path: Path) -> str:
    """Refuse a file that `save_traffic` cannot write, before the work begins; how its name ends.

    Raises:
        ConfigError: the name ends in neither .html nor .png.
        RmqCoreError: PNG needs matplotlib, which is not there.
    """
    kind = path.suffix.lower()
    if kind not in (".html", ".png"):
        raise ConfigError("plot", str(path), "expected a name that ends in .html or .png")
    if kind == ".png":
        try:
            import matplotlib  # noqa: F401, PLC0415 - an extra
        except ImportError:
            raise RmqCoreError("PNG needs matplotlib: pip install 'rmqcore[plot]'") from None
    return kind


def table(name: str, content: Table) -> str:
    """A table under a heading.

    Args:
        name: text, which is escaped here.
        content: its heads, and its rows; every value is escaped here.

    Returns:
        HTML.
    """
    heads, rows = content
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    lines += ["<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows]
    return f"<h2>{escape(name)}</h2><table>{''.join(lines)}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
        return f'<td class="n">{text}</td>'
    return f"<td>{escape(str(value))}</td>"


def traffic_picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bars of messages by topic, a line for the slowest percent, over time.

    Args:
        rows: of `rmqcore.spark.traffic`: topic, minute, messages, p99_ms.
    """
    if not rows:
        return "<p>No messages.</p>"
    names = _names(rows)
    bars, late, labels = _bars(rows, names)
    picture = _svg(bars, late, labels)
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(name)}'
        for name, colour in zip(names, _COLOURS, strict=False)
    )
    line = f'<span class="key" style="background:{_LATE}"></span>p99 from birth to storing'
    return f"<figure>{picture}<figcaption>{keys}{line}</figcaption></figure>"


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The topics that get a colour of their own, busiest first, and what stands for the rest."""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["messages"]
    topics = sorted(totals, key=lambda topic: (-totals[topic], topic))
    named = topics[: len(_COLOURS) - 1]
    return [*named, "all others"] if len(topics) > len(named) else named


def _bars(
    rows: Sequence[Mapping[str, Any]], names: list[str]
) -> tuple[list[list[int]], list[float], list[str]]:
    """Messages of each named topic, p99 in milliseconds, and a label for each bar."""
    minutes = sorted({row["minute"] for row in rows})
    width = -(-len(minutes) // _BARS_MAX)
    place = {minute: number // width for number, minute in enumerate(minutes)}
    bars = [[0] * len(names) for _ in range(place[minutes[-1]] + 1)]
    late = [0.0] * len(bars)
    for row in rows:
        at = place[row["minute"]]
        topic = names.index(row["topic"]) if row["topic"] in names else len(names) - 1
        bars[at][topic] += row["messages"]
        late[at] = max(late[at], row["p99_ms"] or 0.0)
    return bars, late, [_label(minute) for minute in minutes[::width]]


def _label(minute: datetime) -> str:
    return minute.strftime("%m-%d %H:%M")


def _svg(bars: list[list[int]], late: list[float], labels: list[str]) -> str:
    high = max(sum(bar) for bar in bars) or 1
    slow = max(late) or 1.0
    step = (_WIDTH - 2 * _LEFT) / len(bars)
    tall = _HEIGHT - _BOTTOM - _TOP
    shapes, points = [], []
    for number, bar in enumerate(bars):
        x, y = _LEFT + number * step, float(_HEIGHT - _BOTTOM)
        for topic, messages in enumerate(bar):
            height = messages / high * tall
            y -= height
            shapes.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(step - 1, 0.5):.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS[topic]}"><title>{labels[number]}: '
                f"{messages:,} messages</title></rect>"
            )
        points.append(f"{x + step / 2:.1f},{_HEIGHT - _BOTTOM - late[number] / slow * tall:.1f}")
        if number % max(1, len(bars) // 8) == 0:
            shapes.append(f'<text x="{x:.1f}" y="{_HEIGHT - 18}">{labels[number]}</text>')
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3" fill="{_LATE}"/>'
        for x, y in (point.split(",") for point in points)
    )
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{_LATE}" stroke-width="2"/>'
    axes = (
        f'<text x="4" y="{_TOP + 8}">{high:,}</text><text x="4" y="{_HEIGHT - _BOTTOM}">0</text>'
        f'<text x="{_WIDTH - _LEFT + 6}" y="{_TOP + 8}">{slow:,.0f} ms</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12" role="img" '
        f'aria-label="messages and latency over time">{"".join(shapes)}{line}{dots}{axes}</svg>'
    )


def _save_png(path: Path, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(_WIDTH / 100, _HEIGHT / 100), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_ylabel("messages")
    if rows:
        names = _names(rows)
        bars, late, labels = _bars(rows, names)
        places, bottom = range(len(bars)), [0] * len(bars)
        for topic, name in enumerate(names):
            heights = [bar[topic] for bar in bars]
            axes.bar(places, heights, bottom=bottom, color=_COLOURS[topic], label=name)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        shown = places[:: -(-len(bars) // 6)]
        axes.set_xticks(shown, [labels[place] for place in shown])
        slow = axes.twinx()
        slow.plot(places, late, color=_LATE, marker=".", label="p99 from birth to storing")
        slow.set_ylabel("ms")
        figure.legend(loc="outside lower center", ncols=4)
    figure.savefig(path)
