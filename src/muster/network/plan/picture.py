"""Draws a plan as SVG: clusters and their peerings, ranges and how full they are, and the supernets.

Colours follow the viewer's light or dark theme. The same plan gives the same picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from muster.api.visible import visible
from muster.network.plan.plan import Capacity, Plan
from muster.network.plan.range import Range, parse_range
from muster.network.plan.request import HUB, ClusterRequest

SPOKES_MAX: Final = 60
"""A picture with more cards is not readable. A last card names the number of the others."""
_WIDTH: Final = 1300
_MARGIN: Final = 24
_CARD: Final = 590
_ROW: Final = 22
_HEAD: Final = 40
_GAP: Final = 16
_SPOKES_X: Final = _WIDTH - _MARGIN - _CARD
_TRUNK_X: Final = (_MARGIN + _CARD + _SPOKES_X) // 2
_TOP: Final = 76
_CIDR_X: Final = 128
_BAR_X: Final = 368
_BAR: Final = 110
_TEXT_MAX: Final = 31
_NAME_MAX: Final = 28
_STRIP: Final = 22
_SLIVER: Final = 2.0

_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
.page { fill: #ffffff }
.card { fill: #f6f8fa; stroke: #8c959f }
.name { font-size: 15px; font-weight: 600 }
.title { font-size: 18px; font-weight: 600 }
.quiet { fill: #57606a }
.mono { font: 12px ui-monospace, monospace }
.wire { stroke: #57606a; stroke-width: 2; fill: none }
.room { fill: #ffffff; stroke: #8c959f }
.planned { fill: #8fc2ff } .now { fill: #0969da }
.soon { fill: #a40e26; font-weight: 600 }
.nodes { fill: #0969da } .pods { fill: #1a7f37 } .services { fill: #9a6700 } .researchers { fill: #8250df }
.taken { fill: #57606a }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.page { fill: #0d1117 }
.card { fill: #161b22; stroke: #6e7681 }
.quiet { fill: #9da7b3 }
.wire { stroke: #9da7b3 }
.room { fill: #0d1117; stroke: #6e7681 }
.planned { fill: #1f5597 } .now { fill: #58a6ff }
.soon { fill: #ff8182 }
.nodes { fill: #58a6ff } .pods { fill: #3fb950 } .services { fill: #d29922 } .researchers { fill: #bc8cff }
.taken { fill: #9da7b3 }
}
"""


def picture(plan: Plan) -> str:
    """Return the SVG document."""
    hub = next(each for each in plan.request.clusters if each.role == HUB)
    spokes = [each for each in plan.request.clusters if each.role != HUB]
    shown, more = spokes[:SPOKES_MAX], len(spokes) - SPOKES_MAX
    body = list(_card(plan, hub, _MARGIN, _TOP))
    y = _TOP
    middles: list[int] = []
    for spoke in shown:
        body += _card(plan, spoke, _SPOKES_X, y)
        middles.append(y + _HEAD // 2)
        y += _height(plan, spoke) + _GAP
    if more > 0:
        body.append(_text(_SPOKES_X, y + 16, f"and {more} more spokes", "quiet"))
        y += _HEAD
    body += _wires(middles)
    y = max(y, _TOP + _height(plan, hub) + _GAP) + 12
    strips, y = _strips(plan, y)
    body += strips
    title = f"Address plan: {len(plan.request.clusters)} clusters on {plan.request.provider}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        'role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{y}"/>',
        _text(_MARGIN, 36, title, "title"),
        _text(
            _MARGIN,
            58,
            f"Strong colour: used today. Faint: planned, in year {plan.request.years}. Lines are peerings.",
            "quiet",
        ),
    ]
    return "\n".join([*head, *body, "</svg>", ""])


def _height(plan: Plan, cluster: ClusterRequest) -> int:
    rows = sum(1 for each in plan.capacities if each.cluster == cluster.name)
    return _HEAD + rows * _ROW + 8


def _card(plan: Plan, cluster: ClusterRequest, x: int, y: int) -> Iterator[str]:
    height = _height(plan, cluster)
    yield f'<rect class="card" x="{x}" y="{y}" width="{_CARD}" height="{height}" rx="6"/>'
    yield _text(x + 12, y + 25, f"{_cut(cluster.name, _NAME_MAX)} ({cluster.role})", "name")
    size = f"{cluster.nodes:,} nodes, {cluster.pods_per_node:,} pods each"
    yield _text(x + _CARD - 12, y + 25, size, "quiet", anchor="end")
    rows = [each for each in plan.capacities if each.cluster == cluster.name]
    for number, each in enumerate(rows):
        yield from _row(plan, each, x, y + _HEAD + number * _ROW)


def _row(plan: Plan, capacity: Capacity, x: int, y: int) -> Iterator[str]:
    cidrs = [
        each.cidr
        for each in plan.ranges
        if (each.cluster, each.use, each.family) == (capacity.cluster, capacity.use, capacity.family)
    ]
    more = f" +{len(cidrs) - 1}" if len(cidrs) > 1 else ""
    baseline = y + 15
    yield _text(x + 12, baseline, f"{capacity.use} {capacity.family.value}", "quiet")
    yield _text(x + _CIDR_X, baseline, _cut(cidrs[0], _TEXT_MAX - len(more)) + more, "mono")
    now = _share(capacity.needed, capacity.addresses)
    planned = _share(capacity.planned, capacity.addresses)
    yield f'<rect class="room" x="{x + _BAR_X}" y="{y + 5}" width="{_BAR}" height="11"/>'
    yield f'<rect class="planned" x="{x + _BAR_X}" y="{y + 5}" width="{planned * _BAR:.1f}" height="11"/>'
    yield f'<rect class="now" x="{x + _BAR_X}" y="{y + 5}" width="{now * _BAR:.1f}" height="11"/>'
    years = capacity.years_left
    soon = years is not None and years < 1
    text = "over 99 years" if years is None else "full" if years < 0 else f"{years:.1f} years"
    yield _text(x + _BAR_X + _BAR + 8, baseline, text, "soon" if soon else "")


def _wires(middles: list[int]) -> Iterator[str]:
    if not middles:
        return
    hub_y = _TOP + _HEAD // 2
    yield f'<path class="wire" d="M{_MARGIN + _CARD} {hub_y}H{_TRUNK_X}V{middles[-1]}"/>'
    for middle in middles:
        yield f'<path class="wire" d="M{_TRUNK_X} {middle}H{_SPOKES_X}"/>'


def _strips(plan: Plan, y: int) -> tuple[list[str], int]:
    """Draw each supernet as a strip with the ranges inside it, to scale."""
    drawn = [_text(_MARGIN, y + 16, "Supernets, to scale", "name")]
    x = _MARGIN + 190
    for use in ("nodes", "pods", "services", "researchers", "taken"):
        drawn.append(f'<rect class="{use}" x="{x}" y="{y + 5}" width="12" height="12"/>')
        drawn.append(_text(x + 18, y + 16, use, "quiet"))
        x += 34 + 8 * len(use)
    y += 32
    inside = [(parse_range(each.cidr), each.use, f"{each.use} of {each.cluster}, {each.cidr}") for each in plan.ranges]
    taken = [(parse_range(each.cidr), "taken", f"{each.name or 'taken'}, {each.cidr}") for each in plan.request.taken]
    left, width = _MARGIN + 240, _WIDTH - 2 * _MARGIN - 240
    for text in plan.request.supernets:
        supernet = parse_range(text)
        drawn.append(_text(_MARGIN, y + 16, _cut(text), "mono"))
        drawn.append(f'<rect class="room" x="{left}" y="{y}" width="{width}" height="{_STRIP}"/>')
        for range_, use, name in (*taken, *inside):
            if supernet.overlaps(range_):
                start, span = _extent(supernet, range_)
                tip = f"<title>{escape(visible(name))}</title>"
                drawn.append(
                    f'<rect class="{use}" x="{left + start * width:.1f}" y="{y}" '
                    f'width="{max(span * width, _SLIVER):.1f}" height="{_STRIP}">{tip}</rect>'
                )
        y += _STRIP + 10
    return drawn, y + _MARGIN


def _extent(whole: Range, part: Range) -> tuple[float, float]:
    first, end = max(whole.first, part.first), min(whole.end, part.end)
    return (first - whole.first) / whole.size, (end - first) / whole.size


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0)


def _cut(text: str, longest: int = _TEXT_MAX) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _text(x: int, y: int, text: str, kind: str, anchor: str = "") -> str:
    more = (f" class={quoteattr(kind)}" if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x}" y="{y}"{more}>{escape(text)}</text>'
