"""Converts Events between core/v1, in which they are stored, and events.k8s.io/v1.

Source: k8s.io/api/events/v1 types, kubernetes pkg/apis/events/v1 conversion.
"""

from __future__ import annotations

from muster.embedded.objects import Obj

_TO_NEW = {
    "message": "note",
    "involvedObject": "regarding",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_TO_CORE = {new: old for old, new in _TO_NEW.items()}


def to_events_v1(obj: Obj) -> Obj:
    """Return a core/v1 Event as events.k8s.io/v1."""
    converted = {_TO_NEW.get(key, key): value for key, value in obj.items()}
    converted["apiVersion"] = "events.k8s.io/v1"
    for name in ("reportingController", "reportingInstance"):
        if not converted.get(name):
            converted.pop(name, None)
    return converted


def to_core_v1(obj: Obj) -> Obj:
    """Return an events.k8s.io/v1 Event as core/v1."""
    converted = {_TO_CORE.get(key, key): value for key, value in obj.items()}
    converted["apiVersion"] = "v1"
    return converted
