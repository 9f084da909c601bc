"""The compared mechanisms, and how each is attached to a host. All of them end with the stack of their place."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.network import mechanisms_netfilter, mechanisms_tcx
from bench.network.accounting import LINKS
from bench.network.mechanisms_btf import KernelTypes
from bench.network.mechanisms_code import FAMILIES
from bench.network.mechanisms_links import TCX_EGRESS, TCX_INGRESS, at_hook, at_link
from bench.network.mechanisms_maps import Counters, Counts, by_address, by_link, by_prefix
from muster.network.bpf.groups import EGRESS, INGRESS
from muster.network.bpf.handle import Handle
from muster.network.traffic.backend import Subject
from muster.network.traffic.backends.nftables import NftablesBackend
from muster.network.traffic.classes import Classes
from tests.support.networknamespaces import Node

NEIGHBOURS: Final = "tcx_pod_link"
"""This mechanism also counts neighbour discovery, which is in the class `internal`."""

PREROUTING, FORWARD = 0, 2
"""Hooks of netfilter."""

_AFTER_DNAT, _AFTER_FILTERS = -90, 300
_VERSIONS: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_types = functools.cache(KernelTypes)


@dataclass(frozen=True)
class Place:
    """A host, the subjects that are pods on it, and what ends with the measurement. The first pod sends."""

    node: Node
    subjects: Sequence[Subject]
    stack: contextlib.ExitStack

    @property
    def nic(self) -> int:
        """The number of the host's link to the outside."""
        return self.node.host.call(socket.if_nametoindex, "eth0")

    @property
    def pod_link(self) -> int:
        """The number of the host's link to the pod."""
        return self.node.host.call(socket.if_nametoindex, "pod0")

    @property
    def addresses(self) -> list[tuple[str, ...]]:
        """The addresses of each pod."""
        return [each.addresses for each in self.subjects]

    def counters(self, *, atomic: bool = False) -> Counters:
        """Return counters for all pods."""
        return Counters(self.stack, len(self.subjects), atomic=atomic)

    def at_hook(self, program: Handle, version: int, hook: int, priority: int) -> None:
        """Attach a program at a hook of the host's netfilter, and keep both."""
        kept = self.stack.enter_context(program)
        self.stack.enter_context(self.node.host.call(at_hook, kept, _VERSIONS[version], hook, priority))

    def at_link(self, program: Handle, link: int, attach_type: int) -> None:
        """Attach a program at a link of the host, and keep both."""
        kept = self.stack.enter_context(program)
        self.stack.enter_context(self.node.host.call(at_link, kept, link, attach_type))


Attach = Callable[[Place], Callable[[], Counts] | None]
"""Attaches a mechanism, and returns what reads its counters if it counts."""


def _none(place: Place) -> None:
    """Leave the host as it is."""


def _nftables(place: Place) -> Callable[[], Counts]:
    backend = NftablesBackend(LINKS)
    place.node.host.call(backend.setup, Classes())
    place.node.host.call(backend.put, place.subjects)
    sender = place.subjects[0].id

    def read() -> Counts:
        counts = place.node.host.call(backend.read)
        return {
            (key.cls, key.direction): count for key, count in counts.items() if key.subject == sender and any(count)
        }

    return read


def _netfilter_empty(place: Place) -> None:
    for family in FAMILIES:
        place.at_hook(mechanisms_netfilter.empty(), family.version, PREROUTING, _AFTER_DNAT)
        place.at_hook(mechanisms_netfilter.empty(), family.version, FORWARD, _AFTER_FILTERS)


def _netfilter(place: Place, hook_of_received: int) -> Callable[[], Counts]:
    counters, pods = place.counters(), by_address(place.stack, place.addresses)
    for family in FAMILIES:
        for direction, hook, priority in (
            (INGRESS, hook_of_received, _AFTER_DNAT),
            (EGRESS, FORWARD, _AFTER_FILTERS),
        ):
            program = mechanisms_netfilter.counting(_types(), family, direction, place.nic, pods, counters)
            place.at_hook(program, family.version, hook, priority)
    return counters.read


def _tcx_empty(place: Place) -> None:
    for attach_type in (TCX_INGRESS, TCX_EGRESS):
        place.at_link(mechanisms_tcx.empty(attach_type), place.pod_link, attach_type)


def _tcx_nic(place: Place, *, atomic: bool = False, trie: bool = False) -> Callable[[], Counts]:
    counters = place.counters(atomic=atomic)
    links = by_link(place.stack, len(place.subjects), place.pod_link)
    tries = by_prefix(place.stack) if trie else None
    for direction, link, only_from in ((EGRESS, place.nic, 0), (INGRESS, place.pod_link, place.nic)):
        program = mechanisms_tcx.counting(
            TCX_EGRESS, direction, counters, links=links, tries=tries, only_from=only_from
        )
        place.at_link(program, link, TCX_EGRESS)
    return counters.read


def _tcx_pod_link(place: Place) -> Callable[[], Counts]:
    counters = place.counters()
    without_pods = by_prefix(place.stack, place.addresses)
    sent = mechanisms_tcx.counting(TCX_INGRESS, EGRESS, counters, tries=without_pods)
    place.at_link(sent, place.pod_link, TCX_INGRESS)
    received = mechanisms_tcx.counting(TCX_EGRESS, INGRESS, counters, tries=by_prefix(place.stack), only_from=place.nic)
    place.at_link(received, place.pod_link, TCX_EGRESS)
    return counters.read


MECHANISMS: Final[Mapping[str, Attach]] = {
    "none": _none,
    "nftables": _nftables,
    "netfilter_empty": _netfilter_empty,
    "netfilter": lambda place: _netfilter(place, PREROUTING),
    "netfilter_forward": lambda place: _netfilter(place, FORWARD),
    "tcx_empty": _tcx_empty,
    "tcx_nic": _tcx_nic,
    "tcx_nic_atomic": lambda place: _tcx_nic(place, atomic=True),
    "tcx_nic_trie": lambda place: _tcx_nic(place, trie=True),
    NEIGHBOURS: _tcx_pod_link,
}
"""By name, in the order of the table in docs/performance.md."""
