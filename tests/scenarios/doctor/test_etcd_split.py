"""Events in an etcd of their own: the printed flags and steps, with two etcds and a real kube-apiserver."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, ServerTimeout
from muster.kube.objects.core import ConfigMap, Event, ObjectReference
from muster.kube.objects.meta import ObjectMeta
from tests.support.etcdctl import run_printed
from tests.support.musterprogram import MUSTER, Muster
from tests.support.waiting import until
from tests.support.wrappedprogram import WrappedProgram

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]


@dataclasses.dataclass
class TwoEtcds:
    """A control plane, and a second etcd beside its own."""

    plane: ControlPlane
    program: WrappedProgram
    folder: Path
    port: int = dataclasses.field(default_factory=free_port)
    second: Child | None = None

    @property
    def urls(self) -> dict[str, str]:
        words = self.plane.command("etcd")
        main = next(word.partition("=")[2] for word in words if word.startswith("--listen-client-urls="))
        return {"MAIN": main, "EVENTS": f"https://127.0.0.1:{self.port}"}

    def start_second(self) -> None:
        """Start it with the flags of the first one, but with its own data and ports."""
        client, peer = self.urls["EVENTS"], f"https://127.0.0.1:{free_port((self.port,))}"
        own = [
            "--name=events",
            f"--data-dir={self.folder / 'events'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=events={peer}",
        ]
        self.second = Child([*self.plane.command("etcd"), *own], self.folder / "events.log")

    def stop_second(self) -> None:
        if self.second is not None:
            self.second.stop(grace_s=0)

    def etcdctl(self, *commands: str) -> str:
        return run_printed(commands, self.folder, self.plane.directory, **self.urls)

    def count(self, cluster: str, prefix: str) -> int:
        printed = self.etcdctl(f"etcdctl --endpoints=${cluster} get --prefix {prefix} --count-only --write-out=fields")
        return int(printed.partition(":")[2])


@pytest.fixture(scope="module")
def etcds(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoEtcds]:
    program = WrappedProgram(control_plane_binaries, "kube-apiserver", tmp_path_factory.mktemp("binaries"))
    with ControlPlane(program.folder, controller_manager=False) as plane:
        found = TwoEtcds(plane, program, tmp_path_factory.mktemp("second"))
        try:
            yield found
        finally:
            found.stop_second()


def printed_config(folder: Path, etcds: TwoEtcds) -> dict[str, Any]:
    done = Muster(folder).run(
        "etcd", "config", "--nodes=50", f"--events-etcd={etcds.urls['EVENTS']}", "-o", "json", program=MUSTER
    )
    assert done.returncode == 0, done
    config: dict[str, Any] = json.loads(done.stdout)
    return config


async def write_event(client: Client, name: str) -> None:
    target = ObjectReference(kind="Pod", namespace="default", name="some")
    await client.create(Event(metadata=ObjectMeta(name=name, namespace="default"), involved_object=target))


async def listed(client: Client) -> set[str]:
    return {each.name for each in (await client.list(Event, "default")).items}


async def test_migration_as_printed_moves_events_alone(etcds: TwoEtcds, tmp_path: Path) -> None:
    config = printed_config(tmp_path, etcds)
    start, switch, check, clean, defragment, _ = config["migration"]
    flags = config["kubeApiserver"]["flags"]
    assert switch["commands"][0] in flags
    async with Client(load_config(etcds.plane.kubeconfig)) as client:
        await write_event(client, "old")
    assert etcds.count("MAIN", "/registry/events/") >= 1

    etcds.start_second()
    await until("etcd for Events", lambda: _healthy(etcds, start["commands"]))
    etcds.plane.stop_apiserver()
    etcds.program.set(flags=" ".join(flags))
    etcds.plane.start_apiserver()
    async with Client(load_config(etcds.plane.kubeconfig)) as client:
        await client.request("GET", "/readyz")
        assert "old" not in await listed(client)
        before = etcds.count("EVENTS", "/registry/events/")
        await write_event(client, "new")
        await client.create(
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": "newer", "namespace": "default"},
                "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingController": "example.com/test",
                "reportingInstance": "test",
                "action": "Test",
                "reason": "Test",
                "type": "Normal",
            }
        )
        await client.create(ConfigMap(metadata=ObjectMeta(name="some", namespace="default")))
        assert {"new", "newer"} <= await listed(client)
    assert int(etcds.etcdctl(*check["commands"]).partition(":")[2]) == before + 2
    assert etcds.count("EVENTS", "/registry/configmaps/") == 0
    assert etcds.count("MAIN", "/registry/configmaps/default/some") == 1

    assert int(etcds.etcdctl(*clean["commands"])) >= 1
    assert etcds.count("MAIN", "/registry/events/") == 0
    etcds.etcdctl(*defragment["commands"])
    async with Client(load_config(etcds.plane.kubeconfig)) as client:
        assert {"new", "newer"} <= await listed(client)


def _healthy(etcds: TwoEtcds, commands: list[str]) -> bool:
    try:
        etcds.etcdctl(*commands)
    except AssertionError:
        return False
    return True


async def test_api_server_is_not_ready_without_the_second_etcd(etcds: TwoEtcds) -> None:
    """What the first step says: readiness fails and Events hang, while everything else is answered."""
    etcds.stop_second()
    config = load_config(etcds.plane.kubeconfig)
    async with Client(config) as client, Client(config, timeout_s=3, retry_for_s=0) as impatient:

        async def unready() -> str:
            try:
                await client.request("GET", "/readyz")
            except ApiError as error:
                return error.message if error.status == 500 else ""
            return ""

        said = await until("the API server is not ready", unready, 180)
        assert "[-]etcd-override-0 failed" in said
        with pytest.raises(ServerTimeout):
            await write_event(impatient, "lost")
        await client.create(ConfigMap(metadata=ObjectMeta(name="written", namespace="default")))
        etcds.start_second()
        await until("the API server is ready", lambda: client.request("GET", "/readyz"), ignoring=(ApiError,))
        assert "new" in await listed(client)
