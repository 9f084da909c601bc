"""Serves logs, exec and pods of a kubelet to its API server."""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from muster.embedded.kubelet.logs.reading import LogOptions, log_files, read_log, since_time
from muster.embedded.kubelet.pods.manager import PodManager
from muster.embedded.kubelet.pods.worker import PodWorker
from muster.embedded.kubelet.serving.remote_command import RemoteCommand
from muster.embedded.kubelet.settings import Settings
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.objects.container import ContainerStatus
from muster.kube.objects.struct import to_dict

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SHUTDOWN_S = 1.0


class KubeletServer:
    """Serves HTTPS on the node's address, for clients with the token or an accepted client certificate.

    Attributes:
        manager: the pods; before it is set, requests get 503.
    """

    def __init__(self, settings: Settings) -> None:
        """Create the server; `start` listens."""
        self.manager: PodManager | None = None
        self._settings = settings
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises OSError if the port is in use."""
        app = web.Application(middlewares=[self._authorize])
        app.add_routes(
            [
                web.get("/healthz", _healthz),
                web.get("/pods", self._pods),
                web.get("/containerLogs/{namespace}/{pod}/{container}", self._logs),
                web.get("/exec/{namespace}/{pod}/{container}", self._exec),
                web.post("/exec/{namespace}/{pod}/{container}", self._exec),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        listener = socket.create_server((self._settings.address, self._settings.port))
        await web.SockSite(self._runner, listener, ssl_context=await asyncio.to_thread(self._tls)).start()
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening, and end open requests."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _tls(self) -> ssl.SSLContext:
        settings = self._settings
        if settings.serving_ca is not None:
            files = (settings.serving_ca / "ca.crt", settings.serving_ca / "ca.key")
            authority = CertificateAuthority(KeyPair(files[0].read_bytes(), files[1].read_bytes()))
        else:
            authority = CertificateAuthority.create(f"muster-kubelet-{settings.node}")
        certificate, key = settings.state_dir / "kubelet.crt", settings.state_dir / "kubelet.key"
        authority.issue_server(f"system:node:{settings.node}", (settings.address, settings.node)).write(
            certificate, key
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        if settings.client_ca_file is not None:
            context.load_verify_locations(cafile=settings.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/healthz" and not self._may(request):
            raise web.HTTPUnauthorized(text="Unauthorized")
        return await handler(request)

    def _may(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if self._settings.token_file is not None and scheme == "Bearer" and given:
            try:
                token = self._settings.token_file.read_text().strip()
            except OSError:
                token = ""
            if token and hmac.compare_digest(token.encode(), given.encode()):
                return True
        certificate = request.get_extra_info("peercert")
        names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
        return bool(names) and names[0] in self._settings.client_names

    async def _pods(self, request: web.Request) -> web.Response:
        pods = [to_dict(worker.pod) for worker in self._known().workers]
        return web.json_response({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        worker, container = self._find(request)
        query = request.query
        try:
            options = LogOptions(
                follow=query.get("follow") == "true",
                tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
                since=since_time(query.get("sinceSeconds"), query.get("sinceTime")),
                timestamps=query.get("timestamps") == "true",
                limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
            )
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"invalid log options: {error}") from None
        runner = worker.runner(container)
        assert runner is not None
        files = log_files(worker.log_folder(container))
        current = runner.status.restart_count
        if query.get("previous") == "true":
            files = [file for file in files if int(file.stem) < current]
            if not files:
                name = worker.pod.name
                raise web.HTTPBadRequest(text=f'previous terminated container "{container}" in pod "{name}" not found')
        elif not files:
            raise web.HTTPBadRequest(text=_not_started(worker, runner.status))
        file = files[-1]
        process = runner.process

        def ended() -> bool:
            return process is None or runner.process is not process or process.exited.done()

        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for chunk in read_log(file, options, ended):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        worker, container = self._find(request)
        runner = worker.runner(container)
        if runner is None or runner.process is None:
            raise web.HTTPBadRequest(text=f"container {container} of pod {worker.pod.name} is not running")
        return await RemoteCommand(runner, request).serve()

    def _known(self) -> PodManager:
        if self.manager is None:
            raise web.HTTPServiceUnavailable(text="the kubelet is starting")
        return self.manager

    def _find(self, request: web.Request) -> tuple[PodWorker, str]:
        namespace, name, container = (request.match_info[key] for key in ("namespace", "pod", "container"))
        worker = self._known().find(namespace, name)
        if worker is None:
            raise web.HTTPNotFound(text=f'pod "{name}" not found')
        if worker.runner(container) is None:
            raise web.HTTPNotFound(text=f"container {container} not found in pod {name}")
        return worker, container


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _not_started(worker: PodWorker, status: ContainerStatus) -> str:
    waiting = status.state.waiting if status.state else None
    why = f"is waiting to start: {waiting.reason}" if waiting else "has no logs"
    return f'container "{status.name}" in pod "{worker.pod.name}" {why}'
