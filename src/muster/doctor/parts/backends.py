"""Services that the API server calls: webhooks, conversions and aggregated APIs depend on their ready endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from muster.api.reader import Reader

_SERVICES_MAX: Final = 20
_READY_ENOUGH: Final = 10


async def ready_endpoints(reader: Reader, services: Iterable[str], what: str) -> Mapping[str, int]:
    """Return the number of ready endpoints of each Service, given as namespace/name.

    Services that cannot be read are absent.
    """
    found: dict[str, int] = {}
    wanted = sorted(set(services))
    for service in wanted[:_SERVICES_MAX]:
        namespace, _, name = service.partition("/")
        listed = await reader.list(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            what=f"backends of {what}",
            limit=_READY_ENOUGH,
            sample=True,
            params={"labelSelector": f"kubernetes.io/service-name={name}"},
        )
        if listed is not None:
            found[service] = sum(
                (endpoint.get("conditions") or {}).get("ready") is not False
                for item in listed.items
                for endpoint in item.get("endpoints") or ()
            )
    if len(wanted) > _SERVICES_MAX:
        reader.note(f"backends of {what}", f"only {_SERVICES_MAX} of {len(wanted)} Services were read, to stay cheap")
    return found
