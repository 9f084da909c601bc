"""The kernel's types: numbers of functions and offsets of fields, from its BTF (Documentation/bpf/btf.rst)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

VMLINUX: Final = Path("/sys/kernel/btf/vmlinux")

_STRUCT, _UNION, _FUNCTION = 4, 5, 12
_ALIASES: Final = frozenset({8, 9, 10, 11, 18})
"""Typedefs, qualifiers and tags: they lead to another type."""
_HEADER: Final = struct.Struct("=HBBIIIII")
_THREE: Final = struct.Struct("=III")
_AFTER: Final = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8)} | {
    14: (4, 0),
    15: (0, 12),
    17: (4, 0),
    19: (0, 12),
}
"""Bytes that follow the 12 of a type, by kind: once, and for each member."""


class _Type(NamedTuple):
    name: str
    kind: int
    leads_to: int
    members_at: int
    members: int
    has_bit_fields: bool


class KernelTypes:
    """The types of the kernel that runs. Reading them takes some tenths of a second.

    Raises:
        OSError: the kernel was built without them.
    """

    def __init__(self) -> None:
        data = VMLINUX.read_bytes()
        _, _, _, head, types_at, types_bytes, names_at, names_bytes = _HEADER.unpack_from(data)
        self._data = data[head + types_at : head + types_at + types_bytes]
        self._names = data[head + names_at : head + names_at + names_bytes]
        self._types = [_Type("void", 0, 0, 0, 0, False)]
        at = 0
        while at < types_bytes:
            name, info, leads_to = _THREE.unpack_from(self._data, at)
            at += _THREE.size
            kind, members = info >> 24 & 31, info & 0xFFFF
            self._types.append(_Type(self._name(name), kind, leads_to, at, members, bool(info >> 31)))
            once, each = _AFTER.get(kind, (0, 0))
            at += once + each * members

    def function(self, name: str) -> int:
        """Return the number of a function. Raises KeyError."""
        return self._number(_FUNCTION, name)

    def offset(self, structure: str, field: str) -> int:
        """Return where a field is in a structure, also in unnamed structures inside it. Raises KeyError."""
        found = self._find(self._number(_STRUCT, structure), field)
        if found is None:
            raise KeyError(f"{structure}.{field}")
        return found

    def _find(self, number: int, field: str) -> int | None:
        found = self._types[number]
        while found.kind in _ALIASES:
            found = self._types[found.leads_to]
        if found.kind not in (_STRUCT, _UNION):
            return None
        for at in range(found.members_at, found.members_at + found.members * _THREE.size, _THREE.size):
            name_at, leads_to, bits = _THREE.unpack_from(self._data, at)
            offset: int = (bits & 0xFFFFFF if found.has_bit_fields else bits) // 8
            name = self._name(name_at)
            if name == field:
                return offset
            inside = None if name else self._find(leads_to, field)
            if inside is not None:
                return offset + inside
        return None

    def _number(self, kind: int, name: str) -> int:
        for number, each in enumerate(self._types):
            if each.kind == kind and each.name == name:
                return number
        raise KeyError(name)

    def _name(self, at: int) -> str:
        return self._names[at : self._names.index(b"\0", at)].decode()
