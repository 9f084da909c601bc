"""Runs the comparison: prepares a cluster, follows it, and asks both sides the same requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import quote

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.reads.accept import chosen_media
from muster.readcache.request import Forward
from muster.readcache.wire.format import WireFormat
from tests.support.readdifferential.cluster import CHANGED, KINDS, Cluster
from tests.support.readdifferential.comparison import Difference, bookmarks, continue_token, difference, final_state
from tests.support.readdifferential.generator import FIELDS, LABELS, OWN_FIELDS, Generator
from tests.support.readdifferential.sides import ApiServer, Asked, Followed, Got, ReadCache

DIFFERENCES_MAX = 8
TRIES = 5
SETTLE_S = 0.2


@dataclass
class Report:
    """What a run found.

    Attributes:
        served: requests that the cache answered, and that were compared.
        forwarded: requests that it left to the API server, by reason.
        statuses: answers that were equal, by verb and status.
        bookmarks: bookmarks that the cache sent before watches ended.
    """

    served: int = 0
    forwarded: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    bookmarks: int = 0

    def __str__(self) -> str:
        lines = [
            f"compared {self.served}, forwarded {sum(self.forwarded.values())}, differences {len(self.differences)}",
            f"  equal: {dict(sorted(self.statuses.items()))}",
            f"  forwarded: {dict(self.forwarded.most_common())}",
        ]
        return "\n".join([*lines, *map(str, self.differences)])


UNPROVEN = "not proven fresh in time"


class Comparison:
    """Asks both sides."""

    def __init__(self, server: ApiServer, cache: ReadCache, rng: random.Random, names: list[str]) -> None:
        self.report = Report()
        self._server = server
        self._cache = cache
        self._rng = rng
        self._generator = Generator(rng, self._versions, names)

    async def run(self, count: int, workers: int = 64) -> None:
        """Compare `count` random requests that the cache answers, several at once."""
        report = self.report

        async def work() -> None:
            while report.served < count and len(report.differences) < DIFFERENCES_MAX:
                await self.compare(*self._generator.asked())

        await asyncio.gather(*(work() for _ in range(workers)))

    async def compare(self, kind: CachedKind, asked: Asked) -> None:
        """Ask both sides and note a difference."""
        for _ in range(TRIES):
            before = self._versions(kind)[:-1]
            cache = await self._cache.ask(asked)
            if isinstance(cache, Forward):
                self.report.forwarded[cache.reason] += 1
                return
            if cache.status == 503:  # allowed, as on a machine that is busy with other things
                self.report.forwarded[UNPROVEN] += 1
                return
            server = await self._server.ask(asked)
            what = difference(asked, server, cache, self._format(kind, asked))
            if what:
                await asyncio.sleep(SETTLE_S)
            if not what or self._versions(kind)[:-1] == before:
                # not because an object changed between the two answers, such as the API server's own lease
                await self._note(kind, asked, server, cache, what)
                return
        raise AssertionError(f"{kind.resource.plural} change all the time")

    async def _note(self, kind: CachedKind, asked: Asked, server: Got, cache: Got, what: str) -> None:
        self.report.served += 1
        if what:
            self.report.differences.append(Difference(asked, what, server, cache))
            return
        self.report.statuses[f"{'watch' if asked.is_watch else 'read'} {server.status}"] += 1
        tokens = [token for got in (server, cache) if (token := continue_token(got, self._format(kind, asked)))]
        if tokens and not asked.is_watch and self._rng.random() < 0.9:
            version = self._rng.choice(("", "", "", "0", "1"))
            await self.compare(kind, asked.continued(self._rng.choice(tokens), version=version))

    async def compare_bookmarks(self) -> None:
        """Check that watches get a bookmark before they end, if the API server sends one.

        It sends none if the last event that a watch had missed is the newest one; the cache may.
        """
        asked = [
            (source, Asked(f"{source.kind.resource.path()}?{query}&resourceVersion={source.store.oldest}", headers))
            for source in self._cache.sources.values()
            if source.store.oldest < source.store.version
            for headers in [{"Accept": source.format.media_type}]
            for query in ("watch=1&timeoutSeconds=4&allowWatchBookmarks=true", "watch=1&timeoutSeconds=4")
        ]
        await asyncio.gather(*(self._bookmarks(source, each) for source, each in asked))

    async def _bookmarks(self, source: Followed, asked: Asked) -> None:
        server, cache = await asyncio.gather(self._server.ask(asked), self._cache.ask(asked))
        assert isinstance(cache, Got), cache
        sides = [bookmarks(got, source.format) for got in (server, cache)]
        what = "" if sides[1] or not sides[0] else f"bookmarks {sides[0]} and none"
        await self._note(source.kind, asked, server, cache, what)
        self.report.bookmarks += len(sides[1])

    def _format(self, kind: CachedKind, asked: Asked) -> WireFormat:
        media = chosen_media(asked.headers.get("Accept", ""), kind, watch=asked.is_watch)
        assert media is not None
        return self._source(kind, media).format

    def _source(self, kind: CachedKind, media: MediaType = MediaType.JSON) -> Followed:
        source = self._cache.get(kind, media)
        assert source is not None
        return source

    def _versions(self, kind: CachedKind) -> list[int]:
        store = self._source(kind).store
        return [store.oldest, *(event.version for event in store.hub.log.since(store.oldest)), store.version]


class Churn:
    """Compares while objects change.

    - A list that the cache answers must be equal to the API server's list at exactly the version in it. Without
      resourceVersion that version must include every write that was acknowledged before.
    - A watch from a version must deliver the same bytes in the same order from both sides. A watch that sends the state
      first must lead to the same objects, because both begin with different states.
    """

    def __init__(self, server: ApiServer, cache: ReadCache, cluster: Cluster, rng: random.Random) -> None:
        self.report = Report()
        self._server = server
        self._cache = cache
        self._cluster = cluster
        self._rng = rng
        self._quiet = False

    async def run(self, watches: int, seconds: float) -> None:
        """Open watches on both sides, change objects for a time, compare lists meanwhile, and then what was watched."""
        loop = asyncio.get_running_loop()
        opened = [self._watch(seconds + 3.0) for _ in range(watches)]
        tasks = [asyncio.create_task(watch) for watch in opened]
        listing = [asyncio.create_task(self._lists()) for _ in range(4)]
        end = loop.time() + seconds
        while loop.time() < end:
            await self._cluster.change()
        self._quiet = True
        await asyncio.gather(*listing, *tasks)

    async def _watch(self, seconds: float) -> None:
        source, query = self._selectors()
        store = source.store
        version = self._rng.choice(("", "0", str(store.version), str(self._rng.randint(store.oldest, store.version))))
        query += f"&watch=1&timeoutSeconds={int(seconds)}&allowWatchBookmarks={self._rng.choice(('true', 'false'))}"
        asked = self._asked(source, f"{query}&resourceVersion={version}")
        server, cache = await asyncio.gather(self._server.ask(asked), self._cache.ask(asked))
        if isinstance(cache, Forward):
            self.report.forwarded[cache.reason] += 1
            return
        if version in ("", "0"):
            ends = [final_state(got.body, source.format) for got in (server, cache)]
            what = "" if ends[0] == ends[1] else "the objects at the end of the watch"
        else:
            what = difference(asked, server, cache, source.format)
        self._note(asked, server, cache, what)

    async def _lists(self) -> None:
        while not self._quiet:
            await self._list()

    async def _list(self) -> None:
        source, query = self._selectors()
        written = self._cluster.written
        known = max(source.store.oldest, source.store.version - self._rng.randrange(30))
        form = self._rng.choice(
            (
                "",
                "&resourceVersion=0",
                f"&resourceVersion={known}",
                f"&resourceVersion={known}&resourceVersionMatch=Exact",
            )
        )
        cache = await self._cache.ask(self._asked(source, query + form))
        if isinstance(cache, Forward):
            self.report.forwarded[cache.reason] += 1
            return
        if cache.status == 503 and not form:
            self.report.forwarded[UNPROVEN] += 1
            return
        meta, _ = source.format.split_list(cache.body)
        exact = f"&resourceVersion={meta.version}&resourceVersionMatch=Exact"
        server = await self._server.ask(self._asked(source, query + exact))
        what = difference(self._asked(source, query + form), server, cache, source.format)
        if not form and meta.version < written:
            what = f"version {meta.version} after a write of version {written}"
        self._note(self._asked(source, query + form), server, cache, what)

    def _note(self, asked: Asked, server: Got, cache: Got, what: str) -> None:
        self.report.served += 1
        if what:
            self.report.differences.append(Difference(asked, what, server, cache))
        else:
            self.report.statuses[f"{'watch' if asked.is_watch else 'read'} {server.status}"] += 1

    def _selectors(self) -> tuple[Followed, str]:
        rng = self._rng
        kind = rng.choice(CHANGED)
        source = self._cache.get(kind, rng.choice(kind.media_types))
        assert source is not None
        parts = []
        if rng.random() < 0.5:
            parts.append(f"labelSelector={quote(rng.choice(LABELS))}")
        if rng.random() < 0.5:
            parts.append(f"fieldSelector={quote(rng.choice((*FIELDS, *OWN_FIELDS.get(kind.resource.plural, ()))))}")
        return source, "&".join(parts)

    def _asked(self, source: Followed, query: str) -> Asked:
        return Asked(f"{source.kind.resource.path()}?{query.lstrip('&')}", {"Accept": source.format.media_type})


@dataclass(frozen=True, slots=True)
class Size:
    """How much to compare.

    Attributes:
        changes: random changes of objects before the first request.
        requests: random requests that the cache answers, while objects do not change.
        watches: watches that are open on both sides while objects change.
        churn_s: how long objects change.
    """

    changes: int
    requests: int
    watches: int
    churn_s: float


async def compare(config: ClusterConfig, size: Size, seed: int) -> tuple[Report, Report]:
    """Compare random requests on a quiet cluster, and then lists and watches while objects change."""
    rng = random.Random(seed)
    async with _prepared(config, rng, seed) as (server, cache, cluster):
        for _ in range(size.changes):
            await cluster.change()
        for source in cache.sources.values():
            await source.confirm(10.0)
        quiet = Comparison(server, cache, rng, cluster.names)
        await quiet.compare_bookmarks()
        await quiet.run(size.requests)
        churn = Churn(server, cache, cluster, rng)
        await churn.run(size.watches, size.churn_s)
        return quiet.report, churn.report


@contextlib.asynccontextmanager
async def _prepared(
    config: ClusterConfig, rng: random.Random, seed: int
) -> AsyncIterator[tuple[ApiServer, ReadCache, Cluster]]:
    async with contextlib.AsyncExitStack() as stack:
        server = ApiServer(config, connections=256)
        stack.push_async_callback(server.close)
        cluster = Cluster(await stack.enter_async_context(Client(config)), rng)
        stack.push_async_callback(cluster.remove)
        await cluster.prepare()
        cache = await stack.enter_async_context(ReadCache(config, KINDS, seed))
        yield server, cache, cluster
