"""Collecting evidence from several API servers, which speak the real protocol over TLS."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from muster.api.reader import USER_AGENT, Reader
from muster.doctor.collect import collect
from muster.doctor.evidence import NUMBER_OF_NODES, Evidence
from muster.doctor.registry import COLLECTORS, FAMILIES
from muster.doctor.rule import Options
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import StaticToken
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.errors import Unauthorized, Unavailable
from tests.support.closing import stopped

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
WINDOW_S = 0.3


class Server:
    """An API server with the paths that a test gives it; all others do not exist."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.seen: list[web.Request] = []
        self.paths: dict[str, Callable[[], web.Response]] = {
            "/version": lambda: web.json_response({"gitVersion": "v1.36.3"}),
            "/metrics": self.metrics,
        }
        self.start, self.requests = 100.0, 0

    def metrics(self) -> web.Response:
        self.requests += 100
        return web.Response(
            text=f"process_start_time_seconds {self.start}\n"
            f'apiserver_request_total{{code="200",verb="GET",resource="pods"}} {self.requests}\n'
        )

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request)
        answer = self.paths.get(request.path)
        return answer() if answer is not None else web.json_response({"code": 404, "reason": "NotFound"}, status=404)


@contextlib.asynccontextmanager
async def running(
    server: Server, authority: CertificateAuthority, folder: Path, *more_hosts: str
) -> AsyncIterator[Server]:
    """Serve with a certificate that has the name that each API server has, and more names."""
    pair = authority.issue_server("kube-apiserver", ("kubernetes.default.svc", *more_hosts))
    pair.write(folder / f"{server.name}.crt", folder / f"{server.name}.key")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / f"{server.name}.crt", folder / f"{server.name}.key")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await stopped(runner)


@pytest.fixture
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("cluster")


@pytest.fixture
async def servers(authority: CertificateAuthority, tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """Two API servers of one cluster. The first is that of the kubeconfig."""
    first, second = Server("first"), Server("second")
    async with running(first, authority, tmp_path, "127.0.0.1"), running(second, authority, tmp_path):
        serve_slices(first, first.port, second.port)
        yield first, second


def serve_slices(server: Server, *ports: int) -> None:
    slices = [
        {"ports": [{"name": "https", "port": port}], "endpoints": [{"addresses": ["127.0.0.1"]}]} for port in ports
    ]
    server.paths[SLICES] = lambda: web.json_response({"metadata": {}, "items": slices})


def config(server: Server, authority: CertificateAuthority, *, verified: bool = True) -> ClusterConfig:
    return ClusterConfig(
        f"https://127.0.0.1:{server.port}",
        ca_data=authority.certificate if verified else b"",
        credentials=StaticToken("secret"),
        insecure_skip_tls_verify=not verified,
    )


async def collected(cluster: ClusterConfig) -> tuple[Evidence, Reader]:
    async with Client(cluster, user_agent=USER_AGENT, retry_for_s=0) as client:
        reader = Reader(client)
        return await collect(reader, Options(window_s=WINDOW_S), FAMILIES, COLLECTORS), reader


def increases(evidence: Evidence) -> list[int]:
    return [
        round(rate * server.seconds)
        for server in evidence.servers
        for _, rate in server.rates("apiserver_request_total")
    ]


async def test_metrics_of_all_api_servers_are_read(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    evidence, reader = await collected(config(servers[0], authority))
    assert {server.address for server in evidence.servers} == {f"https://127.0.0.1:{each.port}" for each in servers}
    assert increases(evidence) == [100, 100]
    assert evidence.version == "v1.36.3"
    requests = [request for server in servers for request in server.seen]
    assert reader.cost.requests == len(requests)
    assert {request.headers["User-Agent"] for request in requests} == {USER_AGENT}
    assert {request.method for request in requests} == {"GET"}


async def test_every_list_has_a_limit(servers: tuple[Server, Server], authority: CertificateAuthority) -> None:
    await collected(config(servers[0], authority))
    last = {"nodes", "pods", "events", "daemonsets", "endpointslices", "apiservices", "validatingwebhookconfigurations"}
    lists = [request for request in servers[0].seen if request.path.rpartition("/")[2] in last]
    assert {request.path.rpartition("/")[2] for request in lists} == last
    assert all(int(request.query["limit"]) <= 100 for request in lists)


async def test_server_of_another_authority_gets_no_credentials(
    servers: tuple[Server, Server], authority: CertificateAuthority, tmp_path: Path
) -> None:
    first, _ = servers
    async with running(Server("stranger"), CertificateAuthority.create("other"), tmp_path) as stranger:
        serve_slices(first, first.port, stranger.port)
        evidence, _ = await collected(config(first, authority))
    assert stranger.seen == []
    assert [server.address for server in evidence.servers] == [f"https://127.0.0.1:{first.port}"]
    assert any(str(stranger.port) in each.what for each in evidence.unseen)


async def test_credentials_stay_with_the_kubeconfig_s_server_if_servers_cannot_be_verified(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    first, second = servers
    evidence, _ = await collected(config(first, authority, verified=False))
    assert second.seen == []
    assert increases(evidence) == [100]
    assert any("certificate-authority-data" in each.why for each in evidence.unseen)


async def test_server_that_restarted_in_the_window_is_compared_with_its_start(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    import time

    first, _ = servers
    serve_slices(first, first.port)
    answer = first.metrics

    def restarted() -> web.Response:
        page = answer()
        first.start, first.requests = time.time(), 0
        return page

    first.requests = 100_000
    first.paths["/metrics"] = restarted
    evidence, _ = await collected(config(first, authority))
    assert increases(evidence) == [100]


async def test_missing_right_to_metrics_is_named_and_the_window_is_not_waited(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    first, second = servers
    refusal = {"code": 403, "reason": "Forbidden", "message": "user cannot get path /metrics"}
    for server in servers:
        server.paths["/metrics"] = lambda: web.json_response(refusal, status=403)
    evidence, _ = await collected(config(first, authority))
    assert evidence.servers == ()
    assert ("get nonResourceURL /metrics", refusal["message"]) in [(each.right, each.why) for each in evidence.unseen]
    assert sum(request.path == "/metrics" for request in [*first.seen, *second.seen]) == 2


async def test_missing_right_to_nodes_is_not_taken_for_a_cluster_without_nodes(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    refusal = {"code": 403, "reason": "Forbidden", "message": "user cannot list nodes"}
    servers[0].paths["/api/v1/nodes"] = lambda: web.json_response(refusal, status=403)
    evidence, _ = await collected(config(servers[0], authority))
    assert not evidence.scale.known
    assert ("list nodes", NUMBER_OF_NODES) in [(each.right, each.what) for each in evidence.unseen]


async def test_saturated_server_is_examined_as_far_as_it_answers(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    first, _ = servers
    serve_slices(first, first.port)
    first.paths["/version"] = lambda: web.json_response({"code": 429, "message": "too many requests"}, status=429)
    evidence, _ = await collected(config(first, authority))
    assert increases(evidence) == [100]
    assert any(each.why == "too many requests" for each in evidence.unseen)


async def test_cluster_that_is_away_or_refuses_the_credentials_is_an_error(
    servers: tuple[Server, Server], authority: CertificateAuthority
) -> None:
    first, _ = servers
    first.paths["/version"] = lambda: web.json_response({"code": 401, "reason": "Unauthorized"}, status=401)
    with pytest.raises(Unauthorized):
        await collected(config(first, authority))
    with pytest.raises(Unavailable):
        await collected(ClusterConfig("http://127.0.0.1:1"))
