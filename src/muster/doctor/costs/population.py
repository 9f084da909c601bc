"""Numbers, sizes and changes of the objects in a cluster, from the API server's metrics and from a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from muster.doctor.costs.cost import Objects, Population
from muster.doctor.samples import Series

OBJECTS: Final = "apiserver_resource_objects"
OBJECTS_OLD: Final = "apiserver_storage_objects"
"""The older metric, with the group in the label `resource`; deprecated in 1.34."""
SIZES: Final = "apiserver_resource_size_estimate_bytes"
"""Alpha, since 1.34. The sizes are those of the stored form, protobuf for built-in resources."""
FAMILIES: Final = frozenset({OBJECTS, OBJECTS_OLD, SIZES})


def population(
    nodes: int,
    objects: Iterable[Series],
    older: Iterable[Series],
    sizes: Iterable[Series],
    changes: Mapping[str, float],
    counted: Mapping[str, Objects],
) -> Population:
    """Combine what the metrics say about objects with what was counted, and the writes per second of a log.

    Args:
        nodes: number of nodes.
        objects: series of OBJECTS.
        older: series of OBJECTS_OLD, used for resources that `objects` lacks.
        sizes: series of SIZES.
        changes: writes per second, by resource with group.
        counted: newer numbers and sizes of some resources.
    """
    numbers: dict[str, float] = {}
    for labels, value in older:
        if value >= 0:
            numbers[labels.get("resource", "")] = value
    for labels, value in objects:
        if value >= 0:
            numbers[_resource(labels)] = value
    bytes_of = {_resource(labels): value for labels, value in sizes if value > 0}
    found = {
        resource: Objects(
            number,
            bytes_of.get(resource, 0.0) / number if number else 0.0,
            changes.get(resource, 0.0),
        )
        for resource, number in numbers.items()
    }
    for resource, own in counted.items():
        found[resource] = own._replace(changes=changes.get(resource, 0.0))
    for resource, rate in changes.items():
        found.setdefault(resource, Objects(0.0, 0.0, rate))
    found["nodes"] = found.get("nodes", Objects(float(nodes)))._replace(number=float(nodes))
    return Population(float(nodes), found)


def _resource(labels: Mapping[str, str]) -> str:
    group = labels.get("group", "")
    return f"{labels.get('resource', '')}.{group}" if group else labels.get("resource", "")
