"""Sizes of custom resources, from samples: for API servers that do not report sizes (before Kubernetes 1.34)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from muster.doctor.rule import Context
from muster.doctor.samples import Page

SIZES: Final = "apiserver_resource_size_estimate_bytes"
OLD_COUNTS: Final = "apiserver_storage_objects"
"""Number of objects, with the group as a part of the label `resource`."""
_WHAT: Final = "sizes of custom resources"
_SAMPLE: Final = 5
_RESOURCES_MAX: Final = 5
LEAST: Final = 10
"""Objects that a resource must have."""


class SampledSizes(msgspec.Struct, frozen=True):
    """Mean size in bytes of a few objects, and number of all objects, by resource."""

    sizes: dict[str, tuple[float, float]]


async def collect_sizes(context: Context) -> SampledSizes | None:
    """Read a few objects of the most frequent custom resources, if the metrics have no sizes."""
    if not context.first or any(SIZES in page.series for page in context.first):
        return None
    reader = context.reader
    found: dict[str, tuple[float, float]] = {}
    for name, count in frequent(context.first):
        plural, _, group = name.partition(".")
        served = await reader.get(f"/apis/{group}", what=_WHAT, right="get nonResourceURL /apis/*", optional=True)
        version = ((served or {}).get("preferredVersion") or {}).get("groupVersion")
        if version:
            listed = await reader.list(f"/apis/{version}/{plural}", what=_WHAT, limit=_SAMPLE, sample=True)
            if listed is not None and listed.items:
                found[name] = (listed.bytes_each, count)
    return SampledSizes(found)


def frequent(pages: Iterable[Page]) -> list[tuple[str, float]]:
    """Return the custom resources with the most objects, and their numbers.

    Groups of Kubernetes itself end with `.k8s.io` or have no dot.
    """
    counts: dict[str, float] = {}
    for page in pages:
        for labels, value in page.of(OLD_COUNTS):
            name = labels.get("resource", "")
            group = name.partition(".")[2]
            if value >= LEAST and "." in group and not group.endswith(".k8s.io"):
                counts[name] = max(value, counts.get(name, 0.0))
    return sorted(counts.items(), key=lambda entry: -entry[1])[:_RESOURCES_MAX]
