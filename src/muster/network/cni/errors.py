"""Errors of CNI, with the codes of its specification (section "Error")."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Codes of the specification up to 99. Higher ones are ours."""

    INCOMPATIBLE_VERSION = 1
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    DECODING_FAILURE = 6
    INVALID_CONFIG = 7
    INVALID_NAMESPACE = 8
    """Not in the specification's text, but in its library (libcni, ErrInvalidNetNS)."""
    TRY_AGAIN_LATER = 11
    NOT_AVAILABLE = 50
    """STATUS: ADD would fail."""
    LIMITED_CONNECTIVITY = 51
    """STATUS: ADD would fail, and pods may have lost connections."""
    KERNEL_REFUSED = 100
    DIFFERS = 101
    """CHECK: the pod's network differs from the result of ADD."""


class CniError(Exception):
    """A request failed.

    Args:
        code: what kind of failure.
        message: what happened, and what to do.
        details: what the kernel or the store said.
    """

    def __init__(self, code: Code, message: str, details: str = "") -> None:
        super().__init__(f"{message}: {details}" if details else message)
        self.code = code
        self.message = message
        self.details = details
