"""Reads what the rules about cluster DNS need: few requests, each with a limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.api.reader import Reader
from muster.network.checks.cluster.evidence import Clients, DnsEvidence, Responses, Server
from muster.network.checks.cluster.ndots import external_hosts

LABELS: Final = {"k8s-app": "kube-dns"}
METRICS_PORT: Final = 9153
SERVERS_MAX: Final = 100
READ_SERVERS_MAX: Final = 4
"""Servers whose metrics are read: their clients are alike."""
SAMPLE: Final = 500
NODES: Final = "the number of nodes"
_WHAT: Final = "cluster DNS"
_METRICS: Final = "metrics of cluster DNS"
_METRICS_RIGHT: Final = "get pods/proxy in namespace kube-system"
_PODS: Final = "/api/v1/namespaces/kube-system/pods"
_SERVICES: Final = "/api/v1/namespaces/kube-system/services"
_SELECTED: Final = {"labelSelector": "k8s-app=kube-dns"}
_CLUSTER_FIRST: Final = ("ClusterFirst", "ClusterFirstWithHostNet")
_RESPONSES: Final = "coredns_dns_responses"
_ABSENT: Final = "NXDOMAIN"
_ANSWER_S: Final = 10.0


async def count_nodes(reader: Reader) -> int | None:
    """Return the number of nodes; None if they cannot be listed."""
    nodes = await reader.list("/api/v1/nodes", what=NODES, limit=1, metadata_only=True, sample=True)
    return len(nodes.items) + nodes.remaining if nodes is not None else None


async def collect_dns(reader: Reader, nodes: int, planned: int, urls: Sequence[str]) -> DnsEvidence | None:
    """Read the evidence about cluster DNS; None if its pods cannot be listed, or nothing has its label.

    Args:
        reader: of the API server. It notes what could not be read.
        nodes: number of nodes; 0 if not known.
        planned: planned number of nodes; 0 for today's.
        urls: metrics of DNS servers. Without any, they are read through the API server's proxy.
    """
    pods = await reader.list(_PODS, what=_WHAT, limit=SERVERS_MAX, params=_SELECTED)
    if pods is None:
        return None
    if not pods.items:
        return await _without_pods(reader, nodes, planned)
    ready = [pod for pod in pods.items if _is_ready(pod)]
    servers, clients, cache, responses = await asyncio.gather(
        _servers(reader, ready),
        _clients(reader),
        _has_node_cache(reader),
        _responses(reader, [pod["metadata"]["name"] for pod in ready], urls),
    )
    name = deployment_of(pods.items[0])
    return DnsEvidence(
        servers=servers,
        pods=len(pods.items),
        deployment=name,
        labels=await _selector(reader, name),
        nodes=nodes,
        planned_nodes=planned,
        other_rack=await _others(reader, LABEL_RACK, {server.rack for server in servers}),
        other_zone=await _others(reader, LABEL_ZONE, {server.zone for server in servers}),
        node_cache=cache,
        responses=responses,
        clients=clients,
    )


def responses_of(page: str) -> tuple[int, int]:
    """Return the answers on a page of CoreDNS's metrics: all, and those that the name does not exist."""
    total = absent = 0.0
    for family in text_string_to_metric_families(page):
        if family.name != _RESPONSES:
            continue
        for sample in family.samples:
            if sample.name == f"{_RESPONSES}_total":
                total += sample.value
                absent += sample.value if sample.labels.get("rcode") == _ABSENT else 0
    return int(total), int(absent)


def clients_of(pods: Iterable[Mapping[str, Any]]) -> Clients:
    """Return what a sample of pods says about cluster DNS. Pods of kube-system are left out."""
    sampled = default = 0
    external: Counter[str] = Counter()
    for pod in pods:
        spec = pod.get("spec") or {}
        policy = spec.get("dnsPolicy", "ClusterFirst")
        on_host = spec.get("hostNetwork") and policy == "ClusterFirst"  # such a pod uses the node's DNS
        if policy not in _CLUSTER_FIRST or on_host or pod["metadata"].get("namespace") == "kube-system":
            continue
        sampled += 1
        options = (spec.get("dnsConfig") or {}).get("options") or ()
        if any(option.get("name") == "ndots" for option in options):
            continue
        default += 1
        if any(external_hosts(text) for text in _texts(spec)):
            external[_workload(pod)] += 1
    return Clients(sampled, default, dict(external))


def deployment_of(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's Deployment; `coredns` if the pod does not say."""
    metadata = pod["metadata"]
    suffix = f"-{(metadata.get('labels') or {}).get('pod-template-hash', '')}"
    for owner in metadata.get("ownerReferences") or ():
        if owner["kind"] == "ReplicaSet" and len(suffix) > 1 and owner["name"].endswith(suffix):
            return str(owner["name"].removesuffix(suffix))
    return "coredns"


async def _without_pods(reader: Reader, nodes: int, planned: int) -> DnsEvidence | None:
    """Return evidence without a server if DNS has a Service. Without one, the cluster may label its DNS otherwise."""
    services = await reader.list(_SERVICES, what=_WHAT, limit=1, params=_SELECTED, metadata_only=True, sample=True)
    if services is None:
        return None
    if not services.items:
        reader.note(_WHAT, "no pod and no Service in kube-system has the label k8s-app=kube-dns")
        return None
    name = services.items[0]["metadata"]["name"]
    return DnsEvidence(servers=(), service=name, labels=LABELS, nodes=nodes, planned_nodes=planned)


async def _servers(reader: Reader, pods: Sequence[Mapping[str, Any]]) -> tuple[Server, ...]:
    """Return the servers that run. A pod stays Ready for a while after its node was lost."""
    names = sorted({pod["spec"].get("nodeName", "") for pod in pods} - {""})
    nodes = await asyncio.gather(
        *(reader.get(f"/api/v1/nodes/{name}", what=_WHAT, right="get nodes", optional=True) for name in names)
    )
    lost = {name for name, node in zip(names, nodes, strict=True) if node is not None and _is_lost(node)}
    labels = {
        name: (node["metadata"].get("labels") or {}) if node is not None else {}
        for name, node in zip(names, nodes, strict=True)
    }
    return tuple(
        Server(
            pod["metadata"]["name"],
            name := pod["spec"]["nodeName"],
            labels[name].get(LABEL_RACK, ""),
            labels[name].get(LABEL_ZONE, ""),
        )
        for pod in pods
        if pod["spec"]["nodeName"] not in lost
    )


async def _others(reader: Reader, label: str, values: set[str]) -> bool:
    """Return whether a node has another value of the label. It is only asked if all servers share one."""
    if len(values) != 1 or "" in values:
        return False
    params = {"labelSelector": f"{label},{label} notin ({values.copy().pop()})"}
    nodes = await reader.list(
        "/api/v1/nodes", what="racks and zones of nodes", limit=1, params=params, metadata_only=True, sample=True
    )
    return nodes is not None and bool(nodes.items)


async def _selector(reader: Reader, name: str) -> Mapping[str, str]:
    path = f"/apis/apps/v1/namespaces/kube-system/deployments/{name}"
    found = await reader.get(
        path, what="the selector of cluster DNS", right="get deployments.apps in namespace kube-system", optional=True
    )
    labels = ((found or {}).get("spec") or {}).get("selector", {}).get("matchLabels")
    return labels or LABELS


async def _has_node_cache(reader: Reader) -> bool:
    pods = await reader.list(
        _PODS, what="DNS caches on nodes", limit=1, params={"labelSelector": "k8s-app=node-local-dns"}, sample=True
    )
    return pods is not None and bool(pods.items)


async def _clients(reader: Reader) -> Clients | None:
    pods = await reader.list(
        "/api/v1/pods", what="DNS settings of pods", limit=SAMPLE, params={"fieldSelector": "status.phase=Running"},
        sample=True,
    )  # fmt: skip
    return clients_of(pods.items) if pods is not None else None


async def _responses(reader: Reader, pods: Sequence[str], urls: Sequence[str]) -> Responses | None:
    if urls:
        pages = await asyncio.gather(*(_page(reader, url) for url in urls))
    else:
        names = pods[:READ_SERVERS_MAX]
        bodies = await asyncio.gather(
            *(
                reader.read(f"{_PODS}/{name}:{METRICS_PORT}/proxy/metrics", what=_METRICS, right=_METRICS_RIGHT)
                for name in names
            )
        )
        pages = [body.decode(errors="replace") for body in bodies if body is not None]
    read = []
    for page in filter(None, pages):
        try:
            read.append(responses_of(page))
        except ValueError as error:
            reader.note(_METRICS, f"a page is not in the text format of Prometheus: {error}")
    if not read:
        return None
    return Responses(sum(total for total, _ in read), sum(absent for _, absent in read), len(read))


async def _page(reader: Reader, url: str) -> str:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session,
            session.get(url) as answer,
        ):
            answer.raise_for_status()
            return await answer.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        reader.note(_METRICS, f"{url}: {str(error) or type(error).__name__}")
        return ""


def _ready_status(thing: Mapping[str, Any]) -> str:
    """Return the status of the condition Ready of a pod or node; "" without one."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), "")


def _is_lost(node: Mapping[str, Any]) -> bool:
    return _ready_status(node) not in ("", "True")


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return (
        bool(pod["spec"].get("nodeName"))
        and _ready_status(pod) == "True"
        and "deletionTimestamp" not in pod["metadata"]
    )


def _texts(spec: Mapping[str, Any]) -> Iterable[str]:
    for container in spec.get("containers") or ():
        yield from container.get("command") or ()
        yield from container.get("args") or ()
        for variable in container.get("env") or ():
            yield variable.get("value") or ""


def _workload(pod: Mapping[str, Any]) -> str:
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or ({"name": metadata["name"]},)
    suffix = f"-{(metadata.get('labels') or {}).get('pod-template-hash', '')}"
    name = str(owners[0]["name"])
    return f"{metadata.get('namespace', '')}/{name.removesuffix(suffix) if len(suffix) > 1 else name}"
