"""The section `callers` of the guard's configuration: who is known, and how.

anonymous: ""                        # group of callers without credentials; "" refuses them
tokens:
- {name: grafana, sha256: HEX, group: dashboards, tenant: team-a}
cluster:                             # tokens of service accounts, reviewed by the API server
  audience: muster-guard
  callers:
  - {name: rules, users: ["system:serviceaccount:monitoring:ruler"], group: rules}
certificates:
  caFile: /etc/muster-guard-ca/ca.crt
  callers:
  - {name: mimir, commonName: mimir, group: rules}
peers:                               # only these may name a user in a header
- {name: grafana, caller: grafana, addresses: ["10.0.0.0/8"], userHeader: X-Grafana-User, group: people}
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from muster.api.configschema import schema

DEFAULT_GROUP = "default"

Name = Annotated[str, schema(pattern="^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]


class TokenCaller(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A caller with a token of its own.

    Attributes:
        name: of the caller, in metrics and on pages.
        sha256: SHA-256 of the token in hexadecimal form. The token must be random: at least 128 bits.
        group: whose limits and budgets it has.
        tenant: that the guard sends for it; "" for none.
    """

    name: Name
    sha256: Annotated[str, schema(pattern="^[0-9a-f]{64}$")] = msgspec.field(name="sha256")
    group: Name = DEFAULT_GROUP
    tenant: str = ""


class ClusterCaller(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Users of the cluster.

    Attributes:
        name: of the caller, in metrics and on pages.
        users: names as the API server reports them, such as `system:serviceaccount:NAMESPACE:NAME`.
        groups: names of groups; one of them is enough.
        group: whose limits and budgets it has.
        tenant: that the guard sends for it; "" for none.
    """

    name: Name
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    group: Name = DEFAULT_GROUP
    tenant: str = ""


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Tokens of the cluster. Without callers, no token is reviewed and the guard needs no right.

    Attributes:
        audience: that tokens must have.
        callers: users of the cluster that may ask.
    """

    audience: str = "muster-guard"
    callers: tuple[ClusterCaller, ...] = ()


class CertificateCaller(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A client certificate of the authority. Each field that is given must match.

    Attributes:
        name: of the caller, in metrics and on pages.
        common_name: of the subject.
        dns: a DNS name of the certificate.
        uri: a URI of the certificate, such as a SPIFFE ID.
        group: whose limits and budgets it has.
        tenant: that the guard sends for it; "" for none.
    """

    name: Name
    common_name: str = ""
    dns: str = ""
    uri: str = ""
    group: Name = DEFAULT_GROUP
    tenant: str = ""


class CertificatesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Client certificates. They need `tls`.

    Attributes:
        ca_file: PEM file of the authority that signs them; read again when it changes.
        callers: certificates that may ask.
    """

    ca_file: str = ""
    callers: tuple[CertificateCaller, ...] = ()


class PeerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A program that may name its user in a header, such as Grafana with `send_user_header`.

    Attributes:
        name: of the peer. Without `caller`, its users have this name in front.
        caller: name of the caller in `tokens`, `cluster` or `certificates` as which the peer must be known.
            "" trusts the addresses alone: any program there can then name any user.
        addresses: networks of the peer. Empty: any, if `caller` is given.
        user_header: header with the user's name.
        group: group of the users. Each user has a budget of its own.
        tenant: tenant of the users.
    """

    name: Name
    caller: str = ""
    addresses: tuple[str, ...] = ()
    user_header: str = "X-Grafana-User"
    group: Name = DEFAULT_GROUP
    tenant: str = ""


class CallersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """All callers. By default, each request is refused.

    Attributes:
        anonymous: group of callers without credentials; "" refuses them.
        anonymous_tenant: their tenant; "" for none.
        tokens: callers with tokens of their own.
        cluster: callers with tokens of the cluster.
        certificates: callers with client certificates.
        peers: programs that may name their users in a header.
    """

    anonymous: str = ""
    anonymous_tenant: str = ""
    tokens: tuple[TokenCaller, ...] = ()
    cluster: ClusterConfig = ClusterConfig()
    certificates: CertificatesConfig = CertificatesConfig()
    peers: tuple[PeerConfig, ...] = ()
