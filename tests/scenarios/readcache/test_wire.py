"""Issue 15.1: the read cache's wire formats, on what a real kube-apiserver sends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from muster.kube.objects.meta import Resource
from muster.kube.objects.selectors import SelectorError
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire import format_for
from muster.readcache.wire.format import Frame, Head, WireFormat
from muster.readcache.wire.selectable import selectable_fields
from tests.support.apiserver import Api
from tests.support.controlplane import RealCluster
from tests.support.waiting import eventually

NAMESPACE = "wire"
HOSTILE = {
    "annotations": {
        "text": '{"metadata":{"resourceVersion":"8"}} <&>\u2028 \\" \u00e9\U0001f600 "resourceVersion":"9"',
        "resourceVersion": "7",
        "uid": "x",
    },
    "labels": {"resourceVersion": "5", "name": "other", "empty": "", "app": "wire"},
}
CONTAINER = {"containers": [{"name": "c", "image": "i"}]}
TEMPLATE = {"metadata": {"labels": {"app": "none"}}, "spec": CONTAINER}
NEVER = {"spec": {**CONTAINER, "restartPolicy": "Never"}}
WIDGET = CachedKind(
    Resource("wire.test", "v1", "widgets", "Widget"), custom=True, selectable=(".spec.color", ".spec.size", ".spec.on")
)
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.wire.test"},
    "spec": {
        "group": "wire.test",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "selectableFields": [{"jsonPath": path} for path in WIDGET.selectable],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "aaa": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "spec": {
                                "type": "object",
                                "nullable": True,
                                "properties": {
                                    "color": {"type": "string"},
                                    "size": {"type": "integer"},
                                    "on": {"type": "boolean"},
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}


def kind(plural: str, name: str, group: str = "", version: str = "v1", *, namespaced: bool = True) -> CachedKind:
    return CachedKind(Resource(group, version, plural, name, namespaced))


PODS = kind("pods", "Pod")
# what to create of each kind, and what to set in its status
OBJECTS: list[tuple[CachedKind, str, dict[str, Any], dict[str, Any]]] = [
    (PODS, "plain", {"spec": CONTAINER}, {"nominatedNodeName": "wire-a"}),
    (
        PODS,
        "bound",
        {"spec": {**CONTAINER, "nodeName": "wire-a", "hostNetwork": True, "restartPolicy": "Never"}},
        {
            "phase": "Running",
            "hostIP": "10.9.8.7",
            "hostIPs": [{"ip": "10.9.8.7"}],
            "podIP": "10.9.8.7",
            "podIPs": [{"ip": "10.9.8.7"}],
        },
    ),
    (kind("nodes", "Node", namespaced=False), "wire-a", {"spec": {"unschedulable": True}}, {}),
    (kind("nodes", "Node", namespaced=False), "wire-b", {}, {}),
    (kind("namespaces", "Namespace", namespaced=False), "wire-other", {}, {}),
    (kind("services", "Service"), "web", {"spec": {"ports": [{"port": 80}], "selector": {"app": "wire"}}}, {}),
    (kind("services", "Service"), "out", {"spec": {"type": "ExternalName", "externalName": "example.com"}}, {}),
    (
        kind("endpointslices", "EndpointSlice", "discovery.k8s.io"),
        "slice",
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.9.8.7"]}], "ports": [{"port": 80}]},
        {},
    ),
    (kind("leases", "Lease", "coordination.k8s.io"), "lease", {"spec": {"holderIdentity": "me"}}, {}),
    (kind("configmaps", "ConfigMap"), "config", {"data": {"metadata": '{"resourceVersion":"4"}'}}, {}),
    (kind("secrets", "Secret"), "secret", {"type": "Opaque", "stringData": {"a": "b"}}, {}),
    (
        kind("events", "Event"),
        "happened",
        {
            "involvedObject": {"kind": "Pod", "namespace": NAMESPACE, "name": "plain", "uid": "u", "apiVersion": "v1"},
            "reason": "Tested",
            "type": "Normal",
            "reportingComponent": "wire.test/c",
        },
        {},
    ),
    (
        kind("replicationcontrollers", "ReplicationController"),
        "controller",
        {"spec": {"replicas": 0, "selector": {"app": "none"}, "template": TEMPLATE}},
        {},
    ),
    (
        kind("jobs", "Job", "batch"),
        "job",
        {"spec": {"suspend": True, "template": NEVER}},
        {},
    ),
    (
        kind("replicasets", "ReplicaSet", "apps"),
        "set",
        {"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "none"}}, "template": TEMPLATE}},
        {},
    ),
    (
        kind("resourceslices", "ResourceSlice", "resource.k8s.io", namespaced=False),
        "devices",
        {
            "spec": {
                "driver": "d.test",
                "nodeName": "wire-a",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [],
            }
        },
        {},
    ),
    (
        WIDGET,
        "widget",
        {"aaa": {"metadata": {"resourceVersion": "3"}}, "spec": {"color": "r,e=d", "size": 4, "on": False}},
        {},
    ),
    (WIDGET, "bare", {"spec": None}, {}),
]
EVENTS = kind("events", "Event", "events.k8s.io")
KINDS = [*dict.fromkeys(each[0] for each in OBJECTS), EVENTS]
FORMATS = [(each, media) for each in KINDS for media in MediaType if not (each.custom and media is MediaType.PROTOBUF)]
NAMES = [f"{each.resource.plural}.{each.resource.group}-{media.name}" for each, media in FORMATS]
every_format = pytest.mark.parametrize(("cached", "media"), FORMATS, ids=NAMES)
every_kind = pytest.mark.parametrize("cached", KINDS, ids=lambda each: f"{each.resource.plural}.{each.resource.group}")


class Raw:
    """Bytes of a real API server."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def get(self, path: str, media: MediaType = MediaType.JSON) -> tuple[int, bytes]:
        with contextlib.closing(self.api.open()) as connection:
            connection.request("GET", path, headers={**self.api.headers, "Accept": media.value})
            response = connection.getresponse()
            assert response.headers["Content-Type"] == media.value
            return response.status, response.read()

    def body(self, path: str, media: MediaType = MediaType.JSON) -> bytes:
        code, body = self.get(path, media)
        assert code == 200, body
        return body

    def watched(self, path: str, wire: WireFormat, until: Callable[[Frame], bool]) -> tuple[bytes, list[Frame]]:
        """What a watch sends up to a frame."""
        decoder, read, frames = wire.decoder(), b"", list[Frame]()
        with contextlib.closing(self.api.open(10)) as connection:
            accept = wire.media_type if wire.media_type == MediaType.JSON.value else wire.watch_media_type
            connection.request("GET", f"{path}&watch=1", headers={**self.api.headers, "Accept": accept})
            response = connection.getresponse()
            assert (response.status, response.headers["Content-Type"]) == (200, accept)
            while not any(map(until, frames)):
                chunk = response.read1(65536)
                assert chunk, "the watch ended"
                read += chunk
                frames += decoder.feed(chunk)
        return read, frames

    def exactly(self, path: str, version: int, media: MediaType = MediaType.JSON) -> bytes:
        """A list at one version: controllers may write between two requests."""
        query = f"resourceVersion={version}&resourceVersionMatch=Exact"
        return self.body(f"{path}{'&' if '?' in path else '?'}{query}", media)


def path_of(cached: CachedKind, name: str = "") -> str:
    return cached.resource.path(NAMESPACE if cached.resource.namespaced else None, name)


@pytest.fixture(scope="module")
def raw(real_control_plane: RealCluster) -> Iterator[Raw]:
    api = Api(real_control_plane.kubeconfig)
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    eventually("widgets are served", lambda: api.send("GET", path_of(WIDGET))[0] == 200)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    eventually("pods may be made", lambda: api.send("GET", account)[0] == 200)
    for cached, name, body, status in OBJECTS:
        resource = cached.resource
        meta = {"name": name, **HOSTILE}
        api.create(
            path_of(cached), {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **body}
        )
        if status:
            merge = "application/merge-patch+json"
            code, answer, _ = api.send(
                "PATCH", f"{path_of(cached, name)}/status", {"status": status}, content_type=merge
            )
            assert code == 200, str(answer)
    yield Raw(api)
    for cached, name, _, _ in OBJECTS:
        api.send("DELETE", f"{path_of(cached, name)}?gracePeriodSeconds=0")
    api.send("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    api.send("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.wire.test")


@every_format
def test_list_is_split_and_put_together_byte_for_byte(raw: Raw, cached: CachedKind, media: MediaType) -> None:
    wire = format_for(cached, media)
    path = path_of(cached)
    bodies = [raw.body(f"{path}{query}", media) for query in ("", "?limit=1", "?labelSelector=none%3Dsuch")]
    for body in bodies:
        meta, datas = wire.split_list(body)
        assert b"".join(wire.listing(datas, meta)) == body
    counts = [len(wire.split_list(body)[1]) for body in bodies]
    assert counts[0] >= 1
    assert counts[1:] == [1, 0]


@every_format
def test_head_says_what_json_says(raw: Raw, cached: CachedKind, media: MediaType) -> None:
    wire = format_for(cached, media)
    listed, datas = wire.split_list(raw.body(path_of(cached), media))
    found = [wire.head(data)._replace(fields={}) for data in datas]
    items = json.loads(raw.exactly(path_of(cached), listed.version))["items"]
    expected = [
        Head(
            meta["name"],
            meta.get("namespace", ""),
            meta["uid"],
            int(meta["resourceVersion"]),
            meta.get("labels", {}),
            {},
        )
        for meta in (item["metadata"] for item in items)
    ]
    assert found == expected


@every_format
def test_fields_have_the_values_that_the_server_selects_by(raw: Raw, cached: CachedKind, media: MediaType) -> None:
    wire = format_for(cached, media)
    selectable = selectable_fields(cached)
    listed, datas = wire.split_list(raw.body(path_of(cached), media))
    heads = [wire.head(data) for data in datas]
    known = {"metadata.name": "name", "metadata.namespace": "namespace"}
    for label in selectable.labels:
        internal = selectable.internal(label)

        def value(head: Head, internal: str = internal) -> str:
            return getattr(head, known[internal]) if internal in known else head.fields.get(internal, "")

        for wanted in {value(head) for head in heads}:
            escaped = wanted.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
            selector = quote(f"{label}={escaped}", safe="")
            selected = json.loads(raw.exactly(f"{path_of(cached)}?fieldSelector={selector}", listed.version))["items"]
            names = {item["metadata"]["name"] for item in selected}
            assert names == {head.name for head in heads if value(head) == wanted}, f"{label}={wanted}"


@every_kind
def test_other_fields_are_refused_as_the_server_does(raw: Raw, cached: CachedKind) -> None:
    labels = (
        "spec.nothing",
        'a"\\\n\x01\x7f\u200b\u00e9\U0001f600',
        "metadata.namespace",
        "source",
        "status.phase",
        "spec.host",
    )
    answers = {label: raw.get(f"{path_of(cached)}?fieldSelector={quote(label + '=x', safe='')}") for label in labels}
    refused = 0
    for label, (code, body) in answers.items():
        if code == 200:
            selectable_fields(cached).internal(label)
            continue
        refused += 1
        with pytest.raises(SelectorError) as caught:
            selectable_fields(cached).internal(label)
        assert str(caught.value) == json.loads(body)["message"]
    assert refused >= 2


@every_format
def test_single_is_the_body_of_a_get(raw: Raw, cached: CachedKind, media: MediaType) -> None:
    wire = format_for(cached, media)

    def same() -> bool:
        datas = wire.split_list(raw.body(path_of(cached), media))[1]
        bodies = {wire.head(data).name: wire.single(data) for data in datas}
        return bodies == {name: raw.body(path_of(cached, name), media) for name in bodies} != {}

    eventually("single() is the body of a get of the same version", same)


@every_format
def test_frames_are_read_and_written_byte_for_byte(raw: Raw, cached: CachedKind, media: MediaType) -> None:
    wire = format_for(cached, media)
    initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    body, frames = raw.watched(f"{path_of(cached)}?{initial}", wire, lambda frame: frame.initial_end)
    (end,) = (frame for frame in frames if frame.initial_end)
    listed = wire.split_list(raw.exactly(path_of(cached), end.version, media))[1]
    assert [frame.data for frame in frames[: frames.index(end)]] == listed
    assert end.version >= max(wire.head(data).version for data in listed)
    assert b"".join(written(wire, frame) for frame in frames) == body


def written(wire: WireFormat, frame: Frame) -> bytes:
    if frame.type == "BOOKMARK":
        return wire.bookmark(frame.version, initial_end=frame.initial_end)
    return wire.frame(frame.type, frame.data)


@pytest.mark.parametrize("media", MediaType)
@pytest.mark.parametrize("selector", ["labelSelector=left%21%3Dyes", "fieldSelector=status.phase%3DPending"])
def test_object_that_leaves_a_selector_is_deleted_at_the_new_version(raw: Raw, media: MediaType, selector: str) -> None:
    wire = format_for(PODS, media)
    name = f"leaves-{selector[:5]}-{media.name.lower()}"
    raw.api.create(path_of(PODS), {"metadata": {"name": name, **HOSTILE}, "spec": CONTAINER})
    before = wire.split_list(raw.body(f"{path_of(PODS)}?fieldSelector=metadata.name%3D{name}", media))[1][0]
    change: dict[str, Any] = {"metadata": {"labels": {"left": "yes"}}, "status": {"phase": "Running"}}
    merge = "application/merge-patch+json"
    for subresource in ("", "/status"):  # the first one changes labels alone
        raw.api.send("PATCH", path_of(PODS, name) + subresource, change, content_type=merge)
    version = wire.head(before).version
    _, frames = raw.watched(
        f"{path_of(PODS)}?resourceVersion={version}&{selector}",
        wire,
        lambda frame: frame.type == "DELETED" and wire.head(frame.data).name == name,
    )
    frames = [frame for frame in frames if wire.head(frame.data).name == name]
    last = frames[-1]
    previous = frames[-2].data if len(frames) > 1 else before
    assert last.type == "DELETED"
    assert wire.head(last.data).version > wire.head(previous).version
    assert wire.at_version(previous, wire.head(last.data).version) == last.data
    raw.api.send("DELETE", f"{path_of(PODS, name)}?gracePeriodSeconds=0")


@pytest.mark.parametrize("media", MediaType)
def test_errors_are_written_as_the_server_does(raw: Raw, media: MediaType) -> None:
    wire = format_for(PODS, media)
    paths = (
        f"{path_of(PODS)}/none",
        f"{path_of(PODS)}?fieldSelector=%3C%26%3E%3Dx",
        f"{path_of(PODS)}?resourceVersion=x",
        f"{path_of(PODS)}?limit=1&continue=x",
        f"{path_of(PODS)}?resourceVersionMatch=Other",
    )
    for path in paths:
        code, body = raw.get(path)
        assert code >= 400
        status = json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":")).encode()
        assert wire.status(status) == raw.get(path, media)[1]
