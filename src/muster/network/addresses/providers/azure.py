"""Blocks of addresses on this node's primary network interface, through Azure's resource manager.

A block is an IP configuration with `privateIPAddressPrefixLength` 28: the cloud chooses 16 consecutive addresses of the
subnet. A virtual network has 65,000 single addresses at most; blocks are not limited so (AKS, "static block
allocation").
If the subnet has no free block, single addresses are added instead.

The identity of the machine needs Microsoft.Network/networkInterfaces/read and /write,
Microsoft.Network/virtualNetworks/subnets/join/action, and Microsoft.Compute/virtualMachines/read.

A change is a PUT of the whole interface, so it names the version that it replaces (If-Match). It can take minutes: the
cloud answers with an operation to poll.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from muster.network.addresses.block import Block, Family
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers import metadata
from muster.network.addresses.providers.base import Added, ProviderError

PREFIX: Final = "muster-"
"""Begins the names of IP configurations that this provider made. Others are left alone."""
BLOCK_BITS: Final = 28
CONFIGURATIONS_MAX: Final = 256
"""IP configurations of an interface (Azure, "Networking limits")."""
TIMEOUT_S: Final = 30.0
_OPERATION_S: Final = 180.0
_POLL_S: Final = 2.0
_TOKEN_SLACK_S: Final = 300.0
_NETWORK_API: Final = "2024-05-01"
_COMPUTE_API: Final = "2024-07-01"
_FRAGMENTED_S: Final = 600.0
_BLOCK_ADDRESSES: Final = 16
_CHANGES_MAX: Final = 3

_MANAGEMENT: Final[Mapping[str, str]] = {
    "AzurePublicCloud": "https://management.azure.com",
    "AzureUSGovernmentCloud": "https://management.usgovcloudapi.net",
    "AzureChinaCloud": "https://management.chinacloudapi.cn",
}
_CODES: Final[Mapping[str, Reason]] = {
    "SubnetIsFull": Reason.SUBNET_FULL,
    "AuthorizationFailed": Reason.DENIED,
    "LinkedAuthorizationFailed": Reason.DENIED,
    "AnotherOperationInProgress": Reason.THROTTLED,
    "RetryableError": Reason.THROTTLED,
}

Json = dict[str, Any]


class Machine(NamedTuple):
    """This node: the management address of its cloud, and the resource ID of its interface."""

    management: str
    interface: str


class _Changed(Exception):
    """Another client changed the interface in the meantime."""


class AzureBlocks:
    """IPv4 addresses of the primary network interface of a virtual machine, also of a flexible scale set.

    Args:
        metadata_address: where the instance metadata service is.
        management: the address of the resource manager; empty: that of the machine's cloud.
        operation_s: how long a change may take.
    """

    confirm_s = 60.0

    def __init__(
        self,
        *,
        metadata_address: str = metadata.ADDRESS,
        management: str = "",
        operation_s: float = _OPERATION_S,
    ) -> None:
        self._metadata = metadata_address
        self._management = management
        self._operation_s = operation_s
        self._session: aiohttp.ClientSession | None = None
        self._machine: Machine | None = None
        self._token = ""
        self._token_until_s = 0.0
        self._fragmented_until_s = float("-inf")

    @property
    def notice(self) -> str:
        """Text about a state that an operator should change although pods get addresses; empty if there is none."""
        if time.monotonic() >= self._fragmented_until_s:
            return ""
        return "the subnet has no free block of 16 addresses, so single ones are used: use another or a larger subnet"

    async def look(self, known: Sequence[Block]) -> list[Block]:
        """Return the blocks of the interface that Muster added."""
        return _blocks(await self._interface())

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        """Add IP configurations. The change of all of them is one request."""
        if family is not Family.IPV4:
            return Added((), ProviderError(Reason.MISCONFIGURED, "provider azure has no blocks of IPv6"))
        try:
            if time.monotonic() >= self._fragmented_until_s:
                try:
                    return await self._add(-(-count // _BLOCK_ADDRESSES), BLOCK_BITS)
                except ProviderError as error:
                    if error.reason is not Reason.SUBNET_FULL:
                        raise
            added = await self._add(min(count, _BLOCK_ADDRESSES), 0)
            self._fragmented_until_s = max(self._fragmented_until_s, time.monotonic() + _FRAGMENTED_S)
            return added
        except ProviderError as error:
            return Added((), error)

    async def give_back(self, block: Block) -> None:
        """Remove the IP configuration of a block."""

        def without(interface: Json) -> bool:
            before = _configurations(interface)
            kept = [each for each in before if not (_is_ours(each) and _cidr(each) == block.cidr)]
            interface["properties"]["ipConfigurations"] = kept
            return len(kept) < len(before)

        await self._change(without)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _add(self, number: int, bits: int) -> Added:
        names: list[str] = []
        room = CONFIGURATIONS_MAX

        def more(interface: Json) -> bool:
            nonlocal room
            names.clear()
            held = _configurations(interface)
            room = CONFIGURATIONS_MAX - len(held)
            primary = next(each for each in held if each["properties"].get("primary"))
            names.extend(f"{PREFIX}{secrets.token_hex(6)}" for _ in range(min(number, room)))
            held.extend(_configuration(name, bits, primary["properties"]["subnet"]["id"]) for name in names)
            return bool(names)

        interface = await self._change(more)
        given = [each for each in _configurations(interface) if each["name"] in names]
        short = None
        if number > room:
            message = f"the interface has {CONFIGURATIONS_MAX} IP configurations, the most that Azure allows"
            short = ProviderError(Reason.NODE_LIMIT, message)
        return Added(tuple(_block(each) for each in given if _cidr(each)), short)

    async def _change(self, edit: Any) -> Json:
        """Read the interface, edit it, and write it unless `edit` returns False. Returns it as it is then."""
        for _ in range(_CHANGES_MAX):
            interface = await self._interface()
            if not edit(interface):
                return interface
            try:
                await self._put(interface)
            except _Changed:
                continue
            return await self._interface()
        raise ProviderError(Reason.THROTTLED, "other clients change the network interface at the same time")

    async def _interface(self) -> Json:
        machine = await self._where()
        answer, _ = await self._request("GET", f"{machine.management}{machine.interface}?api-version={_NETWORK_API}")
        if not isinstance(answer.get("properties", {}).get("ipConfigurations"), list):
            raise ProviderError(Reason.UNREACHABLE, f"{machine.interface}: the answer is not a network interface")
        return answer

    async def _put(self, interface: Json) -> None:
        machine = await self._where()
        url = f"{machine.management}{machine.interface}?api-version={_NETWORK_API}"
        headers = {"If-Match": interface["etag"]} if interface.get("etag") else {}
        _, answer_headers = await self._request("PUT", url, interface, headers)
        operation = answer_headers.get("Azure-AsyncOperation", "")
        deadline_s = time.monotonic() + self._operation_s
        while operation:
            wait_s = _seconds(answer_headers.get("Retry-After", ""), _POLL_S)
            if time.monotonic() + wait_s > deadline_s:
                message = f"the change of the network interface takes longer than {self._operation_s:g} s"
                raise ProviderError(Reason.UNREACHABLE, message)
            await asyncio.sleep(wait_s)
            answer, answer_headers = await self._request("GET", operation)
            status = answer.get("status", "")
            if status == "Succeeded":
                return
            if status in ("Failed", "Canceled"):
                raise _refusal(answer.get("error") or {}, f"the change ended as {status}")

    async def _request(
        self, method: str, url: str, body: Json | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Json, Mapping[str, str]]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        sent = {"Authorization": f"Bearer {await self._bearer()}", **(headers or {})}
        try:
            async with self._session.request(method, url, json=body, headers=sent) as answer:
                text = await answer.read()
                received = answer.headers.copy()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            message = f"{method} {url.partition('?')[0]}: {str(error) or type(error).__name__}"
            raise ProviderError(Reason.UNREACHABLE, message) from None
        parsed = _parsed(text)
        if status == 412:
            raise _Changed
        if status == 401:
            self._token_until_s = 0.0
        if status >= 400:
            refusal = _refusal(parsed.get("error") or {}, f"HTTP {status}")
            wait_s = _seconds(received.get("Retry-After", ""), 0.0)
            known = refusal.reason is not Reason.UNREACHABLE
            reason = refusal.reason if known else _BY_STATUS.get(status, Reason.UNREACHABLE)
            raise ProviderError(reason, f"{method} {url.partition('?')[0]}: {refusal.message}", wait_s)
        return parsed, received

    async def _bearer(self) -> str:
        if time.time() >= self._token_until_s:
            machine = await self._where()
            query = f"api-version=2018-02-01&resource={machine.management}/"
            url = f"{self._metadata}/metadata/identity/oauth2/token?{query}"
            answer = _parsed(await asyncio.to_thread(metadata.fetch, url, {"Metadata": "true"}))
            try:
                self._token, self._token_until_s = answer["access_token"], int(answer["expires_on"]) - _TOKEN_SLACK_S
            except (KeyError, ValueError):
                message = "the metadata service gave no token: assign an identity to the machine"
                raise ProviderError(Reason.DENIED, message) from None
        return self._token

    async def _where(self) -> Machine:
        if self._machine is None:
            url = f"{self._metadata}/metadata/instance/compute?api-version=2021-02-01"
            compute = _parsed(await asyncio.to_thread(metadata.fetch, url, {"Metadata": "true"}))
            management = self._management or _MANAGEMENT.get(compute.get("azEnvironment", ""), "")
            resource = compute.get("resourceId", "")
            if not management or not resource:
                raise ProviderError(Reason.MISCONFIGURED, "the metadata service does not say which machine this is")
            if "/virtualMachineScaleSets/" in resource:
                message = (
                    "machines of a uniform scale set have no network interfaces of their own to change: "
                    "use a flexible scale set, or provider static"
                )
                raise ProviderError(Reason.MISCONFIGURED, message)
            self._machine = Machine(management, "")
            try:
                machine, _ = await self._request("GET", f"{management}{resource}?api-version={_COMPUTE_API}")
                interfaces = machine["properties"]["networkProfile"]["networkInterfaces"]
            except (KeyError, ProviderError) as error:
                self._machine = None
                if isinstance(error, ProviderError):
                    raise
                raise ProviderError(Reason.UNREACHABLE, f"{resource}: the answer is not a machine") from None
            primary = [each for each in interfaces if each.get("properties", {}).get("primary", len(interfaces) == 1)]
            self._machine = Machine(management, (primary or interfaces)[0]["id"])
        return self._machine


_BY_STATUS: Final[Mapping[int, Reason]] = {
    401: Reason.DENIED,
    403: Reason.DENIED,
    404: Reason.MISCONFIGURED,
    409: Reason.THROTTLED,
    429: Reason.THROTTLED,
}


def _configurations(interface: Json) -> list[Json]:
    found: list[Json] = interface["properties"]["ipConfigurations"]
    return found


def _configuration(name: str, bits: int, subnet: str) -> Json:
    properties: Json = {
        "primary": False,
        "privateIPAllocationMethod": "Dynamic",
        "privateIPAddressVersion": "IPv4",
        "subnet": {"id": subnet},
    }
    if bits:
        properties["privateIPAddressPrefixLength"] = bits
    return {"name": name, "properties": properties}


def _is_ours(configuration: Json) -> bool:
    properties = configuration["properties"]
    return str(configuration["name"]).startswith(PREFIX) and not properties.get("primary")


def _cidr(configuration: Json) -> str:
    """The addresses of an IP configuration; empty while they are being chosen."""
    text = configuration["properties"].get("privateIPAddress", "")
    try:
        return str(ipaddress.ip_network(text, strict=False)) if text else ""
    except ValueError:
        return ""


def _block(configuration: Json) -> Block:
    return Block(cidr=_cidr(configuration), source=configuration["name"])


def _blocks(interface: Json) -> list[Block]:
    return [_block(each) for each in _configurations(interface) if _is_ours(each) and _cidr(each)]


def _refusal(error: Json, default: str) -> ProviderError:
    code, message = error.get("code", ""), error.get("message", "")
    reason = _CODES.get(code, Reason.UNREACHABLE)
    return ProviderError(reason, f"{code}: {message}" if code else default)


def _parsed(text: bytes) -> Json:
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(text: str, default: float) -> float:
    return float(text) if text.isdigit() else default
