from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from muster.kube.configmapsource import ConfigMapSource, config_map_informer, text_of
from muster.kube.errors import BadConfig
from muster.kube.events import EventRecorder
from muster.kube.informers import Informers
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop

MAPS = "/api/v1/namespaces/default/configmaps"


def number(found: ConfigMap | None) -> int:
    text = text_of(found, "number")
    try:
        return int(text or 0)
    except ValueError:
        raise BadConfig(f"{text} is not a number; write one") from None


def config_map(**data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="config", namespace="default"), data=data)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        pytest.param(None, "", id="no ConfigMap"),
        pytest.param(config_map(), "", id="no data"),
        pytest.param(config_map(number="1", other="2"), "1", id="the key among others"),
    ],
)
def test_text_of_a_key(found: ConfigMap | None, text: str) -> None:
    assert text_of(found, "number") == text


def test_text_of_a_missing_key_names_the_keys_there_are() -> None:
    with pytest.raises(BadConfig, match="there is no key number; the data has a, b: rename it"):
        text_of(config_map(b="", a=""), "number")


def test_invalid_text_keeps_the_value_and_gets_one_event_for_each_problem() -> None:
    loop = VirtualLoop.new()
    cluster = VirtualCluster(loop, random.Random(1))

    async def write(method: str, path: str, body: Any = None) -> None:
        cluster.call(method, path, body)
        await asyncio.sleep(5)

    async def patch(**data: str | None) -> None:
        await write("PATCH", f"{MAPS}/config", {"data": data})

    async def story() -> None:
        client, rng = cluster.client("test"), random.Random(2)
        changes = list[tuple[int, str]]()
        events = EventRecorder(client, "muster-test", clock=loop.time, rng=rng)
        source = ConfigMapSource(
            config_map_informer(Informers(client, {}, rng=rng), "default", "config"),
            number,
            -1,
            events=events,
            meanwhile="it stays as it is",
            changed=lambda: changes.append((source.value, source.problem)),
        )
        async with events:
            task = asyncio.create_task(source.informer.run())
            await write("POST", MAPS, {"metadata": {"name": "other"}, "data": {"number": "7"}})
            assert source.value == -1
            source.settle()
            assert source.value == 0
            await write("POST", MAPS, {"metadata": {"name": "config"}, "data": {"number": "3"}})
            source.settle()
            await patch(number="x")
            await patch(more="")
            await patch(number="y", more=None)
            await patch(number="4")
            await write("DELETE", f"{MAPS}/config")
            assert source.found is None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        x, y = ("x is not a number; write one", "y is not a number; write one")
        assert changes == [(3, ""), (3, x), (3, x), (3, y), (4, ""), (0, "")]
        items = cluster.call("GET", "/api/v1/namespaces/default/events")["items"]
        said = sorted((each["reason"], each["message"], each["count"]) for each in items)
        assert said == [("BadConfig", f"it stays as it is: {problem}", 1) for problem in (x, y)]

    try:
        loop.run(story())
    finally:
        loop.wind_up()
