"""`muster nodes` says why a node is not tested: refused by the API server, or without room for the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from muster.cli.main import run
from muster.fleet.preflight.testpod import PRIORITY_CLASS
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.scheduling import PriorityClass
from tests.scenarios.preflight.conftest import CONFIG_KEY, CONFIG_MAP, TEXT, Trusting, priority_class
from tests.support.apiserver import ApiServer
from tests.support.waiting import until


class Asked:
    """What the command line says of nodes."""

    def __init__(self, trusting: Trusting, server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._options = ["--kubeconfig", str(server.kubeconfig), "--system-namespace", trusting.namespace]
        self._capsys = capsys

    async def data(self, *words: str) -> Any:
        self._capsys.readouterr()
        assert await asyncio.to_thread(run, [*words, "-o", "json", *self._options]) == 0
        return json.loads(self._capsys.readouterr().out)

    async def until_said(self, name: str, *words: str) -> None:
        """Wait until both commands say all of these words about the node."""

        async def said() -> bool:
            listed = {each["node"]: each for each in (await self.data("nodes"))["nodes"]}[name]
            test = (await self.data("nodes", "why", name))["test"]
            return listed["state"] == "Untested" and all(word in listed["why"] and word in test for word in words)

        await until(f"{name} is reported as {words}", said)


@pytest.fixture
def asked(trusting: Trusting, api_server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(trusting, api_server, capsys)


async def test_a_test_that_is_refused_or_has_no_room_is_said_to_be(trusting: Trusting, asked: Asked) -> None:
    await trusting.configure()
    with contextlib.suppress(NotFound):
        await trusting.client.delete(PriorityClass, PRIORITY_CLASS)
    try:
        (name,) = await trusting.add_nodes(1)
        trusting.control()
        await asked.until_said(name, "cannot be made", f"no PriorityClass with name {PRIORITY_CLASS} was found")
    finally:
        await priority_class(trusting.client)
    patch = {"data": {CONFIG_KEY: TEXT.replace("cpu: 100m", "cpu: 200")}}
    await trusting.client.patch(ConfigMap, CONFIG_MAP, patch, namespace=trusting.namespace)
    await asked.until_said(name, "its test of level 1 waits for a place", "cpu")
    await trusting.client.patch(ConfigMap, CONFIG_MAP, {"data": {CONFIG_KEY: TEXT}}, namespace=trusting.namespace)
    await trusting.until_tested(name)
