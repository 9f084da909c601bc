"""Dead nodes: out of use and left by their gangs before Kubernetes says so, and no node if many are cut off at once.

Kubernetes calls a node not Ready after 50 s and evicts its pods 300 s later: more than these tests may take.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime

import pytest

from muster.api.names import HEALTH_CONFIG_MAP
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.lookups import LEASES
from muster.kube.objects.coordination import Lease
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.sim import nodeobjects
from tests.scenarios.remediation.conftest import OPEN, Findings, Ward
from tests.scenarios.trainingjobs.conftest import Arena, arena, arenas
from tests.scenarios.trainingjobs.test_jobs import train
from tests.support.anyserver import BY_REMEDIATION
from tests.support.waiting import until

__all__ = ["arena", "arenas"]  # fixtures

SILENT_S = 2.0
RENEWING_S = 12.0
"""Longer than the 10 s in which a kubelet renews its Lease: kubelets of other tests may run on the same server."""


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_gang_leaves_a_node_whose_kubelet_stands_still_and_runs_elsewhere(arena: Arena) -> None:
    """The job itself notices nothing: its ranks go on there. Nor does the node confirm that its pod has ended."""
    arena.controllers[-1].terminate()
    data = {CONFIG_KEY: f"{OPEN}dead: {{peers: 2, silentSeconds: {SILENT_S:g}}}\n"}
    await arena.client.create(ConfigMap(metadata=ObjectMeta(name=HEALTH_CONFIG_MAP, namespace=arena.system), data=data))
    arena.control("--health")
    findings, names = Findings(arena.client), {node.name for node in arena.nodes}
    stopped = None
    try:
        await arena.submit("job", train(arena), replicas=2, backoffLimit=0, unknownLimit=0, infrastructureLimit=1)
        await arena.phase("job", "Running", 1)
        left = (await arena.pods("job"))[0].spec.node_name
        stopped = next(node for node in arena.nodes if node.name == left)
        os.kill(stopped.process.popen.pid, signal.SIGSTOP)
        for peer in names - {left}:
            await findings.misses(peer, left)

        status = await arena.phase("job", "Running", 2)
        now_on = {pod.spec.node_name for pod in await arena.pods("job") if not pod.terminating}
        assert now_on == names - {left}
        assert status.restarts is not None
        assert (status.restarts.infrastructure, status.restarts.user, status.restarts.unknown) == (1, 0, 0)
        assert status.faults[-1].cause == "infrastructure"
        session = await findings.session(left)
        assert session is not None
        assert session.status.history[0].reason == "opened: dead"
        assert "its Lease is not renewed" in str(session.status.history)

        os.kill(stopped.process.popen.pid, signal.SIGCONT)

        async def emptied() -> bool:
            return left not in {pod.spec.node_name for pod in await arena.pods("job")}

        await until("its kubelet ends what was left there", emptied)
        await findings.tests(left)

        async def back() -> bool:
            found = await findings.session(left)
            return found is not None and found.status.state == "Released"

        await until("it is back after a test", back)
        (arena.folder / "done").touch()
        await arena.phase("job", "Succeeded", 2)
    finally:
        if stopped is not None:
            os.kill(stopped.process.popen.pid, signal.SIGCONT)
        await findings.forget(names)
        await arena.client.delete(ConfigMap, HEALTH_CONFIG_MAP, namespace=arena.system)


@BY_REMEDIATION
async def test_no_node_is_declared_dead_while_most_are_cut_off(ward: Ward) -> None:
    """In a partition many nodes are missed at once, or many Leases stop together; after it one node is dead."""
    nodes = await ward.add_nodes(8)
    for node in nodes:
        await ward.client.create(nodeobjects.lease(node, datetime.now(UTC)), kind=Lease)
    await asyncio.sleep(2.0)  # what is said in the second in which a node was made may be about the one before it
    await ward.configure(f"{OPEN}dead: {{peers: 2, silentSeconds: {SILENT_S:g}, nodes: 3}}\n")
    for peer in nodes[5:]:
        await ward.misses(peer, *nodes[:5])
    ward.start()
    await asyncio.sleep(SILENT_S + 2)  # nothing may come of it
    assert await ward.out_of_use() == set()

    for peer in nodes:  # each half says that the other one is gone
        await ward.misses(peer, *(nodes[4:] if peer in nodes[:4] else nodes[:4]))
    await asyncio.sleep(SILENT_S + 2)
    assert await ward.out_of_use() == set()

    for peer in nodes[1:]:
        await ward.misses(peer, *(nodes[:1] if peer in nodes[5:] else ()))
    await ward.misses(nodes[0])
    await asyncio.sleep(SILENT_S + 2)  # all Leases have stopped
    assert await ward.out_of_use() == set()

    async def kubelets() -> None:
        while True:
            for node in nodes[1:]:
                renewed = {"spec": {"renewTime": datetime.now(UTC).isoformat(timespec="microseconds")}}
                await ward.client.patch(Lease, node, renewed, namespace=LEASES)
            await asyncio.sleep(0.5)

    await ward.configure(f"{OPEN}dead: {{peers: 2, silentSeconds: {RENEWING_S:g}, nodes: 3}}\n")
    beating = asyncio.create_task(kubelets())
    try:
        # The node is dead, and no provider can replace its machine.
        session = await ward.until_rung(nodes[0], "NeedsOperator")
        assert "its Lease is not renewed" in str(session.status.history)
        await ward.until_out_of_use(nodes[0])
    finally:
        beating.cancel()
