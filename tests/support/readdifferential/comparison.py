"""When two answers count as equal.

Compared are status, content type, Retry-After, and every byte of the body but for these rules:
- The resourceVersion of a list, and of the bookmark that ends initial events, may differ: both are "not older than".
- The version in a continue token is that of the list; the key in it must be equal.
- Numbers in the texts of 410 and 504 that name the server's own versions may differ.
- Bookmarks in the middle of a watch may be anywhere, as the API promises no more. Of the empty object in a bookmark
  only the type, the version and the annotation count.
- A server whose log reaches further back may answer where the other has expired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from muster.kube.protobuf import WireError
from muster.readcache.hub.event import ADDED, DELETED
from muster.readcache.reads.continuation import read_token
from muster.readcache.wire.format import BOOKMARK, ERROR, Frame, WireFormat
from tests.support.readdifferential.sides import Asked, Got

_CURRENT = re.compile(rb"(current: )\d+|(too old resource version: \d+ \()\d+")


@dataclass(frozen=True, slots=True)
class Difference:
    """Answers that are not equal."""

    asked: Asked
    what: str
    server: Got
    cache: Got

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.asked.target} {dict(self.asked.headers)}\n"
            f"  API server {self.server.status} {self.server.content_type} {self.server.body[:400]!r}\n"
            f"  cache      {self.cache.status} {self.cache.content_type} {self.cache.body[:400]!r}"
        )


def difference(asked: Asked, server: Got, cache: Got, format_: WireFormat) -> str:
    """Returns what differs, "" for nothing."""
    if server.status == 410 and cache.status == 200:
        return ""  # the cache's log reaches further back
    if server.status != cache.status:
        return f"status {server.status} and {cache.status}"
    if server.content_type != cache.content_type:
        return "content type"
    if server.retry_after != cache.retry_after:
        return f"Retry-After {server.retry_after!r} and {cache.retry_after!r}"
    if server.status != 200:
        return "" if _masked(server.body) == _masked(cache.body) else "text of the error"
    if server.body == cache.body:
        return ""
    if asked.is_watch:
        return _watch_difference(server.body, cache.body, format_)
    try:
        return _list_difference(server.body, cache.body, format_)
    except WireError:
        return "" if server.body == cache.body else "object"


def _list_difference(server: bytes, cache: bytes, format_: WireFormat) -> str:
    theirs, their_items = format_.split_list(server)
    ours, our_items = format_.split_list(cache)
    if their_items != our_items:
        return "items"
    if theirs.remaining != ours.remaining:
        return f"remainingItemCount {theirs.remaining} and {ours.remaining}"
    if bool(theirs.continue_token) != bool(ours.continue_token):
        return "one has a continue token"
    if theirs.continue_token:
        their_place, our_place = read_token(theirs.continue_token), read_token(ours.continue_token)
        if their_place is None or our_place is None:
            return "unreadable continue token"
        if their_place.key != our_place.key or our_place.version != ours.version:
            return "continue token"
    again = b"".join(
        format_.listing(our_items, ours._replace(version=theirs.version, continue_token=theirs.continue_token))
    )
    return "" if again == server else "form of the list"


def _watch_difference(server: bytes, cache: bytes, format_: WireFormat) -> str:
    theirs, ours = split_frames(server, format_), split_frames(cache, format_)
    their_events, our_events = list(map(_shown, theirs)), list(map(_shown, ours))
    their_events = [event for event in their_events if event]
    our_events = [event for event in our_events if event]
    if their_events == our_events:
        return ""
    if any(frame.type == ERROR and b"Expired" in frame.data for _, frame in theirs + ours):
        errors = [[frame for _, frame in side if frame.type == ERROR] for side in (theirs, ours)]
        if not all(errors):
            return ""  # one log reaches further back
    for index, (one, other) in enumerate(zip(their_events, our_events, strict=False)):
        if one != other:
            return f"event {index}: {one[:300]!r} and {other[:300]!r}"
    return f"{len(their_events)} and {len(our_events)} events"


def continue_token(got: Got, format_: WireFormat) -> str:
    """Returns the token for the next page of a list, "" for any other answer."""
    if got.status != 200:
        return ""
    try:
        return format_.split_list(got.body)[0].continue_token
    except WireError:
        return ""


def final_state(body: bytes, format_: WireFormat) -> dict[str, bytes] | str:
    """Returns the objects that a watch leads to by name, or what is wrong with the types of its events."""
    objects: dict[str, bytes] = {}
    for _, frame in split_frames(body, format_):
        if frame.type == BOOKMARK:
            continue
        if frame.type == ERROR:
            return f"error {frame.data!r}"
        head = format_.head(frame.data)
        key = f"{head.namespace}/{head.name}"
        if (frame.type == ADDED) is (key in objects):
            return f"{frame.type} of {key}"
        if frame.type == DELETED:
            del objects[key]
        else:
            objects[key] = frame.data
    return objects


def bookmarks(got: Got, format_: WireFormat) -> list[int]:
    """Returns the versions of a watch's bookmarks besides the one that ends the initial events."""
    frames = (frame for _, frame in split_frames(got.body, format_))
    return [frame.version for frame in frames if frame.type == BOOKMARK and not frame.initial_end]


def split_frames(body: bytes, format_: WireFormat) -> list[tuple[bytes, Frame]]:
    """Returns each frame of a stream, as bytes and decoded."""
    frames = []
    while body:
        if format_.media_type == "application/json":
            size = body.index(b"\n") + 1
        else:
            size = 4 + int.from_bytes(body[:4], "big")
        decoded = format_.decoder().feed(body[:size])
        assert len(decoded) == 1, f"not a frame: {body[:80]!r}"
        frames.append((body[:size], decoded[0]))
        body = body[size:]
    return frames


def _shown(pair: tuple[bytes, Frame]) -> bytes:
    """Returns the bytes that must be equal, b"" for a frame that does not count."""
    raw, frame = pair
    if frame.type == BOOKMARK:
        return b"end of initial events" if frame.initial_end else b""
    return _masked(frame.data) if frame.type == ERROR else raw


def _masked(body: bytes) -> bytes:
    return _CURRENT.sub(rb"\1\2N", body)
