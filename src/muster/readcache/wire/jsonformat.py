"""The JSON of one kind, as kube-apiserver writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

import msgspec

from muster.kube.protobuf import WireError
from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire.format import INITIAL_END, Head, ListMeta, parse_version
from muster.readcache.wire.jsonframes import JSONDecoder
from muster.readcache.wire.jsonspans import TypeMeta, span
from muster.readcache.wire.selectable import SelectableField, selectable_fields

_ITEM: Final = b'{"metadata":'
_HTML: Final = re.compile(rb"[<>&]|\xe2\x80[\xa8\xa9]")


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _ListMeta(msgspec.Struct, rename={"continue_token": "continue", "version": "resourceVersion"}):
    version: str = ""
    continue_token: str = ""
    remainingItemCount: int | None = None


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


_list: Final = msgspec.json.Decoder(_List).decode


class JSONFormat:
    """WireFormat for JSON."""

    media_type = MediaType.JSON.value
    watch_media_type = MediaType.JSON.watch

    def __init__(self, kind: CachedKind) -> None:
        resource = kind.resource
        self._custom = kind.custom
        self._kind, self._list_kind, self._api_version = resource.kind, kind.list_kind, resource.api_version
        self._type_meta = TypeMeta(kind)
        self._bookmark = (b'{"type":"BOOKMARK","object":%b"metadata":' % self._type_meta.start, b"}}\n")
        self._selectable = selectable_fields(kind)
        self._decode = msgspec.json.Decoder(_object_type(self._selectable.fields)).decode
        self._getters = tuple(_getter(each) for each in self._selectable.fields)

    def head(self, data: bytes) -> Head:
        """Reads an object's metadata. Raises WireError."""
        try:
            found = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"not the JSON of a {self._kind}: {error}") from None
        meta = found.metadata
        values: dict[str, str] = {}
        for label, get in self._getters:
            try:
                value = get(found)
            except AttributeError:  # a section is null
                continue
            if value not in ("", None):
                values[label] = _sprint(value)
        version = parse_version(meta.resource_version)
        return Head(meta.name, meta.namespace, meta.uid, version, meta.labels or {}, self._selectable.complete(values))

    def at_version(self, data: bytes, version: int) -> bytes:
        """Returns the object with another resourceVersion. Raises WireError."""
        place = span(data, "metadata", "resourceVersion")
        if place is None:
            raise WireError(f"a {self._kind} has no metadata.resourceVersion")
        return b'%b"%d"%b' % (data[: place[0]], version, data[place[1] :])

    def single(self, data: bytes) -> bytes:
        """Returns the body of a get."""
        return self._type_meta.added(data) + b"\n"

    def frame(self, type_: str, data: bytes) -> bytes:
        """Returns a whole event of a watch."""
        return b'{"type":"%b","object":%b}\n' % (type_.encode(), self._type_meta.added(data))

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """Returns a whole BOOKMARK event, with the empty object of the server's bookmarks once a decoder read one."""
        members = [f'"resourceVersion":"{version}"', f'"annotations":{{"{INITIAL_END}":"true"}}'][: 1 + initial_end]
        if self._custom:
            members.reverse()
        before, after = self._bookmark
        return b"%b{%b}%b" % (before, ",".join(members).encode(), after)

    def _learn_bookmark(self, data: bytes) -> None:
        place = span(data, "metadata")
        if place is not None:
            self._bookmark = b'{"type":"BOOKMARK","object":%b' % data[: place[0]], b"%b}\n" % data[place[1] :]

    def error_frame(self, status: bytes) -> bytes:
        """Returns a whole ERROR event."""
        return b'{"type":"ERROR","object":%b}\n' % _escaped(status)

    def status(self, status: bytes) -> bytes:
        """Returns the body of an error answer."""
        return _escaped(status) + b"\n"

    def listing(self, datas: Iterable[bytes], meta: ListMeta) -> Iterator[bytes]:
        """Yields the pieces of a list's body."""
        before, after = self._around_items(meta)
        yield before
        first = True
        for data in datas:
            yield data if first else b"," + data
            first = False
        yield after

    def _around_items(self, meta: ListMeta) -> tuple[bytes, bytes]:
        """Built-in kinds have the order of their Go struct, custom resources the order of the alphabet."""
        token = f'"continue":"{meta.continue_token}"'
        remaining = "" if meta.remaining is None else f'"remainingItemCount":{meta.remaining}'
        version = f'"resourceVersion":"{meta.version}"'
        if self._custom:
            fields = ",".join(filter(None, (token, remaining, version)))
            before = f'{{"apiVersion":"{self._api_version}","items":['
            return before.encode(), f'],"kind":"{self._list_kind}","metadata":{{{fields}}}}}\n'.encode()
        fields = ",".join(filter(None, (version, token if meta.continue_token else "", remaining)))
        before = f'{{"kind":"{self._list_kind}","apiVersion":"{self._api_version}","metadata":{{{fields}}},"items":['
        return before.encode(), b"]}\n"

    def split_list(self, body: bytes) -> tuple[ListMeta, list[bytes]]:
        """Returns a list's metadata and its objects. Raises WireError."""
        try:
            found = _list(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"not the JSON of a {self._list_kind}: {error}") from None
        meta = found.metadata
        listed = ListMeta(parse_version(meta.version), meta.continue_token, meta.remainingItemCount)
        return listed, [self._item(bytes(memoryview(item))) for item in found.items or ()]

    def _item(self, data: bytes) -> bytes:
        """Other servers than kube-apiserver may write type meta here too."""
        return data if data.startswith(_ITEM) else self._type_meta.removed(data)

    def decoder(self) -> JSONDecoder:
        """Returns a decoder for one watch."""
        return JSONDecoder(self._type_meta, self._learn_bookmark)


def _object_type(fields: tuple[SelectableField, ...]) -> type[Any]:
    """Returns a struct with metadata and only those members that the fields lie in."""
    tree: dict[str, Any] = {}
    for each in fields:
        section = tree
        for name in each.path[:-1]:
            section = section.setdefault(name, {})
        section[each.path[-1]] = each
    return _struct_type("Object", tree, [("metadata", _Meta)])


def _struct_type(name: str, tree: dict[str, Any], required: list[tuple[str, Any]]) -> type[Any]:
    members: list[Any] = [*required]
    names = {}
    for key, value in tree.items():
        attribute = f"m_{key.encode().hex()}"
        names[attribute] = key
        if isinstance(value, SelectableField):
            type_ = {"string": str | None, "bool": bool | None, "int": int | None, "any": Any}[value.form]
            members.append((attribute, type_, None))
        else:
            members.append((attribute, _struct_type(key, value, []) | None, None))
    return msgspec.defstruct(name, members, rename=names)


def _getter(each: SelectableField) -> tuple[str, Any]:
    return each.label, attrgetter(".".join(f"m_{name.encode().hex()}" for name in each.path))


def _sprint(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _escaped(status: bytes) -> bytes:
    """Escapes what Go's encoder escapes inside of texts; outside of them these characters cannot be."""
    status = status.strip()
    return _HTML.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), status)
