"""WATCH.

Source of the rules: k8s.io/apiserver pkg/endpoints/handlers (get.go, watch.go), pkg/storage/cacher (cacher.go Watch).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from muster.readcache.hub.event import ADDED
from muster.readcache.hub.item import Item
from muster.readcache.hub.log import Expired
from muster.readcache.hub.selection import Selection
from muster.readcache.hub.subscription import Subscription
from muster.readcache.hub.view import WireView
from muster.readcache.reads.bookmarks import BookmarkTimer
from muster.readcache.reads.freshness import Limits, age_headers, at_least, loaded, newest, number_error, parse_version
from muster.readcache.reads.options import check_options, read_options
from muster.readcache.reads.selecting import selection_of
from muster.readcache.reads.sources import Source
from muster.readcache.reads.statuses import expired, status_json, unreadable_version
from muster.readcache.request import Answer, Forward, Refusal, Target

TIMEOUT_MIN_S: Final = 1800
"""kube-apiserver's --min-request-timeout: a watch without timeoutSeconds ends after one to two times this."""

PAGE: Final = 2_000
"""Objects of an initial state that are held at once for a client."""

_PIECE_BYTES: Final = 64 << 10


class Watch:
    """A watch that was accepted and is not yet started.

    The server sends `initial()` first, at the speed of the client, and then calls `start`.

    Args:
        version: events after it are sent. The store's version may be older, if nothing is missing in its state.

    Attributes:
        content_type: for the header.
        headers: further headers.
        deadline_s: the server ends the watch this long after the answer.
    """

    def __init__(
        self,
        source: Source,
        selection: Selection,
        version: int,
        deadline_s: float,
        *,
        send_state: bool = False,
        initial_end: bool = False,
        bookmarks: BookmarkTimer | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.content_type = source.format.watch_media_type
        self.headers = headers
        self.deadline_s = deadline_s
        self._ends_at = asyncio.get_running_loop().time() + deadline_s
        self._source = source
        self._selection = selection
        self._version = version
        self._state = source.store.version
        self._send_state = send_state
        self._after = ""
        self._initial_end = initial_end
        self._bookmarks = bookmarks

    def initial(self) -> Iterator[bytes]:
        """Yields the state as ADDED frames, and the bookmark that ends it if the client asked for one.

        Only a page of the state is held at a time: the rest is read from the log when the client has read that much. If
        the log no longer has it, the state breaks off, and `start` raises Expired.
        """
        more = self._send_state
        while more:
            try:
                page, more = self._next_page()
            except Expired:
                return
            yield from _joined(self._frames(page, last=not more))

    def _frames(self, page: list[Item], *, last: bool) -> Iterator[bytes]:
        """Yields the frames of a page. Each is a copy of an object, so they are written one after the other."""
        format_ = self._source.format
        for item in page:
            yield format_.frame(ADDED, item.data)
        if last and self._initial_end:
            yield format_.bookmark(self._version, initial_end=True)

    def _next_page(self) -> tuple[list[Item], bool]:
        found = self._source.store.select(self._selection, after=self._after, at=self._state)
        page = list(itertools.islice(found, PAGE))
        if page:
            self._after = page[-1].key
        return page, len(page) == PAGE

    def start(
        self, on_frames: Callable[[list[bytes]], None], on_closed: Callable[[str], None] | None = None
    ) -> Subscription:
        """Passes on all events after the initial state. Neither function is called before this method returns.

        Raises:
            Expired: the client took so long to read the initial state that later events were dropped. The server ends
                the stream; the client watches again.
        """
        source = self._source
        subscription = source.store.subscribe(
            self._selection, self._version, WireView(source.format), on_frames, on_closed
        )
        if self._bookmarks is not None:
            self._bookmarks.add(subscription, source.format, self._version, self._ends_at)
        return subscription


async def answer(
    target: Target,
    query: Mapping[str, str],
    source: Source,
    limits: Limits,
    bookmarks: BookmarkTimer,
    rng: random.Random,
) -> Answer | Watch | Forward:
    """Answers a watch. Raises Refusal."""
    options = read_options(query)
    if options is None or options.timeout_s < 0:
        return Forward("parameter")
    selection = selection_of(target.kind, target.namespace, options.labels, options.fields)
    if selection is None:
        return Forward("selector")
    check_options(options)
    version = parse_version(options.version)
    if version is None:
        raise unreadable_version(number_error(options.version))
    await loaded(source, limits)
    headers = () if not options.version else age_headers(source, limits)
    initial = options.initial_events
    if initial is None:
        initial = version == 0  # written as "00"
    store = source.store
    proven = 0 if options.version else await newest(source, limits)
    try:
        if initial:
            version = max(proven, await at_least(source, version, limits))
        elif version == 0:
            version = max(proven, store.version)
        else:
            store.hub.log.check(version)
    except Expired as error:
        return _failed(source, expired(f"too old resource version: {error.version} ({error.oldest})"))
    except Refusal as refusal:
        return _failed(source, refusal)
    return Watch(
        source,
        selection,
        version,
        options.timeout_s or TIMEOUT_MIN_S * (1 + rng.random()),
        send_state=initial,
        initial_end=bool(options.initial_events) and options.bookmarks,
        bookmarks=bookmarks if options.bookmarks else None,
        headers=headers,
    )


def _failed(source: Source, refusal: Refusal) -> Answer:
    """Once the version was read, kube-apiserver reports errors in the stream."""
    frame = source.format.error_frame(status_json(refusal))
    return Answer(200, source.format.watch_media_type, (frame,))


def _joined(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yields frames in pieces of some size."""
    size, piece = 0, []
    for frame in frames:
        piece.append(frame)
        size += len(frame)
        if size >= _PIECE_BYTES:
            yield b"".join(piece)
            size, piece = 0, []
    if piece:
        yield b"".join(piece)
