"""The section `shaping` of the network agent's configuration: how a node enforces the section `uplink`.

enabled: true
interfaces: ["*"]         # names of the pods' links on the host, such as cali* or eni*
reserved:                 # this traffic has a part of the rest's limit for itself
  ports: [22, 53]         # TCP and UDP ports of either side
  addresses: []           # prefixes of the other side, such as a public API server
  in: 1M                  # bits/s
  out: 1M
policing: true            # limit host-network pods, and pods whose link is refused, by dropping packets
bpfNames: /sys/fs/bpf/muster-uplink   # folder in a bpf file system; policing needs it
hub:
  address: ""             # host:port; default: the Service muster-network-hub
  ca: /etc/muster/network-hub/ca.crt
  token: /var/run/secrets/muster-network/token
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from muster.api.configschema import schema
from muster.kube.objects.quantity import to_int
from muster.network.shaping.queues import FLOOR_BPS
from muster.network.shaping.shaper import Reserved
from muster.network.uplink.wire import Pair

HUB_SERVICE: Final = "muster-network-hub"
HUB_PORT: Final = 9446
_PORTS_MAX: Final = 64


class ReservedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Traffic that has a part of the rest's limit for itself."""

    ports: tuple[Annotated[int, schema(minimum=1, maximum=65535)], ...] = (22, 53)
    addresses: tuple[str, ...] = ()
    in_: str | int = msgspec.field(default="1M", name="in")
    out: str | int = "1M"


class HubConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How the agent reaches the hub."""

    address: str = ""
    ca: str = "/etc/muster/network-hub/ca.crt"
    token: str = "/var/run/secrets/muster-network/token"


class ShapingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How a node enforces the budget."""

    enabled: bool = False
    interfaces: tuple[str, ...] = ("*",)
    reserved: ReservedConfig = ReservedConfig()
    policing: bool = True
    bpf_names: str = "/sys/fs/bpf/muster-uplink"
    hub: HubConfig = HubConfig()


def problems(config: ShapingConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    if not config.interfaces:
        yield "$.interfaces", 'no link would be limited; write names of links, or ["*"] for all pods'
    if len(config.reserved.ports) > _PORTS_MAX:
        yield "$.reserved.ports", f"{len(config.reserved.ports)} are too many; write at most {_PORTS_MAX}"
    for port in config.reserved.ports:
        if not 1 <= port <= 65535:
            yield "$.reserved.ports", f"{port} is not a port; write 1 to 65535"
    for prefix in config.reserved.addresses:
        try:
            ipaddress.ip_network(prefix)
        except ValueError as error:
            yield "$.reserved.addresses", f"{error}; write it as 203.0.113.4/32 or 2001:db8::/64"
    for name, rate in (("in", config.reserved.in_), ("out", config.reserved.out)):
        try:
            number = to_int(rate)
        except ValueError as error:
            yield f"$.reserved.{name}", f"{error}; write bits/s as 1M or 1000000"
            continue
        if number < FLOOR_BPS:
            yield f"$.reserved.{name}", f"{number} is too low; write {FLOOR_BPS} or more"
    if config.hub.address:
        try:
            hub_address(config, "")
        except ValueError:
            yield (
                "$.hub.address",
                f"{config.hub.address!r} is not an address; write host:port, such as hub.example:9446",
            )


def hub_address(config: ShapingConfig, namespace: str) -> tuple[str, int]:
    """Return host and port of the hub. Raises ValueError."""
    if not config.hub.address:
        return f"{HUB_SERVICE}.{namespace}.svc", HUB_PORT
    host, _, port = config.hub.address.rpartition(":")
    if not host or not 1 <= int(port) <= 65535:
        raise ValueError(config.hub.address)
    return host.strip("[]"), int(port)


def reserved_of(config: ShapingConfig) -> Reserved:
    """Return the reserved class of a checked section."""
    return Reserved(
        ports=config.reserved.ports,
        networks=tuple(ipaddress.ip_network(each) for each in config.reserved.addresses),
        rate=Pair(to_int(config.reserved.in_), to_int(config.reserved.out)),
    )
