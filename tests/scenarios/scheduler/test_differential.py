"""The same pod on the same cluster: kube-scheduler finds a node if and only if we do, and one that we would allow.

Clusters, pods that are there and rules come from a seed. Each case has a namespace, nodes and topology labels of its
own on one API server, where kube-scheduler answers; then our decide is asked about a copy of the pod.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.scheduler.decide import decide
from muster.scheduler.explain.loading import load_state
from muster.scheduler.memo import matcher_for
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.rules import Rules
from muster.scheduler.plan import Bind
from muster.scheduler.state import ClusterState
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.controlplane import StartControlPlane
from tests.support.waiting import until

CASES = 40
KEYS = ("rack", "zone", "host")


class Case:
    """One small cluster, made from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.name = f"case-{seed}"

    def key(self) -> str:
        return f"{self.rng.choice(KEYS)}.{self.name}/domain"

    def labels_of_node(self, number: int) -> dict[str, str]:
        labels = {"case": self.name, f"host.{self.name}/domain": f"n{number}"}
        for key in ("rack", "zone"):
            value = self.rng.choice(["1", "2", "3", ""])
            if value:
                labels[f"{key}.{self.name}/domain"] = value
        return labels

    def selector(self) -> dict[str, Any]:
        app = self.rng.choice(["a", "b"])
        return self.rng.choice(
            [
                {"matchLabels": {"app": app}},
                {"matchLabels": {}},
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]},
            ]
        )

    def term(self) -> dict[str, Any]:
        term = {"topologyKey": self.key(), "labelSelector": self.selector()}
        same = {"labelSelector": {}, "matchLabelKeys": ["app"]}
        return {**term, **self.rng.choice([{}, {}, {"namespaces": [self.name]}, same])}

    def spread(self) -> dict[str, Any]:
        rule = {
            "maxSkew": self.rng.randint(1, 2),
            "topologyKey": self.key(),
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": self.selector(),
        }
        more = self.rng.choice(
            [{}, {}, {"minDomains": 3}, {"nodeTaintsPolicy": "Honor"}, {"nodeAffinityPolicy": "Ignore"}]
        )
        return {**rule, **more}

    def pod(self, name: str, scheduler: str, *, node: str = "") -> dict[str, Any]:
        affinity = {}
        for kind in ("podAffinity", "podAntiAffinity"):
            if self.rng.random() < 0.4:
                terms = [self.term() for _ in range(self.rng.randint(1, 2))]
                affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec: dict[str, Any] = {
            "schedulerName": scheduler,
            "nodeSelector": {"case": self.name},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none"}],
            "affinity": affinity,
        }
        if self.rng.random() < 0.5:
            keys: dict[str, dict[str, Any]] = {}
            for rule in (self.spread(), self.spread()):
                keys.setdefault(rule["topologyKey"], rule)
            spec["topologySpreadConstraints"] = list(keys.values())
        if node:
            spec["nodeName"] = node
        labels = {"app": self.rng.choice(["a", "b"])}
        meta = {"name": name, "namespace": self.name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    async def make(self, cluster: Cluster) -> None:
        client = cluster.client
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        nodes = [f"{self.name}-n{number}" for number in range(self.rng.randint(2, 4))]
        for number, name in enumerate(nodes):
            meta = {"name": name, "labels": self.labels_of_node(number)}
            taints = [{"key": "t", "effect": "NoSchedule"}] if self.rng.random() < 0.2 else []
            await client.create({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": taints}})
            await cluster.set_ready(name, True)
        path = f"/api/v1/namespaces/{self.name}/serviceaccounts/default"
        await until("a service account", lambda: client.request("GET", path), ignoring=(NotFound,))
        for number in range(self.rng.randint(0, 4)):
            node = self.rng.choice(nodes)
            await client.create(self.pod(f"there-{number}", "default-scheduler", node=node))

    async def answer(self, client: Client) -> bool:
        """Whether kube-scheduler has said something about the pod."""
        pod = await client.get(Pod, "asked", self.name)
        return bool(pod.spec.node_name) or any(c.type == "PodScheduled" for c in pod.status.conditions)


@pytest.mark.timeout(300)
@pytest.mark.kubernetes_since("1.36")  # an older one counts no pods for a spread constraint with an empty selector
async def test_kube_scheduler_and_we_agree_on_single_pods(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(scheduler=True)
    async with Client(load_config(str(plane.access.kubeconfig))) as client:
        cluster = Cluster(client, plane.access.kubeconfig)
        try:
            await cluster.start()
            cases = [Case(seed) for seed in range(CASES)]
            await asyncio.gather(*(case.make(cluster) for case in cases))
            await until("the node lifecycle controller lets pods on the nodes", lambda: _all_open(client))
            asked = [case.pod("asked", "default-scheduler") for case in cases]
            await _until_heard(cluster)
            for pod in asked:
                await client.create(pod)
            for case in cases:
                await until(f"kube-scheduler says something about {case.name}", lambda case=case: case.answer(client))
            state = await load_state(client)
            answers = [await client.get(Pod, "asked", case.name) for case in cases]
            assert [text for answer in answers if (text := _difference(state, answer))] == []
            assert len({bool(answer.spec.node_name) for answer in answers}) == 2  # some found a node, some did not
        finally:
            await cluster.close()


async def _all_open(client: Client) -> bool:
    nodes = (await client.list(Node)).items
    return not any(taint.key.startswith("node.kubernetes.io/") for node in nodes for taint in node.spec.taints)


async def _until_heard(cluster: Cluster) -> None:
    """Wait until kube-scheduler knows all nodes and pods: it hears of them in order, and of this node and pod last."""
    (last,) = await cluster.add_nodes(1)
    body = cluster.pod("last", 0, 1, spec={"schedulerName": "default-scheduler"})
    pod = await cluster.client.create(body, kind=Pod)

    async def bound() -> bool:
        return (await cluster.client.get(Pod, pod.name, cluster.namespace)).spec.node_name == last

    await until("kube-scheduler uses the newest node", bound)


def _difference(state: ClusterState, theirs: Pod) -> str:
    """What kube-scheduler and we disagree about; "" where we agree."""
    state.remove_pod(theirs.uid, 0.0)
    spec = msgspec.structs.replace(theirs.spec, scheduler_name="muster", node_name="")
    state.set_pod(msgspec.structs.replace(theirs, spec=spec, status=type(theirs.status)()), 0.0)
    snapshot = state.snapshot()
    plan = decide(snapshot, 1e9)
    ours = next((a.node for a in plan.actions if isinstance(a, Bind) and a.uid == theirs.uid), "")
    node, cls = theirs.spec.node_name, state.pods[theirs.uid].cls
    assert cls is not None
    why = Rules(cls, Ledger(snapshot.buckets).layer, matcher_for(snapshot)).why_not(node) if node else None
    state.remove_pod(theirs.uid, 0.0)
    state.set_pod(theirs, 0.0)
    if bool(node) != bool(ours):
        return f"{theirs.namespace}: kube-scheduler chose {node or 'none'}, we {ours or 'none'}: {plan.waiting}"
    return f"{theirs.namespace}: kube-scheduler chose {node}, which we would not: {why.text()}" if why else ""
