"""moto's server, which speaks AWS' own protocols on loopback, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from muster.controlplane.ports import free_port
from tests.support.waiting import eventually

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextlib.contextmanager
def aws_server(folder: Path) -> Iterator[str]:
    """Yield its address, once it answers."""
    port = free_port()
    log = folder / "moto.log"
    program = str(Path(sys.executable).with_name("moto_server"))
    with log.open("wb") as out:
        process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    try:
        eventually("moto_server answers", answers)
        yield address
    finally:
        process.kill()  # it would wait for connections that its clients keep open
        process.wait(20)
