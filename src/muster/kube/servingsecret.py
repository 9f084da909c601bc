"""Keeps the certificates of a server in a Secret, which all its replicas share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from muster.kube.client import Client
from muster.kube.connection.servingcertificates import renewed, why_renew
from muster.kube.errors import AlreadyExists, Conflict, NotFound
from muster.kube.objects.core import Secret
from muster.kube.objects.meta import ObjectMeta

log = logging.getLogger(__name__)


class ServingSecret:
    """A Secret with valid certificates.

    Every replica does the same, without a lease. The Secret is written with a precondition on its version; if another
    replica was first, its certificates are used.

    Args:
        client: the API server, with the right to create Secrets, and to get and update this one.
        namespace: of the Secret.
        name: of the Secret.
        hosts: names and addresses with which clients call.
        clock: the wall clock in seconds since the epoch, to which certificates refer.
        labels: of the Secret when it is created.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        hosts: Sequence[str],
        clock: Callable[[], float],
        labels: dict[str, str],
    ) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._hosts, self._clock, self._labels = tuple(hosts), clock, labels

    async def good(self) -> Secret:
        """Return the Secret. It is created or renewed if needed. Raises ApiError."""
        while True:
            now = datetime.fromtimestamp(self._clock(), UTC)
            try:
                secret = await self._client.get(Secret, self._name, self._namespace)
            except NotFound:
                meta = ObjectMeta(name=self._name, namespace=self._namespace, labels=self._labels)
                new = Secret(metadata=meta, type="Opaque", data=renewed({}, self._hosts, now))
                try:
                    return await self._client.create(new, retry_lost=True)
                except AlreadyExists:
                    continue
            why = why_renew(secret.data, self._hosts, now)
            if not why:
                return secret
            log.info("new certificates in Secret %s: %s", self._name, why)
            try:
                data = renewed(secret.data, self._hosts, now)
                return await self._client.replace(msgspec.structs.replace(secret, data=data))
            except Conflict:
                continue
