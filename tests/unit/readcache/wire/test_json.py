"""Issue 15.1: the JSON of the read cache, read and patched in its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.kube.protobuf import WireError
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire import format_for
from muster.readcache.wire.format import Frame, Head, ListMeta
from tests.unit.readcache.wire.kinds import PODS, WIDGETS, compact, pods, texts, trees, versions, widgets

pod_format, widget_format = (format_for(kind, MediaType.JSON) for kind in (PODS, WIDGETS))
objects = st.one_of(pods().map(lambda pod: (PODS, pod)), widgets().map(lambda widget: (WIDGETS, widget)))


def head_of(value: dict[str, Any], fields: dict[str, str]) -> Head:
    meta = value["metadata"]
    version = int(meta["resourceVersion"])
    return Head(meta["name"], meta.get("namespace", ""), meta["uid"], version, meta.get("labels", {}), fields)


def without_empty(fields: dict[str, str]) -> dict[str, str]:
    return {label: value for label, value in fields.items() if value}


@pytest.mark.slow
@given(pods())
def test_head_of_a_pod_has_its_metadata_and_selectable_fields(pod: dict[str, Any]) -> None:
    spec, status = pod["spec"], pod["status"]
    fields = {
        "spec.nodeName": spec["nodeName"],
        "spec.hostNetwork": "true" if spec["hostNetwork"] else "false",
        "status.phase": status["phase"],
    }
    assert pod_format.head(compact(pod)) == head_of(pod, without_empty(fields))


@given(widgets())
def test_head_of_a_custom_resource_has_the_fields_of_its_definition(widget: dict[str, Any]) -> None:
    spec = widget["spec"] or {}
    fields = {}
    if spec:
        on = "true" if spec["on"] else "false"
        fields = {"spec.color": spec["color"], "spec.size": str(spec["size"]), "spec.on": on}
        fields["spec.deep.er"] = (spec["deep"] or {}).get("er", "")
    assert widget_format.head(compact(widget)) == head_of(widget, without_empty(fields))


@given(objects, versions)
def test_version_is_patched_and_nothing_else(case: tuple[CachedKind, dict[str, Any]], version: int) -> None:
    kind, value = case
    data = compact(value)
    patched = format_for(kind, MediaType.JSON).at_version(data, version)
    value["metadata"]["resourceVersion"] = str(version)
    assert patched == compact(value)


@pytest.mark.slow
@settings(max_examples=30)
@given(pods())
def test_object_with_whitespace_is_patched_in_place(pod: dict[str, Any]) -> None:
    data = json.dumps(pod, indent=1).encode()
    patched = json.loads(pod_format.at_version(data, 12))
    pod["metadata"]["resourceVersion"] = "12"
    assert patched == pod


def test_fields_without_a_value_are_what_the_server_compares_with() -> None:
    data = compact({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}, "status": {}})
    assert pod_format.head(data) == Head("a", "", "", 1, {}, {"spec.hostNetwork": "false"})


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(objects, max_size=3), versions, texts, st.one_of(st.none(), versions))
def test_list_is_put_together_and_split(
    cases: list[tuple[CachedKind, dict[str, Any]]], version: int, token: str, remaining: int | None
) -> None:
    token = token.encode().hex()
    for kind in (PODS, WIDGETS):
        wire = format_for(kind, MediaType.JSON)
        datas = [compact(value) for each, value in cases if each is kind]
        meta = ListMeta(version, token, remaining)
        assert wire.split_list(b"".join(wire.listing(iter(datas), meta))) == (meta, datas)


def test_lists_have_the_members_and_the_order_of_the_server() -> None:
    def listed(kind: CachedKind, meta: ListMeta, *datas: bytes) -> str:
        return b"".join(format_for(kind, MediaType.JSON).listing(datas, meta)).decode()

    assert listed(PODS, ListMeta(5)) == (
        '{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[]}\n'
    )
    assert listed(PODS, ListMeta(5, "x", 0), b"{}", b"{}") == (
        '{"kind":"PodList","apiVersion":"v1","metadata":'
        '{"resourceVersion":"5","continue":"x","remainingItemCount":0},"items":[{},{}]}\n'
    )
    assert listed(WIDGETS, ListMeta(5)) == (
        '{"apiVersion":"example.com/v1","items":[],"kind":"WidgetList","metadata":{"continue":"","resourceVersion":"5"}}\n'
    )
    assert listed(WIDGETS, ListMeta(5, "x", 2), b"{}") == (
        '{"apiVersion":"example.com/v1","items":[{}],"kind":"WidgetList","metadata":'
        '{"continue":"x","remainingItemCount":2,"resourceVersion":"5"}}\n'
    )


def test_list_without_items_is_empty() -> None:
    for items in (',"items":null', ',"items":[]', ""):
        body = f'{{"kind":"PodList","metadata":{{"resourceVersion":"5","continue":""}}{items}}}'.encode()
        assert pod_format.split_list(body) == (ListMeta(5), [])


def test_type_meta_in_items_of_other_servers_is_removed() -> None:
    inner = b'"metadata":{"name":"a"},"spec":{"kind":"Pod"}'
    item = b'{"apiVersion":"v1",%b,"kind":"Pod"}' % inner
    body = b'{"metadata":{"resourceVersion":"5"},"items":[%b]}' % item
    assert pod_format.split_list(body)[1] == [b"{%b}" % inner]


def frames_of(kind: CachedKind, values: list[dict[str, Any]]) -> tuple[bytes, list[Frame]]:
    wire = format_for(kind, MediaType.JSON)
    frames = [Frame("MODIFIED", compact(value)) for value in values]
    sent = [wire.frame(frame.type, frame.data) for frame in frames]
    sent += [wire.bookmark(7), wire.bookmark(8, initial_end=True)]
    frames += [Frame("BOOKMARK", b"", 7), Frame("BOOKMARK", b"", 8, initial_end=True)]
    return b"".join(sent), frames


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "values"), [(PODS, pods()), (WIDGETS, widgets())], ids=["pods", "widgets"])
def test_frames_are_read_wherever_chunks_are_cut(kind: CachedKind, values: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=20)
    @given(st.lists(values, min_size=1, max_size=2), st.data())
    def check(drawn: list[dict[str, Any]], data: st.DataObject) -> None:
        sent, frames = frames_of(kind, drawn)
        cut = data.draw(st.integers(0, len(sent)))
        decoder = format_for(kind, MediaType.JSON).decoder()
        assert decoder.feed(sent[:cut]) + decoder.feed(sent[cut:]) == frames
        decoder = format_for(kind, MediaType.JSON).decoder()
        assert [frame for byte in sent for frame in decoder.feed(bytes([byte]))] == frames

    check()


@pytest.mark.slow
@given(
    st.lists(pods(), min_size=1, max_size=3), st.sampled_from(["", " ", "\r\n", "\n\n \t"]), st.booleans(), st.data()
)
def test_frames_of_any_whitespace_are_read(
    values: list[dict[str, Any]], between: str, pretty: bool, data: st.DataObject
) -> None:
    events = [{"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1", **value}} for value in values]
    sent = between.join(json.dumps(event, indent=2 if pretty else None) for event in events).encode()
    cut = data.draw(st.integers(0, len(sent)))
    decoder = pod_format.decoder()
    frames = decoder.feed(sent[:cut]) + decoder.feed(sent[cut:]) + decoder.feed(between.encode())
    assert [(frame.type, json.loads(frame.data)) for frame in frames] == [("ADDED", value) for value in values]


def test_frame_is_bounded() -> None:
    decoder = pod_format.decoder()
    megabyte = 1024 * 1024
    start = b'{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"'
    for part in (start, *[b"a" * megabyte] * 15):
        assert decoder.feed(part) == []
    with pytest.raises(WireError, match="larger than 16777216 bytes"):
        decoder.feed(b"a" * megabyte)


@pytest.mark.parametrize(
    "sent",
    [
        b"<html>",
        b"[]\n",
        b'"text"\n',
        b'{"type":"ADDED"}\n',
        b'{"type":1,"object":{}}\n',
        b'{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{}}}\n',
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"x"}}}\n',
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1"}}\n',
        b'{"type":"ADDED","object":{]}}\n',
        b'{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{}},}\n',
    ],
)
def test_other_bytes_than_a_watch_are_refused(sent: bytes) -> None:
    with pytest.raises(WireError):
        pod_format.decoder().feed(sent)


@settings(max_examples=30)
@given(pods(), st.data())
def test_cut_objects_are_refused(pod: dict[str, Any], data: st.DataObject) -> None:
    whole = compact(pod)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for read in (pod_format.head, lambda part: pod_format.at_version(part, 1), pod_format.split_list):
        with pytest.raises(WireError):
            read(cut)


@pytest.mark.parametrize("version", ['""', '"-1"', '"1.5"', '"x"', '"\u0663"', "5", "null"])
def test_version_that_is_not_a_number_is_refused(version: str) -> None:
    with pytest.raises(WireError):
        pod_format.head(f'{{"metadata":{{"name":"a","resourceVersion":{version}}}}}'.encode())


def test_member_that_lies_in_an_object_twice_is_refused() -> None:
    for version in (b"1", b"2"):
        first, last = b'"metadata":{"resourceVersion":"1"}', b'"metadata":{"resourceVersion":"%b"}' % version
        with pytest.raises(WireError, match="twice"):
            pod_format.at_version(b'{%b,"spec":{},%b}' % (first, last), 5)
    with pytest.raises(WireError, match="twice"):
        pod_format.at_version(b'{"metadata":{"resourceVersion":"1234}x","resourceVersion":"555"}}', 5)
    with pytest.raises(WireError, match="resourceVersion"):
        pod_format.at_version(b'{"metadata":{"name":"a"}}', 5)


@settings(max_examples=30)
@given(trees)
def test_bookmark_keeps_the_empty_object_of_the_server(rest: Any) -> None:
    wire = format_for(PODS, MediaType.JSON)
    object_ = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "205"}, "spec": rest, "status": {}}
    sent = compact({"type": "BOOKMARK", "object": object_}) + b"\n"
    assert wire.decoder().feed(sent) == [Frame("BOOKMARK", b"", 205)]
    assert wire.bookmark(205) == sent
    end = sent.replace(b'"205"', b'"9","annotations":{"k8s.io/initial-events-end":"true"}', 1)
    assert wire.bookmark(9, initial_end=True) == end


def test_statuses_are_escaped_as_the_server_does() -> None:
    status = '{"kind":"Status","message":"<a> & b\u2028"}'.encode()
    escaped = b'{"kind":"Status","message":"\\u003ca\\u003e \\u0026 b\\u2028"}'
    assert pod_format.status(status) == escaped + b"\n"
    assert pod_format.status(escaped) == escaped + b"\n"
    assert pod_format.error_frame(status) == b'{"type":"ERROR","object":%b}\n' % escaped
    assert pod_format.decoder().feed(pod_format.error_frame(status)) == [Frame("ERROR", escaped)]
