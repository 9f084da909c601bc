"""A change of an object, and its type for a selection."""

from __future__ import annotations

from muster.readcache.hub.item import Item
from muster.readcache.hub.selection import Selection
from muster.readcache.hub.view import View

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class Event:
    """A change of an object. Its frames are encoded at first use, and shared until `forget_frames`.

    Attributes:
        item: the object after the change; of DELETED its last state with the version of the removal.
        old: the object before the change.
        serial: its number in the log, set by the log. Versions may repeat: etcd removes all keys of a lease, such as
            those of Events, at one version.
    """

    __slots__ = ("_frames", "item", "old", "serial", "type", "version")

    def __init__(self, type_: str, item: Item, old: Item | None) -> None:
        self.type = type_
        self.version = item.version
        self.item = item
        self.old = old
        self.serial = 0
        self._frames: dict[tuple[str, str], bytes] | None = None

    def __repr__(self) -> str:
        return f"Event({self.type}, {self.item!r})"

    def type_for(self, selection: Selection) -> str | None:
        """Return the event type for a selection: ADDED on entering it, DELETED on leaving, MODIFIED within, or None.

        As in kube-apiserver's cacheWatcher.convertToWatchEvent.
        """
        old = self.old
        before = old is not None and selection.matches(old)
        if self.type == DELETED:
            return DELETED if before or (old is None and selection.matches(self.item)) else None
        if selection.matches(self.item):
            return MODIFIED if before else ADDED
        return DELETED if before else None

    def frame(self, type_: str, view: View) -> bytes:
        """Return the frame for this event as `type_`."""
        item = self.item
        if type_ == DELETED and self.type != DELETED and self.old is not None:
            item = self.old  # it left the selection: its old state, with the new version
        if view.key is None:
            return view.frame(type_, item, self.version)
        key = (type_, view.key)
        frames = self._frames
        if frames is None:
            frames = self._frames = {}
        found = frames.get(key)
        if found is None:
            found = frames[key] = view.frame(type_, item, self.version)
        return found

    def forget_frames(self) -> None:
        """Free the encoded frames."""
        self._frames = None

    @property
    def log_bytes(self) -> int:
        """The bytes that only the log keeps alive: the earlier state, and the last one of a removed object."""
        size = len(self.old.data) if self.old is not None else 0
        return size + len(self.item.data) if self.type == DELETED else size
