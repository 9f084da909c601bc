"""Computes merge patches (RFC 7386) from one JSON value to another."""

from __future__ import annotations

from typing import Any


def merge_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the merge patch from `old` to `new`: changed and new keys, null for removed ones, whole lists."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
