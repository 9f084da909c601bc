"""What is known about a checkpoint shard, and which ones a node keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

SHARD_BYTES_MAX: Final = 1 << 42
UNCONFIRMED_MAX: Final = 2
"""Checkpoints that are kept beside the newest confirmed one, while the controller has not confirmed them."""
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard of a checkpoint.

    Attributes:
        uid: the job. No other job gets it.
        key: of the shard's object, as in the manifest.
        sha256: of its bytes, in hex.
        size_bytes: its length.
        checkpoint: path of its checkpoint.
        step: the checkpoint's step.
        attempt: the attempt that saved it.
        own: whether a rank of this node saved or restored it; false for a copy that the node keeps for a peer.
    """

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    key: _Text
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=SHARD_BYTES_MAX)]
    checkpoint: _Text
    step: Annotated[int, msgspec.Meta(ge=0)]
    attempt: Annotated[int, msgspec.Meta(ge=0)]
    own: bool = True

    @property
    def name(self) -> str:
        """Name of its file. Jobs have different names for the same bytes."""
        return hashlib.sha256(json.dumps(["shard", self.uid, self.key, self.sha256]).encode()).hexdigest()

    @property
    def age(self) -> tuple[int, int]:
        """Order of checkpoints. A later attempt may have gone back to an earlier step."""
        return (self.attempt, self.step)


def surplus(shards: Iterable[Shard], confirmed: str) -> list[Shard]:
    """Return the shards of one job that are not kept any more.

    Kept are the newest confirmed checkpoint and up to UNCONFIRMED_MAX newer ones. If no shards of a confirmed one are
    here, the newest checkpoints are kept.

    Args:
        shards: of the job on this node.
        confirmed: path of its newest confirmed checkpoint; "" if it is not known.
    """
    by_checkpoint: dict[str, list[Shard]] = {}
    for shard in shards:
        by_checkpoint.setdefault(shard.checkpoint, []).append(shard)
    ordered = sorted(by_checkpoint, key=lambda path: max(shard.age for shard in by_checkpoint[path]), reverse=True)
    kept = ordered[: UNCONFIRMED_MAX + 1]
    if confirmed in ordered:
        newer = ordered[: ordered.index(confirmed)]
        kept = [*newer[:UNCONFIRMED_MAX], confirmed]
    return [shard for path in ordered if path not in kept for shard in by_checkpoint[path]]
