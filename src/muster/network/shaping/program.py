"""Programs of classic BPF that classify packets by address (linux/filter.h).

cls_bpf takes them without the bpf() system call, and the kernel compiles them. A lookup costs one comparison for each
doubling of the number of prefixes.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

INSTRUCTIONS_MAX: Final = 4096
"""BPF_MAXINSNS."""

_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_HALF_INDEXED: Final = 0x48
_HEADER_LENGTH_TO_X: Final = 0xB1
_JUMP, _EQUAL, _AT_LEAST, _ANY_BIT = 0x05, 0x15, 0x35, 0x45
_RETURN: Final = 0x06
_NETWORK_HEADER: Final = 0xFFF00000  # SKF_NET_OFF
_PROTOCOL: Final = 0xFFFFF000  # SKF_AD_OFF + SKF_AD_PROTOCOL
_IPV4, _IPV6 = 0x0800, 0x86DD
_TCP, _UDP = 6, 17
_NEAR: Final = 255

_FOUR_SOURCE, _FOUR_DESTINATION = 12, 16
_SIX_SOURCE, _SIX_DESTINATION = 8, 24


class TooManyPrefixes(ValueError):
    """The program has more instructions than the kernel takes."""


class _Instruction(NamedTuple):
    code: int
    value: int
    target: str = ""


class _Assembler:
    """Instructions with names for places. A conditional jump goes to its target, or falls through."""

    def __init__(self) -> None:
        self._code: list[_Instruction] = []
        self._places: dict[str, int] = {}
        self._names = 0

    def name(self) -> str:
        self._names += 1
        return str(self._names)

    def put(self, code: int, value: int = 0, target: str = "") -> None:
        self._code.append(_Instruction(code, value, target))

    def place(self, name: str) -> None:
        self._places[name] = len(self._code)

    def assemble(self) -> bytes:
        """Return the program. A conditional jump to a far target needs an unconditional one behind it."""
        far = [each.target != "" and each.code != _JUMP for each in self._code]
        starts = self._starts(far)
        for index, each in enumerate(self._code):
            if far[index]:
                far[index] = starts[self._places[each.target]] - starts[index] - 1 > _NEAR
        starts = self._starts(far)
        if starts[-1] > INSTRUCTIONS_MAX:
            raise TooManyPrefixes(
                f"the addresses need {starts[-1]} instructions, and the kernel takes {INSTRUCTIONS_MAX}; "
                "join neighbouring prefixes, or leave out long lists"
            )
        packed = bytearray()
        for index, each in enumerate(self._code):
            jump = starts[self._places[each.target]] - starts[index] - 1 if each.target else 0
            if not each.target:
                packed += struct.pack("=HBBI", each.code, 0, 0, each.value)
            elif each.code == _JUMP:
                packed += struct.pack("=HBBI", _JUMP, 0, 0, jump)
            elif far[index]:
                packed += struct.pack("=HBBI", each.code, 0, 1, each.value)
                packed += struct.pack("=HBBI", _JUMP, 0, 0, jump - 1)
            else:
                packed += struct.pack("=HBBI", each.code, jump, 0, each.value)
        return bytes(packed)

    def _starts(self, far: Sequence[bool]) -> list[int]:
        starts, at = [], 0
        for each in far:
            starts.append(at)
            at += 2 if each else 1
        return [*starts, at]


class _Interval(NamedTuple):
    """Values of a 32-bit word from `start` to the next interval: a result, or a table for the next word."""

    start: int
    result: int | None
    below: tuple[_Interval, ...] = ()


_Prefix = tuple[int, int, int | None]


def _intervals(prefixes: Sequence[_Prefix], bits: int, otherwise: int | None) -> tuple[_Interval, ...]:
    """Return the table of the first word of `bits`-bit prefixes (value, length, result); the longest one wins."""
    rest = bits - 32
    short = [(value >> rest, length, result) for value, length, result in prefixes if length <= 32]
    longer: dict[int, list[_Prefix]] = {}
    for value, length, result in prefixes:
        if length > 32:
            longer.setdefault(value >> rest, []).append((value & ((1 << rest) - 1), length - 32, result))
    starts = {0}
    for value, length, _ in short:
        starts |= {value, value + (1 << 32 - length)}
    for value in longer:
        starts |= {value, value + 1}
    cover = sorted(short, key=lambda each: each[1], reverse=True)
    table: list[_Interval] = []
    for start in sorted(starts):
        if start >= 1 << 32:
            break
        result = next((each[2] for each in cover if start >> 32 - each[1] == each[0] >> 32 - each[1]), otherwise)
        if start in longer:
            interval = _Interval(start, None, _intervals(longer[start], rest, result))
        else:
            interval = _Interval(start, result)
        if not table or interval.below or table[-1].below or table[-1].result != interval.result:
            table.append(interval)
    return tuple(table)


class Lookup:
    """A table of prefixes and their results; the longest prefix wins.

    Args:
        prefixes: results by network. None means: the program continues behind the lookup.
        otherwise: the result of all other addresses.
    """

    def __init__(self, prefixes: Mapping[Network, int | None], otherwise: int | None) -> None:
        four = [(int(net.network_address), net.prefixlen, to) for net, to in prefixes.items() if net.version == 4]
        six = [(int(net.network_address), net.prefixlen, to) for net, to in prefixes.items() if net.version == 6]
        self.four = _intervals(four, 32, otherwise)
        self.six = _intervals(six, 128, otherwise)


def _emit_lookup(out: _Assembler, table: tuple[_Interval, ...], offset: int, after: str) -> None:
    out.put(_LOAD_WORD, _NETWORK_HEADER + offset)
    _emit_search(out, table, offset, after)


def _emit_search(out: _Assembler, table: tuple[_Interval, ...], offset: int, after: str) -> None:
    if len(table) > 1:
        middle = len(table) // 2
        upper = out.name()
        out.put(_AT_LEAST, table[middle].start, upper)
        _emit_search(out, table[:middle], offset, after)
        out.place(upper)
        _emit_search(out, table[middle:], offset, after)
    elif table[0].below:
        _emit_lookup(out, table[0].below, offset + 4, after)
    elif table[0].result is None:
        out.put(_JUMP, 0, after)
    else:
        out.put(_RETURN, table[0].result)


def _emit_families(out: _Assembler) -> tuple[str, str]:
    four, six = out.name(), out.name()
    out.put(_LOAD_WORD, _PROTOCOL)
    out.put(_EQUAL, _IPV4, four)
    out.put(_EQUAL, _IPV6, six)
    return four, six


def budgeted(classes: Mapping[Network, bool], *, upload: bool) -> bytes:
    """Return the program that matches the packets that the budget limits.

    Args:
        classes: whether the budget covers a network; the longest prefix wins. It covers all other addresses.
        upload: whether the pod sends the packet, so that its destination counts. Otherwise its source counts.

    Raises:
        TooManyPrefixes: there are too many networks.
    """
    lookup = Lookup({network: -covered & 0xFFFFFFFF for network, covered in classes.items()}, 0xFFFFFFFF)
    out = _Assembler()
    four, six = _emit_families(out)
    out.put(_RETURN, 0)
    out.place(four)
    _emit_lookup(out, lookup.four, _FOUR_DESTINATION if upload else _FOUR_SOURCE, "")
    out.place(six)
    _emit_lookup(out, lookup.six, _SIX_DESTINATION if upload else _SIX_SOURCE, "")
    return out.assemble()


def subjects(
    pods: Mapping[Network, int],
    rest: int,
    reserved: int,
    ports: Iterable[int],
    addresses: Iterable[Network],
    *,
    upload: bool,
) -> bytes:
    """Return the program whose result is the class of a packet.

    Args:
        pods: classes by the pods' addresses.
        rest: class of all other packets.
        reserved: class of packets of these ports and addresses, whatever their pod.
        ports: TCP and UDP ports of either side.
        addresses: networks of the other side.
        upload: whether the pod is the source.

    Raises:
        TooManyPrefixes: there are too many addresses.
    """
    kept = sorted(set(ports))
    far = Lookup(dict.fromkeys(addresses, reserved), None)
    near = Lookup(dict(pods), rest)
    out = _Assembler()
    four, six = _emit_families(out)
    out.put(_RETURN, rest)
    out.place(four)
    checked = out.name()
    if kept:
        out.put(_LOAD_HALF, _NETWORK_HEADER + 6)
        out.put(_ANY_BIT, 0x1FFF, checked)  # a later fragment has no ports
        out.put(_LOAD_BYTE, _NETWORK_HEADER + 9)
        _emit_transports(out, checked)
        out.put(_HEADER_LENGTH_TO_X, _NETWORK_HEADER)
        for offset in (0, 2):
            out.put(_LOAD_HALF_INDEXED, _NETWORK_HEADER + offset)
            _emit_ports(out, kept, reserved)
    out.place(checked)
    _emit_sides(out, far.four, near.four, _FOUR_SOURCE, _FOUR_DESTINATION, upload)
    out.place(six)
    checked = out.name()
    if kept:
        out.put(_LOAD_BYTE, _NETWORK_HEADER + 6)
        _emit_transports(out, checked)
        for offset in (40, 42):
            out.put(_LOAD_HALF, _NETWORK_HEADER + offset)
            _emit_ports(out, kept, reserved)
    out.place(checked)
    _emit_sides(out, far.six, near.six, _SIX_SOURCE, _SIX_DESTINATION, upload)
    return out.assemble()


def _emit_transports(out: _Assembler, otherwise: str) -> None:
    found = out.name()
    out.put(_EQUAL, _TCP, found)
    out.put(_EQUAL, _UDP, found)
    out.put(_JUMP, 0, otherwise)
    out.place(found)


def _emit_ports(out: _Assembler, ports: Sequence[int], result: int) -> None:
    found, after = out.name(), out.name()
    for port in ports:
        out.put(_EQUAL, port, found)
    out.put(_JUMP, 0, after)
    out.place(found)
    out.put(_RETURN, result)
    out.place(after)


def _emit_sides(
    out: _Assembler,
    far: tuple[_Interval, ...],
    near: tuple[_Interval, ...],
    source: int,
    destination: int,
    upload: bool,
) -> None:
    remote, local = (destination, source) if upload else (source, destination)
    after = out.name()
    _emit_lookup(out, far, remote, after)
    out.place(after)
    _emit_lookup(out, near, local, "")
