"""A node made of files: what a check reads, without hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.check import Host


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A node whose files are all below one folder, empty at first."""
    root = tmp_path / "host"
    for name in ("sys", "proc", "dev"):
        (root / name).mkdir(parents=True)
    return Host(root=root, sys=root / "sys", proc=root / "proc", dev=root / "dev")
