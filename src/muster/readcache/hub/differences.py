"""The differences between the state of a kind that is known and a newer one from a list, as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.readcache.hub.event import ADDED, DELETED, MODIFIED
from muster.readcache.hub.item import Item

Change = tuple[int, str, str, Item | None]  # (version, type, key, the new item)


def differences(old: Mapping[str, Item], new: Iterable[Item], since: int, version: int) -> list[Change] | None:
    """Return the changes from `old`, complete up to version `since`, to the list `new` of `version`.

    Each change has a version of its own, so that a watcher that saw only some of them can resume after the last one.
    A changed object has its own version. The version of a removal is unknown: it gets one that no other change has,
    before the one at which the object was created again. Removals share a version only if there are too few, as when
    etcd removes all keys of a lease at once.

    Returns:
        The changes in the order of their versions; None if `new` cannot have followed `old` (a restored backup of
        etcd, or an event that was missed earlier).
    """
    if version < since:
        return None
    changes: list[Change] = []
    gone: list[tuple[int, str]] = []  # (the last version possible, key)
    taken = set()
    missing = dict.fromkeys(old)
    for item in new:
        have = old.get(item.key)
        missing.pop(item.key, None)
        if have is not None and have.version == item.version:
            if have.uid != item.uid:
                return None
            continue
        if not since < item.version <= version or item.version in taken:
            return None
        taken.add(item.version)
        recreated = have is not None and have.uid != item.uid
        if recreated:
            gone.append((item.version - 1, item.key))
        changes.append((item.version, MODIFIED if have is not None and not recreated else ADDED, item.key, item))
    gone += ((version, key) for key in missing)
    gone.sort(key=lambda one: (-one[0], one[1]))
    free = version + 1
    for latest, key in gone:
        free = min(free - 1, latest)
        while free in taken:
            free -= 1
        if free <= since:
            free = since + 1
        if free > latest:
            return None
        changes.append((free, DELETED, key, None))
    changes.sort(key=lambda change: change[0])
    return changes
