"""Polices the control groups of pods: their programs and buckets have names in the bpf file system.

So the limits hold when this process ends, and the next one finds them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.network.bpf import groups
from muster.network.bpf.groups import Program
from muster.network.bpf.maps import Map
from muster.network.bpf.syscall import BpfError
from muster.network.localpods.cgroups import unified_root
from muster.network.shaping.demand import ETHERNET_BYTES
from muster.network.shaping.policing import program
from muster.network.shaping.program import Network
from muster.network.shaping.queues import Usage
from muster.network.shaping.shaper import PodUse
from muster.network.uplink.wire import Pair

_DIRECTIONS: Final = ((groups.INGRESS, "in"), (groups.EGRESS, "out"))
_BUCKET: Final = "bucket"


@dataclass
class _Subject:
    name: str
    bucket: Map
    programs: dict[int, Program]
    folders: set[Path]
    limit: Pair | None = None

    def close(self) -> None:
        self.bucket.close()
        for each in self.programs.values():
            each.close()


class Policer:
    """Limits control groups by dropping packets.

    Args:
        names: folder in a bpf file system, such as /sys/fs/bpf/muster-uplink.
        groups_root: /sys/fs/cgroup of the node.
        classes: whether the budget covers a network.
        ports: TCP and UDP ports whose packets are never dropped.

    Raises:
        OSError: the kernel or this process cannot do it; the text says why.
    """

    def __init__(self, names: Path, groups_root: Path, classes: Mapping[Network, bool], ports: Sequence[int]) -> None:
        self._names, self._top, self._ports = names, groups_root, tuple(ports)
        self._root = unified_root(groups_root)
        self._tables = program.make_tables(classes)
        self._subjects: dict[str, _Subject] = {}
        probe = program.make_bucket()
        try:
            for direction, _ in _DIRECTIONS:
                self._load(direction, probe).close()
        finally:
            probe.close()

    def close(self) -> None:
        """Close this process's handles. The limits stay."""
        for subject in self._subjects.values():
            subject.close()
        self._subjects.clear()
        for table in self._tables:
            table.close()

    def apply(self, limits: Mapping[str, Pair | None], folders: Mapping[str, tuple[str, ...]]) -> None:
        """Police subjects, and release all others.

        Args:
            limits: bits/s by subject; None: only count.
            folders: groups of the subjects, below the root. A group that is gone has no packets.

        Raises:
            OSError: the kernel refused.
        """
        for name in self._named():
            if name not in limits:
                self._release(name)
        for name, limit in limits.items():
            subject = self._subjects.get(name) or self._adopt(name)
            if subject.limit != limit or limit is None:
                for direction, _ in _DIRECTIONS:
                    subject.bucket.put(
                        _key(program.LIMIT + direction),
                        program.limit_value(None if limit is None else limit[direction]),
                    )
                subject.limit = limit
            wanted = set(self._unified(folders.get(name, ())))
            for folder in wanted - subject.folders:
                if self._attach(subject, folder):
                    subject.folders.add(folder)
            subject.folders &= wanted

    def can_police(self, folders: Iterable[str]) -> bool:
        """Return whether one of the groups is in the unified hierarchy, which programs need."""
        return any(True for _ in self._unified(folders))

    def _unified(self, folders: Iterable[str]) -> Iterator[Path]:
        for each in folders:
            if (self._top / each).is_relative_to(self._root):
                yield self._top / each

    def _named(self) -> list[str]:
        return [each.name for each in self._names.iterdir()] if self._names.is_dir() else []

    def _load(self, direction: int, bucket: Map) -> Program:
        code = program.assemble(direction, self._tables, bucket, self._ports)
        return Program.load(code, direction, "muster_police")

    def _adopt(self, name: str) -> _Subject:
        """Return a subject with new programs, and the bucket of an earlier process if there is one."""
        home = self._names / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            bucket = Map.open(home / _BUCKET, value_bytes=program.VALUE_BYTES)
        except BpfError as error:
            if error.errno == errno.EINVAL:
                (home / _BUCKET).unlink()
            elif error.errno != errno.ENOENT:
                raise
            bucket = program.make_bucket()
            bucket.pin(home / _BUCKET)
        subject = _Subject(name, bucket, {}, set())
        try:
            for direction, _ in _DIRECTIONS:
                subject.programs[direction] = self._load(direction, bucket)
        except OSError:
            subject.close()
            raise
        self._subjects[name] = subject
        return subject

    def _attach(self, subject: _Subject, folder: Path) -> bool:
        """Attach the programs, instead of those of an earlier process. Return whether the group exists."""
        try:
            number = folder.stat().st_ino
        except FileNotFoundError:
            return False
        for direction, word in _DIRECTIONS:
            path = self._names / subject.name / f"{word}{number}"
            new = subject.programs[direction]
            try:
                old = Program.open(path)
            except BpfError as error:
                if error.errno != errno.ENOENT:
                    raise
                old = None
            try:
                new.attach(folder, direction, instead_of=old)
            except FileNotFoundError:
                return False
            except BpfError as error:
                if old is None or error.errno != errno.ENOENT:
                    raise
                new.attach(folder, direction)
            finally:
                if old is not None:
                    old.close()
            if old is not None:
                path.unlink()
            new.pin(path)
        return True

    def measure(self) -> dict[str, PodUse]:
        """Return the counters of all subjects. Raises OSError."""
        return {name: PodUse(*(_usage(each, way) for way, _ in _DIRECTIONS)) for name, each in self._subjects.items()}

    def teardown(self) -> None:
        """Release all groups, also those of earlier processes. Raises OSError."""
        for name in self._named():
            self._release(name)
        with contextlib.suppress(FileNotFoundError):
            self._names.rmdir()

    def _release(self, name: str) -> None:
        subject = self._subjects.pop(name, None)
        home = self._names / name
        found = _by_inode(self._root) if subject is None else _by_inode(*subject.folders)
        for path in home.iterdir():
            for direction, word in _DIRECTIONS:
                if path.name.startswith(word):
                    group = found.get(int(path.name.removeprefix(word)))
                    if group is not None:
                        with Program.open(path) as attached:
                            attached.detach(group, direction)
            path.unlink()
        home.rmdir()
        if subject is not None:
            subject.close()


def _by_inode(*roots: Path) -> dict[int, Path]:
    """Return the folders below, by the number in the names of their programs."""
    return {
        os.stat(folder).st_ino: Path(folder)
        for root in roots
        for folder, _, _ in os.walk(root)
        if os.path.isdir(folder)
    }


def _key(entry: int) -> bytes:
    return struct.pack("=I", entry)


def _usage(subject: _Subject, direction: int) -> Usage:
    value = subject.bucket.get(_key(program.COUNTS + direction)) or bytes(program.VALUE_BYTES)
    counts = program.read_counts(value)
    return Usage(counts.bytes + ETHERNET_BYTES * counts.packets, counts.packets, counts.drops)
