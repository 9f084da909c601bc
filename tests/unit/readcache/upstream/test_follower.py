"""A follower against an API server that misbehaves, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator

import pytest

from muster.kube.connection.transport import Answer, NotSent
from muster.kube.errors import ApiError, Gone, Invalid, TooManyRequests
from muster.readcache.hub.store import KindStore
from muster.readcache.upstream.follower import Follower
from muster.readcache.upstream.settings import FollowSettings
from muster.sim.virtual.loop import VirtualLoop
from tests.unit.readcache.upstream.scripted import (
    BREAK,
    CONFIG_MAPS,
    JSON,
    Asked,
    Seen,
    Step,
    Upstream,
    bookmark,
    config_map,
    frame,
    listing,
    objects,
    status,
)

OPEN = 400.0  # longer than the story: the watch stays open and silent
SETTINGS = FollowSettings()


def follow(upstream: Upstream, story: Callable[[Follower, KindStore], Awaitable[None]], seed: int = 1) -> None:
    loop = VirtualLoop.new()

    async def main() -> None:
        store = KindStore(JSON, loop=asyncio.get_running_loop())
        follower = Follower(store, upstream, CONFIG_MAPS, JSON, settings=SETTINGS, rng=random.Random(seed))
        running = asyncio.create_task(follower.run())
        await story(follower, store)
        assert not running.done()

    try:
        loop.run(main())
    finally:
        loop.wind_up()
    assert upstream.open == 0


def newest(version: int) -> Callable[[Asked], Answer]:
    return lambda asked: listing(version)


def scripts(*each: Iterable[Step] | ApiError) -> Callable[[Asked], Iterable[Step] | ApiError]:
    """One script for each watch, in the order in which they are opened. Later ones stay silent."""
    left: Iterator[Iterable[Step] | ApiError] = iter(each)
    return lambda asked: next(left, [OPEN])


def initial(version: int, **names: int) -> list[Step]:
    return [*(frame("ADDED", config_map(name, at)) for name, at in names.items()), bookmark(version, initial_end=True)]


def test_loads_by_one_watch_list_and_follows_in_the_same_stream() -> None:
    upstream = Upstream(
        scripts([*initial(20, a=7, b=9), 1.0, frame("MODIFIED", config_map("a", 21)), bookmark(25), OPEN]), newest(25)
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(10)
        assert objects(store) == {"a": 21, "b": 9}
        assert store.version == 25
        assert store.synced
        assert follower.away_since is None
        assert [(each.watches, each.headers["Accept"]) for each in upstream.asked] == [(True, "application/json")]
        assert "resourceVersion" not in upstream.asked[0].params

    follow(upstream, story)


def test_changes_before_the_end_of_the_initial_events_are_part_of_the_state() -> None:
    early = [
        frame("ADDED", config_map("a", 7)),
        frame("ADDED", config_map("b", 8)),
        frame("MODIFIED", config_map("a", 21)),
        frame("DELETED", config_map("b", 22)),
        frame("ADDED", config_map("c", 23)),
        bookmark(24, initial_end=True),
    ]
    upstream = Upstream(scripts([*early, OPEN]), newest(24))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(1)
        assert objects(store) == {"a": 21, "c": 23}
        assert store.version == 24

    follow(upstream, story)


def test_without_watch_list_the_state_comes_in_pages_of_one_snapshot() -> None:
    pages = {
        "": listing(30, {"a": 1}, token="second"),
        "second": listing(30, {"b": 2}, token="third"),
        "third": listing(30, {"c": 3}),
    }
    upstream = Upstream(
        scripts(Invalid(422, "Invalid", "sendInitialEvents is forbidden"), [frame("ADDED", config_map("d", 31)), OPEN]),
        lambda asked: pages[asked.params.get("continue", "")],
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(5)
        assert objects(store) == {"a": 1, "b": 2, "c": 3, "d": 31}
        assert upstream.asked[-1].params["resourceVersion"] == "30"

    follow(upstream, story)


def test_a_snapshot_that_expires_between_pages_is_replaced_by_one_list_without_pages() -> None:
    def answer(asked: Asked) -> Answer | ApiError:
        if "continue" in asked.params:
            return Gone(410, "Expired", "the continue token is too old")
        return listing(30, {"a": 1}, token="second") if "limit" in asked.params else listing(40, {"b": 2})

    upstream = Upstream(scripts(Invalid(422, "Invalid"), [OPEN]), answer)

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(5)
        assert objects(store) == {"b": 2}
        assert upstream.asked[-1].params["resourceVersion"] == "40"

    follow(upstream, story)


def test_a_watch_that_ends_resumes_from_the_newest_version_without_a_list() -> None:
    upstream = Upstream(
        scripts([*initial(20, a=7), 10.0, bookmark(50), 300.0 / 4], [frame("DELETED", config_map("a", 51)), OPEN]),
        newest(51),
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(100)
        assert objects(store) == {}
        assert len(upstream.loads) == 1
        assert upstream.asked[1].params["resourceVersion"] == "50"
        assert len(upstream.asked) == 2

    follow(upstream, story)


def test_a_watch_that_breaks_resumes_and_then_the_version_is_compared() -> None:
    upstream = Upstream(scripts([*initial(20, a=7), 10.0, BREAK], [bookmark(60), OPEN]), newest(60))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(20)
        assert store.version == 60
        assert len(upstream.loads) == 1
        assert [each.params.get("fieldSelector") for each in upstream.asked] == [
            None,
            None,
            "metadata.name=muster-version-probe",
        ]

    follow(upstream, story)


@pytest.mark.parametrize("over_http", [True, False], ids=["HTTP", "ERROR frame"])
def test_410_leads_to_exactly_one_load_after_a_jittered_pause_and_clients_see_the_differences(over_http: bool) -> None:
    gone = json.dumps({"type": "ERROR", "object": status(410, "Expired")}).encode() + b"\n"
    refused: Iterable[Step] | ApiError = Gone(410, "Expired", "too old resource version") if over_http else [gone]
    upstream = Upstream(
        scripts([*initial(20, a=7, b=8), 10.0], refused, [*initial(90, a=70, c=71), OPEN]),
        newest(90),
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(1)
        seen = Seen(store)
        await asyncio.sleep(30)
        assert objects(store) == {"a": 70, "c": 71}
        assert sorted(seen.events) == [("ADDED", "c", 71), ("DELETED", "b", 90), ("MODIFIED", "a", 70)]
        assert seen.closed == ""
        assert len(upstream.loads) == 2
        assert 0 < upstream.watches[2].at - upstream.watches[1].at < 0.02 + SETTINGS.relist_jitter_s
        assert follower.counters.lists == 2
        assert follower.counters.breaks == {"gone": 1}

    follow(upstream, story)


def test_followers_that_get_410_together_load_at_different_moments() -> None:
    pauses = []
    for seed in range(20):
        upstream = Upstream(scripts([*initial(20, a=7), 10.0], Gone(410, "Expired"), [*initial(90), OPEN]), newest(90))

        async def story(follower: Follower, store: KindStore, upstream: Upstream = upstream) -> None:
            await asyncio.sleep(30)
            pauses.append(upstream.watches[2].at - upstream.watches[1].at)

        follow(upstream, story, seed)
    assert max(pauses) - min(pauses) > SETTINGS.relist_jitter_s / 2


def test_half_an_event_is_a_sign_of_life() -> None:
    half = frame("MODIFIED", config_map("a", 21))[:30]
    upstream = Upstream(scripts([*initial(20, a=7), 10.0, half, OPEN]), newest(20))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(20)
        assert 9 < asyncio.get_running_loop().time() - store.seen_at < 11
        assert store.version == 20

    follow(upstream, story)


def test_a_server_that_expires_every_watch_is_listed_ever_more_slowly() -> None:
    upstream = Upstream(
        lambda asked: initial(20, a=7) if "sendInitialEvents" in asked.params else Gone(410, "Expired"), newest(20)
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(120)
        assert len(upstream.loads) < 60
        assert objects(store) == {"a": 7}

    follow(upstream, story)


GARBAGE = [
    pytest.param(b"<html>gateway</html>\n", id="not JSON"),
    pytest.param(b'{"type":"MODIFIED","object":{"metadata":{"name":"a"}}}\n', id="no version"),
    pytest.param(b'{"type":"RENAMED","object":{"metadata":{"name":"a","resourceVersion":"30"}}}\n', id="unknown type"),
    pytest.param(b'{"type":"ERROR","object":{"code":"none"}}\n', id="ERROR that is not a Status"),
    pytest.param(bookmark(30).replace(b'"30"', b'"thirty"'), id="bookmark without a number"),
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_leads_to_one_load_and_is_counted(garbage: bytes) -> None:
    upstream = Upstream(scripts([*initial(20, a=7), 10.0, garbage, OPEN], [*initial(90, a=70), OPEN]), newest(90))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(1)
        seen = Seen(store)
        await asyncio.sleep(30)
        assert seen.events == [("MODIFIED", "a", 70)]
        assert len(upstream.loads) == 2
        assert follower.counters.breaks == {"garbage": 1}

    follow(upstream, story)


def test_garbage_in_a_list_is_retried_with_backoff_and_never_stored() -> None:
    upstream = Upstream(
        lambda asked: Invalid(422, "Invalid"), lambda asked: Answer(200, b'{"kind":"PodList","items":[{}]}')
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(60)
        assert not store.synced
        assert 10 < follower.counters.breaks["garbage"] < 60

    follow(upstream, story)


def test_an_event_that_cannot_follow_the_store_leads_to_a_load() -> None:
    recreated = config_map("a", 30)
    recreated["metadata"]["uid"] = "another"
    upstream = Upstream(
        scripts([*initial(20, a=7), 10.0, frame("MODIFIED", recreated), OPEN], [*initial(90, b=70), OPEN]), newest(90)
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(30)
        assert objects(store) == {"b": 70}
        assert follower.counters.breaks == {"out of order": 1}

    follow(upstream, story)


def test_a_silent_connection_is_replaced_after_the_stall_deadline() -> None:
    upstream = Upstream(scripts([*initial(20, a=7), OPEN], [bookmark(40), OPEN]), newest(40))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(89)
        assert len(upstream.asked) == 1
        assert asyncio.get_running_loop().time() - store.seen_at > 88
        await asyncio.sleep(3)
        assert store.version == 40
        assert asyncio.get_running_loop().time() - store.seen_at < 3
        assert follower.counters.breaks == {"stall": 1}
        assert len(upstream.loads) == 1

    follow(upstream, story)


def test_429_waits_as_long_as_the_server_asks_and_not_longer_than_the_limit() -> None:
    def refused(seconds: float) -> TooManyRequests:
        return TooManyRequests(429, "TooManyRequests", "", {"retryAfterSeconds": seconds})

    upstream = Upstream(scripts(refused(7), refused(3600), [*initial(20, a=7), OPEN]), newest(20))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(100)
        assert objects(store) == {"a": 7}
        first, second, third = (each.at for each in upstream.asked)
        assert 7 <= second - first < 9
        assert 60 <= third - second < 62

    follow(upstream, story)


def test_while_the_server_is_away_store_and_subscriptions_stay_and_retries_are_spaced() -> None:
    away_s = 600.0
    began: list[float] = []

    def away() -> bool:
        now = asyncio.get_running_loop().time()
        began.append(now)
        return 10 < now - began[0] < away_s

    refused = NotSent(0, "ConnectionRefused", "refused")
    left = scripts([*initial(20, a=7), 20.0, BREAK], [frame("MODIFIED", config_map("a", 25)), OPEN])
    upstream = Upstream(
        lambda asked: refused if away() else left(asked), lambda asked: refused if away() else listing(25)
    )

    async def story(follower: Follower, store: KindStore) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1)
        seen = Seen(store)
        await asyncio.sleep(500)
        assert objects(store) == {"a": 7}
        assert store.synced
        assert loop.time() - store.seen_at > 400
        assert follower.away_since is not None
        assert loop.time() - follower.away_since > 400
        await asyncio.sleep(200)
        assert follower.away_since is None
        assert loop.time() - store.seen_at < 110
        assert seen.events == [("MODIFIED", "a", 25)]
        assert seen.closed == ""
        assert len(upstream.loads) == 1
        pauses = [later.at - each.at for each, later in itertools.pairwise(upstream.asked[5:-2])]
        assert max(pauses) < SETTINGS.backoff_max_s + 0.1
        assert sum(pauses) / len(pauses) > SETTINGS.backoff_max_s / 4
        assert len(set(pauses)) > len(pauses) / 2

    follow(upstream, story)


def test_a_comparison_that_fails_is_made_again_with_the_next_watch() -> None:
    answers = iter([TooManyRequests(429, "TooManyRequests", "")])
    upstream = Upstream(
        scripts([*initial(200, a=170), 5.0, BREAK], [5.0], [OPEN], [*initial(120, a=110), OPEN]),
        lambda asked: next(answers, listing(120)),
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(30)
        assert objects(store) == {"a": 110}
        assert follower.counters.resets == 1

    follow(upstream, story)


def test_versions_that_went_back_reset_the_store_and_end_its_watches() -> None:
    upstream = Upstream(
        scripts([*initial(200, a=170), 5.0, BREAK], [OPEN], [*initial(120, a=110, b=115), OPEN]), newest(120)
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(1)
        seen = Seen(store)
        await asyncio.sleep(30)
        assert objects(store) == {"a": 110, "b": 115}
        assert store.version == 120
        assert seen.closed == "reset"
        assert len(upstream.loads) == 2
        assert follower.counters.resets == 1

    follow(upstream, story)


def test_a_watch_in_the_servers_future_is_found_out_when_it_stalls() -> None:
    upstream = Upstream(scripts([*initial(200, a=170), 5.0], [OPEN], [OPEN], [*initial(120, a=170), OPEN]), newest(120))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(100)
        assert store.version == 120
        assert follower.counters.resets == 1

    follow(upstream, story)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*initial(20, a=7)[:-1], OPEN], id="silence"),
        pytest.param(
            [*initial(20, a=7)[:-1], *(step for at in range(30, 400) for step in (bookmark(at), 1.0))], id="bookmarks"
        ),
        pytest.param(initial(20, a=7)[:-1], id="end of the watch"),
    ],
)
@pytest.mark.parametrize("issue", ["antrea-io/antrea#8123", "rancher/rancher#53664"])
def test_issue_8123_and_53664_an_initial_bookmark_that_never_comes_leads_to_a_list_in_pages(
    events: list[Step], issue: str
) -> None:
    upstream = Upstream(scripts(events, [bookmark(31), OPEN]), lambda asked: listing(30, {"a": 7, "b": 21}))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(SETTINGS.initial_s + 1)
        assert objects(store) == {"a": 7, "b": 21}
        assert store.version == 31
        assert follower.counters.breaks == {"no WatchList": 1}
        assert "resourceVersion" in upstream.asked[-1].params

    follow(upstream, story)


def test_reload_replaces_the_state_once_however_often_it_is_called() -> None:
    upstream = Upstream(scripts([*initial(20, a=7), OPEN], [*initial(20, a=7, b=8), OPEN]), newest(20))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(10)
        for _ in range(3):
            follower.reload("test")
        await asyncio.sleep(10)
        assert objects(store) == {"a": 7, "b": 8}
        assert len(upstream.loads) == 2
        assert follower.counters.breaks == {"test": 1}

    follow(upstream, story)


@pytest.mark.slow
def test_many_readers_that_wait_for_a_restarted_server_cause_one_load() -> None:
    restarted = Gone(410, "Expired", "too old resource version")
    refused = NotSent(0, "ConnectionRefused", "refused")
    upstream = Upstream(
        scripts([*initial(20, a=7), 5.0, BREAK], refused, restarted, [*initial(90, a=80), OPEN]), newest(90)
    )

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(1)
        seen = [Seen(store) for _ in range(300)]
        waits = [asyncio.create_task(store.wait_for(80, 60)) for _ in range(3000)]
        await asyncio.sleep(60)
        assert all(wait.result() for wait in waits)
        assert all(each.events == [("MODIFIED", "a", 80)] for each in seen)
        assert len(upstream.loads) == 2

    follow(upstream, story)


def test_objects_of_one_lease_that_expire_at_one_version_are_all_removed() -> None:
    removed = [frame("DELETED", {"metadata": config_map(name, 30)["metadata"]}) for name in ("a", "b", "c")]
    upstream = Upstream(scripts([*initial(20, a=7, b=8, c=9, d=10), 1.0, b"".join(removed), OPEN]), newest(30))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(30)
        assert objects(store) == {"d": 10}
        assert len(upstream.loads) == 1

    follow(upstream, story)


def test_kine_577_a_bookmark_of_version_0_or_of_the_past_changes_nothing() -> None:
    """k3s-io/kine#577: progress of revision 0 stopped the cache of the API server, and lists stayed stale."""
    late = [bookmark(0), bookmark(15), 1.0, frame("MODIFIED", config_map("a", 21)), bookmark(22)]
    upstream = Upstream(scripts([*initial(20, a=7), 1.0, *late, OPEN]), newest(22))

    async def story(follower: Follower, store: KindStore) -> None:
        await asyncio.sleep(1.5)
        assert store.version == 20
        await asyncio.sleep(10)
        assert (objects(store), store.version, store.resets) == ({"a": 21}, 22, 0)
        assert len(upstream.loads) == 1

    follow(upstream, story)
