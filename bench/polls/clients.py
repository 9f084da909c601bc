"""The supervisors' side: thousands of simulated ones in a process, each with its two TLS connections."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from muster.sim.longpoll import Link
from muster.sim.poller import Poller

_JOINING = 128


def poll(pipe: Connection, port: int, ca: str, numbers: range) -> None:
    """Poll until the pipe says stop. Reports when the last poller received an attempt, and how often they connected."""
    uvloop.run(_Clients(pipe, port, ca, numbers).run())


class _CountingLink(Link):
    """Counts connections."""

    made = 0

    async def post(self, path: str, token: str, body: dict[str, Any], timeout_s: float) -> tuple[int, dict[str, Any]]:
        if not self.open:
            _CountingLink.made += 1
        return await super().post(path, token, body, timeout_s)


class _Client:
    def __init__(self, everyone: _Clients, number: int, url: str, tls: ssl.SSLContext) -> None:
        self._everyone = everyone
        self._said = {"state": "idle", "attempt": 0, "shellPort": 30000, "address": "10.0.0.1"}
        self._poller = Poller(
            (_CountingLink(url, tls), _CountingLink(url, tls)),
            str(number),
            body=lambda: self._said,
            on_directive=self._directed,
            rng=random.Random(number),
        )
        self.task = asyncio.create_task(self._poller.run())

    def _directed(self, directive: dict[str, Any]) -> None:
        if directive["attempt"] > self._said["attempt"]:
            self._said["attempt"] = directive["attempt"]
            self._poller.send()
            self._everyone.heard(directive["attempt"])

    def close(self) -> None:
        self.task.cancel()
        self._poller.close()


class _Clients:
    def __init__(self, pipe: Connection, port: int, ca: str, numbers: range) -> None:
        self._pipe, self._numbers = pipe, numbers
        self._url, self._tls = f"https://127.0.0.1:{port}", ssl.create_default_context(cadata=ca)
        self._heard: dict[int, int] = {}
        self._joining = asyncio.Semaphore(_JOINING)

    async def run(self) -> None:
        clients = []
        for number in self._numbers:
            await self._joining.acquire()  # nodes do not all boot in the same instant
            clients.append(_Client(self, number, self._url, self._tls))
        while await asyncio.to_thread(self._pipe.recv) is not None:
            self._pipe.send(_CountingLink.made)
        for client in clients:
            client.close()
        await asyncio.sleep(0.1)

    def heard(self, attempt: int) -> None:
        """Counts one more poller that received it; reports the time of the last."""
        if attempt == 1:
            self._joining.release()
        count = self._heard[attempt] = self._heard.get(attempt, 0) + 1
        if count == len(self._numbers):
            self._pipe.send((attempt, time.monotonic()))
