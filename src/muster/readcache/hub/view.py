"""How events are written for watchers."""

from __future__ import annotations

from typing import Protocol

from muster.readcache.hub.item import Item


class View(Protocol):
    """Writes the frames of a watch. Views with the same key write the same bytes."""

    @property
    def key(self) -> str | None:
        """The identity of this view, None if its bytes are not shared."""
        ...

    def frame(self, type_: str, item: Item, version: int) -> bytes:
        """Return a whole frame with the object at `version`, which may be later than the item's own."""
        ...


class Format(Protocol):
    """Writes the frames of one kind in one media type."""

    @property
    def media_type(self) -> str:
        """The media type."""
        ...

    def frame(self, type_: str, data: bytes) -> bytes:
        """Return a whole watch frame."""
        ...

    def at_version(self, data: bytes, version: int) -> bytes:
        """Return an object's bytes with another resourceVersion."""
        ...


class WireView:
    """Objects as the server sent them."""

    __slots__ = ("_format", "key")

    def __init__(self, format_: Format) -> None:
        self.key: str | None = format_.media_type
        self._format = format_

    def frame(self, type_: str, item: Item, version: int) -> bytes:
        """Return a whole frame with the object at `version`."""
        data = item.data if item.version == version else self._format.at_version(item.data, version)
        return self._format.frame(type_, data)
