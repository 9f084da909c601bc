"""Blocks of an Azure network interface, against a server that speaks ARM's REST API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from muster.network.addresses.block import Family
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.azure import AzureBlocks
from muster.network.addresses.providers.base import ProviderError
from tests.support.azurenetwork import GROUP, AzureNetwork, azure_network


@pytest.fixture
def cloud() -> Iterator[AzureNetwork]:
    with azure_network() as server:
        yield server


@pytest.fixture
async def blocks(cloud: AzureNetwork) -> AsyncIterator[AzureBlocks]:
    provider = AzureBlocks(metadata_address=cloud.address, management=cloud.address)
    yield provider
    await provider.close()


async def test_blocks_are_added_in_one_change_listed_and_given_back(cloud: AzureNetwork, blocks: AzureBlocks) -> None:
    added = (await blocks.add(Family.IPV4, 20, ())).blocks
    assert [block.cidr for block in added] == cloud.blocks() == ["10.1.0.16/28", "10.1.0.32/28"]
    assert [method for method, _ in cloud.calls].count("PUT") == 1
    assert await blocks.look(()) == list(added)
    await blocks.give_back(added[0])
    await blocks.give_back(added[0])
    assert cloud.blocks() == ["10.1.0.32/28"]
    assert cloud.configurations[1]["name"] == "of-the-operator"


async def test_operation_that_fails_gives_its_reason_and_changes_nothing(
    cloud: AzureNetwork, blocks: AzureBlocks
) -> None:
    cloud.fail_operations = "LinkedAuthorizationFailed"
    added = await blocks.add(Family.IPV4, 16, ())
    assert added.short is not None
    assert added.short.reason is Reason.DENIED
    assert "subnet pods cannot do this" in added.short.message
    assert cloud.blocks() == []


async def test_operation_that_takes_too_long_is_found_by_the_next_view(cloud: AzureNetwork) -> None:
    cloud.polls = 10**6
    provider = AzureBlocks(metadata_address=cloud.address, management=cloud.address, operation_s=0.2)
    added = await provider.add(Family.IPV4, 16, ())
    assert added.short is not None
    assert "takes longer than" in added.short.message
    assert [block.cidr for block in await provider.look(())] == cloud.blocks() == ["10.1.0.16/28"]
    await provider.close()


async def test_fragmented_subnet_gives_single_addresses_and_a_notice(cloud: AzureNetwork, blocks: AzureBlocks) -> None:
    cloud.taken |= {str(each[5]) for each in cloud.subnet.subnets(new_prefix=28)}
    added = await blocks.add(Family.IPV4, 2, ())
    assert [block.cidr for block in added.blocks] == ["10.1.0.6/32", "10.1.0.7/32"]
    assert "single ones are used" in blocks.notice
    await blocks.give_back(added.blocks[0])
    assert cloud.blocks() == ["10.1.0.7"]


async def test_full_subnet_is_named(cloud: AzureNetwork, blocks: AzureBlocks) -> None:
    cloud.taken |= {str(each) for each in cloud.subnet}
    added = await blocks.add(Family.IPV4, 1, ())
    assert added.short is not None
    assert added.short.reason is Reason.SUBNET_FULL


@pytest.mark.parametrize(
    ("status", "code", "wait", "reason"),
    [
        (429, "TooManyRequests", "17", Reason.THROTTLED),
        (409, "AnotherOperationInProgress", "", Reason.THROTTLED),
        (403, "AuthorizationFailed", "", Reason.DENIED),
        (404, "ResourceNotFound", "", Reason.MISCONFIGURED),
        (503, "ServiceUnavailable", "", Reason.UNREACHABLE),
    ],
)
async def test_refusals_have_their_reason_and_the_wait_that_was_asked_for(
    cloud: AzureNetwork, blocks: AzureBlocks, status: int, code: str, wait: str, reason: Reason
) -> None:
    await blocks.look(())
    cloud.refuse = [(status, code, wait)]
    with pytest.raises(ProviderError, match=code) as refused:
        await blocks.look(())
    assert refused.value.reason is reason
    assert refused.value.wait_s == (17.0 if wait else 0.0)


async def test_change_of_another_client_in_between_is_kept(cloud: AzureNetwork, blocks: AzureBlocks) -> None:
    def race() -> None:
        cloud.configurations.append(
            {"name": "late", "properties": {"privateIPAddress": "10.1.0.99", "primary": False, "subnet": {"id": "s"}}}
        )
        cloud.version += 1

    await blocks.look(())
    cloud.race = race
    added = await blocks.add(Family.IPV4, 16, ())
    assert len(added.blocks) == 1
    assert "late" in [each["name"] for each in cloud.configurations]
    assert [method for method, _ in cloud.calls].count("PUT") == 2


async def test_token_is_read_once_and_again_before_it_expires(cloud: AzureNetwork, blocks: AzureBlocks) -> None:
    await blocks.look(())
    await blocks.look(())
    assert cloud.tokens == 1
    cloud.token_lives_s = 10
    cloud.tokens += 1  # the server accepts the first one no more
    with pytest.raises(ProviderError, match="ExpiredAuthenticationToken") as refused:
        await blocks.look(())
    assert refused.value.reason is Reason.DENIED
    await blocks.look(())
    before = cloud.tokens
    await blocks.look(())
    assert cloud.tokens > before


async def test_uniform_scale_set_is_refused_with_what_to_do(cloud: AzureNetwork, blocks: AzureBlocks) -> None:
    cloud.resource = f"{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/set/virtualMachines/3"
    with pytest.raises(ProviderError, match="use a flexible scale set") as refused:
        await blocks.look(())
    assert refused.value.reason is Reason.MISCONFIGURED


async def test_ipv6_is_refused(blocks: AzureBlocks) -> None:
    added = await blocks.add(Family.IPV6, 1, ())
    assert added.short is not None
    assert added.short.reason is Reason.MISCONFIGURED
