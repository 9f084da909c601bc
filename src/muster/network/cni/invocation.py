"""A request of the shim: what the runtime gave to it, and open files of the pod's network namespace."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from types import TracebackType
from typing import Final

import msgspec

from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.cni.errors import CniError, Code

_CONTAINER_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_IFNAME: Final = re.compile(r"[^/:%\s]+")
"""The kernel replaces "%d" with a number, so the interface would not have the name that was asked for."""
_CONTAINER_ID_MAX: Final = 200  # an alias of a link has at most 255 bytes
_IFNAME_BYTES_MAX: Final = 15
_TEXTS: Final = 7
_POD_TEXT_MAX: Final = 253
"""Longest name of a pod (RFC 1123 subdomain). What another runtime passes is cut: it is for people."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What the shim sends.

    Attributes:
        command, container_id, netns, ifname, args: of the environment (CNI specification, section "Parameters").
        config: what the runtime wrote to stdin.
        files: names of the files that came beside it.
        files_error: why the pod's network namespace is not among them.
    """

    command: str
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: str = ""
    config: str = ""
    files: tuple[str, ...] = ()
    files_error: str = ""


def parse_document(body: bytes) -> Document:
    """Read what `tools/cni-shim/exchange.go` writes: seven texts that each end with a zero byte, and the configuration.

    Texts of the environment have no zero byte, and bytes that are not UTF-8 are replaced. The last two texts are names
    of files with commas between them, and the number of an error (errno(3)).

    Raises:
        ValueError: a text is missing, or the error is not a number.
    """
    *texts, config = body.split(b"\0", _TEXTS)
    if len(texts) < _TEXTS:
        raise ValueError("a request was cut off")
    command, container_id, netns, ifname, args, files, number = (each.decode(errors="replace") for each in texts)
    return Document(
        command=command,
        container_id=container_id,
        netns=netns,
        ifname=ifname,
        args=args,
        config=config.decode(errors="replace"),
        files=tuple(files.split(",")) if files else (),
        files_error=os.strerror(int(number)) if number else "",
    )


class Invocation:
    """A request, and the files that came with it. Closes them at the end of a `with`.

    Args:
        document: the request.
        descriptors: the files, in the order of `document.files`.
        is_abandoned: returns whether the runtime or the shim gave up, so nothing reads the answer.

    Raises:
        ValueError: not as many files came as were named.
    """

    def __init__(
        self, document: Document, descriptors: list[int], is_abandoned: Callable[[], bool] = lambda: False
    ) -> None:
        self._descriptors = descriptors
        self.document = document
        self.is_abandoned = is_abandoned
        self.files = dict(zip(document.files, descriptors, strict=True))

    def __enter__(self) -> Invocation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def key(self) -> AttachmentKey:
        """Return which attachment is meant.

        Raises:
            CniError: code 4.
        """
        container_id, ifname = self.document.container_id, self.document.ifname
        if not _CONTAINER_ID.fullmatch(container_id) or len(container_id) > _CONTAINER_ID_MAX:
            raise CniError(Code.INVALID_ENVIRONMENT, "CNI_CONTAINERID is missing or not valid", repr(container_id))
        known = _IFNAME.fullmatch(ifname) and ifname not in (".", "..")
        if not known or len(ifname.encode()) > _IFNAME_BYTES_MAX:
            raise CniError(Code.INVALID_ENVIRONMENT, "CNI_IFNAME is missing or not valid", repr(ifname))
        return AttachmentKey(container_id, ifname)

    def pod(self) -> PodRef:
        """Return the pod that CNI_ARGS names. The fields are empty if the runtime is not Kubernetes'."""
        pairs = (each.partition("=") for each in self.document.args.split(";"))
        named = {name: value[:_POD_TEXT_MAX] for name, _, value in pairs}
        return PodRef(
            namespace=named.get("K8S_POD_NAMESPACE", ""),
            name=named.get("K8S_POD_NAME", ""),
            uid=named.get("K8S_POD_UID", ""),
        )
