"""Reads the status of a container runtime: CRI's RuntimeService, k8s.io/cri-api/pkg/apis/runtime/v1/api.proto."""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.kube.connection.grpcunix import CallError, call, fields_of

METHOD: Final = "/runtime.v1.RuntimeService/Status"
RUNTIME_READY: Final = "RuntimeReady"
NETWORK_READY: Final = "NetworkReady"


class Condition(NamedTuple):
    """A condition that a runtime reports."""

    kind: str
    holds: bool
    message: str


async def runtime_status(socket: str, timeout_s: float) -> tuple[Condition, ...]:
    """Query the runtime behind a socket.

    Raises:
        CallError: it does not answer, or not with a status.
        PermissionError: the socket may not be opened.
    """
    answer = await call(socket, METHOD, timeout_s)
    try:
        return conditions_of(answer)
    except ValueError as error:
        raise CallError(f"{socket}: {error}") from error


def conditions_of(message: bytes) -> tuple[Condition, ...]:
    """Parse a StatusResponse.

    Raises:
        ValueError: it is not a StatusResponse.
    """
    found = []
    for status in (value for number, value in fields_of(message) if number == 1 and isinstance(value, bytes)):
        for part in (value for number, value in fields_of(status) if number == 1 and isinstance(value, bytes)):
            fields = dict(fields_of(part))
            texts = [value for key in (1, 3, 4) if isinstance(value := fields.get(key, b""), bytes)]
            kind, *why = (text.decode(errors="replace") for text in texts)
            found.append(Condition(kind, bool(fields.get(2, 0)), ": ".join(each for each in why if each)))
    if not found:
        raise ValueError("the answer has no status of the runtime")
    return tuple(found)
