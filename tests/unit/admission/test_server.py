"""The webhook's answers, over a real socket."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from muster.admission.metrics import AdmissionMetrics
from muster.admission.mutate import Home, Rules
from muster.admission.program import serve_https
from muster.admission.server import BODY_BYTES_MAX, AdmissionServer
from muster.kube.objects.struct import decode

KEY = "muster.dev/team"


class Known:
    """What the webhook knows about the cluster."""

    def __init__(self) -> None:
        self.homes = {"red": Home(team="red")}
        self.new = {"fresh": Home(team="blue")}
        self.asked: list[str] = []

    def get(self, namespace: str) -> Home | None:
        return self.homes.get(namespace)

    async def ask(self, namespace: str) -> Home | None:
        self.asked.append(namespace)
        return self.new.get(namespace)

    def without_nodes(self, team: str) -> bool:
        return team == "poor"


class Webhook:
    def __init__(self, url: str, session: aiohttp.ClientSession, known: Known, registry: CollectorRegistry) -> None:
        self.url, self.session, self.known, self.registry = url, session, known, registry

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        data = {"data": io.BytesIO(body)} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(self.url + path, **data) as response:
            return response.status, (await response.json() if response.ok else await response.text())

    async def asked(self, path: str, obj: Any, namespace: str = "red") -> Any:
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u1", "namespace": namespace, "operation": "CREATE", "object": obj},
        }
        status, body = await self.post(path, review)
        assert status == 200, body
        assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert body["response"]["uid"] == "u1"
        return body["response"]

    def counted(self, outcome: str) -> float:
        return self.registry.get_sample_value("muster_admission_requests_total", {"outcome": outcome}) or 0.0


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    known, registry = Known(), CollectorRegistry()
    server = AdmissionServer(known, Rules(KEY), AdmissionMetrics(registry))
    async with serve_https(server.handle, None, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        yield Webhook(f"http://127.0.0.1:{port}", session, known, registry)


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": None}, "spec": {"containers": []}}


def patched(response: Any) -> list[dict[str, Any]]:
    assert response["patchType"] == "JSONPatch"
    return decode(base64.b64decode(response["patch"]), list[dict[str, Any]])


async def test_a_pod_is_filled_in(webhook: Webhook) -> None:
    response = await webhook.asked("/mutate", POD)
    assert response["allowed"] is True
    assert patched(response)[0] == {"op": "add", "path": "/metadata/labels", "value": {KEY: "red"}}
    assert webhook.counted("filled_in") == 1


async def test_a_pod_that_needs_nothing_is_allowed_as_it_is(webhook: Webhook) -> None:
    webhook.known.homes["red"] = Home()
    assert await webhook.asked("/mutate", POD) == {"uid": "u1", "allowed": True}


async def test_a_namespace_too_new_for_the_watch_is_asked_for(webhook: Webhook) -> None:
    assert patched(await webhook.asked("/mutate", POD, "fresh"))[0]["value"] == {KEY: "blue"}
    assert webhook.known.asked == ["fresh"]


async def test_pod_in_an_unknown_namespace_is_allowed_with_a_warning(webhook: Webhook) -> None:
    response = await webhook.asked("/mutate", POD, "gone")
    assert response["allowed"] is True
    assert "patch" not in response
    assert "does not know this namespace's team" in response["warnings"][0]


async def test_a_named_team_without_nodes_uses_the_rest(webhook: Webhook) -> None:
    pod = {**POD, "metadata": {"labels": {KEY: "poor"}}}
    (operation,) = patched(await webhook.asked("/mutate", pod))
    assert operation["path"] == "/spec/affinity"
    assert "DoesNotExist" in str(operation["value"])


async def test_an_allocation_that_cannot_be_used_is_refused_with_its_line(webhook: Webhook) -> None:
    text = "allocations:\n- {nodeSelector: {gpu: h100}, team: red, amount: -3}\n"
    response = await webhook.asked("/allocation", {"metadata": {}, "data": {"teams.yaml": text}})
    assert response["allowed"] is False
    assert "line 2" in response["status"]["message"]
    assert "negative" in response["status"]["message"]


async def test_a_good_allocation_is_allowed(webhook: Webhook) -> None:
    text = "allocations:\n- {nodeSelector: {gpu: h100}, team: red, amount: 25%}\n"
    assert (await webhook.asked("/allocation", {"metadata": {}, "data": {"teams.yaml": text}}))["allowed"] is True


@pytest.mark.parametrize("path", ["/mutate", "/allocation"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b'{"request": {"uid": 7}}', b'{"request": {"uid": "u", "object": {"metadata": []}}}']
)
async def test_invalid_review_gets_an_error_answer(webhook: Webhook, path: str, body: bytes) -> None:
    status, said = await webhook.post(path, body)
    assert status == 400
    assert "no AdmissionReview" in said
    assert webhook.counted("malformed") == 1


async def test_an_endless_question_is_cut_short(webhook: Webhook) -> None:
    status, _ = await webhook.post("/mutate", b" " * (BODY_BYTES_MAX + 1))
    assert status == 413
    assert (await webhook.asked("/mutate", POD))["allowed"] is True


async def test_other_paths_and_methods_are_refused(webhook: Webhook) -> None:
    assert (await webhook.post("/other", POD))[0] == 404
    async with webhook.session.get(webhook.url + "/mutate") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_a_question_has_its_time_limit_in_the_query(webhook: Webhook) -> None:
    assert (await webhook.asked("/mutate?timeout=10s", POD))["allowed"] is True
