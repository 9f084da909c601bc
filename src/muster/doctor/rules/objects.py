"""Resources with large objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.growing import objects_growth, resource_name
from muster.doctor.parts.sizes import LEAST, OLD_COUNTS, SIZES, SampledSizes
from muster.doctor.parts.watchers import LONGRUNNING
from muster.doctor.rule import Rule

COUNTS: Final = "apiserver_resource_objects"
LARGE_BYTES: Final = 64 * 1024
"""A watch cache holds each object decoded, in several times this size; etcd refuses more than 1.5 MB."""
_LARGE_BY_NATURE: Final = frozenset({"customresourcedefinitions.apiextensions.k8s.io"})


def _find(evidence: Evidence) -> Iterator[Finding]:
    counts: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for target, metric in ((counts, COUNTS), (sizes, SIZES)):
        for labels, value in evidence.series(metric):
            name = resource_name(labels)
            target[name] = max(value, target.get(name, 0.0))  # each server counts all objects; -1 is an error
    for name, (each, count) in (evidence.part(SampledSizes) or SampledSizes({})).sizes.items():
        counts[name], sizes[name] = count, each * count
    watches: dict[str, float] = {}
    for labels, value in evidence.series(LONGRUNNING):
        if labels.get("verb") == "WATCH":
            watches[resource_name(labels)] = watches.get(resource_name(labels), 0.0) + value
    for name, size in sorted(sizes.items(), key=lambda entry: -entry[1]):
        count = counts.get(name, 0.0)
        if name in _LARGE_BY_NATURE or count < LEAST or size / count < LARGE_BYTES:
            continue
        each = size / count
        growth = objects_growth(name)
        yield Finding(
            id="objects-large",
            severity=Severity.WARNING,
            title=f"Objects of {name} are large: {each / 1024:,.0f} KiB on average, {count:,.0f} of them.",
            who=(Culprit("Resource", name),),
            evidence=(
                Measure("objects", count, "", COUNTS),
                Measure("size of all", size, "bytes", SIZES),
            ),
            costs=(
                cost("a list of all", "bytes", size, growth, evidence.scale),
                cost(
                    "one change, sent to all watchers", "bytes", each * watches.get(name, 0.0), growth, evidence.scale
                ),
            ),
            fix=Fix(
                "Move the large fields out of the objects: into a volume, an object store, or a ConfigMap for each "
                "part. A status that changes often belongs into an object of its own.",
                (f"kubectl get {name} -A --chunk-size=50 -o custom-columns=NAME:.metadata.name",),
            ),
        )


RULE: Final = Rule(
    "objects",
    frozenset({COUNTS, SIZES, OLD_COUNTS, LONGRUNNING}),
    _find,
    needs=(("sizes of stored objects", (SIZES, OLD_COUNTS)),),
)
