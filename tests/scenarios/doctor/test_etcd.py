"""Faults of etcd on a real control plane: each is named, and nothing else is found."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from muster.controlplane.programs import ControlPlane
from muster.kube.errors import ApiError
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from tests.scenarios.doctor.conftest import Patient
from tests.scenarios.doctor.test_faults import culprits, repeated
from tests.support.etcdctl import run_printed
from tests.support.musterprogram import Muster
from tests.support.waiting import until
from tests.support.wrappedprogram import WrappedProgram

pytestmark = [pytest.mark.real, pytest.mark.slow]

STRACE: Final = shutil.which("strace")
DELAY_US: Final = 120_000
QUOTA: Final = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class EtcdPatient(Patient):
    """A cluster whose etcd can be changed."""

    etcd: WrappedProgram

    async def restart(self, prefix: str = "", flags: str = "") -> None:
        self.plane.stop_etcd(grace_s=0)
        self.etcd.set(prefix, flags)
        self.plane.start_etcd()  # not in another thread: the kernel would end it with the thread
        async with self.client() as client:
            await until("the API server is ready", lambda: client.request("GET", "/readyz"), ignoring=(ApiError,))

    @property
    def etcd_url(self) -> str:
        words = self.plane.command("etcd")
        return next(word.partition("=")[2] for word in words if word.startswith("--listen-client-urls="))

    @property
    def etcd_options(self) -> list[str]:
        pki = self.plane.directory
        return [
            f"--etcd-metrics={self.etcd_url}/metrics",
            f"--etcd-ca={pki / 'etcd-ca.crt'}",
            f"--etcd-cert={pki / 'etcd-client.crt'}",
            f"--etcd-key={pki / 'etcd-client.key'}",
        ]


@pytest.fixture(scope="module")
def patient(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdPatient]:
    etcd = WrappedProgram(control_plane_binaries, "etcd", tmp_path_factory.mktemp("binaries"))
    with ControlPlane(etcd.folder, controller_manager=False) as plane:
        yield EtcdPatient(plane, Muster(tmp_path_factory.mktemp("home")), etcd)


@contextlib.asynccontextmanager
async def written(patient: EtcdPatient, name: str, clients: int = 8) -> AsyncIterator[None]:
    """Clients create ConfigMaps while the block runs."""
    begun = asyncio.Event()
    async with patient.client() as client:

        async def create(number: int) -> None:
            try:
                await client.create(ConfigMap(metadata=ObjectMeta(name=f"{name}-{number}", namespace="default")))
            finally:
                begun.set()

        async with repeated(create, clients, begun):
            yield


async def fill(patient: EtcdPatient, mebibytes: int) -> None:
    async with patient.client() as client:
        for number in range(mebibytes):
            meta = ObjectMeta(name=f"full-{number}", namespace="default")
            await client.create(ConfigMap(metadata=meta, data={"fill": "x" * 1_000_000}))


async def examined(patient: EtcdPatient, *arguments: str, window_s: float = 3.0) -> dict[str, Any]:
    return await asyncio.to_thread(patient.examine, window_s, *arguments)


async def test_healthy_etcd_has_no_finding(patient: EtcdPatient) -> None:
    async with written(patient, "healthy", clients=1):
        report = await examined(patient, *patient.etcd_options)
    assert report["findings"] == []
    assert "etcd" not in " ".join(each["what"] for each in report["unseen"] if "Events" not in each["what"])


async def test_etcd_that_cannot_be_read_is_not_examined(patient: EtcdPatient) -> None:
    url, ca, *_ = patient.etcd_options
    report = await examined(patient, url, ca, window_s=1.0)
    assert report["findings"] == []
    (unseen,) = (each for each in report["unseen"] if "etcd's disk" in each["what"])
    assert "certificate required" in unseen["why"]


@pytest.mark.skipif(STRACE is None, reason="strace is missing: tools/ci-packages installs it")
async def test_slow_disk_of_etcd_is_named(patient: EtcdPatient) -> None:
    inject = f"inject=fdatasync,fsync:delay_exit={DELAY_US}"
    strace = f"{STRACE} -f --seccomp-bpf -qq -o /dev/null -e trace=fdatasync,fsync -e {inject}"
    await patient.restart(strace, "--unsafe-no-fsync=false")  # other tests do without the disk of this machine
    try:
        async with written(patient, "slow"):
            report = await examined(patient, *patient.etcd_options)
            blind = await examined(patient)
    finally:
        await patient.restart()
    (found,) = report["findings"]
    assert (found["id"], found["severity"]) == ("etcd-disk-slow", "error")
    assert found["evidence"][0]["value"] >= DELAY_US / 1e6
    (found,) = blind["findings"]
    assert (found["id"], culprits(found)) == ("etcd-slow", [("Etcd", "of the API server")])
    assert "--etcd-metrics" in found["fix"]["commands"][0]


async def test_full_quota_of_etcd_is_named_and_its_fix_works(patient: EtcdPatient, tmp_path: Path) -> None:
    await patient.restart(flags=f"--quota-backend-bytes={QUOTA}")
    with pytest.raises(ApiError, match="database space exceeded"):
        await fill(patient, 3 * QUOTA // 2**20)
    async with written(patient, "refused", clients=4):
        report = await examined(patient, *patient.etcd_options)
        blind = await examined(patient)
    (found,) = blind["findings"]
    assert (found["id"], culprits(found)) == ("etcd-full", [("Etcd", "of the API server")])
    assert "cannot be seen" in found["title"]
    (found,) = report["findings"]
    assert (found["id"], found["severity"]) == ("etcd-full", "error")
    assert {each["what"]: each["value"] for each in found["evidence"]}["quota"] == QUOTA
    async with patient.client() as client:
        await client.request("DELETE", "/api/v1/namespaces/default/configmaps")
        endpoint, *fix = found["fix"]["commands"]
        assert endpoint.startswith("ENDPOINT=https://HOST:2379 ")
        run_printed(fix, tmp_path, patient.plane.directory, ENDPOINT=patient.etcd_url)
        await client.create(ConfigMap(metadata=ObjectMeta(name="after", namespace="default")))
