"""Which requests the cache answers, and in which media type."""

from __future__ import annotations

import pytest

from muster.readcache.media import MediaType
from muster.readcache.reads.accept import chosen_media, error_media
from muster.readcache.reads.reads import refused
from muster.readcache.reads.statuses import not_found
from muster.readcache.reads.targets import parse_target
from muster.readcache.request import Target
from muster.readcache.wire import format_for
from tests.unit.readcache.reads.loaded import JOBS, KINDS, NODES, PODS, request

JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/pods", Target("list", PODS)),
        ("/api/v1/namespaces/a/pods", Target("list", PODS, "a")),
        ("/api/v1/namespaces/a/pods?watch=1", Target("watch", PODS, "a")),
        ("/api/v1/pods?watch=", Target("watch", PODS)),
        ("/api/v1/pods?watch=False", Target("list", PODS)),
        ("/api/v1/pods?watch=0&timeout=30s", Target("list", PODS)),
        ("/api/v1/namespaces/a/pods/x?resourceVersion=0", Target("get", PODS, "a", "x")),
        ("/api/v1/nodes/n?resourceVersion=0", Target("get", NODES, "", "n")),
        ("/apis/muster.dev/v1alpha1/trainingjobs", Target("list", JOBS)),
        ("/apis/muster.dev/v1alpha1/namespaces/a/trainingjobs/x", Target("get", JOBS, "a", "x")),
    ],
)
def test_target_of_a_request_that_the_cache_answers(path: str, target: Target) -> None:
    assert parse_target(request(path), KINDS) == target


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/watch/pods",
        "/api/v1/watch/namespaces/a/pods",
        "/api/v1/namespaces/a/pods/x/log",
        "/api/v1/namespaces/a/pods/x/status",
        "/api/v1/namespaces/a/services",
        "/api/v1/pods/x",
        "/api/v1/namespaces/a/nodes",
        "/api/v1/pods/",
        "/api/v1//pods",
        "//api/v1/pods",
        "/api/v1/namespaces/../pods",
        "/api/v1/namespaces/a%2Fb/pods",
        "/api/v1/%70ods",
        "/api/v2/pods",
        "/apis/v1/pods",
        "/apis/muster.dev/v1/trainingjobs",
        "/api/v1",
        "/healthz",
        "/",
        "/api/v1/pods?unknown=1",
        "/api/v1/pods?dryRun=All",
        "/api/v1/pods?shardSelector=x",
        "/api/v1/namespaces/a/pods/x?export=1",
        "/api/v1/namespaces/a/pods/x?labelSelector=a",
        "/api/v1/pods?pretty=true",
        "/api/v1/pods?watch=1&pretty=1",
        "/api/v1/pods?timeout=1s",
        "/api/v1/pods?timeout=0",
        "/api/v1/pods?timeout=abc",
    ],
)
def test_other_paths_and_parameters_are_forwarded(path: str) -> None:
    assert parse_target(request(path), KINDS) is None


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get"])
def test_other_methods_are_forwarded(method: str) -> None:
    assert parse_target(request("/api/v1/pods", method=method), KINDS) is None


def test_upgrades_and_indented_json_for_people_are_forwarded() -> None:
    assert parse_target(request("/api/v1/pods?watch=1", upgrade="websocket"), KINDS) is None
    assert parse_target(request("/api/v1/pods", user_agent="curl/8.1"), KINDS) is None
    assert parse_target(request("/api/v1/pods", user_agent="Mozilla/5.0 (X11)"), KINDS) is None
    assert parse_target(request("/api/v1/pods?pretty=false", user_agent="curl/8.1"), KINDS) is not None


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", MediaType.JSON),
        ("*/*", MediaType.JSON),
        (JSON, MediaType.JSON),
        (PROTOBUF, MediaType.PROTOBUF),
        (f"{PROTOBUF},{JSON}", MediaType.PROTOBUF),
        (f"{JSON},{PROTOBUF}", MediaType.JSON),
        (f"{JSON};q=0.5,{PROTOBUF}", MediaType.PROTOBUF),
        (f"{JSON};q=0.5, {PROTOBUF};q=0.4", MediaType.JSON),
        (f"{JSON};q=nonsense,{PROTOBUF};q=0.1", MediaType.PROTOBUF),
        (f"*/*,{PROTOBUF}", MediaType.PROTOBUF),
        (f"text/html,{JSON};charset=utf-8", MediaType.JSON),
        (f"application/cbor,{JSON}", MediaType.JSON),
        (f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}", None),
        (f"{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io", None),
        ("application/cbor", None),
        ("application/yaml", None),
        ("text/html", None),
        ("application/*", None),
        (f"{JSON};pretty=1", None),
        (f"{JSON};stream=watch", None),
        (",".join([JSON] * 13), None),
    ],
)
def test_media_type_of_a_built_in_kind(accept: str, media: MediaType | None) -> None:
    assert chosen_media(accept, PODS, watch=False) is media


def test_media_type_of_a_custom_kind_is_json_but_its_errors_may_be_protobuf() -> None:
    accept = f"{PROTOBUF},{JSON}"
    assert chosen_media(accept, JOBS, watch=False) is MediaType.JSON
    assert error_media(accept, watch=False) is MediaType.PROTOBUF
    assert chosen_media(PROTOBUF, JOBS, watch=False) is None
    assert chosen_media(f"{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON}", JOBS, watch=False) is None


def test_error_about_a_custom_kind_is_protobuf_if_the_client_prefers_it() -> None:
    answer = refused(not_found(JOBS.resource, "x"), format_for(JOBS, MediaType.JSON), MediaType.PROTOBUF)
    assert (answer.status, answer.content_type) == (404, PROTOBUF)
    assert b"".join(answer.body).startswith(b"k8s\x00")


def test_stream_parameter_is_for_watches_only() -> None:
    assert chosen_media(f"{PROTOBUF};stream=watch", PODS, watch=True) is MediaType.PROTOBUF
    assert chosen_media(f"{PROTOBUF};stream=other", PODS, watch=True) is None
