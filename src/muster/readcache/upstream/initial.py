"""The initial events of a WatchList, put together to a state."""

from __future__ import annotations

from muster.kube.watch import ADDED, DELETED
from muster.readcache.wire.format import Frame, WireFormat


class InitialState:
    """Collects the events before the bookmark at their end.

    kube-apiserver sends only ADDED before it (storage/cacher, processInterval). Other servers may send later changes.
    """

    def __init__(self, wire: WireFormat) -> None:
        self._wire = wire
        self._added: list[bytes] = []
        self._later: list[Frame] = []

    def take(self, frame: Frame) -> None:
        """Add an event that is not a bookmark."""
        if frame.type == ADDED and not self._later:
            self._added.append(frame.data)
        else:
            self._later.append(frame)

    def objects(self) -> list[bytes]:
        """Return the objects at the end. Raises WireError."""
        if not self._later:
            return self._added
        objects: dict[tuple[str, str], bytes] = {}
        for type_, data in [(ADDED, data) for data in self._added] + [(each.type, each.data) for each in self._later]:
            head = self._wire.head(data)
            objects.pop((head.namespace, head.name), None)
            if type_ != DELETED:
                objects[(head.namespace, head.name)] = data
        return list(objects.values())
