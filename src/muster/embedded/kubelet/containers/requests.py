"""Makes network requests for probes and hooks, as the kubelet does."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Sequence

import aiohttp

from muster.kube.objects.container import ContainerPort, HTTPGetAction, TCPSocketAction

_MOST_BYTES = 10240


class ProbeFailed(Exception):
    """The probe failed; the message says why."""


async def http_get(action: HTTPGetAction, pod_ip: str, ports: Sequence[ContainerPort], timeout_s: float) -> None:
    """GET; anything from 200 to 399 is success, everything else raises ProbeFailed. Certificates are not checked."""
    scheme = (action.scheme or "HTTP").lower()
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{scheme}://{action.host or pod_ip}:{port_number(action.port, ports)}{path}"
    headers = {"User-Agent": "kube-probe/1.36", "Accept": "*/*"} | {h.name: h.value for h in action.http_headers}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, ssl=_unchecked(), allow_redirects=False) as answer,
        ):
            body = (await answer.content.read(_MOST_BYTES)).decode(errors="replace")
            if not 200 <= answer.status < 400:
                raise ProbeFailed(f"HTTP probe failed with statuscode: {answer.status} {body[:200]}".rstrip())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ProbeFailed(f'Get "{url}": {str(error) or "context deadline exceeded"}') from error


async def tcp_connect(action: TCPSocketAction, pod_ip: str, ports: Sequence[ContainerPort], timeout_s: float) -> None:
    """Open a connection and close it again; raises ProbeFailed."""
    host, port = action.host or pod_ip, port_number(action.port, ports)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        raise ProbeFailed(f"dial tcp {host}:{port}: {str(error) or 'i/o timeout'}") from error


def port_number(port: int | str, ports: Sequence[ContainerPort]) -> int:
    """Return the number of a port given by number or name. Raises ProbeFailed for an unknown name."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for declared in ports:
        if declared.name == port:
            return declared.container_port
    raise ProbeFailed(f"couldn't find port: {port}")


@functools.cache
def _unchecked() -> ssl.SSLContext:
    """Return a TLS context that accepts every certificate.

    Loading the system's authorities for each probe would be slow.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls
