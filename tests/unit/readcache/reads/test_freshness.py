"""What is served when, by freshness: nothing without a version may be stale."""

from __future__ import annotations

import asyncio
import json

import pytest

from muster.readcache.reads.freshness import Limits
from muster.readcache.reads.watches import Watch
from muster.readcache.request import Answer, Forward
from tests.unit.readcache.reads.loaded import Cache, body, names, pod, settled

LIST = "/api/v1/pods"
GET = "/api/v1/namespaces/a/pods/x"


@pytest.mark.parametrize(
    "query", ["", "?limit=1", "?watch=1", "?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"]
)
async def test_without_a_version_and_without_a_proof_of_freshness_there_is_no_answer(query: str) -> None:
    cache = Cache(pod("x", 5))
    cache.source.fresh = False
    answer = await cache.ask(LIST + query)
    assert isinstance(answer, Answer)
    assert answer.status == 503
    assert json.loads(body(answer))["reason"] == "ServiceUnavailable"
    assert ("Retry-After", "1") in answer.headers


@pytest.mark.parametrize(
    "path", [f"{LIST}?resourceVersion=0", f"{LIST}?resourceVersion=10", f"{GET}?resourceVersion=0"]
)
async def test_old_state_has_an_age_and_a_bound(path: str) -> None:
    cache = Cache(pod("x", 5), limits=Limits(max_stale_s=300))
    cache.source.fresh = False
    fresh = await cache.ask(path)
    assert isinstance(fresh, Answer)
    assert (fresh.status, fresh.headers) == (200, ())
    cache.source.age = 12.3
    old = await cache.ask(path)
    assert isinstance(old, Answer)
    assert (old.status, old.headers) == (200, (("Age", "13"),))
    cache.source.age = 300.1
    too_old = await cache.ask(path)
    assert isinstance(too_old, Answer)
    assert too_old.status == 503


async def test_kind_without_a_state_is_not_an_empty_list() -> None:
    cache = Cache(version=0)
    listed = await cache.ask(f"{LIST}?resourceVersion=0")
    assert isinstance(listed, Answer)
    assert listed.status == 429
    assert "storage is (re)initializing" in body(listed).decode()
    watched = await cache.ask(f"{LIST}?watch=1&resourceVersion=0")
    assert isinstance(watched, Answer)
    assert watched.status == 429
    assert isinstance(await cache.ask(f"{GET}?resourceVersion=0"), Forward)


async def test_requests_wait_for_the_first_state() -> None:
    cache = Cache(version=0, limits=Limits(load_wait_s=30))
    waiting = asyncio.create_task(cache.ask(f"{LIST}?resourceVersion=0"))
    await asyncio.sleep(0)
    cache.source.store.replace([pod("x", 5)], 10, 0.0)
    assert names(await waiting) == ["x"]


async def test_version_of_another_kinds_write_is_reached_by_a_proof() -> None:
    cache = Cache(pod("x", 5))
    cache.source.newest = 14
    assert names(await cache.ask(f"{LIST}?resourceVersion=14")) == ["x"]


async def test_proof_by_an_equal_state_is_the_version_of_the_answer() -> None:
    cache = Cache(pod("x", 5), pod("y", 6))
    cache.source.newest, cache.source.proof_by_state = 14, True
    for query in ("", "?resourceVersion=14", "?resourceVersion=12", "?limit=1"):
        listed = json.loads(body(await cache.ask(LIST + query)))
        assert listed["metadata"]["resourceVersion"] == "14"
        assert listed["items"][0]["metadata"]["name"] == "x"
    token = listed["metadata"]["continue"]
    assert isinstance(await cache.ask(f"{LIST}?limit=1&continue={token}"), Forward)
    watch = await cache.ask(f"{LIST}?watch=1&allowWatchBookmarks=true")
    assert isinstance(watch, Watch)
    frames = list(watch.initial())
    watch.start(frames.extend)
    assert b'"resourceVersion":"14","annotations"' in b"".join(frames)
    cache.source.apply("ADDED", pod("z", 12))
    cache.source.apply("DELETED", pod("z", 13))
    cache.source.apply("ADDED", pod("z", 15))
    await settled()
    assert b"".join(frames).count(b'"name":"z"') == 1


async def test_request_waits_for_an_event_that_is_on_its_way() -> None:
    cache = Cache(pod("x", 5), limits=Limits(version_wait_s=30))
    waiting = asyncio.create_task(cache.ask(f"{LIST}?resourceVersion=11"))
    await asyncio.sleep(0)
    cache.source.apply("ADDED", pod("y", 11))
    assert names(await waiting) == ["x", "y"]


async def test_openyurt_2810_state_from_before_a_restart_is_not_served_and_open_watches_get_what_they_missed() -> None:
    """openyurtio/openyurt#2810: old addresses were served after an offline reboot, and watches not corrected."""
    before = Cache(pod("x", 5), limits=Limits(max_stale_s=300))
    watch = await before.ask(f"{LIST}?watch=1&resourceVersion=10")
    assert isinstance(watch, Watch)
    frames: list[bytes] = []
    watch.start(frames.extend)
    before.source.fresh, before.source.age = False, 301.0
    restarted = Cache(version=0)
    restarted.source.fresh = False
    for cache, status in ((before, 503), (restarted, 429)):
        answer = await cache.ask(f"{LIST}?resourceVersion=0")
        assert isinstance(answer, Answer)
        assert answer.status == status
    before.source.store.replace([pod("x", 40), pod("y", 41)], 42, 0.0)
    await settled()
    assert [json.loads(line)["object"]["metadata"]["resourceVersion"] for line in b"".join(frames).splitlines()] == [
        "40",
        "41",
    ]
