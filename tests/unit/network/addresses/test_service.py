"""The addresses in the network agent: start, page, metrics, and `muster network leaks` on what the agent serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from muster.cli.network.leaks import command
from muster.kube.client import Client
from muster.kube.health import serve
from muster.kube.progress import Progress
from muster.network.addresses import service as service_module
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.block import Block, Family
from muster.network.addresses.bootclock import BootClock
from muster.network.addresses.config import AddressesConfig, problems
from muster.network.addresses.errors import Reason
from muster.network.addresses.providers.base import Added, ProviderError
from muster.network.addresses.reconcile.snapshot import KernelView
from muster.network.addresses.service import FOLDER, AddressService, make_addresses
from muster.network.addresses.targets import Targets
from muster.network.agent.part import HostPaths, PartSetup
from muster.network.localpods.pod import LocalPods
from tests.support.waiting import until


class OneBlock:
    """A provider with one block."""

    confirm_s = 0.0
    notice = ""

    def __init__(self) -> None:
        self.closed = False

    async def look(self, known: Sequence[Block]) -> list[Block]:
        return [Block(cidr="10.0.0.0/29")]

    async def add(self, family: Family, count: int, known: Sequence[Block]) -> Added:
        return Added((), ProviderError(Reason.SUBNET_FULL, "no more; add a pool"))

    async def give_back(self, block: Block) -> None:
        raise AssertionError

    async def close(self) -> None:
        self.closed = True


@contextlib.contextmanager
def exclusive(key: AttachmentKey) -> Iterator[None]:
    yield


class Agent:
    def __init__(self, folder: Path, **config: Any) -> None:
        self.pages: dict[str, Callable[[], bytes]] = {}
        self.registry = CollectorRegistry()
        self.setup = PartSetup(
            node="node-1",
            node_uid=lambda: "uid",
            paths=HostPaths(state=folder / "state", run=folder / "run"),
            pods=cast(LocalPods, None),
            client=cast(Client, None),
            namespace="muster-system",
            progress=Progress(),
            registry=self.registry,
            publish=self.pages.__setitem__,
        )
        self.provider = OneBlock()
        settings = {"targets": Targets(warm=2, minimum=4), "runtime_socket": str(folder / "cri.sock")} | config
        self.service = AddressService(self.setup, AddressesConfig(**settings), self.provider)

    def page(self) -> dict[str, Any]:
        return dict(json.loads(self.pages["addresses"]()))


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.setattr(service_module, "look_at_kernel", lambda: KernelView({}))  # this machine may use the addresses
    return Agent(tmp_path)


async def test_store_fills_and_ends_with_the_agent(agent: Agent) -> None:
    addresses = await agent.service.start()
    running = asyncio.create_task(agent.service.run(exclusive))
    await until("the pool is warm", lambda: addresses.status().free == 8)
    addresses.reserve(AttachmentKey("a", "eth0"), PodRef("n", "p", "u"), "")
    await until("the runtime was asked", lambda: agent.page()["blind"] == ["runtime"])
    page = agent.page()
    assert page["node"] == "node-1"
    assert page["status"]["families"]["IPv4"]["assigned"] == 1
    assert agent.registry.get_sample_value("muster_network_addresses", {"family": "IPv4", "state": "free"}) == 7
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert agent.provider.closed
    again = Addresses(agent.setup.paths.state / FOLDER, BootClock())
    assert len(again.all()) == 1
    again.close()


async def test_start_waits_for_the_agent_before_it(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_AGAIN_S", 0.05)
    older = Addresses(agent.setup.paths.state / FOLDER, BootClock())
    starting = asyncio.create_task(agent.service.start())
    await until("it waits", lambda: "another agent uses" in agent.page()["problem"])
    assert not starting.done()
    assert agent.page().get("status") is None
    older.close()
    opened = await starting
    assert agent.page()["problem"] == ""
    opened.close()


async def test_damaged_store_is_reported_and_ends_nothing(agent: Agent) -> None:
    folder = agent.setup.paths.state / FOLDER
    folder.mkdir(parents=True)
    (folder / "journal").write_bytes(b"something else")
    starting = asyncio.create_task(agent.service.start())
    await until("it reports", lambda: "is not a journal" in agent.page()["problem"])
    starting.cancel()


async def test_addresses_that_the_kernel_uses_are_held_before_the_first_add_amazon_vpc_cni_k8s_711(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = KernelView({AttachmentKey("x", "eth0"): frozenset({"10.0.0.0"})}, frozenset({"10.0.0.1"}))
    monkeypatch.setattr(service_module, "look_at_kernel", lambda: view)
    addresses = await agent.service.start()
    addresses.put_block(Block(cidr="10.0.0.0/29"))
    given = addresses.reserve(AttachmentKey("a", "eth0"), PodRef(), "").addresses[0].ip
    assert given == "10.0.0.2"
    addresses.close()


@contextlib.asynccontextmanager
async def served(pages: dict[str, Callable[[], bytes]]) -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=pages[request.match_info["page"]](), content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/{page}", page)
    async with serve(app, "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"


async def leaks(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, command, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    return int(result.return_value), result.output


async def test_leaks_shows_nodes_that_run_out_and_views_that_are_missing(agent: Agent) -> None:
    addresses = await agent.service.start()
    running = asyncio.create_task(agent.service.run(exclusive))
    await until("the pool is warm", lambda: addresses.status().free == 8)
    for number in range(8):
        addresses.reserve(AttachmentKey(f"s{number}", "eth0"), PodRef("n", f"p{number}", f"u{number}"), "")
    await until("the provider refused", lambda: addresses.status().reason is Reason.SUBNET_FULL)
    await until("the runtime was asked", lambda: agent.page()["blind"])
    async with served(agent.pages) as url:
        code, text = await leaks("--url", url)
        assert code == 1
        assert "node-1: 0 free addresses: no more; add a pool" in text
        assert "node-1: no answer of the runtime, so no address is freed" in text
        code, text = await leaks("--url", url, "-o", "json")
        found = json.loads(text)
        assert found["nodes"][0]["status"]["reason"] == "SubnetFull"
        assert {each["node"] for each in found["problems"]} == {"node-1"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    code, text = await leaks("--url", url)
    assert code == 1
    assert url in text


async def test_leaks_lists_findings_of_blocks_and_interfaces(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    view = KernelView({AttachmentKey("0123456789abcdef", "eth0"): frozenset({"10.0.0.3"})})
    monkeypatch.setattr(service_module, "look_at_kernel", lambda: view)

    async def runtime(socket: Path) -> dict[str, object]:
        return {"other": object()}

    monkeypatch.setattr(service_module, "look_at_runtime", runtime)
    await agent.service.start()
    running = asyncio.create_task(agent.service.run(exclusive))
    await until("it compared", lambda: agent.page()["findings"])
    async with served(agent.pages) as url:
        code, text = await leaks("--url", url)
    assert code == 1
    assert "Unrecorded" in text
    assert "10.0.0.3" in text
    assert "0123456789abc" in text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_leaks_of_a_node_without_problems_ends_with_success() -> None:
    page = {"node": "n", "status": None}
    async with served({"addresses": lambda: json.dumps(page).encode()}) as url:
        assert await leaks("--url", url) == (0, "no leaked addresses on 1 node\n")
    async with served({"addresses": lambda: b"[]"}) as url:
        code, text = await leaks("--url", url)
    assert code == 1
    assert "is not a page of addresses" in text


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"families": ()}, "$.families"),
        ({"families": (Family.IPV4, Family.IPV4)}, "$.families"),
        ({"provider": "azure", "families": (Family.IPV4, Family.IPV6)}, "$.families"),
        ({"cooldown_s": -1.0}, "$.cooldownSeconds"),
        ({"targets": Targets(warm=300)}, "$.targets.warm"),
        ({"targets": Targets(minimum=300)}, "$.targets.minimum"),
        ({"runtime_socket": "cri.sock"}, "$.runtimeSocket"),
    ],
)
def test_impossible_settings_are_named(config: dict[str, Any], path: str) -> None:
    assert path in [where for where, _ in problems(AddressesConfig(**config))]
    assert list(problems(AddressesConfig())) == []


@pytest.mark.parametrize("provider", ["static", "aws", "azure"])
async def test_each_provider_can_be_made(tmp_path: Path, provider: str) -> None:
    agent = Agent(tmp_path)
    setup = PartSetup(**{**vars(agent.setup), "registry": CollectorRegistry()})
    made = make_addresses(setup, AddressesConfig(provider=provider))  # type: ignore[arg-type]
    await made._provider.close()


def test_lock_is_not_inherited_by_programs(tmp_path: Path) -> None:
    store = Addresses(tmp_path, BootClock())
    assert not any(os.get_inheritable(int(each)) for each in os.listdir("/proc/self/fd") if _is_in(each, tmp_path))
    store.close()


def _is_in(descriptor: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    except OSError:
        return False
