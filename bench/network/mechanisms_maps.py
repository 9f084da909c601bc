"""Maps of the compared programs: pods by address or link, classes by prefix, and counters."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.network.mechanisms_code import FAMILIES, INTERNAL_INDEX, internal_networks
from muster.network.bpf.groups import EGRESS, INGRESS
from muster.network.bpf.maps import ARRAY, HASH, LPM_TRIE, Map
from muster.network.traffic.backend import Count, Direction
from muster.network.traffic.backends.ebpf_program import COUNT_BYTES, INTERNET_INDEX, SKIP, SLOT_COUNTS, entry
from muster.network.traffic.classes import INTERNAL, INTERNET

POD_SLOT: Final = 1
"""The slot of the pod that sends; 0 is the host's."""
Counts = dict[tuple[str, Direction], Count]
"""Counters of the pod that sends, by class and direction; those that are 0 are left out."""

_PER_CPU_ARRAY: Final = 6
_ROOM: Final = 1024
_FIRST_OTHER_LINK: Final = 100_000
_U32: Final = struct.Struct("=I")
_CLASSES: Final = {INTERNET: INTERNET_INDEX, INTERNAL: INTERNAL_INDEX}
_DIRECTIONS: Final[dict[Direction, int]] = {"in": INGRESS, "out": EGRESS}


class Counters:
    """A counter for each slot, class and direction: one for each CPU, or one for all if it is atomic."""

    def __init__(self, stack: contextlib.ExitStack, pods: int, *, atomic: bool) -> None:
        self.atomic = atomic
        entries = (pods + POD_SLOT) * SLOT_COUNTS
        kind = ARRAY if atomic else _PER_CPU_ARRAY
        made = stack.enter_context(Map.create(kind, "counts", value_bytes=COUNT_BYTES, entries_max=entries))
        self.descriptor = made.descriptor
        # the kernel returns the values of all CPUs
        self._values = Map(made.descriptor, _U32.size, COUNT_BYTES * (1 if atomic else _possible_cpus()), entries)

    def read(self) -> Counts:
        """Return the counters of the pod that sends."""
        counts: Counts = {}
        for cls, index in _CLASSES.items():
            for name, direction in _DIRECTIONS.items():
                value = self._values.get(_U32.pack(entry(POD_SLOT, index, direction))) or b""
                numbers = struct.unpack(f"={len(value) // 8}Q", value)
                if any(numbers):
                    counts[cls, name] = Count(sum(numbers[::2]), sum(numbers[1::2]))
        return counts


def by_address(stack: contextlib.ExitStack, pods: Sequence[tuple[str, ...]]) -> dict[int, int]:
    """Return descriptors of the maps from addresses to slots, by version."""
    return {
        family.version: _filled(
            stack,
            HASH,
            family.address,
            {ipaddress.ip_address(each[at]).packed: POD_SLOT + slot for slot, each in enumerate(pods)},
        )
        for at, family in enumerate(FAMILIES)
    }


def by_link(stack: contextlib.ExitStack, pods: int, link: int) -> int:
    """Return the descriptor of the map from links to slots. Other pods have links that no packet passes."""
    links = {_U32.pack(_FIRST_OTHER_LINK + slot): POD_SLOT + slot for slot in range(1, pods)}
    return _filled(stack, HASH, _U32.size, {_U32.pack(link): POD_SLOT} | links)


def by_prefix(stack: contextlib.ExitStack, skipped: Sequence[tuple[str, ...]] = ()) -> dict[int, int]:
    """Return descriptors of the tries from prefixes to classes, by version. Packets to skipped pods do not count."""
    tries = {}
    for at, family in enumerate(FAMILIES):
        prefixes = {
            _U32.pack(network.prefixlen) + network.network_address.packed: INTERNAL_INDEX
            for network in internal_networks(family.version)
        }
        for each in skipped:
            prefixes[_U32.pack(family.address * 8) + ipaddress.ip_address(each[at]).packed] = SKIP
        tries[family.version] = _filled(stack, LPM_TRIE, _U32.size + family.address, prefixes)
    return tries


def _filled(stack: contextlib.ExitStack, kind: int, key_bytes: int, values: Mapping[bytes, int]) -> int:
    made = stack.enter_context(
        Map.create(kind, "bench", key_bytes=key_bytes, value_bytes=_U32.size, entries_max=len(values) + _ROOM)
    )
    for key, value in values.items():
        made.put(key, _U32.pack(value))
    return made.descriptor


def _possible_cpus() -> int:
    """Return for how many CPUs the kernel has room, e.g. 4 for `0-3`."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return int(text.strip().rpartition(",")[2].rpartition("-")[2]) + 1
