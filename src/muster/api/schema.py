"""Derives structural OpenAPI schemas of our kinds from the structs.

Rules for structural schemas:
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import inspect

Schema = dict[str, Any]

_BOUNDS: Final = (
    ("ge", "minimum"),
    ("le", "maximum"),
    ("min_length", "minLength"),
    ("max_length", "maxLength"),
    ("pattern", "pattern"),
)
_INT32_MAX: Final = 2**31 - 1


def struct_schema(struct: type[msgspec.Struct], *, defaults: bool) -> Schema:
    """The schema of one struct; `defaults` adds default values, which only a spec should have."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return _of_struct(info, defaults)


def _of_struct(info: inspect.StructType, defaults: bool) -> Schema:
    properties: Schema = {}
    required = []
    for item in info.fields:
        schema = _of(item.type, defaults)
        if defaults and _worth_writing(item.default):
            schema["default"] = item.default
        properties[item.encode_name] = schema
        if item.required:
            required.append(item.encode_name)
    summary = (info.cls.__doc__ or "").strip()
    schema = {"type": "object", "description": summary, "properties": properties}
    if required:
        schema["required"] = required
    return schema


def _worth_writing(default: object) -> bool:
    """Returns whether the API server should fill in this default. Empty values need no default."""
    return isinstance(default, int | str) and default not in ("", None)


def _of(kind: inspect.Type, defaults: bool) -> Schema:
    if isinstance(kind, inspect.Metadata):
        return {**_of(kind.type, defaults), **(kind.extra_json_schema or {})}
    if isinstance(kind, inspect.UnionType):
        inner = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        if len(inner) != 1:
            raise TypeError(f"a structural schema cannot hold a union: {kind}")
        return _of(inner[0], defaults)
    if isinstance(kind, inspect.StructType):
        return _of_struct(kind, defaults)
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        schema: Schema = {"type": "array", "items": _of(kind.item_type, defaults)}
        if (limit := getattr(kind, "max_length", None)) is not None:
            schema["maxItems"] = limit
        return schema
    if isinstance(kind, inspect.DictType):
        return _of_dict(kind, defaults)
    return _of_scalar(kind)


def _of_dict(kind: inspect.DictType, defaults: bool) -> Schema:
    if isinstance(kind.value_type, inspect.AnyType):
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "additionalProperties": _of(kind.value_type, defaults)}


def _of_scalar(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            narrow = kind.le is not None and kind.le <= _INT32_MAX  # an API server refuses larger values of int32
            schema: Schema = {"type": "integer", "format": "int32" if narrow else "int64"}
        case inspect.FloatType():
            schema = {"type": "number", "format": "double"}
        case inspect.StrType():
            schema = {"type": "string"}
        case inspect.DateTimeType():
            schema = {"type": "string", "format": "date-time"}
        case inspect.LiteralType():
            schema = {"type": "string", "enum": list(kind.values)}
        case _:
            raise TypeError(f"no structural schema for {kind}")
    for attribute, keyword in _BOUNDS:
        if (bound := getattr(kind, attribute, None)) is not None:
            schema[keyword] = bound
    return schema
