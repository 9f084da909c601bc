"""Reads a range of one version of an object, and continues where a connection broke."""

from __future__ import annotations

from typing import Any, Iterator

from muster.sdk.data import failures
from muster.sdk.data.attempts import Attempts
from muster.sdk.data.deadline import Deadline
from muster.sdk.data.failures import CHANGED, INTERRUPTED, Failure, failure_of
from muster.sdk.data.messages import READ
from muster.sdk.data.retry import Backoff

PIECE_BYTES = 64 << 20
CHUNK_BYTES = 256 << 10
LARGE_CHUNK_BYTES = 8 << 20
"""For ranges that are kept in memory anyway. Each chunk costs about 0.1 ms of CPU, mostly for the GIL."""
_SMALL_CHUNK_BYTES = 16 << 10
_TIMEOUT_S = 32.0


class Reading:
    """Iterates over the bytes of a range, as chunks.

    Every request names the ETag of the first answer (`If-Match`), and every answer's ETag is compared too, because some
    stores ignore the header. If the store gives no ETags, the size and the time of the last change are compared.
    """

    def __init__(
        self,
        obstore: Any,
        attempts: Attempts,
        key: str,
        path: str,
        start: int,
        length: int | None,
        etag: str,
        deadline: Deadline,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._obstore, self._attempts, self._key, self._path = obstore, attempts, key, path
        self._position = start
        self._end = None if length is None else start + length
        self._etag = etag.strip('"')
        self._version: tuple[object, ...] | None = None
        self._deadline = deadline
        self._backoff = Backoff(deadline)
        self._chunk_bytes = chunk_bytes
        self._piece_end = start

    def __iter__(self) -> Iterator[bytes]:
        while self._end is None or self._position < self._end:
            before, failure = self._position, INTERRUPTED
            chunks = None
            client = self._attempts.client(self._deadline, _TIMEOUT_S)
            try:
                result = self._request(client)
                if self._is_same_version(result.meta):
                    chunks = iter(result.stream(min_chunk_size=self._chunk_bytes))
                else:
                    failure = Failure(CHANGED)
            except Exception as error:
                failure = failure_of(error)
            while chunks is not None:
                chunk = b""
                try:
                    chunk = next(chunks, b"")
                except Exception as error:
                    failure = failure_of(error)
                if not chunk:
                    break
                self._position += len(chunk)
                yield chunk
            if failure.kind == failures.PAST_END and self._version is None:
                return
            if chunks is None or self._position < self._piece_end:
                self._after(failure, self._position - before)

    def _request(self, client: Any) -> Any:
        stop = self._position + PIECE_BYTES
        self._piece_end = stop if self._end is None else min(stop, self._end)
        options: dict[str, Any] = {"range": (self._position, self._piece_end)}
        if self._etag:
            options["if_match"] = f'"{self._etag}"'
        return self._obstore.get(client, self._path, options=options)

    def _is_same_version(self, meta: Any) -> bool:
        """Compare with the version that the caller named, or that the first answer had."""
        etag, size = (meta.get("e_tag") or "").strip('"'), meta["size"]
        version = (etag,) if etag else (size, meta["last_modified"])
        if self._version is None:
            if self._etag and etag and etag != self._etag:
                return False
            self._version, self._etag = version, self._etag or etag
            if self._end is None:
                self._deadline.add_bytes(max(0, size - self._position))
            self._end = size if self._end is None else min(self._end, size)
            self._piece_end = min(self._piece_end, self._end)
            self._attempts.succeeded()
        return version == self._version

    def _after(self, failure: Failure, received: int) -> None:
        """Pause and continue, or raise. Chunks become small if none arrived whole, so that a slow store is read too."""
        if received:
            self._backoff.progressed()
        else:
            self._chunk_bytes = CHUNK_BYTES if self._chunk_bytes > CHUNK_BYTES else _SMALL_CHUNK_BYTES
        self._attempts.failed(self._key, failure, self._backoff, READ)
