"""A cache of objects of one kind by key, with indexes; calls handlers once for each real difference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from muster.kube.index import Index, IndexFunction
from muster.kube.objects.meta import KubeObject

T = TypeVar("T", bound=KubeObject)
Handler = Callable[[T | None, T | None], None]
"""Called with (old, new): (None, new) when added, (old, None) when deleted. Must not block; never mutates."""

log = logging.getLogger(__name__)


class Cache(Generic[T]):
    """The objects, the indexes over them, and the handlers of their changes.

    Args:
        name: the owner, in log lines.
        stored: reduces an object before it is stored. Indexes and `old` see the reduced object; handlers get the whole
            one.
    """

    def __init__(self, name: str, stored: Callable[[T], T] | None = None) -> None:
        self.whole = stored is None
        """Whether the objects here are those that handlers get."""
        self._name = name
        self._stored = stored
        self._objects: dict[str, T] = {}
        self._indexes: dict[str, Index[T]] = {}
        self._handlers: list[Handler[T]] = []
        self.objects: Mapping[str, T] = MappingProxyType(self._objects)
        """All objects by key; a live, read-only view."""
        self.indexes: Mapping[str, Mapping[str, Mapping[str, T]]] = MappingProxyType(self._indexes)
        """Index name -> value -> key -> object; live and read-only."""

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Add an index over present and future objects. Raises ValueError if the name is taken."""
        if name in self._indexes:
            raise ValueError(f"{self._name} already has an index {name!r}")
        self._indexes[name] = index = Index(function)
        for key, obj in self._objects.items():
            index.update(key, None, obj)

    def remove_index(self, name: str) -> None:
        """Drop an index. Raises KeyError when there is none of this name."""
        del self._indexes[name]

    def add_handler(self, handler: Handler[T]) -> None:
        """Call `handler` for every present object, and then for every change."""
        self._handlers.append(handler)
        for obj in list(self._objects.values()):
            self._call(handler, None, obj)

    def remove_handler(self, handler: Handler[T]) -> None:
        """Stop calling `handler`. Does nothing if it was not added."""
        if handler in self._handlers:
            self._handlers.remove(handler)

    def become(self, fresh: Mapping[str, T], newcomers: Iterable[Handler[T]] = ()) -> None:
        """Replace the content by a complete list, and call handlers for the differences.

        New handlers are called for each object of the list, and from then on for each change.
        """
        for key in [key for key in self._objects if key not in fresh]:
            self.change(key, None)
        for key, obj in fresh.items():
            self.change(key, obj)
        for handler in newcomers:
            self._handlers.append(handler)
            for obj in fresh.values():
                self._call(handler, None, obj)

    def change(self, key: str, new: T | None) -> None:
        """Store `new` under `key`, or remove the object if `new` is None. An unchanged resourceVersion is ignored."""
        old = self._objects.get(key)
        if old is not None and new is not None:
            if old.metadata.uid != new.metadata.uid:  # deleted and recreated between two events
                self.change(key, None)
                old = None
            elif old.metadata.resource_version == new.metadata.resource_version:
                return
        kept = self._stored(new) if new is not None and self._stored is not None else new
        if kept is not None:
            self._objects[key] = kept
        elif old is not None:
            del self._objects[key]
        else:
            return
        for index in self._indexes.values():
            index.update(key, old, kept)
        for handler in self._handlers:
            self._call(handler, old, new)

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:
            # One failing handler must not keep the change from the others.
            log.exception("%s: a handler failed", self._name)
