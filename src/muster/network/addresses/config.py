"""Addresses of pods, in the section `pods` of the network agent's configuration.

provider: static                 # blocks of AddressPools; or aws, azure
families: [IPv4]                 # or [IPv6], or [IPv4, IPv6]
targets: {warm: 8, minimum: 16, maximum: 256}   # addresses of each family on a node
cooldownSeconds: 30              # how long a released address stays unused
runtimeSocket: /run/containerd/containerd.sock  # CRI; the reconciler asks it which sandboxes exist
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from muster.api.configschema import schema
from muster.network.addresses.block import Family
from muster.network.addresses.pool import COOLDOWN_S
from muster.network.addresses.targets import TOTAL_MAX, Targets

COOLDOWN_MAX_S = 3600.0


class AddressesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Where addresses come from, and how many a node keeps."""

    provider: Literal["static", "aws", "azure"] = "static"
    families: tuple[Family, ...] = (Family.IPV4,)
    targets: Targets = Targets()
    cooldown_s: Annotated[float, schema(minimum=0, maximum=COOLDOWN_MAX_S)] = msgspec.field(
        default=COOLDOWN_S, name="cooldownSeconds"
    )
    runtime_socket: str = "/run/containerd/containerd.sock"


def problems(config: AddressesConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    if not config.families or len(set(config.families)) != len(config.families):
        yield "$.families", "write IPv4, IPv6, or each of them once"
    if config.provider == "azure" and Family.IPV6 in config.families:
        yield "$.families", "provider azure has no blocks of IPv6; write [IPv4], or use provider static"
    if not 0 <= config.cooldown_s <= COOLDOWN_MAX_S:
        yield "$.cooldownSeconds", f"{config.cooldown_s:g} is not possible; write 0 to {COOLDOWN_MAX_S:g}"
    targets = config.targets
    for name in ("warm", "minimum"):
        if getattr(targets, name) > targets.maximum:
            yield f"$.targets.{name}", f"is more than targets.maximum, {targets.maximum}; lower it, or raise that"
    for name, least in (("warm", 0), ("minimum", 0), ("maximum", 1)):
        if not least <= getattr(targets, name) <= TOTAL_MAX:
            yield f"$.targets.{name}", f"{getattr(targets, name)} is not possible; write {least} to {TOTAL_MAX}"
    if not Path(config.runtime_socket).is_absolute():
        yield "$.runtimeSocket", f"{config.runtime_socket!r} is not an absolute path"
