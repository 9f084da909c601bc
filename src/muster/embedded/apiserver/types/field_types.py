"""Checks objects of built-in kinds against the field table, as decoding into Go's types does.

A value of another type is refused. A null is the same as a missing field, unknown fields are dropped and reported.
Source of the rules: k8s.io/apimachinery `pkg/runtime/serializer/json` and sigs.k8s.io/json.
"""

from __future__ import annotations

import datetime
import functools
from typing import Annotated, Any, Final

import msgspec

from muster.embedded.apiserver.types.field_table import field_table
from muster.embedded.objects import Obj

_QUANTITY = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"
_TIME = Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None
_INT32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_TYPES: Final[dict[str, Any]] = {
    "s": str,
    "b": bool,
    "i": _INT64,
    "j": _INT32,
    "f": float,
    "q": Annotated[str, msgspec.Meta(pattern=_QUANTITY)] | int | float,
    "x": _INT32 | str,
    "t": _TIME,
    "u": _TIME,
    "B": bytes,
    "o": dict[str, Any],
    "a": Any,
}
_ZEROS: Final[dict[str, Any]] = {"s": "", "b": False, "i": 0, "j": 0, "f": 0, "q": "0", "x": 0, "B": ""}
_MAY_BE_NULL: Final = ("t", "u", "a")


class FieldTypeError(ValueError):
    """A field has a value of the wrong type; the message names the field."""


def checked(obj: Obj, name: str) -> tuple[Obj, list[str]]:
    """Return the object without nulls and unknown fields, and the paths of the unknown fields.

    Args:
        obj: an object or a part of one. It is returned itself if no field is dropped.
        name: its type in the field table, such as `core.v1.Pod`; other names are not checked.

    Raises:
        FieldTypeError: a value has another type.
    """
    if name not in field_table():
        return obj, []
    try:
        msgspec.convert(obj, _struct(name))
    except msgspec.ValidationError:
        unknown: list[str] = []
        obj = _tidy(obj, name, "", unknown)
        try:
            msgspec.convert(obj, _struct(name))
        except msgspec.ValidationError as error:
            raise FieldTypeError(str(error).replace("`", "").replace(" - at $.", " at ")) from None
        return obj, unknown
    return obj, []


@functools.cache
def _struct(name: str) -> type[msgspec.Struct]:
    fields, names = [], {}
    for index, (field, described) in enumerate(field_table()[name].items()):
        names[f"f{index}"] = field
        fields.append((f"f{index}", _type(described.type, name), None))
    return msgspec.defstruct(name.rpartition(".")[2], fields, rename=names, forbid_unknown_fields=True)


def _type(kind: str, owner: str) -> Any:
    if kind in _TYPES:
        return _TYPES[kind]
    if kind[0] == "[":
        return list[_type(kind[1:-1], owner)]  # type: ignore[misc]
    if kind[0] == "{":
        return dict[str, _type(kind[1:-1], owner)]  # type: ignore[misc]
    if kind == owner:
        return dict[str, Any]  # nested JSON schema
    return _struct(kind)


def _tidy(value: Any, kind: str, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list) and kind[0] == "[":
        return [_tidy(_filled(item, kind[1:-1]), kind[1:-1], f"{path}[{n}]", unknown) for n, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if kind[0] == "{":
        inner = kind[1:-1]
        return {key: _tidy(_filled(item, inner), inner, f"{path}[{key}]", unknown) for key, item in value.items()}
    fields = field_table().get(kind)
    if fields is None:
        return value
    kept: Obj = {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in fields:
            unknown.append(where)
        elif item is not None or fields[key].type in _MAY_BE_NULL:
            kept[key] = _tidy(item, fields[key].type, where, unknown)
    return kept


def _filled(item: Any, kind: str) -> Any:
    """Return an entry of a list or a map. A null becomes the zero value of its type."""
    if item is not None or kind in _MAY_BE_NULL:
        return item
    return _ZEROS[kind] if kind in _ZEROS else [] if kind[0] == "[" else {}
