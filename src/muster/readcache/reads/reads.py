"""Answers gets, lists and watches from the stores, as the watch cache of kube-apiserver 1.36 does."""

from __future__ import annotations

import random

from muster.readcache.media import MediaType
from muster.readcache.reads import gets, lists, watches
from muster.readcache.reads.accept import chosen_media, error_media
from muster.readcache.reads.bookmarks import BookmarkTimer
from muster.readcache.reads.freshness import Limits
from muster.readcache.reads.sources import Sources
from muster.readcache.reads.statuses import status_json, status_protobuf
from muster.readcache.reads.watches import Watch
from muster.readcache.request import Answer, Forward, Refusal, Request, Target
from muster.readcache.wire.format import WireFormat


class Reads:
    """Answers requests that `parse_target` accepted, for callers that were admitted."""

    def __init__(
        self, sources: Sources, bookmarks: BookmarkTimer, rng: random.Random, limits: Limits | None = None
    ) -> None:
        self._sources = sources
        self._bookmarks = bookmarks
        self._rng = rng
        self._limits = limits or Limits()

    async def answer(self, target: Target, request: Request) -> Answer | Watch | Forward:
        """Answers a request. May wait for a version (3 s), a proof of freshness or the first state of a kind.

        Forward means that the API server must answer: the request is one that only it can judge or serve.
        """
        media = chosen_media(request.header("accept"), target.kind, watch=target.verb == "watch")
        source = self._sources.get(target.kind, media) if media is not None else None
        if source is None:
            return Forward("not cached in this media type, or no longer served")
        try:
            if target.verb == "get":
                return await gets.answer(target, request.query, source, self._limits)
            if target.verb == "list":
                return await lists.answer(target, request.query, source, self._limits)
            return await watches.answer(target, request.query, source, self._limits, self._bookmarks, self._rng)
        except Refusal as refusal:
            return refused(refusal, source.format, error_media(request.header("accept"), watch=target.verb == "watch"))


def refused(refusal: Refusal, format_: WireFormat, media: MediaType | None) -> Answer:
    """Returns the answer for a refusal, in the media type that the client prefers."""
    headers = () if refusal.retry_after_s is None else (("Retry-After", str(refusal.retry_after_s)),)
    if media is MediaType.PROTOBUF:
        return Answer(refusal.code, media.value, (status_protobuf(refusal),), headers)
    return Answer(refusal.code, format_.media_type, (format_.status(status_json(refusal)),), headers)
