"""One sample of a data set."""

from __future__ import annotations

from typing import NamedTuple


class Sample(NamedTuple):
    """One sample, as a training program receives it.

    Attributes:
        key: its name in the data set, without extensions.
        data: bytes by extension in lower case, such as {"jpg": ..., "json": ...}.
        shard: key of the object that holds it.
        position: its place in the stream, from 0, over all epochs.
    """

    key: str
    data: dict[str, bytes]
    shard: str
    position: int
