"""Reserves room for placed slots without a pod, and for slots whose release is still being written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.nodes.node_table import NodeTable
from muster.scheduler.pods.pod_class import PodClass

Place = tuple[str, str]
"""A node and its UID."""


class Holding:
    """Reserves and releases room on nodes. Part of `ClusterState`."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._placed_on: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._giving_up: dict[str, list[tuple[str, int]]] = {}

    @property
    def giving_up(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """The (node, slot) pairs, by gang, that are reserved only until a write in flight has ended."""
        return self._giving_up

    def placed_on(self, node: str) -> Collection[tuple[str, int]]:
        """Return the (gang, slot) pairs placed on the node."""
        return self._placed_on.get(node, ())

    def place(self, gang: Gang, slot: int, before: Place | None, after: Place | None) -> None:
        """Move a slot from one place to another."""
        if before is not None:
            self._placed_on[before[0]].discard((gang.key, slot))
        if after is not None:
            self._placed_on[after[0]].add((gang.key, slot))
        self.look(gang, slot)

    def look(self, gang: Gang, slot: int) -> None:
        """Reserve the slot's room on its node if no pod of the slot uses the room. Otherwise remove the reservation.

        If the node went to another team, reserve nothing: the slot cannot use it, and that team's gangs would wait.
        A bind in flight may still take effect. So its room stays reserved until the bind has ended.
        """
        want: tuple[str, PodClass | None] | None = None
        have, placed = gang.holds.get(slot), gang.placed.get(slot)
        if have is not None and self._table.exists(have[0]) and self._table.is_arriving(have[0], gang.key, slot):
            want = have[0], _slot_class(gang, slot)
        elif placed is not None and self._table.exists(*placed):
            done = gang.roster is not None and slot in gang.roster.done
            for member in gang.members_by_slot.get(slot, {}).values() if not done else ():
                done = done or member.counted_on == placed[0]
            cls = _slot_class(gang, slot)
            if not done and not self._table.keeps_out(placed[0], cls):
                want = placed[0], cls
        if want == have:
            return
        if have is not None:
            self._table.unhold(have[0], gang.key, slot)
            gang.unknown_holds -= have[1] is None
            del gang.holds[slot]
        if want is not None:
            self._table.hold(want[0], gang.key, slot, want[1])
            gang.unknown_holds += want[1] is None
            gang.holds[slot] = want

    def look_again(self, gang: Gang) -> None:
        """Update reservations after a pod revealed the class of the gang's slots."""
        if gang.unknown_holds and gang.slot_class:
            for slot in [slot for slot, (_, cls) in gang.holds.items() if cls is None]:
                self.look(gang, slot)

    def keep_until_written(
        self, gang: Gang, before: Mapping[int, Place], held: Mapping[int, tuple[str, PodClass | None]]
    ) -> None:
        """Keep reserving the slots that a write in flight gives up, until `written` is called.

        Args:
            gang: the gang, with the slots that the write sets.
            before: the place of each slot before the write.
            held: the reservations before the write.
        """
        for slot, (node, uid) in before.items():
            done = gang.roster is not None and slot in gang.roster.done
            stays = node in (gang.placed.get(slot, ("",))[0], gang.holds.get(slot, ("",))[0])
            if done or stays or not self._table.exists(node, uid):
                continue
            # reserve the room even if a pod uses it, because the pod may end before the write
            cls = held[slot][1] if slot in held else _slot_class(gang, slot)
            if self._table.keeps_out(node, cls):
                continue
            self._table.hold(node, gang.key, slot, cls)
            self._giving_up.setdefault(gang.key, []).append((node, slot))

    def written(self, gang: Gang) -> None:
        """Release what was reserved for a write, which has ended."""
        for node, slot in self._giving_up.pop(gang.key, ()):
            self._table.unhold(node, gang.key, slot)


def _slot_class(gang: Gang, slot: int) -> PodClass | None:
    """Return the class of the slot's pod, else that of all the gang's pods if they are alike."""
    known = gang.slot_class.get(slot)
    if known is not None:
        return known
    classes = set(gang.slot_class.values())
    return classes.pop() if len(classes) == 1 else None
