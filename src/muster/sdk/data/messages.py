"""Messages of errors: what happened, why, and what to change. They never hold a credential."""

from __future__ import annotations

import time

from muster.sdk.data import failures
from muster.sdk.data.access import Access
from muster.sdk.data.failures import Failure
from muster.sdk.data.retry import Backoff

READ = "read this object"
LIST = "list objects"
WRITE = "write this object"
DELETE = "delete this object"


class Messages:
    """Writes the messages for one store.

    Args:
        url: of the store.
        endpoint: of the service; "" for the cloud's own.
        access: the settings that a message may ask to change.
    """

    def __init__(self, url: str, endpoint: str, access: Access) -> None:
        self._url, self._endpoint, self._access = url, endpoint, access

    def unavailable(self, key: str, failure: Failure, backoff: Backoff) -> str:
        """No success before the deadline."""
        where = self._endpoint or "the endpoint"
        return (
            f"{self._name(key)}: no success within {backoff.elapsed_s():.0f} s and {backoff.attempts} attempts "
            f"(last: {failure}). Check that {where} is right and can be reached, then try again"
        )

    def unreachable(self, key: str, failure: Failure, backoff: Backoff) -> str:
        """The store never answered, and the failure is one of a wrong endpoint."""
        return (
            f"{self._name(key)}: no connection to {self._where} within {backoff.elapsed_s():.0f} s and "
            f"{backoff.attempts} attempts ({failure}), and never an answer from it. {_CHECK[failure.cause]}"
        )

    def waiting(self, failure: Failure, stalled_s: float, remaining_s: float) -> str:
        """A call still has no success."""
        what = "connection to" if failure.connection == "Connect" else "success at"
        until = time.strftime("%H:%M:%S", time.gmtime(time.time() + remaining_s))
        return (
            f"{self._url}: still no {what} {self._where} after {stalled_s:.0f} s ({failure}); trying until {until} UTC"
        )

    @property
    def _where(self) -> str:
        return self._endpoint or "the cloud's own endpoint"

    def of(self, key: str, failure: Failure, operation: str, expiration: str = "") -> str:
        """Any other failure of an operation, such as READ."""
        what = _WHAT.get(failure.kind, "the store refused the request ({failure})")
        text = what.format(
            failure=failure,
            operation=operation,
            endpoint=self._where,
            region=self._access.region or "the default region",
            source=self._access.source or "the environment or workload identity",
            expiration=f" They were to expire at {expiration}." if expiration else "",
        )
        return f"{self._name(key)}: {text}"

    def _name(self, key: str) -> str:
        return f"{self._url}/{key}" if key else self._url


_CHECK = {
    failures.REFUSED: "Check the endpoint's host and port, and that the store runs",
    failures.NAME: "Check the endpoint's host name",
    failures.TLS: "Check whether the endpoint must begin with http://, or its certificate must be renewed",
}
_WHAT = {
    failures.MISSING: "the object does not exist",
    failures.EXISTS: "the object exists already, and the write was create-only",
    failures.CHANGED: "the object is not the one that was read before: its ETag differs. Read it again from the start",
    failures.FORBIDDEN: ("access is denied ({failure}). Permit the credentials of {source} to {operation}"),
    failures.BAD_CREDENTIALS: (
        "the store does not accept the credentials of {source} ({failure}).{expiration} Renew the Secret, or correct it"
    ),
    failures.NO_CREDENTIALS: (
        "there are no credentials: neither in the environment nor from the instance's metadata service. Name a Secret, "
        "or set up workload identity"
    ),
    failures.WRONG_BUCKET: "the bucket does not exist at {endpoint} ({failure}). Check the URL and the endpoint",
    failures.WRONG_REGION: "the bucket is not in {region} ({failure}). Set the bucket's own region",
    failures.CLOCK: (
        "this machine's clock differs from the store's ({failure}). Correct the clock, for example with chrony or NTP"
    ),
    failures.NO_RANGES: "the store or a proxy before it ignores ranges. Use an endpoint that answers range requests",
    failures.BAD_KEY: "the store has a key that cannot be used, such as one with '//' or '..'. Rename that object",
}
