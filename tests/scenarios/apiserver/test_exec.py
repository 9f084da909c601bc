"""exec passes through the server to the kubelet as a websocket."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from aiohttp import web

from muster.kube.connection.pki import CertificateAuthority, KeyPair
from tests.support.apiserver import Api
from tests.support.kubectl import kubectl_program

TOKEN = web.AppKey("token", str)
STDIN, STDOUT, ERROR = b"\x00", b"\x01", b"\x03"
SUCCESS = b'{"metadata":{},"status":"Success"}'


async def echo(request: web.Request) -> web.StreamResponse:
    """A kubelet whose every command prints its arguments and what it read."""
    assert request.headers["Authorization"] == f"Bearer {request.app[TOKEN]}"
    assert request.query.getall("command") == ["cat", "-u"]
    assert request.query.get("input") == "1"
    socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
    await socket.prepare(request)
    async for message in socket:
        if message.data.startswith(STDIN):
            await socket.send_bytes(STDOUT + b"read " + message.data[1:])
            break
    await socket.send_bytes(ERROR + SUCCESS)
    await socket.close()
    return socket


async def test_exec_through_kubectl(embedded: Api, tmp_path: Path) -> None:
    kubectl = kubectl_program()
    folder = embedded.kubeconfig.parent
    authority = CertificateAuthority(KeyPair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes()))
    authority.issue_server("kubelet", ["127.0.0.1"]).write(tmp_path / "crt", tmp_path / "key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    application = web.Application()
    application[TOKEN] = (folder / "kubelet-token").read_text().strip()
    application.router.add_get("/exec/default/runs/c", echo)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    pods = "/api/v1/namespaces/default/pods"
    try:
        embedded.create("/api/v1/nodes", {"metadata": {"name": "exec-node"}, "status": status})
        pod = {"metadata": {"name": "runs"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        embedded.create(pods, pod)
        embedded.create(f"{pods}/runs/binding", {"target": {"kind": "Node", "name": "exec-node"}})
        process = await asyncio.create_subprocess_exec(
            *[kubectl, "--kubeconfig", str(embedded.kubeconfig), "exec", "-i", "runs", "--", "cat", "-u"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate(b"hello")
        assert (process.returncode, out, err) == (0, b"read hello", b"")
    finally:
        embedded.send("DELETE", f"{pods}/runs", {"gracePeriodSeconds": 0})
        embedded.send("DELETE", "/api/v1/nodes/exec-node")
        await runner.cleanup()
