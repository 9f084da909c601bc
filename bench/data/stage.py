"""Where the bench runs: the S3 server, the shards in its bucket, the peers' environment, and scratch folders."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import obstore

from bench.data.processes import ROOT, WorkerFailed, run_alone
from bench.data.samples import Size, key, tar
from bench.data.server import BUCKET, SHARDS, BenchServer
from muster.controlplane.s3server import REGION

MDS = "mds"
BATCH = 32
SHARD_BYTES = 32 << 20
"""Of the peer's own format."""


class Stage(NamedTuple):
    """What every part of the bench works with."""

    server: BenchServer
    folder: Path
    size: Size
    total_bytes: int
    """Of all shards as they lie in the bucket."""
    peers: Path | None
    """The Python of the peers' environment; None where it could not be made."""
    no_peers: str
    """Why there is none."""

    @property
    def keys(self) -> list[str]:
        """The shards, below SHARDS."""
        return [key(shard) for shard in range(self.size.shards)]

    def settings(self, **more: Any) -> dict[str, Any]:
        """What a worker needs, with a new folder of its own."""
        return {
            "bucket": BUCKET,
            "prefix": SHARDS,
            "url": f"s3://{BUCKET}/{SHARDS}",
            "mds": MDS,
            "keys": self.keys,
            "region": REGION,
            "endpoint": self.server.endpoint,
            "files": str(self.folder / "files"),
            "folder": tempfile.mkdtemp(dir=self.folder),
            "batch": BATCH,
            "root": str(ROOT),
            **more,
        }


@contextmanager
def staged(size: Size) -> Iterator[Stage]:
    """Start the server, and put the shards into its bucket and into a folder."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-data-") as name:
        folder = Path(name)
        (folder / "files").mkdir()
        peers, no_peers = _peers()
        with BenchServer(folder / "s3") as server:
            total = 0
            store = server.store(SHARDS)
            for shard in range(size.shards):
                data = tar(shard, size.samples)
                total += len(data)
                (folder / "files" / key(shard)).write_bytes(data)
                obstore.put(store, key(shard), data)
            stage = Stage(server, folder, size, total, peers, no_peers)
            if peers is not None:
                try:
                    _put_mds(stage)
                except WorkerFailed as error:
                    stage = stage._replace(peers=None, no_peers=str(error))
            yield stage


def _peers() -> tuple[Path | None, str]:
    """The Python of the peers' environment, made if it is missing; else why it cannot be had."""
    done = subprocess.run([ROOT / "tools" / "data-peers"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["tools/data-peers failed"])[-1]
    return Path(done.stdout.strip()) / "bin" / "python", ""


def _put_mds(stage: Stage) -> None:
    """The same samples in MosaicML's format, beside the shards."""
    out = stage.folder / "mds"
    settings = stage.settings(size=list(stage.size), out=str(out), shard_bytes=SHARD_BYTES)
    run_alone("mosaicml_write", settings, stage.server.environment(), stage.peers)
    store = stage.server.store(MDS)
    for file in out.iterdir():
        obstore.put(store, file.name, file)
    shutil.rmtree(out)
