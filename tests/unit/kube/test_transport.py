"""What is left of a client's connections once it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.pki import CertificateAuthority
from muster.kube.connection.transport import HttpTransport
from tests.support.waiting import until

BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[ClusterConfig]:
    """A server that begins its answer to `/watch`, says nothing else, and hears no goodbye."""
    authority = CertificateAuthority.create()
    authority.issue_server("server", ["127.0.0.1"]).write(tmp_path / "cert", tmp_path / "key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    over = threading.Event()

    def serve(accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
            if b"/watch" in connection.recv(4096):
                connection.sendall(BEGUN)
            over.wait(60)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield ClusterConfig(f"https://127.0.0.1:{listener.getsockname()[1]}", authority.certificate)
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10)


def connections(config: ClusterConfig) -> list[str]:
    """The states of this process' connections to it."""
    port = int(config.server.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp4")
    return [each.status for each in found if each.raddr and each.raddr.port == port]


async def test_a_watch_is_gone_once_the_client_is_closed_though_the_server_says_nothing(silent: ClusterConfig) -> None:
    transport = HttpTransport(silent, user_agent="test", connections=4)
    async with transport.chunks("/watch", params={}, stall_s=60) as chunks:
        assert await anext(chunks) == b"{}\n"
        assert connections(silent) == [psutil.CONN_ESTABLISHED]
    await transport.close()
    assert connections(silent) == []


async def test_a_request_that_was_called_off_is_gone_once_the_client_is_closed(silent: ClusterConfig) -> None:
    transport = HttpTransport(silent, user_agent="test", connections=4)
    asked = asyncio.create_task(transport.request("GET", "/a", params={}, body=None, headers={}, timeout_s=60))
    await until("it is on its way", lambda: connections(silent) == [psutil.CONN_ESTABLISHED])
    asked.cancel()
    await asyncio.wait([asked])
    await transport.close()
    assert connections(silent) == []
