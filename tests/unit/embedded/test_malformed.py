"""Issue 11.14: the embedded API server answers malformed requests with 4xx and a Status, never with 500."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from muster.api.crd import KINDS, definition
from muster.embedded.apiserver.request import Request, Response
from muster.embedded.apiserver.verbs.watches import WatchResponse
from tests.scenarios.apiserver.malformed import BODIES, DEEP, EXISTING, NS, Malformed, requests
from tests.support.apicore import Cluster


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    cluster = Cluster()
    for kind in KINDS:
        cluster.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
    for path, obj in EXISTING:
        cluster.ok("POST", path, obj)
    return cluster


def answer(cluster: Cluster, asked: Malformed) -> tuple[int, Any]:
    path, _, query = asked.path.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    request = Request(asked.method, path, parameters, {"content-type": asked.content_type}, asked.body)
    given = cluster.core.handle(request)
    if isinstance(given, WatchResponse):
        given.close()
        return 200, {}
    assert isinstance(given, Response)
    return given.code, given.json()


@pytest.mark.slow
async def test_malformed_requests_never_fail_the_server(cluster: Cluster) -> None:
    wrong = []
    for asked in requests():
        try:
            code, said = answer(cluster, asked)
        except Exception as error:  # the server's face makes a 500 of it
            wrong.append(f"{asked.name}: {type(error).__name__}: {error}")
            continue
        if code >= 500 and "Too large resource version" not in said["message"]:
            wrong.append(f"{asked.name}: {said}")
        if code >= 400 and (said.get("kind"), said.get("status"), said.get("code")) != ("Status", "Failure", code):
            wrong.append(f"{asked.name}: {said}")
    assert wrong == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (DEEP, "nested too deeply"),
        (BODIES["deep name"], "nested too deeply"),
        (BODIES["kind {}"], "kind has to be a string"),
        (b'{"metadata": {"name": 5}}', "Expected str, got int at metadata.name"),
        (b'{"metadata": {"name": "x"}, "data": {"a": {}}}', "Expected str, got object at data[...]"),
    ],
)
def test_invalid_field_is_reported(cluster: Cluster, body: bytes, said: str) -> None:
    code, status = answer(cluster, Malformed("", "POST", f"{NS}/configmaps", body))
    assert code == 400
    assert said in status["message"]


def test_a_binding_needs_a_target(cluster: Cluster) -> None:
    code, status = answer(cluster, Malformed("", "POST", f"{NS}/pods/p/binding", b'{"metadata": {"name": "p"}}'))
    assert (code, status["reason"]) == (422, "Invalid")
    assert "target.name: Required value" in status["message"]


def test_unknown_fields_are_dropped_with_a_warning_or_refused(cluster: Cluster) -> None:
    body = json.dumps({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i", "imag": "j"}]}})
    path = f"{NS}/pods?dryRun=All"
    given = cluster.core.handle(Request("POST", path[: path.index("?")], {"dryRun": "All"}, {}, body.encode()))
    assert isinstance(given, Response)
    assert given.warnings == ['unknown field "spec.containers[0].imag"']
    assert "imag" not in given.json()["spec"]["containers"][0]
    code, status = answer(cluster, Malformed("", "POST", f"{path}&fieldValidation=Strict", body.encode()))
    assert code == 400
    assert 'strict decoding error: unknown field "spec.containers[0].imag"' in status["message"]


def test_nulls_are_the_same_as_missing_fields(cluster: Cluster) -> None:
    container = b'{"name": "c", "image": "i", "env": null}'
    body = b'{"metadata": {"name": "n", "labels": null}, "spec": {"containers": [%s]}}' % container
    code, made = answer(cluster, Malformed("", "POST", f"{NS}/pods?dryRun=All", body))
    assert code == 201
    assert "env" not in made["spec"]["containers"][0]
