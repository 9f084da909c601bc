"""The spec that a TrainingJob runs by: what it was when the job became active, as its status keeps it.

The API server refuses edits of an active job's spec, except for `MUTABLE_FIELDS`. An edit may get through all the same,
for example where the CustomResourceDefinition is older. It is ignored: controllers ask `effective` for the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from muster.api.run_record import FixedSpec
from muster.api.training_job import MUTABLE_FIELDS, TrainingJob, TrainingJobSpec
from muster.kube.objects.struct import encode, from_dict

KEPT_BYTES_MAX: Final = 5 * 1024
"""Room for the values of one job, of the 16 KB that its status may have."""
_DIGEST_CHARS: Final = 16
_FIELDS: Final = tuple(
    (each.name, each.encode_name)
    for each in msgspec.structs.fields(TrainingJobSpec)
    if each.encode_name not in MUTABLE_FIELDS
)
_DEFAULTS: Final = msgspec.to_builtins(TrainingJobSpec(replicas=1))
_ABSENT: Final[tuple[Any, ...]] = (None, "", {}, [])
_JSON_SCALARS: Final = (str, int, bool, float)
"""Types that JSON has too: those of most fields."""


class Effective(NamedTuple):
    """A job with the spec that it runs by, and the changed fields of the spec that the API server holds."""

    job: TrainingJob
    ignored: tuple[str, ...] = ()
    """Fields whose value at the start is used."""
    lost: tuple[str, ...] = ()
    """Fields whose value at the start was too large to keep; `job` has today's."""


def fixed(spec: TrainingJobSpec) -> FixedSpec:
    """The spec to keep. If the values are too large together, the largest become digests."""
    values, too_large, left = {}, {}, KEPT_BYTES_MAX
    for name, value in sorted(_set(spec), key=lambda each: (len(encode(each[1])), each[0])):
        left -= len(encode(value)) + len(name) + 4
        if left >= 0:
            values[name] = value
        else:
            too_large[name] = _digest(value)
    return FixedSpec(values=values, too_large=too_large)


def effective(job: TrainingJob) -> Effective:
    """The job as it runs. Values that cannot be read, as after an edit of the status by hand, count as not kept."""
    kept = job.status.fixed_spec
    if kept is None:
        return Effective(job)
    today = dict(_set(job.spec))
    ignored, lost = [], []
    for _, name in _FIELDS:
        value = today.get(name)
        if name in kept.too_large:
            if _digest(value) != kept.too_large[name]:
                lost.append(name)
        elif name in kept.values:
            if value != kept.values[name]:
                ignored.append(name)
        elif value is not None and value != _DEFAULTS.get(name):
            ignored.append(name)
    if not ignored:
        return Effective(job, lost=tuple(lost))
    body = msgspec.to_builtins(job.spec)
    for name in ignored:
        body.pop(name, None)
        if name in kept.values:
            body[name] = kept.values[name]
    try:
        spec = from_dict(body, TrainingJobSpec)
    except msgspec.ValidationError:
        return Effective(job)
    return Effective(replace(job, spec=spec), tuple(ignored), tuple(lost))


def _set(spec: TrainingJobSpec) -> Iterator[tuple[str, Any]]:
    """Fields with a value, and the value as JSON. Defaults are values too: another version may have others."""
    for attribute, name in _FIELDS:
        value = getattr(spec, attribute)
        if value is None:
            continue
        if type(value) not in _JSON_SCALARS:
            value = _without_nulls(msgspec.to_builtins(value))
        if value not in _ABSENT:
            yield name, value


def _without_nulls(value: Any) -> Any:
    """The value as it is after a JSON merge patch, which cannot write a null into an object (RFC 7386)."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:_DIGEST_CHARS]
