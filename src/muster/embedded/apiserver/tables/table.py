"""Builds the Tables that `kubectl get` prints.

Source: kubernetes pkg/printers/internalversion (which columns, and how pods and nodes are summed up in a word).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from muster.embedded.objects import Obj, parse_time, section

Row = Callable[[Obj, float], list[Any]]


@dataclasses.dataclass(frozen=True)
class Column:
    """One column; priority 1 shows with `-o wide` only."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a kind, and the function that computes a row."""

    columns: tuple[Column, ...]
    row: Row


NAME = Column("Name", format="name", description="Name must be unique within a namespace.")
AGE = Column("Age", description="CreationTimestamp is the server time when this object was created.")


def table(objects: list[Obj], columns: Columns, include: str, now: float, *, definitions: bool = True) -> Obj:
    """Make a Table; `include` is None, Metadata (the default) or Object."""
    rows = []
    for obj in objects:
        row: Obj = {"cells": columns.row(obj, now)}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj.get("metadata", {}),
            }
        rows.append(row)
    made: Obj = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}}
    made["columnDefinitions"] = [dataclasses.asdict(column) for column in columns.columns] if definitions else []
    made["rows"] = rows
    return made


def age(text: Any, now: float) -> str:
    """Return the time since `text` as kubectl prints it."""
    then = parse_time(text)
    return "<unknown>" if then is None else duration(now - then)


def duration(seconds: float) -> str:
    """Write a duration for people, as k8s.io/apimachinery `duration.HumanDuration`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = whole // 3600
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{hours // 24}d{hours % 24}h" if hours % 24 else f"{hours // 24}d"
    if hours < 24 * 365 * 2:
        return f"{hours // 24}d"
    if hours < 24 * 365 * 8:
        days = hours // 24 % 365
        return f"{hours // 24 // 365}y{days}d" if days else f"{hours // 24 // 365}y"
    return f"{hours // 24 // 365}y"


def created(obj: Obj, now: float) -> str:
    """Return an object's age."""
    return age(section(obj, "metadata").get("creationTimestamp"), now)


def name_of(obj: Obj) -> str:
    """Return an object's name."""
    return str(section(obj, "metadata").get("name", ""))


def _generic(obj: Obj, now: float) -> list[Any]:
    return [name_of(obj), created(obj, now)]


GENERIC = Columns((NAME, AGE), _generic)
