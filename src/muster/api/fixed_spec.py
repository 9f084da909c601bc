"""The spec that an active TrainingJob uses. The controller stores it in the status when the job becomes active.

The API server refuses edits of an active job's spec, except for `MUTABLE_FIELDS`. With an older
CustomResourceDefinition it accepts them. Controllers ignore such an edit: they use the job that `effective` returns.
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
"""Limit for the stored values of one job. The whole status may have 16 KB."""
_DIGEST_CHARS: Final = 16
_FIELDS: Final = tuple(
    (each.name, each.encode_name)
    for each in msgspec.structs.fields(TrainingJobSpec)
    if each.encode_name not in MUTABLE_FIELDS
)
_DEFAULTS: Final = msgspec.to_builtins(TrainingJobSpec(replicas=1))
_ABSENT: Final[tuple[Any, ...]] = (None, "", {}, [])
_JSON_SCALARS: Final = (str, int, bool, float)
"""Types that need no conversion to JSON; most fields have one of these."""


class Effective(NamedTuple):
    """A job with the spec that it uses, and the fields in which the API server's spec differs from it."""

    job: TrainingJob
    ignored: tuple[str, ...] = ()
    """Changed fields; the job uses the values from its start."""
    lost: tuple[str, ...] = ()
    """Changed fields whose values from the start were too large to store; `job` has the present values."""


def fixed(spec: TrainingJobSpec) -> FixedSpec:
    """The spec to store. If the values together are too large, digests replace the largest values."""
    values, too_large, left = {}, {}, KEPT_BYTES_MAX
    for name, value in sorted(_set(spec), key=lambda each: (len(encode(each[1])), each[0])):
        left -= len(encode(value)) + len(name) + 4
        if left >= 0:
            values[name] = value
        else:
            too_large[name] = _digest(value)
    return FixedSpec(values=values, too_large=too_large)


def effective(job: TrainingJob) -> Effective:
    """The job with the spec that it uses. Stored values that cannot be parsed (after a manual edit) are ignored."""
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
    """Fields with a value, and the value as JSON. Defaults are included, as another version may have other defaults."""
    for attribute, name in _FIELDS:
        value = getattr(spec, attribute)
        if value is None:
            continue
        if type(value) not in _JSON_SCALARS:
            value = _without_nulls(msgspec.to_builtins(value))
        if value not in _ABSENT:
            yield name, value


def _without_nulls(value: Any) -> Any:
    """The value without nulls in objects, because a JSON merge patch cannot write them (RFC 7386)."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:_DIGEST_CHARS]
