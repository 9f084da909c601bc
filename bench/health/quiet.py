"""Counts the writes to the API server, by writer, while nothing is broken.

All nodes are trusted: each has just passed its test, so no test is due. Kubelets are modelled by the writes of a
healthy node that reach a controller: its status every five minutes. No controller here watches Leases. Agents are real
ones, on some of the nodes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.controller import controller, served
from bench.gang_spike.cluster import Cluster, cluster
from bench.gang_spike.process import cpu_s, peak_rss_mb
from bench.health.agentprocess import agents, until
from muster.api.names import API_VERSION, SYSTEM_NAMESPACE
from muster.api.preflight import Preflight, PreflightSpec
from muster.controlplane.chart import CHART
from muster.fleet.remediation.evidence.mesh import CONFIG_MAP
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.sim import nodeobjects
from tests.support.auditlog import AuditEntry, AuditLog

STATUS_PERIOD_S = 300.0
"""KubeletConfiguration, nodeStatusReportFrequency: how often an unchanged status is written."""
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None  # questions, nothing is stored
  resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]
- level: Metadata
"""
_KUBELETS = "modelled-kubelets"
_CONTROLLER, _AGENT = "muster-controller", "muster-agent/bench"
_TEMPLATES = ("health-remediation", "health-preflight", "health-agents")
_VALUES = (
    "health.enabled=true",
    "health.remediation.config.mode=act",
    "health.preflight.enabled=true",
    "health.preflight.required=true",
    "health.preflight.config.image=muster-gputest:1",
)
_SETTLE_S = 60.0
_WRITES_AT_ONCE = 48
_HOUR_S = 3600.0


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """The writes in a number of seconds.

    Attributes:
        seconds: the length of the watch.
        agents: the number of running agents.
        writes: by User-Agent, then by verb and resource.
        agent_writes_most: of the agent that wrote most.
        controller_cpu_s, apiserver_cpu_s: in that time.
        controller_rss_mb, controller_peak_rss_mb: at its end, and the most there ever was.
    """

    seconds: float
    agents: int
    writes: dict[str, Counter[str]]
    agent_writes_most: int
    controller_cpu_s: float
    apiserver_cpu_s: float
    controller_rss_mb: float
    controller_peak_rss_mb: float

    def figures(self, nodes: int) -> dict[str, float]:
        """The same by the hour, and what agents on all nodes would write."""
        an_hour = _HOUR_S / self.seconds
        ours = self.writes.get(_CONTROLLER, Counter())
        leases = sum(count for what, count in ours.items() if what.endswith(" leases"))
        theirs = self.writes.get(_AGENT, Counter())
        others = sum(each.total() for who, each in self.writes.items() if who not in (_CONTROLLER, _AGENT, _KUBELETS))
        each = theirs.total() / self.agents * an_hour
        return {
            "minutes": self.seconds / 60,
            "agents": self.agents,
            "controller_writes_per_hour": ours.total() * an_hour,
            "controller_lease_renewals_per_hour": leases * an_hour,
            "controller_other_writes_per_hour": (ours.total() - leases) * an_hour,
            "agent_writes_per_hour": each,
            "agent_writes_most_per_hour": self.agent_writes_most * an_hour,
            "agents_on_all_nodes_extrapolated_writes_per_hour": each * nodes,
            "others_writes_per_hour": others * an_hour,
            "controller_cpu_s": self.controller_cpu_s,
            "controller_cpu_percent": 100 * self.controller_cpu_s / self.seconds,
            "apiserver_cpu_s": self.apiserver_cpu_s,
            "controller_rss_mb": self.controller_rss_mb,
            "controller_peak_rss_mb": self.controller_peak_rss_mb,
        }


def count(entries: Iterable[AuditEntry]) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Count writes by User-Agent, verb and resource; and those of agents by the object's name, their node's."""
    writes: dict[str, Counter[str]] = {}
    by_node: Counter[str] = Counter()
    for entry in entries:
        code = entry.response_status.code
        refused = f" ({code})" if code >= 400 else ""
        writes.setdefault(entry.user_agent, Counter())[f"{entry.verb}{refused} {entry.object_ref.what}"] += 1
        if entry.user_agent == _AGENT:
            by_node[entry.object_ref.name] += 1
    return writes, by_node


async def quiet(nodes: int, with_agents: int, minutes: float) -> Quiet:
    """Run everything on a healthy cluster for so long. Raises TimeoutError where it does not come up."""
    seconds = minutes * 60
    token_s = int(seconds) + 3600
    with tempfile.TemporaryDirectory(prefix="muster-bench-quiet-") as folder:
        audit = AuditLog(Path(folder), POLICY)
        async with cluster("quiet", nodes, {}, {}, apiserver=audit.apiserver_arguments) as where:
            await _trust_all(where)
            running = controller(
                where.plane.access,
                where.admin,
                where.directory,
                templates=_TEMPLATES,
                values=_VALUES,
                options=["--health", "--preflight", "--preflight-required"],
                token_s=token_s,
            )
            async with (
                running as child,
                agents(where, where.nodes[:with_agents], token_s=token_s),
                Client(load_config(where.plane.kubeconfig), user_agent=_KUBELETS) as kubelets,
            ):
                beating = asyncio.create_task(_beat(kubelets, where.nodes))
                try:
                    await until(lambda: _is_set_up(where.admin), "the controller has written who looks at whom")
                    await asyncio.sleep(_SETTLE_S)
                    pids = (child.pid, where.plane.pid("kube-apiserver"))
                    before, since = [cpu_s(pid) for pid in pids], audit.position()
                    await _sleep(seconds, beating)
                    writes, by_node = count(audit.entries(since))
                    used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
                    if child.exit_code is not None:
                        raise TimeoutError(f"the controller ended:\n{child.log_tail()}")
                finally:
                    beating.cancel()
                    await asyncio.gather(beating, return_exceptions=True)
                return Quiet(
                    seconds=seconds,
                    agents=with_agents,
                    writes=writes,
                    agent_writes_most=max(by_node.values(), default=0),
                    controller_cpu_s=used[0],
                    apiserver_cpu_s=used[1],
                    controller_rss_mb=_rss_mb(child.pid),
                    controller_peak_rss_mb=peak_rss_mb(child.pid),
                )


async def _is_set_up(client: Client) -> bool:
    """Returns whether the controller leads and has made its single initial write."""
    try:
        await client.get(ConfigMap, CONFIG_MAP, SYSTEM_NAMESPACE)
    except NotFound:
        return False
    return True


async def _sleep(seconds: float, beating: asyncio.Task[None]) -> None:
    """Wait for so long; an error of the modelled kubelets ends it."""
    done, _ = await asyncio.wait([beating], timeout=seconds)
    for task in done:
        task.result()


async def _trust_all(where: Cluster) -> None:
    """Every node has passed its test, before there is a controller."""
    where.plane.access.kubectl("apply", "--server-side", "-f", str(CHART / "files" / "crds"))
    await served(where.admin, f"/apis/{API_VERSION}/preflights")
    gate = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def passed(node: Node) -> None:
        info = node.status.node_info
        assert info is not None
        spec = PreflightSpec(node_uid=node.uid, boot_id=info.boot_id, level=1, passed=True, time=datetime.now(UTC))
        async with gate:
            await where.admin.create(Preflight(metadata=ObjectMeta(name=node.name), spec=spec))

    async with asyncio.TaskGroup() as group:
        for node in (await where.admin.list_all(Node)).items:
            group.create_task(passed(node))


async def _beat(client: Client, names: tuple[str, ...]) -> None:
    """Write the status of one node after the other as its kubelet does, each once in the period."""
    began = datetime.now(UTC)
    clock = asyncio.get_running_loop().time
    due = clock()
    while True:
        for name in names:
            due += STATUS_PERIOD_S / len(names)
            await asyncio.sleep(max(0.0, due - clock()))
            patch = {"status": {"conditions": _conditions(began, datetime.now(UTC))}}
            await client.patch(Node, name, patch, subresource="status", content_type=STRATEGIC_MERGE_PATCH)


def _conditions(began: datetime, now: datetime) -> list[dict[str, Any]]:
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [{**each, "lastHeartbeatTime": at} for each in nodeobjects.conditions(began)]


def _rss_mb(pid: int) -> float:
    """Returns the resident memory now, in MB (10^6 bytes; proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no resident memory")
