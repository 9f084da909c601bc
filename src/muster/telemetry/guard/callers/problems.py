"""Checks the section `callers` of the guard's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from muster.telemetry.guard.callers.config import CallersConfig
from muster.telemetry.guard.callers.peers import network_of

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TENANT: Final = re.compile(r"[!-~]{0,150}")
"""Mimir accepts at most 150 bytes."""
_NOT_USERS: Final = {"authorization", "cookie", "host", "content-length", "content-type", "connection", "forwarded"}
_RESERVED: Final = {"anonymous"}


def problems(config: CallersConfig, tls: bool) -> Iterator[tuple[str, str]]:
    """Yield (path, what to change) of values that are not possible.

    Args:
        config: the section.
        tls: whether the guard serves TLS.
    """
    yield from _names(config)
    yield from _tokens(config)
    yield from _cluster(config)
    yield from _certificates(config, tls)
    yield from _peers(config)
    for path, tenant in _tenants(config):
        if not _TENANT.fullmatch(tenant):
            yield path, "a tenant has at most 150 printable ASCII characters without blanks"


def named(config: CallersConfig) -> list[tuple[str, str, str]]:
    """Return path, name and group of all callers that have credentials."""
    found = [(f"$.tokens[{n}]", each.name, each.group) for n, each in enumerate(config.tokens)]
    found += [(f"$.cluster.callers[{n}]", each.name, each.group) for n, each in enumerate(config.cluster.callers)]
    found += [
        (f"$.certificates.callers[{n}]", each.name, each.group) for n, each in enumerate(config.certificates.callers)
    ]
    return found


def any_known(config: CallersConfig) -> bool:
    """Return whether any caller is accepted."""
    return bool(config.anonymous or config.peers or named(config))


def groups_used(config: CallersConfig) -> list[tuple[str, str]]:
    """Return path and name of each group that callers have."""
    found = [(f"{path}.group", group) for path, _, group in named(config)]
    found += [(f"$.peers[{n}].group", each.group) for n, each in enumerate(config.peers)]
    if config.anonymous:
        found.append(("$.anonymous", config.anonymous))
    return found


def _names(config: CallersConfig) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for path, name, _ in named(config):
        if not _NAME.fullmatch(name) or name in _RESERVED:
            yield f"{path}.name", f"{name!r} is not a name; use 1 to 63 of a-z, 0-9, '-' and '.', but not 'anonymous'"
        elif name in seen:
            yield f"{path}.name", f"{name!r} is there twice; give each caller its own name"
        seen.add(name)


def _tokens(config: CallersConfig) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for n, caller in enumerate(config.tokens):
        path = f"$.tokens[{n}].sha256"
        if not _SHA256.fullmatch(caller.sha256):
            yield path, "write the SHA-256 of the token, as `printf %s TOKEN | sha256sum` prints it"
        elif caller.sha256 in seen:
            yield path, f"{seen[caller.sha256]!r} has the same token; give each caller its own token"
        seen.setdefault(caller.sha256, caller.name)


def _cluster(config: CallersConfig) -> Iterator[tuple[str, str]]:
    if config.cluster.callers and not config.cluster.audience:
        yield "$.cluster.audience", "name the audience of the tokens, such as muster-guard"
    for n, caller in enumerate(config.cluster.callers):
        if not caller.users and not caller.groups:
            yield f"$.cluster.callers[{n}]", "name users or groups, such as system:serviceaccount:NAMESPACE:NAME"


def _certificates(config: CallersConfig, tls: bool) -> Iterator[tuple[str, str]]:
    certificates = config.certificates
    if certificates.callers and not certificates.ca_file:
        yield "$.certificates.caFile", "name the PEM file of the authority that signs the client certificates"
    if certificates.callers and not tls:
        yield "$.certificates", "client certificates need TLS; set tls.certificateFile and tls.keyFile"
    for n, caller in enumerate(certificates.callers):
        if not (caller.common_name or caller.dns or caller.uri):
            yield f"$.certificates.callers[{n}]", "name commonName, dns or uri of the certificate"


def _peers(config: CallersConfig) -> Iterator[tuple[str, str]]:
    callers = {name for _, name, _ in named(config)}
    seen: set[str] = set()
    for n, peer in enumerate(config.peers):
        path = f"$.peers[{n}]"
        if not _NAME.fullmatch(peer.name) or peer.name in _RESERVED:
            yield f"{path}.name", f"{peer.name!r} is not a name; use 1 to 63 of a-z, 0-9, '-' and '.'"
        elif peer.name in seen:
            yield f"{path}.name", f"{peer.name!r} is there twice; give each peer its own name"
        elif not peer.caller and peer.name in callers:
            yield f"{path}.name", f"{peer.name!r} is also a caller; set `caller`, or use another name"
        seen.add(peer.name)
        if not peer.caller and not peer.addresses:
            yield path, "set `caller`, so that the peer must prove who it is; or at least `addresses`"
        elif peer.caller and peer.caller not in callers:
            yield f"{path}.caller", f"{peer.caller!r} is not in tokens, cluster or certificates; add it there"
        if not HEADER_NAME.fullmatch(peer.user_header) or peer.user_header.lower() in _NOT_USERS:
            yield f"{path}.userHeader", f"{peer.user_header!r} is not possible; Grafana sends X-Grafana-User"
        for m, address in enumerate(peer.addresses):
            try:
                network_of(address)
            except ValueError as error:
                yield f"{path}.addresses[{m}]", f"{error}; write an address, or a network such as 10.0.0.0/8"


def _tenants(config: CallersConfig) -> Iterator[tuple[str, str]]:
    yield "$.anonymousTenant", config.anonymous_tenant
    for n, token in enumerate(config.tokens):
        yield f"$.tokens[{n}].tenant", token.tenant
    for n, user in enumerate(config.cluster.callers):
        yield f"$.cluster.callers[{n}].tenant", user.tenant
    for n, certificate in enumerate(config.certificates.callers):
        yield f"$.certificates.callers[{n}].tenant", certificate.tenant
    for n, peer in enumerate(config.peers):
        yield f"$.peers[{n}].tenant", peer.tenant
