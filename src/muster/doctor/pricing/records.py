"""Chooses the requests of one DaemonSet from a log, and reads what exists in the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from muster.api.reader import Reader
from muster.doctor.collect import count_nodes
from muster.doctor.costs.cost import Population
from muster.doctor.costs.counting import count_objects
from muster.doctor.costs.growth import Sample
from muster.doctor.costs.owners import Caller
from muster.doctor.costs.population import FAMILIES, OBJECTS, OBJECTS_OLD, SIZES, population
from muster.doctor.costs.tally import Observed, Usage
from muster.doctor.samples import Page, Series, parse


class Records(NamedTuple):
    """Requests of one DaemonSet.

    Attributes:
        usages: by shape.
        samples: requests per second against the number of pods.
    """

    usages: tuple[Usage, ...]
    samples: tuple[Sample, ...]


def records_of(observed: Observed, namespace: str, name: str, account: str) -> Records:
    """Requests of a DaemonSet: by the owner of the pods, else by its service account.

    An account that several workloads share is used only if none of its requests could be attributed to the DaemonSet
    and no other workload is known to use it.
    """
    callers = {usage.caller for usage in observed.usages}
    chosen = [each for each in callers if (each.kind, each.namespace, each.name) == ("DaemonSet", namespace, name)]
    if not chosen:
        same = [each for each in callers if each.account == account]
        chosen = same if len(same) == 1 and same[0].kind == "ServiceAccount" else []
    usages = [
        usage._replace(caller=_daemonset(usage.caller, namespace, name))
        for usage in observed.usages
        if usage.caller in chosen
    ]
    samples = [sample for caller in chosen for sample in observed.samples.get(caller, ())]
    return Records(tuple(usages), tuple(samples))


def _daemonset(caller: Caller, namespace: str, name: str) -> Caller:
    return Caller("DaemonSet", namespace, name, caller.account)


async def read_population(reader: Reader, changes: dict[str, float], resources: Iterable[str] = ()) -> Population:
    """Read the numbers of nodes and objects, by small lists and from the metrics.

    Args:
        reader: the cluster.
        changes: writes per second by resource, from a log.
        resources: resources that are counted.
    """
    nodes = await count_nodes(reader) or 0
    counted = await count_objects(reader, resources)
    body = await reader.read(
        "/metrics", what="numbers and sizes of objects", right="get nonResourceURL /metrics", accept="text/plain"
    )
    page = parse(body.decode("utf-8", "replace"), FAMILIES) if body is not None else None
    objects, older, sizes = (_series(page, each) for each in (OBJECTS, OBJECTS_OLD, SIZES))
    return population(nodes, objects, older, sizes, changes, counted)


def _series(page: Page | None, name: str) -> list[Series]:
    return list(page.of(name)) if page is not None else []
