"""Data for training programs: shards and checkpoints in object stores. Standard library only, Python 3.8+.

Access to object stores uses the package `obstore` (extra `muster[data]`), which is imported on first use.
"""

from muster.sdk.data.broken import BadCursor, BrokenShard, DecodeFailed
from muster.sdk.data.formats.base import Format, Piece
from muster.sdk.data.sample import Sample
from muster.sdk.data.skipped import Skipped
from muster.sdk.data.stream import Stats, Stream, stream

__all__ = [
    "BadCursor",
    "BrokenShard",
    "DecodeFailed",
    "Format",
    "Piece",
    "Sample",
    "Skipped",
    "Stats",
    "Stream",
    "stream",
]
