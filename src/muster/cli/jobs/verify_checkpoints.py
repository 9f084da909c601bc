"""Reads checkpoints from this machine, and compares their shards with the confirmed manifests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from muster.api.store_url import is_store, is_url
from muster.cli.errors import CliError
from muster.cli.output import console, interactive

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.api.training_job_status import CheckpointStatus
    from muster.sdk.data.access import Access
    from muster.sdk.saves.manifest import Manifest

_DEADLINE_S = 120.0
GONE = "Gone"
_CHUNK_BYTES = 1 << 20
Advance = Callable[[int], None]
"""Called with the number of bytes that were read."""


class Check(NamedTuple):
    """The result for one checkpoint; both are empty if it is intact.

    Attributes:
        reason: Checksum, Missing, Size, Manifest, Read or Version; Gone if the checkpoint does not exist; NoManifest if
            there is nothing to compare with.
        problem: the same as text; "" for an old checkpoint that is gone, as jobs remove these.
    """

    reason: str = ""
    problem: str = ""


class _Counting:
    """A file that drops what is written, and reports how much it was."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def write(self, data: bytes) -> None:
        """Drop the bytes."""
        self._advance(len(data))


def verify_all(job: TrainingJob, listed: Sequence[CheckpointStatus], credentials: str) -> list[Check]:
    """Read all shards of these checkpoints, with a progress bar on a terminal.

    Args:
        job: the job; its spec has the endpoint and the region of the store.
        listed: its checkpoints.
        credentials: folder with the user's credentials; "" for those of the environment.
    """
    from muster.sdk.data.access import Access

    spec = job.spec.checkpoint
    access = Access(spec.endpoint if spec else "", spec.region if spec else "", credentials)
    with _progress(sum(each.bytes or 0 for each in listed)) as advance:
        checks = [_verify(each, access, advance) for each in listed]
    newest = [Check(GONE, f"it does not exist: {each.path}") for each in listed[:1] if checks[0].reason == GONE]
    return [*newest, *checks[len(newest) :]]


def _verify(checkpoint: CheckpointStatus, access: Access, advance: Advance) -> Check:
    from muster.sdk.data.errors import ObjectChanged, StoreError
    from muster.sdk.saves.manifest import BadCheckpoint

    try:
        if is_store(checkpoint.path):
            return _in_store(checkpoint, access, advance)
        if is_url(checkpoint.path):
            return Check("Read", f"only the program can read {checkpoint.path}")
        if not Path(checkpoint.path).is_absolute() or not Path(checkpoint.path).parent.is_dir():
            return Check("Read", f"this machine does not have the folder of {checkpoint.path}")
        return _in_folder(checkpoint, advance)
    except BadCheckpoint as error:
        return Check(error.reason, str(error))
    except ObjectChanged as error:
        return Check("Checksum", f"a shard changed after it was saved: {error}")
    except (StoreError, CliError, OSError) as error:
        return Check("Read", str(error))


def _in_store(checkpoint: CheckpointStatus, access: Access, advance: Advance) -> Check:
    from muster.cli.data.source import Source, opened
    from muster.sdk.data.errors import NotFound
    from muster.sdk.saves import bucket
    from muster.sdk.saves.bucket import Digesting
    from muster.sdk.saves.layout import MANIFEST

    with opened(Source(checkpoint.path, access), _DEADLINE_S) as store:
        try:
            store.head(MANIFEST)
        except NotFound:
            return Check(GONE)
        known = bucket.read_manifest(store, "", checkpoint.manifest)
        for shard in known.shards:
            sink = Digesting(_Counting(advance))
            store.read_into(shard.key, sink, etag=shard.etag)  # type: ignore[arg-type]
            sink.compare(shard)
    return Check()


def _in_folder(checkpoint: CheckpointStatus, advance: Advance) -> Check:
    from muster.sdk.saves import folders
    from muster.sdk.saves.bucket import Digesting

    if not Path(checkpoint.path).exists():
        return Check(GONE)
    known: Manifest | None = folders.read_manifest(checkpoint.path, checkpoint.manifest)
    if known is None:
        return Check("NoManifest", "it was saved without a manifest, so there is nothing to compare it with")
    for shard in known.shards:
        folders.compare_size(checkpoint.path, shard)
        sink = Digesting(_Counting(advance))
        with open(folders.file_of(checkpoint.path, shard), "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                sink.write(chunk)
        sink.compare(shard)
    return Check()


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Advance]:
    """Show a progress bar on a terminal while the block runs."""
    if not interactive():
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=console(), transient=True) as shown:
        task = shown.add_task("verifying", total=total or None)
        yield lambda count: shown.advance(task, count)
