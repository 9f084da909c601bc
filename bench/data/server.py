"""The S3 server of the bench: versitygw on a folder, in a process of its own, with what it has sent and served."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from obstore.store import S3Store

from muster.controlplane.children import Child
from muster.controlplane.goprograms import find_built
from muster.controlplane.ports import free_port
from tests.support.waiting import eventually

BUCKET = "bench"
REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret"}
_GET = re.compile(r" s3_GetObject (\S+) ")


class S3Server:
    """A running server with one empty bucket. Raises NotBuiltError where versitygw is not built and Go is missing."""

    def __init__(self, folder: Path) -> None:
        """Start it on `folder`, and wait until it answers."""
        program = find_built("versitygw") / "versitygw"
        (folder / "buckets" / BUCKET).mkdir(parents=True)
        self._accesses = folder / "accesses.log"
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        options = [f"--listen=127.0.0.1:{port}", f"--folder={folder}", f"--access-log={self._accesses}"]
        self._child = Child([program, *options], folder / "server.log", {**os.environ, **CREDENTIALS})
        eventually("the S3 server answers", self._answers)

    def __enter__(self) -> Self:
        """Nothing more to start."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._child.stop()

    def environment(self) -> Mapping[str, str]:
        """What clients need in their environment to reach it."""
        return {
            **CREDENTIALS,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
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
            access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )

    def sent_bytes(self) -> int:
        """All bytes that it has written until now: answers, and objects that it stored."""
        return int(re.findall(r"(?m)^wchar: (\d+)", Path(f"/proc/{self._child.pid}/io").read_text())[0])

    def cpu_s(self) -> float:
        """Its user and system time until now."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def gets(self) -> Counter[str]:
        """How often each object was asked for, whole or in part."""
        return Counter(_GET.findall(self._accesses.read_text()))

    @contextlib.contextmanager
    def counted(self) -> Iterator[dict[str, float]]:
        """Fills a dict with `sent_bytes` and `cpu_s` of the block."""
        used: dict[str, float] = {}
        sent, cpu = self.sent_bytes(), self.cpu_s()
        try:
            yield used
        finally:
            used.update(sent_bytes=self.sent_bytes() - sent, cpu_s=self.cpu_s() - cpu)

    def _answers(self) -> bool:
        if self._child.exit_code is not None:
            raise SystemExit(f"the S3 server ended: {self._child.log_tail()}")
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True  # it wants a signature
        except OSError:
            return False
