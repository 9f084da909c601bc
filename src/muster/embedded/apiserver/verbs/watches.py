"""An open watch: its events and bookmarks until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.apiserver.verbs.finish import Form
from muster.embedded.objects import Obj, encode
from muster.embedded.store import Store
from muster.embedded.watching import Watcher, frame

BOOKMARK_INTERVAL_S = 60.0
LAST_BOOKMARK_S = 2.0
"""Time from the last bookmark to a watch's timeout, as in kube-apiserver (storage/cacher, nextBookmarkTime)."""


class WatchResponse:
    """An open watch: call `batch` until it returns None."""

    def __init__(
        self,
        watcher: Watcher,
        first: list[bytes],
        store: Store,
        *,
        bookmarks: Bookmarks,
        timeout_s: float,
    ) -> None:
        self.content_type = "application/json;stream=watch"
        self._watcher = watcher
        self._first = first
        self._store = store
        self._bookmarks = bookmarks
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + timeout_s
        self._next_bookmark = self._bookmark_after(self._loop.time())

    async def batch(self) -> bytes | None:
        """Return the next frames as one piece of bytes; None when the watch has ended."""
        if self._first:
            frames, self._first = self._first, []
            return b"".join([*frames, *self._watcher.take()])
        while True:
            frames = self._watcher.take()
            if frames:
                return b"".join(frames)
            now = self._loop.time()
            if self._watcher.closed or now >= self._end:
                self.close()
                return None
            if self._bookmarks.wanted and now >= self._next_bookmark:
                self._next_bookmark = self._bookmark_after(now)
                return self._bookmarks.frame(self._store.version)
            until = min(self._end, self._next_bookmark) if self._bookmarks.wanted else self._end
            try:
                async with asyncio.timeout_at(until):
                    await self._watcher.wait()
            except TimeoutError:
                continue

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (batch := await self.batch()) is not None:
            yield batch

    def _bookmark_after(self, now: float) -> float:
        due = min(now + BOOKMARK_INTERVAL_S, self._end - LAST_BOOKMARK_S)
        return due if due > now else float("inf")

    def close(self) -> None:
        """Close the watch."""
        self._watcher.close()


class Bookmarks:
    """Bookmark events of a kind."""

    def __init__(self, resource: ResourceType, form: Form, wanted: bool) -> None:
        self.wanted = wanted
        self._head: Obj = {"kind": resource.kind, "apiVersion": resource.api_version}
        if form.name.startswith("PartialObjectMetadata"):
            self._head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        self._table = form.name == "Table"

    def frame(self, version: int, *, initial_end: bool = False) -> bytes:
        """Write a bookmark at a version."""
        meta: Obj = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        body: Obj = {**self._head, "metadata": meta}
        if self._table:
            row = {
                "cells": [],
                "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta},
            }
            body = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": str(version)},
                "columnDefinitions": [],
                "rows": [row],
            }
        return frame("BOOKMARK", encode(body))
