"""An S3 server on this machine (versitygw), for demos and benchmarks: one bucket in one folder."""

from __future__ import annotations

import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from muster.controlplane.children import Child
from muster.controlplane.goprograms import find_built
from muster.controlplane.ports import free_port

REGION = "us-east-1"
_READY_S = 30.0
_POLL_S = 0.02


class S3ServerError(Exception):
    """The server did not start; the message ends with the last lines of its log."""


class S3Server:
    """An S3 server with one empty bucket. It listens on 127.0.0.1 and ends with this process.

    Attributes:
        endpoint: URL of the server.
        bucket: name of the bucket.
        credentials: the account, under the names of AWS' environment variables.
        log: the server's messages.
    """

    def __init__(self, folder: Path, bucket: str, access_log: Path | None = None, *, build: bool = True) -> None:
        """Start the server, and wait until it answers.

        Args:
            folder: holds its objects; created if missing.
            bucket: name of the bucket.
            access_log: gets a line for each request.
            build: build versitygw if it is missing and Go is installed, which takes minutes.

        Raises:
            NotBuiltError: versitygw is not built.
            S3ServerError: it does not start.
        """
        program = find_built("versitygw", build=build) / "versitygw"
        (folder / "buckets" / bucket).mkdir(parents=True)
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        self.bucket = bucket
        self.credentials: Mapping[str, str] = {
            "AWS_ACCESS_KEY_ID": "muster",
            "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24),
        }
        self.log = folder / "server.log"
        options = [f"--listen=127.0.0.1:{port}", f"--folder={folder}"]
        if access_log is not None:
            options.append(f"--access-log={access_log}")
        self._child = Child([program, *options], self.log, {**os.environ, **self.credentials})
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Process ID of the server."""
        return self._child.pid

    def stop(self) -> None:
        """End the server. Its objects stay in the folder."""
        self._child.stop(grace_s=2)

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not _answers(self.endpoint):
            if self._child.exit_code is not None:
                raise S3ServerError(f"the S3 server ended: {self._child.log_tail(3)}")
            if time.monotonic() > deadline:
                raise S3ServerError(f"the S3 server did not answer within {_READY_S:g} s: {self._child.log_tail(3)}")
            time.sleep(_POLL_S)


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # the request has no signature
    except OSError:
        return False
