"""Faults on a real control plane: each is named, and nothing else is found."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web

from muster.kube.connection.pki import CertificateAuthority
from muster.kube.errors import ApiError, TooManyRequests
from muster.kube.objects.core import ConfigMap, Event, ObjectReference
from muster.kube.objects.core import EventSource as Source
from muster.kube.objects.meta import ObjectMeta
from tests.scenarios.doctor.conftest import NODES, Patient

pytestmark = [pytest.mark.real, pytest.mark.slow]


@contextlib.asynccontextmanager
async def repeated(
    act: Callable[[int], Awaitable[object]], clients: int = 1, begun: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Repeat an action in some tasks while the block runs. The block starts after `begun`, or the first action."""
    done = asyncio.Event()

    async def loop(client: int) -> None:
        number = client
        while True:
            with contextlib.suppress(ApiError):
                await act(number)
                done.set()
            number += clients

    tasks = [asyncio.create_task(loop(client)) for client in range(clients)]
    try:
        async with asyncio.timeout(60):
            await (begun or done).wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def examined(patient: Patient, window_s: float = 1.5) -> list[dict[str, Any]]:
    report = await asyncio.to_thread(patient.examine, window_s)
    findings: list[dict[str, Any]] = report["findings"]
    return findings


def culprits(finding: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["kind"], each["name"]) for each in finding["who"]]


def test_healthy_cluster_has_no_finding(patient: Patient) -> None:
    report = patient.examine()
    assert report["findings"] == []
    assert report["nodes"] == NODES
    assert report["plannedNodes"] == 10 * NODES
    unseen = {each["what"] for each in report["unseen"]}
    assert {"cluster DNS", "memory of the API servers' machines"} <= unseen
    assert not any("cannot" in each["why"] for each in report["unseen"])
    assert report["servers"][0]["memoryBytes"] > 2**20


def test_less_rights_are_named_and_the_rest_is_examined(patient: Patient) -> None:
    reader = patient.account("reader", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]})
    report = patient.examine(1.0, "--at=500", kubeconfig=reader)
    assert (report["nodes"], report["plannedNodes"]) == (NODES, 500)
    rights = {each["right"] for each in report["unseen"]}
    assert {
        "get nonResourceURL /metrics",
        "get nonResourceURL /debug/api_priority_and_fairness/*",
        "list events",
        "list daemonsets.apps",
        "list validatingwebhookconfigurations.admissionregistration.k8s.io",
        "list pods in namespace kube-system",
    } <= rights
    assert [each for each in report["unseen"] if "cannot" in each["why"] and not each["right"]] == []


def test_rights_of_the_documentation_suffice(patient: Patient) -> None:
    text = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    manifest = text.partition("```yaml\n")[2].partition("```")[0]
    account = patient.account("doctor")
    subjects = [{"kind": "ServiceAccount", "name": "doctor", "namespace": "agents"}]
    for role in yaml.safe_load_all(manifest):
        meta = {key: value for key, value in role["metadata"].items() if key in ("name", "namespace")}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": meta["name"]}
        binding = {"apiVersion": role["apiVersion"], "kind": f"{role['kind']}Binding", "metadata": meta}
        patient.plane.access.apply(role, binding | {"roleRef": reference, "subjects": subjects})
        options = [f"--namespace={meta['namespace']}"] if "namespace" in meta else []
        patient.until_granted("doctor", role["rules"][0], *options)
    report = patient.examine(1.0, kubeconfig=account)
    assert report["findings"] == []
    assert [each for each in report["unseen"] if each["right"]] == []


async def test_informer_without_limits_is_named(patient: Patient) -> None:
    account = patient.account("lister", {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "large-", "namespace": "agents", "annotations": {"note": "x" * 50_000}},
        "spec": {
            "serviceAccountName": "lister",
            "containers": [{"name": "main", "image": "none"}],
            "nodeName": "node-0",
        },
    }
    async with patient.client() as admin:
        path, body = "/api/v1/namespaces/agents/pods", msgspec.json.encode(pod)
        await asyncio.gather(*(admin.request("POST", path, body=body) for _ in range(60)))
        try:
            async with (
                patient.client(account) as client,
                repeated(lambda number: client.request("GET", "/api/v1/pods")),
            ):
                findings = await examined(patient)
        finally:
            await admin.request("DELETE", "/api/v1/namespaces/agents/pods", params={"gracePeriodSeconds": "0"})
    assert [each["id"] for each in findings] == ["lists-unlimited"]
    assert culprits(findings[0]) == [("ServiceAccount", "agents/lister")]
    (cost,) = findings[0]["costs"]
    assert (cost["growth"], cost["unit"]) == ("perNode", "bytes/s")
    assert cost["planned"] == pytest.approx(10 * cost["today"])


async def test_daemonset_on_endpoints_is_named(patient: Patient) -> None:
    account = patient.account("proxy", {"apiGroups": [""], "resources": ["endpoints"], "verbs": ["list", "watch"]})
    labels = {"app": "proxy"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"serviceAccountName": "proxy", "containers": [{"name": "main", "image": "none"}]},
    }
    daemonset = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "proxy", "namespace": "agents"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    patient.plane.access.apply(daemonset)
    try:
        async with patient.client(account) as client, contextlib.AsyncExitStack() as stack:
            for _ in range(NODES):
                watch = client.stream("GET", "/api/v1/endpoints", params={"watch": "true"})
                await stack.enter_async_context(watch)
            findings = await examined(patient)
    finally:
        patient.plane.access.kubectl("delete", "daemonset", "proxy", "-n", "agents")
    assert [each["id"] for each in findings] == ["endpoints-watched"]
    assert culprits(findings[0]) == [("DaemonSet", "agents/proxy")]
    assert findings[0]["evidence"][0]["value"] >= NODES
    assert findings[0]["costs"][0]["growth"] == "perNodeSquared"


async def test_webhook_of_5_s_is_named(patient: Patient, tmp_path: Path) -> None:
    called = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        review = await request.json()
        called.set()
        await asyncio.sleep(5)
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    authority = CertificateAuthority.create("webhook")
    authority.issue_server("webhook", ("127.0.0.1",)).write(tmp_path / "tls.crt", tmp_path / "tls.key")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    webhook = {
        "name": "slow.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": base64.b64encode(authority.certificate).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "slowed"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    patient.plane.access.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "slowed"}},
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "policies"},
            "webhooks": [webhook],
        },
    )
    try:
        async with patient.client() as client:

            async def create(number: int) -> None:
                meta = ObjectMeta(name=f"slowed-{number}", namespace="slowed")
                await client.create(ConfigMap(metadata=meta))

            async with repeated(create, 4, begun=called):
                findings = await examined(patient, 6.0)
    finally:
        patient.plane.access.kubectl("delete", "validatingwebhookconfiguration", "policies")
        await runner.cleanup()
    assert [each["id"] for each in findings] == ["webhook-slow"]
    assert culprits(findings[0]) == [("ValidatingWebhookConfiguration", "policies")]
    assert findings[0]["evidence"][0]["value"] >= 5


async def test_flood_of_events_is_named(patient: Patient) -> None:
    account = patient.account("noisy", {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]})

    async def write(number: int) -> None:
        meta = ObjectMeta(name=f"flood-{number}", namespace="agents")
        event = Event(
            metadata=meta,
            involved_object=ObjectReference(kind="Pod", namespace="agents", name="some"),
            reason="Flood",
            source=Source(component="noisy-agent"),
        )
        await client.create(event)

    async with patient.client(account) as client, repeated(write, clients=16):
        findings = await examined(patient)
    assert [each["id"] for each in findings] == ["events-flood"]
    who = culprits(findings[0])
    assert ("EventSource", "noisy-agent in namespace agents") in who
    assert {name for kind, name in who if kind == "ServiceAccount"} <= {"agents/noisy"}


async def test_rejected_flow_is_named(patient: Patient) -> None:
    account = patient.account("refused", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]})
    subject = {"kind": "ServiceAccount", "serviceAccount": {"name": "refused", "namespace": "agents"}}
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"], "clusterScope": True}
    api = "flowcontrol.apiserver.k8s.io/v1"
    limited = {"nominalConcurrencyShares": 1, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}
    patient.plane.access.apply(
        {
            "apiVersion": api,
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "refused-level"},
            "spec": {"type": "Limited", "limited": limited | {"borrowingLimitPercent": 0}},
        },
        {
            "apiVersion": api,
            "kind": "FlowSchema",
            "metadata": {"name": "refused-flow"},
            "spec": {
                "priorityLevelConfiguration": {"name": "refused-level"},
                "matchingPrecedence": 100,
                "rules": [{"subjects": [subject], "resourceRules": [rule]}],
            },
        },
    )
    refused = asyncio.Event()
    try:
        async with patient.client(account) as client:

            async def list_once(number: int) -> None:
                try:
                    await client.request("GET", "/api/v1/namespaces/agents/configmaps", retry_refused=False)
                except TooManyRequests:
                    refused.set()

            async with repeated(list_once, 32, begun=refused):
                findings = await examined(patient)
    finally:
        patient.plane.access.kubectl("delete", "flowschema", "refused-flow")
        patient.plane.access.kubectl("delete", "prioritylevelconfiguration", "refused-level")
    assert [each["id"] for each in findings] == ["requests-rejected"]
    assert ("FlowSchema", "refused-flow") in culprits(findings[0])
    assert "refused-level" in findings[0]["title"]


def test_extensions_without_backends_are_named(patient: Patient) -> None:
    def service(name: str) -> dict[str, Any]:
        return {"namespace": "agents", "name": name, "path": "/"}

    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook = {
        "name": "pods.example.com",
        "clientConfig": {"service": service("policies")},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    schema = {"openAPIV3Schema": {"type": "object"}}
    versions = [
        {"name": "v1", "served": True, "storage": True, "schema": schema},
        {"name": "v1beta1", "served": True, "storage": False, "schema": schema},
    ]
    conversion = {"clientConfig": {"service": service("converter")}, "conversionReviewVersions": ["v1"]}
    objects = [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Cluster",
                "names": {"plural": "things", "kind": "Thing"},
                "versions": versions,
                "conversion": {"strategy": "Webhook", "webhook": conversion},
            },
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1.measures.example.com"},
            "spec": {
                "group": "measures.example.com",
                "version": "v1",
                "service": {"namespace": "agents", "name": "measures"},
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "pod-policies"},
            "webhooks": [webhook],
        },
    ]
    kubectl = patient.plane.access.kubectl
    patient.plane.access.apply(*objects)
    try:
        kubectl("wait", "--for=condition=Established", "customresourcedefinition/things.example.com")
        kubectl("wait", "--for=condition=Available=false", "apiservice/v1.measures.example.com")
        kubectl("wait", "--for=create", "apiservice/v1.example.com", "apiservice/v1beta1.example.com")
        findings = {each["id"]: each for each in patient.examine(1.0)["findings"]}
    finally:
        for each in reversed(objects):
            kubectl("delete", str(each["kind"]).lower(), each["metadata"]["name"])
    assert {id_: culprits(each)[0] for id_, each in findings.items()} == {
        "webhook-down": ("MutatingWebhookConfiguration", "pod-policies"),
        "api-unavailable": ("APIService", "v1.measures.example.com"),
        "conversion-down": ("CustomResourceDefinition", "things.example.com"),
    }
    assert {each["severity"] for each in findings.values()} == {"error"}
    intercepted = [each["what"] for each in findings["webhook-down"]["evidence"]]
    assert any("pods in agents" in each for each in intercepted)
    assert any("pods in kube-system" in each for each in intercepted)
