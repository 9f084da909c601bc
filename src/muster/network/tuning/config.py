"""The section `tuning` of the network agent's configuration. `muster network plan` prints the values.

enabled: true
neighbours:                      # gc_thresh1 to gc_thresh3 of all network namespaces of the node
  ipv4: [80000, 90000, 100000]
  ipv6: [80000, 90000, 100000]
conntrack: {max: 1048576, buckets: 262144}
periodSeconds: 60                # between two looks at changes that other programs made
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from muster.api.configschema import schema

VALUE_MAX: Final = 2**31 - 1
"""The kernel keeps these values in an int."""
Thresholds = tuple[int, ...]


class NeighbourTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Three thresholds for each table; empty ones are left alone."""

    ipv4: Thresholds = ()
    ipv6: Thresholds = ()


class ConntrackTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Most connections, and buckets of the hash table; 0 leaves a value alone."""

    max: Annotated[int, schema(minimum=0, maximum=VALUE_MAX)] = 0
    buckets: Annotated[int, schema(minimum=0, maximum=VALUE_MAX)] = 0


class TuningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Which values are set. A value is only raised: a larger one that the node has already stays."""

    enabled: bool = False
    neighbours: NeighbourTables = NeighbourTables()
    conntrack: ConntrackTable = ConntrackTable()
    period_s: Annotated[float, schema(minimum=1, maximum=3600)] = msgspec.field(default=60.0, name="periodSeconds")


def wanted(config: TuningConfig) -> dict[str, int]:
    """Return the wanted values by the path of the setting below /proc/sys/net."""
    values: dict[str, int] = {}
    for family, thresholds in (("ipv4", config.neighbours.ipv4), ("ipv6", config.neighbours.ipv6)):
        for number, value in enumerate(thresholds, start=1):
            values[f"{family}/neigh/default/gc_thresh{number}"] = value
    for name, value in (("buckets", config.conntrack.buckets), ("max", config.conntrack.max)):
        if value:
            values[f"netfilter/nf_conntrack_{name}"] = value
    return values


def problems(config: TuningConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    for family, thresholds in (("ipv4", config.neighbours.ipv4), ("ipv6", config.neighbours.ipv6)):
        path = f"$.neighbours.{family}"
        if thresholds and len(thresholds) != 3:
            yield path, f"has {len(thresholds)} values; write gc_thresh1, gc_thresh2 and gc_thresh3"
        elif any(not 1 <= each <= VALUE_MAX for each in thresholds):
            yield path, f"write values from 1 to {VALUE_MAX}"
        elif list(thresholds) != sorted(thresholds):
            yield path, f"{list(thresholds)} does not rise; the kernel removes entries above the second value"
    for name, value in (("max", config.conntrack.max), ("buckets", config.conntrack.buckets)):
        if not 0 <= value <= VALUE_MAX:
            yield f"$.conntrack.{name}", f"{value} is not possible; write 0 to {VALUE_MAX}"
    if not 1 <= config.period_s <= 3600:
        yield "$.periodSeconds", f"{config.period_s:g} is not possible; write 1 to 3600"
    if config.enabled and not wanted(config):
        yield "$", "is enabled without a value; write what `muster network plan` prints"
