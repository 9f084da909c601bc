"""Answers to the shim: what it prints, and its exit status."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

import msgspec

from muster.network.addresses.errors import Exhausted, StoreError
from muster.network.cni.errors import CniError, Code
from muster.network.cni.invocation import Invocation
from muster.network.cni.operations import Operations
from muster.network.netlink.socket import NetlinkError

log = logging.getLogger(__name__)

_INTERNAL: Final = 999
_VERSION: Final = "1.1.0"


class Answer(NamedTuple):
    """What the shim prints, and its exit status from 0 to 9."""

    exit_code: int
    output: str

    def encode(self) -> bytes:
        """Return what `tools/cni-shim/exchange.go` reads: the output, a zero byte, and the exit status.

        JSON has no zero byte. So the shim sees whether an answer is whole.
        """
        return b"%b\0%d" % (self.output.encode(), self.exit_code)


def answer(operations: Operations, invocation: Invocation) -> Answer:
    """Carry out a request. Every failure becomes an error of CNI."""
    try:
        result = operations.carry_out(invocation)
    except CniError as error:
        return _failure(invocation, int(error.code), error.message, error.details)
    except Exhausted as error:
        return _failure(invocation, int(Code.TRY_AGAIN_LATER), error.message)
    except StoreError as error:
        return _failure(invocation, int(Code.IO_FAILURE), "the store of addresses failed", str(error))
    except NetlinkError as error:
        return _failure(invocation, int(Code.KERNEL_REFUSED), "the kernel refused a change", str(error))
    except TimeoutError as error:
        return _failure(invocation, int(Code.TRY_AGAIN_LATER), "the kernel did not answer in time", str(error))
    except Exception as error:
        log.exception("%s failed", invocation.document.command)
        return _failure(invocation, _INTERNAL, "the network agent failed; its log has the reason", repr(error))
    return Answer(0, msgspec.json.encode(result).decode() + "\n" if result is not None else "")


def _failure(invocation: Invocation, code: int, message: str, details: str = "") -> Answer:
    error: dict[str, Any] = {"cniVersion": _version_of(invocation), "code": code, "msg": message}
    if details:
        error["details"] = details
    return Answer(1, msgspec.json.encode(error).decode() + "\n")


class _Versioned(msgspec.Struct, rename="camel"):
    cni_version: str = _VERSION


def _version_of(invocation: Invocation) -> str:
    try:
        return msgspec.json.decode(invocation.document.config, type=_Versioned).cni_version or _VERSION
    except (msgspec.DecodeError, RecursionError):
        return _VERSION
