"""The picture: everything is in it, inside its frame, and readable in light and dark themes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from muster.network.plan.decide import decide
from muster.network.plan.picture import SPOKES_MAX, picture
from muster.network.plan.plan import Plan
from muster.network.plan.request import Taken
from tests.unit.network.plan.requests import BOTH, cluster, request

SVG = "{http://www.w3.org/2000/svg}"
MONO_PX, TEXT_PX = 7.3, 8.2
"""Widths of a character in these fonts, rounded up."""


def plan() -> Plan:
    taken = (Taken("10.4.0.0/16", 'the <"old"> \x01\x1boffice'),)
    long = "x" * 63
    return decide(
        request(cluster("train", 7500), cluster(long, 300_000, 4), families=BOTH, taken=taken, researchers=900, years=1)
    )


def drawn(of: Plan) -> ElementTree.Element:
    return ElementTree.fromstring(picture(of))


def test_every_cluster_range_and_peering_is_drawn() -> None:
    of = plan()
    root = drawn(of)
    said = {each.text for each in root.iter(f"{SVG}text")}
    for planned in of.ranges:
        assert planned.cidr in said
    assert "train (spoke)" in said
    tips = [each.text or "" for each in root.iter(f"{SVG}title")]
    assert any(each.startswith('the <"old"> ') and each.endswith("office, 10.4.0.0/16") for each in tips)
    wires = [each for each in root.iter(f"{SVG}path") if each.get("class") == "wire"]
    assert len(wires) == len(of.peerings) + 1


def test_texts_stay_inside_the_frame_and_do_not_cover_bars() -> None:
    root = drawn(plan())
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    rooms = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "room"]
    for text in root.iter(f"{SVG}text"):
        size = len(text.text or "") * (MONO_PX if text.get("class") == "mono" else TEXT_PX)
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        left = x - size if text.get("text-anchor") == "end" else x
        assert left >= 0
        assert left + size <= width
        assert 0 < y < height
        for room in rooms:
            top, start = float(room.attrib["y"]), float(room.attrib["x"])
            if top - 4 <= y <= top + float(room.attrib["height"]) + 4 and left < start:
                assert left + size <= start + 1, text.text


def test_bars_show_how_full_ranges_are() -> None:
    of = decide(request(cluster("growing", nodes=512), years=1))
    root = drawn(of)
    room = next(float(each.attrib["width"]) for each in root.iter(f"{SVG}rect") if each.get("class") == "room")
    for kind, numbers in (
        ("now", [each.needed / each.addresses for each in of.capacities]),
        ("planned", [each.planned / each.addresses for each in of.capacities]),
    ):
        bars = [float(each.attrib["width"]) for each in root.iter(f"{SVG}rect") if each.get("class") == kind]
        assert bars == pytest.approx([share * room for share in numbers], abs=0.1)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_bars_have_enough_contrast(theme: str) -> None:
    style = next(drawn(plan()).iter(f"{SVG}style")).text or ""
    light, _, dark = style.partition("@media (prefers-color-scheme: dark) {")
    fills = dict(re.findall(r"(\.?\w+) \{[^}]*?fill: (#\w{6})", dark if theme == "dark" else light))
    for background in (".page", ".card"):
        for text in ("text", ".quiet", ".soon"):
            assert contrast(fills[text], fills[background]) >= 4.5, (text, background)
    for bar in (".now", ".nodes", ".pods", ".services", ".researchers", ".taken"):
        assert contrast(fills[bar], fills[".room"]) >= 3, bar
    assert contrast(fills[".now"], fills[".planned"]) >= 1.5


def test_a_picture_of_many_spokes_says_how_many_are_left_out() -> None:
    spokes = [cluster(f"s{number}", nodes=2, pods_per_node=4, services=4) for number in range(SPOKES_MAX + 5)]
    of = decide(request(*spokes, years=1))
    assert "and 5 more spokes" in {each.text for each in drawn(of).iter(f"{SVG}text")}
    assert picture(of) == picture(of)


def test_a_hub_alone_is_drawn() -> None:
    root = drawn(decide(request()))
    assert not list(root.iter(f"{SVG}path"))
