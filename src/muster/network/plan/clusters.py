"""Reads the ranges of a running cluster through its API server.

Sources of the ranges:
    pods: Node.spec.podCIDRs. A node's block is never taken for the whole cluster's range (submariner-io/submariner
        2285). Where nodes have none, the addresses of pods.
    Services: ServiceCIDR objects (Kubernetes 1.33 and newer). An older API server shows its range nowhere, so the
        cluster IPs in use are taken: the true range may be larger.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import ClassVar, Final, NamedTuple, TypeVar

import msgspec

from muster.kube.client import Client
from muster.kube.errors import Forbidden, NotFound
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.node import Node, NodeStatus
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import KubeStruct
from muster.network.plan.estate import EstateCluster
from muster.network.plan.range import Family, Range, aggregate, parse_range
from muster.network.plan.request import Provider

T = TypeVar("T", bound=KubeObject)

_PROVIDERS: Final[dict[str, Provider]] = {"aws": "aws", "azure": "azure"}


class NodeRangesSpec(KubeStruct):
    """The part of a Node's spec that holds its blocks."""

    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeRanges(KubeObject):
    """core/v1 Node, with its blocks and addresses only."""

    RESOURCE: ClassVar[Resource] = Node.RESOURCE

    spec: NodeRangesSpec = msgspec.field(default_factory=NodeRangesSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class PodAddressesSpec(KubeStruct):
    """The part of a Pod's spec that says whose addresses it has."""

    host_network: bool = False


class PodAddress(KubeStruct):
    """One address of a pod."""

    ip: str = ""


class PodAddressesStatus(KubeStruct):
    """The part of a Pod's status that holds its addresses."""

    pod_ips: tuple[PodAddress, ...] = msgspec.field(default=(), name="podIPs")


class PodAddresses(KubeObject):
    """core/v1 Pod, with its addresses only."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    spec: PodAddressesSpec = msgspec.field(default_factory=PodAddressesSpec)
    status: PodAddressesStatus = msgspec.field(default_factory=PodAddressesStatus)


class ServiceAddressesSpec(KubeStruct):
    """The part of a Service's spec that holds its cluster IPs."""

    cluster_ips: tuple[str, ...] = msgspec.field(default=(), name="clusterIPs")


class ServiceAddresses(KubeObject):
    """core/v1 Service, with its cluster IPs only."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "services", "Service")

    spec: ServiceAddressesSpec = msgspec.field(default_factory=ServiceAddressesSpec)


class ServiceCIDRSpec(KubeStruct):
    """One range for each family."""

    cidrs: tuple[str, ...] = ()


class ServiceCIDR(KubeObject):
    """networking.k8s.io/v1 ServiceCIDR: a range from which Services get cluster IPs."""

    RESOURCE: ClassVar[Resource] = Resource("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)

    spec: ServiceCIDRSpec = msgspec.field(default_factory=ServiceCIDRSpec)


class Seen(NamedTuple):
    """A cluster as its API server shows it.

    Attributes:
        provider: of its nodes (Node.spec.providerID); None if they do not name one that is known.
        notes: what could not be read, and what follows.
    """

    cluster: EstateCluster
    provider: Provider | None
    notes: tuple[str, ...]


async def read_cluster(client: Client, name: str) -> Seen:
    """Read the ranges of a cluster. Raises ApiError if nodes cannot be listed."""
    nodes = (await client.list_all(NodeRanges)).items
    blocks = [cidr for node in nodes for cidr in node.spec.pod_cidrs]
    addresses = [address.address for node in nodes for address in node.status.addresses if address.type == "InternalIP"]
    providers = {node.spec.provider_id.partition("://")[0] for node in nodes}
    pods_max = max((int(str(node.status.allocatable.get("pods", 0))) for node in nodes), default=0)
    notes: list[str] = []
    in_use: list[str] = []
    if not blocks:
        in_use = await _pod_addresses(client)
        notes.append(f"{name}: nodes have no podCIDRs; the addresses of its pods are compared instead")
    services, number = await _service_ranges(client, name, notes)
    cluster = EstateCluster(
        name=name,
        nodes=len(nodes),
        pods_per_node=pods_max,
        services=number,
        node_ranges=_aggregated(addresses),
        pod_ranges=_aggregated(in_use),
        service_ranges=services,
        node_blocks=tuple(blocks),
        in_use=True,
    )
    known = _PROVIDERS.get(providers.pop()) if len(providers) == 1 else None
    return Seen(cluster, known, tuple(notes))


async def _pod_addresses(client: Client) -> list[str]:
    found: list[str] = []
    async with aclosing(client.pages(PodAddresses)) as pages:
        async for page in pages:
            found += [
                address.ip
                for pod in page.items
                if not pod.spec.host_network
                for address in pod.status.pod_ips
                if address.ip
            ]
    return found


async def _service_ranges(client: Client, name: str, notes: list[str]) -> tuple[tuple[str, ...], int]:
    """Return the ranges of Services, and the number of cluster IPs; 0 if nothing is known about room."""
    services = await _all(client, ServiceAddresses)
    used = [
        parse_range(address)
        for service in services or ()
        for address in service.spec.cluster_ips
        if address not in ("", "None")
    ]
    number = max((sum(1 for each in used if each.family is family) for family in Family), default=0)
    cidrs = await _all(client, ServiceCIDR)
    if cidrs is not None:
        return tuple(dict.fromkeys(cidr for each in cidrs for cidr in each.spec.cidrs)), number
    if services is None:
        notes.append(f"{name}: neither ServiceCIDRs nor Services can be read; its range of Services is not compared")
        return (), 0
    notes.append(
        f"{name}: the API server has no ServiceCIDRs (new in Kubernetes 1.33), or they may not be read; addresses of "
        "Services stand for their range, which may be larger"
    )
    covering = (_covering([each for each in used if each.family is family]) for family in Family)
    return tuple(str(each) for each in covering if each is not None), 0


def _covering(ranges: list[Range]) -> Range | None:
    """Return the smallest range that holds all of them."""
    if not ranges:
        return None
    whole = min(ranges)
    while not all(whole.contains(each) for each in ranges):
        whole = whole.parent()
    return whole


async def _all(client: Client, kind: type[T]) -> list[T] | None:
    try:
        return (await client.list_all(kind)).items
    except (NotFound, Forbidden):
        return None


def _aggregated(texts: list[str]) -> tuple[str, ...]:
    return tuple(map(str, aggregate(map(parse_range, texts))))
