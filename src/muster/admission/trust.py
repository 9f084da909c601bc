"""Keeps the webhook's certificates valid: in their Secret, trusted by the API server, and served.

Every replica does the same, without a lease. The Secret is written with a precondition on its version; if another
replica was first, its certificates are used. The webhook configurations follow the Secret. New certificates are first
trusted by the API server, and then served.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from muster.admission.metrics import AdmissionMetrics
from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.connection.pki import KeyPair
from muster.kube.connection.servingcertificates import AUTHORITIES, CERTIFICATE, KEY, ends_at, load_pair
from muster.kube.errors import ApiError, ConfigError
from muster.kube.health import Progress
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct
from muster.kube.servingsecret import ServingSecret

log = logging.getLogger(__name__)

SECRET: Final = "muster-admission-tls"
CONFIGURATION: Final = "muster-admission"
LOOK_S: Final = 30.0
_DEADLINE_S: Final = 300.0
_LOOP: Final = "certificates"


class ClientConfig(KubeStruct):
    """The settings with which the API server verifies the webhook."""

    ca_bundle: bytes = b""


class Webhook(KubeStruct):
    """One webhook of a configuration."""

    name: str
    client_config: ClientConfig = msgspec.field(default_factory=ClientConfig)


class WebhookConfiguration(KubeObject):
    """The fields that both kinds share."""

    webhooks: tuple[Webhook, ...] = ()


class MutatingWebhookConfiguration(WebhookConfiguration):
    """admissionregistration.k8s.io/v1 MutatingWebhookConfiguration."""

    RESOURCE: ClassVar[Resource] = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    )


class ValidatingWebhookConfiguration(WebhookConfiguration):
    """admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration."""

    RESOURCE: ClassVar[Resource] = Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
    )


_KINDS: Final[tuple[type[WebhookConfiguration], ...]] = (MutatingWebhookConfiguration, ValidatingWebhookConfiguration)


class Trust:
    """Manages the certificates over their lifetime.

    Args:
        client: the API server.
        namespace: the namespace of the Secret.
        hosts: names and addresses with which the API server calls.
        context: the TLS context for new connections.
        metrics: shows the end of the certificate.
        progress: marked after each check.
        clock: the wall clock in seconds since the epoch, to which certificates refer.
        look_s: the interval of checks, in seconds.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        hosts: Sequence[str],
        context: ssl.SSLContext,
        metrics: AdmissionMetrics,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.time,
        look_s: float = LOOK_S,
    ) -> None:
        """Create it without reading or writing; `run` and `keep` do that."""
        self._client, self._hosts, self._context = client, tuple(hosts), context
        self._metrics, self._progress, self._look_s = metrics, progress, look_s
        self._secret = ServingSecret(client, namespace, SECRET, hosts, clock, {LABEL_MANAGED_BY: MANAGED_BY})
        self._served = b""
        self._error: Exception | None = None

    def not_ready(self) -> str | None:
        """Return what is missing until the webhook can be called; None if nothing is."""
        if self._served:
            return None
        return f"no certificate: {self._error}" if self._error is not None else "no certificate yet"

    async def run(self) -> None:
        """Check at intervals until cancelled. Failures are retried at the next check."""
        if self._progress is not None:
            self._progress.expect(_LOOP, _DEADLINE_S)
        while True:
            try:
                await self.keep()
                self._error = None
            except (ApiError, ConfigError, ValueError) as error:
                if str(error) != str(self._error):
                    log.warning("certificates: %s", error)
                self._error = error
            if self._progress is not None:
                self._progress.mark(_LOOP)
            await asyncio.sleep(self._look_s if self._served else min(self._look_s, 2.0))

    async def keep(self) -> None:
        """Renew the Secret if needed, have the API server trust it, and serve it. If all is valid, this only reads.

        Raises ApiError, and ValueError if the certificates cannot be loaded.
        """
        secret = await self._secret.good()
        for kind in _KINDS:
            await self._trusted(kind, secret.data[AUTHORITIES])
        if secret.data[CERTIFICATE] != self._served:
            load_pair(self._context, KeyPair(secret.data[CERTIFICATE], secret.data[KEY]))
            self._served = secret.data[CERTIFICATE]
            ends = ends_at(secret.data)
            self._metrics.certificate_end.set(ends.timestamp())
            log.info("serving a certificate for %s until %s", ", ".join(self._hosts), f"{ends:%Y-%m-%d %H:%M}")

    async def _trusted(self, kind: type[WebhookConfiguration], bundle: bytes) -> None:
        configuration = await self._client.get(kind, CONFIGURATION)
        wrong = [each.name for each in configuration.webhooks if each.client_config.ca_bundle != bundle]
        if not wrong:
            return
        log.info("%s %s: trusting what the Secret %s says", kind.RESOURCE.kind, CONFIGURATION, SECRET)
        patch = {"webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in wrong]}
        await self._client.patch(kind, CONFIGURATION, patch, content_type=STRATEGIC_MERGE_PATCH)
