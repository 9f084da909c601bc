"""What the program keeps for each kind."""

from __future__ import annotations

import pytest

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import HttpTransport
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.meta import Resource
from muster.readcache.hub.selection import ALL
from muster.readcache.hub.view import WireView
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.reads.selecting import selection_of
from muster.readcache.sources import CachedSources
from tests.support.waiting import until
from tests.unit.readcache.upstream.scripted import CONFIG_MAPS, Asked, Step, Upstream, bookmark, listing

PODS = CachedKind(Resource("", "v1", "pods", "Pod"))
SLICES = CachedKind(Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False))


@pytest.mark.parametrize("kind", [PODS, SLICES])
async def test_stores_have_every_index_by_which_watches_are_sorted(kind: CachedKind) -> None:
    transport = HttpTransport(ClusterConfig("http://127.0.0.1:1"), user_agent="test", connections=1)
    sources = CachedSources(transport)
    try:
        source = sources.get(kind, MediaType.JSON)
        selection = selection_of(kind, "", "", "spec.nodeName=n1")
        assert source is not None
        assert selection is not None
        assert selection.bucket is not None
        assert selection.bucket[0] in source.store.indexes
        assert sources.get(kind, MediaType.JSON) is source
    finally:
        await sources.close()
        await transport.close()


async def test_kind_that_the_server_no_longer_has_is_left_to_it_and_then_dropped() -> None:
    served = True

    def watch(asked: Asked) -> list[Step] | ApiError:
        return [bookmark(5, initial_end=True), 0.01] if served else NotFound(404, "NotFound", "404 page not found")

    sources = CachedSources(Upstream(watch, lambda _: listing(5)))
    try:
        source = sources.get(CONFIG_MAPS, MediaType.JSON)
        assert source is not None
        await until("the state is there", lambda: source.store.version)
        assert await sources.drop_absent() == set()
        closed: list[str] = []
        source.store.subscribe(ALL, 5, WireView(source.format), lambda _: None, closed.append)
        served = False
        await until("the server said so", lambda: sources.get(CONFIG_MAPS, MediaType.JSON) is None)
        assert not closed
        assert await sources.drop_absent() == {CONFIG_MAPS}
        assert closed == ["stopped"]
        served = True
        again = sources.get(CONFIG_MAPS, MediaType.JSON)
        assert again is not None
        await until("the state is there again", lambda: again.store.version)
    finally:
        await sources.close()
