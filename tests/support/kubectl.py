"""The real kubectl: the user's, else the one `make controlplane` built."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from muster.controlplane.goprograms import NotBuiltError, find_built


@functools.cache
def _found() -> Path | None:
    on_path = shutil.which("kubectl")
    if on_path is not None:
        return Path(on_path)
    try:
        return find_built("controlplane", build=False) / "kubectl"
    except NotBuiltError:
        return None


def kubectl_program() -> Path:
    """The path of kubectl. Without kubectl, the test is skipped."""
    found = _found()
    if found is None:
        pytest.skip("no kubectl on PATH, and none built by `make controlplane`")
    return found
