"""Data for training programs: shards and checkpoints in object stores. Standard library only, Python 3.8+.

    from muster.sdk.data import open_store, stream

    for batch in stream("s3://bucket/shards", seed=1, global_batch=256):
        ...
    store = open_store("s3://bucket/results")
    store.put("metrics.json", b"{}")

Access to object stores uses the package `obstore` (extra `muster[data]`), which is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.sdk.data.access import Access, access_from
    from muster.sdk.data.broken import BadCursor, BrokenShard, DecodeFailed
    from muster.sdk.data.errors import (
        AlreadyExists,
        Forbidden,
        NoCreateOnly,
        NotFound,
        ObjectChanged,
        ObstoreMissing,
        StoreError,
        Unavailable,
        WrongStore,
    )
    from muster.sdk.data.formats.base import Format, Piece
    from muster.sdk.data.sample import Sample
    from muster.sdk.data.skipped import Skipped
    from muster.sdk.data.store import ObjectInfo, Store
    from muster.sdk.data.stores import open_store
    from muster.sdk.data.streaming import Stats, Stream, stream

__all__ = [
    "Access",
    "AlreadyExists",
    "BadCursor",
    "BrokenShard",
    "DecodeFailed",
    "Forbidden",
    "Format",
    "NoCreateOnly",
    "NotFound",
    "ObjectChanged",
    "ObjectInfo",
    "ObstoreMissing",
    "Piece",
    "Sample",
    "Skipped",
    "Stats",
    "Store",
    "StoreError",
    "Stream",
    "Unavailable",
    "WrongStore",
    "access_from",
    "open_store",
    "stream",
]

_MODULES = {
    **dict.fromkeys(("BadCursor", "BrokenShard", "DecodeFailed"), "broken"),
    **dict.fromkeys(("Format", "Piece"), "formats.base"),
    **dict.fromkeys(("Sample",), "sample"),
    **dict.fromkeys(("Skipped",), "skipped"),
    **dict.fromkeys(("Stats", "Stream", "stream"), "streaming"),
    **dict.fromkeys(("Access", "access_from"), "access"),
    **dict.fromkeys(("ObjectInfo", "Store"), "store"),
    "open_store": "stores",
}


def __getattr__(name: str) -> object:
    """Import a public name when a program first uses it, because every rank imports muster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
