"""Keeps the serving certificate of a server in a Secret, and publishes its authority for clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from muster.kube.client import Client
from muster.kube.connection.pki import KeyPair
from muster.kube.connection.servingcertificates import AUTHORITIES, CERTIFICATE, KEY, ends_at
from muster.kube.errors import AlreadyExists, ApiError, ConfigError, NotFound
from muster.kube.health import Progress
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.servingsecret import ServingSecret

log = logging.getLogger(__name__)

LOOK_S: Final = 30.0
_RETRY_S: Final = 2.0
_DEADLINE_S: Final = 300.0


class SecretCertificate:
    """Keeps an authority and a certificate of it in a Secret, and publishes the authority in a ConfigMap.

    Args:
        client: the API server, with rights to this Secret and this ConfigMap.
        namespace: of both.
        secret: its name.
        config_map: its name; clients find the authorities to trust under `ca.crt`.
        hosts: names and addresses with which clients call.
        serve: uses the certificate for new connections; may raise ValueError. None to keep the Secret for another
            program.
        progress: marked after each check.
        clock: the wall clock in seconds since the epoch.
        look_s: interval of checks, in seconds.
        labels: of the Secret and the ConfigMap when they are created.
        metrics: shows the end of the certificate.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        secret: str,
        config_map: str,
        hosts: Sequence[str],
        serve: Callable[[KeyPair], None] | None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.time,
        look_s: float = LOOK_S,
        *,
        labels: dict[str, str],
        metrics: KubeMetrics | None = None,
    ) -> None:
        self._client, self._namespace, self._name, self._config_map = client, namespace, secret, config_map
        self._serve, self._progress, self._look_s = serve, progress, look_s
        self._secret = ServingSecret(client, namespace, secret, hosts, clock, labels)
        self._labels = labels
        self._end = (metrics or kube_metrics()).certificate_end.labels(secret)
        self._served = b""
        self._kept = False
        self._error: Exception | None = None

    def not_ready(self) -> str | None:
        """Return what is missing until the certificate can be served; None if nothing is."""
        if self._kept:
            return None
        return f"no certificate: {self._error}" if self._error is not None else "no certificate yet"

    async def run(self) -> None:
        """Check at intervals until cancelled. Failures are retried."""
        loop = f"certificate/{self._name}"
        if self._progress is not None:
            self._progress.expect(loop, _DEADLINE_S)
        while True:
            try:
                await self.keep()
                self._kept, self._error = True, None
            except (ApiError, ConfigError, ValueError) as error:
                if str(error) != str(self._error):
                    log.warning("certificate in Secret %s: %s", self._name, error)
                self._error = error
            if self._progress is not None:
                self._progress.mark(loop)
            await asyncio.sleep(self._look_s if self._error is None else min(self._look_s, _RETRY_S))

    async def keep(self) -> None:
        """Renew the Secret if needed, publish its authorities, and serve it. If all is valid, this only reads.

        Raises ApiError, and ValueError if the certificate cannot be loaded.
        """
        data = (await self._secret.good()).data
        self._end.set(ends_at(data).timestamp())
        await self._publish(data[AUTHORITIES].decode())
        if self._serve is not None and data[CERTIFICATE] != self._served:
            self._serve(KeyPair(data[CERTIFICATE], data[KEY]))
            self._served = data[CERTIFICATE]

    async def _publish(self, authorities: str) -> None:
        data = {AUTHORITIES: authorities}
        try:
            found = await self._client.get(ConfigMap, self._config_map, self._namespace)
        except NotFound:
            meta = ObjectMeta(name=self._config_map, namespace=self._namespace, labels=self._labels)
            try:
                await self._client.create(ConfigMap(metadata=meta, data=data), retry_lost=True)
                return
            except AlreadyExists:
                found = await self._client.get(ConfigMap, self._config_map, self._namespace)
        if found.data.get(AUTHORITIES) != authorities:
            await self._client.patch(ConfigMap, self._config_map, {"data": data}, namespace=self._namespace)
