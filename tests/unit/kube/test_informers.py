"""Several controllers of one process follow the same objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.health import Progress
from muster.kube.informers import Form, Informers, SharedInformer
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.core import ConfigMap
from tests.support.waiting import TIMEOUT_S, until
from tests.unit.kube.fakeapi import FakeApi, identity, status
from tests.unit.kube.test_informer import Heard

REDUCED = {ConfigMap: Form(stored=identity)}


@asynccontextmanager
async def following(informers: Informers, since: float = 0.0, **options: Any) -> AsyncIterator[tuple[Any, Heard]]:
    shared, heard = informers.of(ConfigMap, **options), Heard()
    shared.add_handler(heard)
    task = asyncio.create_task(shared.run(since))
    try:
        await shared.wait_synced(TIMEOUT_S)
        yield shared, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def lists(api: FakeApi) -> int:
    return api.count("GET", watch=False)


@pytest.mark.parametrize("forms", [{}, REDUCED], ids=["whole", "reduced"])
async def test_controllers_that_begin_together_share_one_list_and_one_watch(
    client: Client, api: FakeApi, forms: Any
) -> None:
    api.put("a", data={"v": "1"})
    informers = Informers(client, forms)
    parts = [(informers.of(ConfigMap), Heard()) for _ in range(3)]
    for shared, heard in parts:
        shared.add_handler(heard)
    tasks = [asyncio.create_task(shared.run()) for shared, _ in parts]
    for shared, heard in parts:
        await shared.wait_synced(TIMEOUT_S)
        assert heard.take() == [("add", "a", "1")]
    await until("the watch", lambda: api.watches)
    api.put("a", data={"v": "2"})
    await until("all hear of the change", lambda: all(heard.changes for _, heard in parts))
    assert [heard.take() for _, heard in parts] == [[("change", "a", "2")]] * 3
    assert (lists(api), len(api.watches)) == (1, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("forms", "listed"), [({}, 1), (REDUCED, 2)], ids=["whole", "reduced"])
async def test_a_controller_that_begins_later_hears_of_whole_objects_and_others_of_nothing(
    client: Client, api: FakeApi, forms: Any, listed: int
) -> None:
    api.put("a", data={"v": "1"})
    informers = Informers(client, forms)
    async with following(informers) as (_, first):
        assert first.take() == [("add", "a", "1")]
        async with following(informers) as (_, second):
            assert second.take() == [("add", "a", "1")]
            assert (first.take(), lists(api)) == ([], listed)
            await until("the watch", lambda: api.watches)
            api.put("b", data={"v": "2"})
            await until("both hear of it", lambda: first.changes and second.changes)
        second.take()
        api.remove("b")
        await until("the first hears of it", lambda: len(first.changes) == 2)
        assert second.take() == [], "it has left"


async def test_a_new_leader_hears_of_a_list_that_began_in_its_term(client: Client, api: FakeApi) -> None:
    api.put("a")
    informers = Informers(client, {})
    async with following(informers):
        term = asyncio.get_running_loop().time()
        for _ in range(2):  # a second controller of the term needs no further list
            async with following(informers, term):
                assert lists(api) == 2


async def test_the_last_controller_that_leaves_ends_the_watch_and_the_next_one_lists_again(
    client: Client, api: FakeApi
) -> None:
    informers = Informers(client, {})
    for number in (1, 2):
        async with following(informers) as (shared, _):
            await until("the watch", lambda: api.watches)
            assert lists(api) == number
        await until("no watch is left", lambda: not api.watches)
        assert (shared.has_synced, dict(shared.store)) == (False, {})


async def test_other_selections_have_watches_of_their_own_and_keep_whole_objects(client: Client, api: FakeApi) -> None:
    api.put("a", data={"v": "1"})
    informers = Informers(client, REDUCED)
    async with following(informers) as (of_all, _), following(informers, namespace="default") as (of_one, _):
        await until("both watches", lambda: len(api.watches) == 2)
        assert (of_all.get("default/a").data, of_one.get("default/a").data) == ({}, {"v": "1"})


async def test_indexes_of_two_controllers_may_have_one_name(client: Client, api: FakeApi) -> None:
    api.put("a", data={"v": "1"})
    informers = Informers(client, {})
    by_name = following(informers, indexes={"x": lambda obj: [obj.name]})
    by_value = following(informers, indexes={"x": lambda obj: [obj.data["v"]]})
    async with by_name as (first, _), by_value as (other, _):
        assert list(first.by_index("x", "a")) == list(other.by_index("x", "1")) == ["default/a"]
        assert first.by_index("x", "1") == {}
        with pytest.raises(KeyError):
            first.by_index("y", "1")


async def test_a_wait_for_a_list_says_what_stands_in_the_way(
    client: Client, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.before.append(lambda _: web.json_response(status(403, "Forbidden", "cannot list configmaps"), status=403))
    shared: SharedInformer[ConfigMap] = Informers(client, {}).of(ConfigMap)
    task = asyncio.create_task(shared.run())
    await until("it was refused", lambda: "cannot list configmaps" in caplog.text)
    with pytest.raises(TimeoutError, match=r"configmaps: no complete list within 0.1 s: cannot list configmaps"):
        await shared.wait_synced(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_each_watch_has_liveness_of_its_own(client: Client, api: FakeApi) -> None:
    """The end of the watch of all objects does not end the checks of a watch of some."""
    progress = Progress()
    informers = Informers(client, {}, progress=progress)
    async with following(informers, namespace="default"):
        async with following(informers):
            assert progress.ages_s().keys() == {"informer/configmaps", "informer/configmaps/default"}
        assert progress.ages_s().keys() == {"informer/configmaps/default"}


async def test_the_age_of_a_kind_is_shown_until_its_last_watch_ends(
    client: Client, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()  # the process's own may show informers of other tests
    monkeypatch.setattr("muster.kube.informer.kube_metrics", partial(kube_metrics, registry))

    def age_s() -> float | None:
        return registry.get_sample_value("muster_informer_last_progress_seconds", {"resource": "configmaps"})

    informers = Informers(client, {})
    async with following(informers, namespace="default"):
        async with following(informers):
            assert age_s() is not None
        assert age_s() is not None
    assert age_s() is None


def test_the_greatest_age_of_several_watches_counts() -> None:
    registry = CollectorRegistry()
    ages, shown = KubeMetrics(registry).informer_age, "muster_informer_last_progress_seconds"
    sources = [lambda: 3.0, lambda: 40.0]
    for each in sources:
        ages.add("pods", each)
    assert registry.get_sample_value(shown, {"resource": "pods"}) == 40.0
    ages.remove("pods", sources[1])
    assert registry.get_sample_value(shown, {"resource": "pods"}) == 3.0
    ages.remove("pods", sources[0])
    assert registry.get_sample_value(shown, {"resource": "pods"}) is None
