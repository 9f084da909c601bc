"""Counts objects in the cluster and samples their size, by one small page for each resource."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.api.reader import Reader
from muster.doctor.costs.cost import Objects
from muster.kube.objects.struct import decode

SAMPLE: Final = 20
"""Objects in the page whose size is measured."""
RESOURCES_MAX: Final = 30
_PRIVATE: Final = frozenset({"secrets"})


async def count_objects(reader: Reader, resources: Iterable[str]) -> dict[str, Objects]:
    """Count the objects of resources such as `pods` or `leases.coordination.k8s.io`.

    The metrics of the API server have such numbers too, but a minute late. The size is that of JSON, as lists have it.
    Secrets are not read. What may not be read is noted in `reader.unseen`, and is missing in the result.
    """
    found = {}
    for resource in sorted(set(resources) - _PRIVATE)[:RESOURCES_MAX]:
        plural, _, group = resource.partition(".")
        prefix = await _prefix(reader, group)
        if prefix is None:
            continue
        listed = await reader.list(f"{prefix}/{plural}", what=f"number and size of {resource}", limit=SAMPLE)
        if listed is not None:
            items = len(listed.items)
            found[resource] = Objects(float(items + listed.remaining), listed.size_bytes / items if items else 0.0)
    return found


async def _prefix(reader: Reader, group: str) -> str | None:
    """The path of a group in its preferred version; None if the group cannot be read."""
    if not group:
        return "/api/v1"
    body = await reader.read(f"/apis/{group}", what=f"versions of {group}", right=f"get nonResourceURL /apis/{group}")
    version = ((decode(body, dict).get("preferredVersion") or {}).get("version")) if body is not None else None
    return f"/apis/{group}/{version}" if version else None
