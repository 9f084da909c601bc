"""The long poll to the controller; its format is in docs/dev/ARCHITECTURE.md, section Supervisor protocol."""

from __future__ import annotations

import http.client
import random
import threading
import time
from typing import Any, Callable

from ..basics import log
from ..settings import Settings
from .lane import Lane, Refused, Sessions

PROTOCOL = 1
LANES = 2
PAUSE_MAX_S = 15.0


class ControllerLink:
    """The long poll, alternating between two connections: a new state is sent at once on the free one.

    At the controller, a newer request ends the wait of the older one. So one request is always open, and without faults
    no connection is closed. An answer counts until a newer request is answered. A new connection may reach a replica
    that does not lead, while the leader answers the older request with a new directive.

    `on_directive` receives the directives. `about` returns fields of each request besides the report. The link retries
    for ever, because ranks also run without the controller.
    """

    def __init__(
        self,
        settings: Settings,
        on_directive: Callable[[dict[str, Any]], None],
        about: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._settings, self._on_directive, self._about = settings, on_directive, about
        self._sessions = Sessions()
        self._turn = threading.Condition()
        self._body: dict[str, Any] = {}
        self._said, self._sent = 0, 0  # number of the newest body, and of the last one that was sent
        self._due = 0.0  # when to poll again even without a new body
        self._newest = 0  # number of the last request
        self._open: set[int] = set()  # requests without an answer
        self._answered_up_to = 0  # the newest request that a directive answered
        self._lanes = [Lane(settings, self._sessions) for _ in range(LANES)]
        self._idle_since = dict.fromkeys(range(LANES), 0.0)  # lanes that wait for their turn
        self._shut: set[int] = set()  # lanes whose connection must not be used again
        self._revision, self._poll_s = 0, 20.0
        self._failures, self._complained_at = 0, float("-inf")
        self._answered = False

    @property
    def in_contact(self) -> bool:
        """Returns whether the last request was answered with a directive."""
        return self._answered and self._failures == 0

    def start(self) -> None:
        """Poll for ever in separate threads."""
        for number in range(LANES):
            threading.Thread(target=self._poll, args=(number,), name=f"controller-link-{number}", daemon=True).start()

    def report(self, body: dict[str, Any]) -> None:
        """Replace the report and send it at once."""
        with self._turn:
            self._body = body
            self._said += 1
            self._turn.notify_all()

    def _poll(self, number: int) -> None:
        lane = self._lanes[number]
        while True:
            request, body, within_s = self._next(number)
            reused = lane.open
            try:
                answer = lane.ask(body, within_s)
            except Refused as error:
                with self._turn:
                    self._open.discard(request)
                    if reused:  # it led before: the other connections may reach the same replica
                        self._shut.update(range(LANES))
                        self._shut.discard(number)
                    self._failed(request, error, error.retry_after_s)
            except (OSError, http.client.HTTPException, ValueError) as error:
                with self._turn:
                    self._open.discard(request)
                    if not reused:
                        self._failed(request, error, None)
                    elif request == self._newest:  # the server closed an idle connection: retry on a new one
                        self._due = time.monotonic()
            else:
                with self._turn:
                    self._open.discard(request)
                    self._directed(request, answer)

    def _next(self, number: int) -> tuple[int, dict[str, Any], float]:
        """Wait until there is a request to send and no other idle lane comes first.

        Lanes with a connection come first, because a new connection may reach a replica that does not lead. Of these,
        the one that has been idle for longest comes first.
        """
        with self._turn:
            self._idle_since[number] = time.monotonic()
            self._turn.notify_all()
            while True:
                wait_s = 0.0 if self._said != self._sent else self._due - time.monotonic()
                first = min(self._idle_since, key=self._turn_of) == number
                if first and wait_s <= 0:
                    break
                self._turn.wait(wait_s if first else None)
            del self._idle_since[number]
            self._newest += 1
            self._open.add(self._newest)
            self._sent, self._due = self._said, time.monotonic() + self._poll_s
            self._turn.notify_all()
            body = dict(self._body, protocol=PROTOCOL, revision=self._revision, **self._about())
            if number in self._shut:
                self._shut.discard(number)
                self._lanes[number].close()
            return self._newest, body, self._poll_s

    def _turn_of(self, number: int) -> tuple[bool, float, int]:
        connected = self._lanes[number].open and number not in self._shut
        return not connected, self._idle_since[number], number

    def _directed(self, request: int, answer: dict[str, Any]) -> None:
        if self._failures:
            log("the controller answers again")
        self._failures, self._complained_at, self._answered = 0, float("-inf"), True
        overtaken = any(other > request for other in self._open)
        if request < self._answered_up_to or (overtaken and answer["revision"] == self._revision):
            return  # nothing new: the controller ends the wait of a request when a newer one arrives
        self._answered_up_to, self._revision = request, answer["revision"]
        poll_s = answer.get("pollS")
        self._poll_s = min(max(float(poll_s), 1.0), 300.0) if isinstance(poll_s, (int, float)) else 20.0
        if not overtaken:
            self._due = time.monotonic()
        self._on_directive(answer)

    def _failed(self, request: int, error: Exception, retry_after_s: float | None) -> None:
        """After a failed connection or a refusal: retry after a pause, or when the report changes."""
        if request != self._newest:
            return
        self._failures += 1
        pause_s = min(PAUSE_MAX_S, 0.25 * 2.0 ** min(self._failures, 6))
        if retry_after_s is not None:
            pause_s = min(max(retry_after_s, 0.2), 30.0)
        if self._failures > 1 and time.monotonic() - self._complained_at > 60:
            self._complained_at = time.monotonic()
            log(f"no directive from the controller ({type(error).__name__}: {error}); ranks go on, trying again")
        self._due = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
