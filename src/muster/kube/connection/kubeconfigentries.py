"""Structs for the entries of a kubeconfig that Muster reads.

Muster does not use a client library for this. Every process that talks to a cluster reads a kubeconfig, and importing
such a library costs more than the rest of reading it (75 ms of 80).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from muster.kube.errors import ConfigError

Entry = TypeVar("Entry", bound=msgspec.Struct)


class ContextEntry(msgspec.Struct, frozen=True):
    """A cluster, a user there (None: no user is named) and a default namespace."""

    cluster: str
    user: str | None = None
    namespace: str | None = None


class ExtensionEntry(msgspec.Struct, frozen=True):
    """Data for another program in a cluster's entry, such as for a credential plugin."""

    name: str
    extension: Any = None


class ClusterEntry(msgspec.Struct, frozen=True, rename="kebab"):
    """The address of an API server, and how its identity is verified."""

    server: str = "http://localhost:8080"
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: tuple[ExtensionEntry, ...] | None = None


class VariableEntry(msgspec.Struct, frozen=True):
    """One environment variable of a credential plugin."""

    name: str
    value: str


class ExecEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A credential plugin: https://kubernetes.io/docs/reference/access-authn-authz/authentication/."""

    api_version: str
    command: str
    env: tuple[VariableEntry, ...] | None = None
    args: tuple[str, ...] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class UserEntry(msgspec.Struct, frozen=True, rename="kebab"):
    """A user's credentials; secrets are in the fields themselves or in the files that they name."""

    exec: ExecEntry | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    auth_provider: Any = None
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None


def find_entry(section: Sequence[Mapping[str, Any]], name: str, inner: str, kind: type[Entry], where: str) -> Entry:
    """Return the field `inner` of the entry with this name. Raises ConfigError if it is missing or not valid."""
    for entry in section:
        if entry["name"] == name:
            try:
                return msgspec.convert(entry.get(inner) or {}, kind)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{where} is not a valid kubeconfig: {inner} {name!r}: {error}") from None
    raise ConfigError(f"{where} refers to {name!r}, which the file does not have")
