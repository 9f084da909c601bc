"""Versions of the CNI specification."""

from __future__ import annotations

from typing import Final

from muster.network.cni.errors import CniError, Code

SUPPORTED: Final = ("0.4.0", "1.0.0", "1.1.0")
"""tools/cni-shim answers VERSION with the same ones."""


def check_version(version: str) -> None:
    """Refuse a version that is not supported.

    Raises:
        CniError: code 1.
    """
    if version not in SUPPORTED:
        raise CniError(
            Code.INCOMPATIBLE_VERSION,
            f"cniVersion {version or '(none)'} is not supported; set one of {', '.join(SUPPORTED)}",
        )
