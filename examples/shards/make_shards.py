"""Writes scikit-learn's handwritten digits as tar shards: `python make_shards.py s3://bucket/path`, or a folder."""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from muster.sdk.data import open_store


def samples() -> Iterator[tuple[str, bytes]]:
    """Yield (file name, bytes): each image is a file of 64 bytes, and its label is a file of the same name."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        sys.exit("the images are scikit-learn's: pip install scikit-learn")
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.uint8)
    for number, row in enumerate(rows):
        yield f"{number:05d}.img", row[:-1].tobytes()
        yield f"{number:05d}.cls", str(row[-1]).encode()


def shard(members: list[tuple[str, bytes]]) -> bytes:
    """Returns a tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="where the shards go")
    parser.add_argument("--samples", type=int, default=150, help="in each shard")
    options = parser.parse_args()
    store = open_store(options.url)
    members = list(samples())
    files = 2 * options.samples
    shards = [members[start : start + files] for start in range(0, len(members), files)]
    for number, each in enumerate(shards):
        store.put(f"digits-{number:03d}.tar", shard(each))
    print(f"wrote {len(shards)} shards with {len(members) // 2} samples to {store.url}")


if __name__ == "__main__":
    main()
