"""A training job whose nodes break: it leaves them at once, its attempt ends once, and no budget is charged."""

from __future__ import annotations

import pytest

from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY
from muster.fleet.remediation.config import CONFIG_KEY
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from tests.scenarios.remediation.conftest import OPEN, Findings
from tests.scenarios.remediation.test_remediation import POLICY
from tests.scenarios.trainingjobs.conftest import Arena, arena, arenas
from tests.scenarios.trainingjobs.test_jobs import train
from tests.support.anyserver import BY_REMEDIATION
from tests.support.waiting import until

__all__ = ["arena", "arenas"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@BY_REMEDIATION
async def test_a_gang_leaves_two_broken_nodes_at_once_and_its_attempt_ends_once(arena: Arena) -> None:
    await arena.whole(4)
    arena.controllers[-1].terminate()
    data = {CONFIG_KEY: OPEN.replace("spareSeconds: 5", "spareSeconds: 60"), HEALTH_POLICY_KEY: POLICY}
    meta = ObjectMeta(name=HEALTH_CONFIG_MAP, namespace=arena.system)
    await arena.client.create(ConfigMap(metadata=meta, data=data))
    arena.control("--health")
    findings, left = Findings(arena.client), set[str]()
    try:
        await arena.submit("job", train(arena), replicas=2, backoffLimit=0, unknownLimit=0, infrastructureLimit=1)
        await arena.phase("job", "Running", 1)
        left = {pod.spec.node_name for pod in await arena.pods("job")}
        for node in left:
            await findings.finds(node, "951")
        status = await arena.phase("job", "Running", 2)
        assert not left & {pod.spec.node_name for pod in await arena.pods("job") if not pod.terminating}
        assert status.restarts is not None
        assert (status.restarts.infrastructure, status.restarts.user, status.restarts.unknown) == (1, 0, 0)
        assert status.faults[-1].cause == "infrastructure"
        for node in left:
            session = await findings.session(node)
            assert session is not None
            assert any(step.event == "SpareReserved" for step in session.status.history)
            await findings.tests(node)

        async def back() -> bool:
            sessions = [await findings.session(node) for node in left]
            return all(each is not None and each.status.state == "Released" for each in sessions)

        await until("the nodes are back", back)
        (arena.folder / "done").touch()
        await arena.phase("job", "Succeeded", 2)
    finally:
        await findings.forget(left)
        await arena.client.delete(ConfigMap, HEALTH_CONFIG_MAP, namespace=arena.system)
