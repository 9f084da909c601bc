"""Marks tests that need an NVIDIA GPU, its driver and PyTorch; elsewhere they are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

REAL_GPU = pytest.mark.skipif(
    not Path("/proc/driver/nvidia/version").exists() or find_spec("torch") is None,
    reason="no NVIDIA GPU, or no PyTorch in this Python",
)
