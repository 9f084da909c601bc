"""The S3 server of the bench, with what it has sent, and what that cost it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from obstore.store import S3Store

from muster.controlplane.s3server import REGION, S3Server

BUCKET, SHARDS = "bench", "shards"


class BenchServer:
    """A running server with one empty bucket. Raises NotBuiltError where versitygw is not built and Go is missing."""

    def __init__(self, folder: Path) -> None:
        """Start it on `folder`, and wait until it answers."""
        self._server = S3Server(folder, BUCKET)
        self.endpoint = self._server.endpoint

    def __enter__(self) -> Self:
        """Nothing more to start."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._server.stop()

    def environment(self) -> Mapping[str, str]:
        """What clients need in their environment to reach it."""
        return {
            **self._server.credentials,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            "MUSTER_DATA_URL": f"s3://{BUCKET}/{SHARDS}",
            "MUSTER_DATA_ENDPOINT": self.endpoint,
            "MUSTER_DATA_REGION": REGION,
            "MUSTER_CHECKPOINT_ENDPOINT": self.endpoint,
            "MUSTER_CHECKPOINT_REGION": REGION,
        }

    def store(self, prefix: str) -> S3Store:
        """Below a prefix of the bucket."""
        return S3Store(
            BUCKET,
            prefix=prefix,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=self._server.credentials["AWS_ACCESS_KEY_ID"],
            secret_access_key=self._server.credentials["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )

    def sent_bytes(self) -> int:
        """All bytes that it has written until now: answers, and objects that it stored."""
        return int(re.findall(r"(?m)^wchar: (\d+)", Path(f"/proc/{self._server.pid}/io").read_text())[0])

    def cpu_s(self) -> float:
        """Its user and system time until now."""
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def counted(self) -> Iterator[dict[str, float]]:
        """Fills a dict with `sent_bytes` and `cpu_s` of the block."""
        used: dict[str, float] = {}
        sent, cpu = self.sent_bytes(), self.cpu_s()
        try:
            yield used
        finally:
            used.update(sent_bytes=self.sent_bytes() - sent, cpu_s=self.cpu_s() - cpu)
