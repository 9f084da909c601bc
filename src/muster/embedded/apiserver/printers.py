"""The columns of each kind."""

from __future__ import annotations

from muster.embedded.apiserver.registry import ResourceType
from muster.embedded.apiserver.tables import GENERIC, Columns

_BY_STORAGE: dict[str, Columns] = {}


def columns_of(resource: ResourceType) -> Columns:
    """Return the columns of a kind."""
    if resource.columns is not None:
        return resource.columns
    return _BY_STORAGE.get(resource.storage, GENERIC)
