"""The section `checks` of the network agent's configuration: checks that need privileges.

enabled: true
periodSeconds: 300               # between two looks at the firewalls
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from muster.api.configschema import schema


class ChecksConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How often the node is checked."""

    enabled: bool = False
    period_s: Annotated[float, schema(minimum=10, maximum=86400)] = msgspec.field(default=300.0, name="periodSeconds")


def problems(config: ChecksConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    if not 10 <= config.period_s <= 86400:
        yield "$.periodSeconds", f"{config.period_s:g} is not possible; write 10 to 86400"
