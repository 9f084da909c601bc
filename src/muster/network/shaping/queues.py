"""The queues of one direction: a class of htb for each subject, on a link of its own.

Packets of the budgeted class are redirected to this link by `attachments.py`, wait in their class, and continue where
they were. All others never see a queue. The physical links keep their qdiscs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from muster.network.netlink import tc
from muster.network.netlink.socket import Message, NetlinkError, NetlinkSocket
from muster.network.shaping.links import add_ifb, delete_link, links

MAJOR: Final = 0x4D55
ROOT_MINOR, RESERVED_MINOR, OTHERS_MINOR = 1, 2, 3
FIRST_MINOR: Final = 16
"""Classes of subjects begin here."""

FLOOR_BPS: Final = 256_000
"""A lower limit counts as this one: a packet of 64 KB from segmentation offload then takes two seconds."""
START_BPS: Final = 500_000
"""What a subject without a limit gets of the rest in any case. With less, the debt of its first packets would hold it
back for seconds after it has a limit. So subjects that begin together exceed the rest until the hub has seen them."""
LEND_MIN_BPS: Final = 10_000_000
"""Subjects without a limit borrow from nodes with at least this sum of limits. htb keeps the debt of a class in units
of time, also when its rate changes. At 1 Mbit/s, the first packets of 25 flows would stop all borrowing for 13 s."""
_UNLIMITED_BPS: Final = 10**12
BURST_NS: Final = 10_000_000
"""A class saves up so much time of its rate. Less is lost to late timers on a busy node."""
BURST_MIN_BYTES: Final = 16 * 1024
BURST_MAX_BYTES: Final = 16 * 1024 * 1024
_QUEUE_S: Final = 0.25
_QUEUE_MIN_BYTES: Final = 1024 * 1024
_QUEUE_MAX_BYTES: Final = 16 * 1024 * 1024
_BATCH: Final = 200
_PREFERENCE: Final = 1


def burst_ns(rate_bps: int) -> int:
    """Return how long a class may save up its rate: what it sends at once is at most BURST_MAX_BYTES."""
    shortest = BURST_MIN_BYTES * 8 * 1_000_000_000 // rate_bps
    longest = BURST_MAX_BYTES * 8 * 1_000_000_000 // rate_bps
    return min(longest, max(shortest, BURST_NS))


def queue_bytes(rate_bps: int) -> int:
    """Return the length of a simple queue: a quarter of a second, within limits.

    A dropped packet may hold 64 KB, which are 44 retransmitted segments. With 256 KiB instead of 1 MiB, 50 flows of
    4 Mbit/s and more had 100 times the retransmissions (bench.network.shaping).
    """
    return int(min(_QUEUE_MAX_BYTES, max(_QUEUE_MIN_BYTES, rate_bps / 8 * _QUEUE_S)))


class Usage(NamedTuple):
    """What a class has sent, and what waits. Sizes hold 14 bytes of Ethernet header per packet."""

    bytes: int = 0
    packets: int = 0
    drops: int = 0
    backlog_bytes: int = 0


class _Class(NamedTuple):
    parent: int
    rate_bps: int
    ceil_bps: int
    priority: int


class Queues:
    """The queues of one direction.

    Args:
        socket: of NETLINK_ROUTE.
        name: of the link.
    """

    def __init__(self, socket: NetlinkSocket, name: str) -> None:
        self._socket = socket
        self.name = name
        self.index = 0
        self._fair: bool | None = None
        self._known: dict[int, _Class | None] = {}
        self._program = b""

    def setup(self, start_bps: int, reserved_bps: int) -> bool:
        """Create the link and the classes of the rest, or adopt those of an earlier process.

        Args:
            start_bps: limit of the rest, if it is new.
            reserved_bps: what the reserved class gets of it in any case.

        Returns:
            whether they existed.

        Raises:
            OSError: another program uses the name, or the kernel refused.
        """
        found = next((each for each in links(self._socket) if each.name == self.name), None)
        if found is not None and found.kind != "ifb":
            raise OSError(errno.EEXIST, f"the link {self.name} is a {found.kind or 'device'}; rename it")
        self._known.clear()
        self._program = b""
        if found is not None and self._is_ours(found.number):
            self.index = found.number
            self._known = dict.fromkeys(self._minors(found.number))
            self._fair = self._has_fair_queues(found.number)
            return True
        if found is not None:
            self._socket.request(delete_link(found.number), f"delete the incomplete link {self.name}")
        self._socket.request(add_ifb(self.name), f"create the link {self.name}")
        self.index = next(each.number for each in links(self._socket) if each.name == self.name)
        self._socket.request(
            tc.add_htb(self.index, tc.handle(MAJOR, 0), OTHERS_MINOR), f"make htb the root of {self.name}"
        )
        self.limit({}, start_bps, reserved_bps)
        return False

    def _is_ours(self, index: int) -> bool:
        """Return whether the link has the root and the class in which setup creates classes last."""
        roots = tc.read_qdiscs(self._socket.dump(tc.GET_QDISC, tc.dump(), "list qdiscs"))
        ours = any(each.link == index and each.handle == tc.handle(MAJOR, 0) and each.kind == "htb" for each in roots)
        return ours and OTHERS_MINOR in self._minors(index)

    def _has_fair_queues(self, index: int) -> bool:
        parent = tc.handle(MAJOR, OTHERS_MINOR)
        qdiscs = tc.read_qdiscs(self._socket.dump(tc.GET_QDISC, tc.dump(), "list qdiscs"))
        return any(each.link == index and each.parent == parent and each.kind == "fq_codel" for each in qdiscs)

    def _minors(self, index: int) -> set[int]:
        return {each.handle & 0xFFFF for each in self._classes(index)}

    def _classes(self, index: int) -> list[tc.ClassCount]:
        return tc.read_classes(self._socket.dump(tc.GET_CLASS, tc.dump(index), f"list the classes of {self.name}"))

    def limit(self, rates: Mapping[int, int | None], rest_bps: int, reserved_bps: int) -> int:
        """Set the limits of all subjects, creating their classes. Only changes are sent. No packet is lost.

        Subjects without a limit of their own share the rest. They may also borrow what other subjects do not use, if
        the sum of the node is at least LEND_MIN_BPS. So the node stays within its sum, and a flow starts fast.

        Args:
            rates: bits/s by minor number; None without a limit of its own. Absent ones stay until `remove`.
            rest_bps: limit of all other packets together.
            reserved_bps: what the reserved class gets of it in any case.

        Returns:
            the sum of all limits: what the node sends at most.

        Raises:
            NetlinkError: the kernel refused.
        """
        rest = max(rest_bps, 2 * FLOOR_BPS)
        reserved = min(max(reserved_bps, FLOOR_BPS), rest // 2)
        count = 1 + sum(rate is None for rate in rates.values())
        part = max((rest - reserved) // count, min(rest - reserved, START_BPS))
        own = {minor: max(rate, FLOOR_BPS) for minor, rate in rates.items() if rate is not None}
        total = rest + sum(own.values())
        if total >= LEND_MIN_BPS:
            root, most = total, total
        else:
            root, most = _UNLIMITED_BPS, max(rest // count, min(rest, START_BPS))
        sharing = _Class(ROOT_MINOR, part, max(part, most), 1)
        wanted = {
            ROOT_MINOR: _Class(0, root, root, 0),
            RESERVED_MINOR: _Class(ROOT_MINOR, reserved, rest, 0),
            OTHERS_MINOR: sharing,
            **{minor: _Class(ROOT_MINOR, own[minor], own[minor], 1) if minor in own else sharing for minor in rates},
        }
        changed = {minor: each for minor, each in wanted.items() if self._known.get(minor) != each}
        self._batch(
            [
                tc.set_htb_class(
                    *(self.index, tc.handle(MAJOR, minor), tc.handle(MAJOR, each.parent)),
                    *(each.rate_bps, each.ceil_bps, burst_ns(each.ceil_bps), each.priority),
                )
                for minor, each in changed.items()
            ],
            f"set the limits of {self.name}",
        )
        self._set_leaves({minor: each.ceil_bps for minor, each in changed.items() if minor != ROOT_MINOR})
        self._known.update(changed)
        return total

    def _set_leaves(self, ceilings: Mapping[int, int]) -> None:
        """Give each class its queue. Existing packets stay."""
        fresh = [minor for minor in ceilings if minor not in self._known]
        if fresh and self._fair is not False:
            try:
                self._batch(
                    [tc.add_fq_codel(self.index, tc.handle(MAJOR, minor)) for minor in fresh],
                    f"give each flow of {self.name} a queue",
                )
                self._fair = True
            except NetlinkError as error:
                if self._fair or error.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
                    raise
                self._fair = False
        if not self._fair:
            self._batch(
                [
                    tc.set_byte_fifo(self.index, tc.handle(MAJOR, minor), queue_bytes(ceil))
                    for minor, ceil in ceilings.items()
                ],
                f"set the queues of {self.name}",
            )

    def classify(self, program: bytes) -> None:
        """Set the program that names the class of each packet (`program.subjects`). Raises NetlinkError."""
        if program != self._program:
            self._socket.request(
                tc.set_classifier(self.index, tc.handle(MAJOR, 0), _PREFERENCE, program),
                f"set the classes of {self.name}",
            )
            self._program = program

    def remove(self, minors: Iterable[int]) -> None:
        """Delete classes that the program no longer names, with what waits in them. Raises NetlinkError."""
        present = [minor for minor in minors if minor in self._known]
        self._batch(
            [tc.delete_class(self.index, tc.handle(MAJOR, minor)) for minor in present],
            f"delete classes of {self.name}",
        )
        for minor in present:
            del self._known[minor]

    @property
    def minors(self) -> frozenset[int]:
        """The classes of subjects."""
        return frozenset(minor for minor in self._known if minor >= FIRST_MINOR)

    def measure(self) -> dict[int, Usage]:
        """Return the counters of all classes by minor number. Raises NetlinkError."""
        return {
            each.handle & 0xFFFF: Usage(each.sent.bytes, each.sent.packets, each.drops, each.backlog_bytes)
            for each in self._classes(self.index)
        }

    def teardown(self) -> None:
        """Delete the link. Raises NetlinkError."""
        for each in links(self._socket):
            if each.name == self.name and each.kind == "ifb":
                self._socket.request(delete_link(each.number), f"delete the link {self.name}")

    def _batch(self, messages: list[Message], doing: str) -> None:
        for start in range(0, len(messages), _BATCH):
            self._socket.batch(messages[start : start + _BATCH], doing)
