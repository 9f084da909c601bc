"""Forwards requests for logs, exec and attach to the kubelet of the pod's node."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import aiohttp
from aiohttp import web

from muster.embedded.apiserver.request import ProxyResponse, json_response
from muster.embedded.apiserver.status import StatusError

CONNECT_TIMEOUT_S = 10.0
HEARTBEAT_S = 30.0
SUBPROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


class KubeletProxy:
    """Forwards requests to kubelets, with the token that they share with this server."""

    def __init__(self, token: str, context: ssl.SSLContext) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    async def forward(self, incoming: web.BaseRequest, target: ProxyResponse) -> web.StreamResponse:
        """Pass a request on and stream the answer back.

        Raises:
            StatusError: 400 for an exec without a websocket, 502 if the kubelet cannot be reached.
        """
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        url = f"https://{target.address}:{target.port}{target.path}"
        if target.query:
            url += "?" + target.query
        try:
            if target.upgrade:
                return await self._websocket(self._session, incoming, url)
            return await self._stream(self._session, incoming, url)
        except aiohttp.ClientConnectorError as error:
            raise StatusError(500, "InternalError", f"error dialing kubelet: {error}") from None
        except aiohttp.WSServerHandshakeError as error:  # such as an exec into a container that has ended
            raise _refusal(error.status, f"the kubelet refused: {error.message}") from None

    async def _stream(self, session: aiohttp.ClientSession, incoming: web.BaseRequest, url: str) -> web.StreamResponse:
        async with session.get(url, headers=self._headers, ssl=self._context) as upstream:
            if upstream.status != 200:
                text = (await upstream.text()).strip()
                answer = json_response(upstream.status, _refusal(upstream.status, text).status())
                return web.Response(status=answer.code, body=answer.body, content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            response.enable_chunked_encoding()
            await response.prepare(incoming)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def _websocket(
        self, session: aiohttp.ClientSession, incoming: web.BaseRequest, url: str
    ) -> web.StreamResponse:
        if incoming.headers.get("Upgrade", "").lower() != "websocket":
            raise StatusError(
                400, "BadRequest", "only websockets are supported here, not SPDY: use kubectl 1.31 or newer"
            )
        offered = [part.strip() for part in incoming.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        wanted = [name for name in offered if name in SUBPROTOCOLS]
        async with session.ws_connect(
            url, headers=self._headers, ssl=self._context, protocols=wanted, heartbeat=HEARTBEAT_S, max_msg_size=0
        ) as upstream:
            response = web.WebSocketResponse(
                protocols=[upstream.protocol] if upstream.protocol else (), heartbeat=HEARTBEAT_S, max_msg_size=0
            )
            await response.prepare(incoming)
            pumps = [asyncio.create_task(_pump(response, upstream)), asyncio.create_task(_pump(upstream, response))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                    with contextlib.suppress(asyncio.CancelledError, ConnectionResetError):
                        await pump
                await upstream.close()
                await response.close()
            return response


def _refusal(code: int, text: str) -> StatusError:
    """Returns the client's error for a request that the kubelet refused with this code and text."""
    return StatusError(code, {400: "BadRequest", 404: "NotFound", 401: "Unauthorized"}.get(code, "InternalError"), text)


Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _pump(source: Socket, sink: Socket) -> None:
    async for message in source:
        if message.type == aiohttp.WSMsgType.BINARY:
            await sink.send_bytes(message.data)
        elif message.type == aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
