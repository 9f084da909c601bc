"""Roster: assigns slots to pods of other controllers' workloads, and selects which pods are members.

A slot is a number that a member keeps. A pod with a position (such as an index) gets the same slot after a restart.
A pod without a position takes a slot that another pod of its role has left. In each role, the first pods up to the
number `members` are *members*, which are placed like those of any gang. The other pods are *extras*. `decide`
handles an extra as a member only after it is placed (see `ClusterState`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from muster.scheduler.gangs.adapters.membership import Membership, Role, Shape

NO_ROLE = Role(0, 0, 0)
Identity = tuple[str, tuple[int, ...]]
Placed = Mapping[int, tuple[str, str]]
"""Slot -> (node, node UID)."""


class Standing:
    """A pod without a slot."""

    __slots__ = ("member", "name", "node")

    def __init__(self, name: str, member: Membership, node: str) -> None:
        self.name = name
        self.member = member
        self.node = node


class Roster:
    """The members of one gang. Only `ClusterState` changes it.

    Attributes:
        shape: number of members by role; None while unknown.
        orphan: the workload is gone, so the gang cannot start again.
        declared: number of members from the pods' annotation; 0 without it.
        standing: pods without a slot, by UID.
        done: slots whose pod has succeeded, so that no pod will come for them.
    """

    def __init__(self) -> None:
        self.shape: Shape | None = None
        self.orphan = False
        self.declared = 0
        self.standing: dict[str, Standing] = {}
        self.done: set[int] = set()
        self._live: set[int] = set()
        self._members: set[int] = set()
        self._by_role: defaultdict[str, _Part] = defaultdict(_Part)
        self._role_of: dict[int, str] = {}
        self._slot_of: dict[Identity, int] = {}
        self._identity: dict[int, Identity] = {}

    # Counts

    @property
    def present(self) -> int:
        """Number of pods, including those without a slot."""
        return len(self._live) + len(self.standing)

    @property
    def size(self) -> int:
        """Number of members that exist or are expected."""
        if self.shape is None:
            return max(1, self.present)
        size = self.shape.size
        return max(1, self.shape.minimum, len(self._live) if size is None else size)

    @property
    def minimum(self) -> int:
        """Number of members needed to start the gang."""
        return self.shape.minimum if self.shape is not None else 0

    @property
    def ready(self) -> int:
        """Number of needed members that exist or have finished their work."""
        roles = self.shape.roles if self.shape is not None else {}
        return sum(min(role.minimum, self._by_role[name].counted) for name, role in roles.items())

    @property
    def complete(self) -> bool:
        """Whether the gang may start."""
        return self.shape is not None and self.ready >= self.minimum

    def is_member(self, slot: int) -> bool:
        """Return whether the slot's pod is a member, not an extra."""
        return slot in self._members

    # Slots

    def seat(self, placed: Placed) -> Iterator[tuple[str, int]]:
        """Assign a slot to every pod without one, and yield (pod UID, slot).

        Running pods come first, on a slot placed on their node; then the order is role, position and name.
        """
        if self.shape is None or not self.standing:
            return
        ranks = {role: rank for rank, role in enumerate(self.shape.roles)}

        def order(item: tuple[str, Standing]) -> tuple[bool, int, tuple[int, ...], str]:
            pod = item[1]
            return (not pod.node, ranks.get(pod.member.role, len(ranks)), pod.member.position, pod.name)

        standing, self.standing = sorted(self.standing.items(), key=order), {}
        on_node: defaultdict[str, set[int]] = defaultdict(set)
        for slot, (node, _) in placed.items():
            on_node[node].add(slot)
        unclaimed = sorted(slot for slot in placed if slot not in self._role_of)
        for uid, pod in standing:
            slot = self._choose(pod, on_node.get(pod.node, ()), unclaimed)
            self._sit(slot, pod.member)
            yield uid, slot

    def _choose(self, pod: Standing, here: Collection[int], unclaimed: list[int]) -> int:
        role, position = pod.member.role, pod.member.position
        own = self._slot_of.get((role, position)) if position else None
        if own is not None and self._identity.get(own) != (role, position):
            own = None  # another pod has taken the slot in the meantime
        wish = own if own is not None else self._wish(role, position)
        free_here = [slot for slot in here if slot not in self._live]
        if free_here:
            if wish is not None and wish in free_here:
                return wish
            return min(free_here, key=lambda slot: (slot in self._role_of, slot))  # prefer slots that were never taken
        if wish is not None and (wish == own or wish not in self._live):
            return wish
        left = self._left(role)
        if left:
            return min(left)
        while unclaimed and unclaimed[0] in self._role_of:
            heapq.heappop(unclaimed)
        if unclaimed:
            return unclaimed[0]
        slot = len(self._role_of)
        while slot in self._role_of:
            slot += 1
        return slot

    def _left(self, role: str) -> set[int]:
        """Return slots of finished or deleted pods that a pod of the role may take.

        The slot of a succeeded pod is included only if the number of concurrent pods is known. Then a pod with the
        next index follows, as in a Job. Otherwise no pod follows, and its node may belong to a pod that joined.
        """
        part = self._part(role)
        says = self.shape.roles.get(self._effective(role)) if self.shape is not None else None
        return part.left - part.done if says is not None and says.size is None else part.left

    def _wish(self, role: str, position: tuple[int, ...]) -> int | None:
        """Return the preferred slot: with one role, pod 7 gets slot 7; a launcher gets slot 0, its worker 7 slot 8."""
        first = 0
        for name, each in self.shape.roles.items() if self.shape is not None else ():
            if each.size is None or len(position) != 1:
                return None
            if name in (role, ""):
                return first + position[0] if position[0] < each.size else None
            first += each.size
        return None

    def _sit(self, slot: int, member: Membership) -> None:
        old = self._role_of.get(slot)
        if old is not None and self._effective(old) != self._effective(member.role):
            self._part(old).drop(slot)
        self._role_of[slot] = member.role
        if member.position:
            self._slot_of[member.role, member.position] = slot
            self._identity[slot] = (member.role, member.position)
        else:
            self._identity.pop(slot, None)
        self._part(member.role).left.discard(slot)
        self._live.add(slot)
        self._part(member.role).live.add(slot)

    # Membership

    def note(self, slot: int, *, live: bool, done: bool) -> set[int]:
        """Record the state of a slot; return the slots whose pods became members or extras."""
        part = self._part(self._role_of[slot])
        for kept, holds in ((self._live, live), (part.live, live), (part.left, not live), (self.done, done)):
            (kept.add if holds else kept.discard)(slot)
        (part.done.add if done else part.done.discard)(slot)
        was = slot in self._members
        if was and not live:
            self._members.discard(slot)
            part.members.discard(slot)
        changed = self._fill(part, self._role_of[slot])
        return changed | {slot} if was and not live else changed

    def reshape(self, shape: Shape, placed: Collection[int]) -> set[int]:
        """Apply a changed shape. Placed pods are the first to stay members. Returns the same as `note`."""
        if shape == self.shape:
            return set()
        self.shape = shape
        before, self._members = self._members, set()
        self._by_role.clear()
        for slot, role in self._role_of.items():
            part = self._part(role)
            (part.live if slot in self._live else part.left).add(slot)
            if slot in self.done:
                part.done.add(slot)
        for role in {self._effective(role) for role in self._role_of.values()}:
            self._fill(self._by_role[role], role, before | set(placed))
        return before ^ self._members

    def _fill(self, part: _Part, role: str, first: Collection[int] = ()) -> set[int]:
        """Turn extras into members while there are too few members."""
        room = (self.shape.roles if self.shape is not None else {}).get(self._effective(role), NO_ROLE).members
        if len(part.members) >= room or len(part.live) == len(part.members):
            return set()
        extras = sorted(part.live - part.members, key=lambda slot: (slot not in first, slot))
        chosen = set(extras[: room - len(part.members)])
        part.members |= chosen
        self._members |= chosen
        return chosen

    def _effective(self, role: str) -> str:
        return self.shape.role_of(role) if self.shape is not None else role

    def _part(self, role: str) -> _Part:
        return self._by_role[self._effective(role)]


class _Part:
    """The slots of one role: with a live pod, of members, left by their pods, and done."""

    __slots__ = ("done", "left", "live", "members")

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.members: set[int] = set()
        self.left: set[int] = set()
        self.done: set[int] = set()

    @property
    def counted(self) -> int:
        """Number of slots that count towards the minimum."""
        return len(self.live) + len(self.done)

    def drop(self, slot: int) -> None:
        """Remove a slot that changed its role."""
        for slots in (self.live, self.members, self.left, self.done):
            slots.discard(slot)
