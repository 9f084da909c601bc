"""Pools of resources that a node assigns to pods: addresses and GPUs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence


class Exhausted(Exception):
    """The pool is empty."""


class AddressPool:
    """Addresses of one range. Each is used by one pod at a time, and reused as late as possible.

    The first two host addresses are reserved: one for the node (or its bridge), and a spare one.
    """

    def __init__(self, cidr: str, reserved: Sequence[str] = ()) -> None:
        """Hold `cidr` such as 127.11.0.0/16; raises ValueError if it is not a network."""
        self._network = ipaddress.ip_network(cidr)
        self._reserved = {ipaddress.ip_address(address) for address in reserved}
        self._used: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
        self._next = 2

    def take(self, preferred: str = "") -> str:
        """Return a free address, `preferred` if it is free and in the range. Raises Exhausted."""
        if preferred:
            wanted = ipaddress.ip_address(preferred)
            if wanted in self._network and wanted not in self._used and wanted not in self._reserved:
                self._used.add(wanted)
                return preferred
        hosts = self._network.num_addresses - 3
        for _ in range(hosts):
            address = self._network[self._next]
            self._next = self._next + 1 if self._next < self._network.num_addresses - 2 else 2
            if address not in self._used and address not in self._reserved:
                self._used.add(address)
                return str(address)
        raise Exhausted(f"all {hosts} addresses of {self._network} are taken")

    def give_back(self, address: str) -> None:
        """Release an address."""
        self._used.discard(ipaddress.ip_address(address))


class DevicePool:
    """GPUs 0..count-1, each used by one pod at a time."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))

    def take(self, count: int) -> list[int]:
        """Return the ids of `count` free devices, lowest first. Raises Exhausted if there are fewer."""
        if count > len(self._free):
            raise Exhausted(f"{count} devices wanted, {len(self._free)} free")
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give_back(self, devices: Sequence[int]) -> None:
        """Release devices."""
        self._free = sorted({*self._free, *devices})
