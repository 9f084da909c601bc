"""A checkpoint as the program's read() sees it: a path on this node, or shards that are fetched by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from muster.sdk import place
from muster.sdk.saves import layout, parallel

if TYPE_CHECKING:
    from muster.sdk.saves.manifest import Manifest, Shard


class CheckpointFiles:
    """A checkpoint that is being loaded. Use it as a path, or fetch the shards that you need.

    Files are fetched and verified on first use. Do not change them: the ranks of a node share them.

    Attributes:
        step: the step of the checkpoint.
        manifest: its manifest; None if the program wrote it without save_checkpoint.
        cursor: the position in the training data that was saved with it; None without one.
        skipped: samples that were skipped.
    """

    def __init__(self, step: int, manifest: Manifest | None, source: Source) -> None:
        self.step = step
        self.manifest = manifest
        self.cursor = manifest.cursor if manifest else None
        self.skipped = manifest.skipped if manifest else ()
        self._source = source

    def __fspath__(self) -> str:
        return self.path

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all shards, such as `rank-00003/model.pt`."""
        return tuple(each.key for each in self.manifest.shards) if self.manifest else ()

    @property
    def path(self) -> str:
        """The file or folder on this node, as `write` of save_checkpoint made it.

        For a sharded checkpoint it is what this rank wrote, if the world size is still the same. Otherwise it is a
        folder with a file or folder for each rank that wrote: rank-00000, rank-00001, and so on.
        """
        if self.manifest is None:
            return self._source.root
        if not self.manifest.sharded:
            return self._at("rank-00000" if self._source.by_rank else "", self.manifest.shards)
        if self.manifest.world_size != place.world_size():
            return self._at("", self.manifest.shards)
        own = [each for each in self.manifest.shards if each.rank == place.rank()]
        return self._at(layout.rank_name(place.rank()), own)

    def fetch(self, names: list[str] | tuple[str, ...]) -> str:
        """Fetch and verify these shards; returns the folder that holds them. Raises KeyError for an unknown name."""
        shards = {each.key: each for each in (self.manifest.shards if self.manifest else ())}
        return self._at("", [shards[each] for each in names])

    def _at(self, below: str, shards: tuple[Shard, ...] | list[Shard]) -> str:
        parallel.each(self._source.fetch, shards)
        path = os.path.join(self._source.root, below) if below else self._source.root
        if not shards:
            os.makedirs(path, exist_ok=True)
        return path


class Source:
    """Where the files of a checkpoint come from.

    Attributes:
        root: local folder of the shards.
        by_rank: whether the shards of an unsharded checkpoint are below rank-00000.
        bytes_from: bytes read by source.
    """

    root: str
    by_rank: bool
    bytes_from: dict[str, int]

    def fetch(self, shard: Shard) -> None:
        """Make the shard's file available on this node and verify it. Raises BadCheckpoint, StoreError."""
        raise NotImplementedError

    def close(self) -> None:
        """Release connections."""
