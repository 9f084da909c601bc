"""Decides after each failed attempt of a call: raise which error, or pause and repeat."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any, Callable, TypeVar

from muster.sdk.data import failures, messages
from muster.sdk.data.access import Access
from muster.sdk.data.deadline import Deadline
from muster.sdk.data.errors import (
    AlreadyExists,
    Forbidden,
    NotFound,
    ObjectChanged,
    StoreError,
    Unavailable,
    WrongStore,
)
from muster.sdk.data.failures import Failure, failure_of
from muster.sdk.data.obstore_clients import Clients
from muster.sdk.data.retry import Backoff

CREDENTIALS_GRACE_S = 180.0  # the kubelet updates the files of a Secret within about two minutes
FIRST_ANSWER_S = 60.0
"""How long a call repeats failures of a wrong endpoint, if the store never answered."""
NOTICE_AFTER_S = 15.0
NOTICE_EVERY_S = 60.0
_METADATA_ATTEMPTS = 3

T = TypeVar("T")


class Attempts:
    """The retries of all calls of one store."""

    def __init__(self, clients: Clients, url: str, access: Access) -> None:
        self.url = url
        self._clients = clients
        self._words = messages.Messages(url, clients.endpoint, access)
        self._credentials_worked = False
        self._answered = False
        self._lock = threading.Lock()
        self._next_notice = 0.0

    def call(
        self,
        key: str,
        deadline: Deadline,
        action: Callable[[Any], T],
        timeout_s: float,
        operation: str,
        *,
        note: Callable[[Failure], None] | None = None,
        explain: Callable[[Any], object] | None = None,
        retries: int = 0,
    ) -> T:
        """Return what `action` returns for a client, and repeat it after temporary failures until the deadline.

        Args:
            key: the object, for messages.
            deadline: end of all attempts.
            action: sends requests with obstore, and raises its exceptions. A StoreError of its own passes unchanged.
            timeout_s: time for one request.
            operation: what the call does, for messages, such as READ.
            note: called with each failure.
            explain: sends a request whose failure has an error code, if that of `action` has none (HEAD).
            retries: how often obstore repeats a request inside `action`.
        """
        backoff = Backoff(deadline)
        while True:
            client = self.client(deadline, timeout_s, retries)
            try:
                result = action(client)
            except StoreError:
                raise
            except Exception as error:
                failure = failure_of(error)
            else:
                self.succeeded()
                return result
            if explain is not None and not failure.code and failure.status in (400, 401, 403):
                failure = _explained(failure, explain, client)
            if note is not None:
                note(failure)
            self.failed(key, failure, backoff, operation)

    def client(self, deadline: Deadline, timeout_s: float, retries: int = 0) -> Any:
        """A client whose requests end by the deadline."""
        return self._clients.get(min(timeout_s, deadline.remaining_s()), retries)

    def succeeded(self) -> None:
        """Note that the store accepted the credentials."""
        self._credentials_worked = self._answered = True

    def failed(self, key: str, failure: Failure, backoff: Backoff, operation: str) -> None:
        """Raise the error that the failure means, or pause until the next attempt."""
        self._answered = self._answered or failure.is_answer
        if failure.kind in (failures.TEMPORARY, failures.THROTTLED):
            self._temporary(key, failure, backoff)
        elif failure.kind in (failures.FORBIDDEN, failures.BAD_CREDENTIALS):
            self._refused(key, failure, backoff, operation)
        elif failure.kind == failures.NO_CREDENTIALS and backoff.attempts < _METADATA_ATTEMPTS and backoff.pause():
            pass
        else:
            raise self._error(key, failure, operation)

    def _temporary(self, key: str, failure: Failure, backoff: Backoff) -> None:
        """Pause, and tell the user now and then. Give up early if the endpoint is probably wrong."""
        wrong = failure.cause and not self._answered and not self._clients.proxied
        limit_s = FIRST_ANSWER_S if wrong else math.inf
        if backoff.pause(failure.kind == failures.THROTTLED, limit_s - backoff.elapsed_s()):
            self._notice(failure, backoff, limit_s)
            return
        words = self._words.unreachable if wrong else self._words.unavailable
        raise Unavailable(words(key, failure, backoff), self.url, key, attempts=backoff.attempts)

    def _notice(self, failure: Failure, backoff: Backoff, limit_s: float) -> None:
        """Write a line to stderr if this call waits for long, at most one a minute for all calls."""
        now, stalled_s = time.monotonic(), backoff.stalled_s()
        with self._lock:
            if stalled_s < NOTICE_AFTER_S or now < self._next_notice:
                return
            self._next_notice = now + NOTICE_EVERY_S
        remaining_s = min(limit_s - backoff.elapsed_s(), backoff.remaining_s())
        print(f"muster: {self._words.waiting(failure, stalled_s, remaining_s)}", file=sys.stderr, flush=True)

    def _refused(self, key: str, failure: Failure, backoff: Backoff, operation: str) -> None:
        """Repeat with new credentials; if there were good ones before, wait for new ones."""
        changed = self._clients.reload()
        expired = failure.kind == failures.BAD_CREDENTIALS
        may_come = expired and self._credentials_worked and backoff.elapsed_s() < CREDENTIALS_GRACE_S
        if (changed or may_come) and backoff.pause():
            self._notice(failure, backoff, CREDENTIALS_GRACE_S)
            return
        raise self._error(key, failure, operation)

    def _error(self, key: str, failure: Failure, operation: str) -> StoreError:
        message = self._words.of(key, failure, operation, self._clients.expiration)
        if failure.kind in failures.REASONS:
            return WrongStore(message, self.url, key, failures.REASONS[failure.kind])
        return _ERRORS.get(failure.kind, StoreError)(message, self.url, key)


def _explained(failure: Failure, explain: Callable[[Any], object], client: Any) -> Failure:
    try:
        explain(client)
    except Exception as error:
        better = failure_of(error)
        if better.code:
            return better
    return failure


_ERRORS = {
    failures.MISSING: NotFound,
    failures.EXISTS: AlreadyExists,
    failures.CHANGED: ObjectChanged,
    failures.FORBIDDEN: Forbidden,
}
