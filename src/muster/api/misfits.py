"""Finds every place where a YAML text does not match a struct, and suggests a correction."""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
import yaml

from muster.api.marked import plain

_MERGE: Final = "tag:yaml.org,2002:merge"


class Misfit(NamedTuple):
    """One place that does not match.

    Attributes:
        node: the value; for an unknown key, the key.
        path: as in `pools[0].name`; "" for the whole text.
        what: what is wrong.
        hint: what to write instead; "" if the reader needs the page for that.
    """

    node: yaml.Node
    path: str
    what: str
    hint: str


def field_hint(name: str, known: Collection[str], meant: str = "") -> str:
    """Suggest a field: `meant` if it is given, else the field with the most similar name, else all fields."""
    near = meant or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")
    return f"did you mean {near}?" if near else f"known here: {', '.join(sorted(known))}"


def misfits(root: yaml.Node, kind: Any, path: str = "") -> Iterator[Misfit]:
    """Yield the places that do not match `kind`, in order of the text. Missing fields are left to the conversion.

    Args:
        root: the parsed text. Raises NotYaml like `marked.plain`.
        kind: a struct, or the type of a field of a struct.
        path: the path of `root` in the whole text.
    """
    inner = _of_value(kind)
    origin, arguments = get_origin(inner), get_args(inner)
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and isinstance(root, yaml.MappingNode):
        yield from _of_struct(root, inner, path)
    elif origin in (dict, Mapping) and isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            yield from misfits(value, arguments[1], f"{path}.{key.value}".removeprefix("."))
    elif origin in (list, tuple) and isinstance(root, yaml.SequenceNode):
        for index, value in enumerate(root.value):
            yield from misfits(value, arguments[0], f"{path}[{index}]")
    else:
        yield from _of_leaf(root, kind, path)


def _of_struct(node: yaml.MappingNode, kind: type[msgspec.Struct], path: str) -> Iterator[Misfit]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        name = str(key.value)
        where = f"{path}.{name}".removeprefix(".")
        if name in fields:
            yield from misfits(value, fields[name], where)
        elif kind.__struct_config__.forbid_unknown_fields:
            yield Misfit(key, where, "unknown field", field_hint(name, fields))


def _of_leaf(node: yaml.Node, kind: Any, path: str) -> Iterator[Misfit]:
    value = plain(node)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, below = str(error).partition(" - at `$")
        yield Misfit(node, f"{path}{below.rstrip('`')}", what, _literal_hint(value, kind) or _number_hint(value, kind))


def _literal_hint(value: Any, kind: Any) -> str:
    inner = _of_value(kind)
    if isinstance(inner, type) and issubclass(inner, Enum):
        words = [str(each.value) for each in inner]
    elif get_origin(inner) is Literal:
        words = [str(each) for each in get_args(inner) if each != ""]
    else:
        return ""
    near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(words)}"


def _number_hint(value: Any, kind: Any) -> str:
    """Suggest the fraction for a percentage, which YAML reads as text."""
    if _of_value(kind) is not float or not isinstance(value, str) or not value.endswith("%"):
        return ""
    try:
        return f"write {float(value.removesuffix('%')) / 100:g}"
    except ValueError:
        return ""


def _of_value(kind: Any) -> Any:
    """The type without None and without annotations. A union of several other types is returned unchanged."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind = get_args(kind)[0]
        elif origin in (Union, types.UnionType):
            others = [each for each in get_args(kind) if each is not type(None)]
            if len(others) != 1:
                return kind
            kind = others[0]
        else:
            return kind
