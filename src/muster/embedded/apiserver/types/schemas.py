"""Structural schemas of custom kinds: pruning unknown fields, filling in defaults, validating.

Source: k8s.io/apiextensions-apiserver `pkg/apiserver/schema` and `pkg/apiserver/validation`; the wording is that of
k8s.io/kube-openapi `pkg/validation/errors`. Rules of our own kinds (x-kubernetes-validations) are in kinds/custom.py.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from muster.embedded.apiserver.status import FieldError, duplicate, invalid, required, type_invalid, unsupported
from muster.embedded.objects import Obj, copy, encode, items, parse_time, section

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
_ALWAYS_KEPT = ("apiVersion", "kind", "metadata")
_TYPE_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "not"})


def prune(value: Any, schema: Obj) -> list[str]:
    """Drop fields that are not in the schema, in place. Returns their paths."""
    dropped: list[str] = []
    _prune(value, schema, "", dropped, kept=_ALWAYS_KEPT)
    return dropped


def _prune(value: Any, schema: Obj, path: str, dropped: list[str], kept: tuple[str, ...] = ()) -> None:
    if isinstance(value, list):
        item_schema = section(schema, "items")
        if item_schema:
            for index, item in enumerate(value):
                if isinstance(item, dict | list):
                    _prune(item, item_schema, f"{path}[{index}]", dropped, _kept(item_schema))
        return
    if not isinstance(value, dict):
        return
    properties, additional = section(schema, "properties"), schema.get("additionalProperties")
    for name, item in list(value.items()):
        if name in kept:
            continue
        inner = properties.get(name, additional)
        if isinstance(inner, dict):
            if isinstance(item, dict | list):
                _prune(item, inner, _join(path, name), dropped, _kept(inner))
        elif not inner and not schema.get(PRESERVE):
            dropped.append(_join(path, name))
            del value[name]


def _kept(schema: Obj) -> tuple[str, ...]:
    return _ALWAYS_KEPT if schema.get(EMBEDDED) else ()


def default(value: Any, schema: Obj) -> None:
    """Fill in defaults, in place."""
    if isinstance(value, list):
        item_schema = section(schema, "items")
        if item_schema:
            for item in value:
                default(item, item_schema)
        return
    if not isinstance(value, dict):
        return
    properties, additional = section(schema, "properties"), schema.get("additionalProperties")
    for name, child in properties.items():
        if "default" in child and (name not in value or (value[name] is None and not child.get("nullable"))):
            value[name] = copy(child["default"])
        if name in value:
            if value[name] is None and not child.get("nullable"):
                del value[name]
            elif isinstance(value[name], dict | list):
                default(value[name], child)
    if isinstance(additional, dict):
        for name, item in value.items():
            if name not in properties:
                default(item, additional)


def validate(value: Any, schema: Obj, path: str = "") -> list[FieldError]:
    """Return the fields of the value that violate the schema."""
    errors: list[FieldError] = []
    _validate(value, schema, path, errors)
    return errors


def _validate(value: Any, schema: Obj, path: str, errors: list[FieldError]) -> None:
    if value is None and schema.get("nullable"):
        return
    if not _has_type(value, schema):
        wanted = "integer,string" if schema.get(INT_OR_STRING) else str(schema.get("type", ""))
        found = _type_of(value)
        errors.append(type_invalid(path, found, f'{path} in body must be of type {wanted}: "{found}"'))
        return
    if "enum" in schema and value not in schema["enum"]:
        errors.append(unsupported(path, value, items(schema, "enum")))
    if isinstance(value, str):
        _string(value, schema, path, errors)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _number(value, schema, path, errors)
    elif isinstance(value, list):
        _list(value, schema, path, errors)
    elif isinstance(value, dict):
        _object(value, schema, path, errors)
    if not _COMBINING.isdisjoint(schema):
        _combined(value, schema, path, errors)


def _type_of(value: Any) -> str:
    kind = type(value)
    return _TYPE_NAMES.get(kind) or kind.__name__


def _has_type(value: Any, schema: Obj) -> bool:
    found = _type_of(value)
    if schema.get(INT_OR_STRING):
        return found in ("integer", "string")
    wanted = schema.get("type")
    if found == wanted or not wanted:
        return True
    if wanted == "number":
        return found in ("integer", "number")
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return False


_INTEGER_BITS: Final = {"int32": 32, "int64": 64}


@functools.lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _string(value: str, schema: Obj, path: str, errors: list[FieldError]) -> None:
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    if longest is not None and len(value) > longest:
        errors.append(FieldError("FieldValueTooLong", path, f"Too long: may not be more than {longest} bytes"))
    if shortest is not None and len(value) < shortest:
        errors.append(invalid(path, value, f"{path} in body should be at least {shortest} chars long"))
    pattern = schema.get("pattern")
    if pattern and not _pattern(pattern).search(value):
        errors.append(invalid(path, value, f"{path} in body should match '{pattern}'"))
    if schema.get("format") == "date-time" and parse_time(value) is None:
        errors.append(invalid(path, value, f'{path} in body must be of type date-time: "{value}"'))


def _number(value: float, schema: Obj, path: str, errors: list[FieldError]) -> None:
    highest, lowest, step = schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf")
    bits = _INTEGER_BITS.get(schema.get("format", ""))
    if bits is not None and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        what = f"Checked value must be of type integer with format int{bits} in {path}"
        errors.append(invalid(path, value, what))
    if highest is not None:
        strict = schema.get("exclusiveMaximum")
        if value > highest or (strict and value == highest):
            what = "less than" if strict else "less than or equal to"
            errors.append(invalid(path, value, f"{path} in body should be {what} {highest}"))
    if lowest is not None:
        strict = schema.get("exclusiveMinimum")
        if value < lowest or (strict and value == lowest):
            what = "greater than" if strict else "greater than or equal to"
            errors.append(invalid(path, value, f"{path} in body should be {what} {lowest}"))
    if step and value % step:
        errors.append(invalid(path, value, f"{path} in body should be a multiple of {step}"))


def _list(value: list[Any], schema: Obj, path: str, errors: list[FieldError]) -> None:
    most, least = schema.get("maxItems"), schema.get("minItems")
    if most is not None and len(value) > most:
        text = f"Too many: {len(value)}: must have at most {most} item{'s' if most != 1 else ''}"
        errors.append(FieldError("FieldValueTooMany", path, text))
    if least is not None and len(value) < least:
        errors.append(invalid(path, len(value), f"{path} in body should have at least {least} items"))
    item_schema = section(schema, "items")
    if item_schema:
        for index, item in enumerate(value):
            _validate(item, item_schema, f"{path}[{index}]", errors)
    kind = schema.get("x-kubernetes-list-type")
    if kind in ("set", "map"):
        keys = items(schema, "x-kubernetes-list-map-keys")
        seen: set[bytes] = set()
        for index, item in enumerate(value):
            shown = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
            identity = encode(shown)
            if identity in seen:
                errors.append(duplicate(f"{path}[{index}]", shown))
            seen.add(identity)


def _object(value: Obj, schema: Obj, path: str, errors: list[FieldError]) -> None:
    errors.extend(required(_join(path, name)) for name in items(schema, "required") if name not in value)
    most, least = schema.get("maxProperties"), schema.get("minProperties")
    if most is not None and len(value) > most:
        text = f"Too many: {len(value)}: must have at most {most} item{'s' if most != 1 else ''}"
        errors.append(FieldError("FieldValueTooMany", path, text))
    if least is not None and len(value) < least:
        errors.append(invalid(path, len(value), f"{path} in body should have at least {least} properties"))
    properties, additional = section(schema, "properties"), schema.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            _validate(item, properties[name], _join(path, name), errors)
        elif isinstance(additional, dict):
            _validate(item, additional, _join(path, name), errors)


def _combined(value: Any, schema: Obj, path: str, errors: list[FieldError]) -> None:
    for part in items(schema, "allOf"):
        _validate(value, part, path, errors)
    for name, least, most in (("anyOf", 1, None), ("oneOf", 1, 1)):
        parts = items(schema, name)
        if not parts or (name == "anyOf" and schema.get(INT_OR_STRING)):
            continue
        fitting = sum(not validate(value, part, path) for part in parts)
        if fitting < least or (most is not None and fitting > most):
            what = "at least one" if name == "anyOf" else "one and only one"
            errors.append(invalid(path, "", f'"{path}" must validate {what} schema ({name})'))
    negated = schema.get("not")
    if isinstance(negated, dict) and not validate(value, negated, path):
        errors.append(invalid(path, "", f'"{path}" must not validate the schema (not)'))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
