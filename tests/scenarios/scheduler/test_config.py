"""Issue 13.6: the ConfigMap muster-scheduler changes the scheduler while it runs. Bad text changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.api.names import SYSTEM_NAMESPACE
from muster.kube.errors import AlreadyExists, NotFound
from muster.kube.objects.core import ConfigMap, Event
from muster.scheduler.config import CONFIG_KEY, CONFIG_MAP
from muster.scheduler.plan import Settings
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.musterprogram import muster_in
from tests.support.namespaces import make_namespace
from tests.support.waiting import until

RESTARTABLE = {"muster.dev/restartable": "true"}


class Configured:
    """The ConfigMap of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def set(self, text: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "namespace": SYSTEM_NAMESPACE},
            "data": {CONFIG_KEY: text},
        }
        client = self.cluster.client
        try:
            await client.create(body)
        except AlreadyExists:
            await client.patch(ConfigMap, CONFIG_MAP, {"data": body["data"]}, namespace=SYSTEM_NAMESPACE)

    async def remove(self) -> None:
        try:
            await self.cluster.client.delete(ConfigMap, CONFIG_MAP, namespace=SYSTEM_NAMESPACE)
        except NotFound:
            return

    async def warnings(self) -> list[str]:
        events = (await self.cluster.client.list(Event, SYSTEM_NAMESPACE)).items
        return [event.message for event in events if event.reason == "BadConfig"]


@pytest.fixture
async def configured(cluster: Cluster) -> AsyncIterator[Configured]:
    """A cluster with two nodes. One is in use, and a gang needs both."""
    with contextlib.suppress(AlreadyExists):
        await make_namespace(cluster.client, SYSTEM_NAMESPACE)
    config = Configured(cluster)
    await config.remove()
    await cluster.add_nodes(2)
    yield config
    await config.remove()


async def reserve(cluster: Cluster) -> None:
    await cluster.add_gang("runs", 1)
    await cluster.until_bound("runs", 1)
    await cluster.add_gang("head", 2)


async def add_small(cluster: Cluster, name: str) -> None:
    pod = cluster.pod(name, 0, 1)
    pod["metadata"]["annotations"] |= RESTARTABLE
    await cluster.client.create(pod)


async def test_policies_change_without_a_restart_and_bad_text_changes_nothing(configured: Configured) -> None:
    cluster = configured.cluster
    await configured.set("policy: strict")
    controller, _ = cluster.schedule()
    await reserve(cluster)
    await add_small(cluster, "small")
    await until("the small gang waits", lambda: _queued(controller, "small"))
    assert await cluster.bound("small") == {}

    await configured.set("polcy: preemptible")
    await until("the error is reported", lambda: _said(configured, "did you mean policy?"))
    (said,) = {each for each in await configured.warnings() if "polcy" in each}
    assert said == "the settings in force stay: line 1: polcy: unknown field; did you mean policy?"
    assert controller.settings_in_force().policy == "strict"
    assert await cluster.bound("small") == {}

    await configured.set("policy: preemptible\nbackfillMinRunSeconds: 7\n")
    await cluster.until_bound("small", 1, "backfilled once the policy permits it")
    placement = await cluster.placement("small")
    assert placement is not None
    assert placement.spec.backfill is not None
    assert placement.spec.backfill.gang == f"{cluster.namespace}/head"
    assert placement.spec.backfill.min_run_seconds == 7

    await configured.set("policy: strict")
    await until("strict is in force", lambda: _policy(controller, "strict"))
    await add_small(cluster, "late")
    await until("the late gang waits", lambda: _queued(controller, "late"))
    assert len(await cluster.bound("small")) == 1, "a running gang keeps its nodes"

    await configured.remove()
    await until("the defaults are in force", lambda: _policy(controller, "preemptible"))


async def test_a_scheduler_that_starts_with_bad_text_backfills_nothing(configured: Configured) -> None:
    cluster = configured.cluster
    await configured.set("policy: greedy")
    controller, _ = cluster.schedule()
    await reserve(cluster)
    await add_small(cluster, "small")
    await until("the small gang waits", lambda: _queued(controller, "small"))
    assert controller.settings_in_force().policy == "strict"
    assert await cluster.bound("small") == {}


async def test_settings_of_the_program_hold_without_a_config_map(configured: Configured) -> None:
    cluster = configured.cluster
    controller, _ = cluster.schedule(settings=Settings(policy="easy"))
    await reserve(cluster)
    await until("it plans", lambda: _queued(controller, "head"))
    assert controller.settings_in_force().policy == "easy"


async def test_explain_tries_other_settings_and_writes_nothing(configured: Configured, tmp_path: Path) -> None:
    cluster = configured.cluster
    await configured.set("policy: strict")
    controller, _ = cluster.schedule()
    await reserve(cluster)
    await add_small(cluster, "small")
    await until("the small gang waits", lambda: _queued(controller, "small"))

    async def explained(*arguments: str) -> Any:
        flags = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", cluster.namespace)
        with muster_in(tmp_path / "home") as muster:
            return await asyncio.to_thread(muster.run, "explain", *arguments, *flags)

    dry = json.loads((await explained("--policy", "preemptible", "-o", "json")).stdout)["dryRun"]
    assert [each["gang"] for each in dry["starts"]] == [f"{cluster.namespace}/small"]
    assert (dry["rules"]["policy"], dry["clusterRules"]["policy"], dry["clusterStarts"]) == (
        "preemptible",
        "strict",
        [],
    )
    assert dry["onlyHere"] == [f"{cluster.namespace}/small"]

    file = tmp_path / "scheduler.yaml"
    file.write_text("order: fare\n")
    wrong = await explained("--settings", str(file))
    assert wrong.returncode == 2
    assert f"{file}:1:8: order: Invalid enum value 'fare'; did you mean fair?" in " ".join(wrong.stderr.split())
    file.write_text("policy: preemptible\npools: {elsewhere: {policy: easy}}\n")
    said = (await explained("--settings", str(file))).stdout
    assert "with policy preemptible (pool elsewhere: easy), order arrival: 1 gang of" in " ".join(said.split())

    assert await cluster.bound("small") == {}
    assert await cluster.placement("small") is None


async def _said(configured: Configured, words: str) -> bool:
    return any(words in each for each in await configured.warnings())


async def _policy(controller: Any, policy: str) -> bool:
    return bool(controller.settings_in_force().policy == policy)


async def _queued(controller: Any, gang: str) -> bool:
    """Whether the scheduler has planned with the gang in its queue."""
    reasons = controller.state.gangs.values()
    return any(each.name == gang and each.queued_as is not None for each in reasons)
