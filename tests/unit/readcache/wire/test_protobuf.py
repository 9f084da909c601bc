"""Issue 15.1: the protobuf of the read cache, read and patched in its bytes."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.kube.protobuf import WireError
from muster.readcache.media import MediaType
from muster.readcache.wire import format_for
from muster.readcache.wire.format import Frame, Head, ListMeta
from tests.unit.readcache.wire.kinds import PODS, WIDGETS, maps, texts, versions

pod_format = format_for(PODS, MediaType.PROTOBUF)


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


numbers = st.integers(20, 5000)
unknown = st.one_of(
    st.builds(field, numbers, st.integers(0, 2**64 - 1)),
    st.builds(field, numbers, texts),
    st.builds(lambda number, data: varint(number << 3 | 5) + data, numbers, st.binary(min_size=4, max_size=4)),
    st.builds(lambda number, data: varint(number << 3 | 1) + data, numbers, st.binary(min_size=8, max_size=8)),
)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes, Head]:
    """A pod, the same one at version 7, and its head; fields in any order among unknown ones."""
    texts_of = {number: draw(texts) for number in (1, 3, 5)}
    version, labels, node, phase = draw(versions), draw(maps), draw(texts), draw(texts)
    host_network = draw(st.sampled_from((None, 0, 1)))
    pairs = [draw(st.permutations([field(1, key), field(2, value)])) for key, value in labels.items()]
    entries = [field(11, b"".join(pair)) for pair in pairs]
    annotations = [field(12, field(1, key) + field(2, value)) for key, value in draw(maps).items()]
    managed = [field(17, field(1, draw(texts)) + field(6, "999"))]
    others = [field(number, text) for number, text in texts_of.items()]
    others += draw(st.lists(unknown, max_size=2))
    parts = draw(st.permutations([*others, *entries, *annotations, *managed, b"V"]))
    spec_parts = [field(10, node), field(2, field(6, "5")), *draw(st.lists(unknown, max_size=2))]
    if host_network is not None:
        spec_parts.append(field(11, host_network))
    spec = field(2, b"".join(draw(st.permutations(spec_parts))))
    status = field(3, b"".join(draw(st.permutations([field(1, phase), field(6, "10.0.0.1")]))))
    around = draw(st.permutations([b"M", spec, status, *draw(st.lists(unknown, max_size=1))]))

    def written(version: int) -> bytes:
        meta = b"".join(field(6, str(version)) if part == b"V" else part for part in parts)
        return b"".join(field(1, meta) if part == b"M" else part for part in around)

    fields = {
        "spec.nodeName": node,
        "spec.hostNetwork": "true" if host_network else "false",
        "status.phase": phase,
        "status.podIP": "10.0.0.1",
    }
    fields = {label: value for label, value in fields.items() if value}
    head = Head(texts_of[1], texts_of[3], texts_of[5], version, labels, fields)
    return written(version), written(7), head


@pytest.mark.slow
@given(messages())
def test_head_of_a_pod_has_its_metadata_and_selectable_fields(case: tuple[bytes, bytes, Head]) -> None:
    data, _, head = case
    assert pod_format.head(data) == head


@given(messages())
def test_version_is_patched_with_all_lengths_around_it(case: tuple[bytes, bytes, Head]) -> None:
    data, patched, _ = case
    assert pod_format.at_version(data, 7) == patched


@pytest.mark.parametrize(
    ("entry", "labels"),
    [
        (b"", {"": ""}),
        (field(1, "a"), {"a": ""}),
        (field(2, "b"), {"": "b"}),
        (field(1, "a") + field(3, "x"), {"a": ""}),
        (field(1, "a") + field(1, "b") + field(2, "c"), {"b": "c"}),
        (field(1, "k" * 129 + "\x12") + field(2, "v" * 17), {"k" * 129 + "\x12": "v" * 17}),
    ],
)
def test_labels_are_read_however_their_entries_are_written(entry: bytes, labels: dict[str, str]) -> None:
    assert pod_format.head(field(1, field(6, "1") + field(11, entry))).labels == labels


def test_object_that_is_cut_inside_of_a_field_is_refused() -> None:
    first, last = field(1, field(1, "a") + field(6, "123")), field(3, field(1, "Running"))
    whole = first + last
    assert pod_format.head(whole).fields["status.phase"] == "Running"
    for cut in {*range(len(whole))} - {len(first)}:
        with pytest.raises(WireError):
            pod_format.head(whole[:cut])


def test_last_of_repeated_fields_counts_and_parts_are_merged() -> None:
    first = field(1, field(1, "old") + field(6, "1") + field(11, field(1, "a") + field(2, "1")))
    second = field(1, field(1, "new") + field(3, "n") + field(11, field(1, "b")) + field(11, field(2, "no key")))
    data = first + field(2, field(10, "x")) + second + field(2, field(10, "y"))
    fields = {"spec.nodeName": "y", "spec.hostNetwork": "false"}
    assert pod_format.head(data) == Head("new", "n", "", 1, {"a": "1", "b": "", "": "no key"}, fields)
    with_both = first + field(1, field(6, "2"))
    assert pod_format.head(with_both).version == 2
    assert pod_format.head(pod_format.at_version(with_both, 900)).version == 900


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=300), max_size=4), versions, texts, st.one_of(st.none(), versions))
def test_list_is_put_together_and_split(datas: list[bytes], version: int, token: str, remaining: int | None) -> None:
    meta = ListMeta(version, token, remaining)
    assert pod_format.split_list(b"".join(pod_format.listing(iter(datas), meta))) == (meta, datas)


def test_lists_are_written_as_the_server_does() -> None:
    inside = field(1, field(1, "") + field(2, "205") + field(3, "x") + field(4, 0)) + field(2, b"\x0a\x00")
    type_ = field(1, field(1, "v1") + field(2, "PodList"))
    body = b"k8s\x00" + type_ + field(2, inside) + field(3, "") + field(4, "")
    assert b"".join(pod_format.listing([b"\x0a\x00"], ListMeta(205, "x", 0))) == body


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(messages(), min_size=1, max_size=2), st.data())
def test_frames_are_read_wherever_chunks_are_cut(cases: list[tuple[bytes, bytes, Head]], data: st.DataObject) -> None:
    frames = [Frame("MODIFIED", case[0]) for case in cases]
    sent = b"".join(pod_format.frame(frame.type, frame.data) for frame in frames)
    sent += pod_format.bookmark(7) + pod_format.bookmark(8, initial_end=True)
    frames += [Frame("BOOKMARK", b"", 7), Frame("BOOKMARK", b"", 8, initial_end=True)]
    cut = data.draw(st.integers(0, len(sent)))
    decoder = pod_format.decoder()
    assert decoder.feed(sent[:cut]) + decoder.feed(sent[cut:]) == frames
    decoder = pod_format.decoder()
    assert [frame for byte in sent for frame in decoder.feed(bytes([byte]))] == frames


def test_frame_is_bounded_before_it_is_read() -> None:
    with pytest.raises(WireError, match="16777217 bytes is larger than 16777216 bytes"):
        pod_format.decoder().feed((16 * 1024 * 1024 + 1).to_bytes(4, "big"))


def enveloped(raw: bytes, kind: str = "Pod", magic: bytes = b"k8s\x00") -> bytes:
    return magic + field(1, field(1, "v1") + field(2, kind)) + field(2, raw)


@pytest.mark.parametrize(
    "event",
    [
        b"",
        field(1, "ADDED"),
        field(2, field(1, enveloped(b""))),
        field(1, "ADDED") + field(2, field(1, enveloped(b"", "Node"))),
        field(1, "ADDED") + field(2, field(1, enveloped(b"", magic=b"k8s\x01"))),
        field(1, "BOOKMARK") + field(2, field(1, enveloped(field(1, field(6, "x"))))),
        b"\x0a\x7f",
        b"\x0b",
    ],
)
def test_other_bytes_than_a_watch_are_refused(event: bytes) -> None:
    with pytest.raises(WireError):
        pod_format.decoder().feed(len(event).to_bytes(4, "big") + event)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_wire_error(data: bytes) -> None:
    patch = functools.partial(pod_format.at_version, version=1)
    for read in (pod_format.head, pod_format.split_list, pod_format.decoder().feed, patch):
        try:
            read(data)
        except WireError as error:
            assert str(error)  # noqa: PT017


def test_bookmark_keeps_the_empty_object_of_the_server() -> None:
    wire = format_for(PODS, MediaType.PROTOBUF)
    end = field(12, field(1, "k8s.io/initial-events-end") + field(2, "true"))
    before, after = field(1, "") + field(3, ""), field(7, 0) + field(8, b"")
    rest = field(2, field(3, "")) + field(3, field(1, ""))

    def sent(version: str, annotations: bytes = b"") -> bytes:
        return wire.frame("BOOKMARK", field(1, before + field(6, version) + after + annotations) + rest)

    assert wire.decoder().feed(sent("205", end)) == [Frame("BOOKMARK", b"", 205, initial_end=True)]
    assert wire.bookmark(7) == sent("7")
    assert wire.bookmark(1234, initial_end=True) == sent("1234", end)


STATUSES: list[dict[str, Any]] = [
    {"status": "Failure", "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410},
    {"metadata": {"continue": "x"}, "status": "Failure", "message": "<&>\u2028", "details": {"retryAfterSeconds": 1}},
    {
        "status": "Failure",
        "message": "x" * 200,
        "reason": "Invalid",
        "details": {
            "name": "a",
            "group": "g",
            "kind": "k",
            "uid": "u",
            "causes": [{"reason": "r", "message": "m", "field": "f"}, {"message": "m"}],
        },
        "code": 422,
    },
]


@pytest.mark.parametrize("status", STATUSES, ids=["expired", "retry", "invalid"])
def test_status_survives_protobuf(status: dict[str, Any]) -> None:
    whole = {"kind": "Status", "apiVersion": "v1", "metadata": {}, **status}
    (frame,) = pod_format.decoder().feed(pod_format.error_frame(json.dumps(whole).encode()))
    assert frame.type == "ERROR"
    assert json.loads(frame.data) == whole


def test_status_that_is_not_json_is_refused() -> None:
    with pytest.raises(WireError, match="Status"):
        pod_format.status(b'{"code":"x"}')


def test_custom_resources_have_no_protobuf() -> None:
    with pytest.raises(ValueError, match="widgets have no protobuf; use JSON"):
        format_for(WIDGETS, MediaType.PROTOBUF)


def test_number_without_an_end_is_refused() -> None:
    with pytest.raises(WireError, match="more than 10 bytes"):
        pod_format.head(field(1, field(6, "1")) + b"\x08" + b"\x80" * 20 + b"\x01")
