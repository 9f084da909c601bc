"""The base of every object on the wire, and its JSON encoding.

Structs are partial: fields that Muster does not use are skipped when decoding. That makes decoding fast and caches
small (docs of msgspec: "Structs"). So never PUT a partial struct of an object that another program owns: patch it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, TypeVar, dataclass_transform

import msgspec

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class KubeStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Immutable, camelCase on the wire, defaults omitted. Change with `msgspec.structs.replace`.

    The garbage collector does not track these objects. They cannot form cycles, and for a large list the collector
    would take longer than decoding.
    """

    HEADER: ClassVar[bytes] = b""
    """Written by `encode` before the fields: apiVersion and kind of a top-level object."""


_encoder = msgspec.json.Encoder()


def encode(obj: object) -> bytes:
    """Encode a struct (apiVersion and kind included) or a plain dict as JSON."""
    body = _encoder.encode(obj)
    header = obj.HEADER if isinstance(obj, KubeStruct) else b""
    if not header:
        return body
    return b"{" + header + (b"," if len(body) > 2 else b"") + body[1:]


def to_dict(obj: object) -> dict[str, Any]:
    """Return the JSON form of `obj` as a new dict."""
    data: dict[str, Any] = msgspec.json.decode(encode(obj))
    return data


def decode(data: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """Decode JSON into `kind`. Raises msgspec.DecodeError; its subclass ValidationError names the offending field."""
    return decoder(kind).decode(data)


def from_dict(data: Any, kind: type[T]) -> T:
    """Turn decoded JSON or YAML into `kind`. Raises msgspec.ValidationError naming the offending field."""
    return msgspec.convert(data, kind)


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the cached decoder of `kind`, because creating a decoder is slow."""
    known = _decoders.get(kind)
    if known is None:
        known = _decoders[kind] = msgspec.json.Decoder(kind)
    return known


def at_microsecond(moment: datetime | None) -> datetime | None:
    """Move a whole second by one microsecond.

    The API server parses MicroTime fields with a fixed six-digit fraction (apimachinery, meta/v1 micro_time.go). A
    datetime without microseconds would be encoded without a fraction.
    """
    return moment.replace(microsecond=1) if moment is not None and not moment.microsecond else moment
