"""Deadlines and limits of the cache's own requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """Deadlines and limits for one kind.

    Attributes:
        watch_timeout_s: the server ends a watch after this time to twice this time; the follower then resumes it.
        stall_s: the follower reconnects after this time without a byte. kube-apiserver sends a bookmark each minute
            (storage/cacher, defaultBookmarkFrequency), so it must be longer.
        initial_s: limit for the initial events of a WatchList. The follower then lists in pages.
        watch_list_again_s: time without WatchList after a server had none, or did not end it.
        page: objects in a page of a list.
        request_timeout_s: limit for one request that is not a watch.
        relist_jitter_s: longest pause before a new list.
        backoff_base_s: longest pause after the first failure; it doubles with each further failure.
        backoff_max_s: longest pause after many failures.
        retry_after_max_s: longest pause that the server may ask for.
        healthy_s: a watch that lasted so long counts as a success.
    """

    watch_timeout_s: float = 300.0
    stall_s: float = 90.0
    initial_s: float = 60.0
    watch_list_again_s: float = 600.0
    page: int = 500
    request_timeout_s: float = 60.0
    relist_jitter_s: float = 1.0
    backoff_base_s: float = 0.2
    backoff_max_s: float = 5.0
    retry_after_max_s: float = 60.0
    healthy_s: float = 5.0
