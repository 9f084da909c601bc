"""What reads need of a cached kind in one media type."""

from __future__ import annotations

from typing import Protocol

from muster.readcache.hub.store import KindStore
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire.format import WireFormat


class Source(Protocol):
    """A kind in one media type: its store, how it is written, and what is known of its freshness."""

    @property
    def kind(self) -> CachedKind:
        """The kind."""
        ...

    @property
    def format(self) -> WireFormat:
        """How it is written in this media type."""
        ...

    @property
    def store(self) -> KindStore:
        """Its objects."""
        ...

    async def confirm(self, timeout_s: float) -> int:
        """Returns a version that is later than everything written before the call, and whose state the store has.

        The store's own version may be older, if the API server's state of that version was found equal.

        Raises:
            NotFresh: it cannot be proven within the timeout.
        """
        ...

    def age_s(self) -> float:
        """Returns the seconds since the last sign of life, 0 while the kind's upstream watch is connected."""
        ...


class Sources(Protocol):
    """All kinds that are cached."""

    def get(self, kind: CachedKind, media: MediaType) -> Source | None:
        """Returns the source, None if the kind is not cached in this media type: the request is then forwarded."""
        ...
