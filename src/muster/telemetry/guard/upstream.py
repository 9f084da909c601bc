"""The section `upstream` of the guard's configuration: the server behind the guard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from muster.telemetry.guard.callers.problems import HEADER_NAME

_OWN: Final = {
    "authorization": "write the token into a file and set tokenFile",
    "cookie": "the guard sends none",
    "host": "it follows from url",
    "content-length": "it follows from the request",
    "transfer-encoding": "it follows from the request",
    "connection": "the guard sets it",
}


class UpstreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The server behind the guard.

    Attributes:
        url: its base address, with the path in front of `/api/v1` if there is one.
        token_file: file with a bearer token for it; read again when it changes.
        ca_file: PEM file with the authority of its certificate; read again when it changes. "" uses those of the
            system.
        certificate_file: PEM file of the guard's client certificate; read again when it changes.
        key_file: its key; read again when it changes.
        headers: headers to add. Put secrets into `token_file`.
        pass_authorization: send the caller's own Authorization header.
        tenant_header: header with the tenant.
    """

    url: str
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    headers: Mapping[str, str] = {}
    pass_authorization: bool = False
    tenant_header: str = "X-Scope-OrgID"


def problems(config: UpstreamConfig) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible."""
    problem = _url_problem(config.url)
    if problem:
        yield "$.url", problem
    elif config.url.startswith("http://") and (config.ca_file or config.certificate_file):
        yield "$.url", "certificates need https://"
    if bool(config.certificate_file) != bool(config.key_file):
        yield "$.certificateFile", "set certificateFile and keyFile together"
    if config.token_file and config.pass_authorization:
        yield "$.passAuthorization", "a request has one Authorization header; set tokenFile or passAuthorization"
    if not HEADER_NAME.fullmatch(config.tenant_header) or config.tenant_header.lower() in _OWN:
        yield "$.tenantHeader", f"{config.tenant_header!r} is not possible; Mimir and Cortex use X-Scope-OrgID"
    for name, value in config.headers.items():
        if not HEADER_NAME.fullmatch(name):
            yield f"$.headers.{name}", "this is not the name of a header"
        elif name.lower() in _OWN:
            yield f"$.headers.{name}", f"this header cannot be set here: {_OWN[name.lower()]}"
        elif name.lower() == config.tenant_header.lower():
            yield f"$.headers.{name}", "set the tenant of each caller in callers"
        elif not (value.isascii() and value.isprintable()):
            yield f"$.headers.{name}", "a value has printable ASCII characters only"


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        named = False
    if not named:
        return f"{url!r} is not an address; write http://HOST:PORT or https://HOST"
    if parts.username is not None:
        return "put credentials into tokenFile, not into the address"
    if parts.query or parts.fragment:
        return "leave out everything after the path"
    return ""
