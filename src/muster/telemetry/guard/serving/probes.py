"""Sends probes to Prometheus: small requests whose answers give prices."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.pricing.pricer import ProbeFailed
from muster.telemetry.guard.serving.client import Client
from muster.telemetry.guard.serving.destination import Destination
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.presence import Presence

_CONNECTIONS: Final = 16
_STATUS: Final = "/api/v1/status/"
_WORKLESS: Final = "/api/v1/status/buildinfo"
"""A page that needs no work, so a server that does not answer it in time is not only busy."""
_WORKLESS_S: Final = 2.0
_WORKLESS_BYTES: Final = 64 << 10
_CALLERS_MAX: Final = 10_000


class ProbeClient:
    """Sends probes, on connections of their own, so that they do not wait for dear queries.

    A probe has the headers of the caller for whom it is sent: its tenant, and its credentials where they are passed
    on. Callers with equal headers have one key, under which prices are kept.

    Args:
        destination: where Prometheus answers.
        connect_s: for a connection.
    """

    def __init__(self, destination: Destination, connect_s: float) -> None:
        self._destination = destination
        self._client = destination.client(_CONNECTIONS, connect_s)
        self._looks = destination.client(1, connect_s)  # a look must not wait for slow probes
        self._looking: asyncio.Future[bool] | None = None
        self._silent = False
        self._headers: OrderedDict[str, tuple[tuple[str, str], ...]] = OrderedDict()

    async def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._looks.close()

    @property
    def presence(self) -> Presence:
        """Whether Prometheus can be reached."""
        return self._destination.presence

    def key(self, caller: Caller) -> str:
        """Return the key of a caller's headers, for `get`. It shows no secret."""
        key = caller.credentials_key.hex()
        self._headers[key] = caller.headers
        self._headers.move_to_end(key)
        if len(self._headers) > _CALLERS_MAX:
            self._headers.popitem(last=False)
        return key

    async def get(
        self, path: str, parameters: Sequence[tuple[str, str]], tenant: str, timeout_s: float, max_bytes: int
    ) -> bytes:
        """Send a probe and return the body of its answer. `tenant` is a key of `key`.

        Raises:
            ProbeFailed: Prometheus gave no answer with status 200 of at most `max_bytes` bytes within `timeout_s`.
        """
        if self._silent and not await self._look(tenant):
            raise ProbeFailed("Prometheus does not answer")
        try:
            return await self._get(self._client, path, parameters, tenant, timeout_s, max_bytes)
        except TimeoutError:
            await self._look(tenant)
            raise ProbeFailed(f"Prometheus did not answer {path} within {timeout_s:g} s") from None
        except Failure as failure:
            self._destination.failed(failure)
            raise ProbeFailed(f"{path}: {failure.message}") from failure

    async def _look(self, tenant: str) -> bool:
        """Return whether Prometheus answers at all: it can accept connections and then hang. One look serves all."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look_once(tenant))
            self._looking.add_done_callback(lambda _: setattr(self, "_looking", None))
        self._silent = not await asyncio.shield(self._looking)
        return not self._silent

    async def _look_once(self, tenant: str) -> bool:
        try:
            await self._get(self._looks, _WORKLESS, (), tenant, _WORKLESS_S, _WORKLESS_BYTES)
        except TimeoutError:
            self.presence.lost(f"it did not answer {_WORKLESS} within {_WORKLESS_S:g} s")
            return False
        except Failure as failure:
            self._destination.failed(failure)
        except ProbeFailed:
            pass  # it answered
        return True

    async def _get(
        self,
        client: Client,
        path: str,
        parameters: Sequence[tuple[str, str]],
        tenant: str,
        timeout_s: float,
        max_bytes: int,
    ) -> bytes:
        headers = {**self._destination.headers(), **dict(self._headers.get(tenant, ()))}
        target = self._destination.target(path, parameters)
        async with asyncio.timeout(timeout_s):
            answer = await client.send("GET", target, headers, b"")
            self.presence.answered(answer.status, about_itself=path.startswith(_STATUS))
            with closing(answer):
                if answer.status != 200:
                    raise ProbeFailed(f"Prometheus answered {path} with {answer.status}")
                found = bytearray()
                while chunk := await answer.read(timeout_s):
                    found += chunk
                    if len(found) > max_bytes:
                        raise ProbeFailed(f"the answer to {path} has more than {max_bytes} bytes")
                return bytes(found)
