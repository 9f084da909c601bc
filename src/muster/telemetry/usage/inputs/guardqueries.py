"""Reads the dearest queries of Muster's guard: they contain requests for series and labels, which no log has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from muster.telemetry.usage.inputs.files import InputError
from muster.telemetry.usage.inputs.question import Question
from muster.telemetry.usage.query import Query, read_query
from muster.telemetry.usage.selection import EVERYTHING

CUT: Final = "…"
"""Ends a text that the guard has cut."""
_BYTES_MAX: Final = 64 << 20


class _Query(msgspec.Struct, rename="camel"):
    query: str
    dashboard_title: str = ""
    panel_title: str = ""


class _Page(msgspec.Struct):
    queries: list[_Query]


def guard_questions(path: Path) -> Iterator[Question]:
    """Yield the queries of a saved page /guard/dearest. Raises InputError if the file is something else."""
    try:
        with path.open("rb") as file:
            page = msgspec.json.decode(file.read(_BYTES_MAX), type=_Page)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} does not contain the guard's dearest queries: {error}") from error
    for each in page.queries:
        place = ": ".join(text for text in (str(path), each.dashboard_title, each.panel_title) if text)
        if each.query.endswith(CUT):
            yield Question(each.query, place, Query(frozenset({EVERYTHING}), "the guard kept only its beginning"))
        elif each.query.strip():
            yield Question(each.query, place, read_query(each.query))
