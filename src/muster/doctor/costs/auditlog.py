"""Events of kube-apiserver's audit log as request lines (audit.k8s.io/v1, level Metadata or higher)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from muster.kube.objects.auth import NODE_NAME, POD_NAME
from muster.kube.requestlog import RequestLine

_EPOCH = datetime.fromtimestamp(0, UTC)


class _User(msgspec.Struct):
    username: str = ""
    extra: Mapping[str, tuple[str, ...]] | None = None


class _Object(msgspec.Struct, rename="camel"):
    api_group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Status(msgspec.Struct):
    code: int = 0


class _Event(msgspec.Struct, rename="camel"):
    stage: str
    verb: str
    audit_id: str = msgspec.field(default="", name="auditID")
    request_uri: str = msgspec.field(default="", name="requestURI")
    user: _User = msgspec.field(default_factory=_User)
    source_ips: tuple[str, ...] = msgspec.field(default=(), name="sourceIPs")
    user_agent: str = ""
    object_ref: _Object | None = None
    response_status: _Status | None = None
    response_object: msgspec.Raw = msgspec.Raw()
    request_received_timestamp: datetime = _EPOCH
    stage_timestamp: datetime = _EPOCH


_decode = msgspec.json.Decoder(_Event).decode


def audit_line(data: bytes) -> RequestLine | None:
    """Convert one event; None for a stage that adds nothing, and for a request that is not about a resource.

    Raises:
        msgspec.MsgspecError: the line is not an audit event.
    """
    event = _decode(data)
    began = event.stage == "ResponseStarted" and event.verb == "watch"
    if event.object_ref is None or not (began or event.stage in ("ResponseComplete", "Panic")):
        return None
    received = event.request_received_timestamp.timestamp()
    ended = event.stage_timestamp.timestamp()
    query = parse_qs(event.request_uri.partition("?")[2], keep_blank_values=True)
    about, extra = event.object_ref, event.user.extra or {}
    return RequestLine(
        time=ended,
        seconds=max(ended - received, 0.0),
        verb=event.verb,
        id=event.audit_id,
        open=began,
        user=event.user.username,
        user_agent=event.user_agent,
        pod=_first(extra.get(POD_NAME)),
        node=_first(extra.get(NODE_NAME)),
        peer=event.source_ips[-1] if event.source_ips else "",
        group=about.api_group,
        resource=about.resource,
        subresource=about.subresource,
        namespace=about.namespace,
        name=about.name,
        label_selector=_first(query.get("labelSelector")),
        field_selector=_first(query.get("fieldSelector")),
        resource_version=_first(query.get("resourceVersion")),
        match=_first(query.get("resourceVersionMatch")),
        limit=_number(_first(query.get("limit"))),
        continued=bool(_first(query.get("continue"))),
        initial=_first(query.get("sendInitialEvents")) in ("true", "1"),
        code=event.response_status.code if event.response_status else 0,
        bytes=len(event.response_object) if event.response_object else -1,
    )


def _first(values: tuple[str, ...] | list[str] | None) -> str:
    return values[0] if values else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
