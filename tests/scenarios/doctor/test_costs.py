"""The outage of 11 December 2024 on a real control plane with ten nodes: found by the doctor, priced by a canary.

Ten nodes exist without kubelets. kube-controller-manager and kube-scheduler run the DaemonSets, and a program in this
process plays each pod with the pod's own token (tests/support/daemonpods.py). One test adds a node with a process
kubelet.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml
from prometheus_client import CollectorRegistry

from muster.controlplane.children import Child
from muster.controlplane.programs import ControlPlane
from muster.doctor.costs.collect import tally_files
from muster.doctor.costs.owners import Owners
from muster.doctor.pricing.canary import EXPIRES, LABEL, remove_expired
from muster.doctor.pricing.manifest import parse_manifest
from muster.doctor.pricing.sidecar import Share, with_sidecar
from muster.embedded.kubelet.sweep import sweep
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.node import Node
from muster.kube.requestlog import RequestLine
from muster.readcache.program import ReadCacheOptions, run_readcache
from muster.readcache.recorder import recording_server
from tests.support.auditlog import AuditLog
from tests.support.daemonpods import (
    DaemonPods,
    add_ready_nodes,
    daemonset,
    lists_all_pods,
    watches_own_pods,
)
from tests.support.loopback import loopback_subnet
from tests.support.musterprogram import MUSTER, Muster
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

NODES = 10
FILLERS = 30
"""Pods besides those of the DaemonSets."""
WATCH_STAGES = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/*"]
- level: Metadata
"""
READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


PROGRAM = """
import os, ssl, time, urllib.request
folder = os.environ["MUSTER_SERVICE_ACCOUNT_DIR"]
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
trust = ssl.create_default_context(cafile=f"{folder}/ca.crt")
while True:
    token = open(f"{folder}/token").read()
    request = urllib.request.Request(f"https://{host}:{port}/api/v1/pods", headers={"Authorization": f"Bearer {token}"})
    urllib.request.urlopen(request, context=trust).read()
    time.sleep(0.5)
"""


class Cluster(NamedTuple):
    """A control plane with an audit log, and the two DaemonSets' accounts."""

    plane: ControlPlane
    log: Path
    muster: Muster
    folder: Path


@pytest.fixture(scope="module")
def cluster(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("costs")
    audit = AuditLog(folder, WATCH_STAGES)
    extra = {
        "kube-apiserver": audit.apiserver_arguments,
        "kube-controller-manager": ["--node-monitor-grace-period=900s"],
    }
    with ControlPlane(control_plane_binaries, scheduler=True, extra_args=extra) as plane:
        for name in ("telemetry", "quiet"):
            plane.access.service_account_kubeconfig("monitoring", name, READ_PODS)

        async def fill() -> None:
            async with Client(load_config(plane.kubeconfig)) as client:
                await add_ready_nodes(client, NODES)
                for number in range(FILLERS):
                    await client.create(
                        {
                            "apiVersion": "v1",
                            "kind": "Pod",
                            "metadata": {"name": f"filler-{number}", "namespace": "default"},
                            "spec": {
                                "schedulerName": "none",
                                "containers": [{"name": "main", "image": "none"}],
                                "automountServiceAccountToken": False,
                            },
                        }
                    )

        asyncio.run(_with_account(plane, fill))
        yield Cluster(plane, folder / "audit.log", Muster(folder / "home"), folder)


async def _with_account(plane: ControlPlane, fill: Any) -> None:
    async with Client(load_config(plane.kubeconfig)) as client:

        async def account() -> bool:
            body = await client.request("GET", "/api/v1/namespaces/default/serviceaccounts")
            return b'"default"' in body

        await until("the default service account", account)
    await fill()


@pytest.fixture
def real_node(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """One more node, with a process kubelet and the label role=real. Gives its name."""
    cluster_id = f"test-{uuid.uuid4().hex[:12]}"
    subnet = loopback_subnet()
    plane = cluster.plane
    command = [
        *(sys.executable, "-m", "muster.embedded.kubelet", "--node=real-0", f"--kubeconfig={plane.kubeconfig}"),
        *(f"--state-dir={tmp_path / 'node'}", f"--cluster-id={cluster_id}", f"--client-ca-file={plane.ca_path}"),
        *(f"--address={subnet}.1", f"--pod-cidr={subnet}.0/24", "--labels=role=real"),
    ]
    path = f"{MUSTER.parent}{os.pathsep}{os.environ['PATH']}"
    kubelet = Child(command, tmp_path / "kubelet.log", dict(os.environ) | {"PATH": path})
    try:
        yield "real-0"
    finally:
        kubelet.stop(grace_s=5)
        sweep(cluster_id)
        plane.access.kubectl("delete", "node", "real-0", "--ignore-not-found")


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[DaemonPods]:
    config = load_config(cluster.plane.kubeconfig)
    async with Client(config) as client:
        programs = {"telemetry": lists_all_pods, "quiet": watches_own_pods}
        async with DaemonPods(client, config, programs).playing() as playing:
            yield playing
            for kind, namespace in (
                ("daemonsets", "monitoring"),
                ("resourcequotas", "monitoring"),
                ("pods", "monitoring"),
            ):
                path = f"/{'apis/apps' if kind == 'daemonsets' else 'api'}/v1/namespaces/{namespace}/{kind}"
                await client.request("DELETE", path, params={"propagationPolicy": "Background"})
            await until("the pods are gone", lambda: _no_pods(cluster))


async def muster(cluster: Cluster, *arguments: str | Path) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        str(MUSTER),
        *map(str, arguments),
        f"--kubeconfig={cluster.plane.kubeconfig}",
        env=cluster.muster.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def written(cluster: Cluster, manifest: dict[str, Any]) -> Path:
    path = cluster.folder / f"{manifest['metadata']['name']}.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


async def leftovers(cluster: Cluster) -> str:
    return await asyncio.to_thread(
        cluster.plane.access.kubectl,
        *("get", "daemonsets,resourcequotas,priorityclasses", "-A", "-l", LABEL, "-o", "name"),
    )


async def test_telemetry_of_december_2024_is_named_with_ten_nodes_and_a_harmless_daemonset_is_not(
    cluster: Cluster, pods: DaemonPods
) -> None:
    for name in ("telemetry", "quiet"):
        await asyncio.to_thread(cluster.plane.access.apply, daemonset(name, name))
    await until("all pods run", lambda: len(pods.started) == 2 * NODES)
    await until(
        "each pod has listed several times", lambda: cluster.log.read_text().count('"telemetry/1.0"') > 6 * NODES
    )
    code, out, err = await muster(
        cluster, "doctor", "--audit-log", cluster.log, "--window=1", "--at=7500", "--output=json"
    )
    assert out, err
    report = json.loads(out)
    found = [each for each in report["findings"] if each["id"] == "expensive-client"]
    assert [each["who"][0]["name"] for each in found] == ["monitoring/telemetry"]
    (finding,) = found
    assert [each["kind"] for each in finding["who"]] == ["DaemonSet", "ServiceAccount"]
    assert "lists all pods, without limit" in finding["title"]
    assert "per node squared" in finding["title"]
    costs = {each["what"]: each for each in finding["costs"]}
    objects = costs["objects in lists"]
    assert objects["growth"] == "perNodeSquared"
    assert objects["planned"] == pytest.approx(objects["today"] * (7500 / NODES) ** 2, rel=0.01)
    assert objects["today"] > NODES * (FILLERS + 2 * NODES) / 3, "about one list a second and node"
    assert costs["requests"]["growth"] == "perNode"
    assert finding["fix"]["commands"] == ["muster doctor block monitoring/telemetry"]
    assert code == 0, "it is a warning today"

    code, out, err = await muster(
        cluster,
        *("doctor", "price", written(cluster, daemonset("telemetry", "telemetry")), "--nodes=7500"),
        *("--audit-log", cluster.log, "--output=json"),
    )
    assert code == 1, err
    price = json.loads(out)
    assert price["growth"] == "perNodeSquared"
    assert price["planned"]["cost"]["objects"] == pytest.approx(objects["planned"], rel=0.3)
    assert "objects" in [each["name"] for each in price["aboveBudget"]]

    code, out, err = await muster(
        cluster,
        *("doctor", "price", written(cluster, daemonset("quiet", "quiet")), "--nodes=7500"),
        *("--audit-log", cluster.log),
    )
    assert code == 0, out + err
    assert "watches all pods of its node" in out
    assert "ABOVE" not in out


async def _no_pods(cluster: Cluster) -> bool:
    out = await asyncio.to_thread(cluster.plane.access.kubectl, "get", "pods", "-n", "monitoring", "-o", "name")
    return not out.strip()


async def test_canary_on_two_nodes_shows_the_price_before_the_roll_out_and_leaves_nothing(
    cluster: Cluster, pods: DaemonPods
) -> None:
    code, out, err = await muster(
        cluster,
        *("doctor", "price", written(cluster, daemonset("telemetry", "telemetry")), "--nodes=7500", "--canary=2"),
        *("--for=5", "--baseline=1", "--audit-log", cluster.log, "--output=json"),
    )
    assert code == 1, out + err
    price = json.loads(out)
    assert len(pods.started) == 2
    assert price["recorded"]["pods"] == 2
    assert price["recorded"]["nodes"] == NODES
    assert price["growth"] == "perNodeSquared"
    assert price["planned"]["apiServerCores"] >= 0
    per_pod = {each["request"]: each for each in price["requests"]}
    listing = per_pod['lists all pods, without limit, resourceVersion ""']
    assert price["planned"]["cost"]["requests"] == pytest.approx(7500 * listing["perPodPerSecond"], rel=0.01)
    assert await leftovers(cluster) == ""


async def test_canary_that_is_interrupted_is_removed(cluster: Cluster, pods: DaemonPods) -> None:
    process = await asyncio.create_subprocess_exec(
        str(MUSTER),
        *("doctor", "price", str(written(cluster, daemonset("quiet", "quiet"))), "--nodes=7500", "--canary=1"),
        *("--for=600", "--baseline=1", f"--audit-log={cluster.log}", f"--kubeconfig={cluster.plane.kubeconfig}"),
        env=cluster.muster.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await until("the canary runs", lambda: len(pods.started) == 1)
    assert "priorityclass" in await leftovers(cluster)
    process.send_signal(2)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, err
    assert await leftovers(cluster) == ""


async def test_dry_run_is_the_default_and_starts_nothing(cluster: Cluster) -> None:
    manifest = daemonset("telemetry", "telemetry")
    code, out, err = await muster(cluster, "doctor", "price", written(cluster, manifest), "--nodes=7500")
    assert code == 0, err
    assert "accepts the manifest" in out
    assert "Nothing ran" in out
    manifest["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    code, out, err = await muster(cluster, "doctor", "price", written(cluster, manifest), "--nodes=7500")
    assert code == 2, err
    assert "selector" in err
    listed = await asyncio.to_thread(
        cluster.plane.access.kubectl, "get", "daemonsets", "-n", "monitoring", "-o", "name"
    )
    assert listed == ""


async def test_canary_left_by_a_run_that_was_killed_is_removed_later_and_a_running_one_is_not(cluster: Cluster) -> None:
    for name, expires in (("muster-canary-old", "2024-12-11T00:00:00Z"), ("muster-canary-new", "2999-01-01T00:00:00Z")):
        await asyncio.to_thread(
            cluster.plane.access.apply,
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name, "labels": {LABEL: name}, "annotations": {EXPIRES: expires}},
                "value": 0,
            },
        )
    async with Client(load_config(cluster.plane.kubeconfig)) as client:
        assert await remove_expired(client) == ["muster-canary-old"]
    assert (await leftovers(cluster)).split() == ["priorityclass.scheduling.k8s.io/muster-canary-new"]
    await asyncio.to_thread(cluster.plane.access.kubectl, "delete", "priorityclass", "muster-canary-new")


async def test_sidecar_variant_is_accepted_by_the_api_server(cluster: Cluster) -> None:
    path = written(cluster, daemonset("telemetry", "telemetry"))
    code, patch, err = await muster(cluster, "doctor", "price", path, "--print-sidecar=muster:1")
    assert code == 0, err
    (cluster.folder / "patch.yaml").write_text(patch)
    kubectl = cluster.plane.access.kubectl
    arguments = ("patch", "--local", "-f", str(path), f"--patch-file={cluster.folder / 'patch.yaml'}", "-o", "json")
    local = await asyncio.to_thread(kubectl, *arguments)
    accepted = ("apply", "--dry-run=server", "-o", "json", "-f", "-")
    patched = json.loads(await asyncio.to_thread(lambda: kubectl(*accepted, stdin=local)))
    spec = patched["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["muster-recorder"]
    own = with_sidecar(parse_manifest(path.read_text(), "monitoring"), "muster:1").daemonset["spec"]["template"]["spec"]
    assert spec["containers"][0]["env"] == own["containers"][0]["env"]
    assert spec["containers"][0]["volumeMounts"] == own["containers"][0]["volumeMounts"]
    assert [each["name"] for each in spec["volumes"]] == [each["name"] for each in own["volumes"]]


async def test_recorder_passes_on_the_callers_own_token_and_records_its_requests(
    cluster: Cluster, tmp_path: Path
) -> None:
    admin = load_config(cluster.plane.kubeconfig)
    lines: list[RequestLine] = []
    share = Share(tmp_path, None)
    account = load_config(cluster.plane.access.service_account_kubeconfig("monitoring", "quiet", READ_PODS))
    authorization = await account.credentials.authorization()
    server = recording_server(admin, lines.append, node="node-3", context=share.tls())
    _, port = server.listen("127.0.0.1", 0)
    try:
        share.publish()
        trust = ssl.create_default_context(cafile=str(share.authority))
        url = f"https://127.0.0.1:{port}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as http:
            own = {"Authorization": authorization}
            async with http.get(f"{url}/api/v1/pods?limit=7", headers=own) as answer:
                assert answer.status == 200
                body = await answer.read()
            async with http.get(f"{url}/api/v1/secrets", headers=own) as answer:
                assert answer.status == 403, "the recorder has no rights of its own"
            async with http.get(f"{url}/api/v1/pods") as answer:
                assert answer.status == 403, "without a token the caller is anonymous"
            for accept in ("application/json", "application/vnd.kubernetes.protobuf;stream=watch"):
                query = {"watch": "true", "resourceVersion": "0", "timeoutSeconds": "1"}
                async with http.get(f"{url}/api/v1/pods", params=query, headers=own | {"Accept": accept}) as answer:
                    assert answer.status == 200
                    await answer.read()
    finally:
        await server.stop()
    listed, secrets, anonymous, *watches = lines
    assert (listed.verb, listed.resource, listed.limit, listed.code) == ("list", "pods", 7, 200)
    assert listed.user == "system:serviceaccount:monitoring:quiet"
    assert listed.node == "node-3"
    assert listed.bytes == len(body)
    assert (secrets.code, anonymous.code, anonymous.user) == (403, 403, "")
    assert [each.open for each in watches] == [True, False, True, False]
    assert [each.events for each in watches if not each.open] == [FILLERS, FILLERS]
    recorded = "".join(map(repr, lines))
    assert authorization.removeprefix("Bearer ") not in recorded
    assert [each.name for each in os.scandir(tmp_path)] == ["ca.crt"], "the key is not on the disk"


async def test_record_command_serves_kubectl(cluster: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "requests.log"
    account = cluster.plane.access.service_account_kubeconfig("monitoring", "quiet", READ_PODS)
    process = await asyncio.create_subprocess_exec(
        *(str(MUSTER), "doctor", "record", "--listen=127.0.0.1:0", f"--share={tmp_path}", f"--output={output}"),
        f"--kubeconfig={cluster.plane.kubeconfig}",
        env=cluster.muster.env,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        said = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        url = said.split()[3]
        token = (await load_config(account).credentials.authorization()).removeprefix("Bearer ")
        arguments = ("get", "pods", "-A", "-o", "name", f"--server={url}", f"--token={token}")
        out = await asyncio.to_thread(
            cluster.plane.access.kubectl,
            *arguments,
            f"--certificate-authority={tmp_path / 'ca.crt'}",
            kubeconfig=tmp_path / "none",
        )
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)
    assert len(out.split()) == FILLERS
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(each["verb"], each["resource"], each["limit"], each["code"]) for each in lines] == [
        ("list", "pods", 500, 200)
    ]


async def test_recorder_in_the_pods_of_a_canary_shows_the_price_without_an_audit_log(
    cluster: Cluster, real_node: str, tmp_path: Path
) -> None:
    manifest = daemonset("telemetry", "none")
    spec = manifest["spec"]["template"]["spec"]
    spec["containers"][0]["command"] = [sys.executable, "-c", PROGRAM]
    spec["nodeSelector"] = {"role": "real"}
    async with Client(load_config(cluster.plane.kubeconfig)) as client:

        async def ready() -> bool:
            return (await client.get(Node, real_node)).ready

        await until("the node is ready", ready, ignoring=(NotFound,))
    code, out, err = await muster(
        cluster,
        *("doctor", "price", written(cluster, manifest), "--nodes=7500", "--canary=1", "--for=6", "--baseline=1"),
        *("--recorder-image=none", "--output=json"),
    )
    assert code == 1, err + (tmp_path / "kubelet.log").read_text()[-3000:]
    price = json.loads(out)
    assert price["growth"] == "perNodeSquared"
    (request,) = price["requests"]
    assert request["request"] == 'lists all pods, without limit, resourceVersion ""'
    assert 0.2 < request["perPodPerSecond"] < 2.1, "it asks each half second, or less often on a busy machine"
    assert price["planned"]["cost"]["listBytes"] > 0
    assert await leftovers(cluster) == ""


async def test_request_log_of_the_read_cache_shows_who_reads_from_it(cluster: Cluster, tmp_path: Path) -> None:
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    path = tmp_path / "requests.log"
    options = ReadCacheOptions(kubeconfig=cluster.plane.kubeconfig, kinds=("pods",), request_log=path)
    serving = asyncio.create_task(
        run_readcache(
            options, stop, on_ready=lambda host, port, _: address.set_result((host, port)), registry=CollectorRegistry()
        )
    )
    account = load_config(cluster.plane.access.service_account_kubeconfig("monitoring", "quiet", READ_PODS))
    own = {"Authorization": await account.credentials.authorization()}
    try:
        host, port = await asyncio.wait_for(address, 60)
        async with aiohttp.ClientSession(headers=own) as http:
            for url in ("/api/v1/pods?resourceVersion=0", "/api/v1/pods?limit=3", "/api/v1/secrets"):
                async with http.get(f"http://{host}:{port}{url}") as answer:
                    await answer.read()
    finally:
        stop.set()
        await asyncio.wait_for(serving, 60)
    usage = await asyncio.to_thread(tally_files, [path], Owners(), frozenset())
    assert {each.caller.words for each in usage.observed.usages} == {"ServiceAccount monitoring/quiet"}
    shapes = {(each.shape.resource, each.shape.version, each.shape.limited) for each in usage.observed.usages}
    assert shapes == {("pods", "0", False), ("pods", "", True), ("secrets", "", False)}
    assert own["Authorization"].removeprefix("Bearer ") not in path.read_text()
