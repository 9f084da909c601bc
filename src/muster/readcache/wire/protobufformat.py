"""The protobuf of one built-in kind, as kube-apiserver writes it.

Envelope: k8s.io/apimachinery pkg/runtime/serializer/protobuf; messages: the generated.proto files of
pkg/apis/meta/v1 and pkg/runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from muster.kube.protobuf import VARINT, fields, tag
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire.format import BOOKMARK, ERROR, INITIAL_END, Head, ListMeta, parse_version
from muster.readcache.wire.protoenvelope import Envelope
from muster.readcache.wire.protoframes import LENGTH, ProtobufDecoder
from muster.readcache.wire.protoscan import (
    Entry,
    Flag,
    Number,
    Texts,
    Wanted,
    number,
    numbered,
    read,
    replaced,
    sized,
    without,
)
from muster.readcache.wire.protostatus import encode_status
from muster.readcache.wire.selectable import SelectableFields, selectable_fields

_METADATA: Final = 1
_RESOURCE_VERSION: Final = 6
_ANNOTATIONS: Final = 12
_ITEMS: Final = 2
_INITIAL_END: Final = sized(_ANNOTATIONS, sized(1, INITIAL_END.encode()) + sized(2, b"true"))
_META: Final[Wanted] = {tag(1): "name", tag(3): "namespace", tag(5): "uid", tag(6): "version", tag(11): Entry("labels")}
_LIST_META: Final[Wanted] = {
    tag(_METADATA): {tag(2): "version", tag(3): "continue", tag(4, VARINT): Number("remaining")},
}


class ProtobufFormat:
    """WireFormat for protobuf."""

    media_type = MediaType.PROTOBUF.value
    watch_media_type = MediaType.PROTOBUF.watch

    def __init__(self, kind: CachedKind) -> None:
        if kind.custom:
            raise ValueError(f"custom resources such as {kind.resource.plural} have no protobuf; use JSON")
        self._bookmark = sized(_METADATA, sized(_RESOURCE_VERSION, b"0"))
        self._selectable = selectable_fields(kind)
        self._wanted = _wanted(self._selectable)
        self._object = Envelope(kind.resource.api_version, kind.resource.kind)
        self._list = Envelope(kind.resource.api_version, kind.list_kind)

    def head(self, data: bytes) -> Head:
        """Reads an object's metadata. Raises WireError."""
        found: dict[str, Any] = {}
        read(data, 0, len(data), self._wanted, found)
        pop = found.pop
        meta = pop("name", ""), pop("namespace", ""), pop("uid", ""), parse_version(pop("version", ""))
        return Head(*meta, pop("labels", None) or {}, self._selectable.complete(found))

    def at_version(self, data: bytes, version: int) -> bytes:
        """Returns the object with another resourceVersion. Raises WireError."""
        text = str(version).encode()
        return replaced(data, _METADATA, lambda meta: replaced(meta, _RESOURCE_VERSION, lambda _: text))

    def single(self, data: bytes) -> bytes:
        """Returns the body of a get."""
        return self._object.around(data)

    def frame(self, type_: str, data: bytes) -> bytes:
        """Returns a whole event of a watch."""
        return _frame(type_, self._object.around(data))

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """Returns a whole BOOKMARK event, with the empty object of the server's bookmarks once a decoder read one."""
        data = self.at_version(self._bookmark, version)
        if initial_end:
            data = replaced(data, _METADATA, lambda meta: meta + _INITIAL_END)
        return self.frame(BOOKMARK, data)

    def _learn_bookmark(self, data: bytes) -> None:
        self._bookmark = replaced(data, _METADATA, lambda meta: without(meta, _ANNOTATIONS))

    def error_frame(self, status: bytes) -> bytes:
        """Returns a whole ERROR event."""
        return _frame(ERROR, self.status(status))

    def status(self, status: bytes) -> bytes:
        """Returns the body of an error answer."""
        return _STATUS.around(encode_status(status))

    def listing(self, datas: Iterable[bytes], meta: ListMeta) -> Iterator[bytes]:
        """Yields the pieces of a list's body. Its length stands at its start, so `datas` is read first."""
        listed = list(datas)
        text = sized(1, b"") + sized(2, str(meta.version).encode()) + sized(3, meta.continue_token.encode())
        if meta.remaining is not None:
            text += numbered(4, meta.remaining)
        head = sized(_METADATA, text)
        starts = [_ITEM + number(len(data)) for data in listed]
        before, after = self._list.parts(len(head) + sum(map(len, starts)) + sum(map(len, listed)))
        yield before + head
        for start, data in zip(starts, listed, strict=True):
            yield start + data
        yield after

    def split_list(self, body: bytes) -> tuple[ListMeta, list[bytes]]:
        """Returns a list's metadata and its objects. Raises WireError."""
        start, end = self._list.inside(body)
        found: Texts = {}
        read(body, start, end, _LIST_META, found)
        remaining = found.get("remaining")
        items_tag = tag(_ITEMS)
        items = [body[first:stop] for key, _, first, stop in fields(body, start, end) if key == items_tag]
        return (
            ListMeta(
                parse_version(found.get("version", "")),
                found.get("continue", ""),
                None if remaining is None else int(remaining),
            ),
            items,
        )

    def decoder(self) -> ProtobufDecoder:
        """Returns a decoder for one watch."""
        return ProtobufDecoder(self._object, self._learn_bookmark)


_STATUS: Final = Envelope("v1", "Status")
_ITEM: Final = number(tag(_ITEMS))


def _frame(type_: str, enveloped: bytes) -> bytes:
    event = sized(1, type_.encode()) + sized(2, sized(1, enveloped))
    return LENGTH.pack(len(event)) + event


def _wanted(selectable: SelectableFields) -> Wanted:
    wanted: Wanted = {tag(_METADATA): _META}
    for each in selectable.fields:
        section: dict[int, Any] = wanted
        for field_number in each.numbers[:-1]:
            section = section.setdefault(tag(field_number), {})
        last = each.numbers[-1]
        if each.form == "string":
            section[tag(last)] = each.label
        else:
            section[tag(last, VARINT)] = (Flag if each.form == "bool" else Number)(each.label)
    return wanted
