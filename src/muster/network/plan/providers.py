"""Limits of clouds that an address plan can reach.

Sources:
    AWS: Amazon VPC User Guide, "Amazon VPC quotas" and "Network Address Usage"; VPC Peering Guide, "Quotas"; Amazon EC2
    User Guide, "Prefix delegation". In 2026 it lists 500 routes for each table and family, adjustable to 1,000; it was
    50 before.
    Azure: "Azure subscription and service limits" (networking). A /28 block that is assigned to a NIC counts as one
    address (Microsoft.ContainerService, PodIPAllocationMode.StaticBlock). Azure Virtual Network Manager, "Limitations":
    1,000 peerings and 1,000 routes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.network.plan.request import Provider


class Limit(NamedTuple):
    """A limit.

    Attributes:
        usual: without a request to the provider.
        most: that the provider grants; equal to `usual` if it is fixed.
        raise_by: how it is raised; "" if it is fixed.
    """

    usual: int
    most: int
    raise_by: str = ""


class Limits(NamedTuple):
    """The limits of one provider.

    Attributes:
        addresses: of one virtual network, a block counting as one.
        peered_addresses: of a virtual network and all that are peered with it.
        peerings: of one virtual network.
        routes: of one route table, one family.
        cidrs: IPv4 ranges of one virtual network; None: no limit that matters.
        largest_cidr, smallest_cidr: prefix lengths of one IPv4 range.
        addresses_per_node: of one NIC or machine; None: by instance type.
    """

    source: str
    addresses: Limit
    peered_addresses: Limit
    peerings: Limit
    routes: Limit
    cidrs: Limit | None
    largest_cidr: int
    smallest_cidr: int
    addresses_per_node: int | None


_QUOTA: Final = "raise the quota (Service Quotas)"
_MANAGER: Final = "use Azure Virtual Network Manager"

LIMITS: Final[dict[Provider, Limits]] = {
    "aws": Limits(
        source="Amazon VPC User Guide, Amazon VPC quotas",
        addresses=Limit(64_000, 256_000, _QUOTA),
        peered_addresses=Limit(128_000, 512_000, _QUOTA),
        peerings=Limit(50, 125, _QUOTA),
        routes=Limit(500, 1000, _QUOTA),
        cidrs=Limit(5, 50, _QUOTA),
        largest_cidr=16,
        smallest_cidr=28,
        addresses_per_node=None,
    ),
    "azure": Limits(
        source="Azure subscription and service limits, networking",
        addresses=Limit(65_536, 65_536),
        peered_addresses=Limit(128_000, 128_000),
        peerings=Limit(500, 1000, _MANAGER),
        routes=Limit(400, 1000, _MANAGER),
        cidrs=None,
        largest_cidr=2,
        smallest_cidr=29,
        addresses_per_node=256,
    ),
}
