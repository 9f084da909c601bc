"""Counts traffic by programs of eBPF at a control group, where packets pass no firewall, as with Cilium's routing."""

from __future__ import annotations

import contextlib
import ipaddress
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from muster.network.bpf.groups import EGRESS, INGRESS, Program
from muster.network.bpf.maps import ARRAY, HASH, LPM_TRIE, MAPPABLE, Map
from muster.network.bpf.syscall import BpfError
from muster.network.netlink.attributes import by_type
from muster.network.netlink.socket import ROUTE, NetlinkSocket
from muster.network.traffic.backend import (
    HOST,
    BackendError,
    Count,
    CounterKey,
    CountersGone,
    Direction,
    Subject,
)
from muster.network.traffic.backends.ebpf_program import (
    COUNT_BYTES,
    INTERNET_INDEX,
    LEVELS_MAX,
    MARKED,
    SKIP,
    SLOT_COUNTS,
    Maps,
    counting_program,
    entry,
)
from muster.network.traffic.classes import CLASSES_MAX, INTERNET, Classes
from muster.network.traffic.subjects import addresses, checked, group_id, group_level

SLOTS_MAX: Final = 4096
"""Subjects at most."""

_PREFIXES_MAX: Final = 65536
_ID_BYTES: Final = 104
_NAME_BYTES: Final = 32
_DIRECTIONS: Final[tuple[tuple[int, Direction], ...]] = ((INGRESS, "in"), (EGRESS, "out"))
_SLOT: Final = struct.Struct(f"={_ID_BYTES}sQ")
_U32, _U64, _PAIR = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=QQ")
_GET_ADDRESS: Final = 22
_ADDRESS_HEAD: Final = struct.Struct("=BBBBI")
_LOCAL, _ADDRESS = 2, 1
_MISSING: Final = 2


class _Files(NamedTuple):
    """The maps; each has its name in the folder."""

    peers4: Map
    peers6: Map
    levels: Map
    subjects: Map
    counts: Map
    slots: Map
    classes: Map


_SHAPES: Final = {
    "peers4": (LPM_TRIE, 8, 4, _PREFIXES_MAX, 0),
    "peers6": (LPM_TRIE, 20, 4, _PREFIXES_MAX, 0),
    "levels": (ARRAY, 4, 4 * LEVELS_MAX, 1, 0),
    "subjects": (HASH, 8, 4, SLOTS_MAX, 0),
    "counts": (ARRAY, 4, COUNT_BYTES, SLOTS_MAX * SLOT_COUNTS, MAPPABLE),
    "slots": (ARRAY, 4, _SLOT.size, SLOTS_MAX, MAPPABLE),
    "classes": (ARRAY, 4, _NAME_BYTES, CLASSES_MAX, 0),
}


class EbpfBackend:
    """Counts sockets by control group and mark, in every network namespace.

    It sees the packets of sockets only: neither those that the node forwards, nor those that the kernel sends without a
    socket. Where kube-proxy translates a Service's address later, it sees that address. It does not count by addresses
    of subjects, but packets to them stay on the node and are not counted.

    Args:
        pins: a folder in a bpf file system, where maps and programs survive the agent. It is created.
        cgroup_root: the root of the unified hierarchy, as this process sees it.
        attach_to: the group whose sockets are counted; the root by default.
    """

    def __init__(
        self,
        *,
        pins: Path = Path("/sys/fs/bpf/muster-traffic"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        attach_to: Path | None = None,
    ) -> None:
        self._pins = pins
        self._cgroup_root = cgroup_root
        self._attach_to = attach_to or cgroup_root
        self._classes: Classes | None = None

    @property
    def name(self) -> str:
        """See Backend."""
        return "ebpf"

    def setup(self, classes: Classes) -> None:
        """See Backend."""
        try:
            self._pins.mkdir(parents=True, exist_ok=True)
            self._create()
            with self._open() as files:
                indexes = _indexes(files.classes, classes)
                _replace_peers(files, classes, indexes, _kept_addresses(files))
                for way in _DIRECTIONS:
                    self._attach(files, *way)
        except OSError as error:
            raise BackendError(f"programs of eBPF cannot count on this node: {error}") from error
        self._classes = classes

    def instance(self) -> str:
        """See Backend."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with self._open() as files:
            return f"{boot}/{files.counts.number()}"

    def put(self, subjects: Sequence[Subject]) -> Mapping[CounterKey, Count]:
        """See Backend."""
        if self._classes is None:
            raise BackendError("the counters are not set up: call setup first")
        wanted, levels = self._keys(checked(subjects))
        local = {str(address) for subject in subjects for address in addresses(subject)}
        with self._open() as files:
            _replace_peers(files, self._classes, _indexes(files.classes, self._classes), local | _own_addresses())
            files.levels.put(_U32.pack(0), struct.pack(f"={LEVELS_MAX}I", *levels, *[0] * (LEVELS_MAX - len(levels))))
            return self._replace(files, wanted)

    def read(self) -> Mapping[CounterKey, Count]:
        """See Backend."""
        counts: dict[CounterKey, Count] = {}
        with self._open() as files:
            names = _class_names(files.classes)
            with files.counts.memory() as memory:
                _add_slot(counts, memory, 0, HOST, names)
                for slot, subject, _ in _used(files.slots):
                    _add_slot(counts, memory, slot, subject, names)
        return counts

    def remove(self, ids: Sequence[str]) -> Mapping[CounterKey, Count]:
        """See Backend."""
        gone = frozenset(ids)
        with self._open() as files:
            return self._replace(files, {key: owner for _, owner, key in _used(files.slots) if owner not in gone})

    def teardown(self) -> None:
        """See Backend."""
        for direction, name in _DIRECTIONS:
            with contextlib.suppress(BpfError), Program.open(self._pins / name) as program:
                program.detach(self._attach_to, direction)
        for each in (*_SHAPES, *(name for _, name in _DIRECTIONS)):
            (self._pins / each).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._pins.rmdir()

    def _create(self) -> None:
        for name, (kind, key_bytes, value_bytes, entries_max, flags) in _SHAPES.items():
            if not (self._pins / name).exists():
                with Map.create(
                    kind, name, key_bytes=key_bytes, value_bytes=value_bytes, entries_max=entries_max, flags=flags
                ) as made:
                    made.pin(self._pins / name)

    @contextlib.contextmanager
    def _open(self) -> Iterator[_Files]:
        with contextlib.ExitStack() as stack:
            try:
                maps = [
                    stack.enter_context(Map.open(self._pins / name, key_bytes=shape[1], value_bytes=shape[2]))
                    for name, shape in _SHAPES.items()
                ]
            except BpfError as error:
                if error.errno == _MISSING:
                    raise CountersGone(f"another program removed maps from {self._pins}: {error}") from error
                raise BackendError(f"the maps in {self._pins} cannot be used: {error}") from error
            yield _Files(*maps)

    def _attach(self, files: _Files, direction: int, name: str) -> None:
        """Attach the program of this version, instead of that of an earlier agent if there is one."""
        used = Maps(*(each.descriptor for each in files[:5]))
        path = self._pins / name
        with (
            Program.load(counting_program(used, direction), direction, f"muster_{name}") as program,
            contextlib.ExitStack() as stack,
        ):
            if path.exists():
                former = stack.enter_context(Program.open(path))
                try:
                    program.attach(self._attach_to, direction, instead_of=former)
                except BpfError as error:
                    if error.errno != _MISSING:
                        raise
                    program.attach(self._attach_to, direction)  # it was pinned, and not attached yet
                path.unlink()
                program.pin(path)
            else:
                program.pin(path)
                program.attach(self._attach_to, direction)

    def _keys(self, subjects: Sequence[Subject]) -> tuple[dict[int, str], list[int]]:
        keys: dict[int, str] = {}
        levels: set[int] = set()
        for subject in subjects:
            if subject.mark:
                keys[MARKED | subject.mark] = subject.id
            if subject.cgroup:
                level = group_level(Path(subject.cgroup), self._cgroup_root)
                if number := group_id(Path(subject.cgroup)):
                    keys[number] = subject.id
                    levels.add(level)
        if len(levels) > LEVELS_MAX:
            raise ValueError(f"control groups at {len(levels)} levels: at most {LEVELS_MAX} are supported")
        return keys, sorted(levels)

    def _replace(self, files: _Files, wanted: Mapping[int, str]) -> dict[CounterKey, Count]:
        used = list(_used(files.slots))
        ended = {owner for _, owner, key in used if wanted.get(key) != owner}
        final: dict[CounterKey, Count] = {}
        names = _class_names(files.classes)
        with files.counts.memory() as memory:
            for slot, owner, key in used:
                if owner in ended:
                    files.subjects.delete(_U64.pack(key))
                    _add_slot(final, memory, slot, owner, names)
                    files.slots.put(_U32.pack(slot), bytes(_SLOT.size))
                    for number in range(SLOT_COUNTS):
                        files.counts.put(_U32.pack(entry(slot, 0, 0) + number), bytes(COUNT_BYTES))
        present = {key: slot for slot, owner, key in used if owner not in ended}
        free = iter(sorted(set(range(1, SLOTS_MAX)) - set(present.values())))
        for key, owner in wanted.items():
            slot = present[key] if key in present else next(free, 0)
            if not slot:
                raise BackendError(f"more than {SLOTS_MAX - 1} subjects")
            files.slots.put(_U32.pack(slot), _SLOT.pack(owner.encode(), key))
            files.subjects.put(_U64.pack(key), _U32.pack(slot))
        return final


def _used(slots: Map) -> Iterator[tuple[int, str, int]]:
    """Yield (slot, subject, key) of slots in use."""
    with slots.memory() as memory:
        for slot in range(1, SLOTS_MAX):
            if memory[slot * _SLOT.size]:
                owner, key = _SLOT.unpack_from(memory, slot * _SLOT.size)
                yield slot, owner.rstrip(b"\0").decode(), key


def _add_slot(
    counts: dict[CounterKey, Count], memory: mmap.mmap, slot: int, subject: str, names: Sequence[str]
) -> None:
    for index, cls in enumerate(names):
        if cls:
            for direction, name in _DIRECTIONS:
                value = Count(*_PAIR.unpack_from(memory, COUNT_BYTES * entry(slot, index, direction)))
                key = CounterKey(subject, cls, name)
                counts[key] = counts[key].plus(value) if key in counts else value


def _class_names(classes: Map) -> list[str]:
    """Return the class of each index; "" for a free one."""
    values = (classes.get(_U32.pack(index)) or b"" for index in range(CLASSES_MAX))
    return [value.rstrip(b"\0").decode() for value in values]


def _indexes(known: Map, classes: Classes) -> dict[str, int]:
    """Return the index of each class; new classes get free ones.

    Raises:
        BackendError: former classes still hold all indexes.
    """
    names = _class_names(known)
    for cls in sorted(classes.names, key=lambda name: name != INTERNET):  # it is the first
        if cls not in names:
            if "" not in names:
                raise BackendError(f"more than {CLASSES_MAX} classes since the node started: restart it, or use fewer")
            free = names.index("")
            known.put(_U32.pack(free), cls.encode().ljust(_NAME_BYTES, b"\0"))
            names[free] = cls
    if names[INTERNET_INDEX] != INTERNET:
        raise BackendError("the maps are those of another version: remove them with the agent's uninstallation")
    return {name: index for index, name in enumerate(names) if name}


def _replace_peers(files: _Files, classes: Classes, indexes: Mapping[str, int], skipped: set[str]) -> None:
    """Set the prefixes. New ones come before old ones go, so that no packet misses the longest one."""
    for version, peers, bits in ((4, files.peers4, 32), (6, files.peers6, 128)):
        wanted: dict[bytes, bytes] = {}
        for each in classes.ranges(version):
            for network in each.networks(version):
                wanted[_U32.pack(network.prefixlen) + network.network_address.packed] = _U32.pack(indexes[each.cls])
        for text in skipped:
            address = ipaddress.ip_address(text)
            if address.version == version:
                wanted[_U32.pack(bits) + address.packed] = _U32.pack(SKIP)
        present = set(peers.keys())
        for key, value in wanted.items():
            if key not in present or peers.get(key) != value:
                peers.put(key, value)
        for key in present - wanted.keys():
            peers.delete(key)


def _kept_addresses(files: _Files) -> set[str]:
    """Return the addresses that are skipped now: `setup` does not know the subjects."""
    kept = _own_addresses()
    for peers in (files.peers4, files.peers6):
        kept |= {str(ipaddress.ip_address(key[4:])) for key in set(peers.keys()) if peers.get(key) == _U32.pack(SKIP)}
    return kept


def _own_addresses() -> set[str]:
    """Return the addresses of this network namespace: what pods send there stays on the node."""
    with NetlinkSocket(ROUTE) as kernel:
        listed = kernel.dump(_GET_ADDRESS, _ADDRESS_HEAD.pack(0, 0, 0, 0, 0), "list addresses")
    found = set()
    for _, body in listed:
        parts = by_type(body, _ADDRESS_HEAD.size)
        value = parts.get(_LOCAL, parts.get(_ADDRESS))
        if value is not None:
            found.add(str(ipaddress.ip_address(bytes(value))))
    return found
