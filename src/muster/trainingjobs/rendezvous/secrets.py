"""Reads and creates an installation's Secrets: the controller's certificate authority, and the cluster secret."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

import msgspec

from muster.api.names import CLUSTER_SECRET, LABEL_MANAGED_BY, MANAGED_BY, TLS_SECRET
from muster.kube.client import Client
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.errors import AlreadyExists, ApiError, NotFound
from muster.kube.objects.core import Namespace, Secret
from muster.kube.objects.meta import ObjectMeta

_SECRET_BYTES: Final = 32
_CERTIFICATE, _KEY, _SECRET = "ca.crt", "ca.key", "secret"


class InstallationSecrets(msgspec.Struct, frozen=True):
    """The Secrets that all replicas share."""

    authority: CertificateAuthority
    cluster_secret: bytes

    def __repr__(self) -> str:
        return "InstallationSecrets()"


async def load_or_create(client: Client, namespace: str) -> InstallationSecrets:
    """Read the Secrets, or create them. The first replica decides their content. Raises ApiError."""
    tls = await _get_or_create(client, namespace, TLS_SECRET, _new_authority)
    cluster = await _get_or_create(client, namespace, CLUSTER_SECRET, _new_secret)
    authority = CertificateAuthority(KeyPair(tls.data[_CERTIFICATE], tls.data[_KEY]))
    return InstallationSecrets(authority, cluster.data[_SECRET])


def attempt_key(cluster_secret: bytes, job_uid: str, attempt: int) -> str:
    """Return the key of an attempt's remote shell, in hex. Other keys of the attempt are derived from it."""
    return hmac.new(cluster_secret, f"{job_uid}/{attempt}".encode(), hashlib.sha256).hexdigest()


def ephemeral() -> InstallationSecrets:
    """Return temporary secrets for shadow mode, which creates no pods."""
    pair = CertificateAuthority.create("muster-controller")
    return InstallationSecrets(pair, secrets.token_bytes(_SECRET_BYTES))


def _new_authority() -> dict[str, bytes]:
    pair = CertificateAuthority.create("muster-controller").pair
    return {_CERTIFICATE: pair.certificate, _KEY: pair.key}


def _new_secret() -> dict[str, bytes]:
    return {_SECRET: secrets.token_bytes(_SECRET_BYTES)}


async def _get_or_create(client: Client, namespace: str, name: str, make: object) -> Secret:
    assert callable(make)
    try:
        return await client.get(Secret, name, namespace)
    except NotFound:
        pass
    secret = Secret(
        metadata=ObjectMeta(name=name, namespace=namespace, labels={LABEL_MANAGED_BY: MANAGED_BY}),
        type="Opaque",
        data=make(),
    )
    try:
        return await client.create(secret, retry_lost=True)
    except AlreadyExists:
        return await client.get(Secret, name, namespace)
    except NotFound as error:
        await _create_namespace(client, namespace, error)
        return await client.create(secret)


async def _create_namespace(client: Client, namespace: str, missing: ApiError) -> None:
    """Create the system namespace, if it is missing and the user may. Otherwise the error says what to do."""
    try:
        await client.create(Namespace(metadata=ObjectMeta(name=namespace)))
    except AlreadyExists:
        return
    except ApiError as error:
        raise type(missing)(
            missing.status,
            missing.reason,
            f"namespace {namespace} does not exist and cannot be made ({error.message}): "
            f"kubectl create namespace {namespace}, or choose another with --namespace",
        ) from error
