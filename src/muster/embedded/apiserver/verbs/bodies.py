"""Parses request bodies in JSON and YAML, and refuses values that the rest of the server cannot handle."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import yaml

from muster.embedded.objects import Obj

NESTING_MAX: Final = 128
"""Most levels of lists and objects in a body. kube-apiserver allows 10,000; the functions here are recursive."""
_decode = msgspec.json.Decoder().decode


class BodyError(ValueError):
    """A body that cannot be parsed; the message says why."""


def read_json(body: bytes) -> Any:
    """Return the value in a JSON document. Raises BodyError."""
    try:
        value = _decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, OverflowError) as error:
        raise BodyError(f"json parse error: {error}") from None
    if body.count(b"[") + body.count(b"{") > NESTING_MAX:
        check_nesting(value)
    return value


def read_object(body: bytes) -> Obj:
    """Return the object in a JSON document. Raises BodyError."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise BodyError("a JSON object is wanted")
    return value


def read_yaml(body: bytes) -> Obj:
    """Return the object in a YAML document, which may be JSON. Raises BodyError."""
    if body.lstrip()[:1] == b"{":
        return read_object(body)
    try:
        value = yaml.load(body, _Plain)
        check_nesting(value)
        value = _decode(msgspec.json.encode(value))
    except RecursionError:
        raise _too_deep() from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise BodyError(f"yaml parse error: {error}") from None
    if not isinstance(value, dict):
        raise BodyError("an object is wanted")
    return value


def check_nesting(value: Any) -> None:
    """Refuse a value with too many levels. Raises BodyError."""
    level = [value]
    for _ in range(NESTING_MAX + 1):
        below = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [item for children in below for item in children]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> BodyError:
    return BodyError(f"nested too deeply: at most {NESTING_MAX} levels of lists and objects")


class _Plain(yaml.SafeLoader):
    """A YAML loader for JSON values: dates stay text. Aliases are refused, because they can expand to huge objects."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not supported")
        return super().compose_node(parent, index)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        value = float(self.construct_yaml_float(node))
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is not a number", node.start_mark)
        return value


_Plain.add_constructor("tag:yaml.org,2002:timestamp", _Plain.construct_yaml_str)  # type: ignore[type-var]
_Plain.add_constructor("tag:yaml.org,2002:float", _Plain.construct_number)
