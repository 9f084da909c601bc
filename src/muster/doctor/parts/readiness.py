"""The checks behind `/readyz` of each API server."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.doctor.rule import Context
from muster.kube.errors import ApiError

_WHAT: Final = "readiness of the API server"
_FAILED: Final = re.compile(r"^\[-\]([^\s]+) failed", re.MULTILINE)


class Readiness(msgspec.Struct, frozen=True):
    """Failed checks by the address of the API server; an empty entry means that it is ready."""

    failed: dict[str, tuple[str, ...]]


async def collect_readiness(context: Context) -> Readiness | None:
    """Ask each API server for its checks. An unready server answers 500 with the same list."""
    found: dict[str, tuple[str, ...]] = {}
    for client in context.clients:
        context.reader.cost.requests += 1
        try:
            body = await client.request("GET", "/readyz", params={"verbose": ""}, headers={"Accept": "text/plain"})
        except ApiError as error:
            if error.status != 500:
                context.reader.note(_WHAT, error.message, "get nonResourceURL /readyz" if error.status == 403 else "")
                continue
            body = error.message.encode()
        context.reader.cost.bytes += len(body)
        found[client.config.server] = failed_checks(body.decode("utf-8", "replace"))
    return Readiness(found) if found else None


def failed_checks(text: str) -> tuple[str, ...]:
    """Return the names of failed checks, such as `etcd`."""
    return tuple(_FAILED.findall(text))
