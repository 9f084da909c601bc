"""One account saturates a real API server; a block stops it, others are served, and it ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.controlplane.chart import rendered
from muster.controlplane.programs import ControlPlane
from muster.doctor.block.account import Account
from muster.doctor.block.controller import BlockController
from muster.doctor.block.flowschema import SELECTOR, schema_of
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError, Forbidden, TooManyRequests
from muster.kube.informers import Informers
from muster.kube.objects.flowcontrol import FlowSchema
from tests.scenarios.doctor.conftest import Patient
from tests.support.musterprogram import MUSTER, Muster
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow]

CLIENTS = 8
LISTED = "/api/v1/namespaces/large/configmaps"
LIMITS = ("--max-requests-inflight=4", "--max-mutating-requests-inflight=2")


@dataclasses.dataclass(frozen=True)
class Blocked(Patient):
    """A small API server with the chart's objects for blocks."""

    operator: Path

    def doctor(self, *arguments: str, kubeconfig: Path | None = None, fails: int = 0) -> Any:
        done = self.muster.run(
            "doctor", *arguments, f"--kubeconfig={kubeconfig or self.operator}", "-o", "json", program=MUSTER
        )
        assert done.returncode == fails, done
        return done.stderr if fails else json.loads(done.stdout)

    def blocks(self) -> list[str]:
        names = self.plane.access.kubectl("get", "flowschemas", "-l", SELECTOR, "-o", "name")
        return names.split()


@pytest.fixture(scope="module")
def patient(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blocked]:
    values = ["doctor.breakGlass.enabled=true", "doctor.breakGlass.groups={system:serviceaccounts:operators}"]
    with ControlPlane(
        control_plane_binaries, controller_manager=False, extra_args={"kube-apiserver": list(LIMITS)}
    ) as plane:
        plane.access.apply(*rendered(["break-glass"], namespace="muster-system", values=values))
        operator = plane.access.service_account_kubeconfig("operators", "oncall")
        yield Blocked(plane, Muster(tmp_path_factory.mktemp("home")), operator)


@contextlib.asynccontextmanager
async def flooded(kubeconfig: Path) -> AsyncIterator[Counter[int]]:
    """Many clients of one account send requests; the counter holds the newest statuses and is cleared by the test."""
    statuses: Counter[int] = Counter()
    async with Client(load_config(kubeconfig), retry_for_s=0, connections=CLIENTS) as client:

        async def loop() -> None:
            while True:
                try:
                    await client.request("GET", LISTED)
                    statuses[200] += 1
                except ApiError as error:
                    statuses[error.status] += 1
                    await asyncio.sleep(0.1)

        tasks = [asyncio.create_task(loop()) for _ in range(CLIENTS)]
        try:
            yield statuses
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def small_level(*accounts: str) -> list[dict[str, Any]]:
    """A level with few seats and no queue, for some accounts of namespace `agents`."""
    api = "flowcontrol.apiserver.k8s.io/v1"
    limited = {"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0}
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"], "clusterScope": True}
    subjects = [
        {"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": "agents"}} for name in accounts
    ]
    return [
        {
            "apiVersion": api,
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "small"},
            "spec": {"type": "Limited", "limited": limited | {"limitResponse": {"type": "Reject"}}},
        },
        {
            "apiVersion": api,
            "kind": "FlowSchema",
            "metadata": {"name": "small"},
            "spec": {
                "priorityLevelConfiguration": {"name": "small"},
                "matchingPrecedence": 500,
                "rules": [{"subjects": subjects, "resourceRules": [rule]}],
            },
        },
    ]


async def test_blocked_account_gets_429_and_others_are_served(patient: Blocked) -> None:
    rights = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    noisy, other = patient.account("noisy", rights), patient.account("other", rights)
    patient.plane.access.apply(*small_level("noisy", "other"))
    fill = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"fill": "x" * 100_000}}
    patient.plane.access.kubectl("create", "namespace", "large")
    patient.plane.access.kubectl(
        "create",
        "-f",
        "-",
        stdin=json.dumps(
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": [fill | {"metadata": {"name": f"fill-{n}", "namespace": "large"}} for n in range(10)],
            }
        ),
    )
    async with flooded(noisy) as statuses, Client(load_config(other), retry_for_s=0) as bystander:

        async def accepted() -> bool:
            with contextlib.suppress(TooManyRequests):
                await bystander.request("GET", LISTED)
                return True
            return False

        async def refused() -> bool:
            return not await accepted()

        await until("the level is full for others too", refused)
        report = await asyncio.to_thread(patient.doctor, "block", "agents/noisy", "--for=10m")
        assert (report["account"], report["applied"]) == ("system:serviceaccount:agents:noisy", True)
        assert {each["id"] for each in report["notStopped"]} >= {"oneAtATime", "openRequests", "otherUser"}
        assert any("FlowSchema probes" in each["what"] for each in report["notStopped"])
        # Lists of the account that began before the block hold their seats until they end.
        await until("the level has room for others", accepted)
        statuses.clear()
        for _ in range(10):
            await bystander.request("GET", LISTED)
        await until("the account is refused", lambda: statuses[429] > CLIENTS)
        (shown,) = patient.blocks()
        assert shown.endswith(report["flowSchema"])
        (block,) = await asyncio.to_thread(patient.doctor, "block", "--list")
        assert (block["overdue"], block["rejected"] > 0) == (False, True)

    assert patient.doctor("unblock", "agents/noisy") == {
        "account": "system:serviceaccount:agents:noisy",
        "wasBlocked": True,
    }
    assert patient.blocks() == []
    async with Client(load_config(noisy), retry_for_s=0) as freed:

        async def served() -> bool:
            both = (freed.request("GET", "/version") for _ in range(2))
            found = await asyncio.gather(*both, return_exceptions=True)
            return all(isinstance(each, bytes) for each in found)

        await until("the account is served again", served)


async def test_waiting_command_removes_the_block_at_sigterm(patient: Blocked) -> None:
    patient.account("waited")
    process = await asyncio.create_subprocess_exec(
        MUSTER,
        *("doctor", "block", "agents/waited", "--wait", f"--kubeconfig={patient.operator}"),
        env=patient.muster.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        await until("the block", lambda: any(name.endswith(".waited") for name in patient.blocks()))
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            _, said = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, said
    assert b"is not blocked any more" in said
    assert patient.blocks() == []


async def test_controller_removes_ended_blocks_only(patient: Blocked) -> None:
    """Some ended while no controller ran, one ends while it runs, one is prolonged, and one lasts."""
    account = patient.plane.access.service_account_kubeconfig("muster-system", "muster-controller")
    async with patient.client() as admin, patient.client(account) as client:
        for name, end in (("overdue", 1.0), ("prolonged", 1.0), ("lasting", 4e9)):
            await admin.create(schema_of(Account("agents", name), end))
        other = schema_of(Account("agents", "foreign"), 1.0)
        meta = msgspec.structs.replace(other.metadata, labels={})
        await admin.create(msgspec.structs.replace(other, metadata=meta))
        await asyncio.to_thread(patient.doctor, "block", "agents/prolonged", "--for=1h", "--force")
        shown = await asyncio.to_thread(patient.doctor, "block", "--list")
        overdue = {each["account"].rpartition(":")[2] for each in shown if each["overdue"]}
        assert overdue == {"overdue"}
        controller = BlockController(client, informers=Informers(client, {}))
        running = asyncio.create_task(controller.run())
        try:
            await asyncio.to_thread(patient.doctor, "block", "agents/short", "--for=2s", "--force")

            async def left() -> bool:
                names = {each.name.rpartition(".")[2] for each in (await admin.list(FlowSchema)).items}
                return not {"overdue", "short"} & names and {"prolonged", "lasting", "foreign"} <= names

            await until("ended blocks are removed", left)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        for name in ("prolonged", "lasting", "foreign"):
            await admin.delete(FlowSchema, Account("agents", name).object_name)


async def test_rights_of_the_chart_are_limited_to_blocks(patient: Blocked) -> None:
    controller = patient.plane.access.service_account_kubeconfig("muster-system", "muster-controller")
    foreign = schema_of(Account("agents", "some"), 4e9)
    meta = msgspec.structs.replace(foreign.metadata, labels={})
    async with patient.client(patient.operator) as operator, patient.client(controller) as client:
        for call in (
            lambda: client.delete(FlowSchema, "service-accounts"),
            lambda: operator.delete(FlowSchema, "service-accounts"),
            lambda: operator.create(msgspec.structs.replace(foreign, metadata=meta), dry_run=True),
            lambda: client.create(foreign, dry_run=True),
        ):
            with pytest.raises(Forbidden):
                await call()


def test_missing_level_is_explained_and_installed(patient: Blocked) -> None:
    patient.account("uninstalled")
    patient.plane.access.kubectl("delete", "prioritylevelconfiguration", "muster-break-glass")
    admin = patient.plane.kubeconfig
    said = patient.doctor("block", "agents/uninstalled", kubeconfig=admin, fails=1)
    assert "no controller of this cluster removes blocks" in said
    said = patient.doctor("block", "agents/uninstalled", "--force", kubeconfig=admin, fails=1)
    assert "PriorityLevelConfiguration muster-break-glass does not exist" in said
    report = patient.doctor("block", "agents/uninstalled", "--force", "--install", kubeconfig=admin)
    assert report["applied"]
    assert len(patient.blocks()) == 1
    patient.doctor("unblock", "agents/uninstalled", kubeconfig=admin)


def test_unknown_account_is_refused(patient: Blocked) -> None:
    said = patient.doctor("block", "agents/unknown", "--wait", fails=1)
    assert "there is no service account agents/unknown" in said
    assert patient.blocks() == []
