"""Verb and object of a request are read from its path and query as kube-apiserver reads them."""

from __future__ import annotations

import pytest

from muster.kube.requestinfo import RequestInfo, request_info


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {}, RequestInfo("list", "", "v1", "pods")),
        ("GET", "/api/v1/pods", {"watch": "1"}, RequestInfo("watch", "", "v1", "pods")),
        ("GET", "/api/v1/pods", {"watch": "false"}, RequestInfo("list", "", "v1", "pods")),
        ("GET", "/api/v1/nodes/n1", {}, RequestInfo("get", "", "v1", "nodes", "", "", "n1")),
        ("HEAD", "/api/v1/nodes/n1", {}, RequestInfo("get", "", "v1", "nodes", "", "", "n1")),
        ("GET", "/api/v1/namespaces", {}, RequestInfo("list", "", "v1", "namespaces")),
        ("GET", "/api/v1/namespaces/a", {}, RequestInfo("get", "", "v1", "namespaces", "", "a", "a")),
        ("PUT", "/api/v1/namespaces/a/status", {}, RequestInfo("update", "", "v1", "namespaces", "status", "a", "a")),
        ("GET", "/api/v1/namespaces/a/pods", {}, RequestInfo("list", "", "v1", "pods", "", "a")),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            {},
            RequestInfo("patch", "apps", "v1", "deployments", "scale", "a", "d"),
        ),
        ("DELETE", "/api/v1/namespaces/a/pods", {}, RequestInfo("deletecollection", "", "v1", "pods", "", "a")),
        ("DELETE", "/api/v1/namespaces/a/pods/p", {}, RequestInfo("delete", "", "v1", "pods", "", "a", "p")),
        ("POST", "/api/v1/namespaces/a/pods", {}, RequestInfo("create", "", "v1", "pods", "", "a")),
        (
            "GET",
            "/api/v1/nodes",
            {"fieldSelector": "metadata.name=n1"},
            RequestInfo("list", "", "v1", "nodes", "", "", "n1"),
        ),
        ("GET", "/api/v1/nodes", {"fieldSelector": "metadata.name!=n1"}, RequestInfo("list", "", "v1", "nodes")),
        ("GET", "/version", {}, RequestInfo("get")),
        ("GET", "/apis", {}, RequestInfo("get")),
        ("GET", "/apis/apps/v1", {}, RequestInfo("get")),
        ("GET", "/api/v1", {}, RequestInfo("get")),
        ("GET", "/", {}, RequestInfo("get")),
    ],
)
def test_request_is_read_as_the_api_server_reads_it(
    method: str, path: str, query: dict[str, str], expected: RequestInfo
) -> None:
    assert request_info(method, path, query) == expected
