"""Counts traffic by sets of nftables with a counter per element."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Final, NamedTuple

from muster.network.netlink.nft import Element, ElementChange, Ended, NftSocket
from muster.network.netlink.socket import NetlinkError
from muster.network.traffic.backend import BackendError, Count, CounterKey, CountersGone, Direction, Subject
from muster.network.traffic.backends import nft_rules
from muster.network.traffic.backends.program import run_program
from muster.network.traffic.classes import Classes
from muster.network.traffic.interfaces import Interfaces
from muster.network.traffic.subjects import addresses, checked, group_id, group_level

_LOCAL: Final = {nft_rules.ADDRESS4: nft_rules.LOCAL4, nft_rules.ADDRESS6: nft_rules.LOCAL6}


class _Part(NamedTuple):
    """What packets of a subject are recognized by: the kind of its sets and the key in them."""

    kind: str
    key: bytes


class NftablesBackend:
    """Counts by one table of nftables (family inet), beside all others.

    All state is in the kernel: the comment of an element is its subject. So counters survive the agent. Rules name
    links by number. After a link was made again, its packets are counted from the next `read` on.

    Args:
        interfaces: the links that count.
        cgroup_root: the root of the unified hierarchy, as this process sees it. To count by control groups, it must be
            in the host's namespace of them: since 6.11 the kernel resolves levels in that of the program `nft`.
    """

    def __init__(
        self,
        interfaces: Interfaces,
        *,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._interfaces = interfaces
        self._cgroup_root = cgroup_root
        self._classes: Classes | None = None
        self._kinds: frozenset[str] = frozenset()
        self._links: dict[str, int] = {}
        self._rules = 0

    @property
    def name(self) -> str:
        """See Backend."""
        return "nftables"

    def setup(self, classes: Classes) -> None:
        """See Backend."""
        self._classes = classes
        with NftSocket(nft_rules.TABLE) as kernel:
            try:
                owners = _owners(_present(kernel))
                self._use(kernel, owners, frozenset(part.kind for part in owners))
            except NetlinkError as error:
                raise _gone(error) from error

    def instance(self) -> str:
        """See Backend."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with NftSocket(nft_rules.TABLE) as kernel:
            try:
                return f"{boot}/{os.stat('/proc/thread-self/ns/net').st_ino}/{kernel.table_handle()}"
            except NetlinkError as error:
                raise _gone(error) from error

    def put(self, subjects: Sequence[Subject]) -> Mapping[CounterKey, Count]:
        """See Backend."""
        wanted = self._parts(checked(subjects))
        with NftSocket(nft_rules.TABLE) as kernel:
            try:
                kernel.table_handle()
                kinds = self._kinds | {part.kind for part in wanted}
                if kinds != self._kinds:
                    return self._use(kernel, wanted, kinds)
                return _final(kernel.change(_changes(wanted, _present(kernel), self._in_use())))
            except NetlinkError as error:
                raise _gone(error) from error

    def read(self) -> Mapping[CounterKey, Count]:
        """See Backend."""
        counts: dict[CounterKey, Count] = {}
        with NftSocket(nft_rules.TABLE) as kernel:
            try:
                for name in kernel.sets():
                    parsed = nft_rules.parse_set_name(name)
                    if parsed is not None:
                        _add(counts, parsed[1], parsed[2], kernel.elements(name))
                rules = kernel.rules()
            except NetlinkError as error:
                raise _gone(error) from error
        if not counts:
            raise CountersGone(f"the table inet {nft_rules.TABLE} holds no counters: another program flushed it")
        if self._classes is not None and rules != self._rules:
            raise CountersGone(f"another program changed the rules of the table inet {nft_rules.TABLE}")
        if self._classes is not None and self._links != self._present_links():
            self._replace_rules()  # a link was made again: it has another number
        return counts

    def remove(self, ids: Sequence[str]) -> Mapping[CounterKey, Count]:
        """See Backend."""
        gone = frozenset(ids)
        with NftSocket(nft_rules.TABLE) as kernel:
            try:
                present = _present(kernel)
                wanted = {part: owner for part, owner in _owners(present).items() if owner not in gone}
                return _final(kernel.change(_changes(wanted, present, self._in_use())))
            except NetlinkError as error:
                raise _gone(error) from error

    def teardown(self) -> None:
        """See Backend."""
        self._program(f"add table inet {nft_rules.TABLE}\ndelete table inet {nft_rules.TABLE}\n")

    def _in_use(self) -> Classes:
        if self._classes is None:
            raise BackendError("the counters are not set up: call setup first")
        return self._classes

    def _use(self, kernel: NftSocket, wanted: Mapping[_Part, str], kinds: frozenset[str]) -> dict[CounterKey, Count]:
        """Count these parts by rules for these kinds. Sets come first and rules last: no packet falls to the host."""
        classes = self._in_use()
        levels = sorted(filter(None, map(nft_rules.cgroup_level, kinds)))
        self._program(nft_rules.sets(classes, levels))
        ended = kernel.change(_changes(wanted, _present(kernel), classes))
        self._kinds = kinds
        self._replace_rules()
        return _final(ended)

    def _replace_rules(self) -> None:
        levels = sorted(filter(None, map(nft_rules.cgroup_level, self._kinds)))
        links = self._present_links()
        interfaces = replace(
            self._interfaces,
            nics=tuple(name for name in self._interfaces.nics if name in links),
            tunnels=tuple(name for name in self._interfaces.tunnels if name in links),
        )
        self._program(nft_rules.rules(self._in_use(), interfaces, levels, marks=nft_rules.MARK in self._kinds))
        self._links = links
        with NftSocket(nft_rules.TABLE) as kernel:
            try:
                self._rules = kernel.rules()
            except NetlinkError as error:
                raise _gone(error) from error

    def _present_links(self) -> dict[str, int]:
        """Return the numbers of the links that count and exist."""
        found = {}
        for name in (*self._interfaces.nics, *self._interfaces.tunnels):
            with contextlib.suppress(OSError):
                found[name] = socket.if_nametoindex(name)
        return found

    def _parts(self, subjects: Sequence[Subject]) -> dict[_Part, str]:
        parts: dict[_Part, str] = {}
        for subject in subjects:
            for address in addresses(subject):
                kind = nft_rules.ADDRESS4 if address.version == 4 else nft_rules.ADDRESS6
                parts[_Part(kind, address.packed)] = subject.id
            if subject.mark:
                parts[_Part(nft_rules.MARK, struct.pack("=I", subject.mark))] = subject.id
            if subject.cgroup and not subject.addresses:
                folder = Path(subject.cgroup)
                kind = nft_rules.cgroup_kind(group_level(folder, self._cgroup_root))
                if number := group_id(folder):
                    parts[_Part(kind, struct.pack("=Q", number))] = subject.id
        return parts

    def _program(self, commands: str) -> None:
        run_program(("nft", "-f", "-"), commands)


def _present(kernel: NftSocket) -> dict[str, dict[bytes, str]]:
    """Return the elements of all sets, with their comments; nothing if there is no table."""
    try:
        names = kernel.sets()
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            return {}
        raise
    wanted = [name for name in names if name in _LOCAL.values() or nft_rules.parse_set_name(name) is not None]
    return {name: {key: comment for key, comment, _, _ in kernel.elements(name)} for name in wanted}


def _owners(present: Mapping[str, Mapping[bytes, str]]) -> dict[_Part, str]:
    owners: dict[_Part, str] = {}
    for name, elements in present.items():
        parsed = nft_rules.parse_set_name(name)
        if parsed is not None and parsed[0] != nft_rules.REST:
            owners.update((_Part(parsed[0], key), owner) for key, owner in elements.items())
    return owners


def _changes(
    wanted: Mapping[_Part, str], present: Mapping[str, Mapping[bytes, str]], classes: Classes
) -> list[ElementChange]:
    """Return the changes after which exactly the wanted parts are counted, in all classes in use.

    A subject that loses a part ends in all sets, and begins again with what it keeps. Else its sum would fall.
    """
    ended = {owner for part, owner in _owners(present).items() if wanted.get(part) != owner}
    by_kind: dict[str, dict[bytes, str]] = {}
    for part, owner in wanted.items():
        by_kind.setdefault(part.kind, {})[part.key] = owner
    changes = []
    for name, elements in present.items():
        parsed = nft_rules.parse_set_name(name)
        if parsed is None or parsed[0] == nft_rules.REST:
            continue
        kind, _, cls = parsed
        delete = [key for key, owner in elements.items() if owner in ended]
        add = [
            (key, owner)
            for key, owner in (by_kind.get(kind, {}) if cls in classes.names else {}).items()
            if owner in ended or elements.get(key) != owner
        ]
        changes.append(ElementChange(name, delete, add))
    for kind, name in _LOCAL.items():
        local, now = by_kind.get(kind, {}), present.get(name, {})
        changes.append(
            ElementChange(
                name, [key for key in now if key not in local], [(key, "") for key in local if key not in now]
            )
        )
    return changes


def _final(ended: Iterable[Ended]) -> dict[CounterKey, Count]:
    counts: dict[CounterKey, Count] = {}
    for name, element in ended:
        parsed = nft_rules.parse_set_name(name)
        if parsed is not None:
            _add(counts, parsed[1], parsed[2], (element,))
    return counts


def _add(counts: dict[CounterKey, Count], direction: Direction, cls: str, elements: Sequence[Element]) -> None:
    if not elements:
        return
    _, subjects, packets, sizes = zip(*elements, strict=True)
    keys = map(CounterKey._make, zip(subjects, repeat(cls), repeat(direction)))
    more = list(zip(keys, map(Count._make, zip(packets, sizes, strict=True)), strict=True))
    added = dict(more)
    if len(added) == len(more) and counts.keys().isdisjoint(added):
        counts.update(added)  # the usual case, and faster than one after the other
        return
    for key, count in more:
        counts[key] = counts[key].plus(count) if key in counts else count


def _gone(error: NetlinkError) -> BackendError:
    if error.errno == errno.ENOENT:
        return CountersGone(f"another program removed counters of the table inet {nft_rules.TABLE}: {error}")
    return BackendError(f"nftables refused: {error}")
