"""The long poll of a simulated supervisor: alternates between two connections, as the real `ControllerLink` does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

PROTOCOL = 1
ANSWER_S = 60.0
PAUSE_MAX_S = 15.0


class Link(Protocol):
    """A connection to the controller. It is opened when needed, and reopened after a loss."""

    @property
    def open(self) -> bool:
        """Returns whether there is a connection."""

    async def post(self, path: str, token: str, body: dict[str, Any], timeout_s: float) -> tuple[int, dict[str, Any]]:
        """Send one request; returns status and answer. Raises OSError, EOFError, ValueError or TimeoutError."""

    def cut(self) -> None:
        """Close the connection at once. An open request fails."""

    def reset(self) -> None:
        """Close the connection with a TCP reset, as after the loss of the machine."""


class Poller:
    """Polls for directives until cancelled. A changed report is sent at once on the free connection.

    Args:
        links: the connections.
        token: the pod's token.
        body: called for the supervisor's present report.
        on_directive: called with each answer that may be new.
        rng: source of random numbers for the jitter of pauses.
    """

    def __init__(
        self,
        links: tuple[Link, Link],
        token: str,
        *,
        body: Callable[[], dict[str, Any]],
        on_directive: Callable[[dict[str, Any]], None],
        rng: random.Random,
    ) -> None:
        self._links, self._token, self._body, self._on_directive, self._rng = links, token, body, on_directive, rng
        self._free = deque(links)
        self._wake = asyncio.Event()
        self._going = asyncio.Event()
        self._going.set()
        self._news, self._due, self._newest, self._answered_up_to = True, 0.0, 0, 0
        self._open: set[int] = set()
        self._revision, self._poll_s, self._failures = 0, 20.0, 0
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Poll for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._going.wait()
            wait_s = self._due - loop.time()
            if self._free and (self._news or wait_s <= 0):
                self._newest += 1
                self._open.add(self._newest)
                self._news, self._due = False, loop.time() + self._poll_s
                link = next((each for each in self._free if each.open), self._free[0])
                self._free.remove(link)
                task = asyncio.create_task(self._ask(link, self._newest))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s if self._free else None):
                    await self._wake.wait()

    def send(self) -> None:
        """Wakes the poller to send the new content of `body`."""
        self._news = True
        self._wake.set()

    def freeze(self, frozen: bool) -> None:
        """Pause as after SIGSTOP, with open connections; or continue after a pause."""
        if frozen:
            self._going.clear()
        else:
            self._going.set()

    def close(self, *, reset: bool = False) -> None:
        """Close the connections; with `reset`, as after the loss of the machine."""
        for task in self._asking:
            task.cancel()
        for link in self._links:
            link.reset() if reset else link.cut()

    async def _ask(self, link: Link, request: int) -> None:
        reused = link.open
        try:
            body = self._body() | {"protocol": PROTOCOL, "revision": self._revision}
            status, answer = await link.post("/v1/supervise", self._token, body, self._poll_s + ANSWER_S)
            await self._going.wait()
            self._open.discard(request)
            if status == 200 and isinstance(answer.get("revision"), int):
                self._failures = 0
                self._directed(request, answer)
            else:
                link.cut()
                self._failed(request)
        except (OSError, EOFError, ValueError, KeyError, TimeoutError):
            link.cut()
            if not reused:
                self._failed(request)
            elif request == self._newest:
                self._due = 0.0
        finally:
            self._open.discard(request)
            self._free.append(link)
            self._wake.set()

    def _directed(self, request: int, answer: dict[str, Any]) -> None:
        overtaken = any(other > request for other in self._open)
        if request < self._answered_up_to or (overtaken and answer["revision"] == self._revision):
            return
        self._answered_up_to, self._revision = request, answer["revision"]
        self._poll_s = float(answer.get("pollS", 20))
        if not overtaken:
            self._due = 0.0
        self._on_directive(answer)

    def _failed(self, request: int) -> None:
        if request != self._newest:
            return
        self._failures += 1
        pause_s = min(PAUSE_MAX_S, 0.25 * 2.0 ** min(self._failures, 6)) * self._rng.uniform(0.5, 1.0)
        self._due = asyncio.get_running_loop().time() + pause_s
