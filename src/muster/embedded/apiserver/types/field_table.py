"""Names and types of the fields of built-in kinds, as a table that a person can read.

The table is `builtinfields.txt`. It holds facts of the API alone, no descriptions: field_writer.py reads them from the
OpenAPI documents of a real API server, and a scenario test compares both.

Format:
- A line `[core.v1]` begins a group.
- `Name field:type ...` is a type of the group; lines that begin with a space continue the type before.
- A field that ends in `!` is required.
- Simple types: `s` string, `b` boolean, `i` and `j` integers of 64 and 32 bits, `f` a number, `q` a quantity, `x` an
  integer or a string.
- Others: `t` and `u` times in seconds and microseconds, `B` base64, `o` any object, `a` any value.
- `[T]` is a list and `{T}` a map.
- Every other word is a type, of another group if it has a dot.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Final, NamedTuple

TABLE: Final = "builtinfields.txt"
SCALARS: Final = frozenset("sbijfqxtuBoa")


class Field(NamedTuple):
    """One field: its type, as the table writes it, and whether it is required."""

    type: str
    required: bool


Fields = dict[str, Field]


@functools.cache
def field_table() -> dict[str, Fields]:
    """Return the fields of each type by its full name, such as `core.v1.Container`."""
    return parse((files(__package__) / TABLE).read_text())


def parse(text: str) -> dict[str, Fields]:
    """Read a table."""
    table: dict[str, Fields] = {}
    group, fields = "", Fields()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            group = line.strip("[]")
            continue
        words = line.split()
        if not line.startswith(" "):
            fields = table.setdefault(f"{group}.{words[0]}", {})
            words = words[1:]
        for word in words:
            name, _, kind = word.rpartition(":")
            fields[name.removesuffix("!")] = Field(_full(kind, group), name.endswith("!"))
    return table


def _full(kind: str, group: str) -> str:
    if kind[0] in "[{":
        return kind[0] + _full(kind[1:-1], group) + kind[-1]
    return kind if kind in SCALARS or "." in kind else f"{group}.{kind}"


def type_name(api_version: str, kind: str) -> str:
    """Return the full name of a kind's type: `core.v1.Pod`, `coordination.v1.Lease`."""
    group, _, version = api_version.rpartition("/")
    return f"{(group or 'core').partition('.')[0]}.{version}.{kind}"
