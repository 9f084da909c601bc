"""Issue 11.14: malformed requests get the same class of status from the embedded and from the real API server."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from muster.api.crd import KINDS, definition
from muster.embedded.apiserver.types import field_table
from muster.embedded.apiserver.types.field_writer import GROUPS, table_of
from tests.scenarios.apiserver.malformed import EXISTING, JOBS, KNOWN_DIFFERENCES, Malformed, requests
from tests.support.apiserver import Api
from tests.support.controlplane import RealCluster
from tests.support.waiting import eventually

EVERY = 17
"""Of thousands of requests each so many is sent: the unit test sends all to the embedded server."""
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextmanager
def prepared(api: Api) -> Iterator[http.client.HTTPSConnection]:
    """The objects that requests are about, and one connection for all of them."""
    for kind in KINDS:
        assert api.send("POST", _CRDS, definition(kind))[0] in (201, 409)
    eventually("jobs are served", lambda: api.send("GET", "/apis/muster.dev/v1alpha1/trainingjobs")[0] == 200)
    for path, obj in EXISTING:
        made = eventually(f"{path} takes it", lambda path=path, obj=obj: api.send("POST", path, obj)[0] in (201, 409))
        assert made
    connection = api.open()
    try:
        yield connection
    finally:
        connection.close()
        api.send("DELETE", f"{JOBS}/j")
        api.send("DELETE", "/api/v1/nodes/malformed-node")
        api.send("DELETE", "/api/v1/namespaces/malformed")


def code_of(api: Api, connection: http.client.HTTPSConnection, asked: Malformed) -> int:
    headers = {"Accept": "application/json", "Content-Type": asked.content_type, **api.headers}
    for fresh in (False, True):  # a server may close the connection after it refused a body
        try:
            connection.request(asked.method, asked.path.replace("²", "%C2%B2"), asked.body or None, headers)
            with connection.getresponse() as response:
                response.read()
                return response.status
        except (http.client.HTTPException, OSError):
            connection.close()
            if fresh:
                break
    return 0  # kube-apiserver itself gives up on some


@pytest.mark.kubernetes_since("1.36")  # the version that the embedded server answers as
def test_malformed_requests_are_judged_as_the_real_server_does(embedded: Api, real_control_plane: RealCluster) -> None:
    real = Api(real_control_plane.kubeconfig)
    differ, failed = [], []
    with prepared(embedded) as ours, prepared(real) as theirs:
        for asked in requests()[::EVERY]:
            mine, other = code_of(embedded, ours, asked), code_of(real, theirs, asked)
            if mine == 0 or (mine >= 500 and mine != other):
                failed.append(f"{asked.name}: {mine}")
            known = any(re.search(pattern, asked.name) for pattern in KNOWN_DIFFERENCES)
            if mine // 100 != other // 100 and not known:
                differ.append(f"{asked.name}: ours {mine}, real {other}")
    assert failed == []
    assert differ == []


@pytest.mark.kubernetes_since("1.36")  # the version that the embedded server answers as
def test_the_field_table_is_what_the_real_server_publishes(real_control_plane: RealCluster) -> None:
    """Issue 11.31: names and types of built-in kinds' fields, for `kubectl explain` and for the check of types."""
    api = Api(real_control_plane.kubeconfig)
    published = table_of([api.get(f"/openapi/v3/{group}") for group in GROUPS])
    assert field_table.parse(published) == field_table.field_table()
