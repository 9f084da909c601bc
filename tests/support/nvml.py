"""NVML's C interface without a GPU: a library that answers from a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fakenvml.c")
STATE = "FAKE_NVML_STATE"
"""The environment variable that names the file."""


def build_nvml(folder: Path, *defines: str) -> Path:
    """Compile the library. Without a compiler, the test is skipped.

    Args:
        folder: where it lies then.
        defines: `OLD` leaves out newer functions.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on PATH: NVML's C interface cannot be built")
    library = folder / f"libnvidia-ml{'-'.join(defines)}.so.1"
    if not library.exists():
        flags = [f"-D{name}" for name in defines]
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *flags, "-o", library, SOURCE], check=True, timeout=60)
    return library


def tell_nvml(file: Path, lines: Mapping[str, object]) -> None:
    """Say what it answers from the next session on."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    os.replace(new, file)


def plug_gpu(sys: Path, index: int, config: bytes = b"\xde\x10\x30\x23") -> None:
    """Put a GPU on the PCI bus, where the library has its GPU of that index."""
    device = sys / f"bus/pci/devices/0000:{index + 1:02x}:00.0"
    device.mkdir(parents=True, exist_ok=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (device / "config").write_bytes(config)
