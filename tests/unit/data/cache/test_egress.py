"""The proxy that carries requests of readers: whose they are, where they may go, and what they cost."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from muster.api.socket_marks import BASE, MAX_MARKS
from muster.data.cache.blocks import StoreIdentity
from muster.data.cache.disk import Disk, Limits
from muster.data.cache.egress import Egress
from muster.data.cache.files import Folder
from muster.data.cache.marks import Marks
from muster.data.cache.node import Node
from muster.data.cache.rates import Rates
from muster.sdk.data.wire import CacheUnavailable, ErrorCode
from tests.support.bucketserver import BucketServer, etag_of
from tests.unit.data.cache.conftest import Bench


class Recorded(Rates):
    """Rates that record what they charge."""

    def __init__(self) -> None:
        super().__init__()
        self.charged: dict[str, int] = {}

    def take(self, job: str, count: int) -> float:
        self.charged[job] = self.charged.get(job, 0) + count
        return super().take(job, count)


@asynccontextmanager
async def serving(egress: Egress) -> AsyncIterator[None]:
    task = asyncio.create_task(egress.serve())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(egress: Egress, text: str, password: str | None = None) -> bytes:
    """Send a request to the proxy, and return all that comes back."""
    url = urllib.request.urlparse(egress.url("job"))  # type: ignore[attr-defined]
    reader, writer = await asyncio.open_connection("127.0.0.1", url.port)
    token = base64.b64encode(f"job:{url.password if password is None else password}".encode()).decode()
    writer.write(text.replace("\n", "\r\n").format(auth=f"Proxy-Authorization: Basic {token}").encode())
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def request(address: str, method: str = "GET") -> str:
    head = f"{method} {address} HTTP/1.1\nHost: x\n{{auth}}\n"
    return f"{head}Connection: close\n\n"


async def test_request_of_a_job_is_charged_to_it(server: BucketServer) -> None:
    server.rights[""] = ("public",)
    server.objects["public/key"] = bytes(5000)
    rates = Recorded()
    egress = Egress(rates, Marks(False), loopback=True)
    async with serving(egress):
        answer = await ask(egress, request(f"{server.address}/public/key"))
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(bytes(5000))
        assert rates.charged.keys() == {"job"}
        assert 5000 < rates.charged["job"] < 6000
        tunnel = f"CONNECT {server.address[7:]} HTTP/1.1\n{{auth}}\n\nGET /public/key HTTP/1.1\nConnection: close\n\n"
        assert (await ask(egress, tunnel)).endswith(bytes(5000))
        assert 10_000 < rates.charged["job"] < 12_000
    del server.rights[""]


async def test_processes_without_the_password_cannot_use_the_proxy(server: BucketServer) -> None:
    egress = Egress(Rates(), Marks(False), loopback=True)
    before = sum(server.counts.values())
    async with serving(egress):
        for password in ("", "guessed"):
            assert (await ask(egress, request(server.address), password)).startswith(b"HTTP/1.1 407")
            assert (await ask(egress, request(server.address[7:], "CONNECT"), password)).startswith(b"HTTP/1.1 407")
    assert sum(server.counts.values()) == before


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "0.0.0.0", "168.63.129.16", "127.0.0.1"]
)
async def test_addresses_that_trust_the_node_are_refused(host: str) -> None:
    egress = Egress(Rates(), Marks(False), loopback=False)
    async with serving(egress):
        assert (await ask(egress, request(f"http://{host}/latest/meta-data"))).startswith(b"HTTP/1.1 403")
        assert (await ask(egress, request(f"{host}:80", "CONNECT"))).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "text",
    [
        "nonsense\n\n",
        "GET / HTTP/1.1\n{auth}\n\n",
        "GET ftp://127.0.0.1/ HTTP/1.1\n{auth}\n\n",
        "GET http://127.0.0.1:x/ HTTP/1.1\n{auth}\n\n",
        "PUT http://127.0.0.1:1/ HTTP/1.1\n{auth}\n\n",
        "GET http://127.0.0.1:1/".ljust((64 << 10) + 1, "x"),  # refused with its last byte: all was read
    ],
)
async def test_malformed_requests_are_answered_with_an_error(text: str) -> None:
    egress = Egress(Rates(), Marks(False), loopback=True)
    async with serving(egress):
        assert (await ask(egress, text))[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5")


def test_reader_cannot_reach_the_metadata_service_by_another_spelling(running: Bench) -> None:
    client = running.cache.client()
    for host in ("[::ffff:169.254.169.254]", "2852039166"):
        access = running.access()._replace(endpoint=f"http://{host}")
        with pytest.raises(CacheUnavailable) as caught:
            client.open_object("s3://latest", access, "meta-data", "x", 10).read()
        assert caught.value.code in (ErrorCode.FORBIDDEN, ErrorCode.WRONG_STORE)
    client.close()


def test_marks_differ_by_job_and_are_reused_only_when_idle() -> None:
    marks = Marks(True)
    jobs = [f"job-{number}" for number in range(MAX_MARKS)]
    given = [marks.of(job) for job in jobs]
    assert len(set(given)) == MAX_MARKS
    assert all(BASE < mark <= BASE + MAX_MARKS for mark in given)
    assert not any(mark & other for mark in given for other in (0x4000, 0x8000, 0x0F00, 0xFFFF0000, 0x80))
    for job in jobs:
        marks.enter(job)
    assert marks.of("one-more") == BASE
    marks.leave("job-5")
    assert marks.of("one-more") == given[5]
    assert Marks(False).of("job") == 0


@pytest.mark.slow
def test_download_carries_the_mark_of_its_job(bench: Bench, tmp_path: Path) -> None:
    """The kernel reports the mark of the daemon's connection to the store."""
    probe = socket.socket()
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)
    except PermissionError:
        pytest.skip("needs NET_ADMIN")
    finally:
        probe.close()
    marked: list[int] = []

    class Watched(Marks):
        def set(self, connection: socket.socket, job: str) -> None:
            super().set(connection, job)
            marked.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_MARK))

    async def run() -> None:
        marks = Watched(True)
        egress = Egress(Rates(), marks, loopback=True)
        async with serving(egress):
            await ask(egress, request(f"{bench.server.address}/data/x"))
        assert marked == [marks.known("job")]
        assert marked[0] > BASE

    asyncio.run(run())


def test_store_with_a_name_is_reached_through_the_proxy(running: Bench) -> None:
    """A name may resolve to another address each time, so the proxy checks it. Large objects pass it whole."""
    data = os.urandom(3_000_000)
    key = running.put(data)
    named = running.access()._replace(endpoint=running.server.address.replace("127.0.0.1", "localhost"))
    client = running.cache.client()
    with client.open_object("s3://data", named, key, etag_of(data), len(data)) as file:
        assert file.read() == data
    client.close()


@pytest.mark.parametrize(
    ("endpoint", "marks", "proxied"),
    [
        ("https://minio.example:9000", False, True),
        ("http://10.1.2.3:9000", False, False),
        ("http://[fd00::1]:9000", False, False),
        ("", False, False),
        ("", True, True),
        ("http://10.1.2.3:9000", True, True),
    ],
)
def test_proxy_carries_requests_to_names_and_all_if_sockets_are_marked(
    tmp_path: Path, endpoint: str, marks: bool, proxied: bool
) -> None:
    node = Node("here", "", Disk(Folder(tmp_path), Limits(size_bytes=1)), 1, frozenset(), Marks(marks))
    store = StoreIdentity("s3", endpoint, "us-east-1", "", "data")
    assert bool(node.proxy_url("job", store)) == proxied
    node.close()
