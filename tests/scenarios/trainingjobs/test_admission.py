"""What the API server itself refuses, and what becomes of jobs then."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import urllib.request

import pytest

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import TrainingJobStatus
from muster.controlplane.ports import free_port
from muster.kube.errors import ApiError, Invalid
from muster.kube.objects.core import Event
from tests.scenarios.trainingjobs.conftest import Arena
from tests.scenarios.trainingjobs.test_jobs import QUICK, train
from tests.support.anyserver import BY_CONTROLLER, BY_SCHEDULER
from tests.support.kubectl import kubectl_program
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_identity_fields_of_an_active_job_cannot_change(arena: Arena) -> None:
    """Issue 11.9: on both servers, and limits may change."""
    await arena.submit("train", train(arena))
    await arena.phase("train", "Running")
    for change in ({"replicas": 3}, {"image": "other"}, {"command": ["other"]}):
        with pytest.raises(Invalid, match="set suspend to true, change it"):
            await arena.client.patch(TrainingJob, "train", {"spec": change}, namespace=arena.namespace)
    await arena.client.patch(TrainingJob, "train", {"spec": {"backoffLimit": 7}}, namespace=arena.namespace)
    with pytest.raises(Invalid, match="at most 52"):
        await arena.submit("a" * 53, QUICK)
    with pytest.raises(Invalid, match="go together"):
        await arena.submit("shrinks", QUICK, noSpare="Shrink")
    with pytest.raises(Invalid, match="minReplicas must be at most replicas"):
        await arena.submit("shrinks", QUICK, noSpare="Shrink", minReplicas=3)
    claims = {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "eight"}]}}
    with pytest.raises(Invalid, match="DRA drivers"):  # issue 11.8
        await arena.submit("claims", QUICK, template=claims)


async def test_the_schema_refuses_what_makes_no_sense(arena: Arena) -> None:
    with pytest.raises(Invalid, match="replicas"):
        await arena.submit("none", QUICK, replicas=0)
    with pytest.raises(Invalid, match="launcher"):
        await arena.submit("slurm", QUICK, launcher="slurm")


async def test_refusal_by_admission_is_quoted_and_retried(arena: Arena) -> None:
    if arena.server.kind == "embedded":
        pytest.skip("the embedded API server evaluates no CEL; docs say so")
    name, group = arena.namespace, "admissionregistration.k8s.io/v1"
    created_pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rule = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [created_pods],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        },
        "validations": [{"expression": "object.spec.containers.all(c, c.image != 'forbidden')", "message": "not here"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    for kind, spec in (("ValidatingAdmissionPolicy", rule), ("ValidatingAdmissionPolicyBinding", binding)):
        await arena.client.create({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec})
    try:
        metadata = {"name": "probe", "namespace": name}
        spec = {"containers": [{"name": "c", "image": "forbidden"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

        async def in_force() -> bool:
            try:
                await arena.client.create(pod, dry_run=True)
            except ApiError as error:
                return "not here" in str(error)
            return False

        await until("the policy is in force", in_force)
        await arena.submit("train", QUICK, image="forbidden")
        status = await arena.reaches("train", lambda status: "not here" in status.message)
        assert "0/2 pods created; the next was refused" in status.message
        assert await arena.pods("train") == []
    finally:
        for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            await arena.client.request("DELETE", f"/apis/{group}/{plural}/{name}")
    await arena.phase("train", "Succeeded", 1)


async def test_a_quota_that_lets_only_half_the_pods_in_is_explained_and_holds_no_node(arena: Arena) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "half", "namespace": arena.namespace},
        "spec": {"hard": {"requests.nvidia.com/gpu": "4"}},
    }
    await arena.client.create(quota)
    path = f"/api/v1/namespaces/{arena.namespace}/resourcequotas/half"

    async def counted() -> bool:
        return b'"used"' in await arena.client.request("GET", path)

    await until("the quota is in force", counted)
    await arena.submit("train", train(arena))
    status = await arena.reaches("train", lambda status: "exceeded quota" in status.message)
    admitted = next(each for each in status.conditions if each.type == "Admitted")
    assert (admitted.status, admitted.reason) == ("False", "PodsRefused")
    assert all(not pod.spec.node_name for pod in await arena.pods("train"))
    await arena.client.request("DELETE", path)
    (arena.folder / "done").touch()
    await arena.phase("train", "Succeeded", 1)


@BY_CONTROLLER
async def test_reason_for_waiting_is_typed_and_reported_once_across_leaders(
    arena: Arena,
) -> None:
    await arena.submit("train", QUICK, replicas=4)

    def waits(status: TrainingJobStatus) -> bool:
        return _admitted(status) == ("False", "MoreThanTheCluster") and status.start_forecast is not None

    status = await arena.reaches("train", waits)  # all that is written about a job that waits
    message = next(each.message for each in status.conditions if each.type == "Admitted")
    assert message.startswith("needs 4 nodes; the cluster has 3")
    assert status.message == f"waiting for 4 of 4 nodes: {message} [MoreThanTheCluster]"

    async def reported() -> list[Event]:
        listed = await arena.client.list(Event, arena.namespace, field_selector="reason=FailedScheduling")
        return [event for event in listed.items if event.involved_object.name == "train"]

    async def is_reported() -> bool:
        return bool(await reported())

    await until("there is an Event", is_reported)
    before = await arena.job("train")
    arena.controllers[-1].kill()
    address = f"127.0.0.1:{free_port()}"
    arena.control(f"--metrics-listen={address}")

    async def counted() -> bool:
        with contextlib.suppress(OSError):
            return b'muster_scheduler_waiting_gangs{reason="MoreThanTheCluster"} 1.0' in await _metrics(address)
        return False

    await until("the new leader counts it", counted)
    assert await arena.job("train") == before
    arena.add_node()
    status = await arena.phase("train", "Succeeded", 1)
    assert _admitted(status) == ("True", "NodesAssigned")
    (event,) = await reported()
    assert (event.count, event.message) == (1, f"{message} [MoreThanTheCluster]")


def _admitted(status: TrainingJobStatus) -> tuple[str, str] | None:
    return next(((each.status, each.reason) for each in status.conditions if each.type == "Admitted"), None)


async def _metrics(address: str) -> bytes:
    def read() -> bytes:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text: bytes = answer.read()
            return text

    return await asyncio.to_thread(read)


async def test_suspend_frees_the_nodes_and_resume_continues(arena: Arena) -> None:
    await arena.submit("train", train(arena))
    await arena.phase("train", "Running", 1)
    await arena.client.patch(TrainingJob, "train", {"spec": {"suspend": True}}, namespace=arena.namespace)
    await arena.phase("train", "Suspended")
    assert await arena.pods("train") == []
    await arena.client.patch(TrainingJob, "train", {"spec": {"suspend": False}}, namespace=arena.namespace)
    (arena.folder / "done").touch()
    status = await arena.phase("train", "Succeeded", 2)
    assert status.restarts is None


async def test_columns_of_kubectl_get(arena: Arena) -> None:
    await arena.submit("quick", QUICK)
    await arena.submit("wrong", "raise SystemExit(1)", replicas=1, backoffLimit=0)
    await arena.phase("quick", "Succeeded")
    await arena.phase("wrong", "Failed", 2)
    command = [
        kubectl_program(),
        f"--kubeconfig={arena.server.kubeconfig}",
        f"--namespace={arena.namespace}",
        "get",
        "tj",
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=30)
    shown = done.stdout.splitlines()
    assert shown[0].split() == ["NAME", "NODES", "READY", "PHASE", "ATTEMPT", "STEP", "RESTARTS", "AGE"]
    assert shown[1].split()[:5] == ["quick", "2", "2", "Succeeded", "1"]
    assert shown[2].split()[3:5] == ["Failed", "1"], "the second attempt never ran"


async def test_a_shadow_controller_plans_and_writes_nothing(arena: Arena) -> None:
    arena.controllers[-1].terminate()
    shadow = arena.control("--shadow")
    await arena.submit("quick", QUICK)

    async def planned() -> bool:
        return "would WriteStatus Created" in shadow.log.read_text()

    await until("the shadow controller has a plan", planned)
    assert (await arena.job("quick")).status.attempt == 0
    assert await arena.pods("quick") == []


@BY_SCHEDULER
async def test_jobs_have_their_nodes_to_themselves_unless_they_ask_to_share(arena: Arena) -> None:
    """Issue 11.5: without GPUs too; GPUs per node are those of the nodes where the job names none."""
    everywhere = len(arena.nodes)
    await arena.submit("first", train(arena), replicas=everywhere, gpusPerNode=0)
    await arena.phase("first", "Running")
    await arena.submit("whole", QUICK, replicas=1, gpusPerNode=None, ranksPerNode=None)
    await arena.submit("shares", QUICK, replicas=1, gpusPerNode=0, nodeSharing="Shared")
    in_use = f"{everywhere} in use (by {arena.namespace}/first)"
    for name in ("whole", "shares"):
        status = await arena.reaches(
            name, lambda status: "waiting for 1 of 1 nodes:" in status.message and status.node_use
        )
        assert in_use in status.message or "behind" in status.message
    use = (await arena.status("whole")).node_use
    assert use is not None
    assert (use.sharing, use.gpus_per_node, use.node_gpus) == ("Exclusive", 4, 4)
    assert (await arena.job("whole")).ranks == 4
    await arena.submit("friends", train(arena), replicas=1, gpusPerNode=0, nodeSharing="Shared")
    (arena.folder / "done").touch()
    for name in ("first", "whole", "shares", "friends"):
        await arena.phase(name, "Succeeded", 1)
