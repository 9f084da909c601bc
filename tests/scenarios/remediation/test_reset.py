"""The rung that resets GPUs, end to end: a process kubelet runs the pod that does it, and the test that follows.

What the pod calls on the machine is a model: programs that write down what they were asked for.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY
from muster.api.quarantine import quarantined
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.controller import RemediationController
from muster.fleet.remediation.repairs.steps import LABEL_STEP
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.kubelet.conftest import NodeUnderTest
from tests.scenarios.preflight.conftest import Trusting, stop, trusting
from tests.scenarios.remediation.conftest import OPEN, Findings
from tests.scenarios.scheduler.conftest import POOL
from tests.support.anyserver import BY_REMEDIATION
from tests.support.apiserver import ApiServer
from tests.support.waiting import until

__all__ = ["trusting"]  # a fixture

pytestmark = pytest.mark.slow

GPU = "0000:3b:00"
POLICY = """
version: 1
revision: test
extends: default
codes: {xid: {140: {action: reset-gpu, test: 1}}}
"""
PREFLIGHT = """
runAsUser: 0
backend: cpu
levels: {boot: 1, retest: 1, suspect: 1}
resources: {cpu: 100m, memory: 64Mi}
retests: {atOnce: 0}
"""
NSENTER = """#!/bin/sh
# Into the namespaces of process 1, where what stands behind the dashes is run.
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
CAT = """#!/bin/sh
# As after a reboot of a real machine, pods read the boot that the node is in.
if [ "$1" = /proc/sys/kernel/random/boot_id ]; then exec {cat} {boot_id}; fi
exec {cat} "$@"
"""
SAYS = """#!/bin/sh
echo "$@" >> {file}
exit {code}
"""


class Sick:
    """A process kubelet's node, and what its machine was asked for."""

    def __init__(self, trusting: Trusting, node: NodeUnderTest, folder: Path) -> None:
        self.trusting, self.node, self._folder = trusting, node, folder
        self.findings = Findings(trusting.client)

    def install(self, name: str, code: int = 0) -> None:
        """A program of the machine."""
        self._write(name, SAYS.format(file=self._folder / f"{name}.said", code=code))

    def install_machine(self) -> None:
        """The way from a pod to the machine, and the machine's own identity."""
        cat = shutil.which("cat")
        self._write("nsenter", NSENTER)
        self._write("cat", CAT.format(cat=cat, boot_id=self.node.state_dir / "boot-id"))

    def _write(self, name: str, text: str) -> None:
        program = self._folder / name
        program.write_text(text)
        program.chmod(0o755)

    def asked(self, program: str) -> list[str]:
        file = self._folder / f"{program}.said"
        return file.read_text().splitlines() if file.exists() else []

    async def reasons(self) -> list[str]:
        session = await self.findings.session(self.node.name)
        return [step.reason for step in session.status.history] if session is not None else []

    async def until_phase(self, wanted: str) -> None:
        async def there() -> bool:
            session = await self.findings.session(self.node.name)
            return session is not None and session.status.state == wanted

        try:
            await until(f"the session is {wanted}", there)
        except AssertionError as error:
            seen = [*await self.reasons(), *map(str, await self.trusting.cluster.pods())]
            raise AssertionError("\n".join([str(error), *seen, self.node.log.read_text()[-3000:]])) from None


@pytest.fixture
async def sick(
    trusting: Trusting,
    api_server_for_kubelets: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Sick]:
    """Preflight, remediation and the scheduler work, and one node has two GPUs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    flags = ("--gpus=2", f"--labels={POOL}={trusting.namespace}")
    node = NodeUnderTest(api_server_for_kubelets, trusting.client, tmp_path, flags)
    made = Sick(trusting, node, programs)
    made.install_machine()
    for name in ("nvidia-smi", "systemctl"):
        made.install(name)
    for name in ("nsenter", "nvidia-smi", "systemctl", "cat"):
        assert shutil.which(name) == str(programs / name), "nothing may reach this machine's own"
    await trusting.configure(PREFLIGHT)
    meta = ObjectMeta(name=HEALTH_CONFIG_MAP, namespace=trusting.namespace)
    await trusting.client.create(ConfigMap(metadata=meta, data={CONFIG_KEY: OPEN, HEALTH_POLICY_KEY: POLICY}))
    remediation = RemediationController(trusting.client, trusting.namespace, registry=CollectorRegistry())
    trusting.tasks.append(asyncio.create_task(remediation.run()))
    trusting.control()
    try:
        await node.start()
        yield made
    finally:
        await stop(trusting.tasks)
        trusting.tasks.clear()
        await asyncio.to_thread(node.end)
        await made.findings.forget([node.name])


@BY_REMEDIATION
async def test_gpus_are_reset_on_the_node_and_a_test_lets_it_back(sick: Sick) -> None:
    await sick.findings.finds(sick.node.name, "140", component=GPU)
    await sick.until_phase("Released")
    assert sick.asked("nvidia-smi") == [f"--gpu-reset -i {GPU}"]
    assert sick.asked("systemctl") == []
    record = await sick.trusting.record(sick.node.name)
    session = await sick.findings.session(sick.node.name)
    assert record is not None
    assert session is not None
    reset = next(step for step in session.status.history if step.event == "Reset")
    released = session.status.history[-1]
    assert (released.event, released.test_level) == ("Released", 1)
    assert record.spec.passed
    assert record.spec.time > reset.time, "the test came after the reset"

    async def clean() -> bool:
        node = await sick.trusting.client.get(Node, sick.node.name)
        steps = (await sick.trusting.client.list(Pod, sick.trusting.namespace, label_selector=LABEL_STEP)).items
        return not quarantined(node) and not steps

    await until("the taint and the step's pod are gone", clean)
    await sick.trusting.cluster.add_gang("train", 1, gpus=2)
    await sick.trusting.cluster.until_bound("train", 1, "the gang gets the node")


@BY_REMEDIATION
async def test_gpus_that_cannot_be_reset_lead_to_a_reboot_and_a_test_in_the_boot_after_it(sick: Sick) -> None:
    sick.install("nvidia-smi", code=1)
    await sick.findings.finds(sick.node.name, "140", component=GPU)
    await until("the machine is asked to reboot", lambda: sick.asked("systemctl") == ["reboot"])
    await asyncio.to_thread(sick.node.kill)
    await sick.node.start("--new-boot")
    await sick.until_phase("Released")
    assert sick.asked("nvidia-smi") == [f"--gpu-reset -i {GPU}"]
    assert sick.asked("systemctl") == ["reboot"], "once"
    node = await sick.trusting.client.get(Node, sick.node.name)
    record = await sick.trusting.record(sick.node.name)
    assert record is not None
    assert node.status.node_info is not None
    assert (record.spec.passed, record.spec.boot_id) == (True, node.status.node_info.boot_id)
