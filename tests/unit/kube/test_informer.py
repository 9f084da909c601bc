from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from muster.kube import informer as informers
from muster.kube.client import Client
from muster.kube.health import Progress
from muster.kube.index import Index
from muster.kube.informer import Informer
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.pod import Pod
from muster.kube.watch import WatchDecoder
from tests.support.waiting import TIMEOUT_S, until
from tests.unit.kube.fakeapi import FakeApi, fake_api, identity, status

Change = tuple[str, str, str]


class Heard:
    """The events that the handlers got."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        what = "add" if old is None else "delete" if new is None else "change"
        obj = new or old
        assert obj is not None
        self.changes.append((what, obj.name, obj.data.get("v", "")))

    def take(self) -> list[Change]:
        taken, self.changes = self.changes, []
        return taken


@asynccontextmanager
async def following(client: Client, **options: Any) -> AsyncIterator[tuple[Informer[ConfigMap], Heard]]:
    options = {"rng": random.Random(1), "relist_jitter_s": 0.05, **options}
    informer, heard = Informer(client, ConfigMap, **options), Heard()
    informer.add_handler(heard)
    task = asyncio.create_task(informer.run())
    try:
        yield informer, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def synced(api: FakeApi, informer: Informer[ConfigMap]) -> None:
    """Wait until the first list is in and a watch is open."""
    await informer.wait_synced(TIMEOUT_S)
    await until("a watch", lambda: api.watches)


async def test_a_pause_ends_once_the_api_server_was_heard(
    client: Client, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "_BACKOFF_BASE_S", 1e6)
    monkeypatch.setattr(informers, "_BACKOFF_MAX_S", 1e6)
    api.before.append(lambda _: web.json_response(status(500, "InternalError"), status=500))
    async with following(client) as (informer, _):
        await until("it has failed", lambda: informer.last_error)
        api.before.clear()
        informer.hurry()
        await informer.wait_synced(60)


async def test_list_then_watch(client: Client, api: FakeApi) -> None:
    for number in range(5):
        api.put(f"c{number}", data={"v": "1"})
    async with following(client, page=2) as (informer, heard):
        await synced(api, informer)
        assert sorted(heard.take()) == [("add", f"c{n}", "1") for n in range(5)]
        assert (len(informer.store), informer.resource_version) == (5, "105")
        api.put("c0", data={"v": "2"})
        api.remove("c1")
        api.put("new", data={"v": "1"})
        await until("the new object", lambda: "default/new" in informer.store)
        assert heard.take() == [("change", "c0", "2"), ("delete", "c1", "1"), ("add", "new", "1")]
        lists = [params for verb, _, params, _ in api.requests if "watch" not in params]
        assert [(params.get("limit"), "resourceVersion" in params) for params in lists] == [("2", False)] * 3


async def test_a_watch_that_ends_or_breaks_resumes_where_it_was(client: Client, api: FakeApi) -> None:
    api.put("a")
    async with following(client) as (informer, heard):
        await synced(api, informer)
        heard.take()
        for how in (None, "drop"):
            api.end_watches(how)
            api.put(f"after-{how}")
            await until("a change", lambda: heard.changes)
            assert heard.take() == [("add", f"after-{how}", "")]
        assert (api.count("GET", watch=False), api.count("GET", watch=True)) == (1, 3)


async def test_bookmarks_move_the_place_to_resume_from(client: Client, api: FakeApi) -> None:
    async with following(client) as (informer, heard):
        await synced(api, informer)
        for _ in range(3):
            api.bookmark()
        await until("the bookmarks", lambda: informer.resource_version == str(api.version))
        api.compacted = api.version  # without the bookmarks this would be Gone
        api.end_watches()
        await until("a second watch", lambda: len([p for v, _, p, _ in api.requests if "watch" in p]) == 2)
        assert api.requests[-1][2]["resourceVersion"] == str(api.version)
        assert api.requests[-1][2]["allowWatchBookmarks"] == "true"
        assert (api.count("GET", watch=False), heard.changes) == (1, [])


@pytest.mark.parametrize("where", ["http", "stream"])
async def test_gone_means_a_new_list_and_only_real_differences(client: Client, api: FakeApi, where: str) -> None:
    for name in ("kept", "changed", "removed", "remade"):
        api.put(name, data={"v": "1"})
    async with following(client) as (informer, heard):
        await synced(api, informer)
        heard.take()
        kept = informer.store["default/kept"]
        watches, api.watches = api.watches[:], []  # changes that no event will tell of
        api.put("changed", data={"v": "2"})
        api.remove("removed")
        api.remove("remade")
        api.put("remade", data={"v": "2"})
        api.compact()
        api.watches = watches
        if where == "stream":
            api.end_watches(json.dumps({"type": "ERROR", "object": status(410, "Expired")}).encode() + b"\n")
        else:
            api.end_watches()
        await until("four changes", lambda: len(heard.changes) >= 4)
        assert sorted(heard.take()) == [
            ("add", "remade", "2"),
            ("change", "changed", "2"),
            ("delete", "remade", "1"),
            ("delete", "removed", "1"),
        ]
        assert informer.store["default/kept"] is kept
        assert api.count("GET", watch=False) == 2


async def test_the_cache_is_never_empty_after_upstream_is_lost(client: Client, api: FakeApi) -> None:
    for number in range(6):
        api.put(f"c{number}")
    async with following(client, page=2) as (informer, heard):
        await synced(api, informer)
        heard.take()
        sizes: set[int] = set()
        failing = [True]
        reached = asyncio.Event()

        def outage(request: web.Request) -> web.Response | None:
            sizes.add(len(informer.store))
            if "continue" in request.query and failing[0]:  # the second page of the new list fails
                reached.set()
                return web.json_response(status(500, "InternalError", "etcd is away"), status=500)
            return None

        api.before.append(outage)
        api.compact()
        api.end_watches("drop")
        await asyncio.wait_for(reached.wait(), TIMEOUT_S)
        await until("the failure is reported", lambda: "etcd is away" in str(informer.last_error))
        assert (len(informer.store), heard.changes) == (6, [])
        failing[0] = False
        await until("it is over", lambda: informer.last_error is None)
        assert (sizes, heard.changes) == ({6}, [])


async def test_pages_that_expire_are_followed_by_one_whole_list(client: Client, api: FakeApi) -> None:
    for number in range(5):
        api.put(f"c{number}")

    def expire(request: web.Request) -> None:
        if "continue" in request.query:
            api.pages.clear()

    api.before.append(expire)
    async with following(client, page=2) as (informer, _):
        await synced(api, informer)
        assert len(informer.store) == 5
    limits = [params.get("limit") for _, _, params, _ in api.requests if "watch" not in params]
    assert limits == ["2", "2", None]


async def test_silence_beyond_the_deadline_means_a_new_connection(client: Client, api: FakeApi) -> None:
    api.put("a")
    async with following(client, stall_s=0.1) as (informer, _):
        await synced(api, informer)
        stuck = api.watches[0]
        api.watches.clear()  # the connection stays open and silent
        api.put("b")
        await until("the change behind the stall", lambda: "default/b" in informer.store)
        assert stuck.params["resourceVersion"] == "101"
        assert api.count("GET", watch=False) == 1
        api.watches.append(stuck)


async def test_watch_list_where_the_server_can_and_pages_where_not(client: Client, api: FakeApi) -> None:
    api.put("a")
    async with following(client, watch_list=True) as (informer, heard):
        await synced(api, informer)
        api.put("b")
        await until("two changes", lambda: len(heard.changes) == 2)
        assert (api.count("GET", watch=False), api.requests[0][2]["sendInitialEvents"]) == (0, "true")
    api.watch_list = False
    async with following(client, watch_list=True) as (informer, _):
        await informer.wait_synced(TIMEOUT_S)
        assert (len(informer.store), api.count("GET", watch=False)) == (2, 1)


async def test_events_in_pieces_unknown_types_and_big_chunks(client: Client, api: FakeApi) -> None:
    async with following(client) as (informer, heard):
        await synced(api, informer)
        lines = b'{"type":"SURPRISE","object":{"x":1}}\n\n' + b"".join(
            json.dumps(
                {"type": "ADDED", "object": {"metadata": {"name": f"é{n}", "uid": str(n), "resourceVersion": "300"}}}
            ).encode()
            + b"\n"
            for n in range(50)
        )
        for start in range(0, len(lines), 37):
            api.end_watches(lines[start : start + 37])
        await until("all fifty changes", lambda: len(heard.changes) == 50)
        assert informer.resource_version == "300"


async def test_indexes_and_transform_follow_every_change(client: Client, api: FakeApi) -> None:
    def by_value(obj: ConfigMap) -> list[str]:
        return [obj.data["v"]] if "v" in obj.data else []

    def strip(obj: ConfigMap) -> ConfigMap:
        return msgspec.structs.replace(obj, data={k: v for k, v in obj.data.items() if k != "big"})

    api.put("a", data={"v": "1", "big": "x"})
    async with following(client, indexes={"value": by_value}, transform=strip) as (informer, _heard):
        await synced(api, informer)
        api.put("b", data={"v": "1", "big": "x"})
        await until("the addition", lambda: len(informer.store) == 2)
        assert sorted(informer.by_index("value", "1")) == ["default/a", "default/b"]
        api.put("a", data={"v": "2"})
        api.remove("b")
        await until("the deletion", lambda: len(informer.store) == 1)
        assert {value: list(found) for value, found in informer.indexes["value"].items()} == {"2": ["default/a"]}
        assert informer.by_index("value", "1") == {}
        assert all("big" not in obj.data for obj in informer.store.values())
        informer.add_index("name", lambda obj: [obj.name])
        assert list(informer.by_index("name", "a")) == ["default/a"]
        late = Heard()
        informer.add_handler(late)
        assert late.take() == [("add", "a", "2")]


async def test_stored_objects_may_be_smaller_than_those_of_handlers(client: Client, api: FakeApi) -> None:
    api.put("a", data={"v": "1"})
    async with following(client, stored=identity) as (informer, heard):
        await synced(api, informer)
        api.put("a", data={"v": "2"})
        await until("the change", lambda: len(heard.changes) == 2)
        assert informer.store["default/a"].data == {}
        assert informer.store["default/a"].uid
        # Nothing has changed, and the store still knows that.
        await informer.listed_since(asyncio.get_running_loop().time())
        api.remove("a")
        await until("the deletion", lambda: not informer.store)
        assert heard.take() == [("add", "a", "1"), ("change", "a", "2"), ("delete", "a", "")]


async def test_a_bad_handler_does_not_stop_the_others(client: Client, api: FakeApi, caplog: Any) -> None:
    informer, heard = Informer(client, ConfigMap), Heard()

    def bad(old: ConfigMap | None, new: ConfigMap | None) -> None:
        raise RuntimeError("bad handler")

    informer.add_handler(bad)
    informer.add_handler(heard)
    api.put("a")
    task = asyncio.create_task(informer.run())
    await informer.wait_synced(TIMEOUT_S)
    assert heard.take() == [("add", "a", "")]
    assert "bad handler" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_timed_out_wait_says_why(client: Client, api: FakeApi) -> None:
    api.before.append(lambda _: web.json_response(status(403, "Forbidden", "cannot list configmaps"), status=403))
    async with following(client) as (informer, _):
        await until("it was refused", lambda: informer.last_error)
        with pytest.raises(TimeoutError, match=r"configmaps: no complete list within 0.1 s: cannot list configmaps"):
            await informer.wait_synced(0.1)


async def test_a_new_list_serves_all_who_wait_for_it(client: Client, api: FakeApi) -> None:
    api.put("a")
    async with following(client) as (informer, _):
        await synced(api, informer)
        now = asyncio.get_running_loop().time()
        await asyncio.gather(*(informer.listed_since(now) for _ in range(5)))
        assert api.count("GET", watch=False) == 2
        await informer.listed_since(now)  # that list began later
        assert api.count("GET", watch=False) == 2
        await synced(api, informer)
        api.put("b")
        await until("the change", lambda: "default/b" in informer.store)


async def test_a_new_list_ends_the_pause_after_failures(client: Client, api: FakeApi) -> None:
    """A new leader has just had an answer: it does not wait out what an informer learnt while there was none."""
    api.put("a")
    api.before.append(lambda _: web.json_response(status(403, "Forbidden"), status=403))
    async with following(client, rng=Late()) as (informer, _):
        await until("it fails and pauses", lambda: informer.last_error)
        api.before.clear()
        await informer.listed_since(asyncio.get_running_loop().time())
        assert "default/a" in informer.store


class Late(random.Random):
    """A pause between two bounds lasts hours."""

    def uniform(self, a: float, b: float) -> float:
        return 1e4


async def test_progress_and_metrics(client: Client, api: FakeApi) -> None:
    registry = CollectorRegistry()
    progress = Progress(registry=registry)
    options: dict[str, Any] = {"progress": progress, "metrics": kube_metrics(registry)}
    async with following(client, **options) as (informer, _), following(client, **options) as (other, _):
        await asyncio.gather(synced(api, informer), synced(api, other))
        await until("both watches", lambda: len(api.watches) == 2)
        api.put("a")
        await until("the object", lambda: informer.store)
        assert registry.get_sample_value("muster_progress_age_seconds", {"loop": "informer/configmaps"}) is not None
        labels = {"resource": "configmaps", "type": "ADDED"}
        await until(
            "both informers count it", lambda: registry.get_sample_value("muster_informer_events_total", labels) == 2
        )
        await informer.listed_since(asyncio.get_running_loop().time())
    assert progress.overdue() == {}
    assert informer.store


def test_decoder_refuses_other_values_than_objects() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"metadata\.name"):
        WatchDecoder(ConfigMap).feed(b'{"type":"ADDED","object":{"metadata":{"name":5}}}\n')


def test_a_real_bookmark_of_pods_is_understood() -> None:
    line = (
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12746",'
        b'"creationTimestamp":null},"spec":{"containers":null},"status":{}}}\n'
    )
    (event,) = WatchDecoder(Pod).feed(line)
    assert (event.type, event.resource_version) == ("BOOKMARK", "12746")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.sets(st.sampled_from("xyz")))), max_size=30))
def test_index_always_equals_a_rebuilt_one(changes: list[tuple[str, set[str] | None]]) -> None:
    def values(obj: frozenset[str]) -> frozenset[str]:
        return obj

    index: Index[frozenset[str]] = Index(values)
    objects: dict[str, frozenset[str]] = {}
    for key, new in changes:
        old = objects.pop(key, None)
        fresh = frozenset(new) if new is not None else None
        if fresh is not None:
            objects[key] = fresh
        index.update(key, old, fresh)
        expected: dict[str, dict[str, frozenset[str]]] = {}
        for name, obj in objects.items():
            for value in obj:
                expected.setdefault(value, {})[name] = obj
        assert {value: dict(found) for value, found in index.items()} == expected


Step = tuple[str, str]
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "remove", "end", "drop", "compact", "bookmark", "gone", "pause"]),
        st.sampled_from("abcd"),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(steps, st.integers(0, 2**32), st.booleans())
def test_cache_ends_equal_and_handlers_see_a_consistent_history_after_any_events(
    plan: list[Step], seed: int, watch_list: bool
) -> None:
    async def scenario() -> None:
        async with fake_api() as api, Client(api.config(), metrics=kube_metrics(CollectorRegistry())) as client:
            rng = random.Random(seed)
            reported: dict[str, str] = {}

            lies: list[tuple[object, object]] = []

            def listen(old: ConfigMap | None, new: ConfigMap | None) -> None:
                obj = new or old
                assert obj is not None
                before = old.metadata.resource_version if old is not None else None
                if reported.pop(obj.key, None) != before:
                    lies.append((old, new))
                if new is not None:
                    reported[new.key] = new.metadata.resource_version

            informer = Informer(
                client, ConfigMap, page=2, stall_s=0.3, relist_jitter_s=0.01, watch_list=watch_list, rng=rng
            )
            informer.add_handler(listen)
            task = asyncio.create_task(informer.run())
            for action, name in plan:
                perform(api, action, name)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.choice([0, 0.001, 0.005]))

            def wanted() -> dict[str, str]:
                objects = api.objects.get("configmaps", {})
                return {key: obj["metadata"]["resourceVersion"] for key, obj in objects.items()}

            def held() -> dict[str, str]:
                return {key: obj.metadata.resource_version for key, obj in informer.store.items()}

            await until("the cache equals the server", lambda: informer.has_synced and held() == wanted())
            assert (reported, lies) == (held(), [])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def perform(api: FakeApi, action: str, name: str) -> None:
    if action == "put":
        api.put(name, data={"v": str(api.version)})
    elif action == "remove" and f"default/{name}" in api.objects.get("configmaps", {}):
        api.remove(name)
    elif action == "compact":
        api.compact()
    elif action == "bookmark":
        api.bookmark()
    elif action == "gone":
        api.end_watches(json.dumps({"type": "ERROR", "object": status(410, "Expired")}).encode() + b"\n")
    elif action in ("end", "drop"):
        api.end_watches("drop" if action == "drop" else None)
