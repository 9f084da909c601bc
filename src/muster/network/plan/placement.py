"""Places the ranges of a plan into its supernets.

Ranges of the previous plan stay as they are. If one is too small for the planned years, a further range is added: if
possible the other half of its parent, so that both aggregate to one route. New ranges are placed by best fit, the
largest first. Each gets room to double in place, unless the space does not suffice for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from muster.network.plan.range import Family, Range, aggregate, parse_range
from muster.network.plan.request import HUB, ClusterRequest, PlanRequest, Use
from muster.network.plan.reserved import RESERVED
from muster.network.plan.sizing import SERVICE_BITS_MAX, needed, prefix_for
from muster.network.plan.space import Space


class NoRoom(Exception):
    """The ranges do not fit into the supernets. The message says which, and what to change."""


class Group(NamedTuple):
    """The ranges of one cluster for one use, in one family."""

    cluster: ClusterRequest
    use: Use
    family: Family


class Placed(NamedTuple):
    """Where the ranges are.

    Attributes:
        ranges: of each group, previous ones first.
        rooms: the range of twice the size around a range, if the other half is free.
    """

    ranges: dict[Group, list[Range]]
    rooms: dict[Range, Range]


def _groups(request: PlanRequest) -> Iterator[Group]:
    for cluster in request.clusters:
        uses: list[Use] = ["nodes", "pods", "services"]
        if cluster.role == HUB and request.researchers:
            uses.append("researchers")
        for use in uses:
            for family in request.families:
                yield Group(cluster, use, family)


def place(request: PlanRequest) -> Placed:
    """Place all ranges: with room to double, else without, else also in the room of others. Raises NoRoom."""
    failure: NoRoom | None = None
    ranges: dict[Group, list[Range]] = {group: [] for group in _groups(request)}
    rooms: dict[Range, Range] = {}
    for family in request.families:
        for roomy, spare_rooms in ((True, True), (False, True), (False, False)):
            try:
                placed = _place_family(request, family, roomy=roomy, spare_rooms=spare_rooms)
            except NoRoom as error:
                failure = error
                continue
            ranges |= placed.ranges
            rooms |= placed.rooms
            break
        else:
            assert failure is not None
            raise NoRoom(f"{failure}; {_hint(request)}") from None
    return Placed(ranges, rooms)


def _hint(request: PlanRequest) -> str:
    for years in range(request.years - 1, 0, -1):
        try:
            for family in request.families:
                _place_family(replace(request, years=years), family, roomy=False, spare_rooms=False)
        except NoRoom:
            continue
        return f"add supernets, or plan for years: {years}, which fits"
    return "add supernets, or plan fewer nodes or pods per node"


def _place_family(request: PlanRequest, family: Family, *, roomy: bool, spare_rooms: bool) -> Placed:
    work = _Work(request, family, spare_rooms=spare_rooms)
    wanted: list[tuple[int, int, Group]] = []
    for number, group in enumerate(each for each in _groups(request) if each.family is family):
        missing = work.grow(group)
        if missing > 0:
            wanted.append((prefix_for(request, group.use, family, missing), number, group))
    for prefix, _, group in sorted(wanted, key=lambda each: each[:2]):
        _fits_kubernetes(group, prefix)
        work.add(group, prefix, roomy=roomy)
    return Placed(work.ranges, work.free_rooms())


class _Work:
    """One attempt to place the ranges of a family.

    Args:
        request: the request.
        family: the family to place.
        spare_rooms: whether new ranges stay out of the room around previous ranges of others.
    """

    def __init__(self, request: PlanRequest, family: Family, *, spare_rooms: bool) -> None:
        self._request = request
        self.ranges, self._rooms = _previous(request, family)
        supernets = [each for each in map(parse_range, request.supernets) if each.family is family]
        used = [
            *(each for ranges in self.ranges.values() for each in ranges),
            *(parse_range(each.cidr) for each in request.taken),
            *(each.range for each in RESERVED if not each.usable and each.provider in ("", request.provider)),
        ]
        self._free = Space(family, supernets, used)
        self._for_new = Space(family, supernets, [*used, *(self._rooms.values() if spare_rooms else ())])

    def grow(self, group: Group) -> int:
        """Let the group's ranges double in place until they suffice; return how many addresses are missing then."""
        ranges = self.ranges.setdefault(group, [])
        wanted = needed(self._request, group.cluster, group.use, group.family, self._request.years)
        missing = wanted - sum(each.size for each in ranges)
        while missing > 0 and ranges:
            buddy = aggregate(ranges)[-1].buddy()
            if not self._free.is_free(buddy):
                break
            self._take(buddy)
            ranges.append(buddy)
            missing -= buddy.size
        return missing

    def add(self, group: Group, prefix: int, *, roomy: bool) -> None:
        """Add a range to the group; with `roomy`, with room to double. Raises NoRoom."""
        given = self._for_new.give(prefix - 1 if roomy else prefix)
        if given is None:
            largest = self._for_new.largest or "none"
            raise NoRoom(
                f"{group.use} of {group.cluster.name} need an {group.family} range of /{prefix}, and the largest free "
                f"one is {largest} ({self._for_new.addresses:,} addresses are free in all)"
            )
        added = Range(given.family, given.first, prefix)
        self._take(added)
        self.ranges[group].append(added)
        if roomy:
            self._rooms[added] = given

    def free_rooms(self) -> dict[Range, Range]:
        """Return the ranges that can still double, each with the range that it can become."""
        return {
            each: room
            for each, room in self._rooms.items()
            if room == each.parent() and self._free.is_free(each.buddy())
        }

    def _take(self, range_: Range) -> None:
        self._free.take(range_)
        self._for_new.take(range_)


def _fits_kubernetes(group: Group, prefix: int) -> None:
    if group.use == "services" and group.family.bits - prefix > SERVICE_BITS_MAX:
        raise NoRoom(
            f"services of {group.cluster.name} need an {group.family} range of /{prefix}, and kube-apiserver accepts "
            f"at most /{group.family.bits - SERVICE_BITS_MAX}"
        )


def _previous(request: PlanRequest, family: Family) -> tuple[dict[Group, list[Range]], dict[Range, Range]]:
    """Return the previous ranges of each group, and the room around each. Ranges of unknown clusters are free."""
    groups = {(group.cluster.name, group.use): group for group in _groups(request) if group.family is family}
    kept: dict[Group, list[Range]] = {}
    rooms: dict[Range, Range] = {}
    for each in request.previous:
        found = parse_range(each.cidr)
        group = groups.get((each.cluster, each.use))
        if group is None or found.family is not family:
            continue
        kept.setdefault(group, []).append(found)
        if each.grows_to:
            rooms[found] = parse_range(each.grows_to)
    return kept, rooms
