"""The room that nodes have, by the pods and slots on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from fuzz.checks import GIVEN_UP
from fuzz.shapes import OF_OTHERS
from fuzz.view import PlacementFacts, PodFacts, View


def bundle_of(placement: PlacementFacts) -> str:
    """Returns the name under which the view has the pods of a placement's gang."""
    return placement.gang.partition("/")[0] if placement.gang.startswith(OF_OTHERS) else placement.gang


class Room:
    """The room of all nodes at one moment, as if some gangs and pods were gone.

    Args:
        view: what the API server holds.
        without: gangs that count as gone, by the name of their pods in the view.
        pods: UIDs of pods that count as gone.
    """

    def __init__(self, view: View, without: Collection[str] = (), pods: Collection[str] = ()) -> None:
        self._view, self._without, self._pods = view, without, pods
        self._held: defaultdict[str, list[PodFacts | None]] = defaultdict(list)
        for placement in view.placements.values():
            bundle = bundle_of(placement)
            if placement.phase in GIVEN_UP or bundle in without:
                continue
            members = {pod.slot: pod for pod in view.gangs[bundle].values()}
            for slot, (node, _) in placement.slots.items():
                member = members.get(slot)
                if member is None or member.node != node or member.ended:
                    self._held[node].append(member)

    def holds(self, name: str, pod: PodFacts) -> bool:
        """Returns whether the node has room for the pod. A slot without a pod takes the whole node."""
        node, held = self._view.node(name), self._held.get(name, [])
        if node is None or None in held:
            return False
        here = [
            other
            for other in self._view.on_node[name].values()
            if not (other.ended or other.uid in self._pods or (other.bundle and other.bundle in self._without))
        ]
        taken = [*here, *(each for each in held if each is not None)]
        return all(
            node.allocatable.get(what, 0) - sum(each.requests.get(what, 0) for each in taken) >= amount
            for what, amount in pod.requests.items()
        )
