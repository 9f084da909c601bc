"""The section `dearest` of the guard's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Annotated, Final

import msgspec

from muster.api.configschema import schema

ENTRIES_MAX: Final = 10_000
HALF_LIFE_MAX_S: Final = 30 * 86400.0


class DearestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The log of the dearest queries.

    Attributes:
        entries: how many different queries it keeps.
        half_life_s: after this many seconds a cost counts half, so that the list shows recent queries.
        log_cost: requests of at least this cost get a line in the log of the process; null: none does.
        readers: names of callers and groups that may read the queries of all; others read their own.
    """

    entries: Annotated[int, schema(minimum=10, maximum=ENTRIES_MAX)] = 500
    half_life_s: Annotated[float, schema(minimum=60, maximum=HALF_LIFE_MAX_S)] = msgspec.field(
        default=3600.0, name="halfLifeSeconds"
    )
    log_cost: Annotated[float, schema(exclusiveMinimum=0)] | None = 1e8
    readers: tuple[str, ...] = ()


def problems(config: DearestConfig, known: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible.

    Args:
        config: the section.
        known: names of callers and groups.
    """
    if not 10 <= config.entries <= ENTRIES_MAX:
        yield "$.entries", f"{config.entries} is not possible; write 10 to {ENTRIES_MAX}"
    if not 60 <= config.half_life_s <= HALF_LIFE_MAX_S:
        yield "$.halfLifeSeconds", f"{config.half_life_s:g} is not possible; write 60 to {HALF_LIFE_MAX_S:g}"
    if config.log_cost is not None and not 0 < config.log_cost < inf:
        yield "$.logCost", f"{config.log_cost:g} is not possible; write a number above 0, or null for no lines"
    for n, reader in enumerate(config.readers):
        if reader not in known:
            yield f"$.readers[{n}]", f"{reader!r} is not a caller or group; write one of {', '.join(sorted(known))}"
