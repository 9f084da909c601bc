"""The HTTPS server of the API core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from muster.embedded.apiserver.access.auth import Authenticator
from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.metrics import Metrics
from muster.embedded.apiserver.proxy import KubeletProxy
from muster.embedded.apiserver.request import ProxyResponse, Request, Response, json_response
from muster.embedded.apiserver.request_log import Recorder
from muster.embedded.apiserver.status import StatusError, internal, unauthorized
from muster.embedded.apiserver.verbs.watches import WatchResponse

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 3 << 20
WRITE_TIMEOUT_S = 60.0
OPEN_PATHS = ("/healthz", "/readyz", "/livez", "/version")


class Server:
    """Serves one core on a TLS socket."""

    def __init__(
        self,
        core: ApiCore,
        authenticator: Authenticator,
        proxy: KubeletProxy,
        recorder: Recorder | None = None,
    ) -> None:
        self.core = core
        self.metrics = Metrics(core)
        self.controllers_progress: Callable[[], float] | None = None
        self._authenticator = authenticator
        self._proxy = proxy
        self._recorder = recorder
        self._runner: web.ServerRunner | None = None

    async def start(self, address: str, port: int, certificate: Path, key: Path) -> int:
        """Listen; return the port.

        Raises:
            OSError: the port is in use.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = web.Server(self._handle, access_log=None)
        self._runner = web.ServerRunner(server, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=context, backlog=1024, shutdown_timeout=1.0)
        await site.start()
        bound: int = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return bound

    async def stop(self) -> None:
        """End all watches and close."""
        for table in self.core.store.tables.values():
            table.hub.close_all()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, incoming: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in incoming.headers.items()}
        path = incoming.rel_url.raw_path  # not unescaped: a name may contain an escaped slash
        request = Request(incoming.method, path, _query(incoming), headers, raw_query=incoming.rel_url.raw_query_string)
        watch = request.query.get("watch") in ("1", "true")
        done = self.metrics.started(request, watch=watch)
        code = 500
        try:
            response = await self._answer(incoming, request)
            code = response.status
            return response
        except StatusError as error:
            code = error.code
            return _whole(json_response(error.code, error.status()))
        except (ConnectionResetError, asyncio.CancelledError):
            code = 499
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, path)
            failed = internal(f"{type(error).__name__}; the log of the API server says more")
            return _whole(json_response(failed.code, failed.status()))
        finally:
            done(code)
            if self._recorder is not None:
                self._recorder.record(request, incoming.path_qs, code)

    async def _answer(self, incoming: web.BaseRequest, request: Request) -> web.StreamResponse:
        user = self._authenticator.user(request.headers)
        if user is None:
            if not request.path.startswith(OPEN_PATHS):
                raise unauthorized()
        else:
            request.user = user
        if request.path == "/metrics":
            progress = self.controllers_progress() if self.controllers_progress is not None else None
            return web.Response(body=self.metrics.text(progress), content_type="text/plain")
        if incoming.can_read_body:
            request.body = await _read_body(incoming)
        answer = self.core.handle(request)
        if isinstance(answer, Response):
            return _whole(answer)
        if isinstance(answer, ProxyResponse):
            return await self._proxy.forward(incoming, answer)
        return await self._stream(incoming, answer)

    async def _stream(self, incoming: web.BaseRequest, watch: WatchResponse) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        try:
            await response.prepare(incoming)
            while (batch := await watch.batch()) is not None:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await response.write(batch)
            with contextlib.suppress(ConnectionResetError):
                await response.write_eof()
        except (TimeoutError, ConnectionResetError):
            if incoming.transport is not None:
                incoming.transport.abort()
        finally:
            watch.close()
        return response


def _query(incoming: web.BaseRequest) -> dict[str, str]:
    return dict(incoming.rel_url.query)


async def _read_body(incoming: web.BaseRequest) -> bytes:
    chunks, size = [], 0
    async for chunk in incoming.content.iter_any():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY_BYTES}")
        chunks.append(chunk)
    return b"".join(chunks)


def _whole(answer: Response) -> web.Response:
    response = web.Response(status=answer.code, body=answer.body, headers=answer.headers)
    response.headers["Content-Type"] = answer.content_type
    response.headers["Cache-Control"] = "no-cache, private"
    for warning in answer.warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        response.headers.add("Warning", f'299 - "{text}"')
    return response
