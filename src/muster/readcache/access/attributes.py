"""Attributes by which a request is authorized.

Source: NewRequestInfo in k8s.io/apiserver, pkg/endpoints/request/requestinfo.go, and GetAuthorizerAttributes in
pkg/endpoints/filters/authorization.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.kube.objects.auth import ResourceAttributes, SelectorAttributes
from muster.kube.objects.selectors import SelectorError, parse_selector
from muster.readcache.request import Forward, Request, Target

_NAME_FIELD: Final = "metadata.name"
_OPERATORS: Final = re.compile(r"!=|==|=")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class Attributes(NamedTuple):
    """What a user wants to do with objects."""

    verb: str
    group: str
    version: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    field_selector: str = ""
    label_selector: str = ""

    def reviewed(self) -> ResourceAttributes:
        """The form of these attributes in an access review."""
        return ResourceAttributes(
            namespace=self.namespace,
            verb=self.verb,
            group=self.group,
            version=self.version,
            resource=self.resource,
            subresource=self.subresource,
            name=self.name,
            field_selector=SelectorAttributes(raw_selector=self.field_selector) if self.field_selector else None,
            label_selector=SelectorAttributes(raw_selector=self.label_selector) if self.label_selector else None,
        )


def attributes_of(target: Target, request: Request) -> Attributes | Forward:
    """Return the attributes with which kube-apiserver would authorize this request.

    Returns Forward if the query is one of the rare ones whose attributes only the API server knows for certain.
    """
    resource = target.kind.resource
    namespace = target.namespace
    if not resource.group and resource.plural == "namespaces":
        namespace = target.name  # kube-apiserver authorizes a get of a namespace inside this namespace
    whole = Attributes(target.verb, resource.group, resource.version, resource.plural, "", namespace, target.name)
    if target.verb == "get":
        return whole
    field_selector, label_selector = request.query.get("fieldSelector", ""), request.query.get("labelSelector", "")
    name = ""
    if _NAME_FIELD in field_selector:
        found = _selected_name(field_selector)
        if isinstance(found, Forward):
            return found
        if found and not _parses(request.query):
            return Forward("query")
        name = found
    return whole._replace(name=name, field_selector=field_selector, label_selector=label_selector)


def _selected_name(text: str) -> str | Forward:
    """Return the name that a field selector requires, "" without one.

    Follows fields.ParseSelector and RequiresExactMatch of k8s.io/apimachinery. If the text is not valid,
    kube-apiserver authorizes the request without a name. Texts with escapes are left to it.
    """
    if "\\" in text:
        return Forward("selector with escapes")
    name = ""
    for term in sorted(filter(None, text.split(",")), reverse=True):
        operator = _OPERATORS.search(term)
        if operator is None or "=" in term[operator.end() :]:
            return ""
        if operator[0] != "!=" and term[: operator.start()] == _NAME_FIELD:
            name = term[operator.end() :]
    return "" if name in (".", "..") or "/" in name or "%" in name else name


def _parses(query: Mapping[str, str]) -> bool:
    """Return whether kube-apiserver decodes the other list options; if not, it authorizes without a name."""
    try:
        parse_selector(query.get("labelSelector", ""))
    except SelectorError:
        return False
    return all(_INTEGER.fullmatch(query.get(key, "0")) for key in ("limit", "timeoutSeconds"))
