"""The chart, installed with helm on a real control plane: jobs, faults, upgrade, uninstall, rights.

The tests go on from each other: what one did to the cluster the next finds, and the last looks at all rights used.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.kube.errors import Invalid, NotFound
from muster.kube.objects.core import Event
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.deploy.conftest import ACCOUNT, CHART, GPUS, RELEASE, SYSTEM, Cluster, Jobs, until
from tests.scenarios.deploy.foreign import name_every_kind
from tests.scenarios.deploy.rights import forbidden, granted, unused, used

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(420)]
NEWEST = pytest.mark.kubernetes_since("1.36")
"""These make pods with resourceClaims (1.34) and schedulingGroup (1.36), or need what the others of them did."""

NODES = 3


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    cluster.install()
    yield cluster
    cluster.uninstall()


def running(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def alive(pids: dict[str, str]) -> bool:
    return all(map(running, pids.values()))


async def test_a_job_lives_through_what_breaks(installed: Cluster, jobs: Jobs) -> None:
    await jobs.nodes_ready(4)
    await jobs.train("train", NODES, infrastructureLimit=5)
    await jobs.reaches("train", lambda status: status.last_checkpoint and status.phase == "Running")
    first, pids = await jobs.pods("train"), await jobs.pids("train", 1, NODES)

    os.kill(int(pids["1"]), signal.SIGKILL)
    status = await jobs.phase("train", "Running", 2)
    assert status.restarts is not None
    assert status.restarts.user + status.restarts.unknown == 1
    assert (await jobs.pods("train")).keys() == first.keys(), "a rank that dies costs no pod"

    lost = next(pod for pod in first.values() if pod.name == "train-2-1").spec.node_name
    installed.nodes[lost].lose()
    status = await jobs.phase("train", "Running", 3)
    assert status.restarts is not None
    assert status.restarts.infrastructure == 1

    async def old_pod_gone() -> bool:
        return "train-2-1" not in {pod.name for pod in (await jobs.pods("train")).values()}

    await until("the pod of the lost node is gone", old_pod_gone)
    second = await jobs.pods("train")
    assert len(second.keys() & first.keys()) == NODES - 1, ("a node that is lost costs one pod", status.faults)
    assert lost not in {pod.spec.node_name for pod in second.values()}

    pids = await jobs.pids("train", 3, NODES)
    leader = await jobs.leader()
    await jobs.client.delete(Pod, leader, namespace=SYSTEM)

    async def other_leads() -> bool:
        return await jobs.leader() != leader

    await until("another replica leads", other_leads)
    before = (await jobs.status("train")).last_checkpoint
    assert before is not None
    status = await jobs.reaches("train", lambda now: now.last_checkpoint and now.last_checkpoint.step > before.step)
    assert status.attempt == 3
    assert jobs.rank_pids("train", 3) == pids
    assert alive(pids)

    await jobs.patch("train", {"suspend": True})
    await jobs.phase("train", "Suspended", 3)
    assert await jobs.pods("train") == {}
    assert not any(map(running, pids.values()))
    await jobs.patch("train", {"suspend": False})
    await jobs.phase("train", "Running", 4)
    jobs.finish("train")
    await jobs.phase("train", "Succeeded", 4)

    await asyncio.to_thread(installed.kubectl, "delete", "trainingjob", "train", f"--namespace={jobs.namespace}")

    async def no_pods() -> bool:
        return await jobs.pods("train") == {}

    await until("the job's pods are gone with it", no_pods)
    await asyncio.to_thread(installed.kubectl, "delete", "node", lost)
    installed.add_node(f"{lost}-again")


async def test_an_mpi_job_runs_on_two_nodes(installed: Cluster, jobs: Jobs) -> None:
    await jobs.nodes_ready(4)
    program = f"""
        import pathlib
        from mpi4py import MPI
        total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank() + 1)
        if MPI.COMM_WORLD.Get_rank() == 0:
            pathlib.Path({str(jobs.folder / "total")!r}).write_text(str(total))
    """
    await jobs.submit("mpi", program, launcher="mpi", ranksPerNode=2)
    await jobs.phase("mpi", "Succeeded", 1)
    assert (jobs.folder / "total").read_text() == "10"


def refusing(name: str, resources: dict[str, list[str]], expression: str, message: str) -> list[dict[str, Any]]:
    """An admission policy of a cluster's owner that refuses what `expression` is false for."""
    admission = "admissionregistration.k8s.io/v1"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE", "UPDATE"], **resources}]},
        "validations": [{"expression": expression, "message": message}],
    }
    return [
        {"apiVersion": admission, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": policy},
        {
            "apiVersion": admission,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


@NEWEST
async def test_refused_binds_and_writes_are_retried_elsewhere(installed: Cluster, jobs: Jobs) -> None:
    """The rights that only misfortune uses: binds, Placements and checkpoints refused, volumes, pods never placed."""
    await jobs.nodes_ready(4)
    avoided = (await jobs.client.list(Node, label_selector="role=worker")).items[0].name
    binding = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"]}
    placement = {"apiGroups": ["muster.dev"], "apiVersions": ["*"], "resources": ["placements"]}
    job_status = {"apiGroups": ["muster.dev"], "apiVersions": ["*"], "resources": ["trainingjobs/status"]}
    policies = [
        *refusing("not-there", binding, f"object.target.name != '{avoided}'", "not this node"),
        *refusing("no-placement", placement, "object.metadata.name != 'placed-late'", "not this job"),
        *refusing(
            "no-checkpoint",
            job_status,
            "object.metadata.name != 'saves' || !has(object.status.lastCheckpoint)",
            "no checkpoints of this job",
        ),
    ]
    await asyncio.to_thread(installed.plane.access.apply, *policies)
    names = [policy["metadata"]["name"] for policy in policies[::2]]
    claims = [
        {"metadata": {"name": "data"}, "spec": {"storageClassName": "disks", "volumeName": "disk"}},
        {"metadata": {"name": "later"}, "spec": {"storageClassName": "no-disks"}},
    ]
    size = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await asyncio.to_thread(
        installed.plane.access.apply,
        *(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name},
                "provisioner": "example.com/none",
                "volumeBindingMode": mode,
            }
            for name, mode in (("disks", "Immediate"), ("no-disks", "WaitForFirstConsumer"))
        ),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "disk"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "disks",
                "hostPath": {"path": str(jobs.folder)},
            },
        },
        *(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {**claim["metadata"], "namespace": jobs.namespace},
                "spec": {**claim["spec"], **size},
            }
            for claim in claims
        ),
    )

    def with_claim(name: str) -> dict[str, Any]:
        return {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}}

    try:
        # no GPU, and shared nodes: these hold nothing that the others want
        await jobs.submit("claims", "", replicas=1, gpusPerNode=0, nodeSharing="Shared", template=with_claim("data"))
        await jobs.submit("waits", "", replicas=1, gpusPerNode=0, nodeSharing="Shared", template=with_claim("later"))
        by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
        wishes = [{"weight": 1, "preference": by_name}]
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": wishes}
        unknown = {"spec": {"affinity": {"nodeAffinity": preferred}}}
        await jobs.submit("never", "", replicas=1, gpusPerNode=0, nodeSharing="Shared", template=unknown)
        await jobs.train("saves", 1, gpusPerNode=0, nodeSharing="Shared", backoffLimit=100)

        async def never() -> bool:
            pods = (await jobs.pods("never")).values()
            return any(
                each.type == "PodScheduled" and each.status == "False" for pod in pods for each in pod.status.conditions
            )

        await until("the pod that is never placed says so", never)

        async def refused() -> bool:
            codes = {
                entry.object_ref.name: entry.response_status.code
                for entry in used(installed, ACCOUNT)
                if entry.object_ref.what == "trainingjobs/status"
            }
            return codes.get("saves") == 422

        await until("a checkpoint was refused", refused)
        # A policy is in force a while after it was made; the one that refused was the last of them.
        await jobs.submit("placed-late", "", replicas=1, gpusPerNode=0, nodeSharing="Shared", ttlSecondsAfterFinished=1)
        await jobs.submit("bound", "", replicas=4)

        async def bind_refused() -> bool:
            return any(
                entry.object_ref.what == "pods/binding" and entry.response_status.code == 422
                for entry in used(installed, ACCOUNT)
            )

        await until("a bind was refused", bind_refused)

        async def placement_refused() -> bool:
            return any(
                entry.object_ref.what == "placements" and entry.response_status.code in (403, 422)
                for entry in used(installed, ACCOUNT)
            )

        await until("a Placement was refused", placement_refused)
        installed.add_node("worker-instead")  # the scheduler keeps the slot away from the node that refused it
    finally:
        await asyncio.to_thread(installed.kubectl, "delete", "validatingadmissionpolicybinding", *names)
        await asyncio.to_thread(installed.kubectl, "delete", "validatingadmissionpolicy", *names)
    await jobs.phase("bound", "Succeeded", 1)
    jobs.finish("saves")
    await jobs.reaches("saves", lambda now: now.phase == "Succeeded")

    async def expired() -> bool:
        return "placed-late" not in await asyncio.to_thread(
            installed.kubectl, "get", "trainingjobs", f"--namespace={jobs.namespace}", "--output=name"
        )

    await until("the job whose time to live has passed is deleted", expired)


def changed_chart(folder: Path) -> Path:
    """The chart with one more column in `kubectl get trainingjobs`, as a later version of ours may have."""
    chart = folder / "muster"
    shutil.copytree(CHART, chart)
    file = chart / "files" / "crds" / "trainingjobs.yaml"
    crd = yaml.safe_load(file.read_text())
    column = {"name": "Launcher", "type": "string", "jsonPath": ".spec.launcher"}
    crd["spec"]["versions"][0]["additionalPrinterColumns"].append(column)
    file.write_text(yaml.safe_dump(crd))
    return chart


async def test_jobs_go_on_through_an_upgrade_and_an_uninstall(installed: Cluster, jobs: Jobs) -> None:
    await jobs.nodes_ready(4)
    await jobs.train("steady", 2)
    await jobs.phase("steady", "Running", 1)
    pods, pids = await jobs.pods("steady"), await jobs.pids("steady", 1, 2)

    chart = changed_chart(jobs.folder)
    await asyncio.to_thread(installed.upgrade, "--set=extraEnv[0].name=CHANGED", chart=chart)
    crd = await asyncio.to_thread(installed.get, "crd", "trainingjobs.muster.dev")
    columns = [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns[-1] == "Launcher", "helm upgrades the kinds"
    assert alive(pids)

    said = await asyncio.to_thread(installed.uninstall)
    assert "trainingjobs.muster.dev" in said
    assert (await asyncio.to_thread(installed.get, "deployments", f"--namespace={SYSTEM}"))["items"] == []
    held = await jobs.status("steady")
    assert (held.phase, held.attempt) == ("Running", 1)
    assert (await jobs.pods("steady")).keys() == pods.keys()
    assert alive(pids)
    assert jobs.rank_pids("steady", 2) == {}

    await asyncio.to_thread(installed.install)
    await jobs.reaches(
        "steady",
        lambda now: (
            now.last_checkpoint
            and (held.last_checkpoint is None or now.last_checkpoint.step > held.last_checkpoint.step)
        ),
    )
    assert alive(pids)
    jobs.finish("steady")
    status = await jobs.phase("steady", "Succeeded", 1)
    assert status.faults == ()
    assert (await jobs.pods("steady")).keys() == pods.keys()


async def test_the_controllers_requests_have_their_own_share_of_the_api_server(installed: Cluster, jobs: Jobs) -> None:
    def answered_by(path: str) -> str:
        token = installed.kubectl("create", "token", "muster-controller", f"--namespace={SYSTEM}").strip()
        context = ssl.create_default_context(cafile=installed.plane.ca_path)
        request = urllib.request.Request(f"{installed.plane.url}{path}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return str(answer.headers["X-Kubernetes-PF-FlowSchema-UID"])

    lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/muster-controller"
    for name, path in (("muster", "/api/v1/nodes?limit=1"), ("muster-leader-election", lease)):
        schema = await asyncio.to_thread(installed.get, "flowschema", name)
        assert await asyncio.to_thread(answered_by, path) == schema["metadata"]["uid"]
    metrics = await asyncio.to_thread(installed.kubectl, "get", "--raw=/metrics")
    dispatched = [
        line
        for line in metrics.splitlines()
        if line.startswith("apiserver_flowcontrol_dispatched_requests_total{") and 'flow_schema="muster"' in line
    ]
    assert dispatched
    assert all('priority_level="muster"' in line for line in dispatched)


async def test_people_get_their_rights_through_view_and_edit(installed: Cluster, jobs: Jobs) -> None:
    def may(role: str, verb: str, what: str) -> bool:
        answer = installed.plane.access.kubectl(
            "create",
            "--output=jsonpath={.status.allowed}",
            "--filename=-",
            stdin=yaml.safe_dump(
                {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SubjectAccessReview",
                    "spec": {
                        "user": f"{role}-user",
                        "resourceAttributes": {
                            "namespace": jobs.namespace,
                            "verb": verb,
                            "group": "muster.dev",
                            "resource": what,
                        },
                    },
                }
            ),
        )
        return answer == "true"

    for role in ("view", "edit"):
        await asyncio.to_thread(
            installed.kubectl,
            "create",
            "rolebinding",
            role,
            f"--clusterrole={role}",
            f"--user={role}-user",
            f"--namespace={jobs.namespace}",
        )

    async def aggregated() -> bool:
        return await asyncio.to_thread(may, "edit", "create", "trainingjobs")

    await until("the roles are aggregated", aggregated)
    assert may("view", "list", "trainingjobs")
    assert may("view", "get", "placements")
    assert not may("view", "create", "trainingjobs")
    assert not may("edit", "update", "placements"), "only the scheduler writes those"


async def test_jobs_under_pod_security(installed: Cluster, jobs: Jobs) -> None:
    """`baseline` takes every job that asks for nothing special; `restricted` wants what the job's template can say."""

    def enforce(level: str) -> None:
        label = f"pod-security.kubernetes.io/enforce={level}"
        installed.kubectl("label", "namespace", jobs.namespace, label, "--overwrite")

    await asyncio.to_thread(enforce, "baseline")
    await jobs.submit("plain", "", replicas=1, sharedMemory="64Mi")
    await jobs.phase("plain", "Succeeded", 1)
    await jobs.submit("host", "", replicas=1, hostNetwork=True)
    await jobs.reaches("host", lambda now: 'violates PodSecurity "baseline' in now.message)

    await asyncio.to_thread(enforce, "restricted")
    await jobs.submit("unsaid", "", replicas=1)
    status = await jobs.reaches("unsaid", lambda now: 'violates PodSecurity "restricted' in now.message)
    assert "muster-install" not in status.message.partition("capabilities")[2].partition("runAsNonRoot")[0]
    said = {
        "nodeSelector": {"role": "none"},  # it is about admission: as another user this checkout's Python cannot run
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "worker",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    await jobs.submit("said", "", replicas=1, template={"spec": said})

    async def admitted() -> bool:
        return len(await jobs.pods("said")) == 1

    await until("a pod that says all that restricted wants is admitted", admitted)


async def test_a_pod_of_others_is_evicted_for_one_of_higher_priority(installed: Cluster, jobs: Jobs) -> None:
    await jobs.nodes_ready(1)
    worker = next(node for node in (await jobs.client.list(Node, label_selector="role=worker")).items if node.ready)
    only = {"key": "metadata.name", "operator": "In", "values": [worker.name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [only]}]}
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"test-{name}"},
            "value": value,
        }
        for name, value in (("low", -10), ("high", 10))
    ]
    await asyncio.to_thread(installed.plane.access.apply, *classes)

    async def runs(name: str) -> bool:
        pods = (await jobs.client.list(Pod, jobs.namespace)).items
        return any(pod.name == name and pod.status.phase == "Running" for pod in pods)

    def pod(name: str) -> dict[str, Any]:
        spec = {
            "schedulerName": "muster",
            "priorityClassName": f"test-{name}",
            "terminationGracePeriodSeconds": 1,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [
                {
                    "name": "worker",
                    "image": "none",
                    "command": ["sleep", "3600"],
                    "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}},
                }
            ],
        }
        meta = {"name": name, "namespace": jobs.namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    await asyncio.to_thread(installed.plane.access.apply, pod("low"))
    await until("low runs", lambda: runs("low"))
    evictions = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}
    allowed = f"(has(request.dryRun) && request.dryRun) || request.namespace != '{jobs.namespace}'"
    policy = refusing("dry-runs-only", evictions, allowed, "not now")
    await asyncio.to_thread(installed.plane.access.apply, *policy)

    async def in_force() -> bool:
        try:
            await jobs.client.evict("none", namespace=jobs.namespace)
        except Invalid:
            return True
        except NotFound:
            pass
        return False

    async def refused_again() -> bool:
        events = (await jobs.client.list(Event, jobs.namespace)).items
        return any(each.reason == "EvictionRefused" and "not now" in each.message and each.count > 1 for each in events)

    try:
        await until("evictions are refused", in_force)
        await asyncio.to_thread(installed.plane.access.apply, pod("high"))
        await until("an eviction was refused, and tried again", refused_again)
        assert await runs("low")
    finally:
        await asyncio.to_thread(installed.kubectl, "delete", "validatingadmissionpolicybinding", "dry-runs-only")
        await asyncio.to_thread(installed.kubectl, "delete", "validatingadmissionpolicy", "dry-runs-only")
    await until("high runs", lambda: runs("high"))
    assert not await runs("low")
    everything = ("delete", "pods", "--all", f"--namespace={jobs.namespace}", "--wait=true")
    await asyncio.to_thread(installed.kubectl, *everything)


@NEWEST
async def test_gangs_of_others_are_read_from_their_objects_once_a_pod_names_one(installed: Cluster, jobs: Jobs) -> None:
    await name_every_kind(jobs, 0)


@NEWEST
async def test_every_right_is_used_and_sufficient(installed: Cluster, request: pytest.FixtureRequest) -> None:
    ran = {item.name for item in request.session.items if item.path == request.node.path}
    needed = {name for name in globals() if name.startswith("test_")}
    if not needed <= ran:
        pytest.skip(f"the whole file must run, {', '.join(sorted(needed - ran))} too")
    entries = used(installed, ACCOUNT)
    assert forbidden(installed, ACCOUNT) == set()
    rights = granted(installed)
    assert rights.keys() == {"muster-controller"}
    assert unused(rights["muster-controller"], entries) == []
    assert RELEASE in installed.helm.ok("list", f"--namespace={SYSTEM}", "--short")
