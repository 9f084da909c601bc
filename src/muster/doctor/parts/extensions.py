"""Aggregated APIs, and conversion webhooks of custom resources: both can stop reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from muster.api.reader import Reader
from muster.doctor.parts.backends import ready_endpoints
from muster.doctor.rule import Context

_APISERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MANAGED: Final = "kube-aggregator.kubernetes.io/automanaged"
_WHAT: Final = "aggregated APIs"
_CONVERSIONS: Final = "conversion webhooks of custom resources"
_GROUPS_MAX: Final = 10
_CRDS_MAX: Final = 10
"""A CustomResourceDefinition may have half a megabyte, so all of them are never listed."""


class Aggregated(msgspec.Struct, frozen=True):
    """An API that another server serves.

    Attributes:
        name: such as `v1beta1.metrics.k8s.io`.
        service: namespace/name.
        available: whether the API server can reach it.
        reason: why not.
    """

    name: str
    service: str
    available: bool
    reason: str = ""


class Conversion(msgspec.Struct, frozen=True):
    """A custom resource with a conversion webhook; `service` is "" for a URL."""

    crd: str
    service: str


class Extensions(msgspec.Struct, frozen=True):
    """Extensions of the API, and ready endpoints of their Services."""

    aggregated: tuple[Aggregated, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    ready: Mapping[str, int] = msgspec.field(default_factory=dict)


async def collect_extensions(context: Context) -> Extensions | None:
    """Read APIServices, and CustomResourceDefinitions of groups that serve more than one version."""
    reader = context.reader
    listed = await reader.list(_APISERVICES, what=_WHAT, pages=5)
    if listed is None:
        return None
    aggregated = tuple(aggregated_of(listed.items))
    conversions = [each async for each in _conversions(reader, listed.items)]
    services = {each.service for each in conversions if each.service}
    return Extensions(aggregated, tuple(conversions), await ready_endpoints(reader, services, _CONVERSIONS))


def aggregated_of(items: Iterable[Mapping[str, Any]]) -> Iterable[Aggregated]:
    """Yield the APIServices that another server serves."""
    for item in items:
        service = item["spec"].get("service")
        if service:
            conditions = (item.get("status") or {}).get("conditions") or ()
            condition: Mapping[str, Any] = next((each for each in conditions if each["type"] == "Available"), {})
            yield Aggregated(
                item["metadata"]["name"],
                f"{service['namespace']}/{service['name']}",
                condition.get("status") != "False",
                condition.get("reason", ""),
            )


def converted_groups(items: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return groups of custom resources with several versions, and one of the versions.

    The aggregator marks APIServices of custom resources with another label value than built-in ones.
    """
    versions: dict[str, list[str]] = {}
    for item in items:
        if (item["metadata"].get("labels") or {}).get(_MANAGED) == "true":
            versions.setdefault(item["spec"]["group"], []).append(item["spec"]["version"])
    return sorted((group, sorted(served)[0]) for group, served in versions.items() if len(served) > 1)


async def _conversions(reader: Reader, items: Iterable[Mapping[str, Any]]) -> Any:
    groups = converted_groups(items)
    names: list[str] = []
    for group, version in groups[:_GROUPS_MAX]:
        served = await reader.get(f"/apis/{group}/{version}", what=_CONVERSIONS, right="get nonResourceURL /apis/*")
        names += [
            f"{entry['name']}.{group}" for entry in (served or {}).get("resources") or () if "/" not in entry["name"]
        ]
    if len(groups) > _GROUPS_MAX or len(names) > _CRDS_MAX:
        reader.note(_CONVERSIONS, f"only {_CRDS_MAX} of the custom resources were read, because they are large")
    for name in names[:_CRDS_MAX]:
        crd = await reader.get(f"{_CRDS}/{name}", what=_CONVERSIONS, right="get customresourcedefinitions")
        conversion = ((crd or {}).get("spec") or {}).get("conversion") or {}
        if conversion.get("strategy") == "Webhook":
            service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
            yield Conversion(name, f"{service['namespace']}/{service['name']}" if service else "")
