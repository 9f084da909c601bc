"""A guard in a process of its own, with the configuration of the bench."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.guardprocess import Guard, running


def configuration(upstream: str) -> dict[str, Any]:
    """Defaults everywhere. Grafana may name its users, and each has a budget of its own."""
    return {
        "upstream": {"url": upstream},
        "callers": {
            "anonymous": "default",
            "peers": [{"name": "grafana", "addresses": ["127.0.0.0/8"], "group": "default"}],
        },
    }


@contextlib.contextmanager
def guarding(folder: Path, upstream: str) -> Iterator[Guard]:
    """Run a guard before a server."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "guard.yaml"
    config.write_text(json.dumps(configuration(upstream)))  # JSON is YAML
    with running(config, folder / "guard.log", ["--log-level=warning"]) as guard:
        yield guard


def cpu_s(guard: Guard) -> float:
    """CPU seconds that it has used."""
    fields = Path(f"/proc/{guard.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(guard: Guard) -> int:
    """The peak of its resident memory."""
    status = Path(f"/proc/{guard.child.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
