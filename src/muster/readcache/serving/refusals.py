"""Answers for refused requests, in the media type that the client asked for."""

from __future__ import annotations

from muster.readcache.media import MediaType
from muster.readcache.reads.accept import chosen_media, error_media
from muster.readcache.reads.reads import refused as refused_in
from muster.readcache.reads.statuses import status_json
from muster.readcache.request import Answer, Refusal, Request, Target
from muster.readcache.wire import format_for


def refused(refusal: Refusal, target: Target | None = None, request: Request | None = None) -> Answer:
    """Return the answer for a refusal: in JSON if the request does not read a cached kind."""
    if target is not None and request is not None:
        media = chosen_media(request.header("accept"), target.kind, watch=target.verb == "watch")
        if media is not None:
            preferred = error_media(request.header("accept"), watch=target.verb == "watch")
            return refused_in(refusal, format_for(target.kind, media), preferred)
    headers = () if refusal.retry_after_s is None else (("Retry-After", str(refusal.retry_after_s)),)
    return Answer(refusal.code, MediaType.JSON.value, (status_json(refusal),), headers)
