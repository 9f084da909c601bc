"""Bytes of kube-apiserver's answers in JSON and protobuf: read and put together without decoding whole objects."""

from __future__ import annotations

from muster.readcache.kinds import CachedKind
from muster.readcache.media import MediaType
from muster.readcache.wire.format import WireFormat
from muster.readcache.wire.jsonformat import JSONFormat
from muster.readcache.wire.protobufformat import ProtobufFormat


def format_for(kind: CachedKind, media: MediaType) -> WireFormat:
    """Returns one media type of one kind.

    Raises:
        ValueError: protobuf of a custom resource, which has none.
    """
    return ProtobufFormat(kind) if media is MediaType.PROTOBUF else JSONFormat(kind)
