"""Bounds of configuration fields in JSON schemas, beside the checks that name the line of a text.

`schema` adds keywords to the JSON schema of a field. It does not change what msgspec accepts: the parser of each
configuration checks the same bound itself, because its message says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec


def schema(**keywords: Any) -> msgspec.Meta:
    """Return an annotation that adds keywords such as `minimum` to the JSON schema of a field."""
    return msgspec.Meta(extra_json_schema=keywords)


Whole = Annotated[int, schema(minimum=0)]
Positive = Annotated[int, schema(minimum=1)]
Seconds = Annotated[float, schema(exclusiveMinimum=0)]
Selector = Annotated[dict[str, str], schema(minProperties=1)]
Quantities = Annotated[Mapping[str, str | int | float], schema(minProperties=1)]
