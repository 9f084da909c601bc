"""Chooses the format of a data set by the names of its objects."""

from __future__ import annotations

from typing import Sequence

from muster.sdk.data.formats.base import Format
from muster.sdk.data.formats.plain import PlainFormat
from muster.sdk.data.formats.tar import TarFormat

_COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")


def choose(wanted: str | Format, keys: Sequence[str]) -> Format:
    """Return the format: "tar", "plain", an object, or "auto" (tar if there are tar files). Raises ValueError."""
    if isinstance(wanted, Format):
        return wanted
    if wanted == "auto":
        wanted = "tar" if any(key.endswith((".tar", *_COMPRESSED)) for key in keys) else "plain"
    if wanted == "plain":
        return PlainFormat()
    if wanted != "tar":
        raise ValueError(f'format must be "auto", "tar", "plain" or a Format, not {wanted!r}')
    compressed = [key for key in keys if key.endswith(_COMPRESSED)]
    if compressed:
        raise ValueError(
            f"{compressed[0]} is compressed, so its samples cannot be read one by one: decompress it, "
            "and compress the members instead"
        )
    return TarFormat()
