"""The filters on the pods' links that send packets of the budgeted class through the queues.

A link that already has filters of another program is refused: a redirected packet skips filters when it returns, and
so a network policy of that program could be bypassed. Its pods are policed by cgroup instead (`policing/`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

from muster.network.netlink import tc
from muster.network.netlink.socket import Message, NetlinkError, NetlinkSocket
from muster.network.shaping.links import LinkInfo, default_routes, links

PREFERENCE: Final = 0x4D55
_GONE: Final = (errno.ENODEV, errno.ENOENT, errno.EINVAL)


class Side(NamedTuple):
    """What the filter of one direction does.

    Attributes:
        program: of `program.budgeted`.
        target: index of the link with the queues.
    """

    program: bytes
    target: int


class Attachments:
    """The filters on the links of pods.

    Args:
        socket: of NETLINK_ROUTE.
        patterns: names of links to use, such as `cali*`.
        programs_before: returns why BPF programs outside of filters handle packets of a link first; "" without any.
    """

    def __init__(
        self,
        socket: NetlinkSocket,
        patterns: Iterable[str] = ("*",),
        programs_before: Callable[[LinkInfo], str] = lambda link: "",
    ) -> None:
        self._socket = socket
        self._patterns = tuple(patterns)
        self._programs_before = programs_before
        self._sides: dict[int, Side] = {}
        self._uplinks: frozenset[int] = frozenset()
        self._attached: dict[int, str] = {}
        self._refused: dict[str, str] = {}

    @property
    def attached(self) -> frozenset[str]:
        """Names of the links that have the filters."""
        return frozenset(self._attached.values())

    @property
    def refused(self) -> Mapping[str, str]:
        """Why links have no filters, by name."""
        return MappingProxyType(self._refused)

    def refresh(self, down: Side, up: Side, *, only_new: bool = False) -> None:
        """Put the filters on all links of pods, and take them from links that another program uses now.

        Args:
            down: for packets to pods.
            up: for packets from pods.
            only_new: handle only links that appeared since the last call.

        Raises:
            NetlinkError: the kernel refused. A link that disappears is not an error.
        """
        sides = {tc.EGRESS: down, tc.INGRESS: up}
        if sides != self._sides:
            self._sides, only_new = sides, False
            self._attached.clear()
        if not only_new:
            self._uplinks = default_routes(self._socket)
        present = {each.number: each for each in links(self._socket) if self._wanted(each)}
        for index in [index for index in self._attached if index not in present]:
            del self._attached[index]
        names = {each.name for each in present.values()}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        todo = [each for index, each in present.items() if not only_new or index not in self._attached]
        if only_new:
            todo = [each for each in todo if each.name not in self._refused]
        if not todo:
            return
        qdiscs = {each.link: each for each in self._qdiscs() if each.parent == tc.CLSACT}
        for link in todo:
            try:
                self._attach(link, qdiscs.get(link.number))
            except NetlinkError as error:
                if error.errno not in _GONE or any(each.number == link.number for each in links(self._socket)):
                    raise

    def _wanted(self, link: LinkInfo) -> bool:
        """A pair with both ends on the host, or with a default route, does not belong to a pod."""
        if link.kind != "veth" or not link.away or link.number in self._uplinks:
            return False
        return any(fnmatchcase(link.name, each) for each in self._patterns)

    def _qdiscs(self) -> list[tc.Qdisc]:
        return tc.read_qdiscs(self._socket.dump(tc.GET_QDISC, tc.dump(), "list qdiscs"))

    def _attach(self, link: LinkInfo, place: tc.Qdisc | None) -> None:
        why = self._programs_before(link) or self._conflict(link, place)
        if why:
            self._refused[link.name] = why
            if self._attached.pop(link.number, None) is not None or (place is not None and place.kind == "clsact"):
                self._detach(link.number)
            return
        self._refused.pop(link.name, None)
        messages: list[Message] = []
        if place is None:
            messages.append(tc.add_clsact(link.number))
        current = {} if place is None else self._current(link.number)
        for parent, side in self._sides.items():
            if link.number in self._attached and parent in current:
                continue
            messages.append(tc.set_redirect(link.number, parent, PREFERENCE, side.program, side.target))
        if messages:
            self._socket.batch(messages, f"put filters on {link.name}")
        self._attached[link.number] = link.name

    def _current(self, index: int) -> dict[int, tc.Filter]:
        return {
            parent: each
            for parent in (tc.EGRESS, tc.INGRESS)
            for each in self._filters(index, parent)
            if each.preference == PREFERENCE and each.handle
        }

    def _filters(self, index: int, parent: int) -> list[tc.Filter]:
        return tc.read_filters(self._socket.dump(tc.GET_FILTER, tc.dump(index, parent), "list filters"))

    def _conflict(self, link: LinkInfo, place: tc.Qdisc | None) -> str:
        if place is None:
            return ""
        if place.kind != "clsact":
            return f"another program, such as the bandwidth plugin, has the qdisc {place.kind} on it"
        if place.shared:
            return "its filters are in a block that other links share"
        for parent in (tc.EGRESS, tc.INGRESS):
            for each in self._filters(link.number, parent):
                if each.preference != PREFERENCE:
                    where = "to" if parent == tc.EGRESS else "from"
                    return f"another program has filters ({each.kind}, preference {each.preference}) {where} the pod"
        return ""

    def _detach(self, index: int) -> None:
        """Remove our filters, and the places for filters if nothing else is in them then."""
        mine = self._current(index)
        if not mine:
            return
        for parent in mine:
            self._ignoring_gone(tc.delete_filters(index, parent, PREFERENCE), "remove a filter")
        left = any(self._filters(index, parent) for parent in (tc.EGRESS, tc.INGRESS))
        if not left:
            self._ignoring_gone(tc.delete_clsact(index), "remove the place for filters")

    def _ignoring_gone(self, message: Message, doing: str) -> None:
        try:
            self._socket.request(message, doing)
        except NetlinkError as error:
            if error.errno not in _GONE:
                raise

    def teardown(self) -> None:
        """Remove our filters from all links. Raises NetlinkError."""
        places = {each.link for each in self._qdiscs() if each.parent == tc.CLSACT and each.kind == "clsact"}
        for link in links(self._socket):
            if link.number in places and self._current(link.number):
                self._detach(link.number)
        self._attached.clear()
