from __future__ import annotations

import asyncio

import msgspec
import pytest

from muster.embedded import watching
from muster.embedded.apiserver.request import Response
from muster.embedded.watching import Watcher
from muster.readcache.hub.selection import ALL
from muster.sim.virtual.loop import VirtualLoop
from tests.support.apicore import PODS, Cluster, bind, events, pod


async def test_a_watch_from_zero_begins_with_what_is_there() -> None:
    cluster = Cluster()
    cluster.ok("POST", PODS, pod("a"))
    watch = cluster.watch(f"{PODS}?resourceVersion=0")
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in await events(watch)] == [("ADDED", "a")]


async def test_leaving_a_selection_is_a_delete_with_the_last_state_seen() -> None:
    cluster = Cluster()
    cluster.ok("POST", PODS, pod("a", labels={"app": "x"}))
    watch = cluster.watch(f"{PODS}?labelSelector=app%3Dx")
    changed = cluster.ok(
        "PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "y"}}}, content_type="application/merge-patch+json"
    )
    back = cluster.ok(
        "PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "x"}}}, content_type="application/merge-patch+json"
    )
    _, left, entered = await events(watch)
    assert (left["type"], left["object"]["metadata"]["labels"]["app"]) == ("DELETED", "x")
    assert left["object"]["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    assert (entered["type"], entered["object"]) == ("ADDED", {"kind": "Pod", "apiVersion": "v1", **back})


async def test_a_kubelet_sees_pods_when_they_are_bound_to_it() -> None:
    cluster = Cluster()
    watch = cluster.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
    for name, node in (("a", "n1"), ("b", "n2")):
        cluster.ok("POST", PODS, pod(name))
        bind(cluster, name, node)
    (event,) = await events(watch)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


async def test_watch_list_ends_with_its_bookmark() -> None:
    cluster = Cluster()
    cluster.ok("POST", PODS, pod("a"))
    watch = cluster.watch(f"{PODS}?sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
    added, end = await events(watch)
    assert (added["type"], end["type"]) == ("ADDED", "BOOKMARK")
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert end["object"]["metadata"]["resourceVersion"] == str(cluster.store.version)


async def test_watch_from_an_expired_version_gets_an_error_in_the_stream() -> None:
    cluster = Cluster(log_capacity=2)
    for index in range(8):
        cluster.ok("POST", PODS, pod(f"p{index}"))
    answer = cluster.handle("GET", f"{PODS}?watch=true&resourceVersion=5")
    assert isinstance(answer, Response)
    event = answer.json()
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    code, status = cluster.send("GET", f"{PODS}?resourceVersion=5&resourceVersionMatch=Exact")
    assert (code, status["reason"]) == (410, "Expired")


async def test_pages_come_from_one_snapshot() -> None:
    cluster = Cluster()
    for name in "abcd":
        cluster.ok("POST", PODS, pod(name))
    first = cluster.ok("GET", f"{PODS}?limit=2")
    assert first["metadata"]["remainingItemCount"] == 2
    cluster.ok("DELETE", f"{PODS}/c")
    cluster.ok("POST", PODS, pod("cc"))
    rest = cluster.ok("GET", f"{PODS}?limit=2&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c", "d"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_page_of_a_forgotten_snapshot_is_410() -> None:
    cluster = Cluster(log_capacity=2)
    for index in range(4):
        cluster.ok("POST", PODS, pod(f"p{index}"))
    token = cluster.ok("GET", f"{PODS}?limit=1")["metadata"]["continue"]
    for index in range(8):
        cluster.ok("POST", PODS, pod(f"q{index}"))
    code, status = cluster.send("GET", f"{PODS}?limit=1&continue={token}")
    assert (code, status["reason"]) == (410, "Expired")


async def test_a_slow_watcher_is_dropped_and_the_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PIECES_MAX", 3)
    cluster = Cluster(log_capacity=4)
    hub = cluster.store.define("pods").hub
    slow = Watcher(hub, ALL, cluster.store.version)
    quick = cluster.watch(PODS)
    seen = 0
    for index in range(8):
        cluster.ok("POST", PODS, pod(f"p{index}"))
        seen += len(await events(quick))
    assert slow.closed
    assert len(slow.take()) == 3
    assert hub.slow == 1
    assert seen == 8


async def test_a_watcher_with_a_full_queue_resumes_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PIECES_MAX", 2)
    cluster = Cluster()
    watcher = Watcher(cluster.store.define("pods").hub, ALL, cluster.store.version)
    for index in range(5):
        cluster.ok("POST", PODS, pod(f"p{index}"))
    lines = b"".join([*watcher.take(), *watcher.take()]).splitlines()
    names = [msgspec.json.decode(line)["object"]["metadata"]["name"] for line in lines]
    assert names == ["p0", "p1", "p2", "p3", "p4"]


async def test_a_watch_ends_when_its_time_is_over() -> None:
    cluster = Cluster()
    watch = cluster.watch(f"{PODS}?timeoutSeconds=1")
    async with asyncio.timeout(10):
        assert await watch.batch() is None
    assert len(cluster.store.define("pods").hub) == 0


def test_bookmarks_come_each_minute_and_shortly_before_the_end() -> None:
    loop, at = VirtualLoop.new(), list[tuple[str, float]]()

    async def story() -> None:
        cluster = Cluster()
        for timeout_s in (1, 3, 100):
            began = loop.now
            watch = cluster.watch(f"{PODS}?allowWatchBookmarks=true&timeoutSeconds={timeout_s}")
            while await watch.batch() is not None:
                at.append(("bookmark", loop.now - began))
            at.append(("end", loop.now - began))

    loop.run(story())
    assert at == [("end", 1), ("bookmark", 1), ("end", 3), ("bookmark", 60), ("bookmark", 98), ("end", 100)]


async def test_frames_are_encoded_once_and_shared() -> None:
    cluster = Cluster()
    hub = cluster.store.define("pods").hub
    watchers = [Watcher(hub, ALL, cluster.store.version) for _ in range(3)]
    cluster.ok("POST", PODS, pod("a"))
    frames = [watcher.take()[0] for watcher in watchers]
    assert frames[0] is frames[1] is frames[2]


async def test_a_table_watch_names_its_columns_once() -> None:
    cluster = Cluster()
    watch = cluster.handle("GET", f"{PODS}?watch=true", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert not isinstance(watch, Response)
    cluster.ok("POST", PODS, pod("a"))
    cluster.ok("POST", PODS, pod("b"))
    first, second = await events(watch)  # type: ignore[arg-type]
    assert first["object"]["columnDefinitions"]
    assert not second["object"]["columnDefinitions"]
    assert second["object"]["rows"][0]["cells"][:3] == ["b", "0/1", "Pending"]
