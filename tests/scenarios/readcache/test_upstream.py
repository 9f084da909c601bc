"""Followers and proofs of freshness against the real kube-apiserver, in JSON and protobuf."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.connection.transport import Answer, Fence, HttpTransport
from muster.kube.objects.core import ConfigMap, Namespace, Secret
from muster.kube.objects.meta import ObjectMeta
from muster.readcache.hub.selection import ALL
from muster.readcache.hub.store import KindStore
from muster.readcache.hub.view import WireView
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.freshness import Freshness, FreshSettings
from muster.readcache.upstream.selfcheck import SelfCheck
from muster.readcache.wire import format_for
from tests.support.waiting import until

KIND = CachedKind(ConfigMap.RESOURCE)
NAMESPACE = "default"
LARGE = FreshSettings(small_bytes=0)
CHECKS = 5


@pytest.fixture(scope="module")
def plane(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this module's own, which tests restart."""
    folder = tmp_path_factory.mktemp("plane")
    with ControlPlane(control_plane_binaries, directory=folder, controller_manager=False) as control_plane:
        yield control_plane


class Counted(HttpTransport):
    """Counts the loads of a whole state."""

    loads = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        fence: Fence | None = None,
    ) -> Answer:
        self.loads += method == "GET" and "fieldSelector" not in params and "continue" not in params
        return await super().request(
            method, path, params=params, body=body, headers=headers, timeout_s=timeout_s, fence=fence
        )

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Mapping[str, str], stall_s: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.loads += "sendInitialEvents" in params
        async with super().chunks(path, params=params, stall_s=stall_s, headers=headers) as chunks:
            yield chunks


class Following:
    """A store that is kept equal to the API server."""

    def __init__(self, transport: Counted, media: MediaType, settings: FreshSettings) -> None:
        wire = format_for(KIND, media)
        self.transport = transport
        self.store = KindStore(wire, loop=asyncio.get_running_loop())
        self.follower = Follower(self.store, transport, KIND, wire)
        self.freshness = Freshness(self.follower, settings)
        self.view = WireView(wire)

    def versions(self) -> dict[str, str]:
        """Versions of the objects that tests write: the API server itself writes ConfigMaps of other namespaces."""
        return {key: str(item.version) for key, item in self.store.objects.items.items() if item.namespace == NAMESPACE}

    def wrong(self) -> list[str]:
        """Keys whose bytes are not those of the object and its version."""
        heads = {key: self.follower.wire.head(item.data) for key, item in self.store.objects.items.items()}
        return [
            key for key, head in heads.items() if (f"{head.namespace}/{head.name}", head.version) != self._known(key)
        ]

    def _known(self, key: str) -> tuple[str, int]:
        return key, self.store.objects.items[key].version


@asynccontextmanager
async def following(
    plane: ControlPlane, media: MediaType, settings: FreshSettings | None = None
) -> AsyncIterator[Following]:
    transport = Counted(load_config(plane.kubeconfig), user_agent="muster-readcache", connections=8)
    followed = Following(transport, media, settings or FreshSettings())
    running = asyncio.create_task(followed.follower.run())
    try:
        await until("a state is loaded", lambda: followed.store.synced)
        yield followed
    finally:
        await followed.freshness.close()
        running.cancel()
        await asyncio.wait([running])
        await transport.close()


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    async with Client(load_config(plane.kubeconfig)) as made:
        yield made


async def newest(client: Client) -> dict[str, str]:
    listing = await client.list_all(ConfigMap, namespace=NAMESPACE)
    return {each.key: each.metadata.resource_version for each in listing.items}


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=data)


async def churn(client: Client, rng: random.Random, rounds: int, prefix: str) -> None:
    """Create, change and delete ConfigMaps."""
    alive: set[str] = set()
    for number in range(rounds):
        name = f"{prefix}-{rng.randrange(8)}"
        if name not in alive:
            await client.create(config_map(name, number="0"))
            alive.add(name)
        elif rng.random() < 0.3:
            await client.delete(ConfigMap, name, namespace=NAMESPACE)
            alive.remove(name)
        else:
            await client.patch(ConfigMap, name, {"data": {"number": str(number)}}, namespace=NAMESPACE)


async def test_stores_of_both_media_types_equal_the_server_under_churn(plane: ControlPlane, client: Client) -> None:
    await client.create(config_map("churn-kept"))
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(following(plane, media)) for media in MediaType]
        checks = [SelfCheck(each.follower) for each in both]
        await asyncio.gather(
            *(churn(client, random.Random(at), 60, f"churn{at}") for at in range(4)), *_checked(checks)
        )
        for each in both:
            await each.freshness.confirm(20)
            assert each.versions() == await newest(client)
            assert each.wrong() == []
            assert each.follower.counters.lists == 1
            assert each.follower.counters.checks == {"equal": CHECKS}
        lost = both[0].store.objects.items["default/churn-kept"]
        both[0].store.objects.remove(lost.key)
        assert await checks[0].check() == "different"
        await until("it is repaired", lambda: both[0].store.get(lost.key))
        assert await checks[0].check() == "equal"
        assert both[0].versions() == await newest(client)


def _checked(checks: list[SelfCheck]) -> list[Coroutine[Any, Any, None]]:
    async def often(check: SelfCheck) -> None:
        for _ in range(CHECKS):
            await check.check()

    return [often(check) for check in checks]


@pytest.mark.parametrize("media", list(MediaType), ids=lambda media: media.name)
async def test_a_quiet_large_kind_is_proven_by_a_bookmark_of_a_short_watch(
    plane: ControlPlane, client: Client, media: MediaType
) -> None:
    async with following(plane, media, LARGE) as followed:
        proofs = followed.follower.counters.proofs
        for _ in range(20):  # the API server itself may write a ConfigMap, which proves the version without a probe
            other = await client.create(
                Secret(metadata=ObjectMeta(name=f"quiet-{random.randrange(10**9)}", namespace=NAMESPACE))
            )
            assert await followed.freshness.confirm(20) >= int(other.metadata.resource_version)
            if proofs["probe"] == 3:
                break
        assert proofs["probe"] == 3
        assert followed.follower.counters.not_fresh == 0
        assert followed.transport.loads == 1


@pytest.mark.parametrize("settings", [LARGE, FreshSettings()], ids=["large", "small"])
async def test_writes_before_a_proof_began_are_in_the_store_after_it(
    plane: ControlPlane, client: Client, settings: FreshSettings
) -> None:
    async def read_own_writes(followed: Following, number: int) -> None:
        name = f"own-{number}-{random.randrange(10**9)}"
        created = await client.create(config_map(name, n="0"))
        for version in (created.metadata.resource_version, None):
            if version is None:
                changed = await client.patch(ConfigMap, name, {"data": {"n": "1"}}, namespace=NAMESPACE)
                version = changed.metadata.resource_version
            await followed.freshness.confirm(20)
            item = followed.store.get(f"default/{name}")
            assert item is not None
            assert item.version == int(version)
        await client.delete(ConfigMap, name, namespace=NAMESPACE)
        await followed.freshness.confirm(20)
        assert followed.store.get(f"default/{name}") is None

    async with following(plane, MediaType.PROTOBUF, settings) as followed:
        for _ in range(3):
            await asyncio.gather(
                churn(client, random.Random(5), 20, f"load{random.randrange(10**9)}"),
                *(read_own_writes(followed, number) for number in range(12)),
            )
        assert followed.follower.counters.not_fresh == 0
        assert followed.follower.counters.lists == 1


async def test_a_restarted_api_server_is_asked_for_one_state_per_media_type_and_no_client_sees_a_gap(
    plane: ControlPlane, client: Client
) -> None:
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(following(plane, media)) for media in MediaType]
        before = await client.create(config_map("before"))
        for each in both:
            assert await each.store.wait_for(int(before.metadata.resource_version), 20)
        closed: list[str] = []
        sequences: list[list[bytes]] = []
        for each in both:
            for _ in range(1500):
                taken: list[bytes] = []
                sequences.append(taken)
                each.store.subscribe(ALL, each.store.version, each.view, taken.extend, closed.append)
        await client.create(Namespace(metadata=ObjectMeta(name="elsewhere")))  # so that the new server's cache is newer
        plane.stop_apiserver(grace_s=0)
        await until("the followers notice", lambda: all(each.follower.away_since for each in both))
        waiting = [asyncio.create_task(each.store.wait_for(each.store.version + 1, 60)) for each in both * 1500]
        plane.start_apiserver()
        after = await client.create(config_map("after"))
        for each in both:
            assert await each.store.wait_for(int(after.metadata.resource_version), 60)
            assert each.follower.counters.lists == each.transport.loads == 2
            assert each.versions() == await newest(client)
        assert all(await asyncio.gather(*waiting))
        await until("every client has the change", lambda: all(sequences))
        assert closed == []
        for each, taken in zip((*both,), (sequences[0], sequences[1500]), strict=True):
            frames = each.follower.wire.decoder().feed(b"".join(taken))
            assert [(frame.type, each.follower.wire.head(frame.data).name) for frame in frames] == [("ADDED", "after")]
        assert len({b"".join(taken) for taken in sequences}) == len(both)


async def test_an_etcd_restored_from_an_older_state_resets_the_store(plane: ControlPlane, client: Client) -> None:
    data, copy = plane.directory / "etcd", plane.directory / "etcd-older"
    await client.create(config_map("restored"))
    plane.stop_etcd()
    shutil.copytree(data, copy)
    plane.start_etcd()
    async with following(plane, MediaType.JSON) as followed:
        for number in range(300):  # more than what an API server writes by itself before the versions are compared
            await client.create(config_map(f"lost-{number}"))
        lost = await client.create(config_map("lost"))
        assert await followed.store.wait_for(int(lost.metadata.resource_version), 20)
        closed: list[str] = []
        followed.store.subscribe(ALL, followed.store.version, followed.view, lambda pieces: None, closed.append)
        plane.stop_apiserver(grace_s=0)
        plane.stop_etcd()
        shutil.rmtree(data)
        copy.rename(data)
        plane.start_etcd()
        plane.start_apiserver()
        await until("the store is reset", lambda: closed)
        assert closed == ["reset"]
        await followed.freshness.confirm(20)
        assert followed.versions() == await newest(client)
        assert "default/restored" in followed.versions()
        assert "default/lost" not in followed.versions()
        assert followed.follower.counters.resets == 1
