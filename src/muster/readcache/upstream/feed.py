"""Passes what the API server sends on to a store. The streams of several watches may overlap."""

from __future__ import annotations

import asyncio

from muster.kube.protobuf import WireError
from muster.kube.watch import ADDED, DELETED, MODIFIED
from muster.readcache.hub.item import item_of
from muster.readcache.hub.store import KindStore
from muster.readcache.upstream.counters import Counters
from muster.readcache.wire.format import BOOKMARK, Frame, WireFormat

_CHANGES = (ADDED, MODIFIED, DELETED)


class Feed:
    """Feeds one store.

    Each watch is complete from the version at which it began, and in the order of versions. So an event that is newer
    than the store is the next one, whichever watch it comes from, and an older one is known already.
    """

    def __init__(self, store: KindStore, wire: WireFormat, counters: Counters) -> None:
        self._store = store
        self._wire = wire
        self._counters = counters

    def load(self, datas: list[bytes], version: int) -> None:
        """Replace the content by a whole state. Raises WireError."""
        self._store.replace(datas, version, asyncio.get_running_loop().time())
        self._counters.lists += 1

    def take(self, frame: Frame) -> None:
        """Apply a change or a bookmark.

        Raises:
            WireError: the frame is not what the API server sends.
            OutOfOrder: the store misses an event before it.
        """
        now = asyncio.get_running_loop().time()
        store = self._store
        if frame.type == BOOKMARK:
            self._counters.bookmarks += 1
            store.bookmark(frame.version, now)
            return
        if frame.type not in _CHANGES:
            raise WireError(f"a watch event of type {frame.type[:40]!r}")
        head = self._wire.head(frame.data)
        if head.version < store.version:
            return
        if head.version == store.version and not (frame.type == DELETED and store.get(item_of(head, frame.data).key)):
            return  # etcd deletes all keys of a lease at one version, so only a removal may be new
        self._counters.events += 1
        store.apply(frame.type, frame.data, head, now)
