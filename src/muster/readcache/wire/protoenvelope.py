"""The envelope of protobuf bodies: four magic bytes and a runtime.Unknown with the type and the object."""

from __future__ import annotations

from typing import Final

from muster.kube.protobuf import WireError, fields, tag
from muster.readcache.wire.protoscan import number, read, sized

_MAGIC: Final = b"k8s\x00"
_RAW: Final = tag(2)
# contentEncoding and contentType, which are empty
_AFTER: Final = sized(3, b"") + sized(4, b"")
_TYPE: Final = {tag(1): {tag(1): "apiVersion", tag(2): "kind"}}


class Envelope:
    """The envelope of one kind."""

    def __init__(self, api_version: str, kind: str) -> None:
        self._type = {"apiVersion": api_version, "kind": kind}
        self._before = _MAGIC + sized(1, sized(1, api_version.encode()) + sized(2, kind.encode())) + number(_RAW)

    def parts(self, size_bytes: int) -> tuple[bytes, bytes]:
        """Returns what comes before and after an object of that size."""
        return self._before + number(size_bytes), _AFTER

    def around(self, data: bytes) -> bytes:
        """Returns an object in its envelope."""
        return b"%b%b%b%b" % (self._before, number(len(data)), data, _AFTER)

    def inside(self, body: bytes) -> tuple[int, int]:
        """Returns where the object starts and ends. Raises WireError, also if it is of another kind."""
        type_, start, end = opened(body)
        if type_ != self._type:
            raise WireError(f"{type_} where {self._type} was expected")
        return start, end


def opened(body: bytes) -> tuple[dict[str, str], int, int]:
    """Returns apiVersion and kind, and where the object starts and ends. Raises WireError."""
    if not body.startswith(_MAGIC):
        raise WireError("not protobuf of Kubernetes: the magic bytes are missing")
    type_: dict[str, str] = {}
    read(body, len(_MAGIC), len(body), _TYPE, type_)
    start = end = len(body)
    for key, _, first, stop in fields(body, len(_MAGIC), len(body)):
        if key == _RAW:
            start, end = first, stop
    return type_, start, end
