"""Prefixes and secondary addresses of this node's primary network interface, through EC2's API.

A prefix is a /28 (IPv4) or a /80 (IPv6). How many an interface can have depends on the instance type. If the subnet has
no free /28 because single addresses are scattered over it, secondary addresses are assigned instead
(amazon-vpc-cni-k8s#2749; cilium#31016 for the two codes that mean this).

Rights: ec2:DescribeNetworkInterfaces, ec2:DescribeInstanceTypes, ec2:AssignPrivateIpAddresses,
ec2:UnassignPrivateIpAddresses, and for IPv6 ec2:AssignIpv6Addresses and ec2:UnassignIpv6Addresses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.kube.connection.awscalls import AwsCalls, AwsError, AwsFailure
from muster.network.addresses.block import Block, Family
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers import metadata
from muster.network.addresses.providers.base import Added, ProviderError

_PREFIX_ADDRESSES: Final = 16
_FRAGMENTED_S: Final = 600.0
"""After a refusal, prefixes are not tried again for this long."""
_TOKEN_TTL_S: Final = "60"

_REASONS: Final[Mapping[AwsFailure, Reason]] = {
    AwsFailure.THROTTLED: Reason.THROTTLED,
    AwsFailure.DENIED: Reason.DENIED,
    AwsFailure.MISCONFIGURED: Reason.MISCONFIGURED,
}
# Amazon EC2 API Reference, "Error codes".
_CODES: Final[Mapping[str, Reason]] = {
    "InsufficientCidrBlocks": Reason.FRAGMENTED,
    "InsufficientFreeAddressesInSubnet": Reason.SUBNET_FULL,
    "PrivateIpAddressLimitExceeded": Reason.NODE_LIMIT,
    "InvalidNetworkInterfaceID.NotFound": Reason.MISCONFIGURED,
    "InvalidInstanceType": Reason.MISCONFIGURED,
}
_NO_ROOM: Final = "sufficient free Ipv4 addresses or prefixes"  # code InvalidParameterValue
_NOT_ASSIGNED: Final = "not assigned"


class Machine(NamedTuple):
    """This node, as its metadata says."""

    interface: str
    instance_type: str
    region: str


class AwsBlocks:
    """Addresses of the primary network interface.

    Args:
        calls: EC2's API. `close` closes it.
        metadata_address: where the instance metadata service is.
        now: seconds of a clock that does not jump.
    """

    confirm_s = 60.0  # Amazon EC2 API Reference, "Eventual consistency"

    def __init__(
        self,
        calls: AwsCalls,
        *,
        metadata_address: str = metadata.ADDRESS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata_address
        self._now = now
        self._calls = calls
        self._machine: Machine | None = None
        self._slots: dict[Family, int] = {}
        self._fragmented_until_s = float("-inf")

    @property
    def notice(self) -> str:
        """Text about a state that an operator should change although pods get addresses; empty if there is none."""
        if self._now() >= self._fragmented_until_s:
            return ""
        return (
            "the subnet has no free /28, so secondary addresses are used, 16 times fewer for each slot: "
            "reserve a range for prefixes (create-subnet-cidr-reservation), or use another subnet"
        )

    async def look(self, known: Sequence[Block]) -> list[Block]:
        """Return the prefixes and the secondary addresses of the interface."""
        machine = await self._where()
        answer = await self._call("describe_network_interfaces", NetworkInterfaceIds=[machine.interface])
        found = answer["NetworkInterfaces"]
        if not found:
            raise ProviderError(Reason.MISCONFIGURED, f"EC2 does not know the interface {machine.interface}")
        interface = found[0]
        prefixes = [each["Ipv4Prefix"] for each in interface.get("Ipv4Prefixes", ())]
        prefixes += [each["Ipv6Prefix"] for each in interface.get("Ipv6Prefixes", ())]
        single = [each for each in interface.get("PrivateIpAddresses", ()) if not each.get("Primary")]
        prefixes += [f"{each['PrivateIpAddress']}/32" for each in single]
        return [Block(cidr=cidr, source=machine.interface) for cidr in prefixes]

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        """Assign prefixes, or secondary addresses if the subnet is fragmented."""
        machine = await self._where()
        room = await self._room(family, known)
        if room <= 0:
            return Added((), self._at_limit(machine))
        try:
            if family is Family.IPV6:
                answer = await self._assign(machine, "assign_ipv6_addresses", Ipv6PrefixCount=1)
                return Added(_blocks(machine, answer["AssignedIpv6Prefixes"]))
            return await self._add_ipv4(machine, count, room)
        except ProviderError as error:
            return Added((), error)

    async def give_back(self, block: Block) -> None:
        """Unassign a prefix or an address."""
        machine = await self._where()
        address = str(block.network.network_address)
        try:
            if block.family is Family.IPV6:
                await self._assign(machine, "unassign_ipv6_addresses", Ipv6Prefixes=[block.cidr])
            elif block.network.num_addresses > 1:
                await self._assign(machine, "unassign_private_ip_addresses", Ipv4Prefixes=[block.cidr])
            else:
                await self._assign(machine, "unassign_private_ip_addresses", PrivateIpAddresses=[address])
        except ProviderError as error:
            if _NOT_ASSIGNED not in error.message:
                raise

    async def close(self) -> None:
        """Release the threads. Those that still wait for an answer end by themselves."""
        self._calls.close()

    async def _add_ipv4(self, machine: Machine, count: int, room: int) -> Added:
        wanted = min(-(-count // _PREFIX_ADDRESSES), room)
        tries = (wanted, 1) if wanted > 1 else (1,)
        for prefixes in tries if self._now() >= self._fragmented_until_s else ():
            try:
                answer = await self._assign(machine, "assign_private_ip_addresses", Ipv4PrefixCount=prefixes)
            except ProviderError as error:
                if error.reason not in (Reason.FRAGMENTED, Reason.SUBNET_FULL):
                    raise
                continue
            blocks = _blocks(machine, [each["Ipv4Prefix"] for each in answer["AssignedIpv4Prefixes"]])
            if prefixes * _PREFIX_ADDRESSES < count and prefixes == room:
                return Added(blocks, self._at_limit(machine))
            return Added(blocks)
        self._fragmented_until_s = max(self._fragmented_until_s, self._now() + _FRAGMENTED_S)
        addresses = min(count, room)
        answer = await self._assign(machine, "assign_private_ip_addresses", SecondaryPrivateIpAddressCount=addresses)
        given = [f"{each['PrivateIpAddress']}/32" for each in answer["AssignedPrivateIpAddresses"]]
        return Added(_blocks(machine, given), self._at_limit(machine) if addresses < count else None)

    async def _room(self, family: Family, known: Sequence[Block]) -> int:
        """How many more prefixes or addresses the interface can have; each takes one slot, as the primary address."""
        if not self._slots:
            machine = await self._where()
            answer = await self._call("describe_instance_types", InstanceTypes=[machine.instance_type])
            limits = answer["InstanceTypes"][0]["NetworkInfo"]
            self._slots = {
                Family.IPV4: limits["Ipv4AddressesPerInterface"] - 1,
                Family.IPV6: limits.get("Ipv6AddressesPerInterface", 0),
            }
        return self._slots[family] - sum(1 for block in known if block.family is family)

    def _at_limit(self, machine: Machine) -> ProviderError:
        slots = self._slots[Family.IPV4]
        message = f"an interface of {machine.instance_type} has {slots} slots, and all are used: use a larger type"
        return ProviderError(Reason.NODE_LIMIT, message)

    async def _where(self) -> Machine:
        if self._machine is None:
            self._machine = await asyncio.to_thread(_machine, self._metadata)
        return self._machine

    async def _assign(self, machine: Machine, operation: str, **arguments: Any) -> Any:
        return await self._call(operation, NetworkInterfaceId=machine.interface, **arguments)

    async def _call(self, operation: str, **arguments: Any) -> Any:
        machine = await self._where()
        try:
            return await self._calls.call(machine.region, operation, **arguments)
        except AwsError as error:
            if _NO_ROOM in error.message:
                reason = Reason.SUBNET_FULL
            else:
                reason = _REASONS.get(error.failure) or _CODES.get(error.code, Reason.UNREACHABLE)
            raise ProviderError(reason, error.message) from None


def _blocks(machine: Machine, cidrs: Sequence[Any]) -> tuple[Block, ...]:
    return tuple(Block(cidr=cidr, source=machine.interface) for cidr in cidrs)


def _machine(address: str) -> Machine:
    """Return which machine this is. IMDSv2 asks for a token first, so that no proxy forwards such requests."""
    token = metadata.fetch(
        f"{address}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_TTL_S}, "PUT"
    ).decode()

    def read(path: str) -> str:
        url = f"{address}/latest/meta-data/{path}"
        return metadata.fetch(url, {"X-aws-ec2-metadata-token": token}).decode().strip()

    interface = read(f"network/interfaces/macs/{read('mac')}/interface-id")
    return Machine(interface, read("instance-type"), read("placement/region"))
