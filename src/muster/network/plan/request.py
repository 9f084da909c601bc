"""The request for an address plan: clusters, their sizes and growth, the provider, and the space that may be used."""

from __future__ import annotations

from typing import Final, Literal, dataclass_transform

import msgspec

from muster.api.configschema import Positive, Whole
from muster.network.plan.range import Family

Use = Literal["nodes", "pods", "services", "researchers"]
Provider = Literal["aws", "azure", "metal"]
PodNetwork = Literal["native", "routes", "overlay"]
Encapsulation = Literal["none", "vxlan", "geneve", "ipip", "wireguard"]

HUB: Final = "hub"
SPOKE: Final = "spoke"
ADDRESSES_PER_BLOCK: Final = 16
"""AWS and Azure assign IPv4 addresses of pods to NICs as blocks of /28."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Unknown fields are errors, and defaults are not written."""


class Taken(Strict):
    """A range that other systems use.

    Attributes:
        name: what uses it, for messages.
        reachable: pods may connect to it (a storage network, an office).
    """

    cidr: str
    name: str = ""
    reachable: bool = False


class ClusterRequest(Strict):
    """One cluster. All numbers are today's; growth is added.

    Attributes:
        pods_per_node: the kubelet's maxPods.
        services: Services with a cluster IP.
        growth_per_year: 0.5 means half as many again each year; None: that of the request.
        namespaces: that have no other NetworkPolicy. Each gets the NetworkPolicy. Policies only add permissions, so
            one in a namespace that denies by default would open it.
        interfaces, addresses_per_interface: of the instance type; 0: not checked (AWS: EC2's page of instance types).
        connections_per_pod: open at the same time, for the conntrack table.
    """

    name: str
    nodes: Positive
    pods_per_node: Positive
    services: Positive
    role: Literal["hub", "spoke"] = "spoke"
    growth_per_year: float | None = None
    namespaces: tuple[str, ...] = ()
    interfaces: Whole = 0
    addresses_per_interface: Whole = 0
    connections_per_pod: Positive = 1000


class PreviousRange(Strict):
    """A range of an earlier plan. It is kept.

    Attributes:
        grows_to: free room around it.
        node_mask: prefix length of the blocks in a range of pods. It is kept while such a block is large enough.
    """

    cluster: str
    use: Use
    cidr: str
    grows_to: str = ""
    node_mask: Whole = 0


class PlanRequest(Strict):
    """The whole request.

    Attributes:
        supernets: ranges that the plan may use.
        taken: ranges inside or outside of them that the plan must not use.
        pod_network: how packets of pods travel. `native`: pods have addresses of the cloud's network (blocks on NICs).
            `routes`: the network routes each node's block. `overlay`: encapsulated. "" chooses by provider.
        growth_per_year: of nodes, pods and Services.
        years: for how many years of growth the ranges are sized.
        researchers: clients that connect to the hub at the same time.
        mtu: of the nodes' network; 0: the provider's default.
        previous: ranges of the earlier plan.
    """

    provider: Provider
    supernets: tuple[str, ...]
    clusters: tuple[ClusterRequest, ...]
    families: tuple[Family, ...] = (Family.V4,)
    pod_network: PodNetwork | Literal[""] = ""
    encapsulation: Encapsulation | Literal[""] = ""
    taken: tuple[Taken, ...] = ()
    growth_per_year: float = 0.5
    years: Positive = 3
    researchers: Whole = 0
    mtu: Whole = 0
    previous: tuple[PreviousRange, ...] = ()

    @property
    def network(self) -> PodNetwork:
        """How packets of pods travel: as requested, else native in a cloud, and routed on metal."""
        return self.pod_network or ("routes" if self.provider == "metal" else "native")

    @property
    def encapsulated(self) -> Encapsulation:
        """The encapsulation: as requested, else VXLAN for an overlay, and none otherwise."""
        return self.encapsulation or ("vxlan" if self.network == "overlay" else "none")

    def growth(self, cluster: ClusterRequest) -> float:
        """Return the growth per year of a cluster: its own, else that of the request."""
        return self.growth_per_year if cluster.growth_per_year is None else cluster.growth_per_year
