"""Maps of eBPF: tables that programs and this process share."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from muster.network.bpf.handle import Handle
from muster.network.bpf.syscall import (
    MAP_CREATE,
    MAP_DELETE,
    MAP_LOOKUP,
    MAP_NEXT_KEY,
    MAP_UPDATE,
    OBJ_GET_INFO,
    BpfError,
    bpf,
    packed,
    pinned,
)

HASH, ARRAY, LPM_TRIE = 1, 2, 11
"""Kinds of maps. Keys of LPM_TRIE are the length of the prefix (4 bytes) and the address."""
NO_PREALLOCATION: Final = 1
MAPPABLE: Final = 0x400

_ENTRY: Final = struct.Struct("=IIQQQ")
_CREATE: Final = struct.Struct("=IIIIIII16s")
_INFO: Final = struct.Struct("=IIQ")
_MISSING: Final = 2


class Map(Handle):
    """A map. It lives as long as this object, a program that uses it, or its name in a bpf file system.

    Attributes:
        descriptor: for `Assembler.map`.
    """

    def __init__(self, descriptor: int, key_bytes: int, value_bytes: int, entries_max: int) -> None:
        super().__init__(descriptor)
        self.entries_max = entries_max
        self._key = ctypes.create_string_buffer(key_bytes)
        self._next = ctypes.create_string_buffer(key_bytes)
        self._value = ctypes.create_string_buffer(value_bytes)
        self._value_bytes = value_bytes

    @classmethod
    def create(
        cls, kind: int, name: str, *, key_bytes: int = 4, value_bytes: int, entries_max: int, flags: int = 0
    ) -> Map:
        """Return a new map. `name` has at most 15 characters, for tools only.

        Raises:
            BpfError: EPERM without CAP_BPF.
        """
        if kind == LPM_TRIE:
            flags |= NO_PREALLOCATION
        data = _CREATE.pack(kind, key_bytes, value_bytes, entries_max, flags, 0, 0, name.encode())
        return cls(bpf(MAP_CREATE, packed(data), f"create map {name}"), key_bytes, value_bytes, entries_max)

    @classmethod
    def open(cls, path: Path, *, key_bytes: int = 4, value_bytes: int) -> Map:
        """Return the map with a name in a bpf file system.

        Raises:
            BpfError: ENOENT if there is none; EINVAL if it has other sizes.
        """
        descriptor = pinned(path)
        found = _information(descriptor)
        if found[2:4] != (key_bytes, value_bytes):
            os.close(descriptor)
            raise BpfError(22, f"{path} has keys and values of {found[2]} and {found[3]} bytes")
        return cls(descriptor, key_bytes, value_bytes, found[4])

    def number(self) -> int:
        """Return the kernel's number of the map, which no other map since boot has had."""
        return _information(self.descriptor)[1]

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None without one."""
        self._key.raw = key
        try:
            self._call(MAP_LOOKUP, ctypes.addressof(self._value), "read a map")
        except BpfError as error:
            if error.errno == _MISSING:
                return None
            raise
        return self._value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Raises BpfError, with E2BIG if the map is full."""
        self._key.raw = key
        self._value.raw = value
        self._call(MAP_UPDATE, ctypes.addressof(self._value), "write a map")

    def delete(self, key: bytes) -> None:
        """Remove a key if it is there. Raises BpfError."""
        self._key.raw = key
        try:
            self._call(MAP_DELETE, 0, "delete from a map")
        except BpfError as error:
            if error.errno != _MISSING:
                raise

    def keys(self) -> Iterator[bytes]:
        """Yield all keys. Of a map that changes meanwhile, some may be missing or come twice."""
        data = _ENTRY.pack(self.descriptor, 0, 0, ctypes.addressof(self._next), 0)
        for _ in range(2 * self.entries_max):
            try:
                bpf(MAP_NEXT_KEY, packed(data), "list a map")
            except BpfError as error:
                if error.errno == _MISSING:
                    return
                raise
            key = self._next.raw
            yield key
            self._key.raw = key
            data = _ENTRY.pack(self.descriptor, 0, ctypes.addressof(self._key), ctypes.addressof(self._next), 0)

    def memory(self) -> mmap.mmap:
        """Return the values of an ARRAY with MAPPABLE as memory that programs change: entry n at n * size.

        The size is that of a value, rounded up to 8 bytes.
        """
        size = (self._value_bytes + 7) // 8 * 8 * self.entries_max
        return mmap.mmap(self.descriptor, (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE)

    def _call(self, command: int, value: int, doing: str) -> None:
        bpf(command, packed(_ENTRY.pack(self.descriptor, 0, ctypes.addressof(self._key), value, 0)), doing)


def _information(descriptor: int) -> tuple[int, int, int, int, int]:
    """Return (kind, number, bytes of a key, bytes of a value, entries at most)."""
    found = ctypes.create_string_buffer(88)
    data = _INFO.pack(descriptor, len(found), ctypes.addressof(found))
    bpf(OBJ_GET_INFO, packed(data), "describe a map")
    kind, number, key, value, entries = struct.unpack_from("=IIIII", found.raw)
    return kind, number, key, value, entries
