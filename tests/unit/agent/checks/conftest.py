"""A node made of files, and NVML made of C: what a check reads, without hardware."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.agent.check import Host

SOURCE = Path(__file__).with_name("fakenvml.c")


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


@pytest.fixture(scope="session")
def build_nvml(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile NVML's C interface; with `OLD`, one that lacks newer functions."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on PATH: NVML's C interface cannot be built")
    folder = tmp_path_factory.mktemp("nvml")

    def build(*defines: str) -> Path:
        library = folder / f"libnvidia-ml{'-'.join(defines)}.so.1"
        if not library.exists():
            flags = [f"-D{name}" for name in defines]
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *flags, "-o", library, SOURCE], check=True, timeout=60)
        return library

    return build
