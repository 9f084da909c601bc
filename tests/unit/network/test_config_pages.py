"""The tables of fields on the pages of the network agent: every field of network.config, with its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import pytest

from muster.network.addresses.config import AddressesConfig
from muster.network.checks.config import ChecksConfig
from muster.network.cni.config import PodsConfig
from muster.network.config import NetworkConfig
from muster.network.shaping.config import ShapingConfig
from muster.network.traffic.config import TrafficConfig
from muster.network.tuning.config import TuningConfig
from muster.network.uplink.config import PairConfig, UplinkConfig

DOCS: Final = Path(__file__).parents[3] / "docs"
PAGES: Final[dict[str, tuple[str, type[msgspec.Struct]]]] = {
    "traffic": ("network-traffic.md", TrafficConfig),
    "uplink": ("network-uplink.md", UplinkConfig),
    "shaping": ("network-shaping.md", ShapingConfig),
    "pods": ("network-cni.md", PodsConfig),
    "pods.addresses": ("network-addresses.md", AddressesConfig),
    "checks": ("network-operations.md", ChecksConfig),
    "tuning": ("network-operations.md", TuningConfig),
}
every_section = pytest.mark.parametrize("section", PAGES)


def fields(struct: type[msgspec.Struct], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the default of each field, also of those in structs below; not of `pods.addresses`."""
    hints = get_type_hints(struct)
    default = msgspec.convert({}, struct)
    for each in msgspec.structs.fields(struct):
        value, kind = getattr(default, each.name), hints[each.name]
        path = f"{above}{each.encode_name}"
        if isinstance(value, msgspec.Struct) and kind is not AddressesConfig:
            yield from fields(kind, f"{path}.") if not isinstance(value, PairConfig) else pair(value, path)
        else:
            yield path, value


def pair(value: PairConfig, path: str) -> Iterator[tuple[str, Any]]:
    """Yield both directions, with the default of this pair."""
    yield f"{path}.in", value.in_
    yield f"{path}.out", value.out


def table(section: str) -> dict[str, str]:
    """Return the default cell of each field in the table of a section. A row may name several fields."""
    page, _ = PAGES[section]
    head = f"| field of `{section}` | default | meaning |\n"
    _, found, rest = (DOCS / page).read_text().partition(head)
    assert found, f"{page} has no table of {section}"
    rows = [line.split("|") for line in rest.partition("\n\n")[0].splitlines()[1:]]
    return {name: row[2].strip() for row in rows for name in re.findall(r"`([^`]+)`", row[1])}


def is_shown(value: Any, cell: str) -> bool:
    """Whether the cell has this default. Empty ones, and long ones, are described in words."""
    if isinstance(value, msgspec.Struct):
        return True  # it has a table of its own
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return cell == str(value).lower() or cell.startswith("the chart's")
    if isinstance(value, tuple | list):
        shown = ", ".join(f'"{each}"' if isinstance(each, str) and not each.isalnum() else str(each) for each in value)
        return not value or f"[{shown}]" in cell or len(value) > 3
    if isinstance(value, int | float):
        return f"{value:g}" in cell.replace(",", "") or (value == 0 and cell == "required")
    return not value or str(value) in cell


@every_section
def test_table_has_every_field_of_the_section(section: str) -> None:
    _, struct = PAGES[section]
    assert set(table(section)) == {path for path, _ in fields(struct)}


@every_section
def test_table_shows_the_defaults(section: str) -> None:
    _, struct = PAGES[section]
    cells = table(section)
    assert {path: cells[path] for path, value in fields(struct) if not is_shown(value, cells[path])} == {}


def test_every_section_has_a_table() -> None:
    named = {each.encode_name for each in msgspec.structs.fields(NetworkConfig)}
    assert named == {section for section in PAGES if "." not in section}
