"""The cached kinds: a store, a follower and proofs of freshness for each (kind, media type) that clients use."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muster.kube.connection.transport import Transport
from muster.kube.errors import NotFound
from muster.readcache.hub.limits import Budget, Limits
from muster.readcache.hub.store import KindStore
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.reads.selecting import indexes_of
from muster.readcache.upstream import selfcheck
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.freshness import Freshness
from muster.readcache.upstream.selfcheck import SelfCheck
from muster.readcache.upstream.settings import FollowSettings
from muster.readcache.wire import format_for
from muster.readcache.wire.format import WireFormat

log = logging.getLogger(__name__)

IDLE_S: Final = 1800.0
"""A kind that nothing has used for this long is no longer followed in that media type."""
_IDLE_CHECK_S: Final = 60.0


@dataclass(slots=True)
class CachedSource:
    """One kind in one media type."""

    kind: CachedKind
    media: MediaType
    format: WireFormat
    store: KindStore
    follower: Follower
    freshness: Freshness
    used_at: float
    tasks: tuple[asyncio.Task[None], ...] = ()

    async def confirm(self, timeout_s: float) -> int:
        """Return a version of the store that includes everything written before the call. Raises NotFresh."""
        return await self.freshness.confirm(timeout_s)

    def age_s(self) -> float:
        """Seconds since the last sign of life from upstream; 0 while the upstream watch is open."""
        if self.follower.away_since is None:
            return 0.0
        return max(0.001, asyncio.get_running_loop().time() - self.store.seen_at)

    async def close(self) -> None:
        """Stop following, and end the watches of clients."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        await self.freshness.close()
        self.store.close()


class CachedSources:
    """All kinds that are cached. A (kind, media type) is followed from its first use.

    Args:
        transport: requests to the API server, with the cache's own credentials.
        follow: deadlines of followers.
        limits: limits of one kind.
        log_bytes: bytes that the event logs of all kinds may use together.
        self_check_s: how often each store is compared with the API server.
        rng: source of jitter.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        follow: FollowSettings | None = None,
        limits: Limits | None = None,
        log_bytes: int = 1 << 30,
        self_check_s: float = selfcheck.PERIOD_S,
        rng: random.Random | None = None,
    ) -> None:
        self._transport = transport
        self._follow = follow or FollowSettings()
        self._limits = limits or Limits()
        self._budget = Budget(log_bytes)
        self._self_check_s = self_check_s
        self._rng = rng or random.Random()
        self._sources: dict[tuple[CachedKind, MediaType], CachedSource] = {}

    def __iter__(self) -> Iterator[CachedSource]:
        return iter(list(self._sources.values()))

    def get(self, kind: CachedKind, media: MediaType) -> CachedSource | None:
        """Return the source, which begins to follow the API server at its first use.

        Returns:
            None if the kind does not exist in this media type, or if the API server says that it no longer serves it.
        """
        if media not in kind.media_types:
            return None
        loop = asyncio.get_running_loop()
        source = self._sources.get((kind, media))
        if source is None:
            source = self._sources[(kind, media)] = self._start(kind, media, loop)
        source.used_at = loop.time()
        return None if _is_absent(source) else source

    async def drop_absent(self) -> set[CachedKind]:
        """Stop following the kinds that the API server no longer serves, and return them."""
        absent = {source.kind for source in self if _is_absent(source)}
        for key, source in list(self._sources.items()):
            if source.kind in absent:
                del self._sources[key]
                await source.close()
        return absent

    async def run(self) -> None:
        """Stop what nothing uses any more, until cancelled. Raises the error of a follower that ended."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_IDLE_CHECK_S)
            for key, source in list(self._sources.items()):
                for task in source.tasks:
                    if task.done():
                        task.result()
                        raise RuntimeError(f"{source.follower.name} ended")
                if len(source.store.hub):
                    source.used_at = loop.time()
                elif loop.time() - source.used_at > IDLE_S:
                    log.info("%s: not used for %.0f s; no longer followed", source.follower.name, IDLE_S)
                    del self._sources[key]
                    await source.close()

    async def close(self) -> None:
        """Stop everything."""
        sources, self._sources = list(self._sources.values()), {}
        for source in sources:
            await source.close()

    def _start(self, kind: CachedKind, media: MediaType, loop: asyncio.AbstractEventLoop) -> CachedSource:
        wire = format_for(kind, media)
        store = KindStore(wire, indexes_of(kind), loop=loop, limits=self._limits, budget=self._budget)
        follower = Follower(
            store, self._transport, kind, wire, settings=self._follow, rng=random.Random(self._rng.random())
        )
        source = CachedSource(kind, media, wire, store, follower, Freshness(follower), loop.time())
        check = SelfCheck(follower, period_s=self._self_check_s)
        source.tasks = (loop.create_task(follower.run()), loop.create_task(check.run()))
        return source


def _is_absent(source: CachedSource) -> bool:
    return isinstance(source.follower.last_error, NotFound)
