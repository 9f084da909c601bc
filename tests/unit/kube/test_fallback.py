"""Clients of a read cache when it goes away and comes back."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.controlplane.ports import free_port
from muster.kube.client import Client
from muster.kube.connection.cachedtransport import CachedTransport, cached_transport
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.connection.credentials import StaticToken
from muster.kube.connection.fallback import Fallback, FallbackSettings
from muster.kube.connection.readcacheconfig import read_cache_config
from muster.kube.connection.transport import Answer, HttpTransport, NotSent
from muster.kube.errors import (
    ApiError,
    ConfigError,
    Forbidden,
    Gone,
    NotFound,
    ServerTimeout,
    TooManyRequests,
    Unavailable,
)
from muster.kube.informer import Informer
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import ConfigMap
from muster.sim.virtual.loop import VirtualLoop
from tests.support.faultyproxy import Fault, faulty_proxy
from tests.support.waiting import TIMEOUT_S, until
from tests.support.watchproxy import WatchProxy
from tests.unit.kube.fakeapi import FakeApi

SETTINGS = FallbackSettings()
REFUSED = NotSent(0, "ConnectionRefused", "refused")
BUSY = Unavailable(503, "ServiceUnavailable", "not fresh")


def fallback(settings: FallbackSettings = SETTINGS, seed: int = 1) -> Fallback:
    return Fallback("https://cache", random.Random(seed), settings)


def test_the_cache_is_used_until_it_is_away() -> None:
    choice = fallback()
    assert [choice.choose(now) for now in (0, 100, 1000)] == [None] * 3
    choice.failed(REFUSED, 1000, gone=True)
    assert choice.away
    assert choice.choose(1000) is not None


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, "NotFound", ""),
        Gone(410, "Expired", ""),
        TooManyRequests(429, "TooManyRequests", ""),
        Forbidden(403, "Forbidden", ""),
        ServerTimeout(504, "Timeout", "Too large resource version"),
        ApiError(500, "InternalError", ""),
    ],
    ids=lambda error: str(error.status),
)
def test_an_error_about_the_request_itself_does_not_mean_that_the_cache_is_away(error: ApiError) -> None:
    choice = fallback()
    for now in range(20):
        choice.failed(error, now, gone=False)
    assert not choice.away


@pytest.mark.parametrize(
    "error",
    [BUSY, Unavailable(502, "", "bad gateway"), ServerTimeout(504, "", "a gateway"), Unavailable(0, "Lost", "")],
)
def test_only_several_refusals_in_a_row_mean_that_the_cache_is_away(error: ApiError) -> None:
    choice = fallback()
    for now in range(20):
        choice.failed(error, now, gone=False)
        choice.failed(error, now, gone=False)
        choice.answered()
    assert not choice.away
    for now in range(SETTINGS.refusals):
        assert not choice.away
        choice.failed(error, now, gone=False)
    assert choice.away


def test_one_request_in_each_interval_tries_the_cache_again_and_an_answer_brings_all_back() -> None:
    choice = fallback()
    choice.failed(REFUSED, 0, gone=True)
    tries = []
    for now in range(300):
        if choice.choose(now) is None:
            tries.append(now)
            if now % 2:
                choice.failed(REFUSED, now + 0.5, gone=True)  # else its answer does not come
    gaps = [later - each for each, later in itertools.pairwise([0, *tries])]
    assert all(SETTINGS.retry_s / 2 <= gap <= SETTINGS.retry_s * 1.5 + 1 for gap in gaps)
    assert len(set(gaps)) > 2
    choice.answered()
    assert not choice.away
    assert choice.choose(300) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_client_never_sends_more_to_the_api_server_than_its_limit(seed: int) -> None:
    choice, rng = fallback(seed=seed), random.Random(seed)
    now, sent = 0.0, []
    choice.failed(REFUSED, now, gone=True)
    for _ in range(400):
        now += rng.choice((0, 0, 0.01, 0.5, 3))
        pause_s = choice.choose(now)
        if pause_s is not None:
            sent.append(now + pause_s)
    assert sent == sorted(sent)
    for each, first in enumerate(sent):
        within = sum(1 for at in sent[each:] if at < first + 2.0)
        assert within <= SETTINGS.burst + 2.0 * SETTINGS.requests_per_s


class Counted:
    """A server in virtual time that counts requests by second, or refuses them."""

    def __init__(self) -> None:
        self.down = False
        self.at: list[float] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        fence: object = None,
    ) -> Answer:
        await asyncio.sleep(0.005)
        if self.down:
            raise REFUSED
        self.at.append(asyncio.get_running_loop().time())
        return Answer(200, b"{}")

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Mapping[str, str], stall_s: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await self.request("GET", path, params=params, body=None, headers={}, timeout_s=stall_s)
        yield _nothing()

    def stream(self, method: str, path: str, *, params: Mapping[str, str]) -> Any:
        raise NotImplementedError

    def websocket(self, path: str, *, params: Mapping[str, str], protocols: object) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def _nothing() -> AsyncIterator[bytes]:
    for chunk in ():
        yield chunk


async def _get(transport: CachedTransport) -> None:
    await transport.request("GET", "/x", params={}, body=None, headers={}, timeout_s=5)


async def _watch(transport: CachedTransport) -> None:
    async with transport.chunks("/x", params={"watch": "true"}, stall_s=90) as chunks:
        async for _ in chunks:
            pass


def in_virtual_time(story: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    loop = VirtualLoop.new()

    async def main() -> None:
        await story(loop)

    try:
        loop.run(main())
    finally:
        loop.wind_up()


@pytest.mark.slow
def test_1000_clients_that_lose_their_cache_reach_the_api_server_spread_out_and_return() -> None:
    clients, period_s = 1000, 10.0

    async def story(loop: VirtualLoop) -> None:
        cache, server = Counted(), Counted()

        async def client(number: int) -> None:
            transport = CachedTransport(cache, server, fallback(seed=number))
            await asyncio.sleep(period_s * number / clients)
            while True:
                await transport.request("GET", "/x", params={}, body=None, headers={}, timeout_s=5)
                await asyncio.sleep(period_s)

        working = [asyncio.create_task(client(number)) for number in range(clients)]
        await asyncio.sleep(60)
        assert not server.at
        cache.down, cache.at = True, []
        await asyncio.sleep(120)
        seconds = Counter(int(at) for at in server.at)
        average = clients / period_s
        assert len(server.at) > 100 * average
        assert max(seconds.values()) < 2.5 * average
        cache.down, server.at = False, []
        await asyncio.sleep(1.5 * SETTINGS.retry_s + period_s + 1)
        server.at.clear()
        await asyncio.sleep(60)
        assert not server.at
        for each in working:
            each.cancel()

    in_virtual_time(story)


@pytest.mark.parametrize("ask", [_get, _watch])
def test_requests_of_one_client_that_fail_together_are_spread_after_a_pause(
    ask: Callable[[CachedTransport], Awaitable[None]],
) -> None:
    async def story(loop: VirtualLoop) -> None:
        firsts = []
        for seed in range(20):
            cache, server = Counted(), Counted()
            cache.down = True
            transport = CachedTransport(cache, server, fallback(seed=seed))
            began = loop.time()
            await asyncio.gather(*(ask(transport) for _ in range(50)))
            firsts.append(server.at[0] - began)
            for each, first in enumerate(server.at):
                within = sum(1 for at in server.at[each:] if at < first + 1.0)
                assert within <= SETTINGS.burst + SETTINGS.requests_per_s
        assert max(firsts) - min(firsts) > SETTINGS.jitter_s / 2
        assert max(firsts) < SETTINGS.jitter_s + 0.1

    in_virtual_time(story)


def test_a_watch_that_falls_silent_means_that_the_cache_is_away_and_one_that_breaks_does_not() -> None:
    class Ending(Counted):
        def __init__(self, error: ApiError) -> None:
            super().__init__()
            self.error = error

        @asynccontextmanager
        async def chunks(
            self, path: str, *, params: Mapping[str, str], stall_s: float, headers: Mapping[str, str] | None = None
        ) -> AsyncIterator[AsyncIterator[bytes]]:
            async def fail() -> AsyncIterator[bytes]:
                yield b"{}"
                raise self.error

            yield fail()

    async def story(loop: VirtualLoop) -> None:
        for error, away in ((ServerTimeout(0, "Timeout", ""), True), (Unavailable(0, "ConnectionLost", ""), False)):
            choice = fallback()
            transport = CachedTransport(Ending(error), Counted(), choice)
            with pytest.raises(type(error)):
                await _watch(transport)
            assert choice.away is away

    in_virtual_time(story)


def test_writes_and_leases_go_to_the_api_server() -> None:
    async def story(loop: VirtualLoop) -> None:
        cache, server = Counted(), Counted()
        transport = CachedTransport(cache, server, fallback())
        lease = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"
        for method, path in (("POST", "/x"), ("PUT", "/x"), ("PATCH", "/x"), ("DELETE", "/x"), ("GET", lease)):
            await transport.request(method, path, params={}, body=b"", headers={}, timeout_s=5)
        assert (len(cache.at), len(server.at)) == (0, 5)
        await transport.request("GET", "/x", params={}, body=None, headers={}, timeout_s=5)
        assert (len(cache.at), len(server.at)) == (1, 5)

    in_virtual_time(story)


QUICK = FallbackSettings(jitter_s=0.2, requests_per_s=50, burst=10, retry_s=0.4)


def http(url: str) -> HttpTransport:
    return HttpTransport(ClusterConfig(server=url), user_agent="test", connections=8)


def through(cache: str, api: FakeApi, choice: Fallback | None = None, timeout_s: float = TIMEOUT_S) -> Client:
    transport = CachedTransport(http(cache), http(api.url), choice or fallback(QUICK))
    return Client(api.config(), transport=transport, metrics=kube_metrics(CollectorRegistry()), timeout_s=timeout_s)


@pytest.mark.slow
async def test_informers_and_requests_of_50_clients_survive_the_death_of_their_cache_and_return(
    api: FakeApi, tmp_path: Path
) -> None:
    api.put("a", data={"n": "1"})
    proxy = WatchProxy(api.config())
    clients: list[Client] = []
    running: list[asyncio.Task[None]] = []
    try:
        port = free_port()  # it stays free while the cache is away
        async with proxy.serving(tmp_path, port) as kubeconfig:
            url = load_config(kubeconfig).server
            choices = [fallback(QUICK, seed) for seed in range(50)]
            clients = [through(url, api, choice) for choice in choices]
            informers = [Informer(each, ConfigMap, rng=random.Random(n)) for n, each in enumerate(clients)]
            running = [asyncio.create_task(each.run()) for each in informers]
            await until("all informers have the object", lambda: all("default/a" in each.store for each in informers))
            await until("they watch", lambda: sum(proxy.open.values()) == len(api.watches) == 50)
            served = len(api.requests)
        # the cache is dead
        api.put("b", data={"n": "1"})
        await until("all informers have the change", lambda: all("default/b" in each.store for each in informers))
        assert len(api.requests) - served < 50 * 4
        got = await asyncio.gather(*(each.get(ConfigMap, "b", "default") for each in clients))
        assert {each.name for each in got} == {"b"}
        assert sum(proxy.open.values()) == 0
        async with proxy.serving(tmp_path, port):
            await until("requests use the cache again", lambda: _read_until_back(clients, choices))
            api.end_watches()
            await until("watches use the cache again", lambda: sum(proxy.open.values()) == 50)
            api.put("c", data={"n": "1"})
            await until("all informers have the change", lambda: all("default/c" in each.store for each in informers))
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    finally:
        for task in running:
            task.cancel()
        for each in clients:
            await each.close()


async def _read_until_back(clients: list[Client], choices: list[Fallback]) -> bool:
    for each in clients:
        await each.get(ConfigMap, "a", "default")
    return not any(each.away for each in choices)


async def test_a_cache_that_refuses_for_long_is_left_and_one_that_refuses_once_is_not(api: FakeApi) -> None:
    api.put("a")
    with faulty_proxy(api.url) as proxy:
        async with through(proxy.address, api) as client:
            proxy.add(Fault(status=503, headers={"Retry-After": "0"}, body=b"{}"))
            await client.get(ConfigMap, "a", "default")
            assert proxy.count() == 2
            assert len(api.requests) == 1
            proxy.add(Fault(status=503, times=None, headers={"Retry-After": "0"}, body=b"{}"))
            await client.get(ConfigMap, "a", "default")
            assert proxy.count() == 2 + QUICK.refusals


async def test_a_cache_that_hangs_up_or_hangs_is_left(api: FakeApi) -> None:
    api.put("a")
    with faulty_proxy(api.url) as proxy:
        async with through(proxy.address, api) as client:
            proxy.add(Fault(refuse=True, times=None))
            assert (await client.get(ConfigMap, "a", "default")).name == "a"
        proxy.clear()
        async with through(proxy.address, api, timeout_s=0.5) as client:
            proxy.add(Fault(delay_s=20, times=1))
            assert (await client.get(ConfigMap, "a", "default")).name == "a"


async def test_a_client_reads_through_the_cache_at_a_url_and_writes_to_the_api_server(api: FakeApi) -> None:
    api.put("a")
    with faulty_proxy(api.url) as proxy:
        config = api.config(StaticToken("secret"))
        transport = cached_transport(config, proxy.address, None, user_agent="muster-test")
        async with Client(config, transport=transport, metrics=kube_metrics(CollectorRegistry())) as client:
            await client.get(ConfigMap, "a", "default")
            await client.patch(ConfigMap, "a", {"data": {"n": "1"}}, namespace="default")
        assert [each.method for each in proxy.requests] == ["GET"]
        assert proxy.requests[0].headers["authorization"] == "Bearer secret"
        assert [method for method, *_ in api.requests] == ["GET", "PATCH"]


def config(**fields: Any) -> ClusterConfig:
    return ClusterConfig(
        server="https://api:6443",
        ca_data=b"of the cluster",
        credentials=StaticToken("secret"),
        tls_server_name="api",
        proxy_url="http://proxy:3128",
        **fields,
    )


def test_the_cache_gets_the_same_token_and_its_own_authorities(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"of the cache")
    made = read_cache_config(config(), "https://cache:8443/", tmp_path / "ca.crt")
    assert (made.server, made.ca_data) == ("https://cache:8443", b"of the cache")
    assert made.credentials is not None
    assert (made.tls_server_name, made.proxy_url) == ("", "")
    assert read_cache_config(config(), "https://cache:8443").ca_data == b"of the cluster"
    assert read_cache_config(config(), "http://127.0.0.1:8080").server == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("cache:8443", "write it as https://HOST:PORT"),
        ("ftp://cache", "write it as https://HOST:PORT"),
        ("http://cache:8080", "without TLS to another machine; use https://"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_cache_config(config(), url)


def test_a_client_certificate_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use a kubeconfig with a token"):
        read_cache_config(
            ClusterConfig(server="https://api", client_certificate=b"PEM", client_key=b"PEM"), "https://cache"
        )
    with pytest.raises(ConfigError, match="--read-cache-ca"):
        read_cache_config(config(), "https://cache", tmp_path)


def test_authorities_that_are_not_published_yet_do_not_stop_an_agent(tmp_path: Path) -> None:
    assert read_cache_config(config(), "https://cache:8443", tmp_path / "missing").ca_data == b"of the cluster"
