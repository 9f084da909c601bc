"""Garbage collection by owner references: background, foreground and orphan.

Source: kubernetes pkg/controller/garbagecollector (attemptToDeleteItem, attemptToOrphan).
"""

from __future__ import annotations

import contextlib

from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.status import StatusError
from muster.embedded.apiserver.types.strategy import DeleteOptions
from muster.embedded.apiserver.verbs.deletes import FOREGROUND, ORPHAN
from muster.embedded.apiserver.verbs.writes import Change
from muster.embedded.item import Item
from muster.embedded.objects import Obj, items

Place = tuple[str, str]  # resource, key


class Collector:
    """Deletes objects whose owners are all gone."""

    def __init__(self, core: ApiCore) -> None:
        self._core = core
        self._alive: dict[str, Place] = {}  # by UID
        self._dependents: dict[str, dict[Place, None]] = {}  # by the owner's UID
        self._check: dict[Place, None] = {}  # objects whose owners must be checked
        self._owners: dict[Place, None] = {}  # objects that are being deleted and may wait for their dependents

    def changed(self, resource: str, old: Item | None, new: Item | None) -> None:
        """Update the graph of owners."""
        if old is not None and (new is None or new.owners != old.owners):
            for uid in old.owners:
                group = self._dependents.get(uid)
                if group is not None:
                    group.pop((resource, old.key), None)
                    if not group:
                        del self._dependents[uid]
                self._note_owner(uid)
        if new is None:
            if old is not None:
                self._alive.pop(old.uid, None)
                self._check.update(self._dependents.get(old.uid, {}))
            return
        place = (resource, new.key)
        self._alive[new.uid] = place
        if new.owners and (old is None or old.owners != new.owners):
            for uid in new.owners:
                self._dependents.setdefault(uid, {})[place] = None
            self._check[place] = None
        if new.terminating:
            self._owners[place] = None
            for uid in new.owners:
                self._note_owner(uid)

    def work(self, now: float) -> float | None:
        """Handle all marked objects, including those that deletions mark."""
        while self._check or self._owners:
            while self._owners:
                place = next(iter(self._owners))
                del self._owners[place]
                self._handle_owner(place)
            while self._check:
                place = next(iter(self._check))
                del self._check[place]
                self._handle_dependent(place)
        return None

    def _note_owner(self, uid: str) -> None:
        place = self._alive.get(uid)
        if place is not None:
            item = self._item(place)
            if item is not None and item.terminating:
                self._owners[place] = None

    def _item(self, place: Place) -> Item | None:
        table = self._core.store.tables.get(place[0])
        return table.items.get(place[1]) if table is not None else None

    def _handle_owner(self, place: Place) -> None:
        item = self._item(place)
        if item is None or not item.terminating:
            return
        finalizers = items(item.object()["metadata"], "finalizers")
        dependents = list(self._dependents.get(item.uid, {}))
        if ORPHAN in finalizers:
            for dependent in dependents:
                self._drop_references(dependent, {item.uid})
            self._drop_finalizer(place, ORPHAN)
        elif FOREGROUND in finalizers:
            blocking = False
            for dependent in dependents:
                child = self._item(dependent)
                if child is None:
                    continue
                references = items(child.object()["metadata"], "ownerReferences")
                blocks = any(ref.get("uid") == item.uid and ref.get("blockOwnerDeletion") for ref in references)
                blocking = blocking or blocks
                if not child.terminating:
                    self._check[dependent] = None
            if not blocking:
                self._drop_finalizer(place, FOREGROUND)

    def _handle_dependent(self, place: Place) -> None:
        item = self._item(place)
        if item is None or item.terminating or not item.owners:
            return
        solid, waiting, dangling = set(), set(), set()
        for uid in item.owners:
            owner_place = self._alive.get(uid)
            owner = self._item(owner_place) if owner_place is not None else None
            if owner is None or owner.namespace not in ("", item.namespace):
                dangling.add(uid)
            elif owner.terminating and FOREGROUND in items(owner.object()["metadata"], "finalizers"):
                waiting.add(uid)
            else:
                solid.add(uid)
        if solid:
            if dangling or waiting:
                self._drop_references(place, dangling | waiting)
            return
        finalizers = items(item.object()["metadata"], "finalizers")
        policy = "Background"
        if waiting and self._dependents.get(item.uid):
            policy = "Foreground"
        elif ORPHAN in finalizers:
            policy = "Orphan"
        elif FOREGROUND in finalizers:
            policy = "Foreground"
        resource = self._core.registry.of_storage(place[0])
        if resource is not None:
            with contextlib.suppress(StatusError):
                options = DeleteOptions(propagation=policy, uid=item.uid)
                self._core.deletes.delete(resource, item.key, item.name, options)

    def _drop_references(self, place: Place, uids: set[str]) -> None:
        def change(obj: Obj) -> Obj:
            kept = [ref for ref in items(obj["metadata"], "ownerReferences") if ref.get("uid") not in uids]
            obj["metadata"]["ownerReferences"] = kept
            return obj

        self._update(place, change)

    def _drop_finalizer(self, place: Place, name: str) -> None:
        def change(obj: Obj) -> Obj:
            kept = [finalizer for finalizer in items(obj["metadata"], "finalizers") if finalizer != name]
            obj["metadata"]["finalizers"] = kept
            return obj

        self._update(place, change)

    def _update(self, place: Place, change: Change) -> None:
        item, resource = self._item(place), self._core.registry.of_storage(place[0])
        if item is not None and resource is not None:
            with contextlib.suppress(StatusError):
                self._core.writes.update(resource, item.namespace, item.name, change)
